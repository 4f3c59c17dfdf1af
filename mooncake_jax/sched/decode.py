"""Which decode instance a request joins. The paper says only "load balancing" (Algorithm 1, SelectDecodingInstance)."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from mooncake_jax.sched.estimator import Estimator
from mooncake_jax.sched.view import ClusterView
from mooncake_jax.types import Request


@dataclass(frozen=True, slots=True)
class DecodeChoice:
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
        tokens = view.decode_tokens
        if view.decode_capacity_tokens is not None:
            roomy = tokens + (request.input_tokens + request.output_tokens) <= view.decode_capacity_tokens
            if roomy.any():
                tokens = np.where(roomy, tokens, np.inf)
        chosen = int(tokens.argmin())
        tbt = 0.0
        if request.output_tokens > 1:
            context = float(view.decode_tokens[chosen]) + request.input_tokens
            tbt = float(estimator.decode_step_s(int(view.decode_batch[chosen]) + 1, context))
        return DecodeChoice(view.decode[chosen], tbt)
