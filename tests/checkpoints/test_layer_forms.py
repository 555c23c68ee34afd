"""Models with stacked layers read checkpoints of separate ones, and the other way round."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import tiny

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.layer_forms import converted, in_form_of, leaf_names
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_optimizer import check_warm_optimizer, warm_optimizer
from xlme_jax.checkpoints.warm_start import check_warm_start, warm_start

LAYERS = 12  # "layer_10" comes before "layer_2" in the order of names.
FORMS = ("separate", "stacked")


def states():
    """Returns the same state in both forms."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    def layer():
        return {"ffn": {"kernel": draw(2, 3)}, "bias": draw(3)}

    def encoder():
        return {"norm": draw(3)} | {f"layer_{index}": layer() for index in range(LAYERS)}

    params, second = {"encoder": encoder(), "table": {"rows": draw(4, 2)}}, {"encoder": encoder()}
    adam = optax.ScaleByAdamState(jnp.int32(7), params, {**params, **second})
    separate = TrainState(jnp.int32(5), params, second, (adam, optax.EmptyState()))

    def stacked(tree):
        if isinstance(tree, dict) and "layer_0" in tree:
            layers = [tree[f"layer_{index}"] for index in range(LAYERS)]
            return {"norm": tree["norm"], "layers": jax.tree.map(lambda *x: jnp.stack(x), *layers)}
        return tree

    def convert(tree):
        return jax.tree.map(
            stacked, tree, is_leaf=lambda node: isinstance(node, dict) and "norm" in node
        )

    return {"separate": separate, "stacked": convert(separate)}


STATES = states()


def abstract(state):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), state)


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module", params=tiny.slow_except({"stacked"}, FORMS))
def saved(request, tmp_path_factory):
    """Returns the form of a checkpoint, the run's folder and the other form."""
    folder = tmp_path_factory.mktemp(request.param)
    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(5, STATES[request.param], RunRecord({}, "digest", ""))
    (other,) = set(FORMS) - {request.param}
    return request.param, folder, other


def test_a_run_resumes_in_the_other_form(saved):
    form, folder, other = saved
    with Checkpoints(folder, keep=1) as checkpoints:
        for wanted in (other, form):
            target = abstract(STATES[wanted])
            checkpoints.check(target, "digest")
            assert_same(checkpoints.restore(5, target)[0], STATES[wanted])


def test_a_warm_start_takes_weights_and_moments_in_the_other_form(saved):
    _, folder, other = saved
    target = abstract(STATES[other])
    assert_same(warm_start(folder, target.params), STATES[other].params)
    check_warm_optimizer(folder, target.opt_state)
    assert_same(warm_optimizer(folder, target.opt_state), STATES[other].opt_state)


def test_counterparts_and_missing_parts_are_found_in_the_other_form(saved):
    _, folder, other = saved
    params = STATES[other].params
    twice = {"one": params["encoder"], "two": params["encoder"], "own": params["table"]}
    pairs = {"one": "encoder", "two": "encoder", "own": "table"}
    assert_same(warm_start(folder, abstract(twice), counterparts=pairs), twice)
    more = {**params, "head": params["encoder"]}
    assert_same(warm_start(folder, abstract(more), may_lack=["head"]), params)


def test_another_depth_is_refused(saved):
    _, folder, other = saved
    params = dict(STATES[other].params)
    encoder = dict(in_form_of(params, leaf_names(STATES["separate"].params))["encoder"])
    del encoder[f"layer_{LAYERS - 1}"]
    fewer = in_form_of({**params, "encoder": encoder}, leaf_names(params))
    with pytest.raises(ValueError, match=r"weight encoder\.layer|no weight encoder\.layer"):
        check_warm_start(folder, abstract(fewer))


def test_shardings_follow_the_axis_of_layers():
    mesh = jax.make_mesh((1,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))

    def sharded(state, *spec):
        named = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=named), state)

    layers = {form: STATES[form].params["encoder"] for form in FORMS}
    one = {"layer_0": layers["separate"]["layer_0"]["ffn"]}
    stack = {"layers": jax.tree.map(lambda x: x[None], one["layer_0"])}
    apart, together = sharded(one, "fsdp", None), sharded(stack, None, "fsdp", None)
    assert in_form_of(apart, leaf_names(stack)) == together
    assert in_form_of(together, leaf_names(one)) == apart
    found = converted(one, together)
    assert_same(found, stack)
    assert found["layers"]["kernel"].sharding == together["layers"]["kernel"].sharding


def test_what_is_not_a_stack_of_like_layers_stays():
    tree = {"layer_0": {"a": jnp.ones(2)}, "layer_2": {"a": jnp.ones(2)}}
    assert in_form_of(tree, {"layers.a"}) == tree
    assert in_form_of(tree, {"table"}) is not None
    assert leaf_names(in_form_of(tree, {"table"})) == leaf_names(tree)
