"""Makes a cluster ready: compiles everything, fits the estimator to what was measured on the way."""

from collections.abc import Callable

from mooncake_jax.engine import warm_decode, warm_link, warm_prefill
from mooncake_jax.runtime.cluster import Cluster
from mooncake_jax.sched import DecodeSample, Measured, PrefillSample


def warm_up(
    cluster: Cluster,
    *,
    sampled: bool = True,
    progress: Callable[[str, int, int], None] = lambda what, step, steps: None,
) -> None:
    """Compiles every shape of every instance and of every pair. `sampled` False leaves out the programs for temperature > 0.

    `progress` hears (what, step, steps). A `Measured` estimator is fitted: to the first instance of each role, since all
    instances of a role are alike.
    """
    prefill, decode = list(cluster.instances.prefill.values()), list(cluster.instances.decode.values())
    steps = len(prefill) + len(decode) + len(prefill) * len(decode)
    estimator, done = cluster.conductor.estimator, 0

    def next_step(what: str) -> None:
        nonlocal done
        done += 1
        progress(what, done, steps)

    for instance in prefill:
        next_step(f"compiling {instance.id}")
        timed = isinstance(estimator, Measured) and instance is prefill[0]
        samples = warm_prefill(instance, sampled, timed)
        if timed:
            estimator.fit_prefill([PrefillSample(*sample) for sample in samples])
    for instance in decode:
        next_step(f"compiling {instance.id}")
        timed = isinstance(estimator, Measured) and instance is decode[0]
        samples = warm_decode(instance, sampled, timed)
        if timed:
            estimator.fit_decode([DecodeSample(*sample) for sample in samples])
    for source in prefill:
        for target in decode:
            next_step(f"compiling {source.id} → {target.id}")
            warm_link(source, target)
