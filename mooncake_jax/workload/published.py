"""The traces published with the FAST '25 paper, by name: where they are looked for."""

import os
from pathlib import Path

from mooncake_jax.errors import UserError

TRACES = ("conversation", "synthetic", "toolagent")
"""In `FAST25-release/traces` of the kvcache-ai/Mooncake repository on GitHub, as NAME_trace.jsonl."""


def cache_dir() -> Path:
    """`$MOONCAKE_JAX_CACHE`, or `mooncake_jax` in `$XDG_CACHE_HOME`, or in `~/.cache`."""
    if own := os.environ.get("MOONCAKE_JAX_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mooncake_jax"


def trace_folders() -> list[Path]:
    """`$MOONCAKE_JAX_TRACES`, the cache folder, and `shared/data/traces` beside the repository."""
    own = os.environ.get("MOONCAKE_JAX_TRACES")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
    return [*([Path(own)] if own else []), cache_dir() / "traces", beside]


def find_trace(path: str) -> Path:
    """The file of a published trace if `path` is its name and no file, else `path` itself.

    Raises UserError, saying how to get it, if a trace known by name is nowhere.
    """
    if path not in TRACES or Path(path).is_file():
        return Path(path)
    filename = f"{path}_trace.jsonl"
    for folder in trace_folders():
        if (folder / filename).is_file():
            return folder / filename
    raise UserError(
        f"the trace {path} is not here: get it by `python scripts/fetch.py trace={path}`, or put {filename} (from "
        f"FAST25-release/traces of the kvcache-ai/Mooncake repository) into a folder that MOONCAKE_JAX_TRACES names"
    )
