"""Emulated CPU devices, and runtime type checks (jaxtyping + beartype) on every function of the package."""

from jaxtyping import install_import_hook

install_import_hook("mooncake_jax", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 24)
jax.config.update("jax_numpy_rank_promotion", "raise")
