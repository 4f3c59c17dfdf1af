"""Builds a byte-level BPE tokenizer from the vocabulary that lies in a GGUF file."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mooncake_jax.errors import UserError

_CONTROL, _USER_DEFINED = 3, 4
"""Of llama.cpp's token types, those that are matched in the text before anything is split."""

_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS: Mapping[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": _GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2]),
    "llama-bpe": _split("|".join([_CONTRACTIONS, _WORDS, r"\p{N}{1,3}", _OTHERS])),
    "qwen2": _split("|".join([_CONTRACTIONS, _WORDS, r"\p{N}", _OTHERS])),
}
"""How text is cut before merging, by `tokenizer.ggml.pre`. Sources: the tokenizers of GPT-2, SmolLM, Llama 3 and Qwen2 as
transformers builds them; llama.cpp cuts alike."""


def build_byte_level_bpe(fields: Mapping[str, Any], name: str) -> Tokenizer:
    """The tokenizer described by the `tokenizer.ggml.*` fields of the GGUF file `name`.

    Control tokens become special (skipped when decoding), user-defined ones stay text; both are matched before splitting.
    Raises UserError for vocabularies of another kind (SentencePiece, WordPiece) and for unknown pre-tokenizers.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise UserError(f"{name}: tokenizer of kind {kind!r} is not supported; only byte-level BPE ('gpt2') is.")
    if pre not in PRE_TOKENIZERS:
        raise UserError(f"{name}: pre-tokenizer {pre!r} is not supported; supported are {', '.join(PRE_TOKENIZERS)}.")
    tokens, merges = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise UserError(f"{name}: tokenizer.ggml.tokens or tokenizer.ggml.merges is missing from the file.")

    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    # Llama 3 takes a word that is a token as it is, even where the merges would not lead to it.
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    types = fields.get("tokenizer.ggml.token_type", [])
    tokenizer.add_special_tokens(_added(tokens, types, _CONTROL))
    tokenizer.add_tokens(_added(tokens, types, _USER_DEFINED))

    bos = fields.get("tokenizer.ggml.bos_token_id")
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


def _added(tokens: Sequence[str], types: Sequence[int], kind: int) -> list[AddedToken]:
    special = kind == _CONTROL
    return [AddedToken(token, special=special, normalized=False) for token, of in zip(tokens, types) if of == kind]
