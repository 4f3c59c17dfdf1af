"""Two ways to keep an admission policy from swinging between all and nothing; each wraps a policy that judges by a load.

`Hysteresis(Damping(Predictive(), tau=10), low=0.8)` has both and the prediction. They remember what they saw, so a log of
decisions is decided again from its first line on.
"""

import math
from dataclasses import replace

from mooncake_jax.errors import UserError
from mooncake_jax.sched.admission import LoadPolicy, Prediction, overload, positive
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import SLO, Placement, Rejection, Request


class Hysteresis:
    """Once `policy` rejects, requests are rejected until the larger load of one is at most `low`.

    Raises UserError if `policy` does not judge by a load, or for a `low` outside (0, threshold of `policy`].
    """

    def __init__(self, policy: LoadPolicy, low: float | int):
        if not 0 < low <= _judging_by_load(policy, "hysteresis").threshold:
            raise UserError(
                f"conductor.admission.low is {low}; it must be more than 0 and at most the threshold {policy.threshold}"
            )
        self.policy = policy
        self.low = low
        self._rejecting = False

    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        predicted = self.policy.predict(request, placement, view, estimator, slo, now)
        limit = self.low if self._rejecting else self.policy.threshold
        rejection = overload(predicted, limit, request, placement, slo)
        self._rejecting = rejection is not None
        return rejection


class Damping:
    """The predicted times of `policy`, smoothed over all requests: a change is followed to 1 - 1/e of it within `tau` seconds.

    From one instant to the next the smoothed value moves towards the newer prediction by the share 1 - exp(-elapsed / tau). Of
    several requests at one instant each moves it from where it was before that instant, and the last one is remembered.
    Raises UserError if `policy` does not judge by a load, or for a `tau` that is not positive.
    """

    def __init__(self, policy: LoadPolicy, tau: float | int):
        self.policy = _judging_by_load(policy, "damping")
        self.threshold = policy.threshold
        self.tau = positive(tau, "tau")
        self._at, self._elapsed = -math.inf, math.inf
        self._before = self._smoothed = (0.0, 0.0)

    def predict(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Prediction:
        predicted = self.policy.predict(request, placement, view, estimator, slo, now)
        if now > self._at:
            self._elapsed, self._at, self._before = now - self._at, now, self._smoothed
        share = 1.0 - math.exp(-self._elapsed / self.tau)
        ttft, tbt = self._before
        ttft, tbt = ttft + share * (predicted.ttft - ttft), tbt + share * (predicted.tbt - tbt)
        self._smoothed = (ttft, tbt)
        return replace(predicted, ttft=ttft, tbt=tbt, note=f"{predicted.note}, smoothed over {self.tau} s")

    def admit(
        self, request: Request, placement: Placement, view: ClusterView, estimator: Estimator, slo: SLO, now: float
    ) -> Rejection | None:
        predicted = self.predict(request, placement, view, estimator, slo, now)
        return overload(predicted, self.threshold, request, placement, slo)


def _judging_by_load(policy: object, wrapper: str) -> LoadPolicy:
    if not isinstance(policy, LoadPolicy):
        raise UserError(
            f"conductor.admission.policy is {type(policy).__name__}; {wrapper} needs one that judges by a load, "
            "such as EarlyRejection or Predictive"
        )
    return policy
