"""Errors before anything is compiled."""

import pytest
import tiny

from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.sampling import Sampling
from xlme_jax.evaluation.translation import Translator
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.runs.translating import score


@pytest.mark.parametrize("stopping", ["always", None])
def test_unknown_rules_are_refused(stopping):
    with pytest.raises(ValueError, match=r"BeamSearch\.early_stopping"):
        BeamSearch(early_stopping=stopping)


DRAWS = [
    ({"temperature": 0.0}, "temperature = 0.0 must be above 0; top_k=1 is greedy"),
    ({"top_p": 0.0}, "top_p = 0.0 must lie in"),
    ({"top_k": 0}, "top_k = 0 must be at least 1"),
]


@pytest.mark.parametrize(("options", "message"), DRAWS)
def test_impossible_draws_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_translations_of_other_lines_are_refused():
    with pytest.raises(ValueError, match=r"a.txt has 2 lines, b.txt has 1; line n of one must"):
        score("run", ["x", "y"], ["z"], "fr", names=("a.txt", "b.txt"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top_k=3"], "--top_k: only with --sample"),
        (["--sample", "--beams=3"], "--sample does not search; leave out --beams"),
        (["--score=x.txt", "--n_best=2"], "--score translates nothing; leave out --n_best"),
    ],
)
def test_flags_that_exclude_each_other_are_refused(flags, message):
    (found,) = tiny.run_each("translate", ["--checkpoint=run", "--target=fr", *flags])
    assert found.returncode == 1 and message in found.stderr, found


def test_a_model_without_a_decoder_is_refused():
    encoder = EncoderConfig(hidden_size=8, num_layers=1, num_heads=1, ffn_size=8)
    with pytest.raises(ValueError, match="this model does not translate: fine-tune it"):
        Translator(XLMConfig(encoder).build(40), BeamSearch())
