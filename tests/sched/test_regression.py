"""Regression on measurements: what it recovers, what it says about its own error, and the file between a run and it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.sched import (
    ClosedForm,
    DecodeSample,
    HardwareModel,
    PrefillSample,
    Regression,
    Sample,
    TransferSample,
    held_out_error,
    read_samples,
    write_samples,
)

HEADER = "stage,tokens,cached,batch,context,bytes,seconds\n"


def measurements(truth: ClosedForm, noise: float = 0.0, count: int = 200) -> list[Sample]:
    rng = np.random.default_rng(3)
    out: list[Sample] = []
    for _ in range(count):
        n, b = int(rng.integers(100, 100_000)), int(rng.integers(1, 64))
        p, context, nbytes = int(n * rng.uniform(0, 0.9)), int(b * rng.integers(100, 10_000)), int(rng.integers(10**6, 10**10))
        factors = rng.uniform(1 - noise, 1 + noise, 3)
        out.append(PrefillSample(n, p, float(factors[0] * truth.prefill_s(n, p))))
        out.append(DecodeSample(b, context, float(factors[1] * truth.decode_step_s(b, context))))
        out.append(TransferSample(nbytes, 0, 1, float(factors[2] * truth.transfer_s(nbytes, 0, 1))))
    return out


TRUTH = ClosedForm(prefill_base=0.01, decode_per_request=2e-4, latency=1e-3)
FITTED = Regression(measurements(TRUTH, noise=0.1))


def test_exact_measurements_give_the_truth_back():
    regression = Regression(measurements(TRUTH))
    assert isinstance(regression, HardwareModel)
    assert regression.prefill_s(50_000, 1234) == pytest.approx(TRUTH.prefill_s(50_000, 1234), rel=1e-6)
    assert regression.decode_step_s(100, 10**6) == pytest.approx(TRUTH.decode_step_s(100, 10**6), rel=1e-6)
    assert regression.transfer_s(10**9, 3, 4) == pytest.approx(TRUTH.transfer_s(10**9, 3, 4), rel=1e-6)
    assert max(error.max for error in regression.relative_error().values()) < 1e-6


def test_a_prefix_that_costs_time_to_load_is_learned():
    samples = [s for s in measurements(TRUTH) if not isinstance(s, PrefillSample)]
    samples += [
        PrefillSample(n, p, 1e-4 * (n - p) + 2e-6 * p + 3e-10 * (n - p) * p)
        for n in (500, 5000, 50_000)
        for p in (0, n // 4, n // 2)
    ]
    assert Regression(samples, holdout=0).prefill_s(20_000, 15_000) == pytest.approx(0.5 + 0.03 + 0.0225, rel=1e-6)


def test_the_error_is_that_of_the_noise_on_points_it_has_not_seen():
    errors = FITTED.relative_error()
    assert set(errors) == {"prefill", "decode", "transfer"}
    for error in errors.values():
        assert error.samples == 40
        assert error.mean == pytest.approx(0.05, abs=0.02)  # mean of |uniform(-0.1, 0.1)|
        assert error.mean < error.p90 < error.max < 0.15
    assert held_out_error(TRUTH, FITTED.held_out)["prefill"].max <= 0.1 / 0.9 + 1e-9
    assert Regression(measurements(TRUTH), holdout=0).relative_error() == {}


def test_the_held_out_points_do_not_move_the_fit():
    samples = measurements(TRUTH)
    for stage in range(3):  # every fifth sample of a stage is held out: spoil them all
        for i in range(12 + stage, len(samples), 15):
            samples[i] = type(samples[i])(*list(vars(samples[i]).values())[:-1], seconds=1e3)
    assert Regression(samples).prefill_s(9000, 10) == pytest.approx(TRUTH.prefill_s(9000, 10), rel=1e-6)


@given(st.integers(1, 512), st.integers(0, 10**7))
def test_decode_steps_are_exactly_their_line(batch: int, context: int):
    line = FITTED.decode_line(batch)
    assert FITTED.decode_step_s(batch, context) == line.seconds + line.seconds_per_token * context


def test_arrays_are_estimated_element_by_element():
    cached, batch = np.array([0, 100, 999]), np.array([1, 2, 64])
    assert FITTED.prefill_s(1000, cached).tolist() == [FITTED.prefill_s(1000, int(p)) for p in cached]
    assert FITTED.decode_step_s(batch, 1000).tolist() == [FITTED.decode_step_s(int(b), 1000) for b in batch]
    assert FITTED.transfer_s(cached, 0, batch).tolist() == [FITTED.transfer_s(int(c), 0, 1) for c in cached]


def test_a_file_of_samples_gives_the_same_estimator(tmp_path: Path):
    path, samples = tmp_path / "samples.csv", measurements(TRUTH, noise=0.1)
    write_samples(path, [*samples, DecodeSample(1, 1, 0.0)])
    back = read_samples(path)
    assert [s for s in back if not isinstance(s, TransferSample)] == [s for s in samples if not isinstance(s, TransferSample)]
    assert Regression.from_csv(path).prefill_s(777, 7) == FITTED.prefill_s(777, 7)
    assert Regression.from_csv(path).decode_line(7) == FITTED.decode_line(7)
    assert Regression.from_csv(path).transfer_s(10**9, 5, 6) == FITTED.transfer_s(10**9, 0, 1)


def test_a_run_without_fetches_needs_a_bandwidth():
    samples = [s for s in measurements(TRUTH) if not isinstance(s, TransferSample)]
    assert Regression(samples, bandwidth=1e9).transfer_s(10**9, 0, 1) == pytest.approx(1.0)
    with pytest.raises(UserError, match="no samples of decode to fit"):
        Regression([s for s in samples if isinstance(s, PrefillSample)])
    with pytest.raises(UserError, match="holdout=1 must be 2 or more"):
        Regression(samples, holdout=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"samples\.csv:1: .*columns stage, tokens"),
        ("stage,tokens\n", r"samples\.csv:1: .*columns cached, batch, context, bytes, seconds"),
        (HEADER, "holds no samples"),
        (HEADER + "prefill,10,0,,,,1.0\nprefil,10,0,,,,1.0\n", r":3: stage is 'prefil'; it must be one of prefill, decode"),
        (HEADER + "prefill,10,x,,,,1.0\n", ":2: cached is 'x'; it must be a whole number"),
        (HEADER + "prefill,10\n", ":2: cached is ''; it must be a whole number"),
        (HEADER + "prefill,10,10,,,,1.0\n", ":2: cached=10 must be less than tokens=10"),
        (HEADER + "decode,,,-1,5,,1.0\n", ":2: batch is -1; it must be 0 or more"),
        (HEADER + "decode,,,1,5,,nan\n", ":2: seconds is nan; it must be more than 0"),
        (HEADER + "decode,,,1,5,,soon\n", ":2: seconds is 'soon'; it must be a number"),
        (HEADER + "prefill,10,0,,,,1.0\n", r"samples\.csv: there are no samples of decode"),
    ],
)
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, text: str, told: str):
    path = tmp_path / "samples.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=told):
        Regression.from_csv(path)


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_samples(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a CSV file in UTF-8"):
        read_samples(tmp_path / "binary.csv")
