"""The reader of conversations in the JSON format of ShareGPT."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np

from mooncake_jax.errors import UserError
from mooncake_jax.workload.blocks import grown
from mooncake_jax.workload.parse import in_order, shown, unreadable
from mooncake_jax.workload.timing import poisson_times
from mooncake_jax.workload.trace import Trace, TraceRequest

_USER = {"human", "user"}
_MODEL = {"gpt", "chatgpt", "assistant", "model", "bing", "bard"}


def about_tokens(text: str) -> int:
    """A token for every four characters, rounded up: what common tokenizers come to on English text."""
    return -(-len(text) // 4)


def read_sharegpt(path: str | Path, rate: float | int, seed: int = 0, tokens: Callable[[str], int] = about_tokens) -> Trace:
    """Reads a JSON list of `{"conversations": [{"from": ..., "value": ...}, ...]}`; each answer of the model is a request.

    Its prompt is all messages before it, its output the answer; lengths are sums of `tokens` of the messages, without those of
    a chat template. The prompts of a conversation share the blocks (512 tokens) that are full in both; conversations share
    nothing. A user's message without an answer to it, and an answer without tokens or to nothing, is left out and counted.

    The file has no times: arrivals are a Poisson process of `rate` requests a second, each slot taken by the next turn of a
    conversation drawn at random with the number of its turns left as weight. So turns keep their order and all else is
    shuffled, as in the synthetic trace of FAST'25 (Table 2). The same seed gives the same trace.

    Raises UserError, with the line where there is one, or else the place of the conversation, when the file cannot be read, is
    not JSON, holds no request, or a message lacks `from` or `value`.
    """
    ids = count()
    left_out = 0
    turns: list[list[TraceRequest]] = []
    for index, messages in enumerate(_conversations(path)):
        requests, unanswered = _turns(messages, f"c{index:06d}", tokens, ids)
        turns.append(requests)
        left_out += unanswered
    owners = np.repeat(np.arange(len(turns)), [len(requests) for requests in turns])
    shuffled = owners[np.argsort(np.random.PCG64((seed, 1)).random_raw(len(owners)), kind="stable")]
    left = [iter(requests) for requests in turns]
    times = poisson_times(len(owners), rate, seed)
    ordered = [
        TraceRequest(time, turn.input_length, turn.output_length, turn.hash_ids, turn.session)
        for time, turn in zip(times, (next(left[owner]) for owner in shuffled.tolist()), strict=True)
    ]
    return Trace(in_order(ordered, path, "an answer to a message"), left_out=left_out)


def _conversations(path: str | Path) -> list[list[tuple[str, str]]]:
    """(from, value) of every message, by conversation."""
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: the file is not JSON ({error.msg}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: the file is not JSON ({error}).") from error
    if not isinstance(content, list):
        raise UserError(f"{path}: the file must be a JSON list of conversations, but is {shown(content)}.")
    return [_messages(one, f"{path}: conversation {index}") for index, one in enumerate(content)]


def _messages(conversation: object, where: str) -> list[tuple[str, str]]:
    messages = conversation.get("conversations") if isinstance(conversation, dict) else None
    if not isinstance(messages, list):
        raise UserError(f"{where}: it must be an object whose field conversations is a list, but is {shown(conversation)}.")
    for one in messages:
        if not (isinstance(one, dict) and isinstance(one.get("from"), str) and isinstance(one.get("value"), str)):
            raise UserError(f"{where}: every message needs the texts from and value, but one is {shown(one)}.")
    return [(one["from"], one["value"]) for one in messages]


def _turns(
    messages: list[tuple[str, str]], session: str, tokens: Callable[[str], int], ids: Iterator[int]
) -> tuple[list[TraceRequest], int]:
    """The requests of a conversation, at time 0, and how many more were left out."""
    requests, left_out = [], 0
    blocks: list[int] = []
    context, asked = 0, False
    for who, text in messages:
        size = tokens(text)
        if who in _MODEL and context and size:
            requests.append(TraceRequest(0.0, context, size, grown(blocks, context, ids), session))
            asked = False
        elif who in _MODEL:
            left_out += 1
            asked = False
        elif who in _USER:
            left_out += asked
            asked = True
        context += size
    return requests, left_out + asked
