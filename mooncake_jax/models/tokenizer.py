"""Text to token ids and back, chat templates, and the stream that turns ids into text as they come."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import tokenizers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import DecodeStream

from mooncake_jax.errors import UserError
from mooncake_jax.models.byte_level import build_byte_level_bpe
from mooncake_jax.models.config import token_ids
from mooncake_jax.models.gguf import read_fields
from mooncake_jax.models.huggingface import read_json

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with what a checkpoint says about its use."""

    backend: tokenizers.Tokenizer = field(repr=False)
    chat_template: str | None = field(repr=False)
    """Jinja source, or None when the model is no chat model."""
    special: Mapping[str, str]
    """Of `bos_token`, `eos_token`, `unk_token`, `pad_token` those that exist; templates may use them."""
    eos_ids: tuple[int, ...]
    """Tokens that end a generation."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with a leading BOS where the model wants one. Names of special tokens in it are special.

        Raises UserError for text with lone surrogates, which JSON can carry and UTF-8 cannot.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"The text is not valid Unicode: {error}.") from error
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self.backend.decode(list(map(int, ids)), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        now: Callable[[], datetime] = datetime.now,
    ) -> list[int]:
        """Token ids of a conversation: `[{"role": "user", "content": "..."}, ...]`. Raises UserError as `render_chat`."""
        return self.encode(self.render_chat(messages, add_generation_prompt, now), add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        now: Callable[[], datetime] = datetime.now,
    ) -> str:
        """The conversation as the text that the model was trained on, in a sandbox, with what transformers gives a template.

        `now` is the clock of templates that put today's date in.
        Raises UserError when there is no template, or when the template refuses the messages.
        """
        if self.chat_template is None:
            raise UserError("This model has no chat template; give it a plain prompt.")
        try:
            return _compile(self.chat_template).render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                strftime_now=lambda form: now().strftime(form),
                **self.special,
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise UserError(f"The chat template cannot render these messages: {error}") from error

    def stream(self) -> "TokenStream":
        """A fresh incremental detokeniser, for one generation."""
        return TokenStream(self)

    def save(self, folder: Path) -> None:
        """Writes the files from which `from_folder` makes this tokenizer again."""
        self.backend.save(str(folder / "tokenizer.json"))
        config = dict(self.special) | ({} if self.chat_template is None else {"chat_template": self.chat_template})
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(self.eos_ids)}), encoding="utf-8")

    @classmethod
    def from_gguf(cls, path: Path) -> "Tokenizer":
        """Raises UserError for a damaged file or a tokenizer that is no byte-level BPE."""
        fields = read_fields(path)
        backend = build_byte_level_bpe(fields, path.name)
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {key: fields.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
        special = {key: backend.id_to_token(token) for key, token in ids.items() if token is not None}
        eos_ids = token_ids([fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")])
        return cls(backend, fields.get("tokenizer.chat_template"), special, eos_ids)

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """From `tokenizer.json` and, where present, `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json`.

        Raises UserError when `tokenizer.json` is missing or a file cannot be understood.
        """
        backend = _load_backend(folder)
        config = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
        special = {key: _content(config[key]) for key in _SPECIAL if config.get(key)}
        ends = [backend.token_to_id(special["eos_token"])] if "eos_token" in special else []
        for name in ("generation_config.json", "config.json"):
            if (folder / name).is_file():
                ends.extend(token_ids(read_json(folder / name).get("eos_token_id")))
        template = _default_template(config.get("chat_template"))
        if (folder / "chat_template.jinja").is_file():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        return cls(backend, template, special, token_ids(ends))


class TokenStream:
    """Turns token ids into text as they come, holding back the bytes of a character until it is whole."""

    def __init__(self, tokenizer: Tokenizer):
        self._backend = tokenizer.backend
        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str | None:
        """The text that `token` completes, or None if there is none yet."""
        return self._stream.step(self._backend, int(token))


def open_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a checkpoint: a GGUF file, a Hugging Face folder, or a folder written by `orbax.save`."""
    path = Path(path)
    return Tokenizer.from_folder(path) if path.is_dir() else Tokenizer.from_gguf(path)


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    read_json(folder / "tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # The library raises bare Exception, and nothing else, for a file that it cannot understand.
        raise UserError(f"{folder / 'tokenizer.json'} cannot be understood: {error}.") from error


def _content(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token


def _default_template(template: Any) -> str | None:
    """Older files list several named templates; the plain one is called default."""
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Like Jinja's, but without HTML escapes: what the model reads is no web page."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


@functools.lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment.from_string(source)
