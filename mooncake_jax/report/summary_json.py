"""summary.json: a run's summary under the keys of `vllm bench serve` (ms) and, beside them, under ours (seconds)."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mooncake_jax.report.distribution import Statistics
from mooncake_jax.report.metrics import Summary


def latencies_of(summary: Summary) -> dict[str, Statistics | None]:
    """The five latencies by their short names, in the order of the table."""
    return {"ttft": summary.ttft, "tbt": summary.tbt, "tpot": summary.tpot, "itl": summary.itl, "e2e": summary.e2e}


def summary_dict(summary: Summary, provenance: Mapping[str, Any] | None = None, digest: str | None = None) -> dict[str, Any]:
    """The summary as JSON values. A latency without values is null under either kind of key.

    Flat keys are the ecosystem's, `mean_ttft_ms` and the like (`e2el` for E2E; `tbt` follows the same pattern; `failed` counts
    all that did not complete); nested ones (`ttft`, `goodput`, ...) are ours, in seconds.
    """
    return {
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.requests - summary.completed,
        "total_input_tokens": summary.input_tokens,
        "total_output_tokens": summary.output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.goodput.rate,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_throughput,
        "max_output_tokens_per_s": summary.peak_output_throughput,
        "max_concurrent_requests": summary.peak_concurrency,
        **_milliseconds(summary),
        "requests": summary.requests,
        "status": {str(status): count for status, count in summary.status.items()},
        "slo": asdict(summary.slo),
        "goodput": asdict(summary.goodput),
        **{name: latency and asdict(latency) for name, latency in latencies_of(summary).items()},
        "ttft_split": dict(summary.ttft_split),
        "reuse": {
            "prompt": summary.reuse.prompt,
            "computed": summary.reuse.computed,
            **{str(tier): tokens for tier, tokens in summary.reuse.by_tier.items()},
            "share": summary.reuse.share,
        },
        "utilisation": dict(summary.utilisation),
        **({} if digest is None else {"digest": digest}),
        **({} if provenance is None else {"provenance": dict(provenance)}),
    }


def _milliseconds(summary: Summary) -> dict[str, float | None]:
    words = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p99": "p99"}
    return {
        f"{word}_{'e2el' if name == 'e2e' else name}_ms": None if latency is None else 1e3 * getattr(latency, field)
        for name, latency in latencies_of(summary).items()
        for word, field in words.items()
    }


def write_summary(path: Path, summary: Summary, provenance: Mapping[str, Any] | None = None, digest: str | None = None) -> None:
    """Writes summary.json, strict JSON, to `path`."""
    values = summary_dict(summary, provenance, digest)
    path.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def flat_metrics(summary: Summary) -> dict[str, float]:
    """Every number of the summary under one flat name, `goodput/share`, `ttft/p90`, ..., for trackers; absent ones left out."""
    return flatten(summary_dict(summary))


def flatten(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary.json under flat names; what is no number is left out."""
    flat: dict[str, float] = {}
    for key, value in values.items():
        items = {f"{key}/{inner}": number for inner, number in value.items()} if isinstance(value, Mapping) else {key: value}
        flat |= {name: float(number) for name, number in items.items() if isinstance(number, int | float)}
    return flat
