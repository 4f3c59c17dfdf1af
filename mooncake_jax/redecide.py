"""Decides a log again: the proof that live and simulated clusters have one Conductor, and an answer to "what if"."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from mooncake_jax.config import SimulateSettings, from_plain, load_plain
from mooncake_jax.errors import UserError
from mooncake_jax.sched import Conductor, Decision, redecide
from mooncake_jax.types import Placement, Rejection

Outcome = Placement | Rejection

_SIMULATED = ("model", "hardware", "cost", "cluster")
"""What a Conductor depends on besides its own settings where its estimator is the cost model."""


@dataclass(frozen=True)
class Difference:
    """A decision that was not made again."""

    request: str
    """Id."""
    now: float
    """When it was decided, seconds of the run's clock."""
    logged: Outcome
    decided: Outcome

    def __str__(self) -> str:
        return f"{self.request} at {self.now:.3f} s: logged {_words(self.logged)}; decided {_words(self.decided)}"

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Redecided:
    """What came of deciding a log again."""

    decisions: int
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> int:
        """Decisions made again to the last bit, predicted times included."""
        return self.decisions - len(self.differences)


def settings_of_log(settings: SimulateSettings, plain: Mapping[str, Any], overrides: Sequence[str]) -> SimulateSettings:
    """The settings to decide `settings.redecide` again with: those it was made with, and what the command line says on top.

    They are in the config.yaml beside the log: `conductor` and `slo`, and for the log of a simulation the cost model with all
    that it is made of, since there it may be what the Conductor estimates with. A log without one is decided by `settings`.

    Args:
      plain: `settings` as plain values.
      overrides: the command line, such as `conductor/pairing=random` or `slo.ttft=2`.

    Raises UserError for a config.yaml that cannot be read.
    """
    folder = Path(settings.redecide).parent
    if not (folder / "config.yaml").is_file():
        return settings
    made_with = load_plain(folder)
    simulated = "cost" in made_with
    found = {name: made_with[name] for name in ("conductor", "slo", *(_SIMULATED if simulated else ())) if name in made_with}
    merged = OmegaConf.create({**plain, **found})
    composed = OmegaConf.create(dict(plain))
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        path = override.package or override.key_or_group.replace("/", ".")
        if path.split(".")[0] in found:
            OmegaConf.update(merged, path, OmegaConf.select(composed, path), merge=False, force_add=True)
    return from_plain(SimulateSettings, OmegaConf.to_container(merged))


def redecide_log(path: Path, conductor: Conductor, progress: Callable[[int], None] = lambda done: None) -> Redecided:
    """Feeds a decisions.jsonl through a Conductor, in order, its estimator put back to what it knew at each decision.

    `progress` hears the decisions made so far. Raises UserError with file and line for what is not a decision, for an empty
    log, and where the log is of an estimator that learns and that of `conductor` does not.
    """
    differences, count = [], 0
    for number, line in _lines(path):
        try:
            logged = Decision.from_json(line)
            decided = redecide(line, conductor)
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from error
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UserError(f"{path}:{number} is not a line of decisions.jsonl: {error!r}") from error
        if decided != logged.outcome:
            differences.append(Difference(logged.request.id, logged.now, logged.outcome, decided))
        count += 1
        progress(count)
    if not count:
        raise UserError(f"{path} holds no decisions")
    return Redecided(count, tuple(differences))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; give the decisions.jsonl of a run's folder") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: {error.reason}") from error


def _words(outcome: Outcome) -> str:
    if isinstance(outcome, Rejection):
        return f"rejected ({outcome.reason})"
    reuse = f"{outcome.reuse} blocks reused"
    if outcome.fetch is not None:
        reuse += f", {outcome.fetch.blocks} with prefill-{outcome.fetch.source}'s"
    return f"prefill-{outcome.prefill} → decode-{outcome.decode} ({reuse}, TTFT {outcome.ttft!r} s, TBT {outcome.tbt!r} s)"
