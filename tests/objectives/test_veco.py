"""VECO's tasks, compared with an independent model in NumPy, and their dependencies."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import meta
from helpers import tiny
from helpers.random_weights import random_weights
from test_infoxlm import ENCODER

from xlme_jax.model.veco_network import partners
from xlme_jax.objectives.base import RunFacts, stream_rng
from xlme_jax.objectives.masked_lm import MaskedBatch, MaskingConfig
from xlme_jax.objectives.veco import VecoConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.ops import masking
from xlme_jax.tools.planning.counting import matmul_flops
from xlme_jax.training.mesh import unbox
from xlme_jax.training.sharded_state import init_state
from xlme_jax.training.step import make_train_step

VOCAB, LENGTH = 14, 16
MASK_ID = VOCAB - 1
BOS, PAD, EOS = 0, 1, 2

SPLIT = (0.8, 0.1, 0.1)
CONFIG = VecoConfig(ENCODER, MaskingConfig(0.3, SPLIT), MaskingConfig(0.4, SPLIT))
RNG = jax.random.key(7)
KINDS = ("loss", "accuracy")
TASKS = {"monolingual": ("mlm", "cs_mlm"), "bitext": ("mlm", "cs_mlm", "tlm")}


def stream(seed, lengths):
    """Returns rows of `LENGTH` tokens with pairs (length, length or 0) of segments."""
    rng = np.random.default_rng(seed)
    tokens = np.full((len(lengths), LENGTH), PAD)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    for row, pairs in enumerate(lengths):
        start = 0
        for segment, length in enumerate((n for pair in pairs for n in pair), 1):
            if not length:
                continue
            part = slice(start, start + length)
            tokens[row, part] = [BOS, *rng.integers(4, MASK_ID, length - 2), EOS]
            segments[row, part], positions[row, part] = segment, range(length)
            start += length
    arrays = {"tokens": tokens, "segment_ids": segments, "positions": positions}
    arrays["rows"] = np.arange(len(lengths))
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}


BATCH = {
    "monolingual": stream(0, [[(8, 8)], [(7, 6), (3, 0)], [(5, 0)], [(4, 4), (3, 5)]]),
    "bitext": stream(1, [[(5, 6), (3, 2)], [(4, 3)], [(8, 7)], [(3, 3), (4, 6)]]),
}


def changed(**changes):
    return dataclasses.replace(CONFIG, encoder=dataclasses.replace(ENCODER, **changes))


# For what does not depend on layers: compiles in half the time.
ONE_LAYER = changed(num_layers=1)


@functools.cache
def weights(config=CONFIG):
    """Returns weights with noise, so that no value is neutral."""
    return random_weights(config.build(VOCAB).init, jax.random.key(0), noise=0.2)


@functools.cache
def compiled(config):
    objective = config.build(VOCAB)

    def loss(params, batch, totals, rng):
        outputs = objective.loss(params, {}, batch, totals, rng)
        return outputs.loss(), outputs

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def run(config=CONFIG, batch=None, totals=None, rng=RNG, params=None):
    """Returns loss, metrics and gradient."""
    batch = batch or BATCH
    totals = totals or config.build(VOCAB).totals(batch)
    params = weights(config) if params is None else params
    (loss, outputs), gradient = compiled(config)(params, batch, totals, rng)
    assert outputs.per_row == outputs.task_losses == {}
    return float(loss), {k: tuple(map(float, v)) for k, v in outputs.metrics.items()}, gradient


@functools.partial(jax.jit, static_argnums=0)
def loss_and_metrics(config, params, rng):
    objective = config.build(VOCAB)
    outputs = objective.loss(params, {}, BATCH, objective.totals(BATCH), rng)
    return outputs.loss(), outputs.metrics


def measured(config=ONE_LAYER, rng=RNG):
    """Returns loss and metrics of BATCH; compiles in a third of the gradient's time."""
    loss, metrics = loss_and_metrics(config, weights(config), rng)
    return float(loss), {k: tuple(map(float, v)) for k, v in metrics.items()}


def metrics_of(config):
    """Returns the metrics of weights() and BATCH; compiles in a third of the gradient's time."""
    objective = config.build(VOCAB)

    @jax.jit
    def metrics(params, batch):
        return objective.loss(params, {}, batch, objective.totals(batch), RNG).metrics

    batch = {name: BATCH[name] for name in objective.streams}
    return {k: tuple(map(float, v)) for k, v in metrics(weights(), batch).items()}


drawn = jax.jit(MaskedBatch.draw, static_argnums=(0, 3))


def draw(name, rows=None, rng=RNG):
    """Returns the corrupted rows of a stream, as drawn by the objective."""
    mask_rng = jax.random.split(stream_rng(rng, name), 5)[0]
    config = {"monolingual": CONFIG.masking, "bitext": CONFIG.bitext_masking}[name]
    return drawn(config, BATCH[name] if rows is None else rows, mask_rng, VOCAB)


# ---- An independent model: a sentence at a time, no rows, no packing ----------------------------


def normalise(x, p):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * p["scale"] + p["bias"]


def heads_of(q, k, v, mask, out):
    """Computes attention: [n, H, K] and [m, H, K] twice -> [n, D]."""
    scores = np.einsum("ihk,jhk->hij", q, k) / np.sqrt(q.shape[-1])
    scores = np.exp(np.where(mask, scores, -np.inf))
    mixed = np.einsum("hij,jhk->ihk", scores / scores.sum(-1, keepdims=True), v)
    return np.einsum("ihk,hkd->id", mixed, out["kernel"]) + out["bias"]


def states_of(params, tokens, source=None):
    """Returns the last states [n, D] of one text, of the decoder if `source` states are given."""
    n = len(tokens)
    x = params["tokens"]["embedding"][tokens] + params["positions"]["embedding"][:n]
    x = normalise(x, params["encoder"]["embedding_norm"])
    mask = np.ones((n, n), bool) if source is None else np.tri(n, dtype=bool)
    for index in range(len(params["cross"])):
        p, c = params["encoder"][f"layer_{index}"], params["cross"][f"layer_{index}"]
        qkv = np.einsum("id,dnhk->nihk", x, p["attention"]["qkv"]["kernel"])
        qkv = qkv + p["attention"]["qkv"]["bias"][:, None]
        mixed = heads_of(*qkv, mask, p["attention"]["out"])
        x = normalise(x + mixed, p["attention_norm"])
        if source is not None:
            q = np.einsum("id,dhk->ihk", x, c["q"]["kernel"]) + c["q"]["bias"]
            kv = np.einsum("id,dnhk->nihk", source, c["kv"]["kernel"]) + c["kv"]["bias"][:, None]
            x = normalise(x + heads_of(q, *kv, True, c["out"]), c["norm"])
        h = x @ p["ffn"]["wi"]["kernel"] + p["ffn"]["wi"]["bias"]
        h = 0.5 * h * (1 + np.vectorize(math.erf)(h / np.sqrt(2)))
        h = h @ p["ffn"]["wo"]["kernel"] + p["ffn"]["wo"]["bias"]
        x = normalise(x + h, p["ffn_norm"])
    return x


def log_probabilities(params, states):
    head = params["head"]
    h = states @ head["dense"]["kernel"] + head["dense"]["bias"]
    h = normalise(0.5 * h * (1 + np.vectorize(math.erf)(h / np.sqrt(2))), head["norm"])
    logits = (h @ params["tokens"]["embedding"].T + head["bias"])[:, :VOCAB]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def terms(name, masked, config=ONE_LAYER, silent=False):
    """Returns {task: [(loss, hit) of every predicted token]}, by the paper's equations.

    Args:
      name: name of the stream.
      masked: its corrupted rows.
      config: whose weights and layers.
      silent: whether all tokens of the other sentence are `<mask>`.
    """
    params = jax.tree.map(lambda x: np.asarray(x, float), weights(config))
    by_task = {task: [] for task in TASKS[name]}
    for row in range(len(BATCH[name]["tokens"])):
        segments = np.asarray(masked.rows["segment_ids"][row])
        tokens, slots = np.asarray(masked.rows["tokens"][row]), np.asarray(masked.is_masked[row])
        places = [int(p) for p in np.asarray(masked.positions[row])[slots]]
        targets = dict(zip(places, np.asarray(masked.targets[row])[slots]))

        def predict(task, columns, states, targets=targets):
            scores = log_probabilities(params, states)
            for column, score in zip(columns, scores):
                if column in targets:
                    target = targets[column]
                    by_task[task].append((-score[target], score.argmax() == target))

        for one in range(1, segments.max() + 1, 2):
            pair = [np.flatnonzero(segments == s) for s in (one, one + 1)]
            for own, other in (pair, pair[::-1]):
                if not own.size:
                    continue
                predict("mlm", own, states_of(params, tokens[own]))
                if other.size:
                    read = tokens[other]
                    if silent:
                        read = np.where((read == BOS) | (read == EOS), read, MASK_ID)
                    source = states_of(params, read)
                    predict("cs_mlm", own, states_of(params, tokens[own], source))
            if name == "bitext":
                both = np.concatenate(pair)
                predict("tlm", both, states_of(params, tokens[both]))
    return {task: np.array(values, float) for task, values in by_task.items()}


@functools.cache
def expected(config):
    return {name: terms(name, draw(name), config) for name in BATCH}


@pytest.mark.parametrize(
    "config", tiny.slow_except([ONE_LAYER], [ONE_LAYER, CONFIG]), ids=["one layer", "two"]
)
def test_metrics_by_definition(config):
    _, metrics = measured(config)
    names = {f"{name}/{task}_{kind}" for name in BATCH for task in TASKS[name] for kind in KINDS}
    assert set(metrics) == names | {f"{name}/cs_mlm_accuracy_alone" for name in BATCH}
    for name, tasks in expected(config).items():
        # Tokens of pieces without partner are predicted by the other tasks alone.
        assert (len(tasks["cs_mlm"]) < len(tasks["mlm"])) == (name == "monolingual")
        for task, values in tasks.items():
            loss, hits = values.sum(axis=0)
            np.testing.assert_allclose(metrics[f"{name}/{task}_loss"][0], loss, rtol=1e-4)
            assert metrics[f"{name}/{task}_loss"][1] == len(values)
            assert metrics[f"{name}/{task}_accuracy"] == (hits, len(values))


def test_the_loss_is_the_sum_of_the_means():
    """CS-MLM on monolingual rows is divided by the expected number of tokens with a partner."""
    loss, _ = measured()
    total = sum(values.mean(axis=0)[0] for values in expected(ONE_LAYER)["bitext"].values())
    mono = expected(ONE_LAYER)["monolingual"]
    maskable = [[6 + 6], [5 + 4, 1], [3], [2 + 2 + 1 + 3]]
    masked = [max(1, round(0.3 * sum(row))) for row in maskable]
    assert sum(masked) == len(mono["mlm"])
    paired = [1, 9 / 10, 0, 1]
    total += mono["mlm"].mean(axis=0)[0]
    total += mono["cs_mlm"].sum(axis=0)[0] / np.dot(masked, paired)
    np.testing.assert_allclose(loss, total, rtol=1e-4)
    totals = CONFIG.build(VOCAB).totals(BATCH)
    assert float(totals["bitext"]["cross"]) == totals["bitext"]["masked"]
    np.testing.assert_allclose(totals["monolingual"]["cross"], np.dot(masked, paired), rtol=1e-6)


def step_that_measures(name, wanted=True):
    """Returns a key for which the accuracy without the other sentence is measured, or not."""
    for seed in range(200):
        alone_rng = jax.random.split(stream_rng(jax.random.key(seed), name), 5)[1]
        if (jax.random.randint(alone_rng, (), 0, 16) == 0) == wanted:
            return jax.random.key(seed)
    raise AssertionError("one step in 16 measures")


@pytest.mark.parametrize("name", BATCH)
def test_accuracy_without_the_other_sentence(name):
    rng = step_that_measures(name)
    masked = draw(name, rng=rng)
    hits = terms(name, masked, silent=True)["cs_mlm"].sum(axis=0)[1]
    with_it = terms(name, masked)["cs_mlm"]
    _, metrics = measured(rng=rng)
    assert metrics[f"{name}/cs_mlm_accuracy_alone"] == (hits, len(with_it))
    assert metrics[f"{name}/cs_mlm_accuracy"] == (with_it.sum(axis=0)[1], len(with_it))
    _, unmeasured = measured(rng=step_that_measures(name, wanted=False))
    assert unmeasured[f"{name}/cs_mlm_accuracy_alone"] == (0.0, 0.0)


def test_one_step_in_sixteen_measures():
    def draw(seed):
        alone = jax.random.split(stream_rng(jax.random.key(seed), "bitext"), 5)[1]
        return jax.random.randint(alone, (), 0, 16)

    drawn = jax.jit(jax.vmap(draw))(jnp.arange(1600))
    assert 60 < (drawn == 0).sum() < 140


# ---- What depends on what ----------------------------------------------------------------------


def decode_pairs(objective, params, rows, states, dropout_seeds=None):
    """Decodes both segments of each pair, each reading the other's states."""
    return objective.decode(params, rows, states, partners(rows["segment_ids"]), dropout_seeds)


@functools.cache
def scores_of(name):
    """Returns a function (tokens) -> log-probabilities [B, L, V] of CS-MLM."""
    objective, rows = CONFIG.build(VOCAB), BATCH[name]

    def scores(tokens, params):
        given = {**rows, "tokens": tokens}
        decoded = decode_pairs(objective, params, given, objective.encode(params, given)[-1])
        return jax.nn.log_softmax(objective.logits(params, decoded))

    return jax.jit(scores)


@pytest.mark.parametrize("name", BATCH)
def test_cs_mlm_sees_earlier_tokens_and_the_other_segment(name):
    """Changes every token of every row in turn."""
    tokens, segments = (np.asarray(BATCH[name][key]) for key in ("tokens", "segment_ids"))
    before = np.asarray(scores_of(name)(tokens, weights()))
    for column in range(LENGTH):
        other = tokens.copy()
        other[:, column] = 4 + (tokens[:, column] - 3) % (MASK_ID - 4)
        differs = (np.asarray(scores_of(name)(other, weights())) != before).any(axis=-1)
        here = segments[:, column, None]
        earlier = (segments == here) & (np.arange(LENGTH) >= column)
        partner = segments == ((here - 1) ^ 1) + 1
        real = (segments > 0) & (here > 0)
        np.testing.assert_array_equal(differs[real], (earlier | partner)[real])
        # And what is changed in the padding reaches no token.
        assert not differs[(segments > 0) & (here == 0)].any()


@functools.cache
def task_gradients():
    """Returns the gradient of each task's loss on bitext."""
    objective, name = ONE_LAYER.build(VOCAB), "bitext"
    rows, totals = BATCH[name], objective.totals(BATCH)[name]

    def losses(params):
        keys = objective.stream_keys(RNG, name)
        _, metrics, _ = objective._stream_loss(name, params, rows, totals, keys)
        return jnp.stack([metrics[f"{task}_loss"][0] for task in TASKS[name]])

    # On the host: a part of each array would be a program of its own.
    jacobian = jax.device_get(jax.jit(jax.jacrev(losses))(weights(ONE_LAYER)))
    return {
        task: jax.tree.map(lambda x, i=i: x[i], jacobian) for i, task in enumerate(TASKS["bitext"])
    }


def largest(tree):
    return max(float(np.abs(x).max()) for x in jax.tree.leaves(tree))


def test_no_gradient_of_cs_mlm_reaches_the_encoder_pass():
    """Its gradient equals that of a decoder whose source states are constants."""
    objective, masked, params = ONE_LAYER.build(VOCAB), draw("bitext"), weights(ONE_LAYER)

    def loss(params, states):
        decoded = decode_pairs(objective, params, masked.rows, states)
        log_p = jax.nn.log_softmax(objective.logits(params, decoded))
        predicted = log_p[jnp.arange(4)[:, None], masked.positions, masked.targets]
        return -(predicted * masked.is_masked).sum()

    @jax.jit
    def gradients(params):
        states, pull = jax.vjp(lambda p: objective.encode(p, masked.rows)[-1], params)
        gradient, through = jax.grad(loss, argnums=(0, 1))(params, states)
        return gradient, pull(through)[0]

    expected, stopped = gradients(params)
    gradient = task_gradients()["cs_mlm"]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient, expected
    )
    # There is a gradient that could have flowed, and it would have shown.
    assert largest(stopped) > 1e-2


def test_which_weights_each_task_trains():
    for task, gradient in task_gradients().items():
        for name in ("tokens", "positions", "encoder", "head"):
            assert largest(gradient[name]) > 0
        assert (largest(gradient["cross"]) > 0) == (task == "cs_mlm")


# ---- Training ----------------------------------------------------------------------------------


@functools.cache
def trained():
    """Returns states and metrics of train steps, with weight decay and momentum."""
    config = dataclasses.replace(CONFIG, cross_attention_steps=2)
    objective = config.build(VOCAB)
    optimizer = objective.optimizer(optax.adamw(3e-3, weight_decay=0.1))
    step = jax.jit(make_train_step(objective, optimizer, seed=0))
    states, metrics = [unbox(init_state(objective, optimizer, 0))], []
    for _ in range(62):
        state, measured = step(states[-1], BATCH)
        states.append(state)
        metrics.append(measured)
    return states, metrics


@pytest.mark.slow
def test_cross_attention_alone_is_trained_at_first():
    """After the first stage, all weights are trained."""
    states = trained()[0][:5]
    for number, (before, after) in enumerate(itertools.pairwise(states)):
        moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before.params, after.params)
        assert all(x > 0 for x in jax.tree.leaves(moved["cross"]))
        others = [max(jax.tree.leaves(tree)) for name, tree in moved.items() if name != "cross"]
        assert (max(others) == 0.0) if number < 2 else (min(others) > 0.0), number


def test_nothing_is_frozen_by_default():
    inner = optax.adam(0.1)
    assert CONFIG.build(VOCAB).optimizer(inner) is inner


@pytest.mark.slow
def test_freezing_adds_nothing_to_the_optimizers_state():
    config = dataclasses.replace(changed(absolute_positions=False), cross_attention_steps=3)
    objective, inner = config.build(VOCAB), optax.adam(0.1)
    params = random_weights(objective.init, jax.random.key(0))
    ones = jax.tree.map(np.ones_like, params)
    optimizer = objective.optimizer(inner)
    state = jax.jit(optimizer.init)(params)
    assert jax.tree.structure(state) == jax.tree.structure(jax.eval_shape(inner.init, params))
    update = jax.jit(optimizer.update)
    for step in range(5):
        updates, state = update(ones, state, params, step=jnp.asarray(step))
        moved = {name for name, part in updates.items() if largest(part) > 0}
        assert moved == ({"cross"} if step < 3 else set(params)), step
        assert int(optax.tree_utils.tree_get(state, "count")) == step + 1


def test_a_first_stage_that_cannot_work_is_refused():
    objective = dataclasses.replace(CONFIG, cross_attention_steps=3).build(VOCAB)
    objective.check(RunFacts({}, train_steps=4))
    with pytest.raises(ValueError, match=r"cross_attention_steps = 3 leaves none of TRAIN"):
        objective.check(RunFacts({}, train_steps=3))
    with pytest.raises(ValueError, match=r"they are random because INIT_FROM is None"):
        objective.check(RunFacts({}, train_steps=4, from_scratch=True))


@pytest.mark.slow
def test_a_step_lowers_the_loss_of_every_task():
    states, metrics = trained()
    before, after = (run(params=state.params)[1] for state in (states[0], states[-1]))
    assert all(float(one["skipped"][0]) == 0 for one in metrics)
    for name in BATCH:
        for task in TASKS[name]:
            losses = [m[f"{name}/{task}_loss"] for m in (before, after)]
            assert losses[1][0] < 0.97 * losses[0][0], (name, task)


DROPPED = changed(dropout=0.3, attention_dropout=0.3)


@pytest.mark.slow
def test_micro_batches_add_up():
    """The halves have unequal numbers of tokens and dropout, and all metrics are measured."""
    config = DROPPED
    totals, rng = config.build(VOCAB).totals(BATCH), step_that_measures("monolingual")
    whole, metrics, gradient = run(config, rng=rng, params=weights())
    parts = [
        run(
            config,
            jax.tree.map(lambda x, i=i: x[i::2], BATCH),
            totals=totals,
            rng=rng,
            params=weights(),
        )
        for i in (0, 1)
    ]
    sizes = [part[1]["monolingual/cs_mlm_loss"][1] for part in parts]
    assert sizes[0] != sizes[1] and metrics["monolingual/cs_mlm_accuracy_alone"][1] > 0
    np.testing.assert_allclose(sum(part[0] for part in parts), whole, rtol=1e-5)
    for key, pair in metrics.items():
        added = np.sum([part[1][key] for part in parts], axis=0)
        np.testing.assert_allclose(added, pair, rtol=1e-4)
    added = jax.tree.map(jnp.add, parts[0][2], parts[1][2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), added, gradient)


@pytest.mark.slow
def test_passes_drop_differently():
    """With dropout, encoder and decoder of a pair draw different masks."""
    config = DROPPED
    metrics = metrics_of(config)
    _, plain, _ = run()
    for name in BATCH:
        for task in TASKS[name]:
            assert metrics[f"{name}/{task}_loss"] != plain[f"{name}/{task}_loss"]
    objective, masked = config.build(VOCAB), draw("bitext")
    seeds = [jnp.full((4,), n, jnp.uint32) for n in (1, 2)]
    states = objective.encode(weights(), masked.rows)[-1]
    one, two = (decode_pairs(objective, weights(), masked.rows, states, s) for s in seeds)
    assert np.abs(np.asarray(one - two)).max() > 0.1


# ---- What is exported ---------------------------------------------------------------------------


def test_weights_are_xlms_and_cross_attention():
    """So a converted XLM-R provides all weights except cross-attention."""
    objective = CONFIG.build(VOCAB)
    xlm = XLMConfig(ENCODER).build(VOCAB)
    shapes, others = (
        jax.tree.map(jnp.shape, meta.unbox(jax.eval_shape(o.init, RNG))) for o in (objective, xlm)
    )
    assert objective.warm_start.new == ("cross",)
    assert {k: v for k, v in shapes.items() if k not in objective.warm_start.new} == others
    rows = BATCH["bitext"]
    handed_on = objective.encoder_params(weights())
    assert set(handed_on) == {"tokens", "positions", "encoder"}
    states = jax.jit(objective.encode)(handed_on, rows)
    expected = jax.jit(xlm.encode)(handed_on, rows)
    assert len(states) == len(expected) == 3
    jax.tree.map(np.testing.assert_array_equal, states, expected)


# ---- Switches, errors, figures -----------------------------------------------------------------


SWITCHES = {
    "gated bias, scan, remat, dropout": changed(
        relative_bias="gated",
        relative_buckets=8,
        relative_max_distance=6,
        scan_layers=True,
        remat=True,
        dropout=0.1,
        attention_dropout=0.1,
    ),
    "pre-norm, no absolute positions": changed(
        pre_norm=True,
        absolute_positions=False,
        relative_bias="plain",
        relative_buckets=8,
        relative_max_distance=6,
        num_layers=1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_runs(name):
    config = SWITCHES[name]
    loss, _, gradient = run(config)
    assert np.isfinite(loss)
    assert all(0 < np.abs(x).max() < 1e4 for x in jax.tree.leaves(gradient["cross"]))


@pytest.mark.slow
def test_without_translation_pairs_the_stream_is_dropped():
    config = dataclasses.replace(CONFIG, translation_pairs=False)
    objective = config.build(VOCAB)
    assert objective.streams == ("monolingual",) == tuple(objective.totals(BATCH))
    metrics, both = metrics_of(config), metrics_of(CONFIG)
    assert metrics == {k: v for k, v in both.items() if k.startswith("monolingual")}


@pytest.mark.slow
def test_a_stream_of_padding_alone_adds_nothing():
    empty = {**BATCH, "bitext": stream(1, [[]] * 4)}
    loss, metrics, gradient = run(batch=empty)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert metrics["bitext/cs_mlm_loss"] == metrics["bitext/tlm_loss"] == (0.0, 0.0)
    # And rows without any partner leave CS-MLM nothing to do.
    lonely = {**BATCH, "monolingual": stream(1, [[(9, 0)]] * 4)}
    loss, metrics, gradient = run(batch=lonely)
    assert np.isfinite(loss) and metrics["monolingual/cs_mlm_loss"] == (0.0, 0.0)
    assert metrics["monolingual/mlm_loss"][1] > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_bfloat16_compute_stays_near_float32():
    objective = CONFIG.build(VOCAB, jnp.bfloat16)
    totals = objective.totals(BATCH)
    outputs = jax.jit(lambda p: objective.loss(p, {}, BATCH, totals, RNG))(weights())
    loss, metrics = outputs.loss(), outputs.metrics
    assert loss.dtype == jnp.float32
    assert all(x.dtype == jnp.float32 for pair in metrics.values() for x in pair)
    np.testing.assert_allclose(loss, run()[0], rtol=0.02)


def test_dropout_for_fine_tuning():
    encoder = CONFIG.with_dropout(0.3).encoder
    assert (encoder.dropout, encoder.attention_dropout) == (0.3, 0.3)
    assert CONFIG.with_dropout(0.3).build(VOCAB).encoder.config == encoder


def test_masking_rates_are_table_7s():
    config = VecoConfig()
    assert (config.masking.rate, config.bitext_masking.rate) == (0.15, 0.25)
    assert config.masking.split == config.bitext_masking.split == SPLIT


def test_errors_name_the_field():
    with pytest.raises(ValueError, match=r"VECO\.cross_attention_steps = -1"):
        dataclasses.replace(CONFIG, cross_attention_steps=-1)
    with pytest.raises(ValueError, match=r"'bitext' has rows of 17 tokens.*max_length = 16"):
        CONFIG.build(VOCAB).check(RunFacts({"monolingual": 16, "bitext": 17}))
    CONFIG.build(VOCAB).check(RunFacts({"monolingual": 16, "bitext": 16}))


def test_alarms():
    objective = CONFIG.build(VOCAB)
    guess = math.log(VOCAB)
    fine = {f"{n}/{t}_loss": 0.9 * guess for n in BATCH for t in TASKS[n]}
    assert objective.diagnostics.alarms(fine) == []
    (text,) = objective.diagnostics.alarms({**fine, "bitext/mlm_loss": guess + 0.01})
    assert text.startswith("The masked language model has learned nothing on bitext:")
    (text,) = objective.diagnostics.alarms({**fine, "monolingual/cs_mlm_loss": guess + 0.01})
    assert text.startswith("Cross-sequence masked language modelling has learned nothing on mono")
    assert objective.diagnostics.alarms({}) == []
    assert objective.diagnostics.alarms(dict.fromkeys(fine, math.nan)) == []


def test_flops_count_every_part():
    shapes = {"monolingual": (4, 16), "bitext": (2, 10)}
    parts = CONFIG.build(VOCAB).diagnostics.flops(shapes)
    d, f, layers = 8, 12, 2

    def encoder(n):
        return layers * (8 * d**2 + 4 * d * f + 4 * n * d)

    def decoder(n):
        return encoder(n) + layers * (8 * d**2 + 4 * n * d)

    assert set(parts) == {"encoder", "decoder", "TLM encoder", "MLM heads"}
    assert parts["encoder"] == 3 * (64 * encoder(16) + 20 * encoder(10))
    assert parts["decoder"] == 3 * (64 * decoder(16) + 20 * decoder(10))
    assert parts["TLM encoder"] == 3 * 20 * encoder(10)
    slots = 2 * 4 * masking.max_masked(16, 0.3) + 3 * 2 * masking.max_masked(10, 0.4)
    assert parts["MLM heads"] == pytest.approx(3 * slots * (2 * d * d + 2 * d * VOCAB))


def test_flops_are_the_programs():
    """FLOPs of the forward pass without heads equal those of its matrix products exactly."""
    objective, rows = CONFIG.build(VOCAB), BATCH["bitext"]

    def passes(params):
        return decode_pairs(objective, params, rows, objective.encode(params, rows)[-1])

    parts = objective.diagnostics.flops({"bitext": (4, LENGTH)})
    counted = matmul_flops(jax.make_jaxpr(passes)(weights()))
    assert counted == (parts["encoder"] + parts["decoder"]) / 3
