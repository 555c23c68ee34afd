import json

import jax
import numpy as np
import optax
import pytest
from toy import Batches, Toy

from xlme_jax.training import loop
from xlme_jax.training import mesh as meshes
from xlme_jax.training.loop import LoopConfig
from xlme_jax.training.stopping import NeverStop


@pytest.fixture(scope="module")
def mesh():
    return meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])


def run(
    model_dir,
    mesh,
    evaluators=(),
    batches=None,
    digest="d",
    objective=Toy(),
    stop=NeverStop(),
    **settings,
):
    settings = {"log_every": 3, "evaluate_every": 5, "checkpoint_every": 4, **settings}
    config = LoopConfig(**{"train_steps": 11, **settings})
    schedule = optax.linear_schedule(0.1, 0.0, config.train_steps)
    run = loop.Run(
        objective,
        optax.sgd(schedule),
        schedule,
        batches or Batches(),
        mesh,
        config,
        model_dir,
        digest,
        evaluators,
        files={"config.gin": "Train.x = 1\n"},
    )
    return loop.train(run, stop)


def lines(model_dir):
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


class Evaluators:
    """Two evaluators that note what they are given."""

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


def loop_start(mesh, seed=0):
    with loop.sharding_rules(mesh):
        abstract = loop.abstract_state(Toy(), optax.sgd(0.1), mesh, seed)
        return loop.fresh_state(Toy(), optax.sgd(0.1), abstract, seed)


def test_a_line_averages_over_its_window(tmp_path, mesh):
    """Sums are added up before they are divided: batches have different numbers of tokens."""
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


def test_only_the_newest_checkpoints_stay(tmp_path, mesh):
    run(tmp_path, mesh, checkpoint_every=2, keep_checkpoints=2)
    assert {int(path.name) for path in (tmp_path / "checkpoints").iterdir()} == {10, 11}


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
    assert int(found.aux["calls"]) == 11
    # The yardstick of step 0 is made again from the seed, and step 0 is not evaluated again.
    np.testing.assert_array_equal(evaluators.initial[0], loop_start(mesh).params["w"])
    assert evaluators.steps == [5, 10, 11]
    steps = [line["step"] for line in lines(tmp_path / "parts")]
    assert steps == sorted(set(steps))


def test_a_run_on_other_data_is_not_resumed(tmp_path, mesh):
    run(tmp_path, mesh)
    with pytest.raises(ValueError, match=r"step 11 .* belongs to other data .*INIT_FROM"):
        run(tmp_path, mesh, digest="other", train_steps=12)


def test_the_seed_makes_the_weights(mesh):
    assert not np.array_equal(loop_start(mesh, 0).params["w"], loop_start(mesh, 1).params["w"])
    np.testing.assert_array_equal(loop_start(mesh, 1).params["w"], loop_start(mesh, 1).params["w"])


def test_rows_are_divisible_by_devices_and_micro_batches(mesh):
    loop.check_divisible({"monolingual": 8, "bitext": 16}, mesh, 4)
    with pytest.raises(ValueError, match=r"'bitext' has rows = 18, .* by 4 .* Choose rows = 20"):
        loop.check_divisible({"monolingual": 8, "bitext": 18}, mesh, 4)


@pytest.mark.parametrize(
    "field",
    [
        *("train_steps", "checkpoint_every", "keep_checkpoints", "log_every"),
        *("evaluate_every", "micro_batches"),
    ],
)
def test_counts_below_one_are_refused(field):
    with pytest.raises(ValueError, match=rf"Loop\.{field} = 0 must be at least 1"):
        LoopConfig(**{"train_steps": 5, field: 0})
    assert LoopConfig(train_steps=5, seed=-1).seed == -1
