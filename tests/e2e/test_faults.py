"""Kills, damage and full disks: the same command resumes with bitwise equal results.

Each test uses one moment; tests/faults/faults.py uses random moments.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
from helpers import commands, runs, tiny
from helpers.runs import SHORT, STEPS

from xlme_jax.checkpoints.saved import CheckpointError


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


def test_a_run_killed_while_it_saves_ends_with_the_same_bits(
    undisturbed, tmp_path, tiny_data, start
):
    kill(start(), "saving")
    assert commands.newest(tmp_path / "run") != STEPS
    runs.run(tmp_path / "run", tiny_data, **SHORT)
    assert commands.differences(tmp_path / "run", undisturbed) == []


@pytest.mark.slow
def test_a_run_killed_in_every_phase_ends_with_the_same_bits(undisturbed, tmp_path, start):
    for moment in MOMENTS:
        kill(start(), moment)
    start().finish()
    assert commands.differences(tmp_path / "run", undisturbed) == []


def test_leftovers_of_kills_are_harmless(undisturbed, model_dir, tiny_data):
    checkpoints = model_dir / "checkpoints"
    # Half a save: under another name, without what is written last.
    half = shutil.copytree(checkpoints / "16", checkpoints / "20.orbax-checkpoint-tmp")
    (half / "_CHECKPOINT_METADATA").unlink()
    shutil.rmtree(half / "state" / "d")
    # An old checkpoint that was being deleted.
    (checkpoints / "4" / "files.json").unlink()
    shutil.rmtree(checkpoints / "4" / "state" / "d")
    # The newest one saved, and its files not all digested.
    (checkpoints / "16" / "files.json").rename(checkpoints / "16" / "files.json.tmp")
    os.truncate(checkpoints / "16" / "files.json.tmp", 100)
    runs.run(model_dir, tiny_data, **SHORT)
    assert commands.differences(model_dir, undisturbed) == []


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def largest_file(checkpoint):
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def test_damaged_checkpoints_are_set_aside_and_nothing_is_lost_but_time(
    undisturbed, model_dir, tiny_data, caplog
):
    # One that its files give away, and one that only its arrays can.
    flip(largest_file(model_dir / "checkpoints" / "16"))
    (model_dir / "checkpoints" / "12" / "files.json").unlink()
    flip(largest_file(model_dir / "checkpoints" / "12" / "state" / "d"))
    with caplog.at_level("INFO"):
        runs.run(model_dir, tiny_data, **SHORT)
    assert "Resuming from the checkpoint of step 10" in caplog.text
    reasons = (model_dir / "damaged_checkpoints" / step / "reason.txt" for step in ("16", "12"))
    expected = ("is not what was written (SHA-256 differs)", "it cannot be read")
    for reason, what in zip(reasons, expected):
        assert what in reason.read_text()
    assert commands.differences(model_dir, undisturbed) == ["left over: damaged_checkpoints"]


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(model_dir, tiny_data):
    for checkpoint in (model_dir / "checkpoints").iterdir():
        flip(largest_file(checkpoint))
    with pytest.raises(CheckpointError, match=r"(?s)All checkpoints of .* are damaged .*step 16: "):
        runs.run(model_dir, tiny_data, **SHORT)
    before = content(model_dir)
    with pytest.raises(CheckpointError, match=r"All checkpoints of .* are damaged"):
        runs.run(model_dir, tiny_data, **SHORT)
    assert content(model_dir) == before
    assert len(commands.lines(model_dir)) > 3


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
    command = start(folder)
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
