"""The Conductor: for every request a prefill and a decode instance, or a reason why not."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from mooncake_jax.errors import UserError
from mooncake_jax.sched.admission import AdmissionPolicy, DecodeAdmission
from mooncake_jax.sched.decode import DecodePolicy
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.pairing import PairingPolicy
from mooncake_jax.sched.replication import Copy, Drop, NoReplication, ReplicationPolicy
from mooncake_jax.sched.roles import FixedRoles, RolePolicy, Switch
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import SLO, Placement, Rejection, Request


@runtime_checkable
class Learning(Protocol):
    """What an estimator that changes with what it observes has besides, so that its decisions can be made again."""

    def state(self) -> dict[str, Any]:
        """All that its answers depend on, as JSON can hold it to the last bit."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Answer from now on as when `state()` was asked."""
        ...


class Conductor:
    """The global scheduler (FAST §4.1), the same object live and simulated: no clock, no I/O, no thread, no books.

    It decides; whoever runs the cluster commits the decision to queues, pools and the prefix index before asking again.
    Raises UserError for an objective that is not positive.
    """

    def __init__(
        self,
        pairing: PairingPolicy,
        decode_choice: DecodePolicy,
        admission: AdmissionPolicy,
        estimator: Estimator,
        slo: SLO,
        *,
        replication: ReplicationPolicy | None = None,
        roles: RolePolicy | None = None,
    ):
        if not (slo.ttft > 0 and slo.tbt > 0):
            raise UserError(f"slo.ttft is {slo.ttft} s and slo.tbt {slo.tbt} s; both must be more than 0")
        self.pairing = pairing
        self.decode_choice = decode_choice
        self.admission = admission
        self.estimator = estimator
        self.slo = slo
        self.replication: ReplicationPolicy = NoReplication() if replication is None else replication
        self.roles: RolePolicy = FixedRoles() if roles is None else roles
        self.rechecks = isinstance(admission, DecodeAdmission)
        """Whether `recheck` may ever reject."""

    def schedule(self, request: Request, view: ClusterView, now: float) -> Placement | Rejection:
        """Decide about `request` at time `now` (s, the clock of `request.arrival`).

        The placement's `ttft` counts from `now`: queue + fetch + prefill, as in Algorithm 1; `tbt` is 0 for one output token.
        Without a live instance of either role the request is rejected, to be retried after the TTFT objective.
        """
        if not (view.prefill and view.decode):
            return Rejection(f"no live {'decode' if view.prefill else 'prefill'} instance", self.slo.ttft)
        pairing = self.pairing.pair(request, view, self.estimator)
        choice = self.decode_choice.choose(request, view, self.estimator)
        placement = Placement(pairing.prefill, choice.decode, pairing.reuse, pairing.fetch, pairing.ttft, choice.tbt)
        rejection = self.admission.admit(request, placement, view, self.estimator, self.slo, now)
        return placement if rejection is None else rejection

    def recheck(self, request: Request, placement: Placement, view: ClusterView, now: float) -> Rejection | None:
        """The second judgement, to be asked when the prefill of a request that goes on to decode has finished.

        `view` leaves the request itself out. None to let it decode; a rejection ends it, and its prefill was for nothing.
        """
        if not self.rechecks:
            return None
        return self.admission.admit_decode(request, placement, view, self.estimator, self.slo, now)

    def placed(self, request: Request, placement: Placement, now: float) -> None:
        """To be told when a placement has been committed."""
        self.replication.placed(request, placement, now)

    def replicate(self, view: ClusterView, now: float) -> list[Copy | Drop]:
        """Orders about replicas, to be asked for every `replication.period` seconds and committed before the next time."""
        return self.replication.orders(view, now)

    def switch_roles(self, view: ClusterView, now: float) -> Switch | None:
        """An instance to change its role, to be asked for every `roles.period` seconds."""
        return self.roles.decide(view, self.estimator, self.slo, now)

    def estimator_state(self) -> dict[str, Any] | None:
        """What the estimator has learnt, for `Decision`; None if it does not learn."""
        return self.estimator.state() if isinstance(self.estimator, Learning) else None
