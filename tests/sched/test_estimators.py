"""Estimators: the published coefficients, the fit to samples, the correction while running."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_jax.errors import UserError
from mooncake_jax.sched import ClosedForm, DecodeSample, Estimator, HardwareModel, Measured, PrefillSample, TransferSample
from mooncake_jax.sched.fit import fit_nonnegative


def prefill_samples(truth: ClosedForm, lengths=(64, 256, 1024, 4096), shares=(0.0, 0.5)) -> list[PrefillSample]:
    cases = [(n, int(n * share)) for n in lengths for share in shares]
    return [PrefillSample(n, p, truth.prefill_s(n, p)) for n, p in cases]


def test_the_default_coefficients_give_the_papers_times():
    # FAST Fig 14, uncached bars (LLaMA3-70B on 8xA800), within the 1.5 % of the fit; mooncake.md 3.19.
    estimator = ClosedForm()
    assert estimator.prefill_s(128 * 1024, 0) == pytest.approx(1.1461e-4 * 131072 + 7.192e-10 * 131072**2, rel=1e-12)
    assert estimator.decode_step_s(1, 8192) == pytest.approx(0.02629 + 3.445e-8 * 8192, rel=1e-12)
    assert estimator.transfer_s(327_680 * 1000, 0, 1) == pytest.approx(327_680_000 / 87e9, rel=1e-12)


@pytest.mark.parametrize("estimator", [ClosedForm(), Measured()])
def test_arrays_are_estimated_element_by_element(estimator: Estimator):
    assert isinstance(estimator, Estimator)
    cached, dst, nbytes = np.array([0, 100, 999]), np.array([0, 1, 5]), np.array([0, 10**6, 10**9])
    assert estimator.prefill_s(1000, cached).tolist() == [estimator.prefill_s(1000, int(p)) for p in cached]
    assert estimator.decode_step_s(cached, cached).tolist() == [estimator.decode_step_s(int(p), int(p)) for p in cached]
    assert estimator.transfer_s(nbytes, 2, dst).tolist() == [
        estimator.transfer_s(int(b), 2, int(d)) for b, d in zip(nbytes, dst)
    ]


def test_coefficients_out_of_range_are_refused_by_name():
    with pytest.raises(UserError, match="prefill_per_token of the closed-form cost model is -1"):
        ClosedForm(prefill_per_token=-1)
    with pytest.raises(UserError, match="bandwidth of the closed-form cost model is 0"):
        ClosedForm(bandwidth=0)
    with pytest.raises(UserError, match="latency of the closed-form cost model is inf"):
        ClosedForm(latency=math.inf)
    with pytest.raises(UserError, match=r"estimator\.smoothing is 0"):
        Measured(smoothing=0)
    with pytest.raises(UserError, match=r"estimator\.bound is 0\.5"):
        Measured(bound=0.5)


coefficient = st.just(0.0) | st.floats(1e-3, 10)


@settings(max_examples=60, deadline=None)
@given(coefficient, coefficient, coefficient)
def test_a_fit_of_exact_samples_finds_the_coefficients(base: float, linear: float, quadratic: float):
    truth = ClosedForm(prefill_base=base, prefill_per_token=linear * 1e-4, prefill_per_token2=quadratic * 1e-9)
    if base == linear == quadratic == 0:
        return
    estimator = Measured()
    estimator.fit_prefill(prefill_samples(truth, lengths=(16, 256, 4096, 65536)))
    for n, p in ((10, 0), (3000, 1500), (120_000, 5)):
        assert estimator.prefill_s(n, p) == pytest.approx(truth.prefill_s(n, p), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_no_other_nonnegative_coefficients_fit_better(seed: int):
    rng = np.random.default_rng(seed)
    columns, seconds = rng.normal(size=(12, 3)), rng.uniform(0.1, 2, 12)

    def error(x: np.ndarray) -> float:
        return float(np.square(columns @ x / seconds - 1).sum())

    best = fit_nonnegative(columns, seconds)
    assert (best >= 0).all()
    # Karush-Kuhn-Tucker: the gradient vanishes on the support and does not point down off it.
    gradient = 2 * (columns / seconds[:, None]).T @ (columns @ best / seconds - 1)
    assert (np.abs(gradient[best > 0]) < 1e-8).all()
    assert (gradient > -1e-8).all()
    assert all(error(best) <= error(np.abs(best + rng.normal(size=3) * 0.1)) + 1e-12 for _ in range(20))


def test_noisy_samples_never_give_negative_coefficients():
    rng = np.random.default_rng(1)
    truth = ClosedForm(prefill_per_token=1e-4, prefill_per_token2=0)
    samples = [PrefillSample(s.tokens, s.cached, s.seconds * rng.uniform(0.9, 1.1)) for s in prefill_samples(truth)]
    estimator = Measured()
    estimator.fit_prefill(samples)
    fitted = estimator.coefficients
    assert min(fitted.prefill_base, fitted.prefill_per_token, fitted.prefill_per_token2) >= 0
    assert estimator.prefill_s(2000, 0) == pytest.approx(0.2, rel=0.15)


def test_one_sample_gives_the_model_that_is_linear_in_tokens():
    estimator = Measured()
    estimator.fit_prefill([PrefillSample(1000, 0, 2.0)])
    assert estimator.prefill_s(500, 0) == pytest.approx(1.0)


def test_decode_and_links_are_fitted_too():
    estimator = Measured()
    truth = ClosedForm(decode_base=0.01, decode_per_request=1e-3, decode_per_context_token=1e-6)
    estimator.fit_decode([DecodeSample(b, c * b, truth.decode_step_s(b, c * b)) for b in (1, 4, 16) for c in (64, 512)])
    assert estimator.decode_step_s(8, 5000) == pytest.approx(truth.decode_step_s(8, 5000))
    fast, slow = ClosedForm(bandwidth=1e9, latency=1e-3), ClosedForm(bandwidth=1e8, latency=2e-3)
    estimator.fit_transfer(
        [
            TransferSample(nbytes, src, dst, link.transfer_s(nbytes, src, dst))
            for nbytes in (10**5, 10**7)
            for src, dst, link in ((0, 1, fast), (1, 2, slow))
        ]
    )
    assert estimator.transfer_s(10**6, 0, 1) == pytest.approx(0.002)
    assert estimator.transfer_s(10**6, 1, 2) == pytest.approx(0.012)
    assert 0.002 < estimator.transfer_s(10**6, 7, 40) < 0.012


def test_unusable_samples_are_refused():
    with pytest.raises(ValueError, match="no samples"):
        Measured().fit_prefill([])
    with pytest.raises(ValueError, match=r"positive and finite, got \[0\.0\]"):
        Measured().fit_decode([DecodeSample(1, 1, 0.0), DecodeSample(1, 1, 1.0)])


def test_observations_pull_the_estimates_to_what_happens_and_the_error_falls():
    estimator, truth = Measured(smoothing=0.2), ClosedForm()
    for i in range(60):
        estimator.observe_prefill(1000 + i, 10, 1.6 * truth.prefill_s(1000 + i, 10))
        estimator.observe_decode(4, 4000 + i, 0.7 * truth.decode_step_s(4, 4000 + i))
        estimator.observe_transfer(10**8, 0, 3, 3 * truth.transfer_s(10**8, 0, 3))
        if i == 0:
            first = estimator.relative_error
    assert estimator.prefill_s(5000, 0) == pytest.approx(1.6 * truth.prefill_s(5000, 0), rel=1e-3)
    assert estimator.decode_step_s(1, 10) == pytest.approx(0.7 * truth.decode_step_s(1, 10), rel=1e-3)
    assert estimator.transfer_s(10**8, 0, 3) == pytest.approx(3 * truth.transfer_s(10**8, 0, 3), rel=1e-3)
    assert estimator.transfer_s(10**8, 3, 0) == truth.transfer_s(10**8, 3, 0)
    last = estimator.relative_error
    assert first.prefill == pytest.approx(0.375)
    assert max(last.prefill, last.decode, last.transfer) < 1e-3


def test_one_hiccup_moves_an_estimate_only_so_far():
    estimator = Measured(smoothing=0.1, bound=4)
    before = estimator.prefill_s(1000, 0)
    estimator.observe_prefill(1000, 0, 1e6)
    assert estimator.prefill_s(1000, 0) == pytest.approx(1.3 * before)
    for _ in range(200):
        estimator.observe_prefill(1000, 0, 1e6)
    assert estimator.prefill_s(1000, 0) == pytest.approx(4 * before)


def test_what_took_no_time_tells_nothing_and_negative_time_is_refused():
    estimator = Measured()
    estimator.observe_transfer(0, 0, 1, 0.0)
    assert estimator.relative_error.transfer is None
    assert estimator.transfer_s(87 * 10**9, 0, 1) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="cannot be negative"):
        estimator.observe_decode(1, 1, -1.0)


def test_a_new_fit_drops_the_correction_of_the_old_one():
    estimator, truth = Measured(), ClosedForm(prefill_base=0.1)
    estimator.observe_prefill(1000, 0, 5.0)
    estimator.fit_prefill(prefill_samples(truth))
    assert estimator.prefill_s(777, 7) == pytest.approx(truth.prefill_s(777, 7))


def lived(seed: int) -> Measured:
    """An estimator with fits, corrections and links of every kind behind it."""
    rng = np.random.default_rng(seed)
    estimator = Measured(ClosedForm(decode_per_request=1e-3, latency=1e-4), smoothing=0.3, bound=3)
    estimator.fit_prefill(prefill_samples(ClosedForm(prefill_base=0.1)))
    estimator.fit_transfer([TransferSample(b, 0, 5, 1e-3 + b / 3e9) for b in (10**5, 10**8)])
    for _ in range(20):
        estimator.observe_prefill(int(rng.integers(10, 1000)), 3, float(rng.uniform(0.05, 0.5)))
        estimator.observe_decode(4, int(rng.integers(10, 1000)), float(rng.uniform(0.01, 0.1)))
        estimator.observe_transfer(10**8, int(rng.integers(9)), int(rng.integers(9)), float(rng.uniform(0.01, 0.1)))
    return estimator


def test_a_restored_estimator_answers_and_learns_bit_for_bit_like_the_one_it_was_taken_from():
    original, restored = lived(1), Measured(smoothing=1.0)
    restored.restore(json.loads(json.dumps(original.state())))
    for round in range(3):
        assert restored.state() == original.state()
        for i in range(12):
            assert restored.prefill_s(1000 + i, i) == original.prefill_s(1000 + i, i)
            assert restored.decode_step_s(i, 100 * i) == original.decode_step_s(i, 100 * i)
            assert restored.transfer_s(10**7, i, 11 - i) == original.transfer_s(10**7, i, 11 - i)
        for estimator in (original, restored):
            estimator.observe_prefill(500, 3, 0.2 + round)
            estimator.observe_decode(4, 500, 0.2 + round)
            estimator.observe_transfer(10**7, 2, 20, 0.2 + round)


def test_a_state_does_not_change_with_the_estimator():
    estimator = lived(2)
    before = json.dumps(estimator.state())
    state = estimator.state()
    estimator.observe_prefill(100, 0, 9.0)
    estimator.observe_transfer(10**8, 0, 5, 9.0)
    assert json.dumps(state) == before != json.dumps(estimator.state())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 512), st.integers(0, 10**7))
def test_decode_steps_are_exactly_their_line(batch: int, context: int):
    for estimator in (ClosedForm(), ClosedForm(decode_base=0, decode_per_request=1e-3), lived(0)):
        assert isinstance(estimator, HardwareModel)
        line = estimator.decode_line(batch)
        assert estimator.decode_step_s(batch, context) == line.seconds + line.seconds_per_token * context
