"""Checkpoints on file systems that do not rename folders, and changes between the two kinds."""

import errno
import itertools
import json
import os
import shutil

import pytest
from helpers import tiny
from orbax.checkpoint import path as orbax_path
from test_checkpoints import record, restored, state_of

from xlme_jax.checkpoints import digests
from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.saved import (
    COMMIT_FILE,
    CheckpointError,
    check_files,
    checkpoint_of,
    saved_steps,
)
from xlme_jax.storage.files import local_folder
from xlme_jax.storage.paths import as_path


def refuse_to_rename_folders(patch):
    """Makes this process's file systems like gcsfuse's flat buckets."""
    for name in ("rename", "replace"):
        allowed = getattr(os, name)

        def refusing(source, target, *, allowed=allowed, **options):
            if os.path.isdir(source):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(source))
            return allowed(source, target, **options)

        patch.setattr(os, name, refusing)


@pytest.fixture
def flat(monkeypatch):
    refuse_to_rename_folders(monkeypatch)


def save(folder, *steps):
    with Checkpoints(folder, keep=2) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_of(step), record(step))


def newest(folder):
    """Returns the step of the state that is restored; checks that it is what was saved."""
    state, found = restored(folder)
    step = int(state.step)
    assert found == record(step)
    assert digests.tree_digests(state) == digests.tree_digests(state_of(step))
    return step


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_marker_completes_a_checkpoint(flat, tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (8, 90, 100):
            checkpoints.save(step, state_of(step), record(step))
            assert not list((tmp_path / "checkpoints").glob("*tmp*"))
    assert names(tmp_path) == ["checkpoints"]
    assert names(tmp_path / "checkpoints") == ["100", "90"]
    assert (tmp_path / "checkpoints" / "100" / COMMIT_FILE).exists()
    assert newest(tmp_path) == 100


def test_a_run_moves_between_the_two_kinds(tmp_path, monkeypatch):
    save(tmp_path, 10)
    with monkeypatch.context() as patch:
        refuse_to_rename_folders(patch)
        assert newest(tmp_path) == 10
        save(tmp_path, 20)
        assert newest(tmp_path) == 20
    assert newest(tmp_path) == 20
    save(tmp_path, 30)
    assert names(tmp_path / "checkpoints") == ["20", "30"]
    with monkeypatch.context() as patch:
        refuse_to_rename_folders(patch)
        assert newest(tmp_path) == 30


DAMAGES = (None, "state", "_CHECKPOINT_METADATA", "run", "sealed")


def without_marker(checkpoint, committed):
    """Turns a checkpoint into an interrupted save, or into one of Orbax before 0.12.3."""
    for marker in checkpoint.rglob(COMMIT_FILE):
        marker.unlink()
    (checkpoint / digests.FILE).unlink()
    file = checkpoint / "_CHECKPOINT_METADATA"
    metadata = json.loads(file.read_bytes())
    assert metadata["commit_timestamp_nsecs"]
    if not committed:
        file.write_text(json.dumps(metadata | {"commit_timestamp_nsecs": None}))


@pytest.mark.parametrize(
    ("damage", "renames"),
    tiny.slow_except(
        [(damage, damage in (None, "state")) for damage in DAMAGES],
        itertools.product(DAMAGES, (True, False)),
    ),
)
def test_an_interrupted_save_is_removed(tmp_path, monkeypatch, renames, damage):
    save(tmp_path, 10, 20)
    half = tmp_path / "checkpoints" / "20"
    without_marker(half, committed=False)
    if damage == "_CHECKPOINT_METADATA":
        (half / damage).write_text("{")
    elif damage == "sealed":
        digests.seal_files(half)
    elif damage:
        shutil.rmtree(half / damage)
    assert saved_steps(half.parent) == [10]
    if not renames:
        refuse_to_rename_folders(monkeypatch)
    assert newest(tmp_path) == 10
    assert names(half.parent) == ["10"]


@pytest.mark.parametrize(
    ("sealed", "renames"),
    tiny.slow_except([(True, False)], itertools.product((True, False), (True, False))),
)
def test_a_checkpoint_of_an_older_orbax_is_used(tmp_path, monkeypatch, renames, sealed):
    save(tmp_path, 10, 20)
    without_marker(tmp_path / "checkpoints" / "20", committed=True)
    if sealed:
        digests.seal_files(tmp_path / "checkpoints" / "20")
    if not renames:
        refuse_to_rename_folders(monkeypatch)
    assert newest(tmp_path) == 20
    save(tmp_path, 30)
    assert names(tmp_path / "checkpoints") == ["20", "30"]
    assert newest(tmp_path) == 30


def test_a_damaged_checkpoint_of_an_older_orbax_is_set_aside(tmp_path):
    save(tmp_path, 10, 20)
    checkpoint = tmp_path / "checkpoints" / "20"
    without_marker(checkpoint, committed=True)
    digests.seal_files(checkpoint)
    (checkpoint / "_CHECKPOINT_METADATA").write_text("{")
    assert newest(tmp_path) == 10
    assert names(tmp_path / "damaged_checkpoints") == ["20"]


def test_a_damaged_checkpoint_is_copied_aside(flat, tmp_path):
    save(tmp_path, 10, 20)
    metadata = tmp_path / "checkpoints" / "20" / "state" / "_METADATA"
    metadata.write_bytes(metadata.read_bytes()[:-1])
    assert newest(tmp_path) == 10
    aside = tmp_path / "damaged_checkpoints" / "20"
    assert "_METADATA" in (aside / "reason.txt").read_text()
    assert (aside / "state" / "_METADATA").exists() and (aside / COMMIT_FILE).exists()
    assert names(tmp_path / "checkpoints") == ["10"]


def test_a_save_that_fails_is_not_taken_for_whole(flat, tmp_path, monkeypatch):
    save(tmp_path, 10)

    async def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(orbax_path.atomicity.CommitFileTemporaryPath, "finalize", full)
        checkpoints = Checkpoints(tmp_path, keep=2)
        checkpoints.save(20, state_of(20), record(20))
        with pytest.raises(CheckpointError, match=r"step 10 is kept.*No space left"):
            checkpoints.wait()
        checkpoints.close()
    half = tmp_path / "checkpoints" / "20"
    assert half.is_dir() and not digests.is_sealed(half)
    assert newest(tmp_path) == 10


@pytest.mark.slow
def test_a_checkpoint_that_is_uploaded_is_complete(server, tmp_path):
    folder = as_path("gs://bucket/uploaded")
    with local_folder(folder) as local:
        save(local, 0)
    checkpoint = checkpoint_of(folder)
    assert checkpoint.name == "0"
    check_files(checkpoint)
    assert newest(folder) == 0
