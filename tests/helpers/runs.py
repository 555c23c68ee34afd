"""Trains in this process and compares checkpoints bitwise."""

import contextlib
import dataclasses
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from helpers import commands, tiny
from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.configuration import command_line, loading
from xlme_jax.runs import assembly
from xlme_jax.studies.reports import run_page
from xlme_jax.training import loop, sharded_state
from xlme_jax.training import mesh as meshes
from xlme_jax.training.loop_config import LoopConfig


class _Gin(str):
    """A literal gin value."""

    __repr__ = str.__str__


# A run to disturb. Lines of the log and evaluations end in the middle between checkpoints.
STEPS = 24
SHORT = {
    # One encoder and one stream: most of the time goes into tracing the step.
    "objective": "xlm",
    "XLM__translation_pairs": False,
    "TRAIN_STEPS": STEPS,
    "CHECKPOINT_EVERY": 4,
    "Loop__keep_checkpoints": 9,
    "Loop__log_every": 5,
    "Loop__evaluate_every": 10,
    "Train__evaluators": _Gin("(@RetrievalProbe(),)"),
    "RetrievalProbe__length": 32,
    "RetrievalProbe__batch_rows": 8,
}
# A run whose storage is disturbed: half as long, and without evaluations.
STORED = {**SHORT, "TRAIN_STEPS": 12, "Loop__evaluate_every": 100, "Train__evaluators": ()}


def load(model_dir, data_dir, **bindings):
    """Returns the configuration of a tiny run."""
    files, rest = [], []
    for flag in command_line.gin_flags(tiny.flags(model_dir, data_dir, **bindings)):
        name, value = flag.split("=", 1)
        (files if name == "--gin_file" else rest).append(value)
    return loading.load(files, rest, "Train")


def run(model_dir, data_dir, resume_with_changes=False, **bindings):
    """Trains in this process; returns the final state on the host."""
    config = load(model_dir, data_dir, **bindings)
    with (
        mock.patch.object(run_page, "write_report"),  # Seconds of drawing, and tested elsewhere.
        programs_once(config),
    ):
        text = loading.operative_config()
        return jax.device_get(assembly.train(config, text, resume_with_changes=resume_with_changes))


def run_and_read(model_dir, data_dir, **bindings):
    """Trains in this process; returns the final state and the batches of the steps."""
    read, put = [], meshes.put_batch

    def keep(batch, *arguments):
        read.append(batch)
        return put(batch, *arguments)

    with mock.patch.object(meshes, "put_batch", keep):
        state = run(model_dir, data_dir, **bindings)
    return state, read[-int(state.step) :]


@contextlib.contextmanager
def programs_once(config):
    """Returns a context in which runs that differ in no part of a program trace it once."""
    parts, compile_step, init = _parts(config), loop.compile_step, sharded_state._init

    def key(objective, *more):
        # Each phase has an objective, weights and tasks of its own.
        return parts, repr(objective.config) if config.phases else "", *map(repr, more)

    def step_once(objective, optimizer, abstract, settings, weights, counts):
        name = key(objective, weights, counts)
        if name not in _steps:
            _steps[name] = compile_step(objective, optimizer, abstract, settings, weights, counts)
        return _steps[name]

    def init_once(objective, optimizer, seed):
        name = key(objective, seed, type(objective), optimizer.init.__qualname__)
        return _inits.setdefault(name, init(objective, optimizer, seed))

    with (
        mock.patch.object(loop, "compile_step", step_once),
        mock.patch.object(sharded_state, "_init", init_once),
    ):
        yield


_steps, _inits = {}, {}


def _parts(config):
    """Returns a text of all in which the programs of two runs may differ."""
    settings = config.loop
    loop_parts = LoopConfig(
        settings.train_steps,
        seed=settings.seed,
        micro_batches=settings.micro_batches,
        init_from=settings.init_from and Path(settings.init_from).name,  # It may lack an MLM head.
        head_steps=settings.head_steps,
    )
    same = {"model_dir": "", "evaluators": (), "verify_data": True}
    return repr(dataclasses.replace(config, loop=loop_parts, **same))


def saved(model_dir, step, state):
    """Returns state and data position of a checkpoint."""
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    checkpoints = Checkpoints(Path(model_dir), keep=100)
    restored = checkpoints.restore(step, abstract)
    checkpoints.close()
    return restored


def assert_same_bits(left, right):
    """Checks that two trees of arrays are bitwise equal."""
    names, left_leaves = zip(*jax.tree_util.tree_flatten_with_path(left)[0])
    right_leaves = jax.tree.leaves(right)
    assert len(left_leaves) == len(right_leaves) > 1
    for name, a, b in zip(names, left_leaves, right_leaves):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), jax.tree_util.keystr(name)


def assert_same_batch(found, expected):
    """Checks that an inspected batch has the arrays of {stream: {name: array}}."""
    assert {rows.stream.name for rows in found.streams} == set(expected)
    for rows in found.streams:
        own = expected[rows.stream.name]
        assert set(rows.arrays) == set(own)
        for name, array in own.items():
            np.testing.assert_array_equal(rows.arrays[name], array)


def same_metrics(found_dir, expected_dir):
    """Checks that metrics have each step once and equal values, except measured times."""
    expected = commands.lines(expected_dir)
    assert [line["step"] for line in expected] == list(range(1, len(expected) + 1))
    assert commands.lines(found_dir) == expected


class Interrupted(Exception):
    """Raised to end a run."""
