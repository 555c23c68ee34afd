import dataclasses
import json
import logging
import re

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from helpers import commands, tiny
from toy import Batches, Poisonable, PoisonedBatches, Toy, toy_run, train

from xlme_jax.checkpoints.saved import read_record, recorded_choices, saved_steps
from xlme_jax.objectives.base import Diagnostics, WarmStart
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.training.journal import Diverged
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.run import NEVER, NeverStop
from xlme_jax.training.stopping import Stopped


@pytest.fixture(scope="module")
def mesh():
    return meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])


TOY = Toy()


def run(
    model_dir,
    mesh,
    evaluators=(),
    batches=None,
    digest="d",
    objective=TOY,
    stop=NEVER,
    **settings,
):
    settings = {"log_every": 3, "evaluate_every": 5, "checkpoint_every": 4, **settings}
    config = LoopConfig(**{"train_steps": 11, **settings})
    schedule = optax.linear_schedule(0.1, 0.0, config.train_steps)
    run = dataclasses.replace(
        toy_run(model_dir, mesh, config, objective, batches),
        optimizer=optax.sgd(schedule),
        schedule=schedule,
        dataset_digest=digest,
        evaluators=evaluators,
        files={"config.gin": b"Train.x = 1\n"},
        choices={"encoder": "kernel_64"},
    )
    return train(run, stop, _steps)


_steps = {}


def lines(model_dir):
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


class Evaluators:
    """Two evaluators that record their arguments."""

    def __init__(self):
        self.initial, self.steps = [], []

    def first(self, initial):
        self.initial.append(np.asarray(initial["w"]))

        def evaluate(params, step):
            self.steps.append(step)
            return {"probe/w": float(np.asarray(params["w"])[0])}

        return evaluate

    def second(self, initial):
        return lambda params, step: {"probe/step": step}


def test_what_is_logged_evaluated_and_saved_when(tmp_path, mesh):
    evaluators = Evaluators()
    state = run(tmp_path, mesh, (evaluators.first, evaluators.second))
    assert int(state.step) == 11
    found = lines(tmp_path)
    # Every third step, every fifth with an evaluation, the beginning and the end.
    assert [line["step"] for line in found] == [0, 3, 5, 6, 9, 10, 11]
    assert evaluators.steps == [0, 5, 10, 11]
    assert [line["step"] for line in found if "probe/w" in line] == evaluators.steps
    assert [line["probe/step"] for line in found if "probe/w" in line] == evaluators.steps
    assert found[0].keys() == {"step", "probe/w", "probe/step"}
    assert found[-1]["probe/w"] == float(state.params["w"][0])
    np.testing.assert_array_equal(evaluators.initial[0], loop_start(mesh).params["w"])
    for line in found[1:]:
        assert {"loss", "learning_rate", "grad_norm", "monolingual/error"} <= line.keys()
    assert {int(path.name) for path in (tmp_path / "checkpoints").iterdir()} == {8, 10, 11}


def test_the_first_step_of_a_start_says_when_the_next_line_follows(tmp_path, mesh, caplog):
    caplog.set_level(logging.INFO, "xlme_jax.training.loop")
    run(tmp_path, mesh)
    (said,) = [text for *_, text in caplog.record_tuples if text.startswith("Step ")]
    assert re.fullmatch(
        r"Step 1 done: \d+ s with compiling; the next line is that of step 3\.", said
    )


def test_two_evaluators_with_the_same_metric_are_refused(tmp_path, mesh):
    evaluators = Evaluators()
    with pytest.raises(ValueError, match=r"two of them, .* 'probe/w', of which one is lost"):
        run(tmp_path, mesh, (evaluators.first, evaluators.second, evaluators.first))


def loop_start(mesh, seed=0):
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(Toy(), optax.sgd(0.1), mesh, seed)
        return states.fresh_state(Toy(), optax.sgd(0.1), abstract, seed)


def test_the_initial_weights_are_traced_once(mesh):
    traced = []

    class Counted(Toy):
        def init(self, rng):
            traced.append(rng)
            return super().init(rng)

    objective, optimizer = Counted(), optax.sgd(0.1)
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh, 3)
        boxed = states.boxed_state(objective, optimizer, mesh, 3)
        state = states.fresh_state(objective, optimizer, abstract, 3)
    assert len(traced) == 1
    assert jax.tree.leaves(boxed)[0].shape == jax.tree.leaves(state)[0].shape


def test_a_line_averages_over_its_window(tmp_path, mesh):
    """Sums are added before they are divided, as batches have different numbers of tokens."""
    run(tmp_path / "each", mesh, log_every=1, evaluate_every=100)
    run(tmp_path / "three", mesh, log_every=3, evaluate_every=100)
    each = {line["step"]: line for line in lines(tmp_path / "each")}
    tokens = {
        n: (Batches().batch(n - 1)["monolingual"]["segment_ids"] > 0).sum() for n in each if n
    }
    for line in lines(tmp_path / "three")[:3]:
        window = [line["step"] - 2, line["step"] - 1, line["step"]]
        weights = [tokens[n] for n in window]
        errors = [each[n]["monolingual/error"] for n in window]
        np.testing.assert_allclose(
            line["monolingual/error"], np.average(errors, weights=weights), rtol=1e-6
        )
        np.testing.assert_allclose(line["loss"], np.mean([each[n]["loss"] for n in window]), 1e-6)
        assert line["tokens_per_step"] == np.mean(weights)
        # The rate that the last step of the window was made with.
        np.testing.assert_allclose(line["learning_rate"], 0.1 * (1 - (window[-1] - 1) / 11), 1e-5)


@pytest.mark.slow
def test_only_the_newest_checkpoints_stay(tmp_path, mesh):
    run(tmp_path, mesh, checkpoint_every=2, keep_checkpoints=2)
    assert {int(path.name) for path in (tmp_path / "checkpoints").iterdir()} == {10, 11}


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_its_checkpoint_was(tmp_path, mesh):
    class Ending(Batches):
        def __next__(self):
            if self.number == 7:
                raise KeyboardInterrupt
            return super().__next__()

    expected = run(tmp_path / "whole", mesh)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", mesh, batches=Ending())
    evaluators = Evaluators()
    found = run(tmp_path / "parts", mesh, (evaluators.first,))
    np.testing.assert_array_equal(found.params["w"], expected.params["w"])
    assert int(found.carried["steps"]) == 11
    # The yardstick of step 0 is made again from the seed, and step 0 is not evaluated again.
    np.testing.assert_array_equal(evaluators.initial[0], loop_start(mesh).params["w"])
    assert evaluators.steps == [5, 10, 11]
    steps = [line["step"] for line in lines(tmp_path / "parts")]
    assert steps == sorted(set(steps))


class StopAt(NeverStop):
    """Requests a stop after one step, like a signal; records what was saved when."""

    def __init__(self, step):
        self.step, self.saves = step, []

    def requested(self, step):
        return step == self.step

    def saved(self, step, wait):
        self.saves.append(step)
        if step == self.step:
            raise Stopped(step)


@pytest.mark.parametrize("step", tiny.slow_except({5}, [1, 2, 3, 5, 6, 8]))
def test_stopped_run_resumes_exactly(tmp_path, mesh, step):
    """Stops inside a window (log_every is 3) and when a line and an evaluation are due (5, 6)."""
    evaluators = Evaluators()
    expected = run(tmp_path / "whole", mesh, (evaluators.first,))
    stop = StopAt(step)
    with pytest.raises(Stopped, match=f"Stopped after step {step}"):
        run(tmp_path / "parts", mesh, (evaluators.first,), stop=stop)
    assert stop.saves[0] == 0  # before anything is compiled, nothing is lost by ending
    assert stop.saves[-1] == step
    assert (tmp_path / "parts" / "checkpoints" / str(step)).is_dir()
    found = run(tmp_path / "parts", mesh, (evaluators.first,))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")
    assert recorded_choices(tmp_path / "parts") == {"encoder": "kernel_64"}


def timeless(model_dir):
    return [
        {name: value for name, value in line.items() if not commands.is_timing(name)}
        for line in lines(model_dir)
    ]


@pytest.mark.slow
def test_line_lost_in_a_crash_is_written_on_resume(tmp_path, mesh):
    """The state of step 5 is saved before the evaluation, which fails."""

    def failing(initial):
        def evaluate(params, step):
            if step == 5:
                raise KeyboardInterrupt
            return {"probe/w": float(np.asarray(params["w"])[0])}

        return evaluate

    run(tmp_path / "whole", mesh, (Evaluators().first,))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", mesh, (failing,))
    assert [line["step"] for line in lines(tmp_path / "parts")] == [0, 3]
    run(tmp_path / "parts", mesh, (Evaluators().first,))
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


def test_non_finite_batch_is_skipped_and_reported(tmp_path, mesh, caplog):
    batches = PoisonedBatches({3, 6})
    state = run(tmp_path, mesh, objective=Poisonable(), batches=batches, max_skipped=2)
    assert int(state.step) == 11
    assert int(state.carried["steps"]) == 9
    warnings = [record.getMessage() for record in caplog.records if "skipped" in record.msg]
    assert len(warnings) == 2
    assert "Step 4: update skipped, not finite: grad_norm, loss, monolingual/error" in warnings[0]
    assert "monolingual: en 7, batch-3 1" in warnings[0]
    found = {line["step"]: line for line in lines(tmp_path)}
    # 4, 5 and 6 make a line; what the other two measured is not hidden.
    assert found[6]["skipped"] == pytest.approx(1 / 3)
    assert np.isfinite(found[6]["loss"])
    assert found[3]["skipped"] == 0


def test_a_run_that_stays_poisoned_stops_and_says_where(tmp_path, mesh):
    batches = PoisonedBatches(range(6, 100))
    expected = (
        r"Step 9: loss or gradient were NaN or infinite in 3 steps in a row \(7 to 9\); not "
        r"finite: grad_norm, loss, monolingual/error\. Tasks .* monolingual: en 7, batch-8 1\. .*"
        r"Lower Optimizer\.learning_rate .*roll_back"
    )
    with pytest.raises(Diverged, match=expected):
        run(tmp_path, mesh, objective=Poisonable(), batches=batches, max_skipped=3)
    # A resumed run remembers how many were skipped before: the checkpoint of step 8 says two.
    with pytest.raises(Diverged, match=r"Step 9: .*\(7 to 9\)"):
        run(tmp_path, mesh, objective=Poisonable(), batches=batches, max_skipped=3)


@pytest.mark.slow
def test_a_run_rolls_back_and_goes_on_with_other_data(tmp_path, mesh, caplog):
    def roll_back(name, **settings):
        return run(
            tmp_path / name,
            mesh,
            (Evaluators().first,),
            objective=Poisonable(),
            batches=PoisonedBatches({5, 6, 7}),
            max_skipped=3,
            checkpoint_every=2,
            evaluate_every=100,
            on_divergence="roll_back",
            keep_checkpoints=20,
            **settings,
        )

    state = roll_back("whole")
    assert "Rolling back to step 4 and continuing with other data" in caplog.text
    assert int(state.step) == 11
    assert np.isfinite(state.params["w"]).all()
    found = lines(tmp_path / "whole")
    assert [line["step"] for line in found] == [0, 3, 6, 9, 11]
    assert found[-1]["skipped"] == 0
    assert read_record(tmp_path / "whole").inherited_flops["ours"] == 0.0
    # Step 6 was skipped before its checkpoint; 5 to 11 used batches 8 to 14, after the bad ones.
    batches = SkippingBatches(set())
    expected = run(tmp_path / "reference", mesh, objective=Poisonable(), batches=batches)
    np.testing.assert_array_equal(state.params["w"], expected.params["w"])
    # Stopped after the roll-back and resumed, it ends the same.
    with pytest.raises(Stopped):
        roll_back("parts", stop=StopAt(9))
    np.testing.assert_array_equal(roll_back("parts").params["w"], state.params["w"])
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


class SkippingBatches(PoisonedBatches):
    """The order of data after the roll-back."""

    def batch(self, number):
        return super().batch(number if number < 4 else number + 4)


def test_rolling_back_in_vain_ends(tmp_path, mesh):
    settings = {"max_skipped": 2, "on_divergence": "roll_back", "objective": Poisonable()}
    with pytest.raises(Diverged, match=r"Rolling back to step 4 3 times did not help"):
        run(tmp_path / "a", mesh, batches=PoisonedBatches(range(5, 100)), **settings)
    with pytest.raises(Diverged, match="There is no checkpoint to roll back to"):
        run(tmp_path / "b", mesh, batches=PoisonedBatches(range(100)), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 2])
def test_frequent_checkpoints_of_a_bad_stretch_are_no_targets(tmp_path, mesh, caplog, keep):
    settings = {
        "objective": Poisonable(),
        "max_skipped": 4,
        "checkpoint_every": 1,
        "keep_checkpoints": keep,
        "on_divergence": "roll_back",
    }
    with pytest.raises(Diverged, match=r"Rolling back to step 5 3 times did not help"):
        run(tmp_path / "bad", mesh, batches=PoisonedBatches(range(5, 100)), **settings)
    # The good one is still there, and the run goes on from it when the data are good.
    assert 5 in saved_steps(tmp_path / "bad" / "checkpoints")
    caplog.clear()
    state = run(tmp_path / "good", mesh, batches=PoisonedBatches(range(5, 9)), **settings)
    assert caplog.text.count("Rolling back to step 5") == 1
    assert int(state.step) == 11 and read_record(tmp_path / "good").skipped == 0
    assert max(saved_steps(tmp_path / "good" / "checkpoints")) == 11


def test_alarms_are_logged_when_they_begin_and_end(tmp_path, mesh, capsys):
    class Alarming(Toy):
        calls = 0

        @property
        def diagnostics(self):
            return Diagnostics(flops=lambda shapes: {}, alarms=self.alarms)

        def alarms(self, values):
            self.calls += 1
            return [f"Too large: {values['monolingual/error']}"] if self.calls in (2, 3, 5) else []

    objective = Alarming()
    run(tmp_path, mesh, objective=objective, log_every=1, alarms_after=3)
    assert objective.calls == 9  # steps 3 to 11
    said = [line.split(":")[:2] for line in capsys.readouterr().err.splitlines() if "Too" in line]
    assert said == [
        ["Step 4", " Too large"],
        ["Step 6", " alarm cleared"],
        ["Step 7", " Too large"],
        ["Step 8", " alarm cleared"],
    ]


def test_a_run_on_other_data_is_not_resumed(tmp_path, mesh):
    run(tmp_path, mesh)
    with pytest.raises(ValueError, match=r"step 11 .* belongs to other data .*INIT_FROM"):
        run(tmp_path, mesh, digest="other", train_steps=12)


def test_the_seed_makes_the_weights(mesh):
    assert not np.array_equal(loop_start(mesh, 0).params["w"], loop_start(mesh, 1).params["w"])
    np.testing.assert_array_equal(loop_start(mesh, 1).params["w"], loop_start(mesh, 1).params["w"])


def test_rows_are_divisible_by_devices_and_micro_batches(mesh):
    meshes.check_divisible({"monolingual": 8, "bitext": 16}, mesh, 4)
    with pytest.raises(ValueError, match=r"'bitext' has rows = 18, .* by 4 .* Choose rows = 20"):
        meshes.check_divisible({"monolingual": 8, "bitext": 18}, mesh, 4)


@pytest.mark.parametrize(
    "field",
    [
        *("train_steps", "checkpoint_every", "keep_checkpoints", "log_every"),
        *("evaluate_every", "micro_batches", "max_skipped", "alarms_after"),
    ],
)
def test_counts_below_one_are_refused(field):
    with pytest.raises(ValueError, match=rf"Loop\.{field} = 0 must be at least 1"):
        LoopConfig(**{"train_steps": 5, field: 0})
    assert LoopConfig(train_steps=5, seed=-1).seed == -1


class Growing(Toy):
    """An objective with an additional weight, which may be missing from checkpoints."""

    warm_start = WarmStart(new=("extra",))

    def init(self, rng):
        extra = jax.random.normal(jax.random.fold_in(rng, 1), (3,))
        return {**super().init(rng), "extra": nn.LogicallyPartitioned(extra, ("embed",))}


@pytest.mark.slow
def test_a_warm_start_takes_all_that_is_there(tmp_path, mesh):
    still = {"train_steps": 1, "seed": 7}  # No loss moves the weight that is new.
    plain = run(tmp_path / "plain", mesh)
    fresh = run(tmp_path / "fresh", mesh, objective=Growing(), init_from=str(tmp_path / "plain"))
    kept = run(
        tmp_path / "kept", mesh, objective=Growing(), init_from=str(tmp_path / "fresh"), **still
    )
    assert fresh.params["extra"].shape == (3,) and "extra" not in plain.params
    np.testing.assert_array_equal(kept.params["extra"], fresh.params["extra"])
    assert not np.array_equal(
        kept.params["extra"],
        run(tmp_path / "7", mesh, objective=Growing(), **still).params["extra"],
    )


class Filling(Toy):
    fill = 3


@pytest.mark.parametrize("micro_batches", tiny.slow_except([1], [1, 4]))
def test_carried_state_is_filled_before_the_first_step(tmp_path, mesh, micro_batches):
    """Batches 0 to 2 fill the carried state; the first update uses batch 3."""
    batches = Batches()
    state = run(
        tmp_path / "filled",
        mesh,
        objective=Filling(),
        batches=batches,
        train_steps=2,
        micro_batches=micro_batches,
    )
    assert batches.number == 5
    assert int(state.carried["steps"]) == 3 + 2
    later = Batches()
    later.number = 3
    expected = run(
        tmp_path / "plain", mesh, batches=later, train_steps=2, micro_batches=micro_batches
    )
    np.testing.assert_array_equal(state.params["w"], expected.params["w"])
    np.testing.assert_array_equal(state.carried["first"], expected.carried["first"])
    # A resumed run is ready.
    resumed = run(tmp_path / "filled", mesh, objective=Filling(), train_steps=3)
    assert int(resumed.carried["steps"]) == 3 + 3


def test_unknown_compiler_options_are_refused(tmp_path, mesh):
    with pytest.raises(ValueError, match=r"Loop.compiler_options has 'x': write .* 'name=value'"):
        LoopConfig(9, compiler_options=("x",))
    with pytest.raises(ValueError, match=r"Loop.compiler_options = .*No such compile option: 'x'"):
        states.check_compiler_options(LoopConfig(9, compiler_options=("x=1",)))
    known = ("xla_cpu_enable_fast_math=false", "xla_backend_optimization_level=1")
    states.check_compiler_options(LoopConfig(9, compiler_options=known))
    # The step is compiled with them.
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'x'"):
        run(tmp_path, mesh, compiler_options=("x=1",))
