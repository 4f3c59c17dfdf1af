"""Non-negative least squares for the few coefficients of a cost model, from measured samples."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

_GAIN = 1e-18
"""A further coefficient must lower the sum of squared relative errors by more than this, or it is noise of the solver."""


@dataclass(frozen=True)
class PrefillSample:
    tokens: int
    cached: int
    seconds: float


@dataclass(frozen=True)
class DecodeSample:
    batch: int
    context: int
    """Tokens of context, summed over the batch."""
    seconds: float


@dataclass(frozen=True)
class TransferSample:
    nbytes: int
    src: int
    dst: int
    """Indices of prefill instances."""
    seconds: float


def fit_nonnegative(
    columns: Float[np.ndarray, "samples coefficients"], seconds: Float[np.ndarray, "samples"]
) -> Float[np.ndarray, "coefficients"]:
    """x >= 0 that minimises sum(((columns @ x - seconds) / seconds)^2): long and short samples count alike.

    For a handful of columns: least squares is solved on every subset of them, and the best solution without a negative entry
    is the exact optimum, because the optimum solves the unconstrained problem on its own support. Small subsets go first
    and columns earlier in the matrix before later ones, so too few samples give the simplest model that explains them.

    Raises ValueError without samples, or if one did not take a positive, finite time.
    """
    samples, count = columns.shape
    if samples == 0:
        raise ValueError("no samples to fit; measure at least one")
    usable = np.isfinite(seconds) & (seconds > 0)
    if not usable.all():
        raise ValueError(f"sample times must be positive and finite, got {seconds[~usable].tolist()} among them")
    scale = np.maximum(np.abs(columns).max(axis=0), np.finfo(np.float64).tiny)
    weighted = columns / scale / seconds[:, None]
    best, best_error = np.zeros(count), float(samples)
    for size in range(1, count + 1):
        for subset in map(list, combinations(range(count), size)):
            solution = np.linalg.lstsq(weighted[:, subset], np.ones(samples), rcond=None)[0]
            error = float(np.square(weighted[:, subset] @ solution - 1).sum())
            if (solution >= 0).all() and error < best_error - _GAIN:
                best, best_error = np.zeros(count), error
                best[subset] = solution
    return best / scale
