import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import meta
from helpers import tiny
from helpers.random_weights import random_weights

from xlme_jax.data.batches import layouts, packing
from xlme_jax.model.electra import MaskedLM
from xlme_jax.model.encoder import (
    Encoder,
    EncoderConfig,
    Memory,
    SelfAttention,
    init_cross_attention,
)
from xlme_jax.ops import dropout
from xlme_jax.tools.planning.counting import matmul_flops

ROWS, LENGTH = 2, 9
TINY = EncoderConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    ffn_size=24,
    max_length=16,
    relative_buckets=8,
    relative_max_distance=6,
    # Weights large enough that every part of the model has a visible effect.
    init_std=0.3,
)


def inputs(width=TINY.hidden_size):
    rng = np.random.default_rng(0)
    segments = np.ones((ROWS, LENGTH), np.int32)
    segments[0, 4:7], segments[0, 7:] = 2, 0
    return jax.device_put(rng.normal(size=(ROWS, LENGTH, width)).astype(np.float32)), segments


def variant(**changes):
    return dataclasses.replace(TINY, **changes)


@functools.cache
def init(config):
    """Returns initial weights."""
    return meta.unbox(jax.jit(Encoder(config).init)(jax.random.key(0), *inputs()))["params"]


def boxed(config, width=TINY.hidden_size):
    """Returns the boxed shapes of the weights."""
    return jax.eval_shape(Encoder(config).init, jax.random.key(0), *inputs(width))["params"]


@functools.cache
def weights(config, width=TINY.hidden_size):
    """Returns random weights, so that biases and scales are not 0 and 1."""
    return random_weights(functools.partial(boxed, config, width), seed=1)


def shapes(config):
    return jax.tree.map(jnp.shape, meta.unbox(boxed(config)))


@functools.partial(jax.jit, static_argnames=("config", "dtype", "all_layers"))
def encode(config, params, dtype=jnp.float32, **options):
    return Encoder(config, dtype).apply({"params": params}, *inputs(), **options)


def stacked(params, count=TINY.num_layers):
    """Stacks unrolled weights as in `scan_layers`."""
    layers = [params[f"layer_{i}"] for i in range(count)]
    rest = {k: v for k, v in params.items() if not k.startswith("layer_")}
    return rest | {"layers": jax.tree.map(lambda *x: np.stack(x), *layers)}


def gradient(config, params, **options):
    """Returns value and gradient, in float64, of a loss on every output of real tokens."""
    weight = np.random.default_rng(2).normal(size=(ROWS, LENGTH, config.hidden_size))
    weight[0, 7:] = 0
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jax.device_put(np.asarray(x, np.float64)), params)
        loss = lambda params: (encode(config, params, jnp.float64, **options) * weight).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(params)


def assert_close(tree, other):
    """Checks equality up to rounding of float64."""
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other)):
        assert a.dtype == b.dtype == jnp.float64
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * (np.abs(b).max() + 1))


def test_tree_and_shapes():
    tree = shapes(TINY)
    assert set(tree) == {
        "embedding_norm",
        "relative_bias",
        "layer_0",
        "layer_1",
    }
    assert tree["layer_0"] == {
        "attention": {
            "qkv": {"kernel": (16, 3, 2, 8), "bias": (3, 2, 8)},
            "gate": {"u": (8,), "v": (8,), "w": (2,)},
            "out": {"kernel": (2, 8, 16), "bias": (16,)},
        },
        "attention_norm": {"scale": (16,), "bias": (16,)},
        "ffn": {
            "wi": {"kernel": (16, 24), "bias": (24,)},
            "wo": {"kernel": (24, 16), "bias": (16,)},
        },
        "ffn_norm": {"scale": (16,), "bias": (16,)},
    }
    assert tree["relative_bias"]["table"] == (8, 2)


def test_initial_weights():
    params = init(variant(init_std=0.02, hidden_size=64, ffn_size=256, num_layers=1))
    assert params["layer_0"]["attention"]["gate"]["w"].tolist() == [1, 1]
    for name in ("wi", "wo"):
        kernel = params["layer_0"]["ffn"][name]["kernel"]
        np.testing.assert_allclose(kernel.std(), 0.02, rtol=0.05)
    np.testing.assert_allclose(
        params["layer_0"]["attention"]["qkv"]["kernel"].std(), 0.02, rtol=0.05
    )


@pytest.mark.parametrize("relative_bias", ["gated", "plain", "none"])
def test_relative_bias_parameters(relative_bias):
    params = weights(variant(relative_bias=relative_bias))
    assert ("relative_bias" in params) == (relative_bias != "none")
    assert ("gate" in params["layer_0"]["attention"]) == (relative_bias == "gated")


def normalise(x, scale, bias, eps):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * scale + bias


def numpy_layer(config, params, x, segments, mixed):
    """Computes one layer by definition; `mixed(h)` is its attention."""
    erf = np.vectorize(math.erf)

    def feed(h):
        inner = h @ params["ffn"]["wi"]["kernel"] + params["ffn"]["wi"]["bias"]
        inner = 0.5 * inner * (1 + erf(inner / np.sqrt(2)))
        return inner @ params["ffn"]["wo"]["kernel"] + params["ffn"]["wo"]["bias"]

    for name, sublayer in (("attention_norm", mixed), ("ffn_norm", feed)):
        norm = params[name]["scale"], params[name]["bias"], config.layer_norm_eps
        if config.pre_norm:
            x = x + sublayer(normalise(x, *norm))
        else:
            x = normalise(x + sublayer(x), *norm)
    return x


@pytest.mark.parametrize("pre_norm", [False, True])
def test_where_normalisation_stands(pre_norm):
    """Post-LN normalises the sum after each sub-layer, pre-LN each input, and once at the end."""
    config = variant(pre_norm=pre_norm, relative_bias="none", layer_norm_eps=0.3)
    params = jax.tree.map(np.asarray, weights(config))
    assert ("final_norm" in params) == pre_norm
    embedded, segments = inputs()
    norm = params["embedding_norm"]
    x = normalise(np.asarray(embedded, float), norm["scale"], norm["bias"], 0.3)
    attend = jax.jit(SelfAttention(config).apply)
    for index in range(config.num_layers):
        layer = params[f"layer_{index}"]

        def mixed(h, layer=layer):
            variables = {"params": layer["attention"]}
            return np.asarray(attend(variables, h.astype(np.float32), segments, None)[0])

        x = numpy_layer(config, layer, x, segments, mixed)
    if pre_norm:
        x = normalise(x, params["final_norm"]["scale"], params["final_norm"]["bias"], 0.3)
    np.testing.assert_allclose(encode(config, params), x, rtol=0, atol=2e-5 * np.abs(x).max())


SCANNED = [
    {},
    {"pre_norm": True},
    {"relative_bias": "plain"},
    {"relative_bias": "none", "gate_input": "hidden"},
    {"gate_input": "hidden", "remat": True},
]


@pytest.mark.parametrize("changes", tiny.slow_except(SCANNED[-1:], SCANNED), ids=str)
def test_scanned_layers_equal_unrolled_ones(changes):
    """Those that are recomputed, too."""
    scanned = variant(**changes, scan_layers=True)
    config = dataclasses.replace(scanned, scan_layers=False, remat=False)
    params = weights(config)
    assert shapes(scanned) == jax.tree.map(jnp.shape, stacked(params))
    value, grads = gradient(config, params)
    with jax.enable_x64(True):
        grads = stacked(grads)
    assert_close((value, grads), gradient(scanned, stacked(params)))


@pytest.mark.slow
def test_scanned_layers_start_different():
    kernel = init(variant(scan_layers=True))["layers"]["ffn"]["wi"]["kernel"]
    assert kernel.shape[0] == TINY.num_layers
    assert np.abs(np.asarray(kernel[0]) - kernel[1]).max() > 0.1
    np.testing.assert_allclose(kernel.std(), 0.3, rtol=0.1)


def test_scanned_weights_name_their_layer_axis():
    found = boxed(variant(scan_layers=True))
    kernel = found["layers"]["ffn"]["wi"]["kernel"]
    assert kernel.names == ("layers", "embed", "mlp") and kernel.value.ndim == 3
    for leaf in jax.tree.leaves(found, is_leaf=lambda x: isinstance(x, meta.AxisMetadata)):
        if isinstance(leaf, meta.AxisMetadata):
            assert len(leaf.names) == leaf.value.ndim


@pytest.mark.slow
@pytest.mark.parametrize("kind", [True, "products"])
@pytest.mark.parametrize("scan", [False, True])
def test_remat_changes_no_gradient(scan, kind):
    """With dropout, recomputation must drop the same values."""
    plain, remat = variant(scan_layers=scan), variant(scan_layers=scan, remat=kind)
    params = weights(plain)
    assert shapes(remat) == jax.tree.map(jnp.shape, params)
    assert_close(dropped_gradient(plain, scan), dropped_gradient(remat, scan))


@functools.cache
def dropped_gradient(config, scan):
    """Returns `gradient` with dropout, for the weights of TINY."""
    return gradient(config, weights(variant(scan_layers=scan)), dropout_seeds=seeds(3))


@pytest.mark.slow
def test_remat_recomputes():
    """The backward pass of a remat encoder runs each layer's forward pass again."""

    def grad(remat):
        grad = jax.grad(lambda params: encode(variant(remat=remat), params).sum())
        return jax.make_jaxpr(grad)(weights(TINY))

    erf = {kind: str(grad(kind)).count("erf") for kind in (False, True, "products")}
    assert erf[True] == erf["products"] > erf[False]
    flops = {kind: matmul_flops(grad(kind)) for kind in erf}
    assert flops[True] > flops["products"] > flops[False]  # The scores of attention, in XLA.


@pytest.mark.slow
@pytest.mark.parametrize(("scan", "pre_norm"), itertools.product((False, True), (False, True)))
def test_all_layers_are_the_states_on_the_way(scan, pre_norm):
    config = variant(scan_layers=scan, pre_norm=pre_norm)
    params = weights(variant(pre_norm=pre_norm))
    mine = stacked(params) if scan else params
    states = encode(config, mine, all_layers=True)
    assert len(states) == config.num_layers + 1
    assert all(state.shape == (ROWS, LENGTH, config.hidden_size) for state in states)
    np.testing.assert_allclose(states[-1], encode(config, mine), rtol=1e-5, atol=1e-6)
    # State k of a deep encoder is the last state of one with k layers (unless that normalises it).
    for depth in range(1, config.num_layers):
        shallow = variant(num_layers=depth, pre_norm=pre_norm)
        reached = encode(shallow, params, all_layers=True)
        np.testing.assert_allclose(states[depth - 1], reached[-2], rtol=1e-5, atol=1e-5)
        if not pre_norm:
            np.testing.assert_allclose(states[depth], reached[-1], rtol=1e-5, atol=1e-5)


CHOSEN = [
    {},
    {"scan_layers": True, "remat": True, "pre_norm": True, "relative_bias": "plain"},
    {"scan_layers": True, "num_layers": 1, "gate_input": "hidden"},
]


@pytest.mark.parametrize(
    ("changes", "drops"),
    tiny.slow_except([(CHOSEN[2], False)], itertools.product(CHOSEN, (False, True))),
    ids=str,
)
def test_chosen_positions_get_what_all_would_give(changes, drops):
    """In value and gradient; dropout draws other numbers, except for the first position."""
    config = variant(**changes)
    params = weights(config)
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(ROWS, 3, config.hidden_size))
    chosen = jax.device_put(rng.integers(0, LENGTH, (ROWS, 3)).astype(np.int32))

    def value(params, at, given, **options):
        states = encode(config, params, jnp.float64, **options, **({"at": at} if given else {}))
        states = states if given else jnp.take_along_axis(states, at[..., None], axis=1)
        return (states * weight[:, : at.shape[1]]).sum()

    first = jnp.zeros((ROWS, 1), jnp.int32)
    at, options = (first, {"dropout_seeds": seeds(4)}) if drops else (chosen, {})
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jax.device_put(np.asarray(x, np.float64)), params)
        found, expected = (
            jax.jit(functools.partial(jax.value_and_grad(value), given=given))(
                params, at, **options
            )
            for given in (True, False)
        )
        assert_close(found, expected)


@pytest.mark.parametrize("options", [{"all_layers": True}, {"source": Memory({}, *inputs())}])
def test_chosen_positions_go_without_all_layers_and_a_source(options):
    with pytest.raises(ValueError, match="goes without all_layers= and without source="):
        encode(TINY, {}, at=jnp.zeros((ROWS, 1), jnp.int32), **options)


def seeds(first):
    return jnp.arange(first, first + ROWS, dtype=jnp.uint32)


def test_dropout_only_when_asked_for():
    params = weights(TINY)
    plain = encode(TINY, params)
    one, other, same = (encode(TINY, params, dropout_seeds=seeds(k)) for k in (0, ROWS, 0))
    np.testing.assert_array_equal(one, same)
    assert np.abs(np.asarray(one) - other).max() > 0.1
    without = variant(dropout=0.0, attention_dropout=0.0)
    np.testing.assert_array_equal(plain, encode(without, params, dropout_seeds=seeds(0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_each_dropout_works_alone(name):
    plain = variant(num_layers=1, dropout=0.0, attention_dropout=0.0)
    config = dataclasses.replace(plain, **{name: 0.5})
    params = weights(config)
    dropped = encode(config, params, dropout_seeds=seeds(0))
    assert np.abs(np.asarray(dropped) - encode(config, params)).max() > 0.05


@pytest.mark.parametrize("scan", tiny.slow_except({True}, [False, True]))
def test_layers_drop_differently(scan):
    """With pre-LN and all weights zero but one bias of 1, each layer adds 0 or 1 / (1 - .5)."""
    config = variant(
        scan_layers=scan, pre_norm=True, dropout=0.5, relative_bias="none", num_layers=3
    )
    params = jax.tree.map(jnp.zeros_like, weights(dataclasses.replace(config, scan_layers=False)))
    for index in range(config.num_layers):
        params[f"layer_{index}"]["ffn"]["wo"]["bias"] += 1.0
    states = encode(
        config,
        stacked(params, config.num_layers) if scan else params,
        all_layers=True,
        dropout_seeds=seeds(1),
    )
    # The last state is normalised: only the first two show what was added.
    first, second = (np.asarray(b - a) for a, b in itertools.pairwise(states[:3]))
    assert set(np.unique(first)) == set(np.unique(second)) == {0.0, 2.0}
    assert 0.3 < (first == second).mean() < 0.7


@pytest.mark.slow
def test_no_two_masks_of_a_pass_are_the_same(monkeypatch):
    """Covers all heads, sub-layers and layers of a decoder."""
    drawn = []

    def words(given):
        jax.debug.callback(lambda x: drawn.extend(np.asarray(x)[0].ravel().tolist()), given)
        return real(given)

    real = dropout.words
    monkeypatch.setattr(dropout, "words", words)
    config = variant(num_heads=4)
    ids = inputs()[1]
    init_cross = jax.jit(functools.partial(init_cross_attention, config))
    cross = meta.unbox(init_cross(jax.random.key(1)))
    source = Memory(cross, inputs()[0], ids)
    encode(config, weights(config), dropout_seeds=seeds(5), source=source)
    jax.effects_barrier()
    # Of each layer, in both attentions: 4 heads and the output; and the feed-forward layer.
    assert len(drawn) == 1 + config.num_layers * (2 * (4 + 1) + 1)
    assert len(set(drawn)) == len(drawn)


def test_embeddings_of_another_width_are_projected():
    config = variant(num_layers=1)
    params = weights(config, width=6)
    assert params["projection"]["kernel"].shape == (6, 16)
    assert params["embedding_norm"]["scale"].shape == (6,)
    hidden = jax.jit(Encoder(config).apply)({"params": params}, *inputs(6))
    assert hidden.shape == (ROWS, LENGTH, 16)


def test_segments_and_padding_do_not_reach_each_other():
    params = weights(TINY)
    embedded, segments = inputs()
    apply = jax.jit(Encoder(TINY).apply)
    before = np.asarray(apply({"params": params}, embedded, segments))
    changed = embedded.at[0, 4:].set(9.0 * jnp.arange(16.0))
    after = np.asarray(apply({"params": params}, changed, segments))
    np.testing.assert_array_equal(before[0, :4], after[0, :4])
    assert np.isfinite(after).all()


@pytest.mark.slow
def test_relative_bias_alone_knows_the_order():
    """Without position embeddings, only the relative bias distinguishes a row from its reverse."""
    segments = np.ones((1, LENGTH), np.int32)
    x = inputs()[0][:1]
    for kind in ("gated", "plain", "none"):
        config = variant(relative_bias=kind)
        params = weights(config)
        apply = jax.jit(Encoder(config).apply)
        straight = apply({"params": params}, x, segments)
        reverse = apply({"params": params}, x[:, ::-1], segments)[:, ::-1]
        difference = np.abs(np.asarray(straight) - reverse).max()
        assert (difference < 1e-4) if kind == "none" else (difference > 1e-2)


@pytest.mark.slow
def test_gate_input_selects_its_input():
    params = weights(TINY)
    query, hidden = (encode(variant(gate_input=kind), params) for kind in ("query", "hidden"))
    assert np.abs(np.asarray(query) - hidden).max() > 1e-3


@pytest.mark.slow
def test_bfloat16_stays_near_float32():
    params = weights(TINY)
    low = jax.jit(Encoder(TINY, jnp.bfloat16).apply)({"params": params}, *inputs())
    assert low.dtype == jnp.bfloat16
    high = np.asarray(encode(TINY, params))
    assert np.abs(np.asarray(low, np.float32) - high).mean() < 0.05 * np.abs(high).mean()


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("hidden_size", 0, "Encoder.hidden_size = 0"),
        ("num_layers", 0, "Encoder.num_layers = 0"),
        ("num_heads", -1, "Encoder.num_heads = -1"),
        ("num_heads", 3, "not divisible by Encoder.num_heads = 3"),
        ("ffn_size", 0, "Encoder.ffn_size = 0"),
        ("max_length", 0, "Encoder.max_length = 0"),
        (
            "relative_bias",
            "rotary",
            "Encoder.relative_bias = 'rotary': expected one of 'gated', 'plain'",
        ),
        ("gate_input", "key", "Encoder.gate_input = 'key': expected one of 'query', 'hidden'"),
        ("relative_buckets", 2, "Encoder.relative_buckets = 2 must be a multiple of 4"),
        ("relative_buckets", 30, "Encoder.relative_buckets = 30"),
        ("relative_max_distance", 2, "Encoder.relative_max_distance = 2 must exceed"),
        ("dropout", 1.0, "Encoder.dropout = 1.0"),
        ("attention_dropout", -0.1, "Encoder.attention_dropout = -0.1"),
    ],
)
def test_invalid_values_name_the_field(field, value, message):
    with pytest.raises(ValueError, match=message):
        variant(**{field: value})


@pytest.mark.parametrize("field, value", [("layer_norm_eps", -1e-5), ("init_std", -0.02)])
def test_negative_sizes_name_the_field(field, value):
    with pytest.raises(ValueError, match=f"Encoder.{field}"):
        variant(**{field: value})


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["none", "gated"])
def test_both_sides_see_each_other_where_positions_restart(bias):
    """Segments and distances are unchanged; only the absolute positions differ."""
    config = variant(relative_bias=bias, dropout=0.0, attention_dropout=0.0)
    model = MaskedLM(config, 50, config.hidden_size)
    sizes, rows = np.array([9, 5]), np.zeros(2, int)
    ids = np.array([0, 11, 12, 2, 13, 14, 15, 16, 2, 0, 21, 2, 22, 2])
    plain = packing.lay_out_pieces(ids, sizes, rows, 1, 15)
    restarted = layouts.lay_out_restarting(ids, sizes, rows, 1, 15)
    slot = np.zeros((1, 1), np.int32)
    example = plain, slot, slot, np.zeros((1, 1, 1, 2))
    params = random_weights(model.init, jax.random.key(0), *example)["params"]

    def states(batch, **changes):
        return np.asarray(model.apply({"params": params}, {**batch, **changes}, method="encode"))[0]

    # Changing a token of f changes all of e's states, and those of no other pair.
    other = restarted["tokens"].copy()
    other[0, 7] = 30
    changed = np.abs(states(restarted) - states(restarted, tokens=other)).max(axis=1) > 1e-5
    assert changed.tolist() == [True] * 9 + [False] * 6
    # Positions are the only way in which the two layouts differ.
    assert np.abs(states(restarted) - states(plain)).max() > 1e-2
    np.testing.assert_array_equal(states(restarted, positions=plain["positions"]), states(plain))
