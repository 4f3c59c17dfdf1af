"""What a request has said so far: its tokens, text and log-probabilities, and the rules that end it."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mooncake_jax.types import Request


@runtime_checkable
class Detokenizer(Protocol):
    def step(self, token: int) -> str | None:
        """Text that became certain with this token, or None."""
        ...


class FinishReason(enum.StrEnum):
    """OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True)
class TokenOutput:
    """One streamed token. `text` is what became certain with it: stop strings and what may become one are held back."""

    token: int
    logprob: float
    text: str
    time: float
    finish: FinishReason | None


class Completion:
    """Accepts tokens one after another until a rule ends the request."""

    def __init__(
        self,
        request: Request,
        eos_ids: frozenset[int],
        detokenizer: Detokenizer | None,
        emit: Callable[[TokenOutput], None],
    ):
        sampling = request.sampling
        self._limit = request.output_tokens
        self._stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_ids)
        self._stops = sampling.stop
        self._detokenizer, self._emit = detokenizer, emit
        self._held, self._cut = "", False
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.finish: FinishReason | None = None

    def accept(self, token: int, logprob: float, now: float) -> FinishReason | None:
        """Takes the next token; returns why the request has ended, or None if it goes on."""
        self.tokens.append(token)
        self.times.append(now)
        text = ""
        if token in self._stop_ids:
            self.finish = FinishReason.STOP
        else:
            text = self._certain_text(token)
            if self.finish is None and len(self.tokens) >= self._limit:
                self.finish = FinishReason.LENGTH
        if self.finish is not None and not self._cut:
            text, self._held = text + self._held, ""
        self._emit(TokenOutput(token, logprob, text, now, self.finish))
        return self.finish

    def _certain_text(self, token: int) -> str:
        if self._detokenizer is None:
            return ""
        text = self._held + (self._detokenizer.step(token) or "")
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.finish, self._cut, self._held = FinishReason.STOP, True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
