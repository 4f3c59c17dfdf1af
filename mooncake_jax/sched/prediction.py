"""Early rejection on the decode load of the moment that matters: when the request will have been prefilled (arXiv §7.4).

The decode load that is seen on arrival is one prefill old when the request gets there. Judging by it makes prefill and
decode pools idle in turn: both look free, many are accepted; they reach decode, all are rejected, and prefill runs empty.
"""

from mooncake_jax.sched.admission import Prediction, overload, positive
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import SLO, Placement, Rejection, Request


class Predictive:
    """Reject on arrival iff max(predicted TTFT / SLO, decode load predicted for the first token) exceeds `threshold`.

    The prediction is the paper's, of the system as a whole: every request is taken to decode for `decode_s` seconds. The
    paper does not publish its value; the default is what a mean output of the conversation trace takes, 343 tokens of 35 ms.
    Raises UserError for a threshold or a decode time that is not positive.
    """

    def __init__(self, threshold: float | int = 1.0, decode_s: float | int = 12.0):
        self.threshold = positive(threshold, "threshold")
        self.decode_s = positive(decode_s, "decode_s")

    def predict(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Prediction:
        joining = request.input_tokens if request.output_tokens > 1 else None
        tbt = predict_decode_tbt(view, estimator, now, now + placement.ttft, self.decode_s, joining)
        return Prediction(placement.ttft, tbt, f"the mean decode instance in {placement.ttft:.3f} s")

    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        predicted = self.predict(request, placement, view, estimator, slo, now)
        return overload(predicted, self.threshold, request, placement, slo)


def predict_decode_tbt(
    view: ClusterView, estimator: Estimator, now: float, then: float, decode_s: float | int, joining: int | None
) -> float:
    """Mean over the live decode instances of the time between tokens (s) to be expected at time `then`.

    A request that decodes now stays where it is, unless at `then` it will have decoded for more than `decode_s`. Those whose
    prefill ends by `then`, and one of `joining` tokens (None: none), are spread evenly, in fractions of requests and tokens.
    """
    batch: dict[int, float] = dict.fromkeys(view.decode, 0)
    context: dict[int, float] = dict.fromkeys(view.decode, 0)
    joined, tokens = (0, 0) if joining is None else (1, joining)
    for other in view.in_flight():
        prefilled, instance = other.prefilled, other.decode
        if prefilled > now:
            if prefilled <= then:
                joined += 1
                tokens += other.tokens
        elif then - prefilled <= decode_s and instance in batch:
            batch[instance] += 1
            context[instance] += other.tokens
    instances = len(view.decode)
    more, longer = joined / instances, tokens / instances
    return sum(float(estimator.decode_step_s(batch[i] + more, context[i] + longer)) for i in view.decode) / instances
