"""Interrupted and resumed runs are bitwise equal to uninterrupted ones.

An exception ends most runs here; test_faults.py kills the command in every phase.
"""

import functools
import os
import shutil

import jax
import numpy as np
import pytest
from helpers import commands, tiny
from helpers.runs import Interrupted, assert_same_bits, load, run, same_metrics, saved

from xlme_jax.checkpoints.saved import CheckpointError
from xlme_jax.configuration import loading
from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.runs import assembly
from xlme_jax.training import starting


def next_batch(data_dir, record, config):
    batches = make_iterator(PreparedDataset.load(data_dir), config.streams, config.loop.seed)
    batches.set_state(record.data)
    batch = next(batches)
    batches.close()
    return batch


# XY-LENT is XLM-E with other settings; test_mined_runs.py resumes a contrast.
OBJECTIVES = tiny.slow_except(
    {"xlm"}, ("xlme", "xylent", "xlm", "infoxlm", "veco", "translate", "contrast")
)
BINDINGS = {
    "objective": "xlm",
    "TRAIN_STEPS": 12,
    "CHECKPOINT_EVERY": 4,
    "Loop__keep_checkpoints": 9,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_data):
    """Returns a function (objective) -> folder and final state of a run."""

    @functools.cache
    def trained(objective):
        model_dir = tmp_path_factory.mktemp(objective)
        return model_dir, run(model_dir, tiny_data, **{**BINDINGS, "objective": objective})

    return trained


@pytest.fixture
def uninterrupted(trained):
    return trained("xlm")


@pytest.fixture(params=OBJECTIVES)
def whole(request, trained):
    """Returns name, folder and final state of a run of each objective."""
    return request.param, *trained(request.param)


def test_the_data_ends_in_mid_window_and_mid_epoch(tiny_data, uninterrupted):
    """Checks an assumption of the other tests: positions inside windows and epochs."""
    model_dir, state = uninterrupted
    _, record = saved(model_dir, 4, state)
    dataset = PreparedDataset.load(tiny_data)
    train_tasks = [task for task in dataset.tasks if task.split == "train"]
    assert len([t for t in train_tasks if t.kind == "monolingual"]) == 3
    assert len([t for t in train_tasks if t.kind == "bitext"]) == 3
    # 32 rows of some 4 to 5 packed pairs are less than a window of 4,096 draws, and more than an
    # epoch of the smaller tasks.
    tokens = sum(t.tokens for t in train_tasks if t.kind == "bitext")
    assert tokens < 4096 * 4
    assert min(t.examples for t in train_tasks) < 32
    position = record.data["streams"]["bitext"]["position"]
    assert len(str(record.data)) < 1000, position


@pytest.mark.slow
def test_an_interrupted_run_resumes_bitwise(tmp_path, tiny_data, whole, interrupt, caplog):
    """Includes carried state: a momentum encoder and a queue that wraps around."""
    objective, expected_dir, expected = whole
    bindings = {**BINDINGS, "objective": objective}
    # After the checkpoint of step 4, with steps 5 to 7 lost; 3 batches fill the queue of 20.
    restore = interrupt(7 + (3 if objective == "infoxlm" else 0))
    with pytest.raises(Interrupted):
        run(tmp_path, tiny_data, **bindings)
    restore()
    logged = [line["step"] for line in tiny.metrics(tmp_path)]
    assert max(logged) in (6, 7)
    with caplog.at_level("INFO"):
        found = run(tmp_path, tiny_data, **bindings)
    assert "Resuming from the checkpoint of step 4" in caplog.text
    assert int(found.step) == 12
    assert_same_bits(found, expected)
    for step in (4, 8, 12):
        (state, record), (expected_state, expected_record) = (
            saved(folder, step, expected) for folder in (tmp_path, expected_dir)
        )
        assert_same_bits(state, expected_state)
        assert record.data == expected_record.data
        config = load(tmp_path, tiny_data, **bindings)
        assert_same_bits(
            next_batch(tiny_data, record, config), next_batch(tiny_data, expected_record, config)
        )
    same_metrics(tmp_path, expected_dir)


@pytest.fixture
def copied(uninterrupted, tmp_path):
    """Returns a copy of a finished run, which has the checkpoints of steps 4, 8 and 12."""
    return shutil.copytree(uninterrupted[0], tmp_path / "run")


def test_a_run_killed_while_it_saves_ends_with_the_same_bits(
    uninterrupted, tmp_path, tiny_data, start
):
    command = start(bindings=BINDINGS)
    assert command.until_moment(commands.moments(12)["saving"]), command.said()
    assert command.kill() == -9, command.said()  # It was still running.
    assert commands.newest(tmp_path / "run") != 12
    run(tmp_path / "run", tiny_data, **BINDINGS)
    assert commands.differences(tmp_path / "run", uninterrupted[0]) == []


@pytest.mark.slow
def test_leftovers_of_kills_are_harmless(uninterrupted, copied, tiny_data):
    checkpoints = copied / "checkpoints"
    # Half a save: under another name, without what is written last.
    half = (checkpoints / "12").rename(checkpoints / "12.orbax-checkpoint-tmp")
    (half / "_CHECKPOINT_METADATA").unlink()
    shutil.rmtree(half / "state" / "d")
    # An old checkpoint that was being deleted.
    (checkpoints / "4" / "files.json").unlink()
    shutil.rmtree(checkpoints / "4" / "state" / "d")
    # The newest one saved, and its files not all digested.
    (checkpoints / "8" / "files.json").rename(checkpoints / "8" / "files.json.tmp")
    os.truncate(checkpoints / "8" / "files.json.tmp", 100)
    run(copied, tiny_data, **BINDINGS)
    assert commands.differences(copied, uninterrupted[0]) == []


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def largest_file(checkpoint):
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def test_damaged_checkpoints_are_set_aside_and_nothing_is_lost_but_time(
    uninterrupted, copied, tiny_data, caplog
):
    # One that its files give away, and one that only its arrays can.
    flip(largest_file(copied / "checkpoints" / "12"))
    (copied / "checkpoints" / "8" / "files.json").unlink()
    flip(largest_file(copied / "checkpoints" / "8" / "state" / "d"))
    with caplog.at_level("INFO"):
        run(copied, tiny_data, **BINDINGS)
    assert "Resuming from the checkpoint of step 4" in caplog.text
    reasons = (copied / "damaged_checkpoints" / step / "reason.txt" for step in ("12", "8"))
    expected = ("is not what was written (SHA-256 differs)", "it cannot be read")
    for reason, what in zip(reasons, expected):
        assert what in reason.read_text()
    assert commands.differences(copied, uninterrupted[0]) == ["left over: damaged_checkpoints"]


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(copied, tiny_data):
    for checkpoint in (copied / "checkpoints").iterdir():
        flip(largest_file(checkpoint))
    with pytest.raises(CheckpointError, match=r"(?s)All checkpoints of .* are damaged .*step 12: "):
        run(copied, tiny_data, **BINDINGS)
    before = content(copied)
    with pytest.raises(CheckpointError, match=r"All checkpoints of .* are damaged"):
        run(copied, tiny_data, **BINDINGS)
    assert content(copied) == before
    assert [line["step"] for line in commands.lines(copied)] == [*range(1, 13)]


def test_a_finished_run_has_nothing_to_do(tiny_data, uninterrupted, caplog):
    model_dir, expected = uninterrupted
    files = ("metrics.jsonl", "config.gin", "manifest.json", "model-info.txt")
    before = [(model_dir / name).read_text() for name in files]
    with caplog.at_level("INFO"):
        assert_same_bits(run(model_dir, tiny_data, **BINDINGS), expected)
    assert "Nothing to do" in caplog.text
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert [(model_dir / name).read_text() for name in files] == before


@pytest.mark.parametrize(
    ("binding", "line"),
    [
        ({"TRAIN_STEPS": 8}, "TRAIN_STEPS: 12 there, 8 now, which are behind it"),
        ({"SEED": 1}, "Loop.seed: 0 there, 1 now"),
        ({"INIT_FROM": "/a/run"}, "Loop.init_from: None there, '/a/run' now"),
        ({"Masking__rate": 0.4}, "Masking.rate: 0.15 there, 0.4 now"),
    ],
)
def test_the_folder_of_another_run_is_refused_before_compilation(
    tiny_data, uninterrupted, monkeypatch, binding, line
):
    model_dir, _ = uninterrupted
    monkeypatch.setattr(starting, "fresh_state", None)
    before = (model_dir / "config.gin").read_text()
    with pytest.raises(ValueError, match="has the checkpoint of step 12") as error:
        run(model_dir, tiny_data, **BINDINGS | binding)
    assert str(error.value).splitlines()[1:-1] == [f"  {line}"]
    assert "--resume_with_changes" in str(error.value)
    assert (model_dir / "config.gin").read_text() == before


def test_a_start_with_other_streams_leaves_the_run_as_it_is(tiny_data, uninterrupted):
    model_dir, _ = uninterrupted
    before = (model_dir / "config.gin").read_text()
    with pytest.raises(ValueError, match="resume with the streams"):
        run(model_dir, tiny_data, True, **BINDINGS, XLM__translation_pairs=False)
    assert (model_dir / "config.gin").read_text() == before


def test_config_gin_runs_again_as_it_is(tmp_path, tiny_data, whole):
    """The configuration is the same; one objective also compares the bits."""
    objective, model_dir, expected = whole
    file = tmp_path / "config.gin"
    file.write_text((model_dir / "config.gin").read_text())
    config = loading.load([str(file)], [f"MODEL_DIR = {str(tmp_path / 'again')!r}"], "Train")
    again = load(tmp_path / "again", tiny_data, **{**BINDINGS, "objective": objective})
    assert config == again
    if objective != "infoxlm":
        return
    config = loading.load([str(file)], [f"MODEL_DIR = {str(tmp_path / 'again')!r}"], "Train")
    state = jax.device_get(assembly.train(config, loading.operative_config()))
    assert_same_bits(state, expected)
    same_metrics(tmp_path / "again", model_dir)


def test_other_data_is_not_resumed_with(tmp_path, tiny_data, uninterrupted):
    model_dir, _ = uninterrupted
    other = tiny.write_tiny_data(tmp_path / "other", seed=1)
    before = (model_dir / "config.gin").read_text()
    with pytest.raises(ValueError, match=r"step 12 .* belongs to other data"):
        run(model_dir, other, **BINDINGS)
    assert (model_dir / "config.gin").read_text() == before


def test_another_model_is_not_resumed(tiny_data, whole, monkeypatch):
    objective, model_dir, _ = whole
    monkeypatch.setattr(starting, "fresh_state", None)  # refused before it is called
    with pytest.raises(ValueError, match=r"weight \S+ has shape .* this model needs .*MODEL_DIR"):
        run(
            model_dir,
            tiny_data,
            True,
            **{**BINDINGS, "objective": objective, "Encoder__ffn_size": 48},
        )


def test_another_queue_is_not_resumed(tiny_data, whole, monkeypatch):
    objective, model_dir, _ = whole
    monkeypatch.setattr(starting, "fresh_state", None)
    bindings = {**BINDINGS, "objective": objective, "XLCo__queue_size": 24}
    if objective != "infoxlm":
        pytest.skip(f"{objective} has no queue")
    with pytest.raises(ValueError, match=r"weight queue has shape \(20, 32\), .*\(24, 32\)"):
        run(model_dir, tiny_data, True, **bindings)


# At this learning rate weights stay where they began.
STILL = {
    **BINDINGS,
    "TRAIN_STEPS": 5,
    "SEED": 1,
    "Optimizer__learning_rate": 1e-12,
}


@pytest.mark.slow
def test_resume_comes_before_warm_start_before_scratch(tmp_path, tiny_data, trained, caplog):
    other_dir, other = trained("xlm")
    bindings = STILL
    with caplog.at_level("INFO"):
        scratch = run(tmp_path / "scratch", tiny_data, **bindings)
    assert "Starting from scratch" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO"):
        warm = run(tmp_path / "warm", tiny_data, **bindings, INIT_FROM=str(other_dir))
    assert "Weights from" in caplog.text
    assert "Starting from scratch" not in caplog.text
    caplog.clear()

    def distance(state):
        pairs = zip(jax.tree.leaves(state.params), jax.tree.leaves(other.params))
        return max(np.abs(a - b).max() for a, b in pairs)

    assert distance(warm) < 1e-6 < 1e-3 < distance(scratch)
    assert int(warm.step) == 5  # the other run had 12: step, data and Adam start over
    copied = shutil.copytree(other_dir, tmp_path / "copy")
    assert_same_bits(run(tmp_path / "warm", tiny_data, **bindings, INIT_FROM=str(copied)), warm)
    other_dir.rename(tmp_path / "gone")
    with caplog.at_level("INFO"):
        resumed = run(tmp_path / "warm", tiny_data, **bindings, INIT_FROM=str(other_dir))
    (tmp_path / "gone").rename(other_dir)
    assert "Resuming from the checkpoint of step 5" in caplog.text
    assert "Weights from" not in caplog.text
    assert_same_bits(resumed, warm)


@pytest.mark.slow
def test_a_warm_start_from_one_checkpoint(tmp_path, tiny_data, uninterrupted):
    other_dir, other = uninterrupted
    state, _ = saved(other_dir, 4, other)
    warm = run(tmp_path, tiny_data, **STILL, INIT_FROM=str(other_dir / "checkpoints" / "4"))
    for a, b in zip(jax.tree.leaves(warm.params), jax.tree.leaves(state.params)):
        np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        (
            {"Encoder__ffn_size": 48},
            r"weight encoder\.\S+ has shape .*, this model needs .*48",
        ),
        ({"Encoder__num_layers": 2}, r"weight \S+\.layer_1\.\S+ is missing, this model needs"),
        ({"Encoder__absolute_positions": False}, r"this model has no weight positions\.embedding"),
    ],
)
def test_a_warm_start_from_another_model_names_the_weight(
    tmp_path, tiny_data, uninterrupted, monkeypatch, bindings, expected
):
    monkeypatch.setattr(starting, "fresh_state", None)  # refused before it is called
    with pytest.raises(ValueError, match=expected):
        run(tmp_path, tiny_data, **BINDINGS, **bindings, INIT_FROM=str(uninterrupted[0]))


def test_a_run_keeps_its_vocabulary(tiny_data, uninterrupted):
    vocabulary = PreparedDataset.load(tiny_data).vocabulary_path
    assert (uninterrupted[0] / "vocabulary.model").read_bytes() == vocabulary.read_bytes()
