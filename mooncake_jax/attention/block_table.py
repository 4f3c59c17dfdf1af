"""Block sizes that were found better than a kernel's own rule, by (chip, type of the pages, head dim, page).

`blocks.json` beside this file holds them with the evidence for each: `time`, measured on that chip, or `compiled`, ranked by
what the compiler for that chip says. `scripts/tune_kernels.py` fills it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("blocks.json")
Key = tuple[str, str, int, int]
"""Chip as JAX names its kind, type of the pages, head dim, tokens a page."""


@cache
def _rows() -> list[dict[str, Any]]:
    return json.loads(PATH.read_text(encoding="utf-8"))


def read[Blocks](backend: str, function: str, blocks: type[Blocks]) -> dict[Key, Blocks]:
    """The table of one kernel. `blocks` is the record of its sizes, filled by name."""
    return {
        (row["chip"], row["dtype"], row["dim"], row["page"]): blocks(**row["blocks"])
        for row in _rows()
        if (row["backend"], row["function"]) == (backend, function)
    }


def write(new: list[dict[str, Any]]) -> None:
    """Adds rows; one of the same kernel, chip, type, dim and page is replaced, but not a measured one by a compiled one."""
    names = ("backend", "function", "chip", "dtype", "dim", "page")
    kept = {tuple(row[name] for name in names): row for row in _rows()}
    for row in new:
        key = tuple(row[name] for name in names)
        if row["evidence"] == "time" or kept.get(key, row)["evidence"] != "time":
            kept[key] = row
    text = ",\n".join(" " + json.dumps(kept[key]) for key in sorted(kept))
    PATH.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    _rows.cache_clear()
