"""One report of all experiments."""

import json
import math
import re
from pathlib import Path

import pytest

from mooncake_jax import launch
from mooncake_jax.errors import UserError
from mooncake_jax.experiments import reproduction
from mooncake_jax.report import Comparison, Row
from tests.scripts.conftest import run_alone


def test_every_experiment_is_found_and_opens_with_its_command():
    folder = launch.CONF / "experiment"
    names = reproduction.choose(folder, None)
    assert {"fast25/fig5_scheduling", "arxiv/table1_eviction"} <= set(names)
    for name in names:
        opening = (folder / f"{name}.yaml").read_text(encoding="utf-8").partition("\ndefaults:")[0]
        assert f"python scripts/simulate.py +experiment={name}" in opening
        assert f"`{name}`" in (folder / "README.md").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="there is no experiment fast25/fig99; choose from arxiv/"):
        reproduction.choose(folder, ["fast25/fig99"])


def done(name: str, *rows: Row, error: str = "") -> reproduction.Reproduced:
    comparisons = [] if error else [Comparison("points", "A title", rows)]
    return reproduction.Reproduced(
        name, ["A figure."], f"python x {name}", 3.2, error, comparisons, ["plots/a.png"], ["So it is."]
    )


def test_the_summary_counts_what_is_kept_and_the_notes_stand_below_the_table_once(tmp_path: Path):
    rows = [
        Row("a", 1.0, 9.0, "s", "ratio 2", "because"),
        Row("b", 1.0, 8.0, "", "ratio 2", "because"),
        Row("c", 1.0, 1.0, "", "abs 0"),
    ]
    reproduction.write(tmp_path, [done("fast25/x", *rows), done("arxiv/y", error="it broke")])
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| [fast25/x](#fast25-x) | A title | outside | 1 of 3 | - | 3 s |" in text
    assert "| [arxiv/y](#arxiv-y) | A figure | failed | - | - | 3 s |" in text
    assert "**Failed**: it broke" in text
    assert "![a](fast25/x/plots/a.png)" in text
    assert text.count("because") == 1
    assert text.count("(1)") == 3
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [one["verdict"] for one in report] == ["outside", "failed"]
    assert report[0]["comparisons"][0]["rows"][0]["note"] == "because"


def test_a_number_outside_without_a_reason_is_called_unexplained():
    row = {"label": "a", "paper": 1.0, "ours": None, "unit": "", "tolerance": "abs 1", "note": ""}
    comparison = reproduction._comparison(
        {"name": "n", "title": "t", "rows": [row, {**row, "ours": 1.5}, {**row, "paper": None}]}
    )
    assert [one.note for one in comparison.rows] == ["unexplained", "", ""]
    assert math.isnan(comparison.rows[0].ours)


def test_one_that_fails_is_told_the_others_go_on_and_the_exit_code_is_1(tmp_path: Path):
    ended = run_alone(
        "reproduce",
        tmp_path,
        "only=[fast25/fig14_breakdown,arxiv/table1_eviction]",
        "overrides=['workload.path=nowhere.jsonl','experiment.variants={}']",
        "hydra.run.dir=out",
    )
    assert ended.code == 1, ended.err
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert [one["verdict"] for one in report] == ["failed", "failed"]
    assert all(re.search("nowhere.jsonl|variants", one["error"]) for one in report)
    assert ended.out.splitlines()[-1].endswith("out")
