"""The settings of a workload, and the one function that turns them into a trace."""

import math
from dataclasses import dataclass, field

from mooncake_jax.errors import UserError
from mooncake_jax.workload.azure import read_azure
from mooncake_jax.workload.burstgpt import read_burstgpt
from mooncake_jax.workload.generate import GeneratorConfig, generate
from mooncake_jax.workload.mix import mix
from mooncake_jax.workload.mooncake import read_mooncake
from mooncake_jax.workload.published import find_trace
from mooncake_jax.workload.qwen import read_qwen
from mooncake_jax.workload.scale import first, scale_lengths, set_output, speed_up
from mooncake_jax.workload.sharegpt import read_sharegpt
from mooncake_jax.workload.timing import mean_rate, poisson, set_rate, window
from mooncake_jax.workload.trace import Trace

_READERS = {"mooncake": read_mooncake, "azure": read_azure, "burstgpt": read_burstgpt, "qwen": read_qwen}
FORMATS = (*_READERS, "sharegpt")
"""Formats of files that can be read."""


@dataclass(frozen=True)
class WorkloadConfig:
    """Which requests arrive when. Raises UserError when a value is out of its range."""

    path: str | None = None
    """File to read, in `format`, or the name of a published trace: conversation, synthetic, toolagent. None generates
    conversations by `generator`."""
    format: str = "mooncake"
    """Of the files: mooncake, azure, burstgpt, qwen or sharegpt."""
    mix: list[str] | None = None
    """Further files of the same format, whose requests are merged in by arrival time; no file shares blocks with another."""
    window: list[float] | None = None
    """[start, end): only the requests that arrive then, in seconds of the trace; start becomes time 0. Goes before `limit`."""
    limit: int | None = None
    """Only the first so many requests; None takes all."""
    rate: float | None = None
    """Arrival times are stretched to so many requests a second on average; None leaves them. The mean rate of sharegpt."""
    poisson: bool = False
    """Arrival times are drawn anew, as a Poisson process of `rate`, or else of the mean rate that the trace has."""
    speed: float = 1.0
    """Arrival times are divided by it: 2 replays in half the time."""
    scale: float = 1.0
    """Input and output lengths are multiplied by it; a hash id then stands for 512 · scale tokens, a whole number."""
    output: int | None = None
    """Every request generates so many tokens; None leaves the trace's lengths."""
    seed: int = 0
    """Of the generator, of drawn arrival times and of the token ids, 0 or more; the same seed gives the same requests."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    """What to generate when there is no path."""

    def __post_init__(self) -> None:
        for name, right, needs in (
            ("format", self.format in FORMATS, f"one of {', '.join(FORMATS)}"),
            ("mix", not self.mix or self.path is not None, "null unless workload.path names the first file"),
            ("window", self.window is None or _is_window(self.window), "[start, end] with 0 <= start < end, or null"),
            ("limit", self.limit is None or self.limit >= 1, "1 or more, or null"),
            ("rate", self.rate is None or 0 < self.rate < math.inf, "more than 0 and finite, or null"),
            ("rate", self.rate or self.path is None or self.format != "sharegpt", "set: a sharegpt file has no arrival times"),
            ("speed", 0 < self.speed < math.inf, "more than 0 and finite"),
            ("scale", 0 < self.scale < math.inf, "more than 0 and finite"),
            ("output", self.output is None or self.output >= 1, "1 or more, or null"),
            ("seed", 0 <= self.seed < 2**64, "from 0 to 2^64 - 1"),
        ):
            if not right:
                raise UserError(f"workload.{name} must be {needs}, but is {getattr(self, name)}.")


def load_trace(config: WorkloadConfig) -> Trace:
    """Reads or generates the trace, then applies mix, window, limit, rate or poisson, speed, scale and output, in
    this order.

    Raises UserError for a bad file (its reader), a window without requests, a scale that gives no whole blocks
    (`scale_lengths`), or a generator that yields no request.
    """
    if config.path is None:
        trace = generate(config.generator, config.seed, config.limit if config.window is None else None)
    else:
        trace = _read(config, config.path, 0)
        if config.mix:
            trace = mix([trace, *(_read(config, path, index) for index, path in enumerate(config.mix, start=1))])
    if config.window is not None:
        trace = window(trace, *config.window)
    if config.limit is not None:
        trace = first(trace, config.limit)
    if config.poisson:
        trace = poisson(trace, config.rate or mean_rate(trace), config.seed)
    elif config.rate is not None:
        trace = set_rate(trace, config.rate)
    # Ones change nothing, but take seconds for a million requests.
    if config.speed != 1:
        trace = speed_up(trace, config.speed)
    if config.scale != 1:
        trace = scale_lengths(trace, config.scale)
    return trace if config.output is None else set_output(trace, config.output)


def _read(config: WorkloadConfig, path: str, index: int) -> Trace:
    if config.format == "sharegpt":
        # Files to mix must not arrive at the same times.
        return read_sharegpt(path, config.rate, config.seed + index)
    return _READERS[config.format](find_trace(path))


def _is_window(window: list[float]) -> bool:
    return len(window) == 2 and 0 <= window[0] < window[1]
