"""Calibration: the model of an engine's passes and steps, and scripts/calibrate.py on live runs of a tiny model.

How close the simulator comes to a live run is not judged here, since it takes a machine that does nothing else.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mooncake_jax.calibrate import EngineModel, LiveRun, Scatter, Work, bucket, read_run, sharing, twin_config
from mooncake_jax.config import ClusterSettings, ReplaySettings
from mooncake_jax.report import columns_of
from mooncake_jax.sched import DecodeSample, HardwareModel, PrefillSample
from tests.scripts.conftest import SMALL, run_alone


def run_of(work: list[Work]) -> LiveRun:
    """A run of which only the times of its passes and steps count."""
    samples = [one.sample for one in work if one.sample.seconds > 0]
    return LiveRun(Path(), ReplaySettings(cluster=ClusterSettings()), samples, work, [], columns_of([]), np.zeros(0), 1)


def passes_and_steps() -> list[Work]:
    """Of an engine with programs of 16, 32, 64, 128 tokens and 1, 2, 4, 8 requests: 10 ms + 1 ms a token of the program."""
    passes = [PrefillSample(cached + new, cached, 0.01 + 0.001 * size) for cached in (0, 48) for new, size in SIZES]
    steps = [
        DecodeSample(n, 100 * n, 0.02 + 0.005 * size) for n, size in ((1, 1), (2, 2), (3, 4), (4, 4), (6, 8)) for _ in "ab"
    ]
    return [Work(sample, 0.0, False) for sample in [*passes, *steps]]


SIZES = ((9, 16), (16, 16), (17, 32), (32, 32), (40, 64), (64, 64), (65, 128), (128, 128))


def test_a_pass_takes_what_its_program_takes_and_a_long_prompt_the_sum_of_its_passes():
    model = EngineModel(run_of(passes_and_steps()))
    assert isinstance(model, HardwareModel)
    for new, size in SIZES:
        assert model.prefill_s(32 + new, 32) == pytest.approx(0.01 + 0.001 * size)
    assert model.prefill_s(300, 0) == pytest.approx(2 * (0.01 + 0.128) + (0.01 + 0.064))
    for batch, size in ((1, 1), (2, 2), (2.5, 4), (3, 4), (5, 8)):
        assert model.decode_step_s(batch, 100 * size) == pytest.approx(0.02 + 0.005 * size)


def test_the_model_of_scattered_times_has_their_sum():
    rng = np.random.default_rng(0)
    work = passes_and_steps() * 30
    work = [replace(one, sample=replace(one.sample, seconds=one.sample.seconds * float(rng.exponential()))) for one in work]
    # What took no time by the clock counts as well: it is a step that was harvested with the one before.
    work += [Work(DecodeSample(1, 100, 0.0), 0.0, False)] * 30
    model = EngineModel(run_of(work))
    for kind in (PrefillSample, DecodeSample):
        mine = [one.sample for one in work if isinstance(one.sample, kind)]
        assert sum(map(model.seconds, mine)) == pytest.approx(sum(one.seconds for one in mine), rel=1e-6)


def test_scatter_is_drawn_apart_for_each_state_and_keeps_the_sum():
    model = EngineModel(run_of(passes_and_steps()))
    work = [
        Work(DecodeSample(1, 100, factor * 0.025), factor * 0.025 * beside, joined)
        for beside, joined, factors in ((False, False, (0.5, 0.7)), (True, False, (2.0, 3.0)), (False, True, (1.2, 1.4)))
        for factor in factors * 10
    ]
    draw = Scatter(work, model, np.random.default_rng(0))
    assert {round(draw(False, False), 6) for _ in range(200)} == {0.5, 0.7}
    assert {round(draw(True, False), 6) for _ in range(200)} == {2.0, 3.0}
    assert {round(draw(True, True), 6) for _ in range(200)} == {1.2, 1.4}  # never measured together, so joining alone decides
    assert draw.means()[True, False] == pytest.approx(2.5)


def test_what_steps_do_beside_a_pass_is_told_from_what_they_do_alone():
    # Alone 1 s. Of three kinds of step 0.5 s, 2 s and 1 s were beside a pass, and there things go half as fast.
    model = EngineModel(run_of(passes_and_steps()))
    alone = 1.0 / model.seconds(DecodeSample(1, 100, 1.0))
    work = [Work(DecodeSample(1, 100, s), o, False) for s, o in ((1.25, 0.5), (2.0, 2.0), (1.5, 1.0)) for _ in range(5)]
    assert sharing(work, model, {(False, False): alone}) == pytest.approx(2.0)
    assert sharing(work[:7], model, {(False, False): alone}) == 1.0  # too few to say
    assert sharing([], model, {(False, False): alone}) == 1.0


def test_sizes_are_those_that_the_engine_compiles():
    from mooncake_jax.engine.shapes import bucket as compiled

    for smallest, largest in ((16, 128), (1, 8), (1, 6), (4, 40)):
        assert [bucket(n, smallest, largest) for n in range(1, largest + 1)] == [
            compiled(n, smallest, largest) for n in range(1, largest + 1)
        ]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("live")
    run = run_alone(
        "replay",
        folder,
        *SMALL,
        "model=custom",
        f"model.path={checkpoint}",
        "workload.scale=0.0078125",
        "workload.generator.system_prompt=1024",
        "workload.generator.first_input.median=512",
        "workload.generator.next_input.median=256",
        "workload.generator.rate=10",
        "workload.limit=40",
        "tracker=none",
    )
    assert run.code == 0, run.err
    return Path(run.out.splitlines()[-1])


def test_a_live_run_is_read_with_its_cluster_its_requests_and_all_of_its_steps(live: Path):
    run = read_run(live)
    assert len(run.requests) == len(run.columns) == 40
    assert run.requests[0].arrival == 0
    # A request of o tokens takes o - 1 steps, and a batch of several shares them.
    steps = [one.sample for one in run.work if isinstance(one.sample, DecodeSample)]
    assert sum(step.batch for step in steps) == sum(request.output_tokens - 1 for request in run.requests)
    computed = sum(one.sample.tokens - one.sample.cached for one in run.work if isinstance(one.sample, PrefillSample))
    assert computed == run.columns.computed.sum()
    twin = twin_config(run.settings.cluster)
    assert (twin.block_size, twin.prefill.chunk_tokens, twin.decode.capacity_tokens) == (4, 8, 96)


def test_the_script_compares_six_numbers_and_keeps_them(live: Path, tmp_path: Path):
    ended = run_alone("calibrate", tmp_path, f"fit={live}", f"predict={live}", "draws=3")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert [line[:12].strip() for line in lines[1:7]] == ["TTFT mean", "TTFT P90", "TBT mean", "TBT P90", "E2E mean", "E2E P90"]
    rows = json.loads((Path(lines[-1]) / "calibration.json").read_text())
    assert rows[0]["live"] == pytest.approx(float(read_run(live).columns.ttft.mean()))
    assert all(row["simulated"] > 0 and math.isfinite(row["simulated"]) for row in rows)


def test_what_is_not_a_live_run_gets_one_sentence(live: Path, tmp_path: Path):
    assert "config.yaml cannot be read" in run_alone("calibrate", tmp_path, f"fit={tmp_path}", f"predict={live}").sentence()
    (tmp_path / "config.yaml").write_text("cost: {}\n")
    assert (
        "is not the folder of a live run" in run_alone("calibrate", tmp_path, f"fit={live}", f"predict={tmp_path}").sentence()
    )
    assert "fit has no value" in run_alone("calibrate", tmp_path, f"predict={live}").sentence()
