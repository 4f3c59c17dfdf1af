"""Host pools of a live cluster under policies other than LRU."""

import pytest

from mooncake_jax.kvcache import LRU, PGDSF, LeafFirstLRU, LengthAware, block_keys, model_seed
from tests.support import ENGINE, MODEL, assert_empty, assert_greedy, cluster, prompt, request, serve


class Recorded(LRU):
    """LRU that remembers what it was told of blocks that came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[int, int | None, int]] = []

    def insert(self, key: int, parent: int | None, position: int) -> None:
        self.came.append((key, parent, position))
        super().insert(key, parent, position)


def test_each_pool_has_its_own_policy_and_it_hears_of_parents_and_positions():
    made: list[Recorded] = []

    def eviction() -> Recorded:
        made.append(Recorded())
        return made[-1]

    live = cluster(prefill=(2, 1, 1), eviction=eviction)
    tokens = prompt(5 * ENGINE.block_size + 3)
    serve(live, [request("a", tokens)])
    keys = block_keys(tokens, ENGINE.block_size, model_seed(MODEL.identity))
    assert len(made) == 2
    came = [*made[0].came, *made[1].came]
    assert came == list(zip(keys, (None, *keys), range(5)))


@pytest.mark.parametrize("eviction", [LeafFirstLRU, PGDSF, LengthAware])
def test_a_pool_too_small_for_all_prompts_serves_them_under_every_policy(eviction):
    live = cluster(eviction=eviction, blocks=6)
    shared = prompt(16)
    prompts = [[*shared, *prompt(24, seed)] for seed in (1, 2, 3, 1)]
    for tokens in prompts:
        records, [output] = serve(live, [request("a", tokens, 4)])
        assert_greedy(tokens, output)
    assert sum(records[0].cached.values()) >= 16, "the shared prefix is still there"
    assert_empty(live)
