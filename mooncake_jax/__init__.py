"""KVCache-centric, disaggregated LLM serving in JAX: run it, simulate it, ablate it."""
