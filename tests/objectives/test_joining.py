import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.objectives.xlme import run_jointly


def test_streams_of_one_shape_run_at_once():
    rng = np.random.default_rng(0)

    def rows(count, length):
        return {"x": jnp.asarray(rng.normal(size=(count, length))), "seeds": jnp.arange(count)}

    streams = {"a": rows(3, 4), "long": rows(3, 5), "b": rows(3, 4), "many": rows(6, 4)}
    calls = []

    def function(inputs):
        calls.append(inputs["x"].shape)
        return inputs["x"].sum(axis=1), {"ends": inputs["x"][:, -2:] * inputs["seeds"][:, None]}

    found = run_jointly(function, streams)
    # Of "a" and "b", and of the others alone.
    assert sorted(calls) == [(3, 5), (6, 4), (6, 4)]
    assert set(found) == set(streams)
    for name, inputs in streams.items():
        jax.tree.map(np.testing.assert_array_equal, found[name], function(inputs))


def test_rows_stay_on_their_device():
    """Row i of each stream is next to row i of the others: a part of the rows has parts of each."""
    order = []
    streams = {name: jnp.arange(4) + 10 * index for index, name in enumerate("ab")}
    run_jointly(lambda rows: order.append(rows.tolist()) or rows, streams)
    assert order == [[0, 10, 1, 11, 2, 12, 3, 13]]
