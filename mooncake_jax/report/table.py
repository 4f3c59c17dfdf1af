"""The benchmark table in the shape of `vllm bench serve`, with our blocks added, and a compact one for rich consoles."""

from rich.table import Table

from mooncake_jax.report.distribution import Statistics
from mooncake_jax.report.metrics import Summary
from mooncake_jax.report.summary_json import latencies_of
from mooncake_jax.types import Status

WIDTH = 50

_TITLES = {
    "ttft": "Time to First Token",
    "tbt": "Time between Tokens (longest 10 %)",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2e": "End-to-end Latency",
}
_NAMES = {"ttft": "TTFT", "tbt": "TBT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2EL"}
_COLUMNS = {"Mean": "mean", "Median": "p50", "P90": "p90", "P99": "p99"}


def format_table(summary: Summary, *, request_rate: float | None = None, max_concurrency: int | None = None) -> str:
    """The table as plain text: 50 columns, a line `{:<40} {:<10}` per number, times in ms; `-` where nothing was measured.

    `request_rate` (req/s) and `max_concurrency` are what the client was configured with; their lines appear only if given.
    """
    lines = [_title("Serving Benchmark Result", "=")]
    lines += _counts(summary, request_rate, max_concurrency)
    for name, latency in latencies_of(summary).items():
        lines.append(_title(_TITLES[name], "-"))
        lines += [_line(f"{word} {_NAMES[name]} (ms):", _milliseconds(latency, at)) for word, at in _COLUMNS.items()]
    lines.append(_title("Mean TTFT by Stage", "-"))
    lines += [_line(f"{_words(stage)} (ms):", 1e3 * seconds) for stage, seconds in summary.ttft_split.items()]
    lines.append(_title("Goodput", "-"))
    lines += _goodput(summary)
    lines.append(_title("KVCache Reuse", "-"))
    lines += [_line(f"Prompt tokens from {tier}:", tokens) for tier, tokens in summary.reuse.by_tier.items()]
    lines.append(_line("Prompt tokens computed:", summary.reuse.computed))
    lines.append(_line("Prompt tokens reused (%):", 100 * summary.reuse.share))
    if summary.utilisation:
        lines.append(_title("Utilisation", "-"))
        lines += [_line(f"{instance} busy (%):", 100 * busy) for instance, busy in summary.utilisation.items()]
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _counts(summary: Summary, request_rate: float | None, max_concurrency: int | None) -> list[str]:
    lines = [
        _line("Successful requests:", summary.completed),
        _line("Failed requests:", summary.requests - summary.completed),
    ]
    others = {status: count for status, count in summary.status.items() if status is not Status.COMPLETED and count}
    lines += [_line(f"  of these {status}:", count) for status, count in others.items()]
    if max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", max_concurrency))
    if request_rate is not None:
        lines.append(_line("Request rate configured (RPS):", request_rate))
    return [
        *lines,
        _line("Benchmark duration (s):", summary.duration),
        _line("Total input tokens:", summary.input_tokens),
        _line("Total generated tokens:", summary.output_tokens),
        _line("Request throughput (req/s):", summary.request_throughput),
        _line("Request goodput (req/s):", summary.goodput.rate),
        _line("Output token throughput (tok/s):", summary.output_throughput),
        _line("Peak output token throughput (tok/s):", summary.peak_output_throughput),
        _line("Peak concurrent requests:", summary.peak_concurrency),
        _line("Total token throughput (tok/s):", summary.total_throughput),
    ]


def _goodput(summary: Summary) -> list[str]:
    goodput = summary.goodput
    return [
        _line("TTFT SLO (ms):", 1e3 * summary.slo.ttft),
        _line("TBT SLO (ms):", 1e3 * summary.slo.tbt),
        _line("Effective requests:", goodput.effective),
        _line("Effective requests (% of all):", 100 * goodput.share),
        _line("TTFT within SLO (% of successful):", 100 * goodput.within_ttft),
        _line("TBT within SLO (% of successful):", 100 * goodput.within_tbt),
    ]


def _title(text: str, fill: str) -> str:
    spaced = f" {text} " if fill == "=" else text
    return f"{spaced:{fill}^{WIDTH}}"


def _line(label: str, value: float | int | None) -> str:
    if value is None:
        return f"{label:<40} {'-':<10}"
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"


def _milliseconds(latency: Statistics | None, at: str) -> float | None:
    return None if latency is None else 1e3 * getattr(latency, at)


def _words(stage: str) -> str:
    return stage.replace("_", " ").capitalize()


def rich_table(summary: Summary, title: str = "") -> Table:
    """The essentials for a rich console: latencies against the SLO, and a caption with goodput, throughput and reuse."""
    table = Table(title=title or None, caption=_caption(summary), caption_justify="left")
    table.add_column("ms")
    for word in (*_COLUMNS, "SLO", "within"):
        table.add_column(word, justify="right")
    goodput = summary.goodput
    targets = {"ttft": (summary.slo.ttft, goodput.within_ttft), "tbt": (summary.slo.tbt, goodput.within_tbt)}
    for name, latency in latencies_of(summary).items():
        cells = ["-" if latency is None else f"{1e3 * getattr(latency, at):,.1f}" for at in _COLUMNS.values()]
        if name in targets:
            slo, within = targets[name]
            cells += [f"{1e3 * slo:,.0f}", "-" if latency is None else f"{within:.1%}"]
        table.add_row(_NAMES[name], *cells)
    return table


def _caption(summary: Summary) -> str:
    goodput = summary.goodput
    ended = ", ".join(f"{count} {status}" for status, count in summary.status.items() if count) or "no requests"
    return (
        f"{ended} in {summary.duration:,.1f} s\n"
        f"goodput {goodput.rate:.2f} req/s, {goodput.share:.1%} of all requests\n"
        f"{summary.total_throughput:,.0f} tok/s, {summary.output_throughput:,.0f} of them generated\n"
        f"{summary.reuse.share:.1%} of {summary.reuse.prompt:,} prompt tokens reused"
    )
