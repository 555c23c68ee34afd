"""The reader of samples."""

import jax
import pytest
from helpers.random_weights import random_weights
from helpers.runs import load

from xlme_jax.objectives.base import PlainObjective
from xlme_jax.runs import assembly, sample_reader
from xlme_jax.runs.parts import Parts, build
from xlme_jax.training.loop_config import LoopConfig
from xlme_jax.training.mesh import MeshConfig, make_mesh


@pytest.mark.parametrize("every", [None, 0])
def test_without_samples_there_is_no_reader(every):
    settings = LoopConfig(train_steps=1, samples_every=every)
    assert assembly._samples_reader(Parts(None, None, None, (), settings), None, None) is None


def test_a_system_that_shows_nothing_is_named():
    settings = LoopConfig(train_steps=1, samples_every=5)
    with pytest.raises(ValueError, match=r"samples_every = 5: PlainObjective does not show .*None"):
        sample_reader.reader(
            Parts(None, object.__new__(PlainObjective), None, (), settings), None, None
        )


def test_a_negative_number_is_refused():
    with pytest.raises(ValueError, match=r"Loop.samples_every = -1"):
        LoopConfig(train_steps=1, samples_every=-1)


def test_samples_show_what_weights_predict_of_masked_tokens(tmp_path, tiny_data):
    config = load(tmp_path, tiny_data, objective="xlm", Loop__samples_every=1)
    parts, mesh = build(config, ()), make_mesh(MeshConfig())
    read = sample_reader.reader(parts, config.objective, mesh)
    weights = [random_weights(parts.objective.init, jax.random.key(0), seed=n) for n in range(2)]
    samples, others = (read(params).content["sentences"] for params in weights)
    for sentences in (samples, others):
        assert {sentence["stream"] for sentence in sentences} == {"monolingual", "bitext"}
    assert read(weights[0]).content["sentences"] == samples != others
    masked = [
        [
            token
            for sentence in sentences
            for token in sentence["tokens"]
            if isinstance(token, dict) and "predictions" in token
        ]
        for sentences in (samples, others)
    ]
    # Other weights predict other pieces of the same tokens.
    pieces, pieces_of_others = ([token["piece"] for token in tokens] for tokens in masked)
    assert pieces == pieces_of_others and pieces
    assert {name for token in masked[0] for name in token["predictions"]} == {"mlm"}
