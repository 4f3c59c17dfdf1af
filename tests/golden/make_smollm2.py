"""Makes smollm2.npz and smollm2_tokens.json: what Hugging Face transformers computes for SmolLM2-135M-Instruct.

Run it in an environment of its own, so that the project does not depend on torch:

    python3.11 -m venv env
    env/bin/pip install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0 numpy
    env/bin/python tests/golden/make_smollm2.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf

transformers reads and dequantises the GGUF file by its own code and runs its own Llama in float32 on the CPU (some minutes).
Its reader of GGUF tokenizers leaves out that SmolLM2 splits digits before anything else; that step is added here, as the
model's own tokenizer.json has it, and the result is held to a plain byte-pair loop written below.
"""

import inspect
import itertools
import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
import regex
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

HERE = Path(__file__).parent
GREEDY_TOKENS = 24
LOGIT_PROMPTS = (0, 28, 39, 8)
"""Prompts whose logits are kept: chat and plain, short and long. The first two with the whole vocabulary."""

STRINGS = [
    "Hello world",
    " leading and trailing spaces  ",
    "tabs\tand\nnewlines\r\n\n\n  done",
    "In 2024,  1234567 people paid $3.50 (or 12%)",
    "we'd they'll I'm it's WE'RE",
    "def f(x):\n    return x ** 2  # square\n",
    "naïve café, Ångström, ﬁancé, decomposed: e\u0301 a\u030a",
    "数学は楽しい。Ünïcödé Привет мир שלום",
    "emoji: 🦙👩‍💻🇫🇷 ok?",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a" * 70,
    "https://example.org/path?q=1&lang=en#top",
    "",
    "mixed   spaces 12  34 \u00a0nbsp\u3000wide",
]
CHATS = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Good morning"}],
    [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "  Another one,\nplease  "},
    ],
]


def main(gguf: Path) -> None:
    torch.set_num_threads(2)
    tokenizer = load_tokenizer(gguf)
    write_tokens(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    prompts = [encode_prompt(tokenizer, block) for block in (HERE / "prompts.txt").read_text().split("\n%%\n")]
    answers, margins = zip(*[greedy(model, ids) for ids in prompts])
    arrays = {
        "prompts": pad(prompts),
        "lengths": np.array([len(ids) for ids in prompts], np.int32),
        "greedy": np.array(answers, np.int32),
        "margins": np.array(margins, np.float32),
        "logit_prompts": np.array(LOGIT_PROMPTS, np.int32),
    }
    for rank, index in enumerate(LOGIT_PROMPTS):
        with torch.no_grad():
            logits = model(torch.tensor([prompts[index]])).logits[0]
        arrays[f"argmax_{index}"] = logits.argmax(-1).numpy().astype(np.int32)
        arrays[f"logsumexp_{index}"] = logits.logsumexp(-1).numpy()
        if rank < 2:
            arrays[f"last_logits_{index}"] = logits[-1].numpy()
    np.savez_compressed(HERE / "smollm2.npz", **arrays)

    for index in (0, 1, 28):
        print(repr(tokenizer.decode(answers[index])))
    print(f"prompt lengths {sorted(arrays['lengths'].tolist())}")
    print(f"smallest margins {np.sort(arrays['margins'].ravel())[:8]}")


def write_tokens(tokenizer) -> None:
    """Token ids of strings and conversations, and how the patterns of Llama 3 and Qwen2 cut the strings before merging."""
    strings = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)} for text in STRINGS]
    chats = []
    for messages in CHATS:
        for prompted in (True, False):
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=prompted, tokenize=False)
            ids = tokenizer.encode(text, add_special_tokens=False)
            chats.append({"messages": messages, "add_generation_prompt": prompted, "text": text, "ids": ids})
    llama3_regex = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    pieces = {
        "llama-bpe": [regex.findall(llama3_regex, text) for text in STRINGS],
        "qwen2": [regex.findall(PRETOKENIZE_REGEX, unicodedata.normalize("NFC", text)) for text in STRINGS],
    }
    golden = json.dumps({"strings": strings, "chats": chats, "pieces": pieces}, indent=1)
    (HERE / "smollm2_tokens.json").write_text(golden + "\n")


def load_tokenizer(gguf: Path):
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    ranks, vocabulary = merges_and_vocabulary(tokenizer)
    blocks = (HERE / "prompts.txt").read_text().split("\n%%\n")
    for text in [string for string in STRINGS if "<|" not in string] + blocks:
        assert plain_bpe(text, ranks, vocabulary) == tokenizer.encode(text, add_special_tokens=False), text
    return tokenizer


def merges_and_vocabulary(tokenizer) -> tuple[dict, dict]:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return {tuple(pair): rank for rank, pair in enumerate(model["merges"])}, model["vocab"]


def plain_bpe(text: str, ranks: dict, vocabulary: dict) -> list[int]:
    """Byte-level BPE as GPT-2's paper and llama.cpp's `smollm` rule have it: cut at digits, cut by GPT-2's pattern, merge."""
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    letters = bytes_to_unicode()
    ids = []
    for piece in regex.findall(r"\p{N}|[^\p{N}]+", text):
        for word in regex.findall(pattern, piece):
            parts = [letters[byte] for byte in word.encode()]
            while True:
                pairs = [(ranks.get((a, b), float("inf")), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
                rank, i = min(pairs, default=(float("inf"), 0))
                if rank == float("inf"):
                    break
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            ids.extend(vocabulary[part] for part in parts)
    return ids


def encode_prompt(tokenizer, block: str) -> list[int]:
    kind, text = block.rstrip("\n").split("\n", 1)
    if kind == "chat":
        text = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)


def greedy(model, ids: list[int]) -> tuple[list[int], list[float]]:
    """Greedy tokens, going on after the end of the turn, and how far the best logit is above the second at each."""
    tokens, margins, cache, step = [], [], None, ids
    for _ in range(GREEDY_TOKENS):
        with torch.no_grad():
            out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        best = out.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        cache, step = out.past_key_values, tokens[-1:]
    return tokens, margins


def pad(rows: list[list[int]]) -> np.ndarray:
    out = np.full((len(rows), max(map(len, rows))), -1, np.int32)
    for row, ids in zip(out, rows):
        row[: len(ids)] = ids
    return out


if __name__ == "__main__":
    main(Path(sys.argv[1]))
