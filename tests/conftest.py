"""Settings and fixtures of all tests.

Tests run on one CPU device, where results are bitwise reproducible. XLA_FLAGS cannot change once
JAX has started, so tests of eight devices run in a subprocess (`tiny.run(..., devices=8)`).
"""

import atexit
import contextlib
import gc
import importlib.metadata
import os
import shutil
import sys

import pytest

# Programs are compiled once and run a few times, so compiling with few optimisations saves three
# quarters of the compile time. Subprocesses inherit these settings, so their results are bitwise
# comparable. `XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0 python -m pytest` tests optimised
# programs.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Programs hold no stack traces: a twentieth of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# A worker has a core; threads of BLAS and of torch would wait for each other at full speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# XLA ends at flags that it does not know: those of fusions are gone in 0.11.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)

import hypothesis
import jax
from helpers import tiny

# Python keeps the bytecode of tests and of the package, even where the environment says otherwise:
# without it, each process compiles 600 files, two fifths of the time before the first test.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test asserts a time, however busy the machine.
# `--hypothesis-profile=thorough` draws more examples, for those who change what they test.
for name, count in (("suite", 40), ("thorough", 500)):
    hypothesis.settings.register_profile(
        name,
        max_examples=count,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("suite")

# Folders of long files: these run first, so that no worker is left alone with one at the end.
LONG = (
    "e2e",
    "runs",
    "objectives",
    "huggingface",
    "oracles",
    "model",
    "training",
    "evaluation",
    "ops",
    "tests",
)
CACHE_BYTES = 2**29
# Compiled or loaded programs that a process holds: some hundreds of megabytes.
PROGRAMS = 2_000
_compiled = []


def _count(event, *_, **__):
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


def pytest_configure(config):
    """Shares compiled programs between all processes and with earlier sessions."""
    config.option.loadscopereorder = False  # The order of `LONG`.
    if hasattr(config, "cache") and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = config.cache.mkdir("compiled")
        if sum(file.stat().st_size for file in folder.iterdir()) > CACHE_BYTES:
            shutil.rmtree(folder)  # Most of its programs are out of date.
        settings = {
            "jax_compilation_cache_dir": str(folder),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in settings.items():
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


def pytest_collection_modifyitems(items):
    """Sorts the files by `LONG`."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.parent.name, len(LONG)))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports the tests and their libraries without garbage collection, which would find little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Excludes imported objects from garbage collection, and collects the others more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 50)  # Tracing makes millions of objects: 1 second in 20.


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Ends a worker without freeing its modules and programs one by one, which takes seconds."""
    if hasattr(config, "workerinput"):
        atexit._run_exitfuncs()
        os._exit(0)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Frees compiled programs when there are many; modules share those of single operations."""
    yield
    if len(_compiled) > PROGRAMS:
        _compiled.clear()
        jax.clear_caches()


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """Returns the folder of a prepared data set of random tokens."""
    return tiny.write_tiny_data(tmp_path_factory.mktemp("tiny_data"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Returns a `buckets.Bucket` that this process uses."""
    pytest.importorskip("gcp_storage_emulator", reason="needs the extra test")
    from helpers import buckets

    from xlme_jax.storage.buckets import file_system

    server = buckets.Bucket(tmp_path_factory.mktemp("bucket"))
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in server.variables.items():
            patch.setenv(name, value)
        # Imported here, because it reads some variables when it is imported.
        gcsfs = pytest.importorskip("gcsfs", reason="needs the extra gcs")
        gcsfs.GCSFileSystem.clear_instance_cache()
        file_system.cache_clear()
        yield server
        file_system.cache_clear()
