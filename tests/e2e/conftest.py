"""Fixtures for tests of whole runs: a reference run and ways to interrupt one."""

import subprocess

import pytest
from helpers import commands, runs, tiny

from xlme_jax.runs import assembly


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR of an uninterrupted run with `runs.SHORT`."""
    model_dir = tmp_path_factory.mktemp("undisturbed")
    runs.run(model_dir, tiny_data, **runs.SHORT)
    return model_dir


@pytest.fixture(scope="session")
def on_disk(tmp_path_factory, tiny_data):
    """Returns MODEL_DIR of an uninterrupted run with `runs.STORED` on a disk."""
    model_dir = tmp_path_factory.mktemp("disk")
    runs.run(model_dir, tiny_data, **runs.STORED)
    return model_dir


@pytest.fixture
def faultless(bucket):
    """Ends faults that a test has injected into the module's bucket."""
    yield
    bucket.inject()


@pytest.fixture
def start(tmp_path, tiny_data):
    """Returns a function that starts the command in tmp_path/run; kills it at the end."""
    started = []

    def start(
        model_dir=tmp_path / "run",
        *flags,
        bindings=runs.SHORT,
        log="log",
        variables=None,
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
    """Returns a function that makes the next run end after a number of batches."""

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


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a file system of a given number of bytes."""
    mounted = []

    def mount(size):
        folder = tmp_path / "disk"
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root can mount a small disk")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)
