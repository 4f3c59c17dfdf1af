"""How the kernels of a backend run on a CPU: interpreted, with everything found out that a device would hide."""

import contextlib
from collections.abc import Iterator

import jax
from jax.experimental.pallas import tpu as pltpu


@contextlib.contextmanager
def tpu() -> Iterator[None]:
    """TPU kernels traced within run interpreted: races are errors, unwritten memory is NaN, reads out of bounds raise."""
    jax.clear_caches()  # a program traced outside is not one traced within
    params = pltpu.InterpretParams(
        detect_races=True, dma_execution_mode="on_wait", uninitialized_memory="nan", out_of_bounds_reads="raise"
    )
    try:
        with pltpu.force_tpu_interpret_mode(params):
            yield
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter  # no public name tells of races

        races = interpreter.races
        assert races is None or not races.races_found, "the kernel has a race"
    finally:
        pltpu.reset_tpu_interpret_mode_state()
        jax.clear_caches()


IMPLEMENTATIONS = {"reference": contextlib.nullcontext, "xla": contextlib.nullcontext}
"""Implementations under test, and what each must be called within."""
