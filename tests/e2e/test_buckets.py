"""Runs whose files are all in a bucket, on an emulator of Google Cloud Storage.

The emulator's folder shows which bytes a bucket holds, so that results can be compared with those
of a run on a disk.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import commands, runs, tiny

pytest.importorskip("gcsfs", reason="needs the extra gcs")
pytest.importorskip("gcp_storage_emulator", reason="needs the extra test")
from helpers import buckets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("faultless")]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """Returns a bucket that holds the tiny data set in gs://bucket/data."""
    bucket = buckets.Bucket(tmp_path_factory.mktemp("bucket"))
    write = "from helpers import tiny; tiny.write_tiny_data('gs://bucket/data')"
    tiny.start(["-c", write], variables=variables(bucket), stdout=None).wait()
    yield bucket
    bucket.stop()


def variables(bucket, **more):
    """Returns environment variables for a process that has nothing but the bucket."""
    path = f"{tiny.REPOSITORY}:{tiny.REPOSITORY / 'tests'}"
    return {**bucket.variables, "PYTHONPATH": path, **more}


def train(bucket, tmp_path, name, *more, devices=1, home="home", **options):
    """Starts a run gs://bucket/NAME, with a working folder and HOME of its own."""
    home = tmp_path / home
    home.mkdir(exist_ok=True)
    flags = tiny.flags(f"gs://bucket/{name}", "gs://bucket/data", **runs.STORED)
    flags.append("--gin.Train.trackers=(@TensorBoard(),)")
    flags[0] = flags[0].replace("gin_configs", str(tiny.REPOSITORY / "gin_configs"))
    extra = variables(bucket, HOME=str(home), XDG_CACHE_HOME=str(home))
    return commands.Command(
        *([*flags, *more], bucket.place(name), home / f"log-{name}", devices, extra),
        cwd=home,
        **options,
    )


def differences(bucket, name, on_disk):
    """Lists how a run in the bucket differs from one on a disk."""
    return commands.differences(bucket.place(name), on_disk)


def test_a_run_in_a_bucket_has_the_bits_of_one_on_a_disk(bucket, tmp_path, on_disk):
    said = train(bucket, tmp_path, "whole", drawn=True).finish()
    assert "Report: gs://bucket/whole/report.html" in said
    assert differences(bucket, "whole", on_disk) == []
    assert (bucket.place("whole") / "report.html").read_text().startswith("<!")
    assert list((bucket.place("whole") / "tensorboard").iterdir())
    assert not [path for path in Path(tmp_path).rglob("*") if path.name.startswith("gs:")]


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_run_resumes_to_the_same_bits(bucket, tmp_path, on_disk, seed):
    name, dice = f"killed{seed}", random.Random(seed)
    command = train(bucket, tmp_path, name)
    command.until_step(dice.randrange(1, 12))
    command.kill()
    train(bucket, tmp_path, name).finish()
    assert differences(bucket, name, on_disk) == []


def test_a_run_survives_refused_requests_and_resets(bucket, tmp_path, on_disk):
    bucket.inject(busy=0.1, resets=0.05, seed=1)
    command = train(bucket, tmp_path, "faults")
    assert command.end() in (0, 1, 75), command.said()
    bucket.inject()
    train(bucket, tmp_path, "faults").finish()
    assert differences(bucket, "faults", on_disk) == []


def test_a_run_survives_an_outage(bucket, tmp_path, on_disk):
    command = train(bucket, tmp_path, "outage")
    assert command.until_step(3), command.said()
    bucket.inject(away=True)
    time.sleep(20)
    bucket.inject()
    code = command.end()
    print(f"exit code {code} after the outage")
    assert code == 0 or "gs://bucket/outage" in command.said()
    train(bucket, tmp_path, "outage").finish()
    assert differences(bucket, "outage", on_disk) == []


def test_two_hosts_that_share_only_the_bucket_resume_after_a_kill(bucket, tmp_path):
    whole = hosts(bucket, tmp_path, "hosts")
    assert [host.end() for host in whole] == [0, 0], [host.said() for host in whole]
    first, second = hosts(bucket, tmp_path, "killed_hosts")
    assert first.until_step(5), first.said()
    second.kill()
    assert first.end() != 0
    again = hosts(bucket, tmp_path, "killed_hosts")
    assert [host.end() for host in again] == [0, 0], [host.said() for host in again]
    assert "Resuming from" in again[0].said()
    assert differences(bucket, "killed_hosts", bucket.place("hosts")) == []


def hosts(bucket, tmp_path, name):
    """Starts two processes of one run, each with 4 devices."""
    address = f"--coordinator_address=localhost:{tiny.free_port()}"
    flags = (address, "--num_processes=2", "--peer_timeout=20")
    return [
        train(bucket, tmp_path, name, *flags, f"--process_id={i}", devices=4, home=f"host{i}")
        for i in range(2)
    ]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"read_only": True}, "permission denied"),
        ({"deny": {"refused": 401}}, "credentials are missing or expired"),
        ({"deny": {"refused": 403}}, "permission denied"),
        ({"deny": {"refused": 404}}, "no such object or bucket"),
    ],
)
def test_refused_access_ends_in_one_line(bucket, tmp_path, faults, message):
    bucket.inject(**faults)
    command = train(bucket, tmp_path, "refused")
    assert command.end() == 1
    line = command.said().strip().splitlines()[-1]
    assert "gs://bucket/refused" in line and message in line
    assert "Traceback" not in command.said() and "step 1/" not in command.said()


def test_a_second_run_in_the_same_folder_is_refused(bucket, tmp_path):
    first = train(bucket, tmp_path, "twice")
    assert first.until_step(1)
    first.signal(19)  # SIGSTOP: alive, but not renewing.
    second = train(bucket, tmp_path, "twice")
    assert second.until_said("whether it still runs|in use") or "in use" in second.said()
    first.signal(18)
    assert second.end() == 1 and "in use by another run" in second.said()
    first.kill()


def test_flipped_bytes_in_checkpoints_and_shards_are_noticed(bucket, tmp_path, on_disk):
    train(bucket, tmp_path, "flipped").finish()
    state = bucket.place("flipped") / "checkpoints" / "12" / "state"
    dice = random.Random(0)
    largest = max((path for path in state.rglob("*") if path.is_file()), key=os.path.getsize)
    flip(bucket, largest, dice)
    said = train(bucket, tmp_path, "flipped").finish()
    assert "The checkpoint of step 12 is damaged" in said
    assert (bucket.place("flipped") / "damaged_checkpoints" / "12" / "reason.txt").is_file()
    shard = next(bucket.place("data").rglob("*.arrayrecord"))
    content = flip(bucket, shard, dice)
    try:
        command = train(bucket, tmp_path, "flipped", home="other")
        assert command.end() == 1 and shard.name in command.said()
    finally:
        bucket.write(name_of(bucket, shard), content)


def name_of(bucket, path):
    """Returns the name of an object from its file."""
    return path.relative_to(bucket.place()).as_posix()


def flip(bucket, path, dice):
    """Writes an object again with one bit changed; returns what it was."""
    content = path.read_bytes()
    changed = bytearray(content)
    changed[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    bucket.write(name_of(bucket, path), bytes(changed))
    return content


def test_nothing_of_tensorflow_is_imported(bucket, tmp_path):
    code = (
        "import sys; from xlme_jax.storage.paths import as_path;"
        "as_path('gs://bucket/data/dataset.json').read_bytes(); import xlme_jax.train;"
        "print([name for name in sys.modules if name.split('.')[0] == 'tensorflow'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables(bucket)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_prepared_data_are_the_same_in_a_bucket(bucket, tiny_data):
    one = json.loads((bucket.place("data") / "dataset.json").read_text())
    other = json.loads((Path(tiny_data) / "dataset.json").read_text())
    assert one == other
