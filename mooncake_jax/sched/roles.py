"""Which instances change between prefill and decode when the load shifts for long (FAST §2.1, §5.5).

The paper keeps the ratio of the pools fixed but for "significant load fluctuations" and gives no rule; `LoadRoles` is one.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mooncake_jax.errors import UserError
from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import SLO, InstanceId, Role


@dataclass(frozen=True, slots=True)
class Switch:
    """Order that `instance` takes the other role. Whoever runs the cluster drains it first."""

    instance: InstanceId


@runtime_checkable
class RolePolicy(Protocol):
    period: float | int | None
    """Seconds between calls of `decide`; None: it need not be called."""

    def decide(self, view: ClusterView, estimator: Estimator, slo: SLO, now: float) -> Switch | None:
        """The order of this moment, if any. `view` leaves out instances that are being drained."""
        ...


class FixedRoles:
    """Every instance keeps its role."""

    period: float | int | None = None

    def decide(self, view: ClusterView, estimator: Estimator, slo: SLO, now: float) -> Switch | None:
        return None


class LoadRoles:
    """One instance joins the more loaded pool when the loads of the pools have differed for `patience` calls on end.

    They differ when one is above `high` and the other below `low`. The load of the prefill pool is its mean queue / TTFT
    objective, of the decode pool its mean predicted TBT / TBT objective, where an idle instance counts 0. The instance with the
    least work goes, ties to the lowest index. `min_prefill` and `min_decode` instances keep their roles.
    Raises UserError unless 0 <= low <= high, for a period that is not positive, and for patience or a minimum below 1.
    """

    def __init__(
        self,
        period: float | int = 10.0,
        high: float | int = 0.8,
        low: float | int = 0.4,
        patience: int = 3,
        min_prefill: int = 1,
        min_decode: int = 1,
    ):
        if not period > 0:
            raise UserError(f"conductor.roles.period is {period} s; it must be more than 0")
        if not 0 <= low <= high:
            raise UserError(f"conductor.roles.low is {low} and conductor.roles.high {high}; 0 <= low <= high must hold")
        for name, value in (("patience", patience), ("min_prefill", min_prefill), ("min_decode", min_decode)):
            if value < 1:
                raise UserError(f"conductor.roles.{name} is {value}; it must be at least 1")
        self.period: float | int | None = period
        self.high, self.low, self.patience = high, low, patience
        self.min_prefill, self.min_decode = min_prefill, min_decode
        self._busier: Role | None = None
        self._calls = 0

    def decide(self, view: ClusterView, estimator: Estimator, slo: SLO, now: float) -> Switch | None:
        busier = self._compare(view, estimator, slo)
        self._calls = self._calls + 1 if busier is self._busier else 1
        self._busier = busier
        if busier is None or self._calls < self.patience:
            return None
        if busier is Role.PREFILL:
            leaves, pool, work, least = Role.DECODE, view.decode, view.decode_tokens, self.min_decode
        else:
            leaves, pool, work, least = Role.PREFILL, view.prefill, view.queue_s, self.min_prefill
        if len(pool) <= least:
            return None
        self._busier = None
        return Switch(InstanceId(leaves, pool[int(work.argmin())]))

    def _compare(self, view: ClusterView, estimator: Estimator, slo: SLO) -> Role | None:
        """The pool that is overloaded while the other is not."""
        if not view.prefill or not view.decode:
            return None
        prefill = float(view.queue_s.mean()) / slo.ttft
        steps = [
            float(estimator.decode_step_s(int(batch), float(tokens))) if batch else 0.0
            for batch, tokens in zip(view.decode_batch, view.decode_tokens, strict=True)
        ]
        decode = sum(steps) / len(steps) / slo.tbt
        if prefill > self.high and decode < self.low:
            return Role.PREFILL
        if decode > self.high and prefill < self.low:
            return Role.DECODE
        return None
