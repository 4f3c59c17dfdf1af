"""A decision with all that it rested on, as one line of JSON: from such a log a run is decided again, live or simulated."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from mooncake_jax.errors import UserError
from mooncake_jax.sched.conductor import Conductor, Learning
from mooncake_jax.sched.view import ClusterView, InFlight
from mooncake_jax.types import Fetch, Placement, Rejection, Request


@dataclass(frozen=True, eq=False)
class RecordedMatch:
    """The one answer of a prefix index that a decision used. Raises ValueError if asked for other keys."""

    keys: tuple[int, ...]
    blocks: Int64[np.ndarray, "instances"]
    """Leading blocks held, by instance index; 0 for instances that were not live."""

    def match(self, keys: Sequence[int]) -> Int64[np.ndarray, "instances"]:
        if tuple(keys) != self.keys:
            raise ValueError(f"the log holds the match of {len(self.keys)} other keys, not of the {len(keys)} asked for")
        return self.blocks


@dataclass(frozen=True, eq=False)
class Decision:
    """What `Conductor.schedule(request, view, now)` answered.

    A decision read back from JSON has the same numbers to the last bit; its request has lengths and keys but no tokens, and
    its view knows the match of that request only. So `conductor.schedule(d.request, d.view, d.now) == d.outcome`, given
    policies in the state they were in: those that remember (`Random`, `RoundRobin`, `Hysteresis`, `Damping`) must see the whole
    log in order, and for an estimator that learns there is `redecide`.
    """

    request: Request
    view: ClusterView
    now: float
    outcome: Placement | Rejection
    estimator: Mapping[str, Any] | None = None
    """`Conductor.estimator_state()` at the decision."""

    def to_json(self) -> str:
        """One line. Call it before the books behind the view change."""
        request, view = self.request, self.view
        capacity = view.decode_capacity_tokens
        return json.dumps(
            {
                "now": self.now,
                "request": {name: getattr(request, name) for name in _REQUEST_FIELDS},
                "view": {
                    "prefill": view.prefill,
                    "queue_s": view.queue_s.tolist(),
                    "prefix_blocks": view.prefix_blocks(request.keys).tolist(),
                    "decode": view.decode,
                    "decode_tokens": view.decode_tokens.tolist(),
                    "decode_batch": view.decode_batch.tolist(),
                    "decode_capacity_tokens": None if capacity is None else capacity.tolist(),
                    "block_size": view.block_size,
                    "kv_bytes_per_token": view.kv_bytes_per_token,
                    "in_flight": [(one.decode, one.tokens, one.prefilled) for one in view.in_flight()],
                },
                "estimator": self.estimator,
                "placement" if isinstance(self.outcome, Placement) else "rejection": asdict(self.outcome),
            }
        )

    @classmethod
    def from_json(cls, line: str) -> "Decision":
        """Inverse of `to_json`. Raises KeyError or json.JSONDecodeError for a line that is not a decision."""
        entry = json.loads(line)
        request = Request(**{**entry["request"], "keys": tuple(entry["request"]["keys"])})
        return cls(request, _read_view(entry["view"], request.keys), entry["now"], _read_outcome(entry), entry["estimator"])


def redecide(line: str, conductor: Conductor) -> Placement | Rejection:
    """What `conductor` answers to a decision in JSON, its estimator put back to what it then knew.

    Raises UserError if the log is of an estimator that learns and that of `conductor` does not.
    """
    decision = Decision.from_json(line)
    if decision.estimator is not None:
        if not isinstance(conductor.estimator, Learning):
            raise UserError(
                f"the log was made with an estimator that learns, and {type(conductor.estimator).__name__} does not; "
                "decide it again with the estimator it was made with"
            )
        conductor.estimator.restore(decision.estimator)
    return conductor.schedule(decision.request, decision.view, decision.now)


_REQUEST_FIELDS = ("id", "arrival", "input_tokens", "output_tokens", "keys", "deadline", "session")


def _read_view(entry: dict, keys: tuple[int, ...]) -> ClusterView:
    prefill = tuple(entry["prefill"])
    blocks = np.zeros(max(prefill, default=-1) + 1, np.int64)
    blocks[list(prefill)] = entry["prefix_blocks"]
    capacity = entry["decode_capacity_tokens"]
    in_flight = tuple(InFlight(*one) for one in entry["in_flight"])
    return ClusterView(
        prefill=prefill,
        queue_s=np.array(entry["queue_s"], np.float64),
        decode=tuple(entry["decode"]),
        decode_tokens=np.array(entry["decode_tokens"]),
        decode_batch=np.array(entry["decode_batch"], np.int64),
        index=RecordedMatch(keys, blocks),
        block_size=entry["block_size"],
        kv_bytes_per_token=entry["kv_bytes_per_token"],
        decode_capacity_tokens=None if capacity is None else np.array(capacity),
        in_flight=lambda: in_flight,
    )


def _read_outcome(entry: dict) -> Placement | Rejection:
    if "rejection" in entry:
        return Rejection(**entry["rejection"])
    placement = entry["placement"]
    fetch = placement["fetch"]
    return Placement(**{**placement, "fetch": None if fetch is None else Fetch(**fetch)})
