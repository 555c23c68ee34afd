"""Reading of lines, and errors before anything is compiled."""

import pytest

from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.translation import Translator
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.runs.translating import split_lines


def test_lines_keep_their_number():
    assert split_lines("a\r\n\nb\u2028c\n".encode(), "f") == ["a", "", "b\u2028c"]
    assert split_lines(b"a", "f") == ["a"]
    assert split_lines(b"", "f") == []


def test_damaged_text_is_refused():
    with pytest.raises(ValueError, match="f, line 2 is not UTF-8"):
        split_lines(b"a\n\xff\n", "f")


@pytest.mark.parametrize("stopping", ["always", None])
def test_unknown_rules_are_refused(stopping):
    with pytest.raises(ValueError, match=r"BeamSearch\.early_stopping"):
        BeamSearch(early_stopping=stopping)


def test_a_model_without_a_decoder_is_refused():
    encoder = EncoderConfig(hidden_size=8, num_layers=1, num_heads=1, ffn_size=8)
    with pytest.raises(ValueError, match="this model does not translate: fine-tune it"):
        Translator(XLMConfig(encoder).build(40), BeamSearch())
