"""An estimator fitted once, offline, to measurements: the paper's "polynomial regression" (FAST §4.1)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Real

from mooncake_jax.errors import UserError
from mooncake_jax.sched.estimator import ClosedForm, DecodeLine, Numbers, Seconds
from mooncake_jax.sched.fit import DecodeSample, PrefillSample, TransferSample, fit_nonnegative
from mooncake_jax.sched.samples import HeldOutError, Sample, held_out_error, read_samples, stage_of


class Regression:
    """Polynomials with coefficients of 0 or more, which minimise the sum of squared relative errors.

        prefill_s     = a c + b (n^2 - p^2) + d + e p + f c p               with c = n - p new tokens
        decode_step_s = a + b batch + c context + d batch * context         affine in context at a fixed batch
        transfer_s    = a bytes + b                                         the same for all pairs of instances

    Of each stage every `holdout`-th sample is kept out of the fit and measures the error; 0 fits to all. A file without
    fetches, which a run without remote hits gives, leaves `bandwidth` (bytes/s) for transfers.

    Raises UserError for a `holdout` below 2, a bandwidth that is not positive, or samples without prefill or decode.
    """

    def __init__(self, samples: Sequence[Sample], holdout: int = 5, bandwidth: float | int = ClosedForm.bandwidth):
        if holdout < 2 and holdout != 0:
            raise UserError(f"holdout={holdout} must be 2 or more, or 0 to fit to all samples")
        if not 0 < bandwidth < float("inf"):
            raise UserError(f"bandwidth={bandwidth} must be more than 0 bytes/s and finite")
        stages: dict[str, list[Sample]] = {"prefill": [], "decode": [], "transfer": []}
        for sample in samples:
            stages[stage_of(sample)].append(sample)
        if empty := [stage for stage in ("prefill", "decode") if not stages[stage]]:
            raise UserError(f"there are no samples of {' and '.join(empty)} to fit; a regression needs both")
        self.held_out: list[Sample] = []
        fitted: dict[str, list[Sample]] = {}
        for stage, of in stages.items():
            last = [holdout > 0 and i % holdout == holdout - 1 for i in range(len(of))]
            self.held_out += [sample for sample, out in zip(of, last) if out]
            fitted[stage] = [sample for sample, out in zip(of, last) if not out]
        self._prefill = _fit(fitted["prefill"])
        self._decode = _fit(fitted["decode"])
        self._transfer = _fit(fitted["transfer"]) if fitted["transfer"] else [1 / bandwidth, 0.0]

    @classmethod
    def from_csv(cls, path: str | Path, holdout: int = 5, bandwidth: float | int = ClosedForm.bandwidth) -> "Regression":
        """Fitted to a file of `write_samples`, such as a live run's samples.csv. Raises UserError as `read_samples` does."""
        samples = read_samples(path)
        try:
            return cls(samples, holdout, bandwidth)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error

    def relative_error(self) -> dict[str, HeldOutError]:
        """By stage, on the samples kept out of the fit; a stage with fewer than `holdout` samples is left out."""
        return held_out_error(self, self.held_out)

    def prefill_s(self, tokens: Numbers, cached: Numbers) -> Seconds:
        linear, quadratic, base, reload, cross = self._prefill
        new = tokens - cached
        return base + linear * new + quadratic * (tokens * tokens - cached * cached) + (reload + cross * new) * cached

    def decode_line(self, batch: Numbers) -> DecodeLine:
        base, per_request, per_token, cross = self._decode
        return DecodeLine(base + per_request * batch, per_token + cross * batch)

    def decode_step_s(self, batch: Numbers, context: Numbers) -> Seconds:
        line = self.decode_line(batch)
        return line.seconds + line.seconds_per_token * context

    def transfer_s(self, nbytes: Numbers, src: int, dst: int | Real[np.ndarray, "*batch"]) -> Seconds:
        per_byte, latency = self._transfer
        return latency + per_byte * nbytes


def _fit(samples: Sequence[Sample]) -> list[float]:
    rows: Float[np.ndarray, "samples coefficients"] = np.array([_columns(sample) for sample in samples], np.float64)
    return fit_nonnegative(rows, np.array([sample.seconds for sample in samples], np.float64)).tolist()


def _columns(sample: Sample) -> list[int]:
    """In the order of preference of `fit_nonnegative`, should there be too few samples to tell."""
    match sample:
        case PrefillSample(n, p):
            return [n - p, n * n - p * p, 1, p, (n - p) * p]
        case DecodeSample(batch, context):
            return [1, batch, context, batch * context]
        case TransferSample(nbytes):
            return [nbytes, 1]
