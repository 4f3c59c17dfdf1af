"""The twin of a live cluster: equal to the plain simulation where it adds nothing, and by hand where it adds something."""

import numpy as np
import pytest

from mooncake_jax.sched import AcceptAll, ClosedForm, Conductor, KVCacheCentric, LeastTokens
from mooncake_jax.sim import Rates, SimClusterConfig, SimDecodeConfig, SimHostPoolConfig, SimPrefillConfig, Simulation, outcome
from mooncake_jax.sim.twin import Twin
from mooncake_jax.types import SLO, Request

KV = 1000
INSTANT = Rates(node=1e18, load=1e18)


def cluster(prefill: int = 1, decode: int = 1, **options) -> SimClusterConfig:
    return SimClusterConfig(
        prefill=SimPrefillConfig(prefill, **options),
        decode=SimDecodeConfig(decode),
        host_pool=SimHostPoolConfig(50),
        block_size=10,
        first_token="prefill",
    )


def conductor(hardware: ClosedForm) -> Conductor:
    return Conductor(KVCacheCentric(), LeastTokens(), AcceptAll(), hardware, SLO())


def steady(beside: bool, joined: bool) -> float:
    return 1.0


def twin(config: SimClusterConfig, hardware: ClosedForm, requests: list[Request], **how):
    how = {"lookahead": 1, "prefill_pace": steady, "decode_pace": steady} | how
    made = Twin(config, hardware, conductor(hardware), requests, KV, INSTANT, **how)
    return outcome(requests, made.run(), made.logs).columns


def token_s(prefill: float, step: float) -> ClosedForm:
    """A second a token of prompt, or as said; steps that always take the same; transfers that take nothing."""
    return ClosedForm(0.0, prefill, 0.0, step, 0.0, 0.0, 1e18)


@pytest.mark.parametrize("options", [{}, {"chunk_tokens": 64}])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (3, 2)])
def test_without_lookahead_and_with_a_steady_pace_it_is_the_plain_simulation(prefill, decode, options):
    rng = np.random.default_rng(1)
    requests = []
    for i, arrival in enumerate(np.cumsum(rng.exponential(0.3, 150)).tolist()):
        tokens, family = int(rng.integers(1, 300)), int(rng.integers(12))
        keys = tuple(range(1000 * family, 1000 * family + -(-tokens // 10)))
        requests.append(Request(str(i), arrival, tokens, int(rng.integers(1, 20)), keys))
    hardware = ClosedForm(0.01, 1e-3, 1e-6, 0.02, 1e-3, 1e-5, 1e18)
    config = cluster(prefill, decode, **options)
    plain = Simulation(config, hardware, conductor(hardware), requests, KV, INSTANT, certain=False)
    expected = outcome(requests, plain.run(), plain.logs).columns
    got = twin(config, hardware, requests)
    for name in ("prefill", "decode", "computed", "output_tokens", "status"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
    for name in ("ttft", "tbt", "e2e", "finished"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-9, err_msg=name)


def test_a_request_joins_after_the_steps_that_were_dispatched_before_it_came():
    # Prefill of 1 s each. The first request decodes from 1.0 in steps of 0.8: 1.8, 2.6, 3.4, ... The second's KV comes at 2.0,
    # during the step that ends at 2.6; the one until 3.4 is dispatched already, so it joins there and has a token at 4.2.
    requests = [Request("a", 0.0, 10, 20, (1,)), Request("b", 0.5, 10, 2, (2,))]
    hardware = token_s(0.1, 0.8)
    ahead = twin(cluster(), hardware, requests, lookahead=2)
    assert ahead.ttft.tolist() == pytest.approx([1.0, 1.5])
    assert ahead.finished[1] == pytest.approx(4.2)
    assert twin(cluster(), hardware, requests, lookahead=1).finished[1] == pytest.approx(3.4)


def test_an_instance_without_others_to_serve_begins_at_once_whatever_its_lookahead():
    requests = [Request("a", 0.0, 10, 3, (1,)), Request("b", 10.0, 10, 2, (2,))]
    got = twin(cluster(), token_s(0.1, 0.8), requests, lookahead=2)
    assert got.finished.tolist() == pytest.approx([1.0 + 2 * 0.8, 11.0 + 0.8])


def test_what_a_step_does_beside_a_pass_takes_longer():
    # The first decodes from 1.0; the second's prefill works from 1.0 to 2.0, and beside it things go half as fast. Of a step of
    # 0.8 s it has done 0.5 s by then; of steps of 0.4 s the first takes 0.8 s, and the second has done 0.1 s.
    requests = [Request("a", 0.0, 10, 4, (1,)), Request("b", 0.5, 10, 1, (2,))]
    got = twin(cluster(), token_s(0.1, 0.8), requests, decode_sharing=2.0)
    assert got.finished[0] == pytest.approx(2.3 + 0.8 + 0.8)
    got = twin(cluster(), token_s(0.1, 0.4), requests, decode_sharing=2.0)
    assert got.finished[0] == pytest.approx(1.0 + 0.8 + 0.5 + 0.4)


def test_a_prefill_beside_decoding_and_a_step_that_is_joined_take_their_own_pace():
    requests = [Request("a", 0.0, 10, 4, (1,)), Request("b", 1.5, 10, 1, (2,))]
    got = twin(
        cluster(),
        token_s(0.1, 0.8),
        requests,
        prefill_pace=lambda beside, joined: 3.0 if beside else 1.0,
        decode_pace=lambda beside, joined: 1.5 if joined else 1.0,
    )
    assert got.ttft.tolist() == pytest.approx([1.0, 3.0])
    assert got.finished[0] == pytest.approx(1.0 + 1.2 + 0.8 + 0.8)


def test_prompts_that_share_a_pass_cost_what_their_tokens_together_cost():
    # Three come while another computes; at 0.5 s a pass and 0.1 s a token the three of 10 tokens take 3.5 s, not 4.5.
    requests = [
        Request("a", 0.0, 10, 1, (1,)),
        *(Request(name, 0.1, 10, 1, (key,)) for name, key in (("b", 2), ("c", 3), ("d", 4))),
    ]
    got = twin(cluster(pack_tokens=30, chunk_tokens=30), ClosedForm(0.5, 0.1, 0.0, 0.8, 0.0, 0.0, 1e18), requests)
    assert got.finished.tolist() == pytest.approx([1.5, 5.0, 5.0, 5.0])
