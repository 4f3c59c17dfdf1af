"""When the requests of a trace arrive: a part of its time, another mean rate, or a Poisson process in its place."""

import math
from dataclasses import replace
from itertools import accumulate

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.workload.trace import Trace, TraceRequest


def window(trace: Trace, start: float | int, end: float | int) -> Trace:
    """The requests that arrive in [start, end), in seconds of the trace, with `start` as the new time 0.

    Raises UserError when there is none.
    """
    kept = [one for one in trace.requests if start <= one.arrival < end]
    if not kept:
        first, last = trace.requests[0].arrival, trace.requests[-1].arrival
        raise UserError(f"workload.window=[{start}, {end}] holds no request: they arrive from second {first} to {last}.")
    return _at(replace(trace, requests=tuple(kept)), [one.arrival - start for one in kept])


def mean_rate(trace: Trace) -> float:
    """Requests a second between the first and the last arrival: (requests - 1) / seconds. Raises UserError for 0 seconds."""
    span = trace.requests[-1].arrival - trace.requests[0].arrival
    if not span:
        raise UserError(
            "all requests of the trace arrive at one instant, which is no rate: set workload.rate and workload.poisson=true."
        )
    return (len(trace.requests) - 1) / span


def set_rate(trace: Trace, rate: float | int) -> Trace:
    """Multiplies all arrival times by one factor, so that `mean_rate` becomes `rate` requests a second; bursts stay bursts.

    Raises UserError unless 0 < rate < inf, or when all requests arrive at one instant.
    """
    if not 0 < rate < math.inf:
        raise UserError(f"workload.rate must be more than 0 and finite, but is {rate}.")
    factor = mean_rate(trace) / rate
    return _at(trace, [one.arrival * factor for one in trace.requests])


def poisson(trace: Trace, rate: float | int, seed: int = 0) -> Trace:
    """Puts `poisson_times` in place of the arrival times, in their order: same requests, other traffic.

    Raises UserError unless 0 < rate < inf.
    """
    return _at(trace, poisson_times(len(trace.requests), rate, seed))


def poisson_times(number: int, rate: float | int, seed: int = 0) -> list[float]:
    """The first `number` arrivals, in seconds, of the Poisson process of `rate` a second that belongs to the seed.

    The same in every process and version: numpy promises raw output of its bit generators, not of its distributions, whose
    logarithms moreover differ between processors. Raises UserError unless 0 < rate < inf.
    """
    if not 0 < rate < math.inf:
        raise UserError(f"workload.rate must be more than 0 and finite, but is {rate}.")
    raw = np.random.PCG64((seed, 0)).random_raw(number)
    # 53 bits make a number in (0, 1], whose logarithm is finite.
    uniform = ((raw >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
    return list(accumulate(-math.log(one) / rate for one in uniform.tolist()))


def _at(trace: Trace, arrivals: list[float]) -> Trace:
    # By position: `replace` takes three times as long, which counts for a million requests.
    return replace(
        trace,
        requests=tuple(
            TraceRequest(arrival, one.input_length, one.output_length, one.hash_ids, one.session)
            for arrival, one in zip(arrivals, trace.requests, strict=True)
        ),
    )
