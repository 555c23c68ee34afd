"""Means of checkpoints."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import commands, finetuning, hf_folders, tiny
from safetensors import safe_open

from xlme_jax.checkpoints.saved import checkpoint_of, pretraining_flops, read_record
from xlme_jax.data import vocabulary_extension
from xlme_jax.data.vocabulary import Vocabulary, write_vocabulary
from xlme_jax.runs import averaging, evaluating
from xlme_jax.storage.paths import as_path

STEPS = (2, 4, 6, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    words = Vocabulary.load(finetuning.write_vocabulary(folder))
    flops = {"flops_per_step": {"ours": 1.0}, "inherited_flops": {"ours": 0.0}}
    length = {"Encoder__max_length": finetuning.LENGTH}
    return hf_folders.write_checkpoint(folder / "run", "xlm", words, STEPS, flops, **length)


def vocabulary_of(run):
    return Vocabulary.load(run / "vocabulary.model")


def weights(checkpoint):
    """Returns {name: array} of the weights, read with Orbax alone."""
    return {
        name: np.frombuffer(data, dtype)
        for name, (dtype, data) in commands.bits(checkpoint).items()
        if name.startswith("params.")
    }


def test_weights_are_numpys_mean_of_the_last_checkpoints(tmp_path, run):
    every = [weights(run / "checkpoints" / str(step)) for step in STEPS]
    for last in (1, 3):
        written = averaging.average(averaging.last_checkpoints(run, last), tmp_path / str(last))
        assert written == checkpoint_of(tmp_path / str(last)) and written.name == "8"
        mean = weights(written)
        assert mean.keys() == every[0].keys() and len(mean) > 5
        for name, values in mean.items():
            expected = np.mean([one[name] for one in every[-last:]], axis=0, dtype=np.float64)
            np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7, err_msg=name)
    assert any((a != b).any() for a, b in zip(every[0].values(), every[-1].values()))


@pytest.mark.slow
def test_the_mean_is_started_from_exported_and_evaluated(tmp_path, run):
    mean, tuned = tmp_path / "mean", tmp_path / "tuned"
    averaging.average(averaging.last_checkpoints(run, 3), mean)
    assert read_record(mean).manifest["averaged"] == [
        str(run / "checkpoints" / step) for step in ("4", "6", "8")
    ]
    assert pretraining_flops(mean) == pretraining_flops(run)
    assert pretraining_flops(run)["ours"] > 0
    with pytest.raises(ValueError, match="already contains a run"):
        averaging.average(averaging.last_checkpoints(run, 2), mean)
    data = finetuning.write_labelled(tmp_path / "data", "cldr_tagging", vocabulary_of(run))
    bindings = {"EPOCHS": 0.25, "CHECKPOINT_EVERY": 1, "Loop.keep_every": 1}
    flags = finetuning.finetune_flags(tuned, data, mean, "cldr_tagging", **bindings)
    assert int(finetuning.run(flags).step) == 2
    assert read_record(tuned).origin == str(mean / "checkpoints" / "8")
    averaging.average(averaging.last_checkpoints(tuned, 2), tmp_path / "tuned_mean")
    options = evaluating.Options(split="validation", limit=5)
    outcomes, path = evaluating.evaluate(str(tmp_path / "tuned_mean"), options)
    assert path == tmp_path / "tuned_mean" / "evaluation" / "2" / "results.json"
    assert {row.task for row in outcomes[0].results} == {"cldr_tagging"}
    exported = hf_folders.export(mean, tmp_path / "exported")
    with safe_open(exported / "model.safetensors", "numpy") as file:
        found = [file.get_tensor(name).ravel() for name in file.keys()]  # noqa: SIM118
    expected = weights(mean / "checkpoints" / "8")["params.encoder.layer_0.ffn.wi.bias"]
    assert any(np.array_equal(array, expected) for array in found)


def test_runs_are_averaged_with_weights(tmp_path, run):
    checkpoints = [run / "checkpoints" / step for step in ("2", "8")]
    branches = [tmp_path / name for name in ("a", "b")]
    for checkpoint, branch in zip(checkpoints, branches):
        shutil.copytree(checkpoint, branch / "checkpoints" / checkpoint.name)
    flags = [f"--checkpoint={','.join(map(str, branches))}", f"--output={tmp_path / 'mean'}"]
    done, bad = tiny.run_each(
        "average",
        [*flags, "--weights=3,1"],
        [*flags[:1], f"--output={tmp_path / 'c'}", "--weights=1"],
    )
    assert done.returncode == 0, done.stderr
    mean = weights(checkpoint_of(tmp_path / "mean"))
    first, second = map(weights, checkpoints)
    for name, values in mean.items():
        expected = 0.75 * first[name].astype(np.float64) + 0.25 * second[name]
        np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7, err_msg=name)
    assert read_record(tmp_path / "mean").manifest["averaged_weights"] == [3.0, 1.0]
    assert bad.returncode == 1
    assert "--weights=1.0: give a number for each of the 2 checkpoints" in bad.stderr


def test_the_mean_has_no_optimizer_to_go_on_with(tmp_path, run):
    averaging.average(averaging.last_checkpoints(run, 2), tmp_path / "mean")
    start = {"INIT_FROM": str(tmp_path / "mean"), "Loop__init_optimizer": True}
    with pytest.raises(ValueError, match=r"checkpoints/8 has no state of the optimizer, as averag"):
        finetuning.pretrain(tmp_path, vocabulary_of(run), "xlm", **start)


def test_checkpoints_of_two_models_or_data_are_refused(tmp_path, run):
    words = vocabulary_of(run)
    other = hf_folders.write_checkpoint(
        tmp_path / "run", "xlm", words, (2,), Encoder__attention="xla"
    )
    (run / "checkpoints" / "2").rename(tmp_path / "aside")
    try:
        (other / "checkpoints" / "2").rename(run / "checkpoints" / "2")
        with pytest.raises(ValueError, match=r"differ in Train\.objective, .* smaller --last"):
            averaging.average(averaging.last_checkpoints(run, 4), tmp_path / "mean")
        averaging.average(averaging.last_checkpoints(run, 3), tmp_path / "mean")
    finally:
        (run / "checkpoints" / "2").rename(tmp_path / "other")
        (tmp_path / "aside").rename(run / "checkpoints" / "2")


def test_a_trimmed_vocabulary_is_refused(tmp_path, run):
    words = vocabulary_of(run)
    file = tmp_path / "trimmed.model"
    write_vocabulary(vocabulary_extension.trim(words, np.zeros(words.size, bool)), file)
    with pytest.raises(ValueError, match=r"trimmed\.model is not the vocabulary of .* `export`"):
        averaging.average(averaging.last_checkpoints(run, 1), tmp_path / "mean", str(file))
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("last", [0, 5])
def test_as_many_checkpoints_as_there_are(tmp_path, run, last):
    with pytest.raises(ValueError, match=rf"--last={last}: .* has 4 checkpoints \(2, 4, 6, 8\)"):
        averaging.average(averaging.last_checkpoints(run, last), tmp_path / "mean")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_writes_the_same_to_a_bucket(server, tmp_path, run):
    expected = weights(averaging.average(averaging.last_checkpoints(run, 2), tmp_path / "mean"))
    flags = [f"--checkpoint={run}", "--last=2", "--output=gs://bucket/mean"]
    [done] = tiny.run_each("average", flags, variables=server.variables)
    assert done.returncode == 0, done.stderr
    assert checkpoint_of(as_path("gs://bucket/mean")).name == "8"
    found = weights(Path(server.place("mean")) / "checkpoints" / "8")
    assert all((found[name] == values).all() for name, values in expected.items())
