"""Measured passes, steps and fetches: as a CSV file, and as a yardstick for any estimator."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.fit import DecodeSample, PrefillSample, TransferSample

Sample = PrefillSample | DecodeSample | TransferSample

COLUMNS = ("stage", "tokens", "cached", "batch", "context", "bytes", "seconds")
_NEEDS = {"prefill": ("tokens", "cached"), "decode": ("batch", "context"), "transfer": ("bytes",)}
_STAGES = {PrefillSample: "prefill", DecodeSample: "decode", TransferSample: "transfer"}


@dataclass(frozen=True)
class HeldOutError:
    """Of |predicted - measured| / measured over measurements that were not fitted to."""

    mean: float
    p90: float
    max: float
    samples: int


def stage_of(sample: Sample) -> str:
    """`prefill`, `decode` or `transfer`."""
    return _STAGES[type(sample)]


def held_out_error(estimator: Estimator, samples: Iterable[Sample]) -> dict[str, HeldOutError]:
    """How far an estimator is from measurements, by stage; stages without measurements are left out."""
    errors: dict[str, list[float]] = {}
    for sample in samples:
        match sample:
            case PrefillSample():
                predicted = estimator.prefill_s(sample.tokens, sample.cached)
            case DecodeSample():
                predicted = estimator.decode_step_s(sample.batch, sample.context)
            case TransferSample():
                predicted = estimator.transfer_s(sample.nbytes, sample.src, sample.dst)
        errors.setdefault(stage_of(sample), []).append(abs(float(predicted) / sample.seconds - 1))
    return {
        stage: HeldOutError(float(np.mean(of)), float(np.percentile(of, 90)), max(of), len(of))
        for stage, of in sorted(errors.items())
    }


def write_samples(path: str | Path, samples: Iterable[Sample]) -> None:
    """A CSV file with `COLUMNS`; a row leaves empty what its stage does not need. Between which instances is not kept.

    Samples that took no time by the clock are left out: nothing can be fitted to them.
    """
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for sample in samples:
            if sample.seconds <= 0:
                continue
            row = {"stage": stage_of(sample), "seconds": sample.seconds}
            match sample:
                case PrefillSample():
                    row |= {"tokens": sample.tokens, "cached": sample.cached}
                case DecodeSample():
                    row |= {"batch": sample.batch, "context": sample.context}
                case TransferSample():
                    row |= {"bytes": sample.nbytes}
            writer.writerow(row)


def read_samples(path: str | Path) -> list[Sample]:
    """What `write_samples` wrote, or any CSV file with its columns; fetches count as from instance 0 to itself.

    Raises UserError with file and line for what cannot be read, and for values out of range.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            if missing := [name for name in COLUMNS if name not in header]:
                raise UserError(
                    f"{path}:1: the columns {', '.join(missing)} are missing; a file of samples has {', '.join(COLUMNS)}"
                )
            samples = [_sample(row, f"{path}:{reader.line_num}") for row in reader]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not samples:
        raise UserError(f"{path} holds no samples")
    return samples


def _sample(row: dict[str | None, str | None], where: str) -> Sample:
    stage = (row["stage"] or "").strip()
    if stage not in _NEEDS:
        raise UserError(f"{where}: stage is {stage!r}; it must be one of {', '.join(_NEEDS)}")
    counts = [_number(row, name, int, where) for name in _NEEDS[stage]]
    seconds = _number(row, "seconds", float, where)
    if not 0 < seconds < float("inf"):
        raise UserError(f"{where}: seconds is {seconds}; it must be more than 0 and finite")
    if stage == "prefill":
        tokens, cached = counts
        if cached >= tokens:
            raise UserError(f"{where}: cached={cached} must be less than tokens={tokens}")
        return PrefillSample(tokens, cached, seconds)
    if stage == "decode":
        return DecodeSample(*counts, seconds)
    return TransferSample(*counts, 0, 0, seconds)


def _number[N: (int, float)](row: dict[str | None, str | None], name: str, kind: type[N], where: str) -> N:
    text = row[name] or ""
    try:
        value = kind(text)
    except ValueError:
        raise UserError(f"{where}: {name} is {text!r}; it must be {'a whole number' if kind is int else 'a number'}") from None
    if kind is int and value < 0:
        raise UserError(f"{where}: {name} is {value}; it must be 0 or more")
    return value
