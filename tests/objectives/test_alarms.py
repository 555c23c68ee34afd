"""Alarms are raised by small broken models, and not by one that learns."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import meta

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.masked_lm import MaskingConfig
from xlme_jax.objectives.xlme import XLMConfig, XLMEConfig
from xlme_jax.training.metrics import ratios
from xlme_jax.training.step import StepValues, weighted_loss

STREAMS = ("monolingual", "bitext")
LENGTH, ROWS, STEPS, LINE = 24, 16, 80, 20
TOPICS = PHASES = 6
WORDS = TOPICS * PHASES
# Four special tokens, a word of each topic and phase in two languages, and <mask>.
VOCAB = 4 + 2 * WORDS + 1

DISCRIMINATOR = EncoderConfig(
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    ffn_size=64,
    max_length=LENGTH,
    relative_buckets=16,
    relative_max_distance=12,
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.18,
)
CONFIG = XLMEConfig(
    dataclasses.replace(DISCRIMINATOR, hidden_size=16), DISCRIMINATOR, MaskingConfig(rate=0.2)
)
XLM_CONFIG = XLMConfig(DISCRIMINATOR, MaskingConfig(rate=0.2))

# The first words of each alarm, up to its colon.
GUESS, COLLAPSE, COPY, BASELINE = (
    "The masked language model has learned nothing on {}",
    "The generator has collapsed on {}",
    "Hardly a masked token of {} is replaced",
    "The discriminator has learned nothing on {}",
)


def names(alarm, streams=STREAMS):
    return {alarm.format(stream) for stream in streams}


def rung(objective, values):
    """Returns the names of the alarms that a line of the log raises."""
    return {text.split(":")[0] for text in objective.diagnostics.alarms(values)}


def batches(steps, words):
    """Returns rows of one topic each, with alternating words; a fifth of the words are random."""
    rng = np.random.default_rng(0)

    def text(length, topic, language):
        word = topic * PHASES + np.arange(length - 2) % PHASES
        noise = rng.integers(0, WORDS, word.shape)
        word = np.where(rng.random(word.shape) < 0.2, noise, word)
        return [0 * topic, 4 + (language * WORDS + word) % words, 0 * topic + 2]

    def stream(*languages):
        topic = rng.integers(0, TOPICS, (steps, ROWS, 1))
        parts = [text(LENGTH // len(languages), topic, language) for language in languages]
        tokens = np.concatenate([array for part in parts for array in part], axis=-1)
        ones = np.ones_like(tokens)
        rows = {
            "tokens": tokens,
            "segment_ids": ones,
            "positions": np.arange(LENGTH) * ones,
            "rows": np.arange(ROWS) * np.ones((steps, 1), int),
        }
        return {name: jnp.asarray(array, jnp.int32) for name, array in rows.items()}

    return {"monolingual": stream(0), "bitext": stream(0, 1)}


@functools.cache
def compiled(config):
    """Returns a function (params, learning rate, batches) -> metrics of every step."""
    objective = config.build(VOCAB)
    gradient_of = jax.grad(weighted_loss(objective), has_aux=True)
    adam = optax.scale_by_adam()

    def run(params, learning_rate, batches):
        def step(carry, batch):
            params, state, rng = carry
            rng, step_rng = jax.random.split(rng)
            values = StepValues({}, objective.totals(batch), {}, step_rng)
            gradient, outputs = gradient_of(params, batch, values)
            updates, state = adam.update(gradient, state)
            params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
            return (params, state, rng), outputs.metrics

        start = (params, adam.init(params), jax.random.key(1))
        return jax.lax.scan(step, start, batches)[1]

    return jax.jit(run)


@functools.cache
def trained(config, learning_rate=0.01, words=2 * WORDS):
    """Returns the objective and its log, a line per `LINE` steps."""
    objective = config.build(VOCAB)
    params = meta.unbox(jax.jit(objective.init)(jax.random.key(0)))
    metrics = compiled(config)(params, learning_rate, batches(STEPS, words))
    sums = {
        name: [np.asarray(x, float).reshape(-1, LINE).sum(axis=1) for x in pair]
        for name, pair in metrics.items()
    }
    lines = [
        ratios({name: (top[i], bottom[i]) for name, (top, bottom) in sums.items()})
        for i in range(STEPS // LINE)
    ]
    return objective, lines


HEALTHY = {
    "mlm_loss": 2.0,
    "sampled_accuracy": 0.3,
    "sampled_diversity": 1.0,
    "rtd_loss": 0.3,
    "replace_rate": 0.1,  # An entropy of 0.3251 nats.
}


def line(stream="monolingual", **changes):
    return {f"{stream}/{name}": value for name, value in {**HEALTHY, **changes}.items()}


@pytest.mark.slow
def test_learning_model_raises_no_alarm():
    objective, lines = trained(CONFIG)
    assert rung(objective, lines[-1]) == set()
    # So that this is no accident of weak thresholds: all are left far behind.
    for stream in STREAMS:
        values = {name: lines[-1][f"{stream}/{name}"] for name in HEALTHY}
        rate = values["replace_rate"]
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        assert values["mlm_loss"] < 0.7 * math.log(VOCAB)
        assert values["rtd_loss"] < 0.9 * entropy
        assert 0.9 < values["sampled_diversity"] < 1.2
        assert 0.5 < 1 - values["sampled_accuracy"] < 0.9
    objective, lines = trained(XLM_CONFIG)
    assert rung(objective, lines[-1]) == set()


@pytest.mark.slow
def test_an_untrained_model_knows_no_more_than_a_guess():
    objective, lines = trained(CONFIG, learning_rate=0.0)
    assert rung(objective, lines[-1]) == names(GUESS) | names(BASELINE)


@pytest.mark.slow
def test_an_absurd_learning_rate_collapses_the_generator():
    objective, lines = trained(CONFIG, learning_rate=5.0)
    assert rung(objective, lines[-1]) == names(GUESS) | names(COLLAPSE) | names(BASELINE)
    objective, lines = trained(XLM_CONFIG, learning_rate=5.0)
    assert rung(objective, lines[-1]) == names(GUESS)


@pytest.mark.slow
def test_a_generator_that_knows_the_text_by_heart_copies_it():
    objective, lines = trained(CONFIG, words=1)
    assert rung(objective, lines[-1]) == names(COPY)


@pytest.mark.slow
def test_a_discriminator_that_is_not_trained_stays_at_its_baseline():
    objective, lines = trained(dataclasses.replace(CONFIG, rtd_weight=0.0))
    assert rung(objective, lines[-1]) == names(BASELINE)


# Each threshold from both sides, and the figures and the remedy that the text must name.
@pytest.mark.parametrize(
    "alarm, silent, loud, words",
    [
        (GUESS, {"mlm_loss": 4.33}, {"mlm_loss": 4.35}, ["4.350", "4.344", "Optimizer."]),
        (
            COLLAPSE,
            {"sampled_diversity": 0.51},
            {"sampled_diversity": 0.49},
            ["0.49 times", "Optimizer.learning_rate"],
        ),
        (
            COPY,
            {"sampled_accuracy": 0.979},
            {"sampled_accuracy": 0.981},
            ["1.90%", "Masking.rate", "generator/Encoder"],
        ),
        (
            BASELINE,
            {"rtd_loss": 0.318},
            {"rtd_loss": 0.319},
            ["0.3190", "0.1000", "0.3251", "XLME.rtd_weight"],
        ),
        # The rarer replacements are, the less it costs to know nothing.
        (
            BASELINE,
            {"rtd_loss": 0.095, "replace_rate": 0.02},
            {"rtd_loss": 0.097, "replace_rate": 0.02},
            ["0.0970", "0.0200", "0.0980"],
        ),
    ],
)
@pytest.mark.parametrize("stream", STREAMS)
def test_thresholds(stream, alarm, silent, loud, words):
    objective = CONFIG.build(VOCAB)
    assert objective.diagnostics.alarms(line(stream, **silent)) == []
    (text,) = objective.diagnostics.alarms(line(stream, **loud))
    name, figures = text.split(":", 1)
    assert name == alarm.format(stream)
    assert all(word in figures for word in words), figures


def test_what_was_not_measured_rings_nothing():
    both = line("monolingual") | line("bitext")
    for config in (CONFIG, XLM_CONFIG):
        objective = config.build(VOCAB)
        assert objective.diagnostics.alarms({}) == []
        assert objective.diagnostics.alarms({name: math.nan for name in both}) == []
        assert objective.diagnostics.alarms({"loss": 1e9, "probe/retrieval": 0.0}) == []
    objective = CONFIG.build(VOCAB)
    for name in HEALTHY:
        assert objective.diagnostics.alarms(line(**{name: math.nan})) == []
    # No token was replaced, or every one: no constant to compare with.
    for rate in (0.0, 1.0):
        assert objective.diagnostics.alarms(line(rtd_loss=0.5, replace_rate=rate)) == []
    # A stream that the objective does not train on.
    alone = dataclasses.replace(CONFIG, translation_pairs=False).build(VOCAB)
    assert alone.diagnostics.alarms(line("bitext", sampled_diversity=0.1)) == []


def test_the_name_of_an_alarm_does_not_change_with_its_figures():
    objective = CONFIG.build(VOCAB)
    broken = {"mlm_loss": 9.0, "sampled_diversity": 0.1, "sampled_accuracy": 0.99, "rtd_loss": 1.0}
    worse = {"mlm_loss": 8.0, "sampled_diversity": 0.2, "sampled_accuracy": 0.999, "rtd_loss": 2.0}
    texts = (
        objective.diagnostics.alarms(line(**broken)),
        objective.diagnostics.alarms(line(**worse)),
    )
    assert len(texts[0]) == 4 and not set(texts[0]) & set(texts[1])
    assert rung(objective, line(**broken)) == rung(objective, line(**worse))
