"""The cluster simulator: events, prefill and decode instances, a shared network; the same Conductor as the live cluster."""

from mooncake_jax.sim.cluster import Simulation
from mooncake_jax.sim.config import (
    CoupledConfig,
    DiskConfig,
    Failure,
    Rates,
    SimClusterConfig,
    SimDecodeConfig,
    SimHostPoolConfig,
    SimPrefillConfig,
    Slow,
)
from mooncake_jax.sim.coupled import CoupledSimulation
from mooncake_jax.sim.hardware import Loading, Pipelined
from mooncake_jax.sim.outcome import Outcome, outcome

__all__ = [
    "CoupledConfig",
    "CoupledSimulation",
    "DiskConfig",
    "Failure",
    "Loading",
    "Outcome",
    "Pipelined",
    "Rates",
    "SimClusterConfig",
    "SimDecodeConfig",
    "SimHostPoolConfig",
    "SimPrefillConfig",
    "Simulation",
    "Slow",
    "outcome",
]
