import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.ops import contrast

# A program compiles faster than its operations one by one.
enqueue = jax.jit(contrast.enqueue)
spread = jax.jit(contrast.spread)
contrasted = jax.jit(contrast.contrast)


def test_contrast_is_the_cross_entropy_of_the_own_key():
    rng = np.random.default_rng(0)
    queries, keys, queue = (rng.standard_normal((n, 6)) for n in (5, 5, 9))
    found = contrasted(queries, keys, queue, 0.25)
    for n, query in enumerate(queries):
        scores = np.array([query @ keys[n], *(queue @ query)]) / 0.25
        expected = np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[0]
        np.testing.assert_allclose(found.loss[n], expected, rtol=1e-5)
        assert bool(found.is_nearest[n]) == (scores.argmax() == 0)


def test_a_tie_is_not_nearest():
    """An encoder that maps all texts to one point has accuracy 0."""
    same = jnp.ones((3, 4))
    assert not contrasted(same, same, same, 0.25).is_nearest.any()


def test_no_gradient_is_lost_or_made_up():
    rng = np.random.default_rng(1)
    queries, keys, queue = (jnp.asarray(rng.standard_normal((n, 3))) for n in (2, 2, 4))
    loss = lambda q: contrasted(q, keys, queue, 0.5).loss.sum()  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(queries)
    for n in range(2):
        others = jnp.concatenate([keys[n : n + 1], queue])
        share = jax.nn.softmax(others @ queries[n] / 0.5)
        np.testing.assert_allclose(gradient[n], (share @ others - keys[n]) / 0.5, rtol=1e-4)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_the_queue_holds_the_last_keys_in_a_ring(data):
    size = data.draw(st.sampled_from([1, 4]), "K")  # Each size and number of keys compiles.
    ring, count = jnp.zeros((size, 1)), jnp.zeros((), jnp.int32)
    written = []
    for _ in range(data.draw(st.integers(0, 9), "steps")):
        mask = data.draw(st.lists(st.booleans(), min_size=0, max_size=size), "is_key")
        keys = [len(written) + 1 + i for i in range(len(mask))]
        ring, count = enqueue(
            ring,
            count,
            jnp.asarray(keys, jnp.float32)[:, None].reshape(-1, 1),
            jnp.asarray(mask, bool),
        )
        written += [key for key, is_key in zip(keys, mask) if is_key]
        expected = np.zeros(size)
        for number, key in enumerate(written):
            expected[number % size] = key
        np.testing.assert_array_equal(ring[:, 0], expected)
        assert (int(count) >= size) == (len(written) >= size)
        assert int(count) < 2 * size
        assert int(count) % size == len(written) % size


def test_spread_is_0_for_one_direction_and_1_around_zero():
    one = jnp.asarray([[1.0, 2.0], [2.0, 4.0], [0.5, 1.0]])
    np.testing.assert_allclose(spread(one), 0.0, atol=1e-6)
    np.testing.assert_allclose(spread(jnp.concatenate([one, -one])), 1.0, atol=1e-6)
    np.testing.assert_array_equal(contrast.directions(jnp.zeros((2, 3))), 0.0)
