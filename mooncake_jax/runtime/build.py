"""Puts a cluster together: devices into meshes, weights onto them, pools, Messenger, Conductor."""

from collections.abc import Callable

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from mooncake_jax.cluster_config import ClusterConfig
from mooncake_jax.engine import DecodeInstance, Detokenizer, PoolWriter, PrefillInstance, stage_meshes
from mooncake_jax.errors import UserError
from mooncake_jax.kvcache import EvictionPolicy
from mooncake_jax.models import ModelConfig, check_mesh, param_targets
from mooncake_jax.runtime.cluster import Cluster, Instances
from mooncake_jax.runtime.promises import PrefixBooks
from mooncake_jax.sched import Conductor, Decision, DecodeSample, FixedRoles, Measured, NoReplication, PrefillSample, Sample
from mooncake_jax.transfer import Endpoint, HostPool, Messenger
from mooncake_jax.types import InstanceId, Role, Span

LoadParams = Callable[[dict[str, jax.ShapeDtypeStruct]], dict[str, Array]]
"""Reads parameters straight into the shardings asked for, e.g. `partial(load_params, checkpoint)`."""


def cluster_meshes(cluster: ClusterConfig, model: ModelConfig, devices: list[jax.Device]) -> dict[InstanceId, list[Mesh]]:
    """Disjoint meshes, in order: prefill instances first. Raises UserError if there are too few devices or heads do not cut."""
    for group in (cluster.prefill, cluster.decode):
        check_mesh(model, group.mesh.tensor, group.mesh.stage)
    if cluster.devices > len(devices):
        raise UserError(
            f"the cluster asks for {cluster.devices} devices ({cluster.prefill.count} prefill × "
            f"{cluster.prefill.mesh.tensor * cluster.prefill.mesh.stage} + {cluster.decode.count} decode × "
            f"{cluster.decode.mesh.tensor}), but only {len(devices)} exist; on CPU raise runtime.cpu_devices"
        )
    meshes, at = {}, 0
    for role, group in ((Role.PREFILL, cluster.prefill), (Role.DECODE, cluster.decode)):
        for index in range(group.count):
            mine = devices[at : at + group.mesh.devices]
            meshes[InstanceId(role, index)] = stage_meshes(mine, group.mesh.tensor, group.mesh.stage)
            at += group.mesh.devices
    return meshes


def build_cluster(
    cluster: ClusterConfig,
    model: ModelConfig,
    load: LoadParams,
    conductor: Conductor,
    messenger: Messenger,
    clock: Callable[[], float],
    *,
    meshes: dict[InstanceId, list[Mesh]] | None = None,
    eviction: Callable[[], EvictionPolicy] | None = None,
    eos_ids: frozenset[int] = frozenset(),
    detokenizer: Callable[[], Detokenizer] | None = None,
    on_decision: Callable[[Decision], None] = lambda decision: None,
    busy: list[Span] | None = None,
    samples: list[Sample] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Cluster:
    """A cluster ready for `warm_up`. Weights are read once for every mesh.

    Raises UserError as `cluster_meshes` and `load` do, and for a Conductor that replicates blocks or switches roles.

    `meshes` (one a stage for each instance) may differ between instances of a role; default `cluster_meshes`.
    `eviction` makes the policy of each host pool; default LRU.
    `busy` receives the intervals in which instances worked, `samples` how long every pass, step and fetch took.
    """
    for name, policy in (("replication", conductor.replication), ("roles", conductor.roles)):
        if not isinstance(policy, NoReplication | FixedRoles):
            raise UserError(f"conductor.{name}={type(policy).__name__} is for the simulator only, not for a live cluster")
    engine, dtype = cluster.engine, np.dtype(cluster.engine.dtype)
    meshes = meshes or cluster_meshes(cluster, model, jax.devices())
    busy, samples = [] if busy is None else busy, [] if samples is None else samples
    weights: dict[InstanceId, list[dict[str, Array]]] = {}
    for id, stages in meshes.items():
        progress(f"loading {model.name} onto {id}")
        per_stage = model.layers // len(stages)
        weights[id] = [
            load(param_targets(model, mesh, dtype, layers=range(i * per_stage, (i + 1) * per_stage)))
            for i, mesh in enumerate(stages)
        ]

    estimator = conductor.estimator
    books: PrefixBooks

    def make_prefill(id: InstanceId) -> PrefillInstance:
        slots = cluster.host_pool.blocks
        try:
            policy = None if eviction is None else eviction()
            pool = HostPool(slots, model.layers, engine.block_size, 2 * model.kv_heads, model.head_dim, dtype, policy)
        except MemoryError as error:
            raise UserError(f"cluster.host_pool.blocks={slots} is more than this machine can hold: {error}") from error
        writer = PoolWriter(pool, lambda key: books.stored(id.index, key), lambda key: books.evicted(id.index, key))

        def on_pass(rows: list[tuple[int, int]], start: float, end: float) -> None:
            new = sum(stop - first for first, stop in rows)
            busy.append(Span(f"prefill {new} tokens of {len(rows)}", start, end, str(id)))
            # the context that a mean new token of the pass saw, as one request would have had it
            context = round(sum(first * (stop - first) for first, stop in rows) / new)
            samples.append(PrefillSample(context + new, context, end - start))
            if isinstance(estimator, Measured):
                estimator.observe_prefill(context + new, context, end - start)

        messenger.register(id, Endpoint(model.layers, 2 * model.kv_heads, model.head_dim, dtype))
        return PrefillInstance(id, model, meshes[id], weights[id], engine, pool, writer, messenger, on_pass)

    def make_decode(id: InstanceId) -> DecodeInstance:
        def on_step(batch: int, context: int, start: float, end: float) -> None:
            busy.append(Span(f"decode {batch}", start, end, str(id)))
            samples.append(DecodeSample(batch, context, end - start))
            if isinstance(estimator, Measured):
                estimator.observe_decode(batch, context, end - start)

        instance = DecodeInstance(id, model, meshes[id][0], weights[id][0], engine, on_step)
        arrivals = instance.stage.arrivals
        messenger.register(id, Endpoint(model.layers, 2 * model.kv_heads, model.head_dim, dtype, arrivals))
        return instance

    def make(id: InstanceId) -> PrefillInstance | DecodeInstance:
        return make_prefill(id) if id.role is Role.PREFILL else make_decode(id)

    prefill = {id.index: make_prefill(id) for id in meshes if id.role is Role.PREFILL}
    books = PrefixBooks([prefill[index].pool.books for index in sorted(prefill)])
    decode = {id.index: make_decode(id) for id in meshes if id.role is Role.DECODE}
    return Cluster(
        cluster,
        Instances(prefill, decode),
        conductor,
        messenger,
        books,
        clock,
        make=make,
        eos_ids=eos_ids,
        detokenizer=detokenizer,
        on_decision=on_decision,
        samples=samples,
    )
