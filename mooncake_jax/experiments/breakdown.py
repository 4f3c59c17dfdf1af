"""Where the time of one request goes, alone in the cluster (FAST Fig 14)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mooncake_jax.experiments.lab import Lab, Report
from mooncake_jax.report import Comparison, Row, plot_bars
from mooncake_jax.simulate import SimRun
from mooncake_jax.workload import BLOCK_TOKENS

STAGES = ("prefill", "transfer + load", "transfer", "load", "decode")
TTFT = STAGES[:2]


class Breakdown:
    """Serves one request of each length, with nothing and with a share of its prompt cached, and looks at its stages.

    What is cached an earlier request has left behind. Deciding takes no simulated time, so it is no stage of ours.

    Args:
      title: of tables and plots.
      tokens: of prompts, by label.
      shares: cached shares of the prompt, from 0 to below 1; the second is compared with the first.
      output_tokens: to decode, the first one included.
      paper: seconds by stage, share in per cent and label of length: {prefill: {"0": {8k: 1.0}}}; may lack any.
      tolerance: by stage; "reduction" of what the second share saves of the longest prefill and TTFT.
      claims: those savings by the paper, `prefill` and `TTFT`.
      variants: overrides by label, for further tables, not judged.
      notes: by stage and share in per cent: {prefill 95: "..."}.
    """

    def __init__(
        self,
        title: str,
        tokens: Mapping[str, int],
        shares: Sequence[float | int],
        output_tokens: int,
        paper: Mapping[str, Mapping[str, Mapping[str, float | int]]],
        tolerance: Mapping[str, str],
        claims: Mapping[str, float],
        variants: Mapping[str, Sequence[str]] | None = None,
        notes: Mapping[str, str] | None = None,
        remarks: Sequence[str] = (),
    ):
        self.title, self.tokens, self.shares, self.output_tokens = title, tokens, shares, output_tokens
        self.paper, self.tolerance, self.claims = paper, tolerance, claims
        self.variants, self.notes, self.remarks = variants or {}, notes or {}, list(remarks)

    def run(self, lab: Lab) -> Report:
        found = self._measure(lab, [])
        rows = [
            Row(
                f"{stage}, {percent} % cached, {label}",
                self.paper[stage][percent][label],
                stages[stage],
                "s",
                self.tolerance.get(stage),
                self.notes.get(f"{stage} {percent}", ""),
            )
            for stage in STAGES
            for percent, by_label in found.items()
            for label, stages in by_label.items()
            if label in self.paper.get(stage, {}).get(percent, {})
        ]
        rows += self._savings(found)
        comparisons = [Comparison("breakdown", self.title, rows)]
        plots = [
            self._plot(lab.folder / "plots" / f"{stage.replace(' + ', '_')}.png", stage, found)
            for stage in STAGES
            if stage in self.tolerance
        ]
        for variant, overrides in self.variants.items():
            other = self._measure(lab, overrides)
            comparisons.append(
                Comparison(
                    "".join(letter if letter.isalnum() else "_" for letter in variant),
                    f"{self.title}: {variant}",
                    [
                        Row(f"prefill, {percent} % cached, {label}", self.paper["prefill"][percent][label], one["prefill"], "s")
                        for percent, by_label in other.items()
                        for label, one in by_label.items()
                    ],
                )
            )
        return Report(comparisons, plots, self.remarks)

    def _measure(self, lab: Lab, overrides: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
        """Seconds by share in per cent, length and stage."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        block = lab.settings().cluster.block_size
        for share in self.shares:
            percent = f"{100 * share:g}"
            found[percent] = {}
            for label, tokens in self.tokens.items():
                path = lab.folder / f"prompts_{label}_{percent}.jsonl"
                self._write(path, tokens, int(share * tokens) // block * block)
                run = lab.simulate([*overrides, f"workload.path='{path}'"], f"{label} tokens, {percent} % cached")
                found[percent][label] = self._stages(run)
        return found

    def _write(self, path: Path, tokens: int, cached: int) -> None:
        """A trace of the request, an hour after one that leaves its first `cached` tokens behind."""
        blocks = -(-tokens // BLOCK_TOKENS)
        lines = [(3_600_000, tokens, self.output_tokens)]
        if cached:
            lines.insert(0, (0, cached, 1))
        path.write_text(
            "".join(
                json.dumps(
                    {
                        "timestamp": at,
                        "input_length": length,
                        "output_length": output,
                        "hash_ids": list(range(blocks))[: -(-length // BLOCK_TOKENS)],
                    }
                )
                + "\n"
                for at, length, output in lines
            )
        )

    def _stages(self, run: SimRun) -> dict[str, float]:
        ledger, last = run.simulation.ledger, -1
        moved = ledger.moved_s[last]
        transfer = ledger.sent[last] - ledger.prefilled[last]
        return {
            "prefill": ledger.prefilled[last] - ledger.start[last],
            "transfer + load": moved,
            "transfer": transfer,
            "load": moved - transfer,
            "decode": ledger.end[last] - ledger.prefilled[last] - moved,
        }

    def _savings(self, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Row]:
        none, some = (found[f"{100 * share:g}"] for share in self.shares[:2])
        longest = max(self.tokens, key=self.tokens.__getitem__)
        rows = []
        for name, stages in (("prefill", TTFT[:1]), ("TTFT", TTFT)):
            without, with_some = (sum(one[longest][stage] for stage in stages) for one in (none, some))
            saved = 1 - with_some / without
            rows.append(Row(f"saved of {name}, {longest}", self.claims[name], saved, "", self.tolerance.get("reduction")))
        return rows

    def _plot(self, path: Path, stage: str, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Path:
        plot_bars(
            path,
            f"{self.title}: {stage}",
            list(self.tokens),
            paper={
                f"{percent} % cached": [by_label.get(label) for label in self.tokens]
                for percent, by_label in self.paper.get(stage, {}).items()
            },
            ours={
                f"{percent} % cached": [by_label[label][stage] for label in self.tokens] for percent, by_label in found.items()
            },
            y_label="seconds",
        )
        return path
