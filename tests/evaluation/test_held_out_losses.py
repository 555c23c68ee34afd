"""Held-out losses of every system, compared with sums computed in the test."""

import dataclasses
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import runs, tiny
from helpers.random_weights import random_weights

from xlme_jax.data import prepared
from xlme_jax.data.batches import layouts
from xlme_jax.data.batches.one_pass import one_pass
from xlme_jax.data.batches.streams import held_out_tasks
from xlme_jax.data.prepared.writer import MonolingualWriter, write_dataset
from xlme_jax.evaluation.context import Context
from xlme_jax.evaluation.held_out_losses import HeldOut
from xlme_jax.evaluation.measure import Request
from xlme_jax.evaluation.outcome import subject_of
from xlme_jax.objectives.finetune import FineTuneConfig
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

# What is left of a system's configuration where its losses can be computed by themselves.
ALONE = {
    "xlme": {},
    "xylent": {},
    "xlm": {},
    "infoxlm": {
        "InfoXLM__contrast": None,
        "Train__streams": runs._Gin("(@monolingual/TextStream(), @bitext/PairStream())"),
    },
    "veco": {"VECO__alone_every": 1},
}
# Compiles in half the time.
ONE_STREAM = {"XLM__translation_pairs": False}
ROWS = 8
MASKED = {"mlm_loss", "mlm_accuracy"}
SAMPLED = MASKED | {"sampled_accuracy", "sampled_diversity"}
DETECTED = {"rtd_loss", "rtd_precision", "rtd_recall", "rtd_f1", "rtd_auc", "replace_rate"}
CROSS = {"cs_mlm_loss", "cs_mlm_accuracy", "cs_mlm_accuracy_alone"}
METRICS = {
    "xlme": {name: SAMPLED | DETECTED for name in ("monolingual", "bitext")},
    "xylent": {name: SAMPLED | DETECTED for name in ("monolingual", "bitext")},
    "xlm": {name: SAMPLED for name in ("monolingual", "bitext")},
    "infoxlm": {name: SAMPLED for name in ("monolingual", "bitext")},
    "veco": {
        "monolingual": MASKED | CROSS,
        "bitext": MASKED | CROSS | {"tlm_loss", "tlm_accuracy"},
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns the tiny data set with held-out running text, which has fewer rows than pairs."""
    directory = tiny.write_tiny_data(tmp_path_factory.mktemp("data"))
    tasks = list(prepared.PreparedDataset.load(directory).tasks)
    rng = np.random.default_rng(1)
    writer = MonolingualWriter(directory, "en", ["en"], tiny.VOCABULARY, split="validation")
    for length in rng.integers(4, 60, 5):
        writer.add([0, *tiny._words(rng, length), 2])
    model = directory / "random.model"
    write_dataset(directory, [*tasks, writer.close()], model, tiny.VOCABULARY)
    return prepared.PreparedDataset.load(directory)


@pytest.fixture(scope="module")
def mesh():
    return meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])


def context_of(data, mesh, objective="xlme", **bindings):
    config = runs.load("unused", str(data.directory), objective=objective, **bindings)
    built = config.objective.build(tiny.VOCABULARY)
    streams = tuple(config.streams_of(built))
    return Context(data, built, config.objective, streams, mesh)


def weights(context):
    """Returns weights with noise, so that no value is neutral."""
    return random_weights(context.objective.init, jax.random.key(3), noise=0.05)


def summed_here(context, params, passes):
    """Returns {stream/metric: float64 ratio} over the real rows of all batches."""
    objective = context.objective

    @jax.jit
    def metrics(params, batch):
        totals = objective.totals(batch)
        return objective.loss(params, {}, batch, totals, jax.random.key(0)).metrics

    tops, bottoms = {}, {}
    batches = {name: list(found.batches(ROWS)) for name, found in passes.items()}
    for number in range(max(map(len, batches.values()))):
        batch = {}
        for stream in context.streams:
            rows = batches[stream.name][number : number + 1] or [layouts.empty_rows(stream, ROWS)]
            batch[stream.name] = {
                **rows[0],
                "rows": number * ROWS + np.arange(ROWS, dtype=np.int32),
            }
        for name, (top, bottom) in metrics(params, batch).items():
            tops[name] = tops.get(name, 0.0) + float(top)
            bottoms[name] = bottoms.get(name, 0.0) + float(bottom)
    return {name: tops[name] / bottoms[name] for name in tops if bottoms[name]}


@pytest.mark.parametrize("objective", tiny.slow_except({"xlm"}, METRICS))
def test_figures_are_the_sums_over_all_rows(data, mesh, objective):
    """The run has dropout and streams without held-out text."""
    dropout = {"Encoder__dropout": 0.3, "Encoder__attention_dropout": 0.3}
    context = context_of(data, mesh, objective, **dropout)
    params = weights(context)
    alone = context_of(
        data,
        mesh,
        objective,
        **{name: 0.0 for name in dropout},
        **ALONE[objective],
    )
    passes = {s.name: one_pass(data, held_out_tasks(data, s), s) for s in alone.streams}
    assert passes["monolingual"].rows <= ROWS < passes["bitext"].rows
    with states.sharding_rules(mesh):
        measure = HeldOut().ratios(context)
        found = measure(params)
        expected = summed_here(alone, params, passes)
        assert measure(params) == found
    assert set(found) == {
        f"{s}/{name}" for s, names in METRICS[objective].items() for name in names
    }
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_some_tasks_under_a_name_of_their_own(data, mesh):
    still = {"Encoder__dropout": 0.0, "Encoder__attention_dropout": 0.0}
    context = context_of(data, mesh, "xlm", **still)
    params = weights(context)
    kinds = {stream.name: stream for stream in context.streams}
    task = next(t for t in data.tasks if (t.name, t.split) == ("en-fr", "validation"))
    passes = {
        "bitext": one_pass(data, [task], kinds["bitext"]),
        "monolingual": one_pass(
            data, held_out_tasks(data, kinds["monolingual"]), kinds["monolingual"]
        ),
    }
    # Whether the run trains on them or not.
    others = tuple(dataclasses.replace(stream, tasks=("??-ru",)) for stream in context.streams)
    with states.sharding_rules(mesh):
        elsewhere = dataclasses.replace(context, streams=others)
        found = HeldOut(tasks=("en-f*",), name="old").evaluator(elsewhere)(params)(params, 0)
        expected = summed_here(context, params, passes)
        with pytest.raises(ValueError, match=r"no validation split for the tasks \('fr',\) of the"):
            HeldOut(tasks=("fr",)).ratios(context)
    assert found.keys() == {f"held_out_old/bitext/{name}" for name in SAMPLED}
    for name, value in found.items():
        wanted = expected[name.removeprefix("held_out_old/")]
        np.testing.assert_allclose(value, wanted, rtol=1e-6, err_msg=name)
    with pytest.raises(ValueError, match=r"HeldOut.name = 'a/b' must be letters"):
        HeldOut(name="a/b")


@pytest.mark.slow
def test_a_cap_and_a_larger_batch(data, mesh):
    """Sums do not depend on batches, except `rtd_auc`, whose pairs are within a batch."""
    context = context_of(data, mesh, "xlm", **ONE_STREAM)
    params = weights(context)
    streams = tuple(dataclasses.replace(stream, rows=2) for stream in context.streams)
    with states.sharding_rules(mesh):
        eight = HeldOut(max_rows=5).ratios(context)(params)
        two = HeldOut(max_rows=5).ratios(dataclasses.replace(context, streams=streams))(params)
        whole = HeldOut(max_rows=None).ratios(context)(params)
        micro = dataclasses.replace(context, micro_batches=4)
        parts = HeldOut(max_rows=None).ratios(micro)(params)
    assert eight.keys() == two.keys() == whole.keys() == parts.keys()
    for name in eight:
        np.testing.assert_allclose(two[name], eight[name], rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-6, err_msg=name)
    assert whole["monolingual/mlm_loss"] != eight["monolingual/mlm_loss"]


@pytest.fixture(scope="module")
def one_stream(data, mesh):
    """Returns a context, an evaluator of it, weights and their figures."""
    context = context_of(data, mesh, "xlm", **ONE_STREAM)
    params = weights(context)
    with states.sharding_rules(mesh):
        evaluate = HeldOut().evaluator(context)(params)
        return context, evaluate, params, evaluate(params, 0)


@pytest.mark.slow
def test_other_weights_give_other_figures_and_the_step_does_not(one_stream, mesh):
    _, evaluate, params, first = one_stream
    with states.sharding_rules(mesh):
        assert evaluate(params, 7) == first
        other = evaluate(jax.tree.map(lambda x: x * 1.1, params), 7)
    assert first.keys() == other.keys()
    assert all(name.split("/")[0] == "held_out" for name in first)
    assert other["held_out/monolingual/mlm_loss"] != first["held_out/monolingual/mlm_loss"]


@pytest.mark.slow
def test_streams_without_held_out_text_are_skipped_and_named(tiny_data, mesh, caplog):
    context = context_of(prepared.PreparedDataset.load(tiny_data), mesh, "xlm")
    caplog.set_level(logging.INFO)
    measure = HeldOut().ratios(context)
    said = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(said) == 1 and "'monolingual'" in said[0] and "--validation=every:20" in said[0]
    params = weights(context)
    with states.sharding_rules(mesh):
        found = measure(params)
    assert {name.split("/")[0] for name in found} == {"bitext"}


@pytest.mark.parametrize("objective", tiny.slow_except({"xlme"}, METRICS))
def test_no_held_out_text_at_all_is_refused(tmp_path, mesh, objective):
    whole = prepared.PreparedDataset.load(tiny.write_tiny_data(tmp_path))
    model = tmp_path / "random.model"
    rows = [task for task in whole.tasks if task.split == "train"]
    write_dataset(tmp_path, rows, model, tiny.VOCABULARY)
    context = context_of(prepared.PreparedDataset.load(tmp_path), mesh, objective)
    with pytest.raises(ValueError, match=r"streams 'monolingual', 'bitext': .*validation=every:20"):
        HeldOut().evaluator(context)


def test_fine_tuning_has_no_such_losses(data, mesh):
    still = {"Encoder__dropout": 0.0, "Encoder__attention_dropout": 0.0}
    context = context_of(data, mesh, "xlm", **still)
    config = FineTuneConfig("xnli", context.objective_config)
    tuned = dataclasses.replace(
        context, objective_config=config, objective=config.build(tiny.VOCABULARY)
    )
    with pytest.raises(ValueError, match=r"FineTune has none: leave @HeldOut\(\) out"):
        HeldOut().evaluator(tuned)


def test_the_tasks_of_evaluate_are_not_those_of_prepared_data():
    of_run = HeldOut(max_rows=7, tasks=("cc100_*",))
    request = Request(tasks=("held_out_retrieval", "held_out"))
    assert HeldOut.requested("held_out", request, ()) == HeldOut()
    assert HeldOut.requested("held_out", request, (of_run,)) == of_run


@pytest.mark.parametrize("rows", [0, -1])
def test_a_cap_below_one_row_is_refused(rows):
    with pytest.raises(ValueError, match=f"HeldOut.max_rows = {rows} must be at least 1"):
        HeldOut(max_rows=rows)


@pytest.mark.slow
def test_a_checkpoints_outcome_has_the_same_figures(one_stream, mesh):
    context, _, params, expected = one_stream
    with states.sharding_rules(mesh):
        outcome = HeldOut().build(subject_of(context.objective, None, context=context))(params)
    assert outcome.headline == expected
    assert {f"held_out/{r.language}/{r.metric}": r.value for r in outcome.results} == expected
    assert {(r.task, r.split) for r in outcome.results} == {("held_out", "validation")}


@pytest.mark.slow
def test_empty_rows_do_not_count(data, mesh):
    """Rows of padding add nothing to any sum, not even NaN."""
    for objective in ("xlme", "veco"):
        context = context_of(data, mesh, objective)
        config = context.objective_config.held_out()
        built = config.build(tiny.VOCABULARY)
        rows = {s.name: layouts.empty_rows(s, 2) for s in context.streams}
        batch = jax.tree.map(jnp.asarray, {n: {**r, "rows": np.arange(2)} for n, r in rows.items()})
        outputs = jax.jit(
            lambda params, batch, built=built: built.loss(
                params, {}, batch, built.totals(batch), jax.random.key(0)
            )
        )(weights(context), batch)
        assert float(outputs.loss()) == 0.0
        assert json.loads(json.dumps(jax.tree.map(float, outputs.metrics))) == {
            name: [0.0, 0.0] for name in outputs.metrics
        }
