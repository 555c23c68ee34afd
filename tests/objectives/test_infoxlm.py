"""InfoXLM; tests/e2e/test_momentum_contrast.py compares it with NumPy step by step."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from helpers import tiny
from helpers.random_weights import random_weights

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import RunFacts, init_carried
from xlme_jax.objectives.infoxlm import InfoXLMConfig, XLCoConfig
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.objectives.xlme import XLMConfig

VOCAB, ROWS, LENGTH = 30, 4, 16
ENCODER = EncoderConfig(
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    ffn_size=12,
    max_length=LENGTH,
    relative_bias="none",
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.3,
)
MASKING = MaskingConfig(rate=0.3, split=(0.8, 0.1, 0.1))
CONTRAST = XLCoConfig(layer=1, queue_size=9)
CONFIG = InfoXLMConfig(ENCODER, MASKING, contrast=CONTRAST)


def rows(seed, parts):
    """Returns rows of segments with these lengths; two adjacent segments are a pair."""
    rng = np.random.default_rng(seed)
    tokens = np.ones((len(parts), LENGTH), np.int32)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    starts = np.full((len(parts), 4), -1, np.int32)
    for row, lengths in enumerate(parts):
        column = 0
        for segment, length in enumerate(lengths):
            part = slice(column, column + length)
            tokens[row, part] = [0, *rng.integers(4, VOCAB - 1, length - 2), 2]
            segments[row, part], positions[row, part] = segment + 1, range(length)
            starts[row, segment] = column
            column += length
    arrays = {"tokens": tokens, "segment_ids": segments, "positions": positions, "starts": starts}
    return {**{k: jnp.asarray(v) for k, v in arrays.items()}, "rows": jnp.arange(len(parts))}


PARTS = [[5, 6], [4, 4, 4, 4], [7, 5], [3, 6, 3, 4]]  # 6 pairs
BATCH = {
    "monolingual": rows(0, [[16], [9, 7], [12], [16]]),
    "bitext": rows(1, [[16], [8, 8], [11], [6, 9]]),
    "contrast": rows(2, PARTS),
}
RNG = jax.random.key(5)


@functools.cache
def built(config=CONFIG, seed=0):
    objective = config.build(VOCAB)
    params = random_weights(objective.init, jax.random.key(0), seed=seed)
    carried = jax.jit(functools.partial(init_carried, objective))(params)
    return objective, params, meta.unbox(carried)


def filled(objective, params, carried):
    """Returns carried state with a queue of random keys."""
    queue = jax.random.normal(jax.random.key(9), carried["queue"].shape)
    return {**carried, "queue": queue, "count": jnp.asarray(len(queue))}


@functools.cache
def compiled(objective):
    @jax.jit
    def loss(params, carried, batch, rng):
        return objective.loss(params, carried, batch, objective.totals(batch), rng)

    return loss


def loss(objective, params, carried, batch=BATCH, rng=RNG):
    batch = {name: batch[name] for name in objective.streams}
    return compiled(objective)(params, carried, batch, rng)


@functools.cache
def compiled_rows(objective):
    @jax.jit
    def per_row(params, carried, batch, rng):
        return objective.loss(params, carried, batch, objective.totals(batch), rng).per_row

    return per_row


def per_row_of(objective, params, carried, batch=BATCH, rng=RNG):
    """Returns what `loss` has of each row, compiled without the losses."""
    batch = {name: batch[name] for name in objective.streams}
    return compiled_rows(objective)(params, carried, batch, rng)


def changed(**settings):
    """Returns CONFIG with other settings of the contrast, and one stream less to compile."""
    contrast = dataclasses.replace(CONTRAST, **settings)
    return dataclasses.replace(CONFIG, contrast=contrast, translation_pairs=False)


@pytest.mark.slow
def test_without_contrast_it_is_xlm():
    config = dataclasses.replace(CONFIG, contrast=None)
    objective, params, carried = built(config)
    xlm = XLMConfig(ENCODER, MASKING).build(VOCAB)
    assert objective.streams == xlm.streams
    assert carried == {}
    assert objective.carry is None
    assert jax.tree.structure(params) == jax.tree.structure(meta.unbox(xlm.init(jax.random.key(0))))
    outputs, expected = loss(objective, params, carried), loss(xlm, params, {})
    assert outputs.loss() == expected.loss()
    assert outputs.per_row == {}
    assert outputs.metrics == expected.metrics


def test_the_loss_is_xlms_and_that_of_contrast():
    objective, params, carried = built()
    carried = filled(objective, params, carried)
    outputs = loss(objective, params, carried)
    per_row, metrics = outputs.per_row, outputs.metrics
    parts = ("monolingual/mlm_loss", "bitext/mlm_loss", "contrast/xlco_loss")
    np.testing.assert_allclose(
        outputs.loss(), sum(metrics[p][0] / metrics[p][1] for p in parts), rtol=1e-6
    )
    assert metrics["contrast/xlco_loss"][1] == 6  # pairs
    assert per_row["keys"].shape == (ROWS, 2, 8)
    np.testing.assert_array_equal(per_row["is_key"], [[len(p) > 1, len(p) > 3] for p in PARTS])


@pytest.mark.slow
def test_items_share_one_denominator():
    """The public code divides the sum of all losses by masked tokens and sentences together."""
    config = dataclasses.replace(CONFIG, mean="items", translation_pairs=False)
    objective, params, carried = built(config)
    carried = filled(objective, params, carried)
    outputs = loss(objective, params, carried)
    parts = ("monolingual/mlm_loss", "contrast/xlco_loss")
    sums, counts = zip(*(outputs.metrics[part] for part in parts))
    np.testing.assert_allclose(outputs.loss(), sum(sums) / sum(counts), rtol=1e-6)


def test_gradients_reach_the_lower_layers_and_the_projection_alone():
    objective, params, carried = built(changed(mask_inputs=False))
    carried = filled(objective, params, carried)
    batch = {name: BATCH[name] for name in objective.streams}
    totals = objective.totals(batch)

    def contrasted(params, carried):
        metrics = objective.loss(params, carried, batch, totals, RNG).metrics
        return metrics["contrast/xlco_loss"][0]

    gradient_of = jax.jit(jax.grad(contrasted, argnums=(0, 1), allow_int=True))
    gradient, none = gradient_of(params, carried)
    size = {
        name: max(float(np.abs(x).max()) for x in jax.tree.leaves(tree))
        for name, tree in {**gradient, **gradient["encoder"]}.items()
    }
    for name in ("tokens", "positions", "layer_0", "projection"):
        assert size[name] > 0, name
    assert size["layer_1"] == size["head"] == 0
    assert all(float(np.abs(x).max()) == 0 for x in jax.tree.leaves(none["key"]))


@pytest.mark.parametrize(
    ("layer", "scan"),
    tiny.slow_except({(1, False)}, itertools.product((0, 1, 2), (False, True))),
)
def test_the_layer_that_is_contrasted(layer, scan):
    """Contrasts the projected `<s>` states of `encode`."""
    encoder = dataclasses.replace(ENCODER, scan_layers=scan)
    config = dataclasses.replace(changed(layer=layer, mask_inputs=False), encoder=encoder)
    objective, params, carried = built(config)
    per_row = per_row_of(objective, params, filled(objective, params, carried))
    states = jax.jit(objective.encode)(params, BATCH["contrast"])[layer]
    starts = BATCH["contrast"]["starts"]
    for row, pair in zip(*np.nonzero(per_row["is_key"])):
        start = np.asarray(states)[row, starts[row, 2 * pair + 1]]
        expected = start @ np.asarray(params["projection"]["kernel"])
        np.testing.assert_allclose(per_row["keys"][row, pair], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_both_directions_ask_both_sentences():
    one, params, carried = built(changed(mask_inputs=False))
    carried = filled(one, params, carried)
    both = changed(mask_inputs=False, both_directions=True).build(VOCAB)
    both_ways = loss(both, params, carried)
    assert both_ways.metrics["contrast/xlco_loss"][1] == 12
    forward = per_row_of(one, params, carried)
    keys = both_ways.per_row["keys"]
    np.testing.assert_allclose(keys[:, :2], forward["keys"], rtol=1e-6)
    swapped = dict(BATCH["contrast"])
    swapped["starts"] = swapped["starts"].reshape(ROWS, 2, 2)[..., ::-1].reshape(ROWS, 4)
    backward = per_row_of(one, params, carried, {**BATCH, "contrast": swapped})
    np.testing.assert_allclose(keys[:, 2:], backward["keys"], rtol=1e-6)


@pytest.mark.slow
def test_normalised_keys_have_length_1():
    objective, params, carried = built(changed(normalize=True))
    per_row = per_row_of(objective, params, filled(objective, params, carried))
    norms = np.linalg.norm(per_row["keys"], axis=-1)
    np.testing.assert_allclose(norms[np.asarray(per_row["is_key"])], 1.0, rtol=1e-5)


def test_inputs_are_masked_by_default():
    masked, params, carried = built()
    carried = filled(masked, params, carried)
    plain, *_ = built(changed(mask_inputs=False))
    keys = [
        per_row_of(o, params, carried, rng=r)["keys"]
        for o in (masked, plain)
        for r in (RNG, jax.random.key(6))
    ]
    assert np.abs(keys[0] - keys[1]).max() > 1e-3  # other masks
    np.testing.assert_array_equal(keys[2], keys[3])
    assert np.abs(keys[0] - keys[2]).max() > 1e-3


def test_without_momentum_the_key_encoder_is_the_query_encoder():
    objective, params, carried = built(changed(momentum=0.0))
    other = jax.tree.map(lambda x: np.asarray(x) + 1.0, params)
    plain, *_ = built()
    per_row = loss(plain, params, filled(plain, params, carried)).per_row
    after = jax.jit(objective.carry.next)(other, carried, per_row)
    expected = objective._contrast_params(other)
    for a, b in zip(jax.tree.leaves(after["key"]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_the_momentum_encoder_holds_no_layer_that_is_not_read():
    _, _, carried = built()
    assert set(carried["key"]["encoder"]) == {"embedding_norm", "layer_0"}
    assert "head" not in carried["key"]


def test_exported_weights_have_no_head_or_projection():
    objective, params, _ = built()
    assert set(objective.encoder_params(params)) == {"tokens", "positions", "encoder"}
    assert objective.warm_start.new == ("projection",)


def test_flops_count_two_encoders_on_the_third_stream():
    objective, *_ = built()
    shapes = {name: (ROWS, LENGTH) for name in objective.streams}
    parts = objective.diagnostics.flops(shapes)
    layer = 8 * 8**2 + 4 * 8 * 12 + 4 * LENGTH * 8
    assert parts["momentum encoder"] == ROWS * LENGTH * layer
    assert parts["query encoder"] == 3 * parts["momentum encoder"]
    assert parts["encoder"] == 3 * 2 * ROWS * LENGTH * 2 * layer
    assert parts["contrast"] == 4 * ROWS * 9 * 8


def test_the_alarm_of_a_contrast_that_learned_nothing():
    objective, *_ = built()
    assert objective.diagnostics.alarms({"contrast/xlco_loss": 0.5}) == []
    (text,) = objective.diagnostics.alarms({"contrast/xlco_loss": 2.4})  # log(10) is 2.30
    assert text.startswith("The contrast has learned nothing: ")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"layer": 3}, r"XLCo.layer = 3 is above .* Encoder.num_layers = 2"),
        ({"layer": -1}, r"XLCo.layer = -1"),
        ({"queue_size": 0}, r"XLCo.queue_size = 0"),
        ({"momentum": 1.0}, r"XLCo.momentum = 1.0 must lie in \[0, 1\)"),
        ({"temperature": 0.0}, r"XLCo.temperature = 0.0 must be positive"),
    ],
)
def test_bad_settings_are_named(settings, expected):
    with pytest.raises(ValueError, match=expected):
        changed(**settings)


def test_unsupported_inputs_raise():
    with pytest.raises(
        ValueError, match=r"InfoXLM.mean = 'both': expected one of 'tasks', 'items'"
    ):
        dataclasses.replace(CONFIG, mean="both")
    with pytest.raises(ValueError, match=r"pre_norm = False"):
        dataclasses.replace(CONFIG, encoder=dataclasses.replace(ENCODER, pre_norm=True))
    objective, params, carried = built(changed(queue_size=5))
    with pytest.raises(ValueError, match=r"queue_size = 5 must not be below the 8 keys"):
        objective.check(RunFacts({"contrast": 8}, {"contrast": 8}))
    per_row = {"keys": jnp.zeros((ROWS, 2, 8)), "is_key": jnp.ones((ROWS, 2), bool)}
    with pytest.raises(ValueError, match=r"cannot enqueue 8 keys at once in a queue of 5"):
        objective.carry.next(params, carried, per_row)
