"""Samples that runs show as they learn (`Loop.samples_every`)."""

import json

import numpy as np
import pytest
from helpers import tiny
from helpers.runs import Interrupted, assert_same_bits, run, same_metrics

BINDINGS = {
    "objective": "xlm",  # One encoder: most of the time goes into tracing the step.
    "TRAIN_STEPS": 7,
    "CHECKPOINT_EVERY": 100,
    "Loop__keep_checkpoints": 9,
}
SAMPLES = {**BINDINGS, "Loop__samples_every": 3}


def samples(model_dir):
    lines = (model_dir / "samples.jsonl").read_text().splitlines()
    return {line["step"]: line["sentences"] for line in map(json.loads, lines)}


@pytest.fixture(scope="module")
def shown(tmp_path_factory, tiny_data):
    """Returns folder and final state of a run with samples."""
    model_dir = tmp_path_factory.mktemp("shown")
    return model_dir, run(model_dir, tiny_data, **SAMPLES)


@pytest.mark.slow
def test_samples_leave_the_weights_as_they_are(tmp_path, tiny_data, shown):
    model_dir, state = shown
    assert_same_bits(run(tmp_path, tiny_data, **BINDINGS), state)
    same_metrics(tmp_path, model_dir)
    assert not (tmp_path / "samples.jsonl").exists()
    found = samples(model_dir)
    assert list(found) == [0, 3, 6, 7]
    same = [
        [
            (one["stream"], one["label"], [t if isinstance(t, str) else t["piece"] for t in tokens])
            for one in sentences
            if (tokens := one["tokens"])
        ]
        for sentences in found.values()
    ]
    assert all(one == same[0] for one in same)
    masked = [
        [t.get("read") for one in sentences for t in one["tokens"] if isinstance(t, dict)]
        for sentences in (found[0], found[7])
    ]
    assert [x for x in masked[0] if x] == [x for x in masked[1] if x]
    assert {one["stream"] for one in found[0]} == {"monolingual", "bitext"}
    assert found[0] != found[7]


@pytest.mark.slow
def test_a_resumed_run_shows_each_step_once(tmp_path, tiny_data, shown, interrupt):
    expected, _ = shown
    restore = interrupt(6)  # After the samples of step 6, with steps 5 and 6 lost.
    with pytest.raises(Interrupted):
        run(tmp_path, tiny_data, **{**SAMPLES, "CHECKPOINT_EVERY": 4})
    restore()
    assert list(samples(tmp_path)) == [0, 3, 6]
    run(tmp_path, tiny_data, **{**SAMPLES, "CHECKPOINT_EVERY": 4})
    assert (tmp_path / "samples.jsonl").read_bytes() == (expected / "samples.jsonl").read_bytes()
    # Killed after the checkpoint of the last step and before its samples.
    lines = (tmp_path / "samples.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_text("".join(lines[:-1]))
    run(tmp_path, tiny_data, **SAMPLES)
    assert (tmp_path / "samples.jsonl").read_bytes() == (expected / "samples.jsonl").read_bytes()


NAMES = {
    "xlme": {"generator"},
    "infoxlm": {"mlm"},
    "veco": {"mlm", "tlm", "cs_mlm"},
    "translate": {"translation"},
}


@pytest.mark.parametrize("system", tiny.slow_except([], NAMES))
def test_every_system_shows_samples(tmp_path, tiny_data, system, capsys):
    more = {"LANGUAGES": ("en", "fr", "sw")} if system == "translate" else {}
    run(tmp_path, tiny_data, objective=system, TRAIN_STEPS=2, Loop__samples_every=2,
        Optimizer__warmup_steps=1, **more)  # fmt: skip
    found = samples(tmp_path)
    assert list(found) == [0, 2]
    tokens = [t for one in found[2] for t in one["tokens"] if isinstance(t, dict)]
    assert {name for t in tokens for name in t.get("predictions", {})} == NAMES[system]
    output = capsys.readouterr().err
    mark = "{y}: y is predicted" if system == "translate" else "[x>y]: x is masked"
    assert f"Step 0, samples. {mark}" in output and "\nStep 2, samples. " in output
    assert output.count(mark) == 1  # Marks are explained once.


def predictions(model_dir):
    """Returns guessed pieces, and their probabilities, of all steps."""
    tokens = [
        t
        for sentences in samples(model_dir).values()
        for one in sentences
        for t in one["tokens"]
        if isinstance(t, dict) and "predictions" in t
    ]
    pieces = [(t["piece"], {n: p[0] for n, p in t["predictions"].items()}) for t in tokens]
    return pieces, [x for t in tokens for p in t["predictions"].values() for x in p[1:]]


@pytest.mark.slow
def test_samples_do_not_depend_on_devices_and_processes(tmp_path, tiny_data):
    def flags(name, **bindings):
        bindings = {"TRAIN_STEPS": 2, "Loop__samples_every": 1, "Optimizer__warmup_steps": 1,
                    **bindings}  # fmt: skip
        return tiny.flags(tmp_path / name, tiny_data, "xlme", **bindings)

    mesh = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}
    tiny.train(*flags("one"))
    tiny.train(*flags("mesh", **mesh), devices=8)
    outputs = tiny.train_in_two_processes(*flags("two", **mesh))
    assert ["Step 1, samples." in output for output in outputs] == [True, False]
    pieces, shares = predictions(tmp_path / "one")
    assert len(pieces) > 10
    for name in ("mesh", "two"):
        found_pieces, found_shares = predictions(tmp_path / name)
        assert found_pieces == pieces
        # Written with 4 digits after the point.
        np.testing.assert_allclose(found_shares, shares, rtol=0, atol=1.5e-4)
