import json
import math

import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.report import (
    Comparison,
    Row,
    comparison_dict,
    format_comparison,
    markdown_comparison,
    plot_bars,
    plot_curves,
    write_comparison,
)


@pytest.mark.parametrize(
    ("paper", "ours", "tolerance", "verdict"),
    [
        (2.0, 3.2, "ratio 1.6", "within"),
        (3.2, 2.0, "ratio 1.6", "within"),
        (2.0, 3.3, "ratio 1.6", "outside"),
        (0.0, 0.1, "ratio 1.6", "outside"),
        (0.0, 0.0, "ratio 1.6", "within"),
        (0.5, 0.53, "abs .04", "within"),
        (0.5, 0.45, "abs 0.04", "outside"),
        (0.5, math.nan, "abs 0.04", "outside"),
        (0.5, math.nan, "ratio 2", "outside"),
        (0.5, 0.45, None, "not judged"),
        (None, 0.45, "abs 0.04", "no figure"),
    ],
)
def test_a_row_is_within_its_tolerance_or_not(paper, ours, tolerance, verdict):
    assert Row("x", paper, ours, tolerance=tolerance).verdict == verdict


@pytest.mark.parametrize("tolerance", ["1.6", "ratio", "ratio x", "times 2", "ratio 0.5", "abs -1", "abs nan"])
def test_a_tolerance_that_means_nothing_is_refused(tolerance):
    with pytest.raises(UserError, match="TTFT: tolerance"):
        Row("TTFT", 1.0, 1.0, tolerance=tolerance)


def of(*verdicts: str) -> Comparison:
    rows = {
        "within": Row("a", 2.0, 2.0, "s", "ratio 1.1"),
        "outside": Row("b [x] | y", 2.0, 40.0, "s", "ratio 1.1", "a known difference [see]"),
        "not judged": Row("c", 14_000_000, 15_000_000),
        "no figure": Row("d", None, 0.1234567),
    }
    return Comparison("fig5", "Fig. 5 [mean TTFT]", [rows[verdict] for verdict in verdicts])


def test_one_row_outside_makes_the_comparison_outside():
    assert of("within", "outside", "no figure").verdict == "outside"
    assert of("no figure", "not judged", "within").verdict == "within"
    assert of("no figure", "not judged").verdict == "not judged"
    assert of("no figure").verdict == of().verdict == "no figure"


def test_the_text_has_every_row_and_note_within_100_columns():
    text = format_comparison(of("within", "outside", "not judged", "no figure"))
    assert "Fig. 5 [mean TTFT]" in text
    row = next(line for line in text.splitlines() if "b [x] | y (s) [1]" in line)
    assert [cell.strip() for cell in row.split("│")[2:7]] == ["2", "40", "20", "ratio 1.1", "outside"]
    assert "14,000,000" in text
    assert "0.1235" in text
    assert "Verdict: outside: 1 of 2 numbers within their tolerance." in text
    assert text.splitlines()[-1] == "[1] a known difference [see]"
    long = Comparison("x", "t " * 90, [Row("label " * 30, 1.0, 1.0, note="note " * 60)])
    assert max(map(len, format_comparison(long).splitlines())) <= 100


def test_markdown_has_a_line_a_row():
    lines = markdown_comparison(of("outside", "no figure")).splitlines()
    assert lines[0] == "### Fig. 5 [mean TTFT]"
    assert lines[4] == "| b [x] \\| y (s) | 2 | 40 | 20 | ratio 1.1 | outside | a known difference [see] |"
    assert lines[5] == "| d | - | 0.1235 | - | - | no figure |  |"


def test_json_is_strict_and_has_the_verdicts(tmp_path):
    comparison = Comparison("fig5", "Fig. 5", [Row("a", 2.0, 3.0, "s", "ratio 1.1"), Row("b", 2.0, math.nan)])
    write_comparison(tmp_path, comparison)
    values = json.loads((tmp_path / "comparison.json").read_text())
    assert values == comparison_dict(comparison)
    assert values["verdict"] == "outside"
    assert values["rows"][0] == {
        **{"label": "a", "paper": 2.0, "ours": 3.0, "unit": "s", "tolerance": "ratio 1.1", "note": ""},
        **{"ratio": 1.5, "verdict": "outside"},
    }
    assert values["rows"][1]["ours"] is values["rows"][1]["ratio"] is None
    assert (tmp_path / "comparison.md").read_text() == markdown_comparison(comparison)


def test_curves_and_bars_are_drawn_with_gaps_and_on_logarithmic_axes(tmp_path):
    paper = {"a": ([1, 10, 100], [0.1, None, 0.3]), "only theirs": ([1, 10], [0.2, 0.3])}
    ours = {"a": (np.array([1.0, 10.0, 100.0]), np.array([0.1, np.nan, 0.4])), "only ours": ([2, 20], [0.5, 0.6])}
    plot_curves(tmp_path / "curves.png", "t", ours, paper, x_label="x", y_label="y", log_x=True, log_y=True)
    plot_curves(tmp_path / "none.png", "t", {}, {}, x_label="x", y_label="y")
    bars = {"paper": {"TTFT": [1.0, None], "TBT": [0.1, 0.2]}, "ours": {"TTFT": [1.5, 1e4]}}
    plot_bars(tmp_path / "bars.png", "t", ["one", "two"], y_label="s", **bars)
    for name in ("curves", "none", "bars"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
