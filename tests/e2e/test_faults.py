"""Kills and full disks: the same command resumes with bitwise equal results.

test_resume.py kills a shorter run and damages its checkpoints; tests/faults/faults.py uses random
moments.
"""

import re
import shutil
from pathlib import Path

import pytest
from helpers import commands, runs, tiny
from helpers.runs import SHORT, STEPS


@pytest.fixture
def model_dir(undisturbed, tmp_path):
    """Returns a run that was killed after the checkpoint of step 16."""
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    for step in (20, STEPS):
        shutil.rmtree(folder / "checkpoints" / str(step))
    return folder


MOMENTS = commands.moments(STEPS)


def kill(command, moment):
    assert command.until_moment(MOMENTS[moment]), command.said()
    assert command.kill() == -9, command.said()  # It was still running.


@pytest.mark.slow
def test_a_run_killed_in_every_phase_ends_with_the_same_bits(undisturbed, tmp_path, start):
    for moment in MOMENTS:
        kill(start(), moment)
    start().finish()
    assert commands.differences(tmp_path / "run", undisturbed) == []


def is_one_line(said):
    """Returns whether the last line is the error, without a traceback."""
    return "Traceback" not in said and "Error: " in said.strip().splitlines()[-1]


LIMITED = """
import resource
import xlme_jax.train as train
from xlme_jax.configuration import command_line
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
command_line.run_app(train.main)
"""


@pytest.mark.slow
def test_failed_save_ends_the_run_and_keeps_the_previous_checkpoint(
    undisturbed, model_dir, tiny_data, start
):
    command = start(python=["-c", LIMITED])
    assert command.end() == 1
    said = command.said()
    assert is_one_line(said), said
    # It is noticed when the next one is due, at the latest.
    assert re.search(r"CheckpointError: .* step 2[04] or before could not be written", said)
    assert "that of step 16 is kept" in said
    runs.run(model_dir, tiny_data, **SHORT)
    assert commands.differences(model_dir, undisturbed) == []


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 4, 40, 400, 1000])
def test_run_resumes_after_a_full_disk(undisturbed, model_dir, tiny_data, start, small_disk, room):
    """`room` is the free space in KiB, which determines the file that does not fit."""
    disk = small_disk("20m")
    folder = shutil.copytree(model_dir, disk / "run")
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(free - room * 1024))
    command = start(folder, drawn=True)
    assert command.end() == 1
    said = command.said()
    assert is_one_line(said), said
    assert str(disk) in said.strip().splitlines()[-1]
    (disk / "filler").unlink()
    runs.run(folder, tiny_data, **SHORT)
    assert commands.differences(folder, undisturbed) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path, tiny_data):
    (tmp_path / "file").write_text("in the way")
    flags = tiny.flags(tmp_path / "file" / "run", tiny_data, **SHORT)
    (done,) = tiny.run_each("train", flags)
    assert done.returncode == 1
    assert is_one_line(done.stderr), done.stderr
    assert str(Path("file") / "run") in done.stderr.strip().splitlines()[-1]
    assert "Starting from scratch" not in done.stdout + done.stderr
