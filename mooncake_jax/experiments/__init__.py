"""The published tables and figures of Mooncake, made again by the simulator and set beside the paper's numbers.

Each is a class here with its numbers and overrides in conf/experiment; a new one is a class with a `run(lab)` method, in any
importable file.
"""

from mooncake_jax.experiments.bandwidth import Bandwidth
from mooncake_jax.experiments.breakdown import Breakdown
from mooncake_jax.experiments.capacity import Capacity
from mooncake_jax.experiments.distributions import Distributions
from mooncake_jax.experiments.documents import Documents
from mooncake_jax.experiments.effective_capacity import EffectiveCapacity
from mooncake_jax.experiments.eviction import Eviction
from mooncake_jax.experiments.lab import Experiment, Lab, Report, write
from mooncake_jax.experiments.load_curves import LoadCurves
from mooncake_jax.experiments.load_fluctuation import LoadFluctuation
from mooncake_jax.experiments.local_variants import LongestPrefix, WithoutTransfers
from mooncake_jax.experiments.points import Points
from mooncake_jax.experiments.random_ties import RandomTies
from mooncake_jax.experiments.replicas import Replicas
from mooncake_jax.experiments.systems import Systems

__all__ = [
    "Bandwidth",
    "Breakdown",
    "Capacity",
    "Distributions",
    "Documents",
    "EffectiveCapacity",
    "Eviction",
    "Experiment",
    "Lab",
    "LoadCurves",
    "LoadFluctuation",
    "LongestPrefix",
    "Points",
    "RandomTies",
    "Replicas",
    "Report",
    "Systems",
    "WithoutTransfers",
    "write",
]
