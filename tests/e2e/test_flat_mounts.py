"""Runs on a FUSE mount that does not rename folders, as gcsfuse's mounts of flat buckets."""

import functools
import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import commands, runs, tiny

from xlme_jax.checkpoints.saved import COMMIT_FILE

try:
    import mfusepy  # noqa: F401
except (ImportError, OSError) as error:  # OSError: libfuse is missing.
    pytest.skip(f"needs mfusepy and libfuse: {error}", allow_module_level=True)

pytestmark = pytest.mark.slow

SERVER = Path(tiny.__file__).with_name("flat_mount.py")


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    """Returns the folder of a mount."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not shutil.which("fusermount3"):
        pytest.skip("needs /dev/fuse and fusermount3")
    folder, log = tmp_path_factory.mktemp("mount"), tmp_path_factory.mktemp("log") / "log"
    command = [sys.executable, SERVER, tmp_path_factory.mktemp("files"), folder]
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 30
    while not os.path.ismount(folder):
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            pytest.skip(f"cannot mount: {log.read_text()}")
        time.sleep(0.05)
    yield folder
    subprocess.run(["fusermount3", "-u", "-z", folder], check=True)
    server.wait()


@pytest.fixture
def train(start):
    """Returns a function that starts a run in a folder."""
    return lambda model_dir, **options: start(model_dir, bindings=runs.STORED, **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_mount_refuses_to_rename_folders(mount):
    (mount / "full").mkdir()
    (mount / "full" / "file").write_text("1")
    with pytest.raises(OSError, match="Too many open files"):
        (mount / "full").rename(mount / "other")
    (mount / "full" / "file").rename(mount / "full" / "same")
    shutil.rmtree(mount / "full")


def test_a_run_on_the_mount_has_the_bits_of_one_on_a_disk(mount, train, on_disk):
    command = train(mount / "whole")
    assert command.until_step(6), command.said()
    assert not commands.saving(mount / "whole")
    command.finish()
    assert commands.differences(mount / "whole", on_disk) == []
    assert names(mount / "whole" / "checkpoints") == names(on_disk / "checkpoints")
    assert not [name for name in names(mount / "whole") if "rename" in name]


def halves(model_dir):
    """Lists the checkpoints that are not complete."""
    found = model_dir.glob("checkpoints/*")
    return [path for path in found if path.name.isdigit() and not (path / COMMIT_FILE).exists()]


@pytest.mark.parametrize("seed", range(6))
def test_a_run_killed_while_it_saves_resumes_to_the_same_bits(mount, train, on_disk, seed):
    model_dir, dice = mount / f"killed{seed}", random.Random(seed)
    for step in (1, 6):  # The next save is the first, and one after a complete checkpoint.
        command = train(model_dir)
        assert command.until_step(step), command.said()
        assert command.until(functools.partial(halves, model_dir)), command.said()
        time.sleep(dice.choice([0, 0.02, 0.1, 0.3]))
        command.kill()
        print(f"after step {step}: killed while these were half: {halves(model_dir)}")
    said = train(model_dir).finish()
    print("an interrupted save" in said)
    assert commands.differences(model_dir, on_disk) == []


def test_a_damaged_checkpoint_is_copied_aside(mount, train, on_disk):
    model_dir = mount / "damaged"
    train(model_dir).finish()
    state = model_dir / "checkpoints" / "12" / "state"
    largest = max((path for path in state.rglob("*") if path.is_file()), key=os.path.getsize)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(bytes(content))
    assert "The checkpoint of step 12 is damaged" in train(model_dir).finish()
    aside = model_dir / "damaged_checkpoints"
    assert names(aside) == ["12"] and (aside / "12" / "reason.txt").is_file()
    shutil.rmtree(aside)
    assert commands.differences(model_dir, on_disk) == []


def test_a_run_moves_from_a_disk_to_the_mount_and_back(mount, train, on_disk, tmp_path):
    places = [tmp_path / "first", mount / "second", tmp_path / "third"]
    for step, (place, following) in zip((5, 9), itertools.pairwise(places)):
        command = train(place)
        assert command.until_step(step), command.said()
        command.kill()
        shutil.copytree(place, following)
    train(places[-1]).finish()
    assert commands.differences(places[-1], on_disk) == []


def test_two_processes_resume_on_the_mount(mount, start, tmp_path):
    whole = two(start, tmp_path / "whole", tmp_path)
    assert [one.end() for one in whole] == [0, 0], [one.said() for one in whole]
    first, second = two(start, mount / "two", tmp_path)
    assert first.until_step(6), first.said()
    assert first.until(functools.partial(halves, mount / "two")), first.said()
    second.kill()
    assert first.end() != 0
    again = two(start, mount / "two", tmp_path)
    assert [one.end() for one in again] == [0, 0], [one.said() for one in again]
    assert "Resuming from" in again[0].said()
    assert commands.differences(mount / "two", tmp_path / "whole") == []


def two(start, model_dir, tmp_path):
    """Starts two processes of one run, each with 4 devices."""
    address = f"--coordinator_address=localhost:{tiny.free_port()}"
    flags = (address, "--num_processes=2", "--peer_timeout=20")
    return [
        start(
            *(model_dir, *flags, f"--process_id={number}"),
            bindings=runs.STORED,
            log=f"{model_dir.name}-{number}",
            devices=4,
        )
        for number in range(2)
    ]
