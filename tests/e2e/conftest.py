"""Shared by the tests of whole runs: a cache of compiled programs, and a run to compare with."""

import contextlib

import commands
import jax
import pytest
import runs
import tiny

from xlme_jax.runs import assembly


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Variables by which processes share compiled programs."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@contextlib.contextmanager
def _caching(variables):
    """This process shares them too."""
    options = {
        "jax_compilation_cache_dir": variables["JAX_COMPILATION_CACHE_DIR"],
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def compilation_cache(compiled):
    """Runs in this process compile each program once."""
    with _caching(compiled):
        yield


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, tiny_data, compiled):
    """MODEL_DIR of a run with `runs.SHORT` that nobody disturbed."""
    model_dir = tmp_path_factory.mktemp("undisturbed")
    with _caching(compiled):
        runs.run(model_dir, tiny_data, **runs.SHORT)
    return model_dir


@pytest.fixture
def start(tmp_path, tiny_data, compiled):
    """Starts the command on MODEL_DIR tmp_path/run; what still runs is killed in the end."""
    started = []

    def start(
        model_dir=tmp_path / "run",
        *flags,
        bindings=runs.SHORT,
        log="log",
        variables=compiled,
        **options,
    ):
        flags = [*tiny.flags(model_dir, tiny_data, **bindings), *flags]
        command = commands.Command(flags, model_dir, tmp_path / log, variables=variables, **options)
        started.append(command)
        return command

    yield start
    for command in started:
        command.kill()


@pytest.fixture
def interrupt(monkeypatch):
    """Makes the next run end after so many batches."""

    def after(count):
        made = assembly.make_iterator

        def iterator(*arguments):
            batches = made(*arguments)
            take = type(batches).__next__

            class Ending(type(batches)):
                taken = 0

                def __next__(self):
                    if Ending.taken == count:
                        raise runs.Interrupted
                    Ending.taken += 1
                    return take(self)

            batches.__class__ = Ending
            return batches

        monkeypatch.setattr(assembly, "make_iterator", iterator)
        return lambda: monkeypatch.setattr(assembly, "make_iterator", made)

    return after
