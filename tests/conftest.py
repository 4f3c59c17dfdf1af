"""Emulated CPU devices, and runtime type checks (jaxtyping + beartype) on every function of the package."""

from pathlib import Path

import pytest
from jaxtyping import install_import_hook

install_import_hook("mooncake_jax", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 24)
jax.config.update("jax_numpy_rank_promotion", "raise")

from mooncake_jax.errors import UserError  # noqa: E402
from mooncake_jax.models import fetch_model  # noqa: E402


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model, downloaded once into the user's cache."""
    try:
        return fetch_model("smollm2-135m-instruct")
    except UserError as error:
        pytest.skip(f"SmolLM2 is not in the cache and cannot be fetched: {error}")
