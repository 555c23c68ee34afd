"""Fine-tuning: losses compared with PyTorch, and invariance of a step."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from helpers import tiny
from helpers.random_weights import random_weights

from xlme_jax.data.token_ids import IGNORED
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.finetune import HEAD, FineTuneConfig, label_loss, mask_padding
from xlme_jax.objectives.xlme import XLMConfig, XLMEConfig
from xlme_jax.training.mesh import unbox
from xlme_jax.training.sharded_state import init_state
from xlme_jax.training.step import make_train_step

ENCODER = EncoderConfig(hidden_size=16, num_layers=1, num_heads=2, ffn_size=32, max_length=24)
GENERATOR = dataclasses.replace(ENCODER, num_heads=1)
PRETRAINED = {
    "xlme": XLMEConfig(generator=GENERATOR, discriminator=ENCODER),
    "gdes": XLMEConfig(generator=GENERATOR, discriminator=ENCODER, embedding_sharing="gdes"),
    "xlm": XLMConfig(encoder=ENCODER),
}
WIDTHS = {"xnli": 1, "stsb": 1, "panx": 20, "xquad": 2}


def labels_of(task, rng, rows, length):
    """Returns labels of each kind; most tags are ignored."""
    if task == "stsb":
        return rng.uniform(0, 5, (rows, 1)).astype(np.float32).view(np.int32)
    if task == "panx":
        tags = rng.integers(0, 7, (rows, length))
        return np.where(rng.random((rows, length)) < 0.4, tags, IGNORED).astype(np.int32)
    return rng.integers(0, 3, (rows, WIDTHS[task])).astype(np.int32)


def batch_of(task, rows=8, length=20):
    rng = np.random.default_rng(3)
    lengths = rng.integers(4, length + 1, (rows, 1))
    real = np.arange(length) < lengths
    tokens = np.where(real, rng.integers(4, 90, (rows, length)), 1)
    labels = labels_of(task, rng, rows, length)
    if task == "panx":
        labels = np.where(real, labels, IGNORED)
    return {
        "labelled": {
            "tokens": tokens.astype(np.int32),
            "segment_ids": real.astype(np.int32),
            "positions": np.where(real, np.arange(length), 0).astype(np.int32),
            "labels": labels.astype(np.int32),
        }
    }


def build(task, pretrained="xlme", **fields):
    return FineTuneConfig(task, PRETRAINED[pretrained], **fields).build(100)


def loss_of(objective, params, batch, seed=0):
    rows = {"labelled": {**batch["labelled"], "rows": jnp.arange(len(batch["labelled"]["tokens"]))}}
    totals = objective.totals(rows)
    outputs = jax.jit(objective.loss)(params, {}, rows, totals, jax.random.key(seed))
    return outputs.loss(), outputs.metrics


@pytest.mark.parametrize("kind", ["classification", "tagging", "question_answering", "regression"])
def test_the_losses_are_pytorchs(kind):
    rng = np.random.default_rng(0)
    shape = {"classification": (5, 3), "tagging": (5, 7, 4), "question_answering": (5, 7, 2)}
    logits = rng.normal(size=shape.get(kind, (5, 1))).astype(np.float32)
    tensor = torch.tensor(logits)
    if kind == "regression":
        labels = rng.normal(size=(5, 1)).astype(np.float32)
        expected = torch.nn.functional.mse_loss(tensor, torch.tensor(labels))
        labels = labels.view(np.int32)
    elif kind == "question_answering":
        labels = rng.integers(0, 7, (5, 2)).astype(np.int32)
        bounds = torch.tensor(labels).long()
        expected = sum(
            torch.nn.functional.cross_entropy(tensor[:, :, side], bounds[:, side])
            for side in (0, 1)
        )
        expected = expected / 2
    else:
        labels = rng.integers(0, shape[kind][-1], shape[kind][:-1]).astype(np.int32)
        labels = np.where(rng.random(labels.shape) < 0.3, IGNORED, labels)
        flat = tensor.reshape(-1, shape[kind][-1]), torch.tensor(labels).long().reshape(-1)
        expected = torch.nn.functional.cross_entropy(*flat, ignore_index=IGNORED)
        labels = labels.reshape(5, -1).astype(np.int32)
    loss = jax.jit(label_loss, static_argnums=0)
    losses, _, counted = map(np.asarray, loss(kind, logits, labels))
    assert (losses * counted).sum() / counted.sum() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pretrained", "task"),
    itertools.product(PRETRAINED, WIDTHS),
)
def test_a_step_of_each_task_lowers_the_loss(task, pretrained):
    objective, batch = build(task, pretrained, dropout=0.0), batch_of(task)
    optimizer = optax.adam(3e-3)
    step = jax.jit(make_train_step(objective, optimizer, seed=0))
    state = unbox(jax.jit(lambda: init_state(objective, optimizer, 0))())
    before = float(loss_of(objective, state.params, batch)[0])
    for _ in range(8):
        state, metrics = step(state, batch)
    assert float(loss_of(objective, state.params, batch)[0]) < 0.9 * before
    assert float(metrics["skipped"][0]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", WIDTHS)
def test_micro_batches_and_padding_change_nothing(task):
    """The denominator is that of the whole batch, also with dropout."""
    objective = build(task)
    optimizer = optax.sgd(1.0)
    state = unbox(jax.jit(lambda: init_state(objective, optimizer, 0))())
    batch = batch_of(task)
    noisy = jax.tree.map(np.copy, batch)
    padding = noisy["labelled"]["segment_ids"] == 0
    noisy["labelled"]["tokens"][padding] = 50
    steps = {
        parts: jax.jit(make_train_step(objective, optimizer, seed=0, micro_batches=parts))
        for parts in (1, 4)
    }
    results = [steps[parts](state, rows)[0] for parts, rows in ((1, batch), (4, batch), (1, noisy))]
    for other in results[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=3e-6),
            results[0].params,
            other.params,
        )


@pytest.mark.parametrize("task", tiny.slow_except({"panx"}, WIDTHS))
def test_shorter_rows_change_nothing_but_padding(task):
    objective, batch = build(task, dropout=0.0), batch_of(task, length=13)
    params = random_weights(objective.init, jax.random.key(1))
    fills = {"tokens": 1, "labels": IGNORED}
    long = {
        name: np.pad(x, ((0, 0), (0, 7)), constant_values=fills.get(name, 0))
        if x.shape[1] == 13
        else x
        for name, x in batch["labelled"].items()
    }
    value = jax.jit(jax.value_and_grad(lambda p, b: loss_of(objective, p, b)[0]))
    one, other = value(params, batch), value(params, {"labelled": long})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pretrained", "scan"),
    itertools.product(("xlme", "xlm"), (False, True)),
)
def test_classification_reads_the_first_token_of_the_last_layer(pretrained, scan):
    """What is computed for it alone equals what is computed for all, which is the fallback."""
    encoder = dataclasses.replace(ENCODER, num_layers=2, scan_layers=scan)
    field = "discriminator" if pretrained == "xlme" else "encoder"
    config = dataclasses.replace(PRETRAINED[pretrained], **{field: encoder})
    objective = FineTuneConfig("xnli", config).build(100)
    params = random_weights(objective.init, jax.random.key(1))
    rows, seeds = batch_of("xnli")["labelled"], jnp.arange(8, dtype=jnp.uint32)
    view = objective.pretraining.encoder
    other = dataclasses.replace(view, encode_first=None)
    arguments = objective.encoder_params(params), rows, seeds
    first, whole = (jax.jit(one.first)(*arguments) for one in (view, other))
    assert first.shape == whole.shape == (8, 1, 16)
    np.testing.assert_allclose(first, whole, rtol=0, atol=2e-6)  # Values up to 4, in float32.


@pytest.mark.parametrize("pretrained", tiny.slow_except({"gdes"}, PRETRAINED))
def test_the_encoder_is_the_pretrained_one(pretrained):
    """Its weights keep their names, and its states equal those of pre-training."""
    objective = build("xnli", pretrained)
    params = random_weights(objective.init, jax.random.key(1))
    assert set(params) - {HEAD} == set(objective.encoder_params(params))
    rows = batch_of("xnli")["labelled"]
    pretraining = PRETRAINED[pretrained].build(100)
    whole = random_weights(pretraining.init, jax.random.key(2), seed=2)
    expected = jax.jit(pretraining.encode)(whole, rows)
    own = {**pretraining.encoder_params(whole), HEAD: params[HEAD]}
    found = jax.jit(objective.encode)(own, rows)
    assert len(found) == ENCODER.num_layers + 1
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("task", "is_dropped"), [("xquad", False), ("panx", True)])
def test_the_head_of_questions_has_no_dropout(task, is_dropped):
    objective, batch = build(task, dropout=0.25), batch_of(task)["labelled"]
    params = random_weights(objective.init, jax.random.key(0))
    seeds = jnp.arange(len(batch["tokens"]), dtype=jnp.uint32)

    @jax.jit
    def both(params):
        return objective._logits(params, batch, head_seeds=seeds), objective.predict(params, batch)

    assert np.array_equal(*both(params)) != is_dropped


@pytest.mark.slow
def test_dropout_is_that_of_fine_tuning():
    objective = build("xnli", dropout=0.25)
    assert objective.encoder.config.dropout == objective.encoder.config.attention_dropout == 0.25
    assert build("xnli", dropout=None).encoder.config == ENCODER
    params = random_weights(objective.init, jax.random.key(0))
    losses = {float(loss_of(objective, params, batch_of("xnli"), seed)[0]) for seed in (0, 1)}
    assert len(losses) == 2
    rows = batch_of("xnli")["labelled"]
    predict = jax.jit(objective.predict)
    np.testing.assert_array_equal(predict(params, rows), predict(params, rows))


def test_no_answer_is_in_the_padding():
    segment_ids = jnp.array([[1, 1, 0]])
    masked = mask_padding(jnp.array([[[0.0, 1.0], [2.0, 0.0], [90.0, 90.0]]]), segment_ids)
    assert masked.argmax(axis=1).tolist() == [[1, 0]]
    shares = jax.nn.softmax(masked, axis=1)
    assert shares[0, 2].tolist() == [0, 0] and np.isfinite(masked).all()


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="did you mean xnli"):
        FineTuneConfig("xnlli", PRETRAINED["xlm"])
    with pytest.raises(ValueError, match="INIT_FROM"):
        FineTuneConfig("xnli", None)
    with pytest.raises(ValueError, match=r"FineTune.dropout = 1.5"):
        FineTuneConfig("xnli", PRETRAINED["xlm"], dropout=1.5)
