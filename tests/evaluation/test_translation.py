"""Translations of allowed tokens alone."""

import jax
import numpy as np
import pytest
from helpers.random_weights import random_weights

from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.random_translations import Sampling
from xlme_jax.evaluation.translation import Translator
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.translator import TranslateConfig
from xlme_jax.objectives.veco import VecoConfig

VOCAB = 40
ENCODER = EncoderConfig(
    hidden_size=16, num_layers=1, num_heads=2, ffn_size=20, max_length=24, relative_bias="none"
)
# Even ids, and specials.
ALLOWED = (np.arange(VOCAB) % 2 == 0) | (np.arange(VOCAB) < 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [BeamSearch(1), BeamSearch(5), Sampling(4, 2.0), Sampling(2, top_k=3)],
)
def test_other_tokens_are_never_output(how):
    objective = TranslateConfig(VecoConfig(ENCODER), ("en", "fr")).held_out().build(VOCAB)
    params = random_weights(objective.init, jax.random.key(0))
    rng = np.random.default_rng(0)
    texts = [(BOS_ID, *rng.integers(4, VOCAB - 1, n).tolist(), EOS_ID) for n in (3, 6, 1, 4)]

    def found(allowed):
        translator = Translator(objective, how, batch_tokens=128, allowed=allowed)
        return translator(params, texts, "fr")

    free, masked = found(None), found(ALLOWED)
    assert free == found(np.ones(VOCAB, bool))
    used = [
        {token for best in one for each in best for token in each.tokens} for one in (free, masked)
    ]
    assert any(token % 2 for token in used[0] if token > 3)
    assert ALLOWED[sorted(used[1])].all() and len(used[1]) > 2
    # Scores are the model's own probabilities, of which the other tokens keep their share.
    ended = [
        (text, one) for text, best in zip(texts, masked) for one in best if len(one.tokens) < 14
    ]
    translator = Translator(objective, how, batch_tokens=128)
    pairs = [(text, (BOS_ID, *one.tokens, EOS_ID)) for text, one in ended]
    scores = dict(translator.score(params, pairs, "fr")) if pairs else {}
    for number, (_, one) in enumerate(ended):
        np.testing.assert_allclose(one.score, scores[number].mean, rtol=1e-4)
