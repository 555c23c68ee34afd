"""Compiling costs more than running at these sizes."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def compile_fast():
    """Turns off most of XLA's optimisations, which is half of the compile time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
