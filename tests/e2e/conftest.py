"""Shared by the tests of whole runs: a run to compare with, and ways to disturb one."""

import commands
import pytest
import runs
import tiny

from xlme_jax.runs import assembly


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, tiny_data):
    """MODEL_DIR of a run with `runs.SHORT` that nobody disturbed."""
    model_dir = tmp_path_factory.mktemp("undisturbed")
    runs.run(model_dir, tiny_data, **runs.SHORT)
    return model_dir


@pytest.fixture
def start(tmp_path, tiny_data):
    """Starts the command on MODEL_DIR tmp_path/run; what still runs is killed in the end."""
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
