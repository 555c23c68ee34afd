import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from helpers import tiny
from helpers.random_weights import random_weights

from xlme_jax.checkpoints import digests
from xlme_jax.model.electra import Electra, MaskedLM
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import RunFacts, stream_rng
from xlme_jax.objectives.masked_lm import MaskedBatch, MaskingConfig
from xlme_jax.objectives.xlme import XLME, XLMConfig, XLMEConfig, detection_loss
from xlme_jax.ops import masking
from xlme_jax.ops.vocabulary_head import VocabularyPrediction, padded_size

# Few enough ids that a sample often is the original.
VOCAB = 12
MASK_ID = VOCAB - 1
BOS, PAD, EOS = 0, 1, 2
SHARINGS = ("none", "tokens", "tokens+positions", "gdes")

DISCRIMINATOR = EncoderConfig(
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    ffn_size=12,
    max_length=16,
    relative_buckets=8,
    relative_max_distance=6,
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.3,
)
GENERATOR = dataclasses.replace(DISCRIMINATOR, hidden_size=4)
CONFIG = XLMEConfig(GENERATOR, DISCRIMINATOR, MaskingConfig(rate=0.3))
XLM_CONFIG = XLMConfig(DISCRIMINATOR, MaskingConfig(rate=0.3, split=(0.8, 0.1, 0.1)))
BOTH = (CONFIG, XLM_CONFIG)
RNG = jax.random.key(7)

STREAM_METRICS = {
    "mlm_loss",
    "mlm_accuracy",
    "sampled_accuracy",
    "sampled_diversity",
    "rtd_loss",
    "rtd_precision",
    "rtd_recall",
    "rtd_f1",
    "rtd_auc",
    "replace_rate",
}


def stream(seed, lengths):
    """Returns rows of packed segments `<s> ... </s>` with these lengths, 10 tokens per row."""
    rng = np.random.default_rng(seed)
    rows = np.arange(len(lengths))
    tokens = np.full((len(lengths), 10), PAD)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    for row, parts in zip(rows, lengths):
        start = 0
        for segment, length in enumerate(parts, 1):
            part = slice(start, start + length)
            tokens[row, part] = [BOS, *rng.integers(4, MASK_ID, length - 2), EOS]
            segments[row, part], positions[row, part] = segment, range(length)
            start += length
    arrays = {"tokens": tokens, "segment_ids": segments, "positions": positions, "rows": rows}
    return {name: jax.device_put(array.astype(np.int32)) for name, array in arrays.items()}


BATCH = {
    "monolingual": stream(0, [[10], [10], [6, 4], [7]]),
    "bitext": stream(1, [[5, 5], [4, 3], [9], [3]]),
}


draw = jax.jit(MaskedBatch.draw, static_argnums=(0, 3))


@functools.cache
def weights(objective_config):
    """Returns weights with noise, so that no value is neutral."""
    return random_weights(objective_config.build(VOCAB).init, jax.random.key(0))


@functools.cache
def compiled(objective_config):
    """Returns a function (params, batch, totals, rng) -> ((loss, outputs), gradient)."""
    objective = objective_config.build(VOCAB)

    def loss(params, batch, totals, rng):
        outputs = objective.loss(params, {}, batch, totals, rng)
        return outputs.loss(), outputs

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@functools.partial(jax.jit, static_argnums=0)
def loss_and_metrics(config, params, batch, rng):
    objective = config.build(VOCAB)
    outputs = objective.loss(params, {}, batch, objective.totals(batch), rng)
    return outputs.loss(), outputs.metrics


def metrics_of(config=CONFIG, batch=BATCH, rng=RNG):
    """Returns loss and metrics of `run`; compiles in a third of the gradient's time."""
    batch = {name: batch[name] for name in config.build(VOCAB).streams}
    value, metrics = loss_and_metrics(config, weights(config), batch, rng)
    return value, {k: tuple(map(float, v)) for k, v in metrics.items()}


def run(config=CONFIG, batch=None, totals=None, rng=RNG, params=None):
    """Returns loss, metrics and gradient."""
    batch = batch or BATCH
    totals = totals or config.build(VOCAB).totals(batch)
    params = weights(config) if params is None else params
    (loss, outputs), gradient = compiled(config)(params, batch, totals, rng)
    assert outputs.per_row == outputs.task_losses == {}
    return loss, {k: tuple(map(float, v)) for k, v in outputs.metrics.items()}, gradient


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@functools.cache
def applied(model, method):
    """Returns a compiled method of a model; its first argument is the weights."""
    return jax.jit(lambda params, *rows: model.apply({"params": params}, *rows, method=method))


def full_logits(module, rows):
    generator = getattr(module, "generator", module)
    hidden, bias = generator.head(generator.encode(rows))
    return hidden @ generator.tables()[0].T + bias


def dense_mlm(model, params, masked):
    """Returns cross-entropy and argmax at the masked slots, from full logits in NumPy."""
    full = np.asarray(applied(model, full_logits)(params, masked.rows), float)[..., :VOCAB]
    losses, hits = [], 0
    for row, slot in np.argwhere(np.asarray(masked.is_masked)):
        scores = full[row, masked.positions[row, slot]]
        target = int(masked.targets[row, slot])
        losses.append(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[target])
        hits += int(scores.argmax() == target)
    return losses, hits


def recompute(config, name, batch=None):
    """Returns the terms of XLM-E's loss on one stream, in NumPy from the model's logits."""
    objective, params = config.build(VOCAB), weights(config)
    rows = (batch or BATCH)[name]
    mask_rng = jax.random.split(stream_rng(RNG, name), 3)[0]
    masked = jax.device_get(draw(config.masking, rows, mask_rng, VOCAB))
    losses, hits = dense_mlm(objective.model, params, masked)
    prediction = jax.device_get(
        applied(objective.model, Electra.generate)(
            params, masked.rows, masked.positions, masked.targets, masked.uniforms
        )
    )
    original, replaced = np.asarray(rows["tokens"]), np.array(rows["tokens"])
    coincidences = 0
    sampled, targets = set(), set()
    for row, slot in np.argwhere(np.asarray(masked.is_masked)):
        position, sample = masked.positions[row, slot], int(prediction.sample[row, slot])
        coincidences += int(sample == original[row, position])
        replaced[row, position] = sample
        sampled.add((row, sample))
        targets.add((row, int(original[row, position])))
    logits = applied(objective.model, Electra.discriminate)(params, {**rows, "tokens": replaced})
    probability = sigmoid(np.asarray(logits, float))
    real, label = np.asarray(rows["segment_ids"]) > 0, replaced != original
    rtd = -np.where(label, np.log(probability), np.log1p(-probability))[real]
    called = (probability > 0.5) & real
    return {
        "mlm_loss": np.mean(losses),
        "mlm_accuracy": hits / len(losses),
        "sampled_accuracy": coincidences / len(losses),
        "sampled_diversity": len(sampled) / len(targets),
        "rtd_loss": rtd.mean(),
        "rtd_precision": (called & label).sum() / called.sum(),
        "rtd_recall": (called & label).sum() / label.sum(),
        "replace_rate": label.sum() / real.sum(),
        "auc": auc(probability[real], label[real]),
        "masked": len(losses),
        "coincidences": coincidences,
        "labels": label.sum(),
    }


def auc(score, label):
    """Returns the share of correctly ranked (replaced, original) pairs; ties count half."""
    above = score[label][:, None] - score[~label][None]
    return ((above > 0) + 0.5 * (above == 0)).mean()


@pytest.mark.parametrize("sharing", tiny.slow_except({"tokens"}, ["tokens", "gdes"]))
def test_loss_terms_by_definition(sharing):
    config = dataclasses.replace(CONFIG, embedding_sharing=sharing)
    loss, metrics = metrics_of(config)
    expected = {name: recompute(config, name) for name in BATCH}
    total = sum(terms["mlm_loss"] + 50 * terms["rtd_loss"] for terms in expected.values())
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    assert set(metrics) == {f"{name}/{key}" for name in BATCH for key in STREAM_METRICS}
    for name, terms in expected.items():
        for key in STREAM_METRICS - {"rtd_f1", "rtd_auc"}:
            numerator, denominator = metrics[f"{name}/{key}"]
            np.testing.assert_allclose(numerator / denominator, terms[key], rtol=1e-5)
        numerator, denominator = metrics[f"{name}/rtd_auc"]
        # 256 bins: pairs closer than 1/256 count half.
        np.testing.assert_allclose(numerator / denominator, terms["auc"], atol=0.05)
        precision, recall = terms["rtd_precision"], terms["rtd_recall"]
        numerator, denominator = metrics[f"{name}/rtd_f1"]
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        np.testing.assert_allclose(numerator / denominator, f1, rtol=1e-5, atol=1e-9)


def test_a_sampled_original_counts_as_original():
    terms = [recompute(CONFIG, name) for name in BATCH]
    assert sum(term["coincidences"] for term in terms) > 0  # else this would test nothing
    for term in terms:
        assert term["labels"] == term["masked"] - term["coincidences"]
    _, metrics = metrics_of()
    for name, term in zip(BATCH, terms):
        assert metrics[f"{name}/replace_rate"][0] == term["labels"]
        assert metrics[f"{name}/sampled_accuracy"] == (term["coincidences"], term["masked"])


def test_detection_loss_by_hand():
    """Positive logits mean "replaced"; padding does not count."""
    logits = jnp.array([[2.0, -1.0, 3.0, 9.0]])
    replaced = jnp.array([[True, False, False, False]])
    real = jnp.array([[True, True, True, False]])
    loss, metrics = jax.jit(detection_loss)(logits, replaced, real, jnp.float32(3))
    expected = -np.log(sigmoid(2.0)) - np.log(1 - sigmoid(-1.0)) - np.log(1 - sigmoid(3.0))
    np.testing.assert_allclose(loss, expected / 3, rtol=1e-6)
    values = {k: tuple(float(x) for x in v) for k, v in metrics.items()}
    assert values["rtd_precision"] == (1, 2) and values["rtd_recall"] == (1, 1)
    assert values["rtd_f1"] == (2, 3) and values["replace_rate"] == (1, 3)
    assert values["rtd_auc"] == (1, 2)
    # Extreme logits neither overflow nor lose the gradient.
    big = jax.jit(detection_loss)(jnp.array([[-1e4, 1e4]]), real[:, :2], real[:, :2], 2.0)[0]
    np.testing.assert_allclose(big, 5e3)


def test_sampled_diversity_by_hand():
    """Rows are counted separately, unused slots are ignored, token 0 is not special."""
    is_masked = jnp.array([[True, True, True, False], [True, True, False, False]])
    targets = jnp.array([[5, 7, 5, 9], [5, 6, 1, 1]])
    sample = jnp.array([[6, 6, 6, 8], [0, 6, 3, 3]])
    masked = MaskedBatch({}, jnp.zeros((2, 4)), is_masked, targets, jnp.zeros((2, 4, 1, 2)))
    prediction = VocabularyPrediction(jnp.zeros((2, 4)), sample, sample)
    _, metrics = masked.loss(prediction, jnp.float32(5))
    assert tuple(map(float, metrics["sampled_diversity"])) == (1 + 2, 2 + 2)


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, XLM_CONFIG], ids=["xlme", "xlm"])
def test_micro_batches_add_up(config):
    """Halves with unequal numbers of tokens are shares of one mean."""
    totals = config.build(VOCAB).totals(BATCH)
    whole, metrics, gradient = run(config)
    parts = [
        run(config, jax.tree.map(lambda x, i=i: x[i::2], BATCH), totals=totals) for i in (0, 1)
    ]
    sizes = [part[1]["bitext/mlm_loss"][1] for part in parts]
    assert sizes[0] != sizes[1]
    np.testing.assert_allclose(sum(part[0] for part in parts), whole, rtol=1e-6)
    for key, (numerator, denominator) in metrics.items():
        if key.endswith("auc"):
            continue  # of pairs within a micro-batch
        added = np.sum([part[1][key] for part in parts], axis=0)
        np.testing.assert_allclose(added, (numerator, denominator), rtol=1e-5)
    added = jax.tree.map(np.add, parts[0][2], parts[1][2])
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(gradient))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * scale), added, gradient
    )


def test_totals_are_what_the_loss_counts():
    totals = CONFIG.build(VOCAB).totals(BATCH)
    _, metrics = metrics_of()
    for name, rows in BATCH.items():
        assert totals[name]["masked"] == metrics[f"{name}/mlm_loss"][1]
        assert totals[name]["real"] == metrics[f"{name}/rtd_loss"][1]
        assert totals[name]["real"] == (rows["segment_ids"] > 0).sum()


def part_gradients(config, *parts):
    """Returns the gradients of the loss of each part ("rtd" or "mlm") of the monolingual stream."""
    objective = dataclasses.replace(config, translation_pairs=False).build(VOCAB)
    totals = objective.totals(BATCH)

    def losses(params):
        metrics = objective.loss(params, {}, BATCH, totals, RNG).metrics
        return jnp.stack([metrics[f"monolingual/{part}_loss"][0] for part in parts])

    # On the host: a part of each array would be a program of its own.
    gradients = jax.device_get(jax.jit(jax.jacrev(losses))(weights(config)))
    return [jax.tree.map(lambda x, i=i: x[i], gradients) for i in range(len(parts))]


def largest(tree):
    return max(float(np.abs(x).max()) for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("sharing", tiny.slow_except({"gdes"}, SHARINGS))
def test_gradients_stop_where_they_should(sharing):
    """The discriminator's loss trains only the shared weights of the generator."""
    config = dataclasses.replace(CONFIG, embedding_sharing=sharing)
    rtd, mlm = part_gradients(config, "rtd", "mlm")
    assert largest(rtd["generator"]["encoder"]) == 0.0
    assert largest(rtd["generator"]["head"]) == 0.0
    table, positions = rtd["generator"]["tokens"], rtd["generator"]["positions"]
    assert (largest(table) > 0) == (sharing in ("tokens", "tokens+positions"))
    assert (largest(positions) > 0) == (sharing == "tokens+positions")
    assert all(largest(part) > 0 for part in rtd["discriminator"].values())
    assert largest(mlm["discriminator"]) == 0.0
    assert all(largest(part) > 0 for part in mlm["generator"].values())


@pytest.mark.parametrize("sharing", SHARINGS)
def test_parameter_trees(sharing):
    config = dataclasses.replace(CONFIG, embedding_sharing=sharing)
    objective, params = config.build(VOCAB), weights(config)
    generator, discriminator = params["generator"], params["discriminator"]
    assert set(params) == {"generator", "discriminator"}
    assert set(generator) == {"tokens", "positions", "encoder", "head"}
    own = {
        "none": {"tokens", "positions"},
        "tokens": {"positions"},
        "gdes": {"tokens", "positions"},
    }
    assert set(discriminator) == {"encoder", "head"} | own.get(sharing, set())
    # A table of the generator's alone has its width; a shared one is projected.
    width = GENERATOR.hidden_size if sharing == "none" else DISCRIMINATOR.hidden_size
    assert generator["tokens"]["embedding"].shape == (padded_size(VOCAB), width)
    assert generator["positions"]["embedding"].shape == (16, width)
    assert ("projection" in generator["encoder"]) == (sharing != "none")
    assert "projection" not in discriminator["encoder"]
    handed_on = objective.encoder_params(params)
    assert handed_on["discriminator"] is discriminator
    shared = {"none": set(), "tokens+positions": {"tokens", "positions"}}
    assert set(handed_on["generator"]) == shared.get(sharing, {"tokens"})


@pytest.mark.parametrize("sharing", tiny.slow_except({"gdes"}, SHARINGS))
def test_exported_weights_suffice_for_encode(sharing):
    objective = dataclasses.replace(CONFIG, embedding_sharing=sharing).build(VOCAB)
    params = weights(objective.config)
    encode = jax.jit(objective.encode)
    states = encode(objective.encoder_params(params), BATCH["bitext"])
    assert len(states) == 2 and states[-1].shape == (4, 10, 8)
    np.testing.assert_array_equal(states[-1], encode(params, BATCH["bitext"])[-1])


@pytest.mark.parametrize("sharing", tiny.slow_except({"tokens"}, SHARINGS))
def test_the_generator_is_an_encoder_beside(sharing):
    config = dataclasses.replace(CONFIG, embedding_sharing=sharing)
    objective, params = config.build(VOCAB), weights(config)
    others = objective.diagnostics.encoders
    (other,) = others.values()
    assert list(others) == ["generator"] and other.config == GENERATOR
    rows = BATCH["bitext"]
    states = jax.jit(other.encode)(params, rows)
    own = GENERATOR if sharing == "none" else DISCRIMINATOR
    alone = MaskedLM(GENERATOR, VOCAB, own.hidden_size)
    encode = jax.jit(functools.partial(alone.apply, method=MaskedLM.encode))
    expected = encode({"params": params["generator"]}, rows)
    assert len(states) == GENERATOR.num_layers + 1
    np.testing.assert_array_equal(states[-1], expected)
    assert not XLM_CONFIG.build(VOCAB).diagnostics.encoders


@pytest.mark.slow
def test_gdes_starts_from_the_generators_table():
    config = dataclasses.replace(CONFIG, embedding_sharing="gdes")
    params = meta.unbox(config.build(VOCAB).init(jax.random.key(0)))
    delta = params["discriminator"].pop("tokens")["embedding"]
    assert np.abs(delta).max() == 0.0
    zeros = {"tokens": {"embedding": delta}}
    with_delta = {**params, "discriminator": {**params["discriminator"], **zeros}}
    one = config.build(VOCAB).encode(with_delta, BATCH["bitext"])[-1]
    other = CONFIG.build(VOCAB).encode(params, BATCH["bitext"])[-1]
    np.testing.assert_array_equal(one, other)


def by_name(tree):
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {digests.leaf_name(path): leaf for path, leaf in leaves}


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_masked_language_model_starts_both_encoders(sharing):
    config = XLMEConfig(DISCRIMINATOR, DISCRIMINATOR, embedding_sharing=sharing)
    xlm, xlme = XLM_CONFIG.build(VOCAB), config.build(VOCAB)
    source = by_name(weights(XLM_CONFIG))
    fresh = meta.unbox(jax.jit(xlme.init)(jax.random.key(0)))
    started = dict(by_name(fresh))
    for name in started:
        for part, counterpart in xlme.warm_start.counterparts.items():
            if name.startswith(f"{part}."):
                started[name] = source[counterpart + name.removeprefix(part)]
    # All of the source is used, and each encoder reads text as it did.
    assert {x.unsafe_buffer_pointer() for x in source.values()} <= {
        x.unsafe_buffer_pointer() for x in started.values()
    }
    params = jax.tree.unflatten(jax.tree.structure(fresh), started.values())
    rows = BATCH["bitext"]
    expected = jax.jit(xlm.encode)(weights(XLM_CONFIG), rows)
    generator = xlme.diagnostics.encoders["generator"].encode
    for encode in (xlme.encode, generator):
        for a, b in zip(jax.jit(encode)(params, rows), expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_without_translation_pairs_the_stream_is_dropped():
    config = dataclasses.replace(CONFIG, translation_pairs=False)
    objective = config.build(VOCAB)
    assert objective.streams == ("monolingual",)
    assert set(objective.totals(BATCH)) == {"monolingual"}
    loss, metrics = metrics_of(config)
    assert {key.split("/")[0] for key in metrics} == {"monolingual"}
    # The monolingual terms are those of the full objective: streams do not disturb each other.
    _, both, _ = run()
    # Two programs may add in another order: a few units in the last place of float32.
    of_both = {k: v for k, v in both.items() if k.startswith("monolingual")}
    assert metrics.keys() == of_both.keys()
    for name, values in metrics.items():
        np.testing.assert_allclose(values, of_both[name], rtol=4 * np.finfo(np.float32).eps)
    means = {k: metrics[f"monolingual/{k}_loss"] for k in ("mlm", "rtd")}
    expected = sum(w * means[k][0] / means[k][1] for k, w in (("mlm", 1), ("rtd", 50)))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize(("mask_bos", "mask_eos"), [(False, False), (True, False), (True, True)])
def test_specials_are_masked_if_asked_and_padding_never(mask_bos, mask_eos):
    config = MaskingConfig(rate=0.5, mask_bos=mask_bos, mask_eos=mask_eos)
    masked_tokens = []
    for seed in range(40):
        for rows in BATCH.values():
            masked = draw(config, rows, jax.random.key(seed), VOCAB)
            chosen = np.asarray(masked.is_masked)
            masked_tokens.append(np.asarray(masked.targets)[chosen])
            changed = np.asarray(masked.rows["tokens"] != rows["tokens"])
            assert changed.sum() == chosen.sum()
            assert (np.asarray(masked.rows["tokens"])[changed] == MASK_ID).all()
            assert not changed[np.asarray(rows["segment_ids"]) == 0].any()
    tokens = set(np.concatenate(masked_tokens).tolist())
    assert PAD not in tokens
    assert (BOS in tokens, EOS in tokens) == (mask_bos, mask_eos)
    assert tokens >= set(range(4, MASK_ID))


def test_masks_follow_the_row_not_the_batch():
    rows = BATCH["monolingual"]
    whole = draw(CONFIG.masking, rows, RNG, VOCAB)
    order = [3, 1]
    part = draw(CONFIG.masking, {k: np.asarray(v)[order] for k, v in rows.items()}, RNG, VOCAB)
    for name in ("positions", "is_masked", "targets", "uniforms"):
        np.testing.assert_array_equal(np.asarray(getattr(whole, name))[order], getattr(part, name))


def test_streams_draw_different_masks():
    batch = {name: BATCH["monolingual"] for name in BATCH}
    _, metrics = metrics_of(batch=batch)
    assert metrics["monolingual/mlm_loss"] != metrics["bitext/mlm_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("config", BOTH, ids=["xlme", "xlm"])
def test_a_stream_of_padding_alone_adds_nothing(config):
    empty = {**BATCH, "bitext": stream(1, [[]] * 4)}
    loss, metrics, gradient = run(config, empty)
    assert np.isfinite(loss)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert metrics["bitext/mlm_loss"] == (0.0, 0.0)
    mono, _, _ = run(config, {**BATCH})
    only = {k: v for k, v in run(config, BATCH)[1].items() if k.startswith("monolingual")}
    assert {k: v for k, v in metrics.items() if k.startswith("monolingual")} == only
    assert loss < mono


def test_rows_with_one_maskable_token_mask_it():
    masked = draw(CONFIG.masking, stream(0, [[3], [2]]), RNG, VOCAB)
    assert np.asarray(masked.is_masked).sum(axis=1).tolist() == [1, 0]
    assert masked.positions[0, 0] == 1


def test_other_steps_draw_other_masks():
    assert metrics_of(rng=jax.random.key(8))[0] != metrics_of()[0] == metrics_of()[0]


@pytest.mark.slow
def test_dropout_of_the_discriminator_is_random():
    dropped = dataclasses.replace(CONFIG.discriminator, dropout=0.3)
    config = dataclasses.replace(CONFIG, discriminator=dropped)
    _, plain, _ = run()
    _, metrics = metrics_of(config)
    # Masks, samples and the generator are the same; only the discriminator has changed.
    for key in ("mlm_accuracy", "replace_rate"):
        assert metrics[f"bitext/{key}"] == plain[f"bitext/{key}"]
    # Two programs may add in another order.
    both = metrics["bitext/mlm_loss"], plain["bitext/mlm_loss"]
    np.testing.assert_allclose(*both, rtol=4 * np.finfo(np.float32).eps)
    assert metrics["bitext/rtd_loss"] != plain["bitext/rtd_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlme", "xlm"])
def test_micro_batches_drop_differently(name):
    """Equal rows with different indices, each in its own micro-batch, drop differently."""
    dropped = dataclasses.replace(DISCRIMINATOR, dropout=0.5)
    config = {
        "xlme": dataclasses.replace(CONFIG, generator=dropped),
        "xlm": dataclasses.replace(XLM_CONFIG, encoder=dropped, masking=CONFIG.masking),
    }[name]
    rows = stream(0, [[3]] * 2)  # One maskable token: which one is masked is no matter of chance.
    rows["tokens"] = rows["tokens"].at[:].set(rows["tokens"][0])
    losses = []
    for index in (0, 1):
        one = {key: value[index : index + 1] for key, value in rows.items()}
        batch = {"monolingual": one, "bitext": one}
        losses.append(run(config, batch)[1]["monolingual/mlm_loss"])
    assert losses[0] != losses[1]


OTHER_MASKING = MaskingConfig(rate=0.6, split=(1.0, 0.0, 0.0))


@pytest.mark.parametrize("bitext", tiny.slow_except([OTHER_MASKING], [None, OTHER_MASKING]))
def test_xlm_loss_by_definition(bitext):
    config = dataclasses.replace(XLM_CONFIG, bitext_masking=bitext)
    objective, params = config.build(VOCAB), weights(XLM_CONFIG)
    assert set(params) == {"tokens", "positions", "encoder", "head"}
    loss, metrics = metrics_of(config)
    total = 0.0
    maskings = {"monolingual": config.masking, "bitext": bitext or config.masking}
    for name, rows in BATCH.items():
        mask_rng = jax.random.split(stream_rng(RNG, name))[0]
        masked = draw(maskings[name], rows, mask_rng, VOCAB)
        losses, hits = dense_mlm(objective.model, params, masked)
        total += np.mean(losses)
        assert metrics[f"{name}/mlm_accuracy"] == (hits, len(losses))
    np.testing.assert_allclose(loss, total, rtol=1e-5)
    keys = {"mlm_loss", "mlm_accuracy", "sampled_accuracy", "sampled_diversity"}
    assert set(metrics) == {f"{name}/{key}" for name in BATCH for key in keys}
    assert set(objective.encoder_params(params)) == {"tokens", "positions", "encoder"}
    states = jax.jit(objective.encode)(objective.encoder_params(params), BATCH["bitext"])
    expected = applied(objective.model, MaskedLM.encode)(params, BATCH["bitext"])
    np.testing.assert_array_equal(states[-1], expected)
    assert dataclasses.replace(XLM_CONFIG, translation_pairs=False).build(VOCAB).streams == (
        "monolingual",
    )


def changed(generator=None, discriminator=None, **changes):
    """Returns CONFIG with some fields and some fields of its encoders changed."""
    return dataclasses.replace(
        CONFIG,
        generator=dataclasses.replace(GENERATOR, **(generator or {})),
        discriminator=dataclasses.replace(DISCRIMINATOR, **(discriminator or {})),
        **changes,
    )


# Every value of every switch occurs once; several at a time, to compile little.
SWITCHES = {
    "pre-norm, plain": changed(
        {"pre_norm": True, "relative_bias": "plain"},
        {"pre_norm": True, "relative_bias": "plain", "dropout": 0.1, "attention_dropout": 0.1},
        masking=MaskingConfig(0.3, (0.85, 0.0, 0.15), mask_bos=True),
        rtd_head="linear",
    ),
    "no relative bias, scan, remat": changed(
        {"relative_bias": "none", "scan_layers": True},
        {"relative_bias": "none", "scan_layers": True, "remat": True, "num_layers": 2},
        masking=MaskingConfig(0.3, (0.8, 0.1, 0.1)),
        embedding_sharing="tokens+positions",
    ),
    "no absolute positions, hidden gate": changed(
        {"absolute_positions": False, "gate_input": "hidden", "dropout": 0.2},
        {"absolute_positions": False, "gate_input": "hidden", "remat": True},
        embedding_sharing="none",
    ),
    "positions in one encoder": changed(
        {"absolute_positions": False, "relative_buckets": 16, "relative_max_distance": 30},
        {"layer_norm_eps": 1e-12},
        rtd_weight=0.0,
        embedding_sharing="gdes",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_runs(name):
    config = SWITCHES[name]
    loss, _, gradient = run(config)
    assert np.isfinite(loss) and largest(gradient) > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    states = config.build(VOCAB).encode(weights(config), BATCH["bitext"])
    assert len(states) == config.discriminator.num_layers + 1


def test_linear_head_starts_at_zero():
    config = SWITCHES["pre-norm, plain"]
    init = config.build(VOCAB).init
    head = jax.jit(lambda rng: meta.unbox(init(rng))["discriminator"]["head"])(RNG)
    assert set(head) == {"kernel", "bias"} and largest(head) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("config", BOTH, ids=["xlme", "xlm"])
def test_bfloat16_compute_stays_near_float32(config):
    objective = config.build(VOCAB, jnp.bfloat16)
    totals = objective.totals(BATCH)
    outputs = jax.jit(lambda p: objective.loss(p, {}, BATCH, totals, RNG))(weights(config))
    metrics = outputs.metrics
    assert outputs.loss().dtype == jnp.float32
    assert all(x.dtype == jnp.float32 for pair in metrics.values() for x in pair)
    _, expected, _ = run(config)
    for name in BATCH:
        np.testing.assert_allclose(
            metrics[f"{name}/mlm_loss"][0], expected[f"{name}/mlm_loss"][0], rtol=0.02
        )


def test_rows_longer_than_the_position_table_are_refused():
    objective = changed({"max_length": 8}).build(VOCAB)
    with pytest.raises(ValueError, match=r"'bitext' has rows of 10 tokens, but generator/Enc.* 8"):
        objective.check(RunFacts({"monolingual": 8, "bitext": 10}))
    objective.check(RunFacts({"monolingual": 8, "bitext": 8}))
    changed({"absolute_positions": False}, {"absolute_positions": False}).build(VOCAB).check(
        RunFacts({"bitext": 1000})
    )
    with pytest.raises(ValueError, match=r"encoder/Encoder\.max_length = 16"):
        XLM_CONFIG.build(VOCAB).check(RunFacts({"bitext": 17}))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: MaskingConfig(rate=0.0), "Masking.rate = 0.0"),
        (lambda: MaskingConfig(rate=1.0), "Masking.rate = 1.0"),
        (lambda: MaskingConfig(split=(0.5, 0.2, 0.2)), r"Masking.split = \(0.5, 0.2, 0.2\)"),
        (lambda: MaskingConfig(split=(1.5, -0.5, 0.0)), "Masking.split"),
        (lambda: MaskingConfig(split=(0.5, 0.5)), "Masking.split"),
        (
            lambda: XLMEConfig(embedding_sharing="all"),
            "XLME.embedding_sharing = 'all': expected one of",
        ),
        (
            lambda: XLMEConfig(rtd_head="mlp"),
            "XLME.rtd_head = 'mlp': expected one of 'dense', 'linear'",
        ),
        (lambda: XLMEConfig(rtd_weight=-1.0), "XLME.rtd_weight = -1.0"),
        (
            lambda: changed({"absolute_positions": False}, embedding_sharing="tokens+positions"),
            "XLME.embedding_sharing = 'tokens\\+positions' needs absolute_positions",
        ),
    ],
)
def test_invalid_values_name_the_field(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_flops_count_every_part():
    """A training step costs three forward passes; the head runs on masked slots only."""
    shapes = {"monolingual": (4, 10), "bitext": (2, 6)}
    parts = XLME(CONFIG, VOCAB).diagnostics.flops(shapes)
    assert set(parts) == {"generator", "MLM head", "discriminator", "RTD head"}

    def encoder(width, length):
        return 8 * width**2 + 4 * width * 12 + 4 * length * width

    tokens = {length: rows * length for rows, length in shapes.values()}
    assert parts["discriminator"] == 3 * sum(n * encoder(8, at) for at, n in tokens.items())
    generator = 3 * sum(n * (encoder(4, at) + 2 * 8 * 4) for at, n in tokens.items())
    assert parts["generator"] == pytest.approx(generator)
    slots = 4 * masking.max_masked(10, 0.3) + 2 * masking.max_masked(6, 0.3)
    assert parts["MLM head"] == pytest.approx(3 * slots * (2 * 4 * 8 + 2 * 8 * VOCAB))
    assert parts["RTD head"] == 3 * 52 * (2 * 8 * 8 + 2 * 8)
