"""An estimator that is fitted to samples of a warm-up and corrects itself while running."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Real

from mooncake_jax.errors import UserError
from mooncake_jax.sched.estimator import ClosedForm, DecodeLine, Numbers, Seconds
from mooncake_jax.sched.fit import DecodeSample, PrefillSample, TransferSample, fit_nonnegative


@dataclass(frozen=True)
class RelativeError:
    """Recent mean of |predicted - measured| / measured, exponentially weighted; None before the first observation."""

    prefill: float | None = None
    decode: float | None = None
    transfer: float | None = None


class Measured:
    """The forms of `ClosedForm`, fitted by non-negative least squares, times a ratio of recent measurement to fit.

    Every observation moves the ratio (one for prefill, one for decode, one for each link) by the share `smoothing` towards
    measured / fitted; ratios stay within [1 / bound, bound], so that one hiccup cannot ruin the estimates. Until
    something is fitted the coefficients of `prior` hold. A link never measured is taken to be the mean of the measured.

    Raises UserError for smoothing outside (0, 1] or a bound below 1.
    """

    def __init__(self, prior: ClosedForm | None = None, smoothing: float | int = 0.1, bound: float | int = 4.0):
        if not 0 < smoothing <= 1:
            raise UserError(f"conductor.estimator.smoothing is {smoothing}; it must be more than 0 and at most 1")
        if not bound >= 1:
            raise UserError(f"conductor.estimator.bound is {bound}; it must be 1 or more")
        self.coefficients = ClosedForm() if prior is None else prior
        """As fitted, without corrections."""
        self.relative_error = RelativeError()
        self._smoothing = smoothing
        self._bound = bound
        self._prefill_ratio = 1.0
        self._decode_ratio = 1.0
        self._links = _Links(self.coefficients.latency, 1 / self.coefficients.bandwidth)

    def prefill_s(self, tokens: Numbers, cached: Numbers) -> Seconds:
        return self._prefill_ratio * self.coefficients.prefill_s(tokens, cached)

    def decode_line(self, batch: Numbers) -> DecodeLine:
        line = self.coefficients.decode_line(batch)
        return DecodeLine(self._decode_ratio * line.seconds, self._decode_ratio * line.seconds_per_token)

    def decode_step_s(self, batch: Numbers, context: Numbers) -> Seconds:
        line = self.decode_line(batch)
        return line.seconds + line.seconds_per_token * context

    def transfer_s(self, nbytes: Numbers, src: int, dst: int | Real[np.ndarray, "*batch"]) -> Seconds:
        links = self._links
        links.grow(max(src, int(np.max(dst, initial=0))))
        return links.ratio[src, dst] * (links.latency[src, dst] + nbytes * links.per_byte[src, dst])

    def fit_prefill(self, samples: Sequence[PrefillSample]) -> None:
        """Fit prefill_s = a + b(n-p) + c(n^2-p^2) and drop its correction. Raises ValueError for unusable samples."""
        columns = [(s.tokens - s.cached, s.tokens**2 - s.cached**2, 1.0) for s in samples]
        linear, quadratic, base = _fit(columns, samples)
        self.coefficients = replace(
            self.coefficients, prefill_base=base, prefill_per_token=linear, prefill_per_token2=quadratic
        )
        self._prefill_ratio = 1.0

    def fit_decode(self, samples: Sequence[DecodeSample]) -> None:
        """Fit decode_step_s = a + b batch + c context and drop its correction. Raises ValueError for unusable samples."""
        base, per_request, per_token = _fit([(1.0, s.batch, s.context) for s in samples], samples)
        self.coefficients = replace(
            self.coefficients, decode_base=base, decode_per_request=per_request, decode_per_context_token=per_token
        )
        self._decode_ratio = 1.0

    def fit_transfer(self, samples: Sequence[TransferSample]) -> None:
        """Fit latency + bytes / bandwidth for each link sampled, and for all together as the guess for the others.

        Drops all corrections of links. Raises ValueError for unusable samples.
        """
        by_link: dict[tuple[int, int], list[TransferSample]] = {}
        for sample in samples:
            by_link.setdefault((sample.src, sample.dst), []).append(sample)
        self._links = _Links(*reversed(_fit_link(samples)))
        for (src, dst), of_link in by_link.items():
            self._links.grow(max(src, dst))
            self._links.per_byte[src, dst], self._links.latency[src, dst] = _fit_link(of_link)

    def observe_prefill(self, tokens: int, cached: int, seconds: float) -> None:
        """A prefill took `seconds`."""
        fitted = float(self.coefficients.prefill_s(tokens, cached))
        self._record("prefill", self._prefill_ratio * fitted, seconds)
        self._prefill_ratio = self._corrected(self._prefill_ratio, fitted, seconds)

    def observe_decode(self, batch: int, context: int, seconds: float) -> None:
        """A decode step took `seconds`."""
        fitted = float(self.coefficients.decode_step_s(batch, context))
        self._record("decode", self._decode_ratio * fitted, seconds)
        self._decode_ratio = self._corrected(self._decode_ratio, fitted, seconds)

    def observe_transfer(self, nbytes: int, src: int, dst: int, seconds: float) -> None:
        """A fetch of `nbytes` from prefill instance `src` to `dst` took `seconds`."""
        predicted = float(self.transfer_s(nbytes, src, dst))
        ratio = float(self._links.ratio[src, dst])
        self._record("transfer", predicted, seconds)
        self._links.ratio[src, dst] = self._corrected(ratio, predicted / ratio, seconds)

    def state(self) -> dict[str, Any]:
        """All that its answers, now and after further observations, depend on, as JSON values. `restore` takes it back."""
        links = self._links
        return {
            "coefficients": asdict(self.coefficients),
            "relative_error": asdict(self.relative_error),
            "smoothing": self._smoothing,
            "bound": self._bound,
            "prefill_ratio": self._prefill_ratio,
            "decode_ratio": self._decode_ratio,
            "links": {
                "defaults": list(links.defaults),
                "latency": links.latency.tolist(),
                "per_byte": links.per_byte.tolist(),
                "ratio": links.ratio.tolist(),
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """From now on as the estimator whose `state()` this was, bit for bit, also after a round trip through JSON."""
        links = state["links"]
        self.coefficients = ClosedForm(**state["coefficients"])
        self.relative_error = RelativeError(**state["relative_error"])
        self._smoothing, self._bound = state["smoothing"], state["bound"]
        self._prefill_ratio, self._decode_ratio = state["prefill_ratio"], state["decode_ratio"]
        self._links = _Links(*links["defaults"])
        for name in ("latency", "per_byte", "ratio"):
            setattr(self._links, name, np.array(links[name], np.float64))

    def _corrected(self, ratio: float, fitted: float, seconds: float) -> float:
        """What took no time, or was fitted to take none, tells nothing about the ratio."""
        if fitted <= 0 or seconds <= 0:
            return ratio
        seen = min(max(seconds / fitted, 1 / self._bound), self._bound)
        return ratio + self._smoothing * (seen - ratio)

    def _record(self, stage: str, predicted: float, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a {stage} is said to have taken {seconds} s; a duration cannot be negative")
        if seconds > 0:
            error = abs(predicted - seconds) / seconds
            before = getattr(self.relative_error, stage)
            after = error if before is None else before + self._smoothing * (error - before)
            self.relative_error = replace(self.relative_error, **{stage: after})


class _Links:
    """Latency (s), seconds per byte and ratio of every ordered pair of instances, in square arrays grown on demand."""

    def __init__(self, latency: float | int, per_byte: float | int):
        self.defaults = (float(latency), float(per_byte))
        self.latency, self.per_byte, self.ratio = (np.full((1, 1), value) for value in (*self.defaults, 1.0))

    def grow(self, index: int) -> None:
        size = len(self.ratio)
        if index < size:
            return
        more = (0, max(index + 1, 2 * size) - size)
        old = (self.latency, self.per_byte, self.ratio)
        self.latency, self.per_byte, self.ratio = (
            np.pad(array, (more, more), constant_values=value) for array, value in zip(old, (*self.defaults, 1.0))
        )


def _fit(columns: list[tuple], samples: Sequence[PrefillSample | DecodeSample | TransferSample]) -> list[float]:
    width = len(columns[0]) if columns else 0
    matrix = np.array(columns, np.float64).reshape(len(samples), width)
    return fit_nonnegative(matrix, np.array([s.seconds for s in samples], np.float64)).tolist()


def _fit_link(samples: Sequence[TransferSample]) -> list[float]:
    """[seconds per byte, latency]"""
    return _fit([(s.nbytes, 1.0) for s in samples], samples)
