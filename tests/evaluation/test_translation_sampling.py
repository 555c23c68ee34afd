"""Drawn translations against the softmax, and against Hugging Face's cut distributions."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from helpers import tiny

from xlme_jax.evaluation.random_translations import Sampling, allowed, sample

EOS, PAD, SIZE = 2, 1, 7
RNG = np.random.default_rng(0)
# Logits of the token after each token.
TABLE = RNG.normal(size=(SIZE, SIZE))
TABLE[:, EOS] = -1.0


def drawn(config, rows, length=3, limits=None):
    """Returns translations of a model whose next token depends on the last one alone."""

    @jax.jit
    def run(first, numbers, limits):
        return sample(
            config,
            lambda tokens, state: (jnp.asarray(TABLE, jnp.float32)[tokens], state),
            (),
            first,
            numbers,
            length=length,
            limits=limits,
            eos=EOS,
            pad=PAD,
        )

    limits = jnp.full(rows, length) if limits is None else jnp.asarray(limits)
    return jax.tree.map(np.asarray, run(jnp.full(rows, 3), jnp.arange(rows), limits))


@pytest.mark.parametrize("temperature", tiny.slow_except({0.6}, [1.0, 0.6]))
def test_sequences_have_the_probabilities_of_the_model(temperature):
    found = drawn(Sampling(4, temperature), 1000)
    log_p = np.log(scipy.special.softmax(TABLE / temperature, axis=1))
    expected = {}
    for one in range(SIZE):
        for two in range(SIZE) if one != EOS else (PAD,):
            follows = 0.0 if one == EOS else log_p[one, two]
            expected[one, two] = np.exp(log_p[3, one] + follows)
    assert sum(expected.values()) == pytest.approx(1)
    counts = collections.Counter(map(tuple, found.tokens[..., 1:].reshape(-1, 2).tolist()))
    assert set(counts) <= set(expected) and counts.total() == 4000
    probable = [pair for pair, p in expected.items() if 4000 * p >= 5]
    ours = [counts[pair] for pair in probable]
    theirs = np.array([expected[pair] for pair in probable])
    # The rare ones together.
    ours.append(4000 - sum(ours))
    theirs = 4000 * np.append(theirs, 1 - theirs.sum())
    assert scipy.stats.chisquare(ours, theirs).pvalue > 1e-3
    # A wrong temperature would be seen.
    wrong = np.exp([np.log(p) * 1.3 for p in theirs])
    assert scipy.stats.chisquare(ours, wrong * 4000 / wrong.sum()).pvalue < 1e-3


def test_scores_are_log_probabilities():
    found = drawn(Sampling(2, 0.5, length_penalty=2.0), 50, length=6)
    log_p = np.log(scipy.special.softmax(TABLE, axis=1))
    for tokens, score in zip(found.tokens.reshape(-1, 6), found.scores.ravel()):
        kept = tokens.tolist()
        kept = kept[: kept.index(EOS) + 1] if EOS in kept else kept
        total = sum(log_p[pair] for pair in itertools.pairwise(kept))
        np.testing.assert_allclose(score, total / (len(kept) - 1) ** 2, rtol=1e-4)
        assert (tokens[len(kept) :] == PAD).all()


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.8}, {"top_k": 99}]
)
def test_cut_distributions_are_those_of_hugging_face(options):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    logits = np.random.default_rng(1).normal(size=(200, 40), scale=2).astype(np.float32)
    expected = torch.from_numpy(logits) / 0.7
    if top_k := options.get("top_k"):
        expected = transformers.TopKLogitsWarper(top_k)(None, expected)
    if top_p := options.get("top_p"):
        expected = transformers.TopPLogitsWarper(top_p)(None, expected)
    found = allowed(Sampling(temperature=0.7, **options), jnp.asarray(logits))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)


@pytest.mark.slow
def test_each_text_has_a_limit_of_its_own():
    """A text draws the same tokens whatever the limits of the others, and stops at its own."""
    limits = np.tile([2, 9, 4], 10)
    alone = {limit: drawn(Sampling(3), 30, limit) for limit in (2, 4, 9)}
    whole, found = alone[9], drawn(Sampling(3), 30, 9, limits)
    for number, limit in enumerate(limits):
        same = whole.tokens[number, :, :limit]
        np.testing.assert_array_equal(found.tokens[number, :, :limit], same)
        assert (found.tokens[number, :, limit:] == PAD).all()
        np.testing.assert_allclose(found.scores[number], alone[limit].scores[number], rtol=1e-6)
    is_longer = (whole.tokens != found.tokens).any(axis=(1, 2))
    assert is_longer[limits < 9].any() and not is_longer[limits == 9].any()
