"""Beam search against Hugging Face's `generate`, and against all sequences."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from helpers import tiny
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from xlme_jax.evaluation.beam_search import NONE, BeamSearch, search

EOS, PAD, WIDTH = 2, 1, 6


class Weights:
    """A model whose logits depend on all tokens so far, and on where they are."""

    def __init__(self, size, seed, ending):
        rng = np.random.default_rng(seed)
        self.embedding = rng.normal(size=(size, WIDTH)).astype(np.float32)
        self.output = 2 * rng.normal(size=(WIDTH, size)).astype(np.float32)
        self.bias = np.zeros(size, np.float32)
        self.bias[EOS] = ending

    def step(self, tokens, state):
        return _step(tokens, state, (self.embedding, self.output, self.bias))


def _step(tokens, state, arrays):
    embedding, output, bias = map(jnp.asarray, arrays)
    state = 0.8 * state + embedding[tokens]
    return jnp.tanh(state) @ output + bias, state


class Reference(PreTrainedModel, GenerationMixin):
    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, weights):
        super().__init__(PretrainedConfig(vocab_size=len(weights.bias), is_decoder=True))
        self.unused = torch.nn.Parameter(torch.ones(1))  # Tells the device.
        self.weights = weights

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}

    def forward(self, input_ids, return_dict=True, **_):
        weights = self.weights
        embedded = torch.from_numpy(weights.embedding)[input_ids]
        states, state = [], torch.zeros(len(input_ids), WIDTH)
        for place in range(input_ids.shape[1]):
            state = 0.8 * state + embedded[:, place]
            states.append(state)
        hidden = torch.tanh(torch.stack(states, 1))
        logits = hidden @ torch.from_numpy(weights.output) + torch.from_numpy(weights.bias)
        return CausalLMOutputWithPast(logits=logits)


def ours(weights, first, config, length, allowed=None, limits=None):
    arrays = weights.embedding, weights.output, weights.bias
    limits = jnp.asarray(np.full(len(first), length) if limits is None else limits, jnp.int32)
    return _search(config, length)(arrays, jnp.asarray(first, jnp.int32), allowed, limits)


@functools.cache
def _search(config, length):
    """Returns the search, compiled once for all weights of the same shapes."""

    def select(state, beams):
        return jnp.take_along_axis(state, beams[..., None], axis=1)

    @jax.jit
    def run(arrays, first, allowed, limits):
        state = jnp.zeros((len(first), config.beams, WIDTH))
        ends = {"length": length, "limits": limits, "eos": EOS, "pad": PAD}
        step = functools.partial(_step, arrays=arrays)
        return search(config, step, select, state, first, allowed=allowed, **ends)

    return run


SETTINGS = itertools.product([4, 5], [0.6, 1.0, 2.0], [True, False, "never"])
BY_DEFAULT = {(4, 0.6, True), (4, 2.0, "never")}


@pytest.mark.parametrize(
    ("beams", "penalty", "early_stopping"), tiny.slow_except(BY_DEFAULT, SETTINGS)
)
def test_search_equals_generate(beams, penalty, early_stopping):
    compare_with_generate(beams, penalty, early_stopping)


@pytest.mark.parametrize("excluded", [(3, 9, 17, 20, 28), tuple(range(9, 30))])
def test_search_among_some_tokens_equals_generate(excluded):
    compare_with_generate(4, 1.0, False, excluded)


@pytest.mark.parametrize(
    ("beams", "penalty", "early_stopping"),
    tiny.slow_except(
        {(4, 0.6, True)},
        itertools.product([4, 5], [0.6, 1.0, 2.0], [True, False, "never"]),
    ),
)
def test_each_sentence_has_a_limit_of_its_own(beams, penalty, early_stopping):
    """Together they are what `generate` finds of each one alone, with its own `max_length`."""
    first, limits, length = [3, 5, 7, 11, 4, 6], [12, 4, 7, 3, 12, 1], 12
    config = BeamSearch(beams, penalty, early_stopping)
    was_cut = set()
    for seed, ending in ((0, -3.0), (1, 0.0)):
        weights = Weights(30, seed, ending)
        found = ours(weights, first, config, length, limits=limits)
        for number, limit in enumerate(limits[:-1]):
            theirs, scores = generated(weights, first[number : number + 1], config, limit)
            np.testing.assert_array_equal(found.tokens[number, :, :limit], theirs[0])
            assert (found.tokens[number, :, limit:] == PAD).all()
            np.testing.assert_allclose(found.scores[number], scores[0], rtol=1e-5, atol=1e-5)
            was_cut |= {limit} if (theirs[..., -1] > EOS).any() else set()
        assert (found.scores[-1] < NONE).all()  # Nothing fits one token, which is given.
    assert was_cut >= {3, 4, 7}


def compare_with_generate(beams, penalty, early_stopping, excluded=()):
    first, length = [3, 5, 7, 11, 4, 6], 12
    allowed = ~np.isin(np.arange(30), excluded) if excluded else None
    for seed, ending in ((0, -3.0), (1, 0.0), (2, 3.0)):
        weights = Weights(30, seed, ending)
        config = BeamSearch(beams, penalty, early_stopping)
        found = ours(weights, first, config, length, allowed)
        tokens, scores = generated(weights, first, config, length, excluded)
        np.testing.assert_array_equal(found.tokens, tokens)
        # Sums of up to 11 log-probabilities of size 10 in float32.
        np.testing.assert_allclose(found.scores, scores, rtol=1e-5, atol=1e-5)


def generated(weights, first, config, length, excluded=()):
    """Returns tokens [B, W, length] and scores [B, W] of `generate`."""
    expected = Reference(weights).generate(
        torch.tensor(first)[:, None],
        GenerationConfig(
            num_beams=config.beams,
            length_penalty=config.length_penalty,
            early_stopping=config.early_stopping,
            max_length=length,
            eos_token_id=EOS,
            pad_token_id=PAD,
            num_return_sequences=config.beams,
            do_sample=False,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
            suppress_tokens=list(excluded) or None,
        ),
    )
    theirs = expected.sequences.reshape(len(first), config.beams, -1).numpy()
    padded = np.full((len(first), config.beams, length), PAD)
    padded[:, :, : theirs.shape[2]] = theirs
    return padded, expected.sequences_scores.reshape(len(first), config.beams).numpy()


@pytest.mark.slow
def test_one_beam_equals_greedy_generate():
    first, length = [3, 5, 7, 11], 9
    for seed in range(3):
        weights = Weights(30, seed, 0.0)
        found = ours(weights, first, BeamSearch(1), length)
        theirs = Reference(weights).generate(
            torch.tensor(first)[:, None],
            GenerationConfig(
                max_length=length, eos_token_id=EOS, pad_token_id=PAD, use_cache=False
            ),
        )
        padded = np.full((len(first), length), PAD)
        padded[:, : theirs.shape[1]] = theirs
        np.testing.assert_array_equal(found.tokens[:, 0], padded)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.6, 1.0])
def test_enough_beams_find_the_best_of_all_sequences(penalty):
    size, new, first = 4, 5, 3
    for seed in range(4):
        weights = Weights(size, seed, 0.0)
        scores = {}
        for count in range(1, new + 1):
            for words in itertools.product([0, 1, 3], repeat=count - 1):
                # All of them end with </s>, or are cut at the greatest length.
                for last in [EOS] if count < new else range(size):
                    tokens = (*words, last)
                    scores[tokens] = log_probability(weights, (first, *tokens)) / count**penalty
        best = max(scores, key=scores.get)
        found = ours(weights, [first], BeamSearch(size**new, penalty, "never"), new + 1)
        tokens = np.asarray(found.tokens[0, 0])
        assert tuple(tokens[1 : 1 + len(best)]) == best
        np.testing.assert_allclose(found.scores[0, 0], scores[best], rtol=1e-5)


def log_probability(weights, tokens):
    state, total = np.zeros(WIDTH), 0.0
    for token, following in itertools.pairwise(tokens):
        state = 0.8 * state + weights.embedding[token]
        logits = np.tanh(state) @ weights.output + weights.bias
        total += logits[following] - np.log(np.exp(logits).sum())
    return total
