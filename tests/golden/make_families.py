"""Makes families/: a tiny random model of each family as a Hugging Face folder, and the logits transformers computes for it.

Run it in the environment that make_smollm2.py describes (half a minute):

    env/bin/python tests/golden/make_families.py

The models together cover llama3 rope scaling, biases, q/k norms, tied and untied heads, float32, float16 and bfloat16 files,
and shards. Logits are computed in float32 from the weights as stored. Norms, biases and attention are drawn so that
leaving one out, or rotating wrongly, changes logits by far more than rounding does.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

HERE = Path(__file__).parent / "families"
POSITIONS = 40
SIZES = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=128)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
"""With head_dim 8 the four frequencies fall in all three ranges of the scaling: unscaled, smoothed, scaled."""

MODELS = {
    "llama3": (
        LlamaConfig(**SIZES, intermediate_size=32, head_dim=8, rope_parameters=LLAMA3, tie_word_embeddings=True),
        torch.float32,
        None,
    ),
    "mistral": (MistralConfig(**SIZES, intermediate_size=48, head_dim=16, sliding_window=None), torch.float16, None),
    "qwen2": (Qwen2Config(**SIZES, intermediate_size=48), torch.bfloat16, "70KB"),
    "qwen3": (Qwen3Config(**SIZES, intermediate_size=48, head_dim=24), torch.bfloat16, None),
}
"""Family → config, dtype of the file, size of a shard."""


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    for seed, (name, (config, dtype, shard)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter, value in model.named_parameters():
            is_norm = parameter.endswith("norm.weight")
            value.data = 1 + 0.5 * torch.randn_like(value) if is_norm else 0.2 * torch.randn_like(value)
        model.to(dtype).save_pretrained(HERE / name, **({} if shard is None else {"max_shard_size": shard}))

        model = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32).eval()
        tokens = torch.randint(0, config.vocab_size, (2, POSITIONS))
        with torch.no_grad():
            logits = model(tokens).logits
        frequencies = model.model.rotary_emb.inv_freq
        np.savez_compressed(
            HERE / name / "expected.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy(), frequencies=frequencies
        )
        files = {file.name: file.stat().st_size for file in sorted((HERE / name).iterdir())}
        print(name, f"logits up to {logits.abs().max():.1f}", files)


if __name__ == "__main__":
    main()
