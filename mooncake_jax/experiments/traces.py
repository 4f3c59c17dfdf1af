"""Which of the published traces are here: an experiment goes on without one that is not."""

from mooncake_jax.errors import UserError
from mooncake_jax.workload import WorkloadConfig, find_trace


def why_missing(workload: WorkloadConfig) -> str | None:
    """The sentence that says how to get the first published trace of the workload that is not here; None if all are."""
    for path in [workload.path, *(workload.mix or [])]:
        try:
            if path is not None:
                find_trace(path)
        except UserError as error:
            return str(error)
    return None
