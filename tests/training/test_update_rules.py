"""Update rules: their steps against Optax and numpy, and what else a rule must get along with."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import tiny
from helpers.random_weights import random_weights

from xlme_jax.checkpoints.layer_forms import in_form_of, leaf_names
from xlme_jax.configuration import loading
from xlme_jax.configuration.values import ConfigError
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import RunFacts
from xlme_jax.objectives.finetune import FineTuneConfig
from xlme_jax.objectives.freezing import freeze
from xlme_jax.objectives.pair_contrast import ContrastConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.tools.planning.compiling import lower_step
from xlme_jax.tools.planning.machines import parse_topology
from xlme_jax.training import mesh as meshes
from xlme_jax.training.optimizer import AdamW, OptimizerConfig, decay_mask
from xlme_jax.training.update_rules import Muon, StableAdamW, _labels

ENCODER = EncoderConfig(
    hidden_size=8, num_layers=1, num_heads=2, ffn_size=12, max_length=8, scan_layers=False
)
TWO_LAYERS = dataclasses.replace(ENCODER, num_layers=2)
SYSTEMS = ("xlme", "xlm", "infoxlm", "veco", "translate")
RULES = [AdamW(), StableAdamW(), Muon()]
# Gradients are clipped from 3 on, in some steps and not in others.
CONFIG = OptimizerConfig(learning_rate=0.01, warmup_steps=2, weight_decay=0.5, clip_norm=3.0)
norm_of = jax.jit(optax.global_norm)  # A program compiles faster than its operations one by one.


@functools.cache
def weights(encoder=ENCODER):
    """Returns random weights of an encoder, with biases that are not zero."""
    return random_weights(XLMConfig(encoder).build(20).init, jax.random.key(0))


def gradients(params, steps):
    """Returns random gradients that grow, so that second moments lag behind."""
    rng = np.random.default_rng(0)
    return [
        jax.tree.map(
            lambda x, scale=0.02 * 1.6**step: (scale * rng.normal(size=x.shape)).astype(np.float32),
            params,
        )
        for step in range(steps)
    ]


def trained(transform, params, steps, of=lambda tree: tree):
    """Returns the weights after some steps, and the optimizer's state."""
    state = jax.jit(transform.init)(params)

    @jax.jit
    def update(gradient, state, params):
        updates, state = transform.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for gradient in map(of, steps):
        params, state = update(gradient, state, params)
    return params, state


def named(tree):
    """Returns {dotted name: array} of nested weights."""
    return {
        ".".join(key.key for key in path): np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def matrices(params):
    """Returns {name: float[matrices, inputs, outputs]} of the weights that Muon is for."""
    inputs = {"qkv": 8, "out": 8, "wi": 8, "wo": 12}
    kernels = {}
    for name, leaf in named(params).items():
        module = name.split(".")[-2]
        if ".layer_" in name and name.endswith(".kernel"):
            # Queries, keys and values, [D, 3, heads, K], have a matrix each.
            parts = np.moveaxis(leaf, 1, 0) if module == "qkv" else leaf[None]
            kernels[name] = parts.reshape(len(parts), inputs[module], -1)
    return kernels


def orthogonal(matrix):
    """Five Newton-Schulz iterations, as Jordan et al. 2024 write them, in numpy."""
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def by_hand(config, params, steps):
    """Returns {name: array} of the weights after some steps, in numpy; Muon's in 3 axes."""
    rule, rates, mask = config.update_rule, config.learning_rates(1000), named(decay_mask(params))
    muon = matrices(params) if isinstance(rule, Muon) else {}
    weight = named(params) | muon
    first, second = ({name: 0 * x for name, x in weight.items()} for _ in range(2))
    for t, tree in enumerate(steps, 1):
        gradient, rate = named(tree), float(rates(t - 1))
        norm = np.sqrt(sum((x**2).sum() for x in gradient.values()))
        if muon:
            gradient |= matrices(tree)
        for name, x in gradient.items():
            g = x * min(1, config.clip_norm / norm)
            decay = config.weight_decay * mask[name] * weight[name]
            if name in muon:
                m = first[name] = 0.95 * first[name] + 0.05 * g
                ahead = 0.95 * m / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
                size = 0.2 * np.sqrt(max(g.shape[1:]))
                step = np.stack([size * orthogonal(part) for part in ahead]) + decay
            else:
                # Algorithm 2 of Wortsman et al.: decays corrected instead of moments.
                b1, b2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (config.b1, config.b2))
                v = first[name] = b1 * first[name] + (1 - b1) * g
                u = second[name] = b2 * second[name] + (1 - b2) * g**2
                step = v / (np.sqrt(u) + config.eps) + decay
                if isinstance(rule, StableAdamW):
                    step /= max(1, np.sqrt((g**2 / np.maximum(u, config.eps**2)).mean()))
            weight[name] = weight[name] - rate * step
    return weight


@pytest.mark.parametrize(
    ("rule", "count"),
    tiny.slow_except([(RULES[1], 10)], itertools.product(RULES, (1, 10))),
    ids=repr,
)
def test_steps_are_those_of_the_papers(rule, count):
    warmup = 2 if count > 1 else 0  # The first rate of a warm-up is 0.
    config, params = dataclasses.replace(CONFIG, update_rule=rule, warmup_steps=warmup), weights()
    steps = gradients(params, count)
    norms = [float(norm_of(tree)) for tree in steps]
    assert count == 1 or norms[0] < CONFIG.clip_norm < norms[-1]
    expected = by_hand(config, params, steps)
    result, _ = trained(config.build(1000), params, steps)
    before, result = (
        named(tree) | (matrices(tree) if isinstance(rule, Muon) else {})
        for tree in (params, result)
    )
    assert expected.keys() == result.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, atol=2e-6, rtol=1e-5, err_msg=name)
        assert np.abs(value - before[name]).max() > 1e-3


@pytest.mark.parametrize("count", tiny.slow_except([10], [1, 10]))
def test_muon_is_optaxs_for_matrices_and_its_adamw_for_the_rest(count):
    config, params = dataclasses.replace(CONFIG, update_rule=Muon(momentum=0.9, rms=0.3)), weights()
    steps = gradients(params, count)
    result, _ = trained(config.build(1000), params, steps)
    rate = config.learning_rates(1000)

    def clipped(tree):
        factor = min(1.0, config.clip_norm / float(norm_of(tree)))
        return jax.tree.map(lambda x: factor * x, tree)

    def flat(tree):
        """Returns {name and number: matrix}."""
        return {
            f"{name}.{number}": jnp.asarray(part, jnp.float32)
            for name, parts in matrices(tree).items()
            for number, part in enumerate(parts)
        }

    muon = optax.contrib.muon(rate, beta=0.9, weight_decay=0.5, consistent_rms=0.3)
    expected, _ = trained(muon, flat(params), [clipped(tree) for tree in steps], of=flat)
    assert len(expected) == 3 + 1 + 2
    for name, matrix in flat(result).items():
        np.testing.assert_allclose(matrix, expected[name], atol=1e-6, err_msg=name)
    adamw = optax.adamw(rate, config.b1, config.b2, config.eps, weight_decay=0.5, mask=decay_mask)
    rest, _ = trained(adamw, params, steps, of=clipped)
    rest, result = named(rest), named(result)
    for name in rest.keys() - matrices(params).keys():
        np.testing.assert_allclose(result[name], rest[name], atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_stable_adamw_without_momentum_clips_by_optaxs_block_rms():
    config = dataclasses.replace(
        CONFIG, update_rule=StableAdamW(), b1=0.0, eps=1e-12, weight_decay=0.0, clip_norm=1e9
    )
    params = weights()
    steps = gradients(params, 6)
    clipped = optax.chain(
        optax.scale_by_adam(0.0, config.b2, config.eps),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_learning_rate(config.learning_rates(1000)),
    )
    result, expected = (trained(x, params, steps)[0] for x in (config.build(1000), clipped))
    unclipped = trained(
        dataclasses.replace(config, update_rule=AdamW()).build(1000), params, steps
    )[0]
    for x, y, z in zip(*map(jax.tree.leaves, (result, expected, unclipped)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
        assert np.abs(x - z).max() > 1e-4


@pytest.mark.parametrize(
    ("system", "scan"),
    tiny.slow_except([("xlme", False), ("veco", True)], itertools.product(SYSTEMS, (False, True))),
)
def test_the_matrices_of_the_systems(system, scan):
    """Kernels of attention and FFN in layers, and nothing else, boxed or not."""
    runs = {"xlme": "quickstart", "xlm": "xlm_base"}
    files = [f"gin_configs/runs/{runs.get(system, f'{system}_quickstart')}.gin"]
    small = ["Encoder.hidden_size = 24", "Encoder.ffn_size = 8", f"Encoder.scan_layers = {scan}"]
    objective = loading.load(files, [*small, "Encoder.num_heads = 2"], "Train").objective.build(100)
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    labels = _labels(meshes.unbox(boxed))
    assert jax.tree.leaves(_labels(boxed)) == jax.tree.leaves(labels)
    names = {
        ".".join(key.key for key in path)
        for path, label in jax.tree_util.tree_flatten_with_path(labels)[0]
        if label == "muon"
    }
    modules = {tuple(name.split(".")[-2:]) for name in names}
    expected = {"qkv", "out", "wi", "wo"} | (
        {"q", "kv"} if system in ("veco", "translate") else set()
    )
    assert modules == {(module, "kernel") for module in expected}
    assert not [name for name in names if "head." in name or "embedding" in name]
    state = jax.eval_shape(Muon().updates(CONFIG)[0].init, boxed)
    momentum = leaf_names(state.inner_states["muon"].inner_state[0].mu)
    assert len(momentum) == len(names)


def test_weights_without_matrices_are_refused():
    with pytest.raises(ValueError, match=r"Muon\(\): no weight is a matrix.*rule = @AdamW\(\)"):
        dataclasses.replace(CONFIG, update_rule=Muon()).build(9).init(
            {"head": {"kernel": jnp.ones(2)}}
        )


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_stack_of_layers_has_the_steps_and_the_state_of_layers(rule):
    config, params = dataclasses.replace(CONFIG, update_rule=rule), weights(TWO_LAYERS)
    steps, build = gradients(params, 4), config.build(1000)
    names = leaf_names(weights(dataclasses.replace(TWO_LAYERS, scan_layers=True)))
    stack = functools.partial(in_form_of, names=names)
    separate, separate_state = trained(build, params, steps)
    stacked, stacked_state = trained(build, stack(params), steps, of=stack)
    assert "layers" in stacked["encoder"]
    expected = {"params": stacked, "opt_state": stacked_state}
    converted = in_form_of({"params": separate, "opt_state": separate_state}, leaf_names(expected))
    back = in_form_of(expected, leaf_names({"params": separate, "opt_state": separate_state}))
    assert leaf_names(back["opt_state"]) == leaf_names(separate_state)
    assert jax.tree.structure(converted) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(converted), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("rule", "decay_all"),
    tiny.slow_except([(RULES[1], False)], itertools.product(RULES, (False, True))),
    ids=repr,
)
def test_decay_without_gradients(rule, decay_all):
    params = weights()
    config = dataclasses.replace(CONFIG, update_rule=rule, warmup_steps=0, decay_all=decay_all)
    result, _ = trained(config.build(1000), params, [jax.tree.map(np.zeros_like, params)])
    mask = named(decay_mask(params))
    assert {bool(x) for x in mask.values()} == {False, True}
    for name, before in named(params).items():
        factor = 1 - 0.01 * 0.5 * (decay_all or mask[name])
        np.testing.assert_allclose(named(result)[name], factor * before, rtol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_frozen_weights_stay_and_later_move(rule):
    params = weights()
    transform = freeze(dataclasses.replace(CONFIG, update_rule=rule).build(1000), ["encoder"], 3)
    state, history = jax.jit(transform.init)(params), [params]
    update = jax.jit(transform.update)
    for number, gradient in enumerate(gradients(params, 4)):
        updates, state = update(gradient, state, history[-1], step=jnp.int32(number))
        history.append(optax.apply_updates(history[-1], updates))
    frozen = [jax.tree.leaves(x["encoder"]) for x in history]
    assert all(np.array_equal(x, y) for x, y in zip(frozen[0], frozen[3]))
    assert not any(np.array_equal(x, y) for x, y in zip(frozen[3], frozen[4]))
    assert np.isfinite(np.concatenate([np.ravel(x) for x in frozen[4]])).all()
    assert not np.array_equal(history[3]["tokens"]["embedding"], params["tokens"]["embedding"])


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_frozen_tables_have_no_state(rule):
    objective = ContrastConfig(XLMConfig(TWO_LAYERS), freeze_tokens=True, layer=1).build(20)
    transform = objective.optimizer(dataclasses.replace(CONFIG, update_rule=rule).build(1000))
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    names = leaf_names(meshes.unbox(jax.eval_shape(transform.init, boxed)))
    assert not [name for name in names if "tokens" in name]
    assert [name for name in names if "layer_1" in name and name.endswith("wi.kernel")]
    params = random_weights(objective.init, jax.random.key(0))
    state, gradient = jax.jit(transform.init)(params), gradients(params, 1)[0]
    updates, _ = jax.jit(transform.update)(gradient, state, params, step=jnp.int32(0))
    # Layers above the pooled one decay without a gradient, but are not changed.
    assert not updates["encoder"]["layer_1"]["ffn"]["wi"]["kernel"].any()


def test_rules_that_read_whole_arrays_refuse_lazy_rows():
    objective = FineTuneConfig("panx", XLMConfig(ENCODER), lazy_tokens=True).build(20)
    objective.check(RunFacts({}, updates_by_entry=Muon().by_entry))
    with pytest.raises(ValueError, match=r"FineTune\.lazy_tokens = True .*Optimizer\.update_rule"):
        objective.check(RunFacts({}, updates_by_entry=StableAdamW().by_entry))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_plans_know_the_state(rule):
    bindings = ["Train.vocab_size = 100", f"Optimizer.update_rule = @{type(rule).__name__}()"]
    files = ["gin_configs/models/xlm.gin", "tests/tiny.gin"]
    config = loading.load(files, bindings, "Train")
    lowered = lower_step(config, parse_topology("cpu:1"), jax.devices()[:1])
    abstract = jax.eval_shape(config.objective.build(100).init, jax.random.key(0))
    params = named_sizes(meshes.unbox(abstract))
    assert lowered.sizes["params"] == sum(params.values())
    momenta = sum(size for name, size in params.items() if is_matrix(name))
    assert momenta == 4 * (4 * 32 * 32 + 2 * 32 * 64)
    saved = momenta if isinstance(rule, Muon) else 0
    counts = lowered.sizes["optimizer"] - (2 * lowered.sizes["params"] - saved)
    assert 0 < counts <= 32  # Counts of steps, and the coefficients of Newton and Schulz.


def is_matrix(name):
    return ".layer_" in name and name.endswith(".kernel")


def named_sizes(tree):
    """Returns {dotted name: bytes} of nested weights."""
    return {
        ".".join(key.key for key in path): 4 * leaf.size
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def test_gin_chooses_the_rule():
    files = ["gin_configs/runs/quickstart.gin"]
    config = loading.load(
        files, ["Optimizer.update_rule = @Muon()", "Muon.momentum = 0.9"], "Train"
    )
    assert config.optimizer.update_rule == Muon(momentum=0.9)
    with pytest.raises(
        ConfigError, match=r"Optimizer\.update_rule = 'muon' is not allowed; .*or @Muon\(\)"
    ):
        loading.load(files, ["Optimizer.update_rule = 'muon'"], "Train")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Muon(momentum=1.0), r"Muon\.momentum = 1\.0 must lie in \[0, 1\)"),
        (lambda: Muon(rms=0.0), r"Muon\.rms = 0\.0 must be positive"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Eight devices are those of another process (see conftest.py); it prints what is asserted below.
EIGHT_DEVICES = """
import dataclasses, json, sys
import jax, numpy as np
from xlme_jax.configuration import loading
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

facts = {}
rng = np.random.default_rng(0)
tokens = rng.integers(5, 200, (3, 8, 32)).astype(np.int32)
positions = np.tile(np.arange(32, dtype=np.int32), (8, 1))

def trained(rule, sizes, devices):
    files = ["gin_configs/models/xlm.gin", sys.argv[1]]
    bindings = [f"Optimizer.update_rule = @{rule}()", "Optimizer.warmup_steps = 0"]
    bindings.append("XLM.translation_pairs = False")  # Half to trace.
    config = loading.load(files, bindings, "Train")
    objective = config.objective.build(200)
    optimizer = config.optimizer.build(20)
    mesh = meshes.make_mesh(meshes.MeshConfig(*sizes), devices)
    with states.sharding_rules(mesh):
        abstract = states.abstract_state(objective, optimizer, mesh)
        state = states.fresh_state(objective, optimizer, abstract, 0)
        step = states.compile_step(objective, optimizer, abstract, config.loop)
        history = [jax.device_get(state.params)]
        for part in tokens:
            rows = {"tokens": part, "segment_ids": 0 * part + 1, "positions": positions}
            batch = {"monolingual": rows}
            state, _ = step(state, meshes.put_batch(batch, meshes.batch_sharding(mesh)))
        history.append(jax.device_get(state.params))
    return state, history

for rule in sys.argv[2:]:
    _, (before, whole) = trained(rule, (1, 1, 1), jax.devices()[:1])
    state, (start, split) = trained(rule, (2, 2, 2), jax.devices())
    pairs = list(zip(*map(jax.tree.leaves, (before, whole, start, split))))
    moments = {
        jax.tree_util.keystr(path): list(leaf.addressable_shards[0].data.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if "wi" in str(path) and "kernel" in str(path) or "embedding" in str(path)
    }
    facts[rule] = {
        "start": max(float(np.abs(a - c).max()) for a, _, c, _ in pairs),
        "moved": min(float(np.abs(b - a).max()) for a, b, _, _ in pairs),
        "apart": max(float(np.abs(d - b).max()) for _, b, _, d in pairs),
        "moments": moments,
    }
print("FACTS", json.dumps(facts))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    # AdamW updates each number alone; the others read whole arrays, which are split.
    tiny.slow_except(["StableAdamW Muon"], ["AdamW", "StableAdamW Muon"]),
)
def test_eight_devices_train_as_one_does(rules):
    gin_file = str(tiny.REPOSITORY / "tests" / "tiny.gin")
    output = tiny.run(
        ["-c", EIGHT_DEVICES, gin_file, *rules.split()], devices=8, modules=tiny.TRAINING
    )
    facts = json.loads(output.split("FACTS ")[1].splitlines()[0])
    assert set(facts) == set(rules.split())
    for rule, values in facts.items():
        print(rule, {key: values[key] for key in ("start", "moved", "apart")})
        assert values["start"] == 0
        assert values["moved"] > 1e-3 and values["apart"] < 2e-6
        shapes = values["moments"]
        # [256 padded rows, 32] over fsdp x tensor, and [D, F] over fsdp and tensor.
        assert [256 // 4, 32] in shapes.values()
        assert {tuple(x) for name, x in shapes.items() if "wi" in name} == {(32 // 2, 64 // 2)}
