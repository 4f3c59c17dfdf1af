"""When a request ends and what text it has said, with the semantics of the OpenAI API and vLLM."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_jax.engine import Completion, FinishReason, TokenOutput
from mooncake_jax.types import Request, SamplingParams

EOS = 99


class Pieces:
    """A detokenizer whose tokens are numbers of pieces of text; None is a character that is not whole yet."""

    def __init__(self, pieces: list[str | None]):
        self._pieces = pieces

    def step(self, token: int) -> str | None:
        return self._pieces[token]


def run(pieces: list[str | None], tokens: list[int] | None = None, *, limit: int = 100, detokenize: bool = True, **sampling):
    """Accepts tokens (all the pieces, if none are named) until the end; the outputs."""
    outputs: list[TokenOutput] = []
    request = Request("r", 0.0, 3, limit, sampling=SamplingParams(**sampling))
    completion = Completion(request, frozenset({EOS}), Pieces(pieces) if detokenize else None, outputs.append)
    for i, token in enumerate(range(len(pieces)) if tokens is None else tokens):
        finish = completion.accept(token, -0.5 * i, float(i))
        assert finish is completion.finish is outputs[-1].finish
        if finish is not None:
            break
    assert completion.tokens == [output.token for output in outputs]
    assert completion.times == [output.time for output in outputs]
    return outputs


def said(outputs: list[TokenOutput]) -> str:
    return "".join(output.text for output in outputs)


# --- token rules ----------------------------------------------------------------------------------------------------


def test_every_token_is_streamed_as_it_comes():
    outputs = run(["a", "b", "c"], limit=3)
    assert outputs == [
        TokenOutput(0, 0.0, "a", 0.0, None),
        TokenOutput(1, -0.5, "b", 1.0, None),
        TokenOutput(2, -1.0, "c", 2.0, FinishReason.LENGTH),
    ]


def test_a_limit_of_one_ends_with_the_first_token():
    assert [(output.text, output.finish) for output in run(["a", "b"], limit=1)] == [("a", FinishReason.LENGTH)]


def test_the_end_token_ends_it_and_is_not_text():
    outputs = run(["a"] * 100, [0, 1, EOS, 2])
    assert (said(outputs), outputs[-1].token, outputs[-1].finish) == ("aa", EOS, FinishReason.STOP)


def test_ignore_eos_makes_the_end_token_like_any_other():
    outputs = run(["a"] * 100, [0, EOS, 1], limit=3, ignore_eos=True)
    assert (said(outputs), outputs[-1].finish) == ("aaa", FinishReason.LENGTH)


def test_stop_token_ids_end_it_beside_the_end_token_and_even_when_that_is_ignored():
    for ignore in (False, True):
        outputs = run(["a"] * 100, [0, 5, 1], stop_token_ids=(7, 5), ignore_eos=ignore)
        assert (said(outputs), outputs[-1].finish) == ("a", FinishReason.STOP)
    assert run(["a"] * 100, [0, EOS, 1], stop_token_ids=(7,))[-1].finish is FinishReason.STOP


def test_a_stop_token_at_the_limit_is_a_stop():
    assert run(["a"] * 100, [0, EOS], limit=2)[-1].finish is FinishReason.STOP
    assert run(["a", "END"], limit=2, stop=("END",))[-1].finish is FinishReason.STOP


def test_without_a_detokenizer_there_is_no_text_and_no_stop_string():
    outputs = run(["a", "b"], limit=2, detokenize=False, stop=("a",))
    assert [(output.text, output.finish) for output in outputs] == [("", None), ("", FinishReason.LENGTH)]


# --- stop strings ---------------------------------------------------------------------------------------------------


def test_text_ends_before_a_stop_string_within_a_token():
    outputs = run(["Hello ", "wor. Next", "never"], stop=(". ",))
    assert (said(outputs), len(outputs), outputs[-1].finish) == ("Hello wor", 2, FinishReason.STOP)


def test_a_stop_string_over_several_tokens_is_held_back_until_it_is_whole():
    outputs = run(["say", " <e", "n", "d>", "never"], stop=("<end>",))
    assert [output.text for output in outputs] == ["say", " ", "", ""]
    assert outputs[-1].finish is FinishReason.STOP


def test_what_only_looked_like_a_stop_string_is_said_after_all():
    outputs = run(["a<e", "n", "x<", "y"], limit=4, stop=("<end>",))
    assert [output.text for output in outputs] == ["a", "", "<enx", "<y"]


def test_a_false_start_may_contain_the_true_one():
    assert said(run(["x", "aa", "ab", "never"], stop=("aab",))) == "xa"
    assert said(run(["<", "<", "end>", "never"], stop=("<end>",))) == "<"


@pytest.mark.parametrize(("stops", "text"), [(("d", "bcd"), "a"), (("bcd", "d"), "a"), (("c", "bcd"), "ab")])
def test_with_several_stop_strings_the_text_ends_at_the_earliest(stops, text):
    assert said(run(["a", "bc", "de", "never"], stop=stops)) == text


@pytest.mark.parametrize(("tokens", "limit"), [([0, 1, EOS], 100), ([0, 1], 2)], ids=["stop token", "limit"])
def test_what_is_held_back_is_said_when_it_ends_for_another_reason(tokens, limit):
    outputs = run(["a<", "en"] + ["?"] * 98, tokens, limit=limit, stop=("<end>",))
    assert said(outputs) == "a<en"
    assert outputs[-1].finish is (FinishReason.STOP if limit == 100 else FinishReason.LENGTH)


def test_nothing_is_said_when_the_stop_string_comes_first():
    outputs = run(["STOP", "never"], stop=("STOP",))
    assert (said(outputs), len(outputs)) == ("", 1)


def test_characters_that_are_not_whole_yet_say_nothing_and_hold_nothing_up():
    outputs = run(["a", None, "é", None, "<", None, "end>"], stop=("<end>",))
    assert [output.text for output in outputs] == ["a", "", "é", "", "", "", ""]
    assert outputs[-1].finish is FinishReason.STOP


def expected(pieces: list[str], stops: list[str]) -> list[str]:
    """Text after each token, from the whole text so far and nothing else."""
    out, whole = [], ""
    for piece in pieces:
        whole += piece
        found = [whole.index(stop) for stop in stops if stop in whole]
        if found:
            return [*out, whole[: min(found)]]
        ends = [n for stop in stops for n in range(len(stop)) if whole.endswith(stop[:n])]
        out.append(whole[: len(whole) - max(ends, default=0)])
    out[-1] = whole
    return out


@given(
    st.lists(st.text("ab<", max_size=4), min_size=1, max_size=12),
    st.lists(st.text("ab<", min_size=1, max_size=5), max_size=3),
)
def test_the_stream_is_all_that_can_be_certain_and_never_contains_a_stop_string(pieces, stops):
    outputs = run(pieces, limit=len(pieces), stop=tuple(stops))
    want = expected(pieces, stops)
    assert len(outputs) == len(want)
    for i in range(len(want)):
        assert said(outputs[: i + 1]) == want[i]
    assert not any(stop in said(outputs) for stop in stops)
    stopped = any(stop in "".join(pieces) for stop in stops)
    assert outputs[-1].finish is (FinishReason.STOP if stopped else FinishReason.LENGTH)
