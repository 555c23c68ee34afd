"""Runs of `Contrast` whose anchor and distillation compare with the vectors of a teacher."""

import shutil

import jax
import numpy as np
import pytest
from helpers import hf_folders, runs, tiny
from helpers.drawn_vocabulary import DrawnVocabulary
from helpers.runs import Interrupted, _Gin, assert_same_bits, same_metrics

from xlme_jax.checkpoints.saved import checkpoint_of, read_record
from xlme_jax.checkpoints.warm_start import warm_start
from xlme_jax.configuration import differences, loading
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.prepared.writer import write_dataset
from xlme_jax.runs import assembly
from xlme_jax.training import starting

# The teacher has two layers; runs have one (tests/tiny.gin), whose bindings are the same.
SHORT = {"TRAIN_STEPS": 4, "Optimizer__warmup_steps": 1}
DISTILLED = {
    "objective": "contrast",
    **SHORT,
    "CHECKPOINT_EVERY": 2,
    "Contrast__teacher": _Gin("@Teacher()"),
    "Contrast__distillation_weight": 1.0,
    "Contrast__contrast_weight": 0.0,
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, tiny_data):
    """Returns the MODEL_DIR of a masked language model with random weights."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    words = DrawnVocabulary(tiny_data)
    sizes = {"Train__vocab_size": None, "Encoder__num_layers": 2}
    return hf_folders.write_checkpoint(folder, "xlm", words, steps=(2, 4), **sizes)


@pytest.fixture(scope="module")
def distilled(tmp_path_factory, tiny_data, teacher):
    """Returns the MODEL_DIR of an uninterrupted run, and its final state."""
    folder = tmp_path_factory.mktemp("distilled")
    return folder, run(folder, tiny_data, teacher)


def run(folder, data, teacher, **bindings):
    """Trains with a teacher, in this process; returns the final state. See `runs.run`."""
    given = teacher if isinstance(teacher, _Gin) else str(teacher)
    return runs.run(folder, data, **{**DISTILLED, "Teacher__checkpoint": given, **bindings})


@pytest.mark.slow
def test_the_weights_are_those_of_the_teacher(teacher, distilled):
    model_dir, state = distilled
    start = state.carried["start"]
    assert "layer_1" in start["encoder"] and "layer_1" not in state.params["encoder"]
    abstract = jax.eval_shape(lambda: start)
    assert_same_bits(start, warm_start(checkpoint_of(teacher), abstract, may_have_more=True))
    lines = [line for line in tiny.metrics(model_dir) if line["step"]]
    assert len(lines) == 4
    assert all(np.isfinite(line["bitext/distillation_loss"]) for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]


@pytest.mark.slow
def test_the_stored_configuration_says_all(teacher, distilled, tiny_data):
    model_dir, _ = distilled
    stored = loading.load_text(read_record(model_dir).config, "Train", "the checkpoint")
    assert stored.objective.teacher.checkpoint == str(teacher)
    assert stored.objective.teacher.pretrained.encoder.num_layers == 2
    assert stored.objective.pretrained.encoder.num_layers == 1
    bindings = {**DISTILLED, "Teacher__checkpoint": str(teacher)}
    assert runs.load(model_dir, tiny_data, **bindings) == stored
    deeper = runs.load(
        model_dir, tiny_data, **bindings, **{"teacher/encoder/Encoder__ffn_size": 65}
    )
    changes = differences.differences(stored, deeper, ["bitext"], "cpu")
    assert [x.name for x in changes] == ["teacher/Encoder.ffn_size"]


@pytest.mark.slow
def test_a_run_resumes_bitwise_without_its_teacher(
    tmp_path, tiny_data, teacher, distilled, interrupt
):
    """It reads the teacher from its own checkpoint, and the configuration from its folder."""
    moved = shutil.copytree(teacher, tmp_path / "teacher")
    restore = interrupt(3)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", tiny_data, moved)
    restore()
    text = (tmp_path / "run" / "config.gin").read_text()
    shutil.rmtree(moved)
    config = loading.load_text(text, "Train", "config.gin")
    with runs.programs_once(config):
        state = jax.device_get(assembly.train(config, text))
    assert_same_bits(state, distilled[1])
    same_metrics(tmp_path / "run", distilled[0])


@pytest.mark.slow
def test_a_run_resumes_with_no_other_teacher(tiny_data, teacher, distilled):
    model_dir, state = distilled
    assert_same_bits(run(model_dir, tiny_data, teacher), state)
    earlier = teacher / "checkpoints" / "2"
    with pytest.raises(ValueError, match=r"Teacher\.checkpoint: .*, now .*/2'\. Resume it with"):
        run(model_dir, tiny_data, earlier, resume_with_changes=True)
    with pytest.raises(ValueError, match=r"Teacher\.checkpoint: .*, now None\. Resume it with"):
        run(model_dir, tiny_data, teacher, Contrast__teacher=None)


@pytest.mark.slow
def test_held_out_pairs_are_measured_without_the_teacher(tmp_path, tiny_data, teacher):
    bindings = {"Loop__evaluate_every": 4, "Train__evaluators": _Gin("(@HeldOut(),)")}
    run(tmp_path, tiny_data, teacher, **bindings)
    last = tiny.metrics(tmp_path)[-1]
    assert np.isfinite(last["held_out/bitext/contrast_loss"])
    assert "held_out/bitext/distillation_loss" not in last


@pytest.mark.slow
def test_a_teacher_of_a_contrast_has_no_teacher(tmp_path, tiny_data, distilled):
    config = runs.load(tmp_path, tiny_data, **DISTILLED, Teacher__checkpoint=str(distilled[0]))
    before = loading.load_text(read_record(distilled[0]).config, "Train", "").objective
    assert config.objective.teacher.pretrained == before.held_out()


def test_a_teacher_that_nothing_reads_is_refused(tmp_path, tiny_data, teacher):
    bindings = {**DISTILLED, "Teacher__checkpoint": str(teacher)}
    del bindings["Contrast__teacher"]
    with pytest.raises(ConfigError, match=r"set --gin\.Contrast\.teacher=@Teacher\(\)"):
        runs.load(tmp_path, tiny_data, **bindings)


def test_a_folder_is_converted(tmp_path, tiny_data, teacher, monkeypatch):
    text = read_record(teacher).config

    def conversion(path):
        loading.load_text(text, "Train", "a file of the folder")  # As imports do: gin forgets.
        return {"folder": str(teacher)}.get(path, path)

    monkeypatch.setattr(loading, "_conversions", [conversion])
    bindings = {**DISTILLED, "INIT_FROM": "folder", "Teacher__checkpoint": "folder"}
    config = runs.load(tmp_path, tiny_data, **bindings)
    assert config.objective.teacher.checkpoint == config.loop.init_from == str(teacher)
    assert config.objective.teacher.pretrained.encoder.num_layers == 2


def test_teachers_that_do_not_fit_are_refused_before_compilation(
    tmp_path, tiny_data, teacher, monkeypatch
):
    monkeypatch.setattr(starting, "fresh_state", None)

    def refused(message, data=tiny_data, path=teacher, **bindings):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "run", data, path, **bindings)

    missing = f"{tmp_path}/teachers"
    refused(r"teachers' does not exist.*Teacher.checkpoint", path=missing)
    refused("its vectors have 32 values, .* 16 ", Encoder__hidden_size=16)
    weights = {"Contrast__distillation_weight": 0.0, "Contrast__contrast_weight": 1.0}
    refused("nothing reads its vectors", Contrast__anchor_weight=0.0, **weights)
    refused(
        "Teacher.checkpoint = .*: weight encoder.layer_0.* this model needs",
        **{"teacher/encoder/Encoder__ffn_size": 65},
    )
    refused("Teacher.checkpoint = %MODEL_DIR: give the path", path=_Gin("%MODEL_DIR"))


def test_a_teacher_of_another_vocabulary_is_refused(tmp_path, tiny_data, teacher, monkeypatch):
    monkeypatch.setattr(starting, "fresh_state", None)
    data = shutil.copytree(tiny_data, tmp_path / "data")
    (tmp_path / "other.model").write_bytes(b"as many pieces, and other ones")
    tasks = PreparedDataset.load(data).tasks
    write_dataset(data, tasks, tmp_path / "other.model", tiny.VOCABULARY)
    with pytest.raises(ValueError, match=r"Teacher.checkpoint = .* another vocabulary .*Choose a"):
        run(tmp_path / "run", data, teacher)


@pytest.mark.slow
def test_the_losses_do_not_depend_on_devices(tmp_path, tiny_data, teacher):
    """Tolerance and reasons are those of tests/e2e/test_devices.py."""

    def losses(name, devices, **bindings):
        values = {**DISTILLED, "Teacher__checkpoint": str(teacher), **bindings}
        tiny.train(*tiny.flags(tmp_path / name, tiny_data, **values), devices=devices)
        return np.array([line["loss"] for line in tiny.metrics(tmp_path / name) if line["step"]])

    mesh = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}
    np.testing.assert_allclose(losses("eight", 8, **mesh), losses("one", 1), rtol=2e-6)
