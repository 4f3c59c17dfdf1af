"""From settings to a simulated run and its output folder. Needs no jax."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mooncake_jax import report, workload
from mooncake_jax.config import SimulateSettings, factory, make
from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import EvictionPolicy
from mooncake_jax.launch import make_conductor
from mooncake_jax.sched import ClosedForm, Conductor, Decision, HardwareModel, QueueOrder, Regression
from mooncake_jax.sim import CoupledSimulation, Loading, Outcome, Pipelined, Rates, Simulation, intervals, outcome
from mooncake_jax.types import Request

_FITTED = (70.55e9, 312e12)
"""Parameters of the model and FLOP/s of the chip that the coefficients of cost=a800x8_llama3_70b belong to."""

Progress = Callable[[int, int], None]
"""Takes requests arrived, and all requests."""


@dataclass(frozen=True, eq=False)
class SimRun:
    """A finished simulation."""

    settings: SimulateSettings
    outcome: Outcome
    seconds: float
    """Wall time of the simulation, loading the workload apart."""
    hardware: HardwareModel
    simulation: Simulation | CoupledSimulation
    left_out: int
    """Requests of the workload's file that could not be used."""

    def summary(self) -> report.Summary:
        return report.summarize_columns(self.outcome.columns, self.settings.slo, self.utilisation())

    def busy(self) -> Mapping[str, np.ndarray]:
        """When each instance worked: float64 [n, 2] of (start, end) by name."""
        coupled = self.settings.cluster.coupled is not None
        return intervals.busy(self.outcome, self.simulation.names, 0 if coupled else self.settings.cluster.prefill.count)

    def utilisation(self) -> Mapping[str, float]:
        return report.busy_fraction(self.busy(), *report.bounds(self.outcome.columns))

    def metrics(self) -> dict[str, float]:
        """The summary's numbers by their flat names (`ttft/mean`, `goodput/share`, ...), and seconds of prefill: `prefill_s` is
        the mean a request costs, `prefill_wasted_s` all that was spent on requests that were then not served."""
        spent, completed = self.outcome.prefill_s, self.outcome.columns.completed
        own = {"prefill_s": float(spent.mean()), "prefill_wasted_s": float(spent[~completed].sum())}
        return report.flat_metrics(self.summary()) | own


_TRACES: dict[str, tuple[list[Request], int]] = {}
"""The workload read last, so that the points of a sweep over anything else share it."""


def requests_of(settings: SimulateSettings) -> tuple[list[Request], int]:
    """The requests of the workload in blocks of the cluster's size, and how many its file had that could not be used."""
    key = repr((settings.workload, settings.cluster.block_size))
    if key not in _TRACES:
        trace = workload.load_trace(settings.workload)
        _TRACES.clear()
        _TRACES[key] = workload.simulated_requests(trace, settings.cluster.block_size), trace.left_out
    return _TRACES[key]


def hardware_of(settings: SimulateSettings) -> HardwareModel:
    """How long things take: the cost model, with loading and storing or a pipeline around it if the cluster has them.

    Raises UserError if the settings name no model sizes or a cost model that cannot be.
    """
    if settings.model.shape is None:
        raise UserError("a simulation needs the model's sizes; add model=llama3_70b, or model.shape of your own")
    cost = make(settings.cost, "cost", HardwareModel)
    kv_bytes, node, cluster = settings.model.shape.kv_bytes_per_token, settings.hardware, settings.cluster
    if cluster.loading != "free":
        load, store = kv_bytes / node.host_to_device_bandwidth, kv_bytes / node.device_to_host_bandwidth
        cost = Loading(cost, load, store, serial=cluster.loading == "serial")
    return cost


def conductor_of(settings: SimulateSettings, hardware: HardwareModel) -> Conductor:
    """The Conductor, which knows how long things take on `hardware` unless an estimator is set."""
    prefill = settings.cluster.prefill
    whole = prefill.chunk_tokens is None
    believed: Any = hardware if whole else Pipelined(hardware, prefill.stages, prefill.chunk_tokens)
    return make_conductor(settings.conductor, settings.slo, believed)


def run(
    settings: SimulateSettings,
    progress: Progress | None = None,
    on_decision: Callable[[Decision], None] | None = None,
    prepare: Callable[[Any], None] | None = None,
) -> SimRun:
    """Simulates what the settings say; `prepare` gets the simulation before it runs, to watch it at times of its own choice.

    Raises UserError for what cannot be simulated.
    """
    requests, left_out = requests_of(settings)
    hardware = hardware_of(settings)
    cluster = settings.cluster
    if cluster.coupled is not None:
        simulation: Any = CoupledSimulation(cluster, hardware, requests)
    else:
        node = settings.hardware
        simulation = Simulation(
            cluster,
            hardware,
            conductor_of(settings, hardware),
            requests,
            settings.model.shape.kv_bytes_per_token,
            Rates(node=node.nic_bandwidth, load=node.host_to_device_bandwidth),
            eviction=factory(settings.eviction, "eviction", EvictionPolicy),
            queue_order=factory(settings.conductor.queue_order, "conductor.queue_order", QueueOrder),
            on_decision=on_decision,
        )
    if prepare is not None:
        prepare(simulation)
    start = time.perf_counter()
    with settled_memory():
        ledger = simulation.run(progress)
    result = outcome(requests, ledger, simulation.logs)
    return SimRun(settings, result, time.perf_counter() - start, hardware, simulation, left_out)


@contextmanager
def settled_memory() -> Iterator[None]:
    """The garbage collector need not look again and again at what is there already: a workload is many objects that stay."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def write(
    done: SimRun, folder: Path, tracker: report.Tracker | None = None, provenance: dict[str, Any] | None = None
) -> report.Summary:
    """The run's output folder: everything a live run's has, and the timeline of the window asked for."""
    columns = done.outcome.columns
    busy = done.busy()
    if tracker is not None:
        for step, gauges in enumerate(intervals.gauges(columns)):
            tracker.log(gauges, step)
    if done.settings.window is not None:
        start, end = done.settings.window
        records = intervals.records(columns, start, end, done.settings.cluster.coupled is not None)
        report.write_timeline(folder / "timeline.json", records)
    return report.write_run(
        folder,
        columns,
        done.settings.slo,
        busy=busy,
        utilisation=done.utilisation(),
        provenance=provenance,
        digest=done.outcome.digest,
        tracker=tracker,
    )


def remarks(done: SimRun) -> list[str]:
    """Lines that belong under the table: speed, digest, what was left out, how good a fitted model is."""
    count = len(done.outcome.columns)
    lines = [f"{count} requests simulated in {done.seconds:.2f} s"]
    cluster, shape = done.settings.cluster, done.settings.model.shape
    if isinstance(done.hardware, ClosedForm) and (shape.params_total, done.settings.hardware.chip.flops) != _FITTED:
        lines.append(
            "cost=a800x8_llama3_70b was fitted to LLaMA3-70B on A800: of model and hardware only KV sizes and bandwidths were "
            "taken; cost=roofline follows them wholly"
        )
    if cluster.coupled is not None:
        lines.append("coupled instances ask no Conductor: the settings of conductor, eviction, prefill, decode play no part")
    if done.left_out:
        lines.append(f"{done.left_out} requests of {done.settings.workload.path} could not be used and were left out")
    if isinstance(done.hardware, Regression):
        for stage, error in done.hardware.relative_error().items():
            lines.append(
                f"cost model, {stage}: off by {error.mean:.1%} in the mean and {error.p90:.1%} at P90 on {error.samples} "
                f"held-out samples"
            )
    lines.append(f"digest {done.outcome.digest}")
    return lines
