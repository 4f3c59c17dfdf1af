"""Whether a placement found is worth making: overload control, arXiv §7.

Every policy judges when the request arrives, so that a rejected request has cost no prefill. `DecodeAdmission` adds a second
judgement when its prefill has finished, as the paper's baseline has it. What is judged is a load: the time predicted for
the request divided by its objective, for the prefill and for the decode stage.
"""

from dataclasses import dataclass
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


@runtime_checkable
class DecodeAdmission(Protocol):
    """What an admission policy may have besides: a second judgement."""

    def admit_decode(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        """Asked when the prefill of `request` has finished; `view` leaves the request itself out."""
        ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a load rests on."""

    ttft: float
    """Predicted time to first token of the request, s from now."""
    tbt: float
    """Predicted time between tokens, s."""
    where: str
    """Where that time between tokens is to be expected, for messages."""
    note: str = ""
    """How the numbers came about, for messages."""


@runtime_checkable
class LoadPolicy(AdmissionPolicy, Protocol):
    """A policy that accepts iff the larger load of a prediction is at most `threshold`; `Hysteresis` and `Damping` wrap one."""

    threshold: float | int

    def predict(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Prediction: ...


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
        self.threshold = positive(threshold, "threshold")

    def predict(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Prediction:
        return Prediction(placement.ttft, placement.tbt, f"decode-{placement.decode}")

    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        predicted = self.predict(request, placement, view, estimator, slo, now)
        return overload(predicted, self.threshold, request, placement, slo)


class StageByStage:
    """The paper's baseline (arXiv §7.1): each stage is judged when its turn comes, so that the second no wastes a prefill.

    On arrival predicted TTFT / SLO, when prefill has finished predicted TBT / SLO must be at most `threshold`. The latter is
    one step of the requests that decode at the chosen instance or whose KV is on its way there, with this one.
    A request of one output token is never judged twice. Raises UserError for a threshold that is not positive.
    """

    def __init__(self, threshold: float | int = 1.0):
        self.threshold = positive(threshold, "threshold")

    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        return overload(Prediction(placement.ttft, 0.0, ""), self.threshold, request, placement, slo)

    def admit_decode(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        if request.output_tokens == 1:
            return None
        batch, context = 1, request.input_tokens
        for other in view.in_flight():
            if other.decode == placement.decode and other.prefilled <= now:
                batch += 1
                context += other.tokens
        tbt = float(estimator.decode_step_s(batch, context))
        return overload(Prediction(0.0, tbt, f"decode-{placement.decode}"), self.threshold, request, placement, slo)


def overload(
    predicted: Prediction, threshold: float | int, request: Request, placement: Placement, slo: SLO
) -> Rejection | None:
    """The rejection of a request of which a predicted load exceeds `threshold`, with the numbers; None if none does."""
    prefill_load, decode_load = predicted.ttft / slo.ttft, predicted.tbt / slo.tbt
    if max(prefill_load, decode_load) <= threshold:
        return None
    if prefill_load >= decode_load:
        # A queue drains one second of work a second.
        retry_after = predicted.ttft - threshold * slo.ttft
        return Rejection(
            f"prefill load {prefill_load:.2f} exceeds {threshold}: predicted TTFT {predicted.ttft:.3f} s on "
            f"prefill-{placement.prefill} for an SLO of {slo.ttft} s{predicted.note}",
            retry_after,
        )
    # The excess share of the batch must leave; requests like this one leave evenly over the time each spends decoding.
    retry_after = (1 - threshold / decode_load) * request.output_tokens * predicted.tbt
    return Rejection(
        f"decode load {decode_load:.2f} exceeds {threshold}: predicted TBT {predicted.tbt:.4f} s on "
        f"{predicted.where} for an SLO of {slo.tbt} s{predicted.note}",
        retry_after,
    )


def positive(value: float | int, name: str) -> float | int:
    """`value`. Raises UserError unless it is more than 0."""
    if not value > 0:
        raise UserError(f"conductor.admission.{name} is {value}; it must be more than 0")
    return value
