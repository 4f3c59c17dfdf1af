"""Whether a placement found is worth making: overload control, arXiv §7.

A policy judges when the request arrives, so that no rejected request has cost a prefill. A policy that predicts the future load
has all it may need in the arguments; one that judges again after prefill (the paper's baseline) needs a second method here.
"""

from typing import Protocol, runtime_checkable

from mooncake_jax.errors import UserError
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import SLO, Placement, Rejection, Request


@runtime_checkable
class AdmissionPolicy(Protocol):
    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        """None to accept `placement` with its predicted TTFT and TBT, or the rejection to answer with."""
        ...


class AcceptAll:
    """Everything is admitted, however late it will be."""

    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        return None


class EarlyRejection:
    """Reject on arrival iff max(predicted TTFT / SLO, predicted TBT / SLO) exceeds `threshold` (arXiv §7.2).

    Raises UserError for a threshold that is not positive.
    """

    def __init__(self, threshold: float | int = 1.0):
        if not threshold > 0:
            raise UserError(f"conductor.admission.threshold is {threshold}; it must be more than 0")
        self.threshold = threshold

    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        prefill_load, decode_load = placement.ttft / slo.ttft, placement.tbt / slo.tbt
        if max(prefill_load, decode_load) <= self.threshold:
            return None
        if prefill_load >= decode_load:
            # A queue drains one second of work a second.
            retry_after = placement.ttft - self.threshold * slo.ttft
            return Rejection(
                f"prefill load {prefill_load:.2f} exceeds {self.threshold}: predicted TTFT {placement.ttft:.3f} s on "
                f"prefill-{placement.prefill} for an SLO of {slo.ttft} s",
                retry_after,
            )
        # The excess share of the batch must leave; requests like this one leave evenly over the time each spends decoding.
        retry_after = (1 - self.threshold / decode_load) * request.output_tokens * placement.tbt
        return Rejection(
            f"decode load {decode_load:.2f} exceeds {self.threshold}: predicted TBT {placement.tbt:.4f} s on "
            f"decode-{placement.decode} for an SLO of {slo.tbt} s",
            retry_after,
        )
