"""Shared by all tests: a tiny prepared data set.

Tests see the one CPU device that JAX makes by default: there results are bitwise the same from run
to run, and XLA_FLAGS cannot be changed once JAX has started. What needs eight devices runs in a
process of its own (`tiny.run(..., devices=8)`), which several processes need anyway.
"""

import gc
import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs here are compiled once and run a few times. The older emitters and one unit of code for
# each program more than halve the time of XLA's compiler, and processes that tests start inherit
# them. `XLA_FLAGS= python -m pytest` tests the programs that users get.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import tiny


def pytest_collection_finish():
    """What imports have made stays; the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def compile_fast(request):
    """Turns off most of XLA's optimisations: compiling costs more than running at these sizes.

    Not for whole runs, which are compared bit by bit with those of other processes.
    """
    jax.config.update("jax_disable_most_optimizations", "e2e" not in request.path.parts)
    yield
    # At once: what a session shares is made before the next module's turn.
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """Folder of a prepared data set of random tokens."""
    return tiny.write_tiny_data(tmp_path_factory.mktemp("tiny_data"))
