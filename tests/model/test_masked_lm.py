import dataclasses
import functools

import jax
import jax.numpy as jnp
from helpers.random_weights import random_weights

from xlme_jax.model.electra import MaskedLM
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.ops import vocabulary_head
from xlme_jax.tools.planning.counting import matmul_flops

ENCODER = EncoderConfig(hidden_size=8, num_layers=1, num_heads=2, ffn_size=12, max_length=16)
VOCAB, WIDTH, ROWS = 300, 6, 5


def test_the_head_recomputes_logits_only_if_layers_are(monkeypatch):
    monkeypatch.setattr(vocabulary_head, "LOGITS_BYTES", 0)

    def flops(remat):
        model = MaskedLM(dataclasses.replace(ENCODER, remat=remat), VOCAB, WIDTH)
        targets = jnp.zeros((1, ROWS), jnp.int32)
        uniforms = jnp.zeros((1, ROWS, vocabulary_head.num_chunks(VOCAB), 2))
        hidden = jnp.ones((1, ROWS, ENCODER.hidden_size))
        arguments = (hidden, targets, uniforms)
        initialise = functools.partial(model.init, method=model.predict)
        variables = random_weights(initialise, jax.random.key(0), *arguments)

        def loss(variables):
            return model.apply(variables, *arguments, method=model.predict).loss.sum()

        return matmul_flops(jax.make_jaxpr(jax.grad(loss))(variables))

    logits = 2 * ROWS * vocabulary_head.padded_size(VOCAB) * WIDTH
    assert flops(True) - flops("products") == logits
    assert flops("products") == flops(False)
