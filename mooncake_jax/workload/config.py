"""The settings of a workload, and the one function that turns them into a trace."""

import math
from dataclasses import dataclass, field

from mooncake_jax.errors import UserError
from mooncake_jax.workload.generate import GeneratorConfig, generate
from mooncake_jax.workload.scale import first, scale_lengths, speed_up
from mooncake_jax.workload.trace import Trace, read_mooncake


@dataclass(frozen=True)
class WorkloadConfig:
    """Which requests arrive when. Raises UserError when a value is out of its range."""

    path: str | None = None
    """Mooncake JSONL file to read; None generates conversations by `generator`."""
    speed: float = 1.0
    """Arrival times are divided by it: 2 replays in half the time."""
    scale: float = 1.0
    """Input and output lengths are multiplied by it; a hash id then stands for 512 · scale tokens, a whole number."""
    limit: int | None = None
    """Only the first so many requests; None takes all."""
    seed: int = 0
    """Of the generator and of the token ids, 0 or more; the same seed gives the same requests."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    """What to generate when there is no path."""

    def __post_init__(self) -> None:
        for name, right, needs in (
            ("speed", 0 < self.speed < math.inf, "more than 0 and finite"),
            ("scale", 0 < self.scale < math.inf, "more than 0 and finite"),
            ("limit", self.limit is None or self.limit >= 1, "1 or more, or null"),
            ("seed", 0 <= self.seed < 2**64, "from 0 to 2^64 - 1"),
        ):
            if not right:
                raise UserError(f"workload.{name} must be {needs}, but is {getattr(self, name)}.")


def load_trace(config: WorkloadConfig) -> Trace:
    """Reads or generates the trace, then applies limit, speed and scale.

    Raises UserError for a bad file (`read_mooncake`), a scale that gives no whole blocks (`scale_lengths`), or a generator
    that yields no request.
    """
    trace = generate(config.generator, config.seed, config.limit) if config.path is None else read_mooncake(config.path)
    if config.limit is not None:
        trace = first(trace, config.limit)
    return scale_lengths(speed_up(trace, config.speed), config.scale)
