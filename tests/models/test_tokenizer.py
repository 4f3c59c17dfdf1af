"""Tokenizer: ids of transformers, its chat rendering, streams that never break a character, and refusals."""

import json
import random
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.models import Tokenizer, open_tokenizer
from mooncake_jax.models.byte_level import PRE_TOKENIZERS, build_byte_level_bpe
from mooncake_jax.models.gguf import read_fields

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/smollm2_tokens.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["strings"], ids=lambda case: repr(case["text"][:20]))
def test_ids_are_those_of_transformers_and_decode_to_the_text(smollm2_tokenizer: Tokenizer, case: dict) -> None:
    assert smollm2_tokenizer.encode(case["text"]) == case["ids"]
    assert smollm2_tokenizer.decode(case["ids"], skip_special_tokens=False) == case["text"]


@pytest.mark.parametrize("case", GOLDEN["chats"], ids=lambda case: f"{len(case['messages'])}-{case['add_generation_prompt']}")
def test_chats_are_rendered_as_transformers_does(smollm2_tokenizer: Tokenizer, case: dict) -> None:
    messages, prompted = case["messages"], case["add_generation_prompt"]
    assert smollm2_tokenizer.render_chat(messages, prompted) == case["text"]
    assert smollm2_tokenizer.apply_chat_template(messages, prompted) == case["ids"]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_text_is_cut_as_by_transformers(pre: str) -> None:
    for case, pieces in zip(GOLDEN["strings"], GOLDEN["pieces"][pre], strict=True):
        text = "".join(pieces)  # normalised, for qwen2
        spans = [span for _, span in PRE_TOKENIZERS[pre].pre_tokenize_str(text)]
        assert [text[start:end] for start, end in spans] == pieces, case["text"]


def test_special_tokens_are_skipped_when_decoding_and_eos_is_known(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode("<|im_start|>user\nhi<|im_end|>")) == "user\nhi"
    assert smollm2_tokenizer.eos_ids == (2,)
    assert smollm2_tokenizer.special["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize("text", ["naïve 🦙👩‍💻🇫🇷 数学は楽しい", "plain words only", "한국어와 ελληνικά — «quotes»"])
def test_a_stream_gives_the_text_in_whole_characters(smollm2_tokenizer: Tokenizer, text: str) -> None:
    stream = smollm2_tokenizer.stream()
    pieces = [stream.step(token) for token in smollm2_tokenizer.encode(text)]
    assert "".join(piece for piece in pieces if piece is not None) == text
    assert not any(piece is not None and "\ufffd" in piece for piece in pieces)


def test_a_stream_of_any_tokens_is_a_beginning_of_their_text(smollm2_tokenizer: Tokenizer) -> None:
    draw = random.Random(0)
    for _ in range(300):
        ids = [draw.choice([draw.randrange(300), draw.randrange(49152)]) for _ in range(draw.randrange(1, 40))]
        stream = smollm2_tokenizer.stream()
        text = "".join(stream.step(token) or "" for token in ids)
        text.encode()
        assert smollm2_tokenizer.decode(ids).startswith(text)


def test_two_streams_do_not_mix(smollm2_tokenizer: Tokenizer) -> None:
    one, two = smollm2_tokenizer.stream(), smollm2_tokenizer.stream()
    ids = smollm2_tokenizer.encode("🦙 llama")
    for token in ids[:2]:
        assert one.step(token) is None
    assert two.step(smollm2_tokenizer.encode("dog")[0]) == "dog"
    assert "".join(one.step(token) or "" for token in ids[2:]) == "🦙 llama"


@pytest.fixture(scope="session")
def saved(smollm2_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    smollm2_tokenizer.save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A Hugging Face folder with the tokenizer of SmolLM2, to be changed."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def set_config(folder: Path, **change: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def test_a_folder_gives_back_what_was_saved(folder: Path, smollm2_tokenizer: Tokenizer) -> None:
    again = open_tokenizer(folder)
    for case in GOLDEN["strings"]:
        assert again.encode(case["text"]) == case["ids"]
    assert again.chat_template == smollm2_tokenizer.chat_template
    assert (again.special, again.eos_ids) == (smollm2_tokenizer.special, smollm2_tokenizer.eos_ids)


def test_where_a_folder_may_keep_its_chat_template(folder: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    set_config(folder, chat_template=[{"name": "tool_use", "template": "no"}, {"name": "default", "template": "listed"}])
    assert open_tokenizer(folder).render_chat(messages) == "listed"
    (folder / "chat_template.jinja").write_text("from a file")
    assert open_tokenizer(folder).render_chat(messages) == "from a file"


def test_special_tokens_may_be_spelled_as_objects_and_ends_may_be_many(folder: Path) -> None:
    set_config(folder, eos_token={"content": "<|endoftext|>", "lstrip": False})
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    tokenizer = open_tokenizer(folder)
    assert tokenizer.special["eos_token"] == "<|endoftext|>"
    assert tokenizer.eos_ids == (0, 2)


def test_what_transformers_gives_a_template(folder: Path) -> None:
    template = """{{ bos_token }}
    {%- for message in messages %}
        {% if loop.index > 2 %}
            {% break %}
        {% endif %}
{{ message | tojson }}
    {% endfor %}
{{ strftime_now("%d %b %Y") }}{{ eos_token }}"""
    (folder / "chat_template.jinja").write_text(template)
    messages = [{"role": "user", "content": "<é>"}] * 3
    text = open_tokenizer(folder).render_chat(messages, now=lambda: datetime(2024, 7, 26))
    line = '{"role": "user", "content": "<é>"}\n'
    assert text == f"<|im_start|>{line}{line}26 Jul 2024<|im_end|>"


def test_a_template_may_refuse_and_may_not_escape(folder: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for template, says in [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[0]['content'] + 3 }}", "cannot render"),
        ("{% if %}", "cannot render"),
    ]:
        (folder / "chat_template.jinja").write_text(template)
        with pytest.raises(UserError, match=says):
            open_tokenizer(folder).render_chat(messages)


def test_a_model_without_a_chat_template(folder: Path) -> None:
    set_config(folder, chat_template=None)
    with pytest.raises(UserError, match="no chat template"):
        open_tokenizer(folder).apply_chat_template([{"role": "user", "content": "hi"}])


def test_damaged_and_missing_tokenizer_files(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be understood"):
        open_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json is not valid JSON"):
        open_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        open_tokenizer(folder)
    with pytest.raises(UserError, match="No GGUF file"):
        open_tokenizer(tmp_path / "nowhere.gguf")


def test_text_that_is_no_unicode(smollm2_tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="not valid Unicode"):
        smollm2_tokenizer.encode("\ud800")


def test_gguf_tokenizers_of_other_kinds_are_refused(smollm2: Path) -> None:
    fields = read_fields(smollm2)
    for change, says in [
        ({"tokenizer.ggml.model": "llama"}, "'llama' is not supported"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken' is not supported"),
        ({"tokenizer.ggml.merges": None}, "missing"),
    ]:
        with pytest.raises(UserError, match=says):
            build_byte_level_bpe({**fields, **change}, "model.gguf")


def test_a_gguf_tokenizer_that_wants_a_bos_gets_one(smollm2: Path, smollm2_tokenizer: Tokenizer) -> None:
    backend = build_byte_level_bpe({**read_fields(smollm2), "tokenizer.ggml.add_bos_token": True}, "model.gguf")
    assert backend.encode("hi").ids == [1, *smollm2_tokenizer.encode("hi")]
    assert backend.encode("hi", add_special_tokens=False).ids == smollm2_tokenizer.encode("hi")
