"""Disaggregated serving says, token for token in float32, what a plain forward over the whole sequence says."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest

from mooncake_jax.engine import stage_meshes
from mooncake_jax.errors import UserError
from mooncake_jax.models import check_mesh
from mooncake_jax.sched import DecodeChoice
from mooncake_jax.types import InstanceId, Role, Tier
from tests.support import MODEL, assert_empty, assert_greedy, cluster, prompt, request, serve

DECODE_TENSOR = (1, 2, 4, 8)


@dataclass
class _Told:
    """Sends every request to the decode instance that the test names in its session."""

    def choose(self, request, view, estimator):
        return DecodeChoice(int(request.session), 0.0)


def _cluster(tensor: int, stages: int, layer_group: int):
    """One prefill instance beside four decode instances of different meshes, all on devices of their own."""
    devices = jax.devices()
    meshes = {InstanceId(Role.PREFILL, 0): stage_meshes(devices[15 : 15 + tensor * stages], tensor, stages)}
    at = 0
    for i, size in enumerate(DECODE_TENSOR):
        meshes[InstanceId(Role.DECODE, i)] = stage_meshes(devices[at : at + size], size, 1)
        at += size
    return cluster(meshes=meshes, choice=_Told(), engine={"layer_group": layer_group})


def _to(decode: int, id: str, tokens):
    from dataclasses import replace

    return replace(request(f"{id}/{decode}", tokens, 6), session=str(decode))


@pytest.mark.parametrize("layer_group", [1, 2, 0])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_tokens_equal_a_plain_forward_on_every_pair_of_meshes(tensor, stages, layer_group):
    live = _cluster(tensor, stages, layer_group)
    targets = range(len(DECODE_TENSOR))
    cold, again, packed = [], [], []
    for d in targets:
        long = prompt(50, seed=d)  # four passes of 16 tokens
        cold += [_to(d, "many-chunks", long), _to(d, "one-chunk", prompt(13, seed=10 + d))]
        again += [_to(d, "again", long), _to(d, "extended", np.concatenate([long, prompt(9, seed=20 + d)]))]
        again += [_to(d, "whole-blocks", long[:48])]
        packed += [_to(d, f"short{i}", prompt(n, seed=100 * i + d)) for i, n in enumerate((3, 5, 8))]
    batches = [[r] for r in cold] + [[r] for r in again] + [packed]
    records, tokens = serve(live, *batches)
    for asked, record, said in zip(cold + again + packed, records, tokens, strict=True):
        assert_greedy(asked.tokens, said)
        reused = sum(record.cached.values())
        kind = asked.id.split("/")[0]
        expected = {"again": 48, "extended": 48, "whole-blocks": 47}.get(kind, 0)
        assert reused == expected, f"{asked.id} reused {record.cached}"
    assert_empty(live)


def test_blocks_read_from_the_host_pool_give_the_same_tokens():
    live = cluster(prefill=(1, 2, 2), decode=(1, 2))
    a, b = prompt(50), prompt(41, seed=1)
    serve(live, [request("a", a), request("b", b)])
    assert_empty(live)
    live.instances.prefill[0].books.clear()
    records, tokens = serve(live, [request("a again", a)], [request("b more", np.concatenate([b, a]))])
    assert records[0].cached == {Tier.HOST: 48}
    assert records[1].cached == {Tier.HOST: 40}
    assert_greedy(a, tokens[0])
    assert_greedy(np.concatenate([b, a]), tokens[1])
    assert_empty(live)


def test_heads_that_a_mesh_does_not_divide_are_refused_with_both_numbers():
    with pytest.raises(UserError, match=r"16 query heads, which tensor=3 "):
        check_mesh(MODEL, 3)
    with pytest.raises(UserError, match=r"8 KV heads, which tensor=16 "):
        check_mesh(MODEL, 16)
    with pytest.raises(UserError, match=r"4 layers, which stage=3 "):
        check_mesh(MODEL, 1, 3)
    with pytest.raises(UserError, match=r"asks for 30 devices .* only 24 exist"):
        cluster(prefill=(3, 8, 1), decode=(3, 2))
