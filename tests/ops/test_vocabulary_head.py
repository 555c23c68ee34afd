import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny

from xlme_jax.ops import vocabulary_head as op

VOCAB, ROWS, WIDTH = 1000, 12, 12
# Most chunks, bytes of logits that are looked at together, and whether their exponentials are kept:
# one chunk of 1,024 rows; eight of 128, looked at together, one after the other and in blocks of
# 3 rows, or by fours, with padding rows in the last.
WAYS = {
    "one": (1, 2**28, False),
    "together": (64, 2**28, False),
    "streamed": (64, 0, False),
    "streamed and kept": (64, 0, True),
    "by fours": (64, 20_000, False),
    "by fours and kept": (64, 20_000, True),
}


@pytest.fixture(params=tiny.slow_except({"streamed"}, WAYS))
def chunks(request, monkeypatch):
    set_way(monkeypatch, request.param)
    return op.num_chunks(VOCAB)


@pytest.fixture(params=tiny.slow_except({"together"}, WAYS))
def chunks_of_samples(request, monkeypatch):
    """Chunks of one way: `test_chunks_do_not_change_the_loss` has the samples of the others."""
    set_way(monkeypatch, request.param)
    return op.num_chunks(VOCAB)


def set_way(monkeypatch, name):
    chunks, together, keep = WAYS[name]
    monkeypatch.setattr(op, "LOGITS_BYTES", together)
    monkeypatch.setattr(op, "MAX_CHUNKS", chunks)
    whole = functools.partial(op.vocabulary_head, keep=keep)
    monkeypatch.setattr(op, "vocabulary_head", whole)


def inputs(seed=0, vocab=VOCAB, rows=ROWS, scale=1.0):
    """Returns hidden, table, bias, targets, uniforms. Padding rows have values that would win."""
    rng = np.random.default_rng(seed)
    size = op.padded_size(vocab)
    hidden = rng.normal(size=(rows, WIDTH))
    # The real entries are the same whatever the padding.
    table = np.zeros((size, WIDTH))
    bias = np.zeros(size)
    table[:vocab] = rng.normal(size=(vocab, WIDTH), scale=scale)
    bias[:vocab] = rng.normal(size=vocab)
    table[vocab:], bias[vocab:] = 50.0, 1e4
    targets = rng.integers(0, vocab, rows)
    targets[:2] = 0, vocab - 1
    uniforms = rng.random((rows, op.num_chunks(vocab), 2))
    floats = [jnp.asarray(x, jnp.float32) for x in (hidden, table, bias, uniforms)]
    return *floats[:3], jnp.asarray(targets, jnp.int32), floats[3]


def head(*arrays, vocab=VOCAB):
    """Compiles the whole, which is faster than one operation after the other."""
    return jax.jit(functools.partial(op.vocabulary_head, vocab_size=vocab))(*arrays)


def dense(hidden, table, bias, targets):
    """Returns the loss of each row from the full logits, in the arrays' type."""
    logits = hidden @ table[:VOCAB].T + bias[:VOCAB]
    return -jax.nn.log_softmax(logits)[jnp.arange(len(targets)), targets]


def reference(function, arrays, targets):
    """Returns `function` of the dense losses and its gradients, in float64."""
    with jax.enable_x64(True):
        arrays = [jnp.asarray(np.asarray(x, np.float64)) for x in arrays]
        total = lambda *a: function(dense(*a, np.asarray(targets)))  # noqa: E731
        gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))
        return jax.tree.map(np.asarray, gradient(*arrays))


def test_sizes():
    sizes = (1, 127, 128, 1000, 1200, 8_192, 16_000, 32_768, 250_002, 500_002)
    assert [op.num_chunks(v) for v in sizes] == [1, 1, 1, 8, 2, 64, 2, 64, 16, 32]
    for vocab in sizes:
        size, count = op.padded_size(vocab), op.num_chunks(vocab)
        assert vocab <= size <= vocab + max(op.BLOCK_SIZE - 1, vocab // 100)
        assert size % (op.BLOCK_SIZE * count) == 0


def test_loss_and_argmax_equal_dense(chunks):
    hidden, table, bias, targets, uniforms = inputs()
    prediction = head(hidden, table, bias, targets, uniforms)
    logits = np.asarray(hidden, float) @ np.asarray(table, float).T + np.asarray(bias, float)
    logits = logits[:, :VOCAB]
    expected = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    expected -= logits[np.arange(ROWS), targets]
    assert prediction.loss.dtype == jnp.float32
    np.testing.assert_allclose(prediction.loss, expected, rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(prediction.argmax, logits.argmax(1))
    assert prediction.argmax.dtype == prediction.sample.dtype == jnp.int32


@pytest.mark.parametrize(
    "chunks", tiny.slow_except({"streamed", "streamed and kept"}, WAYS), indirect=True
)
def test_gradients_equal_dense(chunks):
    hidden, table, bias, targets, uniforms = inputs()
    weight = np.random.default_rng(1).random(ROWS).astype(np.float32)
    weight[3] = 0.0

    def loss(hidden, table, bias):
        return (head(hidden, table, bias, targets, uniforms).loss * weight).sum()

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1, 2))(hidden, table, bias)
    expected, dense_gradients = reference(
        lambda x: (x * weight).sum(), (hidden, table, bias), targets
    )
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for ours, theirs in zip(gradients, dense_gradients):
        assert ours.shape == theirs.shape and ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())
    assert np.abs(gradients[1][VOCAB:]).max() == np.abs(gradients[2][VOCAB:]).max() == 0.0
    assert np.abs(gradients[0][3]).max() == 0.0


def test_argmax_and_sample_carry_no_gradient(chunks):
    hidden, table, bias, targets, uniforms = inputs()

    def total(hidden):
        prediction = head(hidden, table, bias, targets, uniforms)
        return (prediction.argmax + prediction.sample).astype(jnp.float32).sum()

    assert np.abs(jax.grad(total)(hidden)).max() == 0.0


def test_chunks_do_not_change_the_loss(monkeypatch):
    results = {}
    for name in ("one", "together", "streamed", "streamed and kept", "by fours"):
        set_way(monkeypatch, name)
        results[name] = head(*inputs())
    for other in ("together", "streamed", "streamed and kept", "by fours"):
        np.testing.assert_allclose(results[other].loss, results["one"].loss, rtol=1e-6)
        np.testing.assert_array_equal(results[other].argmax, results["one"].argmax)
    # The same random numbers, so the same samples whichever chunks are looked at together.
    for other in ("streamed", "streamed and kept", "by fours"):
        np.testing.assert_array_equal(results[other].sample, results["together"].sample)


@pytest.mark.slow
def test_jit_equals_eager(chunks):
    arrays = inputs()
    eager, jitted = op.vocabulary_head(*arrays, vocab_size=VOCAB), head(*arrays)
    np.testing.assert_allclose(eager.loss, jitted.loss, rtol=1e-6)
    np.testing.assert_array_equal(eager.argmax, jitted.argmax)
    np.testing.assert_array_equal(eager.sample, jitted.sample)


@pytest.mark.slow
def test_bfloat16_hidden(chunks):
    """Products are summed in float32, so the only error is the rounding of the inputs."""
    hidden, table, bias, targets, uniforms = inputs()
    low = hidden.astype(jnp.bfloat16)
    prediction = head(low, table, bias, targets, uniforms)
    rounded = (low.astype(jnp.float32), table.astype(jnp.bfloat16).astype(jnp.float32), bias)
    expected, gradients = reference(lambda x: x.sum(), rounded, targets)
    assert prediction.loss.dtype == jnp.float32
    np.testing.assert_allclose(prediction.loss.sum(), expected, rtol=1e-5)

    def loss(hidden, table, bias):
        return head(hidden, table, bias, targets, uniforms).loss.sum()

    ours = jax.grad(loss, argnums=(0, 1, 2))(low, table, bias)
    assert [x.dtype for x in ours] == [jnp.bfloat16, jnp.float32, jnp.float32]
    for one, other in zip(ours, gradients):
        # The error p - 1 is rounded to 8 bits before it is multiplied, and the result once more.
        error = np.abs(np.asarray(one, np.float32) - other).max()
        assert error <= 2**-7 * np.abs(other).max()


def test_extreme_logits_stay_finite(chunks):
    hidden, table, bias, targets, uniforms = inputs(scale=1e3)
    prediction = head(hidden, table, bias, targets, uniforms)
    assert np.isfinite(prediction.loss).all() and (prediction.loss >= 0).all()
    # One entry has all the mass: it is what is sampled.
    np.testing.assert_array_equal(prediction.sample, prediction.argmax)


def samples(vocab, logits, draws, seed=0):
    """Returns `draws` samples from a row of logits, given as the bias."""
    size = op.padded_size(vocab)
    bias = jnp.zeros(size).at[:vocab].set(logits).at[vocab:].set(1e3)
    uniforms = jax.random.uniform(jax.random.key(seed), (draws, op.num_chunks(vocab), 2))
    return np.asarray(
        jax.jit(lambda u: head(*arguments(draws, size, bias), u, vocab=vocab).sample)(uniforms)
    )


def arguments(rows, size, bias):
    hidden, table = jnp.zeros((rows, 4)), jnp.ones((size, 4))
    return hidden, table, bias, jnp.zeros(rows, jnp.int32)


def test_samples_follow_the_softmax(chunks_of_samples):
    """Chi-square test over the vocabulary, in bins of at least 25 expected draws."""
    draws = 60_000
    logits = np.random.default_rng(0).normal(size=VOCAB, scale=2.0)
    drawn = samples(VOCAB, logits, draws)
    assert drawn.min() >= 0 and drawn.max() < VOCAB
    probability = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(probability)
    expected, counts = probability[order] * draws, np.bincount(drawn, minlength=VOCAB)[order]
    bins = np.minimum(np.cumsum(expected) // 25, 1e9).astype(int)
    expected, counts = np.bincount(bins, expected), np.bincount(bins, counts)
    used = expected > 0
    chi_square = ((counts - expected)[used] ** 2 / expected[used]).sum()
    freedom = used.sum() - 1
    # Chi-square is near normal with these degrees of freedom (some hundred): 4 sigma.
    assert freedom > 200
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.slow
def test_two_positions_draw_independently(chunks_of_samples):
    """Joint counts of neighbouring draws over halves of the mass are a quarter each."""
    drawn = samples(VOCAB, np.zeros(VOCAB), 40_000).reshape(-1, 2) < VOCAB // 2
    joint = np.bincount(drawn[:, 0] * 2 + drawn[:, 1], minlength=4) / 20_000
    np.testing.assert_allclose(joint, 0.25, atol=4 * np.sqrt(0.25 * 0.75 / 20_000))


@pytest.mark.parametrize("chunks_of_samples", tiny.slow_except({"streamed"}, WAYS), indirect=True)
def test_padding_and_impossible_entries_are_never_sampled(chunks_of_samples):
    """Includes the ends of the uniform range."""
    logits = np.full(VOCAB, -1e5)
    logits[[3, 300, 999]] = 0.0
    assert set(samples(VOCAB, logits, 20_000)) == {3, 300, 999}
    size = op.padded_size(VOCAB)
    bias = jnp.zeros(size).at[:VOCAB].set(logits)
    top = np.nextafter(np.float32(1), np.float32(0))
    ends = np.array([[[a, b]] * chunks_of_samples for a in (0, top) for b in (0, top)], np.float32)
    drawn = head(*arguments(4, size, bias), jnp.asarray(ends)).sample
    assert set(np.asarray(drawn).tolist()) <= {3, 300, 999}
    uniform = jnp.zeros(size)
    drawn = head(*arguments(4, size, uniform), jnp.asarray(ends)).sample
    assert drawn.max() < VOCAB


@pytest.mark.parametrize("vocab", tiny.slow_except({1, 129}, [1, 2, 127, 128, 129, 1200]))
def test_small_vocabularies(vocab):
    arrays = inputs(vocab=vocab)
    prediction = head(*arrays, vocab=vocab)
    assert prediction.sample.max() < vocab and prediction.argmax.max() < vocab
    assert np.isfinite(prediction.loss).all()
    if vocab == 1:
        assert prediction.loss.tolist() == [0.0] * ROWS


def test_wrong_table_size_is_named():
    hidden, table, bias, targets, uniforms = inputs()
    with pytest.raises(ValueError, match=r"table has 1000 rows.*needs 1024"):
        head(hidden, table[:VOCAB], bias, targets, uniforms)


@pytest.mark.slow
def test_float64_equals_dense_to_rounding(chunks):
    hidden, table, bias, targets, uniforms = inputs()
    expected, gradients = reference(lambda x: x.sum(), (hidden, table, bias), targets)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(np.asarray(x, np.float64)) for x in (hidden, table, bias)]
        loss = lambda *a: head(*a, targets, uniforms).loss.sum()  # noqa: E731
        value, ours = jax.value_and_grad(loss, argnums=(0, 1, 2))(*arrays)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    for one, other in zip(ours, gradients):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13 * np.abs(other).max())
