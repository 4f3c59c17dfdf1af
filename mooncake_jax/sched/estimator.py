"""How long things will take. The Conductor asks an `Estimator`; `ClosedForm` answers from coefficients.

All methods take Python numbers, or numpy arrays that broadcast against each other, and answer likewise, in seconds.
"""

import math
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Real

from mooncake_jax.errors import UserError

type Numbers = float | int | Real[np.ndarray, "*batch"]
type Seconds = float | Float[np.ndarray, "*batch"]


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """Seconds of a decode step of a fixed batch: `seconds + seconds_per_token * context`."""

    seconds: Numbers
    seconds_per_token: Numbers


@runtime_checkable
class Estimator(Protocol):
    """Deterministic, without a clock: the same calls in the same order give the same answers."""

    def prefill_s(self, tokens: Numbers, cached: Numbers) -> Seconds:
        """Prefill of prompts of `tokens` tokens of which the first `cached` need no computing."""
        ...

    def decode_step_s(self, batch: Numbers, context: Numbers) -> Seconds:
        """One decode step of `batch` requests with `context` tokens of context in all."""
        ...

    def transfer_s(self, nbytes: Numbers, src: int, dst: int | Real[np.ndarray, "*batch"]) -> Seconds:
        """Fetch of `nbytes` from the host pool of prefill instance `src` to that of prefill instance `dst`."""
        ...


@runtime_checkable
class HardwareModel(Estimator, Protocol):
    """An estimator that can be the truth of a simulation: at a fixed batch its decode steps are affine in context.

    The steps between two changes of a batch are then an arithmetic series, which a simulator sums without stepping.
    """

    def decode_line(self, batch: Numbers) -> DecodeLine:
        """`decode_step_s(batch, context)` is exactly `line.seconds + line.seconds_per_token * context`."""
        ...


@dataclass(frozen=True)
class ClosedForm:
    """Seconds from coefficients; the defaults are `a800x8_llama3_70b`, fitted to FAST Fig 14.

        prefill_s     = prefill_base + prefill_per_token * (n - p) + prefill_per_token2 * (n^2 - p^2)
        decode_step_s = decode_base + decode_per_request * batch + decode_per_context_token * context
        transfer_s    = latency + nbytes / bandwidth

    Raises UserError for a negative or infinite coefficient, or a bandwidth that is not positive.
    """

    prefill_base: float | int = 0.0
    """s"""
    prefill_per_token: float | int = 1.1461e-4
    """s / token"""
    prefill_per_token2: float | int = 7.192e-10
    """s / token^2"""
    decode_base: float | int = 0.02629
    """s"""
    decode_per_request: float | int = 0.0
    """s / request"""
    decode_per_context_token: float | int = 3.445e-8
    """s / token"""
    bandwidth: float | int = 87e9
    """bytes / s, node to node"""
    latency: float | int = 0.0
    """s, node to node"""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < math.inf:
                raise UserError(f"{field.name} of the closed-form cost model is {value}; it must be finite and 0 or more")
        if self.bandwidth == 0:
            raise UserError("bandwidth of the closed-form cost model is 0; it must be more than 0 bytes/s")

    def prefill_s(self, tokens: Numbers, cached: Numbers) -> Seconds:
        linear = self.prefill_per_token * (tokens - cached)
        return self.prefill_base + linear + self.prefill_per_token2 * (tokens * tokens - cached * cached)

    def decode_line(self, batch: Numbers) -> DecodeLine:
        return DecodeLine(self.decode_base + self.decode_per_request * batch, self.decode_per_context_token)

    def decode_step_s(self, batch: Numbers, context: Numbers) -> Seconds:
        # the terms of decode_line in its order, written out because this is called for every request
        return self.decode_base + self.decode_per_request * batch + self.decode_per_context_token * context

    def transfer_s(self, nbytes: Numbers, src: int, dst: int | Real[np.ndarray, "*batch"]) -> Seconds:
        return self.latency + nbytes / self.bandwidth
