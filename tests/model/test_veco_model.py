"""The decoder view of an encoder: visible tokens and used weights."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from helpers import tiny
from helpers.random_weights import random_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from test_encoder import TINY

from xlme_jax.model.encoder import (
    CrossAttention,
    Encoder,
    Layer,
    Memory,
    init_cross_attention,
)
from xlme_jax.model.veco_network import has_partner, joined, partners

LENGTH, SOURCE_LENGTH = 10, 7
# Two segments and padding; one. Source: both of the first row's, one that nobody reads; nothing.
SEGMENTS = np.array([[1] * 5 + [2] * 3 + [0] * 2, [1] * LENGTH], np.int32)
SOURCE_SEGMENTS = np.array([[2, 2, 2, 1, 1, 5, -1], [-1] * SOURCE_LENGTH], np.int32)


def variant(**changes):
    return dataclasses.replace(TINY, **changes)


def inputs():
    rng = np.random.default_rng(0)
    embedded = rng.normal(size=(2, LENGTH, 16)).astype(np.float32)
    return embedded, rng.normal(size=(2, SOURCE_LENGTH, 16)).astype(np.float32)


@functools.cache
def weights(config):
    """Returns weights of encoder and cross-attention with noise, so that no value is neutral."""

    def init(key):
        encoder = Encoder(config).init(key, inputs()[0], SEGMENTS)["params"]
        return {"encoder": encoder, "cross": init_cross_attention(config, key)}

    return random_weights(init, jax.random.key(0), noise=0.2)


def stacked(params):
    """Stacks unrolled weights as in `scan_layers`."""

    def stack(tree):
        layers = [tree[f"layer_{i}"] for i in range(TINY.num_layers)]
        rest = {k: v for k, v in tree.items() if not k.startswith("layer_")}
        return rest | {"layers": jax.tree.map(lambda *x: np.stack(x), *layers)}

    return jax.tree.map(lambda x: x, {name: stack(tree) for name, tree in params.items()})


def decode(config, params, embedded=None, states=None, seeds=None, dtype=jnp.float32):
    given = inputs()
    embedded = given[0] if embedded is None else embedded
    source = Memory(params["cross"], given[1] if states is None else states, SOURCE_SEGMENTS)
    return Encoder(config, dtype).apply(
        {"params": params["encoder"]}, embedded, SEGMENTS, source=source, dropout_seeds=seeds
    )


def test_tree_of_cross_attention():
    make = jax.jit(functools.partial(init_cross_attention, variant(scan_layers=True)))
    boxed = make(jax.random.key(0))
    shapes = jax.tree.map(jnp.shape, meta.unbox(boxed))["layers"]
    assert shapes == {
        "q": {"kernel": (2, 16, 2, 8), "bias": (2, 2, 8)},
        "kv": {"kernel": (2, 16, 2, 2, 8), "bias": (2, 2, 2, 8)},
        "out": {"kernel": (2, 2, 8, 16), "bias": (2, 16)},
        "norm": {"scale": (2, 16), "bias": (2, 16)},
    }
    kernel = boxed["layers"]["kv"]["kernel"]
    assert kernel.names == ("layers", "embed", "qkv", "heads", "kv")
    # Layers start different, and at the encoder's standard deviation.
    assert np.abs(np.asarray(kernel.value[0] - kernel.value[1])).max() > 0.1
    np.testing.assert_allclose(kernel.value.std(), 0.3, rtol=0.1)
    unrolled = jax.eval_shape(functools.partial(init_cross_attention, TINY), jax.random.key(0))
    assert set(unrolled) == {"layer_0", "layer_1"}
    assert unrolled["layer_1"]["q"]["kernel"].names == ("embed", "heads", "kv")


def by_hand(params, x, segments, states, source_segments):
    """Computes cross-attention, residual and normalisation per token and head."""
    p = jax.tree.map(lambda a: np.asarray(a, float), params)
    heads, width = p["q"]["bias"].shape
    output = np.zeros(x.shape)
    for b, i in np.ndindex(x.shape[:2]):
        read = [j for j in range(states.shape[1]) if source_segments[b, j] == segments[b, i]]
        mixed = np.zeros((heads, width))
        for h in range(heads if read else 0):
            query = x[b, i] @ p["q"]["kernel"][:, h] + p["q"]["bias"][h]
            keys, values = (
                states[b, read] @ p["kv"]["kernel"][:, n, h] + p["kv"]["bias"][n, h] for n in (0, 1)
            )
            scores = np.exp(keys @ query / np.sqrt(width))
            mixed[h] = scores / scores.sum() @ values
        out = sum(mixed[h] @ p["out"]["kernel"][h] for h in range(heads)) + p["out"]["bias"]
        y = x[b, i] + out
        y = (y - y.mean()) / np.sqrt(y.var() + TINY.layer_norm_eps)
        output[b, i] = y * p["norm"]["scale"] + p["norm"]["bias"]
    return output


def test_cross_attention_by_hand():
    x, states = inputs()
    params = weights(TINY)["cross"]["layer_1"]
    apply = jax.jit(CrossAttention(TINY).apply)
    actual = apply({"params": params}, x, SEGMENTS, states, SOURCE_SEGMENTS)
    expected = by_hand(params, x, SEGMENTS, states, SOURCE_SEGMENTS)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_cross_attention_stands_between_self_attention_and_feed_forward():
    """With the other sub-layers zeroed, each sub-layer is a normalisation only."""
    x, states = inputs()
    config = variant(relative_bias="none", num_layers=1)
    params = weights(config)
    layer = jax.tree.map(lambda a: a, params["encoder"]["layer_0"])
    for zeroed in (layer["attention"]["out"], layer["ffn"]["wo"]):
        zeroed.update(jax.tree.map(jnp.zeros_like, zeroed))
    cross = params["cross"]["layer_0"]
    actual = jax.jit(Layer(config).apply)(
        {"params": layer}, x, None, SEGMENTS, None, cross, states, SOURCE_SEGMENTS
    )[0]

    def norm(h, p):
        h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
        return h * np.asarray(p["scale"]) + np.asarray(p["bias"])

    between = by_hand(cross, norm(x, layer["attention_norm"]), SEGMENTS, states, SOURCE_SEGMENTS)
    np.testing.assert_allclose(actual, norm(between, layer["ffn_norm"]), atol=2e-5)


# Every way to build the layers; all obey the same rules.
BUILDS = [
    {},
    {"scan_layers": True, "remat": True},
    {"pre_norm": True, "relative_bias": "plain"},
    {"relative_bias": "none"},
]


def may_read(row):
    """Returns bool[L, L] and bool[L, S], by the definition of CS-MLM."""
    i, j = np.indices((LENGTH, LENGTH))
    same = SEGMENTS[row][i] == SEGMENTS[row][j]
    return same & (j <= i), SEGMENTS[row][:, None] == SOURCE_SEGMENTS[row][None]


@pytest.mark.slow
@pytest.mark.parametrize("changes", BUILDS, ids=str)
def test_what_tokens_read_by_gradients(changes):
    """A state depends on exactly the tokens and source states that it may read."""
    config = variant(**changes)
    params = weights(config)
    embedded, states = inputs()
    jacobian = jax.jacrev(lambda e, s: (decode(config, params, e, s) ** 3).sum(-1), (0, 1))
    # Of each row's states by each row's inputs.
    own, read = (np.abs(x).sum(-1) for x in jax.jit(jacobian)(embedded, states))
    for row in (0, 1):
        assert own[row, :, 1 - row].max() == read[row, :, 1 - row].max() == 0.0
        real = SEGMENTS[row] > 0
        for found, allowed in zip((own[row, :, row], read[row, :, row]), may_read(row)):
            assert np.array_equal((found > 1e-6)[real], allowed[real])
            assert np.array_equal((found > 0)[real], allowed[real])


@pytest.mark.parametrize("changes", tiny.slow_except(BUILDS[1:2], BUILDS), ids=str)
def test_what_tokens_read_by_values(changes):
    """Bitwise: tokens that may not be read have no effect."""
    config = variant(**changes)
    run = jax.jit(functools.partial(decode, config, weights(config)))
    embedded, states = inputs()
    before = np.asarray(run(embedded, states))
    for place in range(LENGTH):
        changed = embedded.copy()
        changed[0, place] += 3.0
        after = np.asarray(run(changed, states))
        differs = np.abs(after - before).max(axis=-1) > 0
        assert not differs[1].any()
        real = SEGMENTS[0] > 0
        assert np.array_equal(differs[0][real], may_read(0)[0][:, place][real])
    for place in range(SOURCE_LENGTH):
        changed = states.copy()
        changed[0, place] += 3.0
        differs = np.abs(np.asarray(run(embedded, changed)) - before).max(axis=-1) > 0
        assert np.array_equal(differs[0], may_read(0)[1][:, place]) and not differs[1].any()


@pytest.mark.slow
def test_encoder_is_unchanged_without_source():
    """Without a source, attention is bidirectional and there is no cross-attention."""
    params = weights(TINY)
    embedded, _ = inputs()
    encode = lambda e: Encoder(TINY).apply({"params": params["encoder"]}, e, SEGMENTS)  # noqa: E731
    jacobian = jax.jit(jax.jacrev(lambda e: (encode(e)[0] ** 3).sum(-1)))
    own = np.abs(jacobian(embedded)).sum(-1)[:, 0]
    same = SEGMENTS[0][:, None] == SEGMENTS[0][None]
    assert np.array_equal(own > 0, same)


def test_encoder_and_decoder_take_the_kernel():
    """Which a CPU does not have, and says so."""
    params = weights(TINY)
    config = variant(attention="kernel")
    with pytest.raises(ValueError, match="attention\\(implementation='kernel'\\)"):
        jax.jit(functools.partial(decode, config))(params)
    with pytest.raises(ValueError, match="attention\\(implementation='kernel'\\)"):
        encode = jax.jit(Encoder(config).apply)
        encode({"params": params["encoder"]}, inputs()[0], SEGMENTS)


SCANNED = [{}, {"pre_norm": True}, {"relative_bias": "none", "remat": True}]


@pytest.mark.slow
@pytest.mark.parametrize("changes", SCANNED, ids=str)
def test_scanned_layers_equal_unrolled_ones(changes):
    """Compares values and gradients, also of the source states, with dropout."""
    seeds = jnp.arange(2, dtype=jnp.uint32)
    weight = np.random.default_rng(2).normal(size=(2, LENGTH, 16))

    def gradient(config, params):
        def loss(params, states):
            decoded = decode(config, params, None, states, seeds, jnp.float64)
            return (decoded * weight).sum()

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, states)

    with jax.enable_x64(True):
        params, states = jax.tree.map(
            lambda x: jnp.asarray(x, jnp.float64), (weights(variant(**changes)), inputs()[1])
        )
        value, (unrolled, read) = gradient(variant(**changes), params)
        expected = value, (stacked(unrolled), read)
        actual = gradient(variant(**changes, scan_layers=True), stacked(params))
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * (np.abs(b).max() + 1))


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_cross_attention_drops(name):
    """Each rate works alone and differs between layers and from self-attention."""
    config = variant(dropout=0.0, attention_dropout=0.0)
    config = dataclasses.replace(config, **{name: 0.5})
    x, states = inputs()
    params = {"params": weights(TINY)["cross"]["layer_0"]}
    arguments = x, SEGMENTS, states, SOURCE_SEGMENTS

    apply = jax.jit(CrossAttention(config).apply)

    def run(*seeds):
        return np.asarray(apply(params, *arguments, np.uint32(seeds) if seeds else None))

    assert np.abs(run(1, 2) - run()).max() > 0.05
    assert np.abs(run(1, 2) - run(2, 1)).max() > 0.05
    np.testing.assert_array_equal(run(1, 2), run(1, 2))


# ---- Pairs in a row ----------------------------------------------------------------------------


@settings(deadline=None, max_examples=8)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=5), st.integers(0, 3))
def test_pairs_of_a_row(pairs, padding):
    """Pairs are (length of the first segment, length of the second or 0)."""
    segments, positions, other, both, along = [], [], [], [], []
    for number, (one, two) in enumerate(pairs):
        first, second = 2 * number + 1, 2 * number + 2
        segments += [first] * one + [second] * two
        positions += [*range(one), *range(two)]
        other += [second] * one + [first] * two
        both += [two > 0] * (one + two)
        along += range(one + two)
    end = padding + (not pairs)
    row = jnp.asarray([segments + [0] * end], jnp.int32)

    @jax.jit
    def read(rows):
        whole = joined(rows)
        assert whole["tokens"] is rows["tokens"]
        return partners(rows["segment_ids"]), has_partner(rows["segment_ids"]), whole

    rows = {"segment_ids": row, "positions": jnp.asarray([positions + [0] * end]), "tokens": row}
    found, has_other, whole = read(rows)
    assert found[0].tolist() == other + [-1] * end
    assert has_other[0].tolist() == both + [False] * end
    assert whole["positions"][0].tolist() == along + [0] * end
    assert whole["segment_ids"][0].tolist() == [(s + 1) // 2 for s in segments] + [0] * end
