"""Predictions of masked slots, spread over rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.random_weights import random_weights

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import stream_rng
from xlme_jax.objectives.infoxlm import STREAM, InfoXLMConfig, XLCoConfig
from xlme_jax.objectives.masked_lm import MaskedBatch, MaskingConfig
from xlme_jax.objectives.readings import at_slots
from xlme_jax.objectives.translator import TranslateConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.training import mesh as meshes

VOCABULARY = 40
RNG = jax.random.key(3)
ENCODER = EncoderConfig(
    num_layers=1, hidden_size=8, num_heads=2, ffn_size=8, max_length=16, relative_bias="none"
)
LANGUAGES = ("en", "fr")


def test_slots_are_spread_over_the_row():
    positions = jnp.array([[3, 0, 1], [2, 1, 0]])
    used = jnp.array([[True, True, False], [True, False, False]])
    tokens, halves = jnp.array([[7, 8, 9], [5, 6, 4]]), jnp.full((2, 3), np.log(2))
    guess = jax.jit(at_slots, static_argnums=0)(
        (2, 4), positions, used, tokens, (halves, 2 * halves)
    )
    np.testing.assert_array_equal(guess.tokens, [[8, 0, 0, 7], [0, 0, 5, 0]])
    expected = np.array([[1, 0, 0, 1], [0, 0, 1, 0]])
    np.testing.assert_array_equal(guess.is_predicted, expected.astype(bool))
    np.testing.assert_allclose(guess.probability, expected / 2, rtol=1e-6)
    np.testing.assert_allclose(guess.of_original, expected / 4, rtol=1e-6)


def pairs(rows=3):
    """Returns rows with a pair, each side in its half."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, VOCABULARY - 1, (rows, 12))
    tokens[:, [0, 6]], tokens[:, [5, 11]] = 0, 2
    segments = np.repeat([[1] * 6 + [2] * 6], rows, axis=0)
    found = {
        "tokens": tokens,
        "segment_ids": segments,
        "positions": np.tile(np.arange(6), (rows, 2)),
        "languages": segments,
        "starts": np.tile([0, 6], (rows, 1)),
        "rows": np.arange(rows),
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in found.items()}


def weights(objective):
    return random_weights(objective.init, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("mask_inputs", [True, False])
def test_contrasted_rows_are_masked_as_the_loss_does(mask_inputs, monkeypatch):
    contrast = XLCoConfig(layer=1, queue_size=8, mask_inputs=mask_inputs)
    config = InfoXLMConfig(ENCODER, MaskingConfig(0.4), contrast=contrast, translation_pairs=False)
    objective = config.build(VOCABULARY)
    batch = dict.fromkeys(("monolingual", STREAM), pairs())
    readings = jax.jit(objective.read)(batch, RNG)
    assert (STREAM in readings) == mask_inputs
    if not mask_inputs:
        return
    params = weights(objective)
    seen, represent = [], objective._represent

    def keep(weights, rows, *arguments):
        seen.append(rows["tokens"])
        return represent(weights, rows, *arguments)

    monkeypatch.setattr(objective, "_represent", keep)
    carried = meshes.unbox(jax.jit(objective.carry.init)(params))

    @jax.jit
    def tokens_of_the_loss(params, carried):
        objective.loss(params, carried, batch, objective.totals(batch), RNG)
        return seen[0]

    read = tokens_of_the_loss(params, carried)
    np.testing.assert_array_equal(readings[STREAM].tokens, read)
    assert readings[STREAM].is_masked.any() and not readings[STREAM].guesses


def test_masks_differ_between_streams_and_steps():
    objective = XLMConfig(ENCODER, MaskingConfig(0.4)).build(VOCABULARY)
    batch = dict.fromkeys(("monolingual", "bitext"), pairs())
    read = jax.jit(lambda key: objective.read(batch, key))
    one, other = (read(key) for key in (RNG, jax.random.key(4)))
    masks = [reading[name].is_masked for reading in (one, other) for name in batch]
    assert len({np.asarray(mask).tobytes() for mask in masks}) == 4
    # The documented order of a step's keys: masks first, of two.
    key = jax.random.split(stream_rng(RNG, "bitext"), 2)[0]
    draw = jax.jit(MaskedBatch.draw, static_argnums=(0, 3))
    drawn = draw(MaskingConfig(0.4), batch["bitext"], key, VOCABULARY)
    np.testing.assert_array_equal(one["bitext"].tokens, drawn.rows["tokens"])


@pytest.mark.slow
@pytest.mark.parametrize("directions", [(), ("en-fr",)], ids=str)
def test_translations_are_predicted_where_they_stand(directions):
    config = TranslateConfig(
        XLMConfig(ENCODER), LANGUAGES, directions, dropout=0.0, attention_dropout=0.0
    )
    objective = config.build(VOCABULARY)
    batch, params = {"bitext": pairs()}, weights(objective)
    totals = objective.totals(batch)

    @jax.jit
    def read(params):
        outputs = objective.loss(params, {}, batch, totals, RNG)
        return objective.read(batch, RNG, params), outputs.metrics

    readings, metrics = read(params)
    (reading,) = readings.values()
    (guess,) = reading.guesses.values()
    real = np.ones((3, 12), bool)
    real[:, [0, 6]] = False  # The first token of a side is given.
    if directions:
        real[:, :6] = False  # So are sources.
    np.testing.assert_array_equal(guess.is_predicted, real)
    assert not reading.is_masked.any()
    np.testing.assert_array_equal(reading.tokens, batch["bitext"]["tokens"])
    nats = -np.log(np.asarray(guess.of_original, "f8")[real])
    assert len(nats) == metrics["bitext/loss"][1]
    np.testing.assert_allclose(nats.sum(), metrics["bitext/loss"][0], rtol=1e-5)
    hits = (guess.tokens == reading.tokens)[real].sum()
    assert hits == metrics["bitext/accuracy"][0]
