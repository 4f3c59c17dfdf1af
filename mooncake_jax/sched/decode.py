"""Which decode instance a request joins. The paper says only "load balancing" (Algorithm 1, SelectDecodingInstance)."""

from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import Request


class DecodeChoice(NamedTuple):
    """The decode half of a placement: instance, and predicted time between tokens in seconds."""

    decode: int
    tbt: float


@runtime_checkable
class DecodePolicy(Protocol):
    def choose(self, request: Request, view: ClusterView, estimator: Estimator) -> DecodeChoice:
        """Choose among `view.decode`, which is not empty. Changes no books."""
        ...


class LeastTokens:
    """The instance with the least sum of (n + tokens generated so far), ties to the lowest index.

    Where the view tells capacities, instances with room for prompt and output go before those without.
    The predicted TBT is a step of its batch with this request in it; 0 for a request of one output token, which never decodes.
    """

    def choose(self, request: Request, view: ClusterView, estimator: Estimator) -> DecodeChoice:
        tokens = view.decode_tokens.tolist()
        candidates = tokens
        if view.decode_capacity_tokens is not None:
            needed = request.input_tokens + request.output_tokens
            roomy = [held + needed <= room for held, room in zip(tokens, view.decode_capacity_tokens.tolist())]
            if any(roomy):
                candidates = [held if fits else inf for held, fits in zip(tokens, roomy)]
        chosen = candidates.index(min(candidates))
        tbt = 0.0
        if request.output_tokens > 1:
            context = tokens[chosen] + request.input_tokens
            tbt = float(estimator.decode_step_s(int(view.decode_batch[chosen]) + 1, context))
        return DecodeChoice(view.decode[chosen], tbt)
