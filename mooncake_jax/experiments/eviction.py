"""Eviction policies of one pool, whatever the time (arXiv Table 1)."""

from collections.abc import Mapping, Sequence

from mooncake_jax.config import make
from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.kvcache import LRU, Belady, EvictionPolicy
from mooncake_jax.report import Comparison, Row, plot_curves
from mooncake_jax.sim.study import CacheStudy, study
from mooncake_jax.workload import Trace, load_trace

BOUND = "bound (Belady)"
_ROUNDING = 0.005
"""The paper prints two digits: closer rates are equal in its table."""


class Eviction:
    """Passes the workload through a pool of each capacity, ordered by each policy, and through Belady's, which is the bound.

    Args:
      title: of table and plot.
      policies: files of conf/eviction by label.
      capacities: in blocks; a last column without limit is added.
      paper: hit rates at each capacity and without limit, by label. Not judged: the paper's trace was replaced.
      order: labels from the best policy to the worst; each capacity is judged by it, with equality within rounding.
    """

    def __init__(
        self,
        title: str,
        policies: Mapping[str, str],
        capacities: Sequence[int],
        paper: Mapping[str, Sequence[float]],
        order: Sequence[str],
        note: str = "",
        remarks: Sequence[str] = (),
    ):
        self.title, self.policies, self.capacities, self.paper = title, policies, capacities, paper
        self.order, self.note, self.remarks = order, note, list(remarks)

    def run(self, lab: Lab) -> Report:
        trace = load_trace(lab.settings().workload)
        without_limit = len({key for request in trace.requests for key in request.hash_ids})
        sizes = [*self.capacities, without_limit]
        names = [f"{capacity:,} blocks" for capacity in self.capacities] + ["no limit"]
        whole = study(trace, without_limit, LRU)
        found: dict[str, list[CacheStudy]] = {}
        done, total = 0, (len(self.policies) + 1) * len(self.capacities)
        for label, component in [*self.policies.items(), (BOUND, None)]:
            found[label] = []
            for capacity in self.capacities:
                lab.show(f"{label}, {capacity:,} blocks", done, total)
                found[label].append(whole if capacity >= without_limit else self._one(lab, trace, capacity, component))
                done += 1
            found[label].append(whole)  # a pool that holds everything evicts nothing
        order = Comparison("order", f"{self.title}: {' ≥ '.join(self.order)}", self._order(found, names))
        rates = [
            Row(f"{label}, {name}", paper, one.block_rate, "", None, self.note if paper is not None else "")
            for label, studies in found.items()
            for name, one, paper in zip(names, studies, self.paper.get(label, [None] * len(sizes)), strict=True)
        ]
        tokens = [
            Row(f"{label}, {name}", None, one.token_rate)
            for label, studies in found.items()
            for name, one in zip(names, studies, strict=True)
        ]
        plot = lab.folder / "plots" / "hit_rate.png"
        plot_curves(
            plot,
            self.title,
            {label: (sizes, [one.block_rate for one in studies]) for label, studies in found.items()},
            {label: (sizes[:-1], rates[:-1]) for label, rates in self.paper.items()},
            x_label="capacity (blocks of 512 tokens)",
            y_label="hit rate (blocks)",
            log_x=True,
        )
        tables = [order, Comparison("blocks", f"{self.title}: hit blocks", rates)]
        return Report([*tables, Comparison("tokens", f"{self.title}: hit tokens", tokens)], [plot], self.remarks)

    def _one(self, lab: Lab, trace: Trace, capacity: int, name: str | None) -> CacheStudy:
        if name is None:
            return study(trace, capacity, lambda: Belady(request.hash_ids for request in trace.requests), bypass=True)
        component = lab.settings([f"eviction={name}"]).eviction
        return study(trace, capacity, lambda: make(component, "eviction", EvictionPolicy))

    def _order(self, found: Mapping[str, Sequence[CacheStudy]], names: Sequence[str]) -> list[Row]:
        rows = []
        for at, name in enumerate(names):
            for better, worse in zip(self.order, self.order[1:]):
                paper = self.paper[better][at] >= self.paper[worse][at]
                kept = found[better][at].block_rate >= found[worse][at].block_rate - _ROUNDING
                rows.append(Row(f"{better} ≥ {worse}, {name}", int(paper), int(kept), "1: yes", "abs 0"))
        return rows
