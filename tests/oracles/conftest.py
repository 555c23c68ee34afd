"""Shared by the comparisons with other people's code."""

import jax
import pytest


@pytest.fixture
def float64():
    """float64 in JAX for one test: the oracles compare to rounding error."""
    with jax.enable_x64(True):
        yield
