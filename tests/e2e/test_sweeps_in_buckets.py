"""Sweeps whose processes share only a bucket, on an emulator of Google Cloud Storage.

Each process has a working folder, a HOME and a host name of its own.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import test_sweep
from helpers import commands, finetuning, runs, tiny

from xlme_jax.data import cldr
from xlme_jax.data.prepared.writer import BitextWriter, MonolingualWriter, write_dataset
from xlme_jax.data.vocabulary import Vocabulary

pytest.importorskip("gcsfs", reason="needs the extra gcs")
pytest.importorskip("gcp_storage_emulator", reason="needs the extra test")
from helpers import buckets

pytestmark = pytest.mark.slow

# The train command of these sweeps only writes the files of a run.
FAKE = """
import sys, test_sweep
from xlme_jax.storage.paths import as_path
options = {options!r}
sys.exit(test_sweep._sweep(as_path({output!r}), options.pop("xs"), **options).run())
"""
SCORE = """
from xlme_jax.storage.paths import as_path
scores = as_path('{model_dir}') / 'scores'
scores.write_text((scores.read_text() if scores.exists() else '') + 'x')
"""
EVALUATE = f'{sys.executable} -c "{SCORE}"'
# Imported by Python at its start.
HOST_NAME = "import os, socket; socket.gethostname = lambda: os.environ['HOST_NAME']"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """Returns a bucket."""
    bucket = buckets.Bucket(tmp_path_factory.mktemp("bucket"))
    yield bucket
    bucket.stop()


@pytest.fixture
def start(bucket, tmp_path):
    """Returns a function that starts Python on a machine that has nothing but the bucket."""
    started = []

    def start(machine, *arguments):
        home = tmp_path / machine
        home.mkdir(exist_ok=True)
        (home / "sitecustomize.py").write_text(HOST_NAME)
        variables = {
            "PYTHONPATH": f"{home}:{tiny.REPOSITORY}:{tiny.REPOSITORY / 'tests'}",
            "HOST_NAME": machine,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home),
        }
        options = {"python": arguments, "variables": bucket.variables | variables, "cwd": home}
        process = commands.Command((), "", home / f"log{len(started)}", **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("gs:")]


def fake(start, machine, output, xs=("1", "2"), **options):
    """Starts a sweep that trains nothing."""
    return start(machine, "-c", FAKE.format(output=output, options={"xs": xs, **options}))


def table(output):
    """Returns sweep.json without the command that wrote it."""
    content = json.loads((output / "sweep.json").read_text())
    del content["command"]
    return content


def test_shards_of_several_machines_run_nothing_twice(bucket, start, tmp_path):
    options = {"evaluate": EVALUATE}
    test_sweep._sweep(tmp_path / "disk", ["1", "2"], evaluate=test_sweep.EVALUATE).run()
    shards = {"a": (0, 2), "b": (1, 2), "b_again": (1, 2), "whole": (0, 1)}
    output = "gs://bucket/shards"
    for process in [fake(start, name, output, shard=i, **options) for name, i in shards.items()]:
        process.finish()
    found = bucket.place("shards")
    assert test_sweep._starts(found) == test_sweep._starts(tmp_path / "disk")
    assert table(found) == table(tmp_path / "disk") and table(found)["best"] == "X=2"
    scores = [path.read_text() for path in found.glob("X=2/*/scores")]
    assert scores == ["x", "x"] and len(list(found.glob("*/*/scores"))) == 2
    assert not list(found.rglob("*.lock"))


def test_a_run_that_a_killed_sweep_left_is_waited_for(bucket, start):
    xs, output = ("1", "'waits'", "2"), "gs://bucket/left"
    folder = bucket.place("left") / "X=waits" / "seed_0"
    first = fake(start, "a", output, xs, seeds=1)
    assert first.until((folder / "waiting").exists), first.said()
    assert first.until((folder / "train.log").exists), first.said()  # While it runs.
    assert "fake_train.py" in (folder / "train.log").read_text()
    first.kill()
    second = fake(start, "b", output, xs, seeds=1)
    assert second.until_said("seed_0 is in use by .* waiting for it to end"), second.said()
    bucket.write("left/X=waits/seed_0/go_on", b"x")
    second.finish()
    assert set(test_sweep._starts(bucket.place("left")).values()) == {1}
    assert table(bucket.place("left"))["best"] == "X=2"


def test_a_signal_ends_a_sweep_that_waits(bucket, start):
    xs, output = ("'waits'",), "gs://bucket/signal"
    folder = bucket.place("signal") / "X=waits" / "seed_0"
    first = fake(start, "a", output, xs, seeds=1)
    assert first.until((folder / "waiting").exists), first.said()
    second = fake(start, "b", output, xs, seeds=1)
    assert second.until_said("waiting for it to end"), second.said()
    second.signal(signal.SIGTERM)
    assert second.end() == 75, second.said()
    bucket.write("signal/X=waits/seed_0/go_on", b"x")
    first.finish()
    assert test_sweep._starts(bucket.place("signal")) == {"X=waits/seed_0": 1}


# ---- Training ----------------------------------------------------------------------------------


def write_data(folder):
    """Writes phrases in English and Russian with held-out pairs; returns the folder."""
    folder.mkdir()
    vocabulary = Vocabulary.load(finetuning.write_vocabulary(folder.parent))
    config, rows = finetuning.CORPUS.config, []
    writer = MonolingualWriter(folder, "en", ["en"], vocabulary.size)
    for text in cldr.documents(config, "en", "train", 20):
        writer.add([0, *vocabulary.encode(text), 2])
    rows.append(writer.close())
    for split in ("train", "validation"):
        writer = BitextWriter(folder, "en-ru", ["en", "ru"], vocabulary.size, split=split)
        for source, target in cldr.pairs(config, "en", "ru", split, 40):
            writer.add([0, *vocabulary.encode(source), 2, *vocabulary.encode(target), 2])
        rows.append(writer.close())
    write_dataset(folder, rows, vocabulary.path, vocabulary.size)
    return folder


def sweep(output, data, *more):
    """Returns Python arguments of a sweep of four runs, and evaluations of the selected two."""
    bindings = {**runs.SHORT, "TRAIN_STEPS": 12, "Train__evaluators": (), "Encoder__max_length": 64}
    bindings |= {"bitext/PairStream__length": 64, "monolingual/TextStream__length": 64}
    files, *values = tiny.flags("unused", data, **bindings)
    return [
        *("-m", "xlme_jax.sweep", files.replace("gin_configs", f"{tiny.REPOSITORY}/gin_configs")),
        *(flag for flag in values if "MODEL_DIR" not in flag),
        *("--grid=Optimizer.learning_rate=2e-3,4e-3", "--seeds=2", "--select=loss", "--minimize"),
        f"--evaluate={sys.executable} -m xlme_jax.evaluate --checkpoint={{model_dir}} "
        "--tasks=held_out_retrieval --readouts=raw --limit=20",
        *(f"--output={output}", *more),
    ]


def scores(output):
    """Returns the evaluations of the selected runs."""
    files = sorted(output.rglob("evaluation/12/results.json"))
    return {path.relative_to(output).as_posix(): json.loads(path.read_text()) for path in files}


def test_two_shards_of_which_one_is_lost_give_the_results_of_a_sweep_on_a_disk(
    bucket, start, tmp_path
):
    disk, found = tmp_path / "disk", bucket.place("sweep")
    data = write_data(tmp_path / "data")
    start("disk", *sweep(disk, data)).finish()
    for path in data.rglob("*"):
        if path.is_file():
            bucket.write(f"data/{path.relative_to(data).as_posix()}", path.read_bytes())
    flags = sweep("gs://bucket/sweep", "gs://bucket/data")
    shards = [start(f"machine{i}", *flags, f"--shard={i}/2") for i in range(2)]
    # Machine 1 is lost in the middle of its first run.
    first = found / "learning_rate=4e-3" / "seed_0"
    complete = first / "checkpoints" / "4" / "commit_success.txt"
    assert shards[1].until(complete.exists), shards[1].said()
    process = shards[1].process.pid
    [child] = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    shards[1].kill()
    os.kill(int(child), signal.SIGKILL)
    assert not (first / "checkpoints" / "12").exists()
    shards.append(start("machine2", *flags, "--shard=1/2"))
    shards[0].finish()
    shards[2].finish()
    assert "Resuming from" in (first / "train.log").read_text()

    assert table(found) == table(disk)
    for folder in disk.glob("*/seed_*"):
        assert commands.differences(found / folder.relative_to(disk), folder) == []
    evaluated, expected = scores(found), scores(disk)
    assert len(evaluated) == 2 and evaluated.keys() == expected.keys()
    for name, content in evaluated.items():
        assert content["results"] and content["results"] == expected[name]["results"]

    said = start("machine0", *flags).finish()  # Everything is done.
    assert said.count("already finished") == 4 and "running" not in said
    assert "evaluating" not in said
    assert "xlme_jax.train" not in start("machine0", *flags, "--print_commands").finish()
