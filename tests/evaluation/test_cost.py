"""FLOPs of a pre-training, from what runs have left."""

import pytest

from xlme_jax.reports.cost import encoder_parameters, flops_per_step, pretraining_flops


def _run(folder, steps, flops="1.5e+12", objective="XLME", init_from="None"):
    for step in steps:
        (folder / "checkpoints" / str(step) / "state").mkdir(parents=True)
    (folder / "model-info.txt").write_text(
        "Parameters: 1,900,000 in all, 1,396,551 in the exported encoder (x)\n"
        f"Tokens per step: 7\nFLOPs per step: {flops}; per token: 3\n"
    )
    (folder / "config.gin").write_text(
        f"# Macros:\nINIT_FROM = {init_from}\nLoop.init_from = %INIT_FROM\n"
        f"Train.objective = @{objective}()\n"
    )
    return folder


def test_flops_are_steps_times_flops_of_a_step(tmp_path):
    run = _run(tmp_path / "a", [10, 200])
    assert flops_per_step(run) == 1.5e12
    assert pretraining_flops(run) == 200 * 1.5e12
    assert pretraining_flops(str(run / "checkpoints" / "10")) == 10 * 1.5e12


def test_what_weights_were_taken_from_counts_too(tmp_path):
    first = _run(tmp_path / "a", [100])
    second = _run(tmp_path / "b", [10], "2e+10", init_from=f"'{first}'")
    expected = 100 * 1.5e12 + 10 * 2e10
    assert pretraining_flops(second) == expected
    # Gin puts what is long on a line of its own.
    long = _run(tmp_path / "c", [5], "7", "FineTune", f"\\\n    '{second}'")
    assert pretraining_flops(long) == expected  # Fine-tuning itself does not count.


def test_a_cost_that_is_not_known_is_none_and_says_why(tmp_path, caplog):
    caplog.set_level("INFO")
    run = _run(tmp_path / "a", [10], init_from=f"'{tmp_path / 'gone'}'")
    assert pretraining_flops(run) is None and "gone" in caplog.text
    (run / "model-info.txt").write_text("nothing")
    (run / "config.gin").write_text("")
    assert pretraining_flops(run) is None and "FLOPs per step" in caplog.text
    (run / "model-info.txt").unlink()
    assert pretraining_flops(run) is None
    assert pretraining_flops(tmp_path) is None
    (tmp_path / "x" / "state").mkdir(parents=True)
    assert pretraining_flops(tmp_path / "x") is None and "is not MODEL_DIR" in caplog.text


def test_runs_that_go_round_in_a_circle_have_no_cost(tmp_path, caplog):
    caplog.set_level("INFO")
    run = _run(tmp_path / "a", [10], init_from=f"'{tmp_path / 'a'}'")
    assert pretraining_flops(run) is None and "circle" in caplog.text


def test_flops_that_are_no_number_are_refused(tmp_path):
    run = _run(tmp_path / "a", [10], "many")
    with pytest.raises(ValueError, match="FLOPs per step"):
        flops_per_step(run)


def test_parameters_are_the_encoders(tmp_path):
    run = _run(tmp_path / "a", [10])
    assert encoder_parameters(run / "checkpoints" / "10") == encoder_parameters(run) == 1_396_551
    info = (run / "model-info.txt").read_text()
    earlier = info.replace("the exported encoder", "the encoder that is handed on")
    (run / "model-info.txt").write_text(earlier)
    assert encoder_parameters(run) == 1_396_551
    (run / "model-info.txt").write_text("nothing")
    assert encoder_parameters(run) is None
    assert encoder_parameters(tmp_path / "b") is None
