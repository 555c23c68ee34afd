"""Shared by all tests: a tiny prepared data set.

Tests see the one CPU device that JAX makes by default: there results are bitwise the same from run
to run, and XLA_FLAGS cannot be changed once JAX has started. What needs eight devices runs in a
process of its own (`tiny.run(..., devices=8)`), which several processes need anyway.
"""

import gc
import os
import shutil

import pytest

# Programs here are compiled once and run a few times: most of XLA's optimisations, its newer
# emitters and code in several units cost more than they bring, three quarters of the compiler's
# time. Processes that tests start inherit this, so that their results are the same bit by bit.
# `XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0 python -m pytest` tests the programs that users get.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import tiny

CACHE_BYTES = 2**29


def pytest_configure(config):
    """All processes share compiled programs, also with those of earlier sessions."""
    if hasattr(config, "cache") and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = config.cache.mkdir("compiled")
        if sum(file.stat().st_size for file in folder.iterdir()) > CACHE_BYTES:
            shutil.rmtree(folder)  # Most are of programs that have changed since.
        settings = {
            "jax_compilation_cache_dir": str(folder),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in settings.items():
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


def pytest_collection_finish():
    """What imports have made stays; the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Frees the memory of a module's programs."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """Folder of a prepared data set of random tokens."""
    return tiny.write_tiny_data(tmp_path_factory.mktemp("tiny_data"))
