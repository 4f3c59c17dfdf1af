"""The published tables and figures of Mooncake, made again by the simulator and set beside the paper's numbers.

Each is a class here with its numbers and overrides in conf/experiment; a new one is a class with a `run(lab)` method, in any
importable file.
"""

from mooncake_jax.experiments.lab import Experiment, Lab, Report
from mooncake_jax.experiments.points import Points

__all__ = ["Experiment", "Lab", "Points", "Report"]
