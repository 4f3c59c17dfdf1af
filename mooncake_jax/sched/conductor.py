"""The Conductor: for every request a prefill and a decode instance, or a reason why not."""

from mooncake_jax.errors import UserError
from mooncake_jax.sched.admission import AdmissionPolicy
from mooncake_jax.sched.decode import DecodePolicy
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.pairing import PairingPolicy
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import SLO, Placement, Rejection, Request


class Conductor:
    """The global scheduler (FAST §4.1), the same object live and simulated: no clock, no I/O, no thread, no books.

    It decides; whoever runs the cluster commits the decision to queues, pools and the prefix index before asking again.
    Raises UserError for an objective that is not positive.
    """

    def __init__(
        self, pairing: PairingPolicy, decode_choice: DecodePolicy, admission: AdmissionPolicy, estimator: Estimator, slo: SLO
    ):
        if not (slo.ttft > 0 and slo.tbt > 0):
            raise UserError(f"slo.ttft is {slo.ttft} s and slo.tbt {slo.tbt} s; both must be more than 0")
        self.pairing = pairing
        self.decode_choice = decode_choice
        self.admission = admission
        self.estimator = estimator
        self.slo = slo

    def schedule(self, request: Request, view: ClusterView, now: float) -> Placement | Rejection:
        """Decide about `request` at time `now` (s, the clock of `request.arrival`).

        The placement's `ttft` counts from `now`: queue + fetch + prefill, as in Algorithm 1; `tbt` is 0 for one output token.
        Without a live instance of either role the request is rejected, to be retried after the TTFT objective.
        """
        for role, instances in (("prefill", view.prefill), ("decode", view.decode)):
            if not instances:
                return Rejection(f"no live {role} instance", self.slo.ttft)
        pairing = self.pairing.pair(request, view, self.estimator)
        choice = self.decode_choice.choose(request, view, self.estimator)
        placement = Placement(
            prefill=pairing.prefill,
            decode=choice.decode,
            reuse=pairing.reuse,
            fetch=pairing.fetch,
            ttft=pairing.ttft,
            tbt=choice.tbt,
        )
        rejection = self.admission.admit(request, placement, view, self.estimator, self.slo, now)
        return placement if rejection is None else rejection
