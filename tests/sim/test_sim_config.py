"""What cannot be simulated is refused in one sentence, and what was settled wrongly once stays right."""

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import BlockCache, PrefixIndex
from mooncake_jax.sched import ClosedForm
from mooncake_jax.sim import (
    CoupledConfig,
    CoupledSimulation,
    DiskConfig,
    Failure,
    Pipelined,
    SimClusterConfig,
    SimHostPoolConfig,
    SimPrefillConfig,
    Slow,
    intervals,
    outcome,
)
from mooncake_jax.types import Request


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: SimHostPoolConfig(blocks=-5), r"host_pool\.blocks=-5"),
        (lambda: SimPrefillConfig(pack_tokens=2000, chunk_tokens=1000), r"pack_tokens=2000 is more than chunk_tokens=1000"),
        (
            lambda: SimClusterConfig(loading="serial", prefill=SimPrefillConfig(chunk_tokens=9)),
            r"loading=serial .*chunk_tokens=9",
        ),
        (lambda: SimClusterConfig(coupled=CoupledConfig(), disk=DiskConfig(blocks=9)), "do not apply to coupled instances"),
        (lambda: SimClusterConfig(slow=[Slow("prefill-0"), Slow("prefill-0", 3.0)]), "names an instance twice"),
        (
            lambda: SimClusterConfig(failures=[Failure("decode-1", 6.0, 30.0), Failure("decode-1", 5.0, 2.0)]),
            "decode-1 fails at 6.0 s, when it is dead already",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong, says):
    with pytest.raises(UserError, match=says):
        wrong()


def test_failures_one_after_the_other_are_fine():
    SimClusterConfig(failures=[Failure("decode-1", 5.0, 2.0), Failure("decode-1", 7.0), Failure("decode-0", 6.0)])


def test_a_promised_block_that_has_moved_to_disk_still_has_its_maker():
    index = PrefixIndex(1)
    below = BlockCache(9, index, 0)
    cache = BlockCache(1, index, 0, None, below)
    cache.use((1, 2, 3), "job")
    assert len(cache) == 1
    assert list(cache.makers((1, 2, 3, 4), 0, 4)) == ["job"] * 3
    assert cache.maker(1) == "job"
    assert cache.maker(4) is None


def test_the_conductor_counts_the_fixed_cost_of_every_chunk():
    cost = ClosedForm(prefill_base=0.05, prefill_per_token=0.001, prefill_per_token2=0.0)
    assert Pipelined(cost, 1, 500).prefill_s(2000, 0) == pytest.approx(4 * 0.05 + 2.0)


def test_a_coupled_instance_is_busy_while_it_prefills():
    requests = [Request("a", 0.0, 1000, 1, (1,)), Request("b", 10.0, 1000, 1, (2,))]
    hardware = ClosedForm(prefill_per_token=0.001, prefill_per_token2=0.0)
    simulation = CoupledSimulation(SimClusterConfig(coupled=CoupledConfig(count=1), block_size=1000), hardware, requests)
    result = outcome(requests, simulation.run(), simulation.logs)
    assert intervals.busy(result, simulation.names, 0)["coupled-0"].tolist() == [[0.0, 1.0], [10.0, 11.0]]
