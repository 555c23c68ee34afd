"""Contrast of pairs; tests/oracles/test_in_batch_contrast.py compares it with PyTorch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import meta
from helpers import tiny
from helpers.random_weights import random_weights

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import RunFacts, init_carried
from xlme_jax.objectives.finetune import FineTuneConfig
from xlme_jax.objectives.infoxlm import InfoXLMConfig
from xlme_jax.objectives.pair_contrast import ContrastConfig, TeacherConfig
from xlme_jax.objectives.xlme import XLMConfig, XLMEConfig

VOCAB, LENGTH, PAIRS = 40, 24, 2
ENCODER = EncoderConfig(
    hidden_size=16,
    num_layers=3,
    num_heads=2,
    ffn_size=24,
    max_length=LENGTH,
    relative_bias="none",
)
# For what does not depend on layers: compiles in a third of the time.
ONE_LAYER = XLMConfig(dataclasses.replace(ENCODER, num_layers=1))
CONFIG = ContrastConfig(ONE_LAYER, temperature=0.1, dropout=0.0)
RNG = jax.random.key(3)


def rows(sentences, sides=2):
    """Returns rows of sentences, lists of words; `sides` adjacent ones are a pair."""
    tokens = np.ones((len(sentences), LENGTH), np.int32)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    starts = np.full((len(sentences), sides * PAIRS), -1, np.int32)
    for row, of_row in enumerate(sentences):
        column = 0
        for segment, words in enumerate(of_row):
            part = slice(column, column + len(words) + 2)
            tokens[row, part] = [0, *words, 2]
            segments[row, part], positions[row, part] = segment + 1, range(len(words) + 2)
            starts[row, segment] = column
            column += len(words) + 2
    arrays = {"tokens": tokens, "segment_ids": segments, "positions": positions, "starts": starts}
    numbers = jnp.arange(len(sentences), dtype=jnp.int32)
    return {"bitext": {**{k: jnp.asarray(v) for k, v in arrays.items()}, "rows": numbers}}


def random_rows(count=4):
    """Returns rows of one or two pairs of different sentences."""
    rng = np.random.default_rng(0)

    def words():
        return rng.integers(4, VOCAB - 1, rng.integers(1, 5)).tolist()

    return rows([[words() for _ in range(4 - 2 * (row % 2))] for row in range(count)])


BATCH = random_rows()


@functools.cache
def built(config=CONFIG):
    objective = config.build(VOCAB)
    return objective, random_weights(objective.init, jax.random.key(0))


@functools.cache
def gradient_of(objective):
    """Returns a function that is jitted, so that unused layers are left out."""

    def loss(params, carried, batch):
        outputs = objective.loss(params, carried, batch, objective.totals(batch), RNG)
        return outputs.loss(), outputs

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def loss_of(objective, params, batch=BATCH, carried=None):
    """Returns the loss and the outputs, and the gradient."""
    if carried is None:
        carried = meta.unbox(init_carried(objective, params))
    return gradient_of(objective)(params, carried, batch)


@functools.cache
def outputs_of(objective):
    """Returns a function like `loss_of` without a gradient: compiles in a third of the time."""

    @jax.jit
    def outputs(params, carried, batch):
        outputs = objective.loss(params, carried, batch, objective.totals(batch), RNG)
        return outputs.loss(), outputs

    def run(params, batch=BATCH, carried=None):
        if carried is None:
            carried = meta.unbox(init_carried(objective, params))
        return outputs(params, carried, batch)

    return run


def states_of(objective, params):
    """Returns the states of BATCH after each layer of the objective's encoder."""
    return jax.jit(lambda params, rows: objective.encoder.encode(params, rows, None))(
        params, BATCH["bitext"]
    )


@functools.cache
def vectors_of(objective):
    """Returns a function of weights that returns the vectors of the sentences of BATCH."""
    return jax.jit(lambda params: objective._embed(params, BATCH["bitext"], None))


def ratio(outputs, name):
    numerator, denominator = outputs.metrics[f"bitext/{name}"]
    return float(numerator / denominator)


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


@pytest.mark.slow
def test_chunks_change_neither_loss_nor_gradient():
    """With dropout, whose masks belong to rows; 2e-6: another order of float32 sums."""
    config = dataclasses.replace(CONFIG, dropout=0.3, anchor_weight=0.5, learn_temperature=True)
    objective, params = built(config)
    start = {"start": jax.tree.map(lambda x: x + 0.01, objective.encoder_params(params))}
    (expected, _), gradient = loss_of(objective, params, carried=start)
    for chunk in (1, 2):
        chunked, _ = built(dataclasses.replace(config, chunk_rows=chunk))
        (loss, _), of_chunks = loss_of(chunked, params, carried=start)
        np.testing.assert_allclose(loss, expected, rtol=2e-6)
        scale = largest(gradient)
        jax.tree.map(
            lambda a, b, scale=scale: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * scale),
            of_chunks,
            gradient,
        )
    without_dropout, _ = built(dataclasses.replace(config, dropout=0.0))
    assert abs(loss_of(without_dropout, params, carried=start)[0][0] / expected - 1) > 1e-3


@pytest.mark.slow
def test_memory_is_that_of_a_chunk():
    def temporary_bytes(count, chunk):
        config = dataclasses.replace(CONFIG, pretrained=XLMConfig(ENCODER), chunk_rows=chunk)
        objective, params = built(config)
        batch = random_rows(count)

        def loss(params):
            return objective.loss(params, {}, batch, objective.totals(batch), RNG).loss()

        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(256, 8) < temporary_bytes(256, None) / 4


def test_equal_sentences_are_no_negatives():
    pairs = [([5, 6], [15, 16]), ([7], [17]), ([5, 6], [18]), ([9], [17]), ([6, 5], [19])]
    objective, params = built()
    (_, outputs), _ = loss_of(objective, params, rows([sum(pairs[:2], ()), *pairs[2:]]))
    # Pairs 0 and 2 have one first sentence, pairs 1 and 3 one second sentence; in another order it
    # is another sentence.
    assert ratio(outputs, "duplicates") == pytest.approx(4 / 5)
    assert ratio(outputs, "candidates") == pytest.approx(5 - 4 / 5)
    # All pairs equal: nothing to choose, no loss and no gradient.
    (loss, outputs), gradient = loss_of(objective, params, rows([pairs[0]] * 4))
    assert loss == 0 and ratio(outputs, "candidates") == 1 and largest(gradient) == 0


@pytest.mark.slow
def test_negatives_of_the_same_task():
    """Two tasks in a batch: the loss is the mean of those of their own batches."""
    config = dataclasses.replace(CONFIG, negatives="task")
    objective, params = built(config)
    assert objective.inputs["bitext"].tasks
    tasks = jnp.array([0, 1, 0, 1])[:, None] * (BATCH["bitext"]["segment_ids"] > 0)
    (loss, _), _ = loss_of(objective, params, {"bitext": {**BATCH["bitext"], "tasks": tasks}})
    parts = [{"bitext": {k: v[n::2] for k, v in BATCH["bitext"].items()}} for n in (0, 1)]
    losses = [float(loss_of(built()[0], params, part)[0][0]) for part in parts]
    assert loss == pytest.approx((4 * losses[0] + 2 * losses[1]) / 6, rel=1e-5)


def triplets(count=4):
    """Returns rows of one or two triplets; the last one has no negative."""
    rng = np.random.default_rng(1)

    def words():
        return rng.integers(4, VOCAB - 1, rng.integers(1, 3)).tolist()

    sentences = [[words() for _ in range(6 - 3 * (row % 2))] for row in range(count)]
    sentences[-1][-1] = []
    return sentences


HARD = dataclasses.replace(CONFIG, hard_negatives=True, dropout=0.3, anchor_weight=0.5)


@pytest.mark.slow
def test_hard_negatives_are_candidates_of_all_first_sentences():
    """The loss is that of vectors, and each first sentence chooses among 6 keys and 5 negatives."""
    config = dataclasses.replace(HARD, dropout=0.0, anchor_weight=0.0)
    objective, params = built(config)
    batch = rows(triplets(), 3)
    assert objective.inputs["bitext"].layout == "triplets"
    loss, outputs = outputs_of(objective)(params, batch)
    vectors = np.asarray(objective._embed(params, batch["bitext"], None), np.float64)
    is_there = np.asarray(batch["bitext"]["starts"]) >= 0
    first, second, third = (
        vectors[:, side::3][is_there[:, side::3]] / CONFIG.temperature for side in range(3)
    )
    forward = first @ np.concatenate([second, third[:-1]]).T * CONFIG.temperature
    losses = [np.log(np.exp(s).sum(axis=1)) - np.diag(s) for s in (forward, forward[:, :6].T)]
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert ratio(outputs, "candidates") == pytest.approx((11 + 6) / 2)


@pytest.mark.slow
def test_a_negative_that_equals_the_translation_is_none():
    pairs = [[[5, 6], [15, 16], [17]], [[7], [17], [15, 16]], [[8], [18], []]]
    objective, params = built(dataclasses.replace(HARD, both_directions=False, anchor_weight=0.0))
    _, outputs = outputs_of(objective)(params, rows(pairs, 3))
    # Each of the first two is the translation of one, and a negative of the two others.
    assert ratio(outputs, "candidates") == pytest.approx((4 + 4 + 5) / 3)
    assert ratio(outputs, "duplicates") == pytest.approx(2 / 3)


@pytest.mark.slow
def test_chunks_change_nothing_with_hard_negatives():
    """2e-6: another order of float32 sums."""
    objective, params = built(HARD)
    start = {"start": jax.tree.map(lambda x: x + 0.01, objective.encoder_params(params))}
    batch = rows(triplets(), 3)
    (expected, _), gradient = loss_of(objective, params, batch, start)
    chunked, _ = built(dataclasses.replace(HARD, chunk_rows=1))
    (loss, _), of_chunks = loss_of(chunked, params, batch, start)
    np.testing.assert_allclose(loss, expected, rtol=2e-6)
    atol = 2e-6 * largest(gradient)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), of_chunks, gradient
    )


@pytest.mark.slow
def test_hard_negatives_of_the_same_task():
    """Two tasks in a batch: the loss is the mean of those of their own batches."""
    config = dataclasses.replace(HARD, negatives="task", dropout=0.0, anchor_weight=0.0)
    objective, params = built(config)
    batch = rows(triplets(), 3)["bitext"]
    tasks = jnp.array([0, 1, 0, 1])[:, None] * (batch["segment_ids"] > 0)
    loss, _ = outputs_of(objective)(params, {"bitext": {**batch, "tasks": tasks}})
    alone, _ = built(dataclasses.replace(config, negatives="batch"))
    parts = [{"bitext": {k: v[n::2] for k, v in batch.items()}} for n in (0, 1)]
    losses = [float(outputs_of(alone)(params, part)[0]) for part in parts]
    assert loss == pytest.approx((4 * losses[0] + 2 * losses[1]) / 6, rel=1e-5)


def test_a_batch_of_padding_has_no_loss():
    objective, params = built()
    (loss, _), gradient = loss_of(objective, params, rows([[]] * 4))
    assert loss == 0 and largest(gradient) == 0


PRETRAINED = {
    "xlm": XLMConfig(ENCODER),
    "stacked": XLMConfig(dataclasses.replace(ENCODER, scan_layers=True)),
    "infoxlm": InfoXLMConfig(dataclasses.replace(ENCODER, num_layers=9)),
    "xlme": XLMEConfig(ENCODER, ENCODER),
}


@pytest.mark.parametrize("name", tiny.slow_except({"stacked"}, PRETRAINED))
def test_layers_above_the_pooled_one_are_neither_computed_nor_changed(name):
    config = dataclasses.replace(CONFIG, pretrained=PRETRAINED[name], layer=2)
    objective, params = built(config)
    (loss, _), gradient = loss_of(objective, params)
    states = states_of(objective, params)
    assert len(states) == objective.encoder.config.num_layers + 1
    assert loss == pytest.approx(_loss_of_states(states[2]), rel=1e-5)
    optimizer = objective.optimizer(optax.adamw(0.1, weight_decay=0.1))
    update = jax.jit(functools.partial(optimizer.update, step=jnp.zeros(())))
    updates, _ = update(gradient, jax.jit(optimizer.init)(params), params)
    encoder = updates["discriminator" if name == "xlme" else "encoder"]
    encoder = encoder.get("encoder", encoder)

    def layer(number):
        if name == "stacked":
            return jax.tree.map(lambda x: x[number], encoder["layers"])
        return encoder[f"layer_{number}"]

    assert largest(layer(1)) > 0 and largest(layer(2)) == 0
    deep = dataclasses.replace(config, layer=None).build(VOCAB)
    shapes = {"bitext": (4, LENGTH)}
    assert sum(objective.diagnostics.flops(shapes).values()) < sum(
        deep.diagnostics.flops(shapes).values()
    )


@pytest.mark.parametrize("name", tiny.slow_except({"xlm"}, ["xlm", "stacked"]))
def test_the_embeddings_are_pooled_by_layer_0(name):
    """No layer is computed or changed, and the embeddings are."""
    objective, params = built(dataclasses.replace(CONFIG, pretrained=PRETRAINED[name], layer=0))
    (loss, _), gradient = loss_of(objective, params)
    assert loss == pytest.approx(_loss_of_states(states_of(objective, params)[0]), rel=1e-5)
    optimizer = objective.optimizer(optax.adamw(0.1, weight_decay=0.1))
    update = jax.jit(functools.partial(optimizer.update, step=jnp.zeros(())))
    updates, _ = update(gradient, jax.jit(optimizer.init)(params), params)
    layers = {name: x for name, x in updates["encoder"].items() if name.startswith("layer")}
    assert layers and largest(layers) == 0
    assert largest(updates["tokens"]) > 0 and largest(updates["encoder"]["embedding_norm"]) > 0
    assert objective.diagnostics.flops({"bitext": (4, LENGTH)}) == {"encoder": 0}


def _loss_of_states(hidden):
    """Returns the loss of both directions for the mean states of the sentences of BATCH."""
    segments = np.asarray(BATCH["bitext"]["segment_ids"])
    sides = [[], []]
    for row, column in zip(*np.nonzero(np.asarray(BATCH["bitext"]["starts"]) >= 0)):
        vector = np.asarray(hidden, np.float64)[row][segments[row] == column + 1].mean(axis=0)
        sides[column % 2].append(vector / np.linalg.norm(vector))
    scores = np.array(sides[0]) @ np.array(sides[1]).T / CONFIG.temperature
    losses = [np.log(np.exp(s).sum(axis=1)) - np.diag(s) for s in (scores, scores.T)]
    return np.mean(losses)


@pytest.mark.parametrize("pooling", tiny.slow_except({"first"}, ["first", "mean_without_specials"]))
def test_poolings(pooling):
    objective, params = built(dataclasses.replace(CONFIG, pooling=pooling))
    rows = BATCH["bitext"]
    hidden = states_of(objective, params)[-1]
    row, column = 2, int(rows["starts"][2, 1])  # The second sentence of the third row.
    part = np.flatnonzero(rows["segment_ids"][row] == 2)[1:-1]
    expected = hidden[row, column] if pooling == "first" else hidden[row, part].mean(axis=0)
    vector = vectors_of(objective)(params)[row, 1]
    np.testing.assert_allclose(vector, expected / jnp.linalg.norm(expected), atol=2e-6)


def test_anchor_and_distillation_compare_with_the_start():
    config = dataclasses.replace(
        CONFIG, anchor_weight=1.0, freeze_tokens=True, distillation_weight=2.0, contrast_weight=0.0
    )
    objective, params = built(config)
    start = meta.unbox(init_carried(objective, params))
    assert "tokens" not in start["start"]  # The table does not change: no copy.
    _, outputs = outputs_of(objective)(params, carried=start)
    assert ratio(outputs, "anchor_loss") == 0
    moved = jax.tree.map(lambda x: 1.1 * x + 0.02, params) | {"tokens": params["tokens"]}
    loss, outputs = outputs_of(objective)(moved, carried=start)
    vectors = [vectors_of(objective)(weights) for weights in (moved, params)]
    distance = np.square(vectors[0] - vectors[1]).sum(axis=2)[:, ::2]
    assert ratio(outputs, "anchor_loss") == pytest.approx(distance.sum() / 6, rel=1e-4)
    from_first = np.square(vectors[0][:, 1::2] - vectors[1][:, ::2]).sum(axis=2)
    distilled = from_first.sum(where=BATCH["bitext"]["starts"][:, 1::2] >= 0) / 6
    assert ratio(outputs, "distillation_loss") == pytest.approx(distilled, rel=1e-4)
    assert loss == pytest.approx(ratio(outputs, "anchor_loss") + 2 * distilled, rel=1e-4)
    assert objective.carry.next(moved, start, {}) is start


DEEP = TeacherConfig("runs/teacher", XLMConfig(ENCODER))
DISTILLED = dataclasses.replace(
    CONFIG, teacher=DEEP, anchor_weight=1.0, distillation_weight=2.0, contrast_weight=0.0
)


def unit_vectors(pretrained, params, layer=-1, pooling="mean"):
    """Returns the unit vectors of the pairs of BATCH, by side, of an encoder of some system."""
    rows, sides = BATCH["bitext"], [[], []]
    hidden = states_of(pretrained.build(VOCAB), params)[layer]
    for row, column in zip(*np.nonzero(np.asarray(rows["starts"]) >= 0)):
        tokens = np.flatnonzero(rows["segment_ids"][row] == column + 1)
        states = np.asarray(hidden, np.float64)[row, tokens]
        vector = states[0] if pooling == "first" else states.mean(axis=0)
        sides[column % 2].append(vector / np.linalg.norm(vector))
    return np.array(sides)


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, True])
def test_a_teacher_gives_the_vectors_to_compare_with(freeze):
    """It has three layers and tables of its own, and the encoder one layer."""
    config = dataclasses.replace(DISTILLED, freeze_tokens=freeze, chunk_rows=2)
    objective, params = built(config)
    _, teacher = built(ContrastConfig(DEEP.pretrained))
    teacher = jax.tree.map(lambda x: 1.3 * x + 0.05, teacher)
    (loss, outputs), gradient = loss_of(objective, params, carried={"start": teacher})
    targets, ours = unit_vectors(DEEP.pretrained, teacher), unit_vectors(ONE_LAYER, params)
    anchor = np.square(ours[0] - targets[0]).sum(axis=1).mean()
    distillation = np.square(ours[1] - targets[0]).sum(axis=1).mean()
    assert anchor > 0.01 and distillation > 0.01
    assert ratio(outputs, "anchor_loss") == pytest.approx(anchor, rel=1e-4)
    assert ratio(outputs, "distillation_loss") == pytest.approx(distillation, rel=1e-4)
    assert loss == pytest.approx(anchor + 2 * distillation, rel=1e-4)
    assert (largest(gradient["tokens"]) == 0) == freeze and largest(gradient["encoder"]) > 0


@pytest.mark.slow
def test_a_teacher_of_a_contrast_has_its_layer_and_pooling():
    trained = ContrastConfig(DEEP.pretrained, layer=2, pooling="first", learn_temperature=True)
    objective, params = built(
        dataclasses.replace(DISTILLED, teacher=TeacherConfig("runs/teacher", trained))
    )
    _, teacher = built(ContrastConfig(DEEP.pretrained))
    _, outputs = outputs_of(objective)(params, carried={"start": teacher})
    targets = unit_vectors(DEEP.pretrained, teacher, layer=2, pooling="first")
    ours = unit_vectors(ONE_LAYER, params)
    distillation = np.square(ours[1] - targets[0]).sum(axis=1).mean()
    assert ratio(outputs, "distillation_loss") == pytest.approx(distillation, rel=1e-4)


@pytest.mark.slow
def test_a_teacher_is_of_any_system_and_read_from_its_checkpoint():
    teacher = TeacherConfig("runs/teacher", XLMEConfig(ENCODER, ENCODER))
    objective, params = built(dataclasses.replace(DISTILLED, teacher=teacher))
    carried = meta.unbox(init_carried(objective, params))
    assert objective.carry.sources == {"start": ("Teacher.checkpoint", "runs/teacher")}
    assert carried["start"].keys() == built(ContrastConfig(teacher.pretrained))[1].keys()
    # A teacher that nobody has read gives no loss.
    assert np.isnan(outputs_of(objective)(params, carried=carried)[0])
    assert not built(dataclasses.replace(DISTILLED, teacher=None))[0].carry.sources


def test_the_flops_are_those_of_the_teacher():
    shapes = {"bitext": (4, LENGTH)}
    parts = built(DISTILLED)[0].diagnostics.flops(shapes)
    assert parts["teacher"] == parts["encoder"]  # Three layers forward, one forward and backward.
    start = built(dataclasses.replace(DISTILLED, teacher=None))[0].diagnostics.flops(shapes)
    assert start == {"encoder": parts["encoder"], "encoder of the start": parts["encoder"] / 3}


def test_held_out_pairs_have_no_teacher():
    assert DISTILLED.held_out() == CONFIG
    assert DISTILLED.held_out().build(VOCAB).carry is None


@pytest.mark.slow
def test_frozen_tables_have_no_optimizer_state():
    objective, params = built(dataclasses.replace(CONFIG, freeze_tokens=True))
    optimizer = objective.optimizer(optax.adamw(0.1, weight_decay=0.1))
    _, gradient = loss_of(objective, params)
    state = jax.jit(optimizer.init)(params)
    updates, _ = jax.jit(functools.partial(optimizer.update, step=jnp.zeros(())))(
        gradient, state, params
    )
    assert largest(updates["tokens"]) == 0 and largest(updates["positions"]) > 0
    size = sum(leaf.size for leaf in jax.tree.leaves({**params, "tokens": ()}))
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 2.1 * size


@pytest.mark.slow
def test_a_learned_temperature_starts_where_it_is_set():
    objective, _ = built(dataclasses.replace(CONFIG, learn_temperature=True))
    params = meta.unbox(jax.jit(objective.init)(jax.random.key(0)))
    (loss, outputs), gradient = loss_of(objective, params)
    assert ratio(outputs, "temperature") == pytest.approx(0.1)
    assert loss == pytest.approx(loss_of(built()[0], objective.encoder_params(params))[0][0])
    assert largest(gradient["temperature"]) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "Contrast.temperature = 0.0 must be positive"),
        ({"temperature": 0.001, "learn_temperature": True}, "is below 0.01, the least"),
        ({"contrast_weight": 0.0}, "one of anchor_weight, distillation_weight, contrast_weight"),
        ({"layer": 2}, "Contrast.layer = 2 is above the encoder's last: Encoder.num_layers = 1"),
        (
            {"layer": 0, "freeze_tokens": True},
            "layer = 0 pools .*set Contrast.freeze_tokens = False",
        ),
        ({"layer": 0, "pooling": "first"}, "gives all sentences the vector of `<s>`"),
        ({"pretrained": CONFIG}, "is not a pre-training objective"),
        (
            {"layer": 2, "pretrained": XLMConfig(dataclasses.replace(ENCODER, pre_norm=True))},
            "leave Contrast.layer out",
        ),
        (
            {"teacher": DEEP},
            "Contrast.teacher: nothing reads its vectors; set Contrast.anchor_weight",
        ),
        (
            {
                "anchor_weight": 1.0,
                "teacher": TeacherConfig(
                    "runs/teacher", XLMConfig(dataclasses.replace(ENCODER, hidden_size=20))
                ),
            },
            "its vectors have 20 values, and those of Contrast.pretrained 16 .*INIT_FROM",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **settings).build(VOCAB)


@pytest.mark.parametrize("pretrained", [None, FineTuneConfig(pretrained=ONE_LAYER, task="xnli")])
def test_a_teacher_that_is_no_encoder_is_refused(pretrained):
    with pytest.raises(ValueError, match=r"Teacher.pretrained = .* is neither .* leave it out"):
        TeacherConfig("runs/teacher", pretrained)


def test_rows_that_the_teacher_cannot_read_are_refused():
    short = XLMConfig(dataclasses.replace(ENCODER, max_length=LENGTH - 1))
    config = dataclasses.replace(DISTILLED, teacher=TeacherConfig("runs/teacher", short))
    with pytest.raises(ValueError, match=r"teacher/encoder/Encoder.max_length = 23"):
        built(config)[0].check(RunFacts({"bitext": LENGTH}))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"micro_batches": 2}, "set it to 1, and Contrast.chunk_rows"),
        ({"items_per_step": {"bitext": 1}}, "raise bitext/PairStream.rows"),
        ({"distinct_items": {"bitext": 1}}, "has 1 pair: a contrast needs at least two"),
        ({"lengths": {"bitext": 99}}, "Raise max_length or shorten the rows"),
    ],
)
def test_runs_without_negatives_are_refused(facts, message):
    with pytest.raises(ValueError, match=message):
        built()[0].check(RunFacts(**{"lengths": {"bitext": LENGTH}, **facts}))
