"""Inspected batches, against what training read and logged."""

import functools
import json
import math

import numpy as np
import pytest
from helpers import tiny
from helpers.runs import assert_same_batch, load, run_and_read

from xlme_jax.runs import batch_inspection

STEPS, STEP = 6, 4
SAVED = {"TRAIN_STEPS": STEPS, "CHECKPOINT_EVERY": 1, "Loop__keep_checkpoints": 9}
# Sums of float32 in another program, without the gradient.
TOLERANCE = 2e-5
LANGUAGES = {"LANGUAGES": ("en", "fr", "sw")}
SYSTEMS = {
    "xlme": {"Loop__micro_batches": 2},
    # One stream: half to trace.
    "xlm": {"XLM__translation_pairs": False, "Masking__split": (0.5, 0.3, 0.2)},
    "veco": {},
    "infoxlm": {},
    "translate": LANGUAGES,
}


@pytest.fixture(scope="module")
def of_system(tmp_path_factory, tiny_data):
    """Returns a function from a system to its config, folder and batches; each trains once."""
    found = {}

    def get(system):
        if system not in found:
            model_dir = tmp_path_factory.mktemp(system)
            bindings = {"objective": system, **SAVED, **SYSTEMS[system]}
            read = run_and_read(model_dir, tiny_data, **bindings)[1]
            config = load(model_dir, tiny_data, **bindings)
            found[system] = config, model_dir, read
        return found[system]

    return get


@pytest.fixture(scope="module")
def predicted(of_system):
    """Returns a function from a system to the batch of `STEP` and what its weights predict."""

    @functools.cache
    def get(system):
        config, model_dir, _ = of_system(system)
        return batch_inspection.inspect_batch(config, STEP, f"{model_dir}/checkpoints/{STEP - 1}")

    return get


@pytest.fixture
def without_model(monkeypatch):
    """Reads batches alone: compiles nothing."""
    monkeypatch.setattr(batch_inspection, "_read", lambda *_: ({}, {}))


def from_readings(rows):
    """Computes metrics with NumPy from what is shown of a stream."""
    tokens, real = rows.arrays["tokens"], rows.arrays["segment_ids"] > 0
    found = {}
    for name, guess in rows.reading.guesses.items():
        chosen = guess.is_predicted
        loss = -np.log(guess.of_original[chosen].astype("f8")).mean()
        hits = (guess.tokens == tokens)[chosen].mean()
        names = {"generator": ("mlm_loss", "sampled_accuracy")}
        names |= {"translation": ("loss", "accuracy")}
        found |= dict(zip(names.get(name, (f"{name}_loss", f"{name}_accuracy")), (loss, hits)))
        right = (guess.tokens == tokens) & chosen
        np.testing.assert_allclose(guess.probability[right], guess.of_original[right], rtol=1e-5)
    if (verdicts := rows.reading.detection) is not None:
        replaced = (verdicts.tokens != tokens) & real
        called = (verdicts.probability > 0.5) & real
        share = np.where(replaced, verdicts.probability, 1 - verdicts.probability)[real]
        found["rtd_loss"] = -np.log(share.astype("f8")).mean()
        found["replace_rate"] = replaced[real].mean()
        found["rtd_recall"] = (replaced & called).sum() / replaced.sum()
    return {f"{rows.stream.name}/{name}": value for name, value in found.items()}


@pytest.mark.parametrize("system", tiny.slow_except(["xlm"], SYSTEMS))
def test_metrics_are_those_of_the_log(of_system, predicted, system):
    config, model_dir, read = of_system(system)
    found = predicted(system)
    assert_same_batch(found, read[STEP - 1])
    (line,) = [line for line in tiny.metrics(model_dir) if line["step"] == STEP]
    compared = {name: value for name, value in found.metrics.items() if name != "loss"}
    assert {name.split("/")[0] for name in compared} == set(read[0])
    assert len(compared) > 1
    if system == "xlme":  # A histogram per micro-batch, and others, are sums over them.
        assert config.loop.micro_batches == 2
        assert "bitext/rtd_auc" in found.metrics
    for name, value in found.metrics.items():
        logged = math.nan if line[name] is None else line[name]
        np.testing.assert_allclose(value, logged, rtol=TOLERANCE, err_msg=name)
    shown = {}
    for rows in found.streams:
        if rows.reading is not None:
            shown |= from_readings(rows)
    assert len(shown) >= {"xlme": 10, "xlm": 2, "veco": 10, "infoxlm": 4, "translate": 2}[system]
    for name, value in shown.items():
        np.testing.assert_allclose(value, line[name], rtol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_without_weights_the_batch_and_its_masks_are_the_same(of_system, predicted, system):
    config, _, read = of_system(system)
    with_weights, found = predicted(system), batch_inspection.inspect_batch(config, STEP)
    assert_same_batch(found, read[STEP - 1])
    assert found.metrics == {}
    changed = 0
    for rows, expected in zip(found.streams, with_weights.streams):
        assert rows.drawn == expected.drawn and rows.shares == expected.shares
        assert not rows.reading.guesses
        np.testing.assert_array_equal(rows.reading.tokens, expected.reading.tokens)
        np.testing.assert_array_equal(rows.reading.is_masked, expected.reading.is_masked)
        changed += (rows.reading.tokens != rows.arrays["tokens"]).sum()
    assert bool(changed) == (system != "translate")


def test_the_step_after_a_checkpoint_is_the_default(of_system, without_model):
    config, model_dir, read = of_system("xlm")
    assert batch_inspection.inspect_batch(config).step == 1
    found = batch_inspection.inspect_batch(config, checkpoint=f"{model_dir}/checkpoints/2")
    assert found.step == 3
    assert_same_batch(found, read[2])


def test_reading_begins_at_the_newest_checkpoint_before_the_step(
    of_system, without_model, monkeypatch
):
    config, model_dir, read = of_system("xlm")
    advance, count = batch_inspection.BatchIterator.__next__, []
    monkeypatch.setattr(
        batch_inspection.BatchIterator, "__next__", lambda self: count.append(1) or advance(self)
    )
    # The weights may be later ones than those of the step.
    assert_same_batch(batch_inspection.inspect_batch(config, 4, str(model_dir)), read[3])
    assert len(count) == 1
    assert_same_batch(batch_inspection.inspect_batch(config, 1, str(model_dir)), read[0])
    assert len(count) == 2


def test_positions_in_other_data_are_not_used(of_system, without_model, tmp_path):
    _, model_dir, _ = of_system("xlm")
    other = tiny.write_tiny_data(tmp_path, seed=1)
    config = load(model_dir, other, objective="xlm", **SAVED | SYSTEMS["xlm"])
    found = batch_inspection.inspect_batch(config, 3, f"{model_dir}/checkpoints/2")
    assert_same_batch(found, {rows.stream.name: rows.arrays for rows in
                              batch_inspection.inspect_batch(config, 3).streams})  # fmt: skip


@pytest.mark.parametrize("step", [0, -1, STEPS + 1])
def test_steps_that_the_run_does_not_have(of_system, step):
    config, _, _ = of_system("xlm")
    with pytest.raises(ValueError, match=f"step = {step}: the run has the steps 1 to .* = {STEPS}"):
        batch_inspection.inspect_batch(config, step)


def test_a_finished_run_shows_its_last_step(of_system, without_model):
    config, model_dir, _ = of_system("xlm")
    found = batch_inspection.inspect_batch(config, None, str(model_dir))
    assert found.step == STEPS


def test_data_that_is_not_prepared_is_named(tmp_path):
    config = load(tmp_path / "run", tmp_path / "nothing", objective="xlm")
    with pytest.raises(
        ValueError, match=r"holds no prepared data set\. Make it with\n  prepare it"
    ):
        batch_inspection.inspect_batch(config, 1, prepare_command=["prepare", "it"])


def test_checkpoints_that_do_not_fit_are_named(of_system, tiny_data, tmp_path):
    config = load(tmp_path, tiny_data, objective="xlme", **SAVED | SYSTEMS["xlme"])
    with pytest.raises(ValueError, match="has no checkpoint"):
        batch_inspection.inspect_batch(config, 1, str(tmp_path))
    _, other, _ = of_system("xlm")
    with pytest.raises(ValueError, match="Warm starts need the same objective"):
        batch_inspection.inspect_batch(config, 1, str(other))


ON_EIGHT = """
import json, sys
import jax
import xlme_jax

assert jax.device_count() == 8
config = xlme_jax.load_config(json.loads(sys.argv[1]), json.loads(sys.argv[2]))
found = xlme_jax.inspect_batch(config, step=4, checkpoint=sys.argv[3])
alone = xlme_jax.inspect_batch(config, step=4)
print("FOUND", json.dumps(dict(
    metrics=found.metrics,
    text=alone.text(),
    samples={r.stream.name: r.reading.detection.tokens.tolist() for r in found.streams},
    unwanted=[name for name in ("tensorflow", "seqio", "tasks") if name in sys.modules],
)))
"""


@pytest.mark.slow
def test_eight_devices_show_the_same_and_import_no_tensorflow(of_system, tiny_data):
    config, model_dir, _ = of_system("xlme")
    checkpoint = f"{model_dir}/checkpoints/{STEP - 1}"
    files, overrides = [str(model_dir / "config.gin")], {"Mesh.fsdp": 2}
    arguments = [json.dumps(files), json.dumps(overrides), checkpoint]
    output = tiny.run(["-c", ON_EIGHT, *arguments], devices=8)
    found = json.loads(output.split("FOUND ")[1].splitlines()[0])
    assert found["unwanted"] == []
    one = batch_inspection.inspect_batch(config, STEP, checkpoint)
    for rows in one.streams:
        expected = rows.reading.detection.tokens.tolist()
        assert found["samples"][rows.stream.name] == expected
    assert found["text"] == batch_inspection.inspect_batch(config, STEP).text()
    for name, value in one.metrics.items():
        np.testing.assert_allclose(found["metrics"][name], value, rtol=1e-4, err_msg=name)


def test_notebooks_show_a_frame_without_scripts(of_system, without_model):
    config, _, _ = of_system("xlm")
    shown = batch_inspection.inspect_batch(config, STEP)._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;') and " sandbox " in shown
    assert shown.count("<") == 2
