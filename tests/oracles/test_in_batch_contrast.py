"""Contrast within a batch, against the formula of sentence-transformers in PyTorch.

`MultipleNegativesRankingLoss` is the cross-entropy of scale * cosine with the labels 0, ..., N - 1;
`MultipleNegativesSymmetricRankingLoss` is the mean of this and of the transposed scores' one. The
losses of triplets are those of the package itself.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlme_jax.ops import in_batch
from xlme_jax.ops.contrast import directions

torch = pytest.importorskip("torch")
SCALE, PAIRS, WIDTH = 20.0, 7, 5


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_and_gradient_are_those_of_sentence_transformers(symmetric):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, PAIRS, WIDTH)).astype(np.float32)
    numbers = np.arange(2 * PAIRS, dtype=np.uint32)
    digests = np.stack([numbers, numbers], axis=1)

    def loss(first, second):
        is_real = jnp.ones(PAIRS, bool)
        sides = [
            in_batch.Sentences(directions(first), digests[:PAIRS], is_real),
            in_batch.Sentences(directions(second), digests[PAIRS:], is_real),
        ]
        ways = [sides, sides[::-1]] if symmetric else [sides]
        losses = [in_batch.contrast_in_batch(a, b, jnp.float32(SCALE)).loss for a, b in ways]
        return sum(losses).mean() / len(ways)

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(first, second)
    tensors = [torch.tensor(side, requires_grad=True) for side in (first, second)]
    unit = [torch.nn.functional.normalize(tensor, dim=1) for tensor in tensors]
    scores = SCALE * unit[0] @ unit[1].T
    labels = torch.arange(PAIRS)
    expected = torch.nn.functional.cross_entropy(scores, labels)
    if symmetric:
        expected = (expected + torch.nn.functional.cross_entropy(scores.T, labels)) / 2
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    for gradient, tensor in zip(gradients, tensors):
        # Scores of up to 20 have a rounding error of 1e-6, and so has their softmax.
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=2e-5)


@pytest.mark.parametrize("directions_", [("query_to_doc",), ("query_to_doc", "doc_to_query")])
def test_triplets_are_those_of_sentence_transformers(directions_):
    """Loss and gradient of anchors, positives and negatives; the tolerances are those above."""
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    sides = np.random.default_rng(1).normal(size=(3, PAIRS, WIDTH)).astype(np.float32)
    numbers = np.arange(3 * PAIRS, dtype=np.uint32).reshape(3, PAIRS)

    def loss(sides):
        is_real = jnp.ones(PAIRS, bool)
        first, second, third = (
            in_batch.Sentences(directions(side), jnp.stack([n, n], axis=1), is_real)
            for side, n in zip(sides, numbers)
        )
        scale = jnp.float32(SCALE)
        ways = [in_batch.contrast_in_batch(first, second, scale, None, third)]
        if len(directions_) == 2:
            ways.append(in_batch.contrast_in_batch(second, first, scale))
        return sum(way.loss for way in ways).mean() / len(ways)

    value, gradient = jax.jit(jax.value_and_grad(loss))(sides)
    tensors = [torch.tensor(side, requires_grad=True) for side in sides]
    reference = losses.MultipleNegativesRankingLoss(
        None, scale=SCALE, directions=directions_, partition_mode="per_direction"
    )
    expected = reference.compute_loss_from_embeddings(tensors, None)
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    for of_side, tensor in zip(gradient, tensors):
        np.testing.assert_allclose(of_side, tensor.grad.numpy(), atol=2e-5)
