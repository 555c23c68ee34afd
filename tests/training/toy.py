"""An objective of one weight, to test the loop in milliseconds, and an early stop."""

import types
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from xlme_jax.objectives.base import Carry, Diagnostics, LossOutputs, PlainObjective, StreamInput
from xlme_jax.training import loop
from xlme_jax.training.run import NeverStop, Run
from xlme_jax.training.stopping import Stopped

LENGTH = 4


class Toy(PlainObjective):
    """Mean over real tokens of (w - token)^2 / 2; `noise` depends on the key.

    `carried` counts the steps and stores the first token of each row of the last one. It is ready
    after `fill` batches.
    """

    inputs = types.MappingProxyType({"monolingual": StreamInput("monolingual")})
    diagnostics = Diagnostics(flops=lambda shapes: {})
    fill = 0

    def init(self, rng):
        w = jax.random.normal(rng, (2,))
        return {"w": nn.LogicallyPartitioned(w, ("embed",))}

    @property
    def carry(self):
        def init(params):
            del params
            return {"steps": jnp.zeros((), jnp.int32), "first": jnp.zeros((8,), jnp.int32)}

        def after(params, carried, per_row):
            del params
            return {"steps": carried["steps"] + 1, "first": per_row["first"]}

        return Carry(init, after, lambda carried: carried["steps"] >= self.fill)

    def totals(self, batch):
        return {name: {"real": (batch[name]["segment_ids"] > 0).sum()} for name in self.streams}

    def loss(self, params, carried, batch, totals, rng):
        rows = batch["monolingual"]
        real = rows["segment_ids"] > 0
        w = params["w"].value if hasattr(params["w"], "value") else params["w"]
        error = (w.mean() - rows["tokens"]) ** 2 / 2 * real
        count = totals["monolingual"]["real"]
        metrics = {
            "monolingual/error": (error.sum(), real.sum().astype(jnp.float32)),
            "noise": (jax.random.uniform(rng), jnp.ones(())),
            "rows": (rows["rows"].sum().astype(jnp.float32), jnp.ones(())),
        }
        losses = {"monolingual": error.sum() / count}
        return LossOutputs(losses, metrics, {"first": rows["tokens"][:, 0]})


class Batches:
    """Numbered batches of 8 rows; the position is the next number."""

    def __init__(self, rows=8):
        self.rows, self.number = rows, 0

    def __next__(self):
        batch = self.batch(self.number)
        self.number += 1
        return batch

    def batch(self, number):
        rng = np.random.default_rng(number)
        lengths = rng.integers(1, LENGTH + 1, (self.rows, 1))
        real = (np.arange(LENGTH) < lengths).astype(np.int32)
        tokens = rng.integers(4, 20, (self.rows, LENGTH)).astype(np.int32)
        positions = np.zeros_like(tokens)
        return {"monolingual": {"tokens": tokens, "segment_ids": real, "positions": positions}}

    def tasks(self):
        return {"monolingual": {"en": self.rows}}

    def left_out(self):
        return {}

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


POISON = -1


class Poisonable(Toy):
    """A toy whose error is not finite if a token is POISON."""

    value = np.nan

    def loss(self, params, carried, batch, totals, rng):
        outputs = super().loss(params, carried, batch, totals, rng)
        poisoned = (batch["monolingual"]["tokens"] == POISON).any()
        error, count = outputs.metrics["monolingual/error"]
        error = jnp.where(poisoned, self.value, error)
        return outputs._replace(
            losses={"monolingual": jnp.where(poisoned, self.value, 1.0) * outputs.loss()},
            metrics={**outputs.metrics, "monolingual/error": (error, count)},
        )


class PoisonedBatches(Batches):
    """Batches, some of which contain POISON by number, with the tasks of each."""

    def __init__(self, poisoned, rows=8):
        super().__init__(rows)
        self.poisoned = set(poisoned)

    def batch(self, number):
        batch = super().batch(number)
        if number in self.poisoned:
            batch["monolingual"]["tokens"][0, 0] = POISON
        return batch

    def tasks(self):
        return {"monolingual": {"en": self.rows - 1, f"batch-{self.number - 1}": 1}}


def saved(model_dir):
    """Returns the steps of a run's checkpoints."""
    return {int(path.name) for path in (model_dir / "checkpoints").iterdir()}


class StopAt(NeverStop):
    """Requests a stop after a step, like a signal."""

    def __init__(self, step):
        self.step = step

    def requested(self, step):
        return step == self.step

    def saved(self, step, wait):
        if step == self.step:
            raise Stopped(step)


def toy_run(model_dir, mesh, config, objective=None, batches=None):
    """Returns a run of an objective, by default `Toy`, with a constant learning rate."""
    schedule = optax.constant_schedule(0.1)
    return Run(
        objective=objective or Toy(),
        optimizer=optax.sgd(schedule),
        schedule=schedule,
        batches=batches or Batches(),
        mesh=mesh,
        config=config,
        steps=range(config.train_steps),
        model_dir=model_dir,
        dataset_digest="d",
    )


def train(run, stop, steps):
    """Trains as `loop.train`, and traces the steps of equal runs once.

    Args:
      run: a run whose objective has no settings, and whose optimizer depends on its length alone.
      stop: what may end it.
      steps: the compiled steps of such runs, to which new ones are added.
    """
    compile_step = loop.compile_step

    def step_once(objective, optimizer, abstract, config, *more):
        lengths = config.train_steps, config.seed, config.micro_batches
        key = type(objective), *lengths, config.compiler_options
        if key not in steps:
            steps[key] = compile_step(objective, optimizer, abstract, config, *more)
        return steps[key]

    with mock.patch.object(loop, "compile_step", step_once):
        return loop.train(run, stop)
