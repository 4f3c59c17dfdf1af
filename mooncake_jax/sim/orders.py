"""What the Conductor orders beyond placements, carried out in the simulation: copies and drops of blocks, changes of role."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mooncake_jax.sched import Copy
from mooncake_jax.sim.decode import DecodeInstance
from mooncake_jax.sim.job import Maker
from mooncake_jax.sim.prefill import PrefillInstance, when_made
from mooncake_jax.types import Role

if TYPE_CHECKING:
    from mooncake_jax.sim.cluster import Simulation

_DRAIN_POLL_S = 0.5
"""Seconds between looks at an instance that is being drained."""


class Orders:
    """Asks the Conductor of `simulation` and carries out what it says; `Simulation.run` calls both methods at their periods."""

    def __init__(self, simulation: "Simulation"):
        self._sim = simulation

    def replicate(self, now: float) -> None:
        for order in self._sim.conductor.replicate(self._sim.view(now), now):
            if isinstance(order, Copy):
                maker = Maker()
                nbytes = len(order.keys) * self._sim.config.block_size * self._sim.kv_bytes
                made = when_made(self._sim.prefill[order.source].cache.makers(order.keys, 0, len(order.keys)), now)
                self._sim.stage.copy(maker, nbytes, order.source, order.target, made)
                self._sim.prefill[order.target].cache.use(order.keys, maker)
            else:
                self._sim.prefill[order.instance].cache.drop(order.keys)

    def switch_roles(self, now: float) -> None:
        order = self._sim.conductor.switch_roles(self._sim.view(now), now)
        if order is None:
            return
        self._sim.changed()
        if order.instance.role is Role.PREFILL:
            self._sim.prefill[order.instance.index].draining = True
            self._drain_prefill(self._sim.prefill[order.instance.index], now)
        else:
            self._sim.decode[order.instance.index].draining = True
            self._drain_decode(self._sim.decode[order.instance.index], now)

    def _drain_prefill(self, instance: PrefillInstance, now: float) -> None:
        """A prefill instance that has nothing left to do decodes from then on, if it did not die before."""
        if not instance.alive:
            return
        if not instance.idle:
            self._sim.events.later(
                max(instance.clear_at, now + _DRAIN_POLL_S), lambda time: self._drain_prefill(instance, time)
            )
            return
        instance.alive = False
        self._sim.index.clear(instance.index)
        self._add_later(now, self._sim.decode, self._sim.new_decode)

    def _drain_decode(self, instance: DecodeInstance, now: float) -> None:
        if not instance.alive:
            return
        instance.advance(now)
        if instance.assigned:
            self._sim.events.later(now + _DRAIN_POLL_S, lambda time: self._drain_decode(instance, time))
            return
        instance.alive = False
        self._add_later(now, self._sim.prefill, self._sim.new_prefill)

    def _add_later[T](self, now: float, instances: list[T], new: Callable[[int], T]) -> None:
        """The instance works in its new role, under the next free number, once the switch is made."""

        def add(time: float) -> None:
            if instances is self._sim.prefill:
                self._sim.index.resize(len(instances) + 1)
            instances.append(new(len(instances)))
            self._sim.changed()

        self._sim.events.later(now + self._sim.config.role_switch_s, add)
