"""Freed memory stays with the process on CPUs, and only there."""

import sys

import jax
import pytest
from helpers import tiny

from xlme_jax.training import host_memory

PROBE = """
import ctypes

SIZE = 2**28
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def left_by_a_block():
    before = resident()
    block = libc.malloc(ctypes.c_size_t(SIZE))
    ctypes.memset(block, 1, SIZE)
    libc.free(block)
    return resident() - before


"""
CALLED = """
from xlme_jax.training import host_memory

assert left_by_a_block() < SIZE / 2
assert host_memory.keep_freed()
assert left_by_a_block() > SIZE / 2
print("kept")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_a_large_block_stays_with_the_process():
    assert "kept" in tiny.run(["-c", PROBE + CALLED])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_a_large_block_stays_with_a_process_started_in_the_environment():
    kept = PROBE + "assert left_by_a_block() > SIZE / 2"
    tiny.run(["-c", kept], variables=host_memory.environment())


@pytest.mark.parametrize("platforms", ["tpu", "cuda,cpu"])
def test_nothing_changes_where_an_accelerator_may_be_used(platforms):
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", platforms)
    try:
        assert not host_memory.keep_freed()
    finally:
        jax.config.update("jax_platforms", before)
