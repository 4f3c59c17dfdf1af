"""Early rejection as the arXiv report describes it: the decode load is that of the requests that decode at the moment."""

from math import inf

from mooncake_jax.sched.admission import EarlyRejection, Prediction
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.prediction import predict_decode_tbt
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import SLO, Placement, Request


class CurrentLoad(EarlyRejection):
    """Reject on arrival iff max(predicted TTFT / SLO, mean TBT of the decode pool as it is / SLO) exceeds `threshold`.

    Requests that are still to be prefilled are not in the decode load, which is what makes the loads swing (arXiv §7.3);
    `EarlyRejection` counts them, as they are assigned already.
    """

    def predict(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Prediction:
        joining = request.input_tokens if request.output_tokens > 1 else None
        tbt = predict_decode_tbt(view, estimator, now, now, inf, joining)
        return Prediction(placement.ttft, tbt, "the mean decode instance as it is")
