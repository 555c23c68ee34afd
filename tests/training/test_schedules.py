"""Schedules of the learning rate: their values, how they fit into runs, and gin."""

import numpy as np
import pytest

from xlme_jax.configuration import loading
from xlme_jax.configuration.values import ConfigError
from xlme_jax.training.optimizer import OptimizerConfig
from xlme_jax.training.schedules import WSD, Constant, Cosine


def rates(schedule, steps, warmup=10, train_steps=100):
    """Returns the learning rates after so many updates, with a peak of 4."""
    config = OptimizerConfig(learning_rate=4.0, warmup_steps=warmup, schedule=schedule)
    rate = config.learning_rates(train_steps)
    return [float(rate(step)) for step in steps]


def test_a_constant_rate_stays_at_its_peak():
    np.testing.assert_allclose(rates(Constant(), (0, 5, 10, 99, 100, 1000)), [0, 2, 4, 4, 4, 4])


def test_a_cosine_falls_by_half_at_half_of_the_steps():
    np.testing.assert_allclose(rates(Cosine(), (10, 55, 100)), [4, 2, 0], atol=1e-6)
    np.testing.assert_allclose(rates(Cosine(0.1), (10, 55, 100, 200)), [4, 2.2, 0.4, 0.4])


@pytest.mark.parametrize(
    ("decay", "middle"),
    [("linear", 2.0), ("sqrt", 4 * (1 - 0.5**0.5)), ("cosine", 2.0)],
)
@pytest.mark.parametrize("share", [{"decay_fraction": 0.2}, {"decay_steps": 20}])
def test_wsd_is_stable_and_then_decays(decay, middle, share):
    values = rates(WSD(decay=decay, **share), (0, 5, 10, 80, 90, 100, 200))
    np.testing.assert_allclose(values, [0, 2, 4, 4, middle, 0, 0], atol=1e-6)


def test_wsd_has_the_rates_of_a_constant_one_until_it_decays():
    steps = range(81)
    assert rates(WSD(), steps) == rates(Constant(), steps)


def test_wsd_may_decay_from_the_peak_on():
    np.testing.assert_allclose(
        rates(WSD(decay="linear", decay_steps=90), (10, 55, 100)),
        rates(Cosine(), (10, 55, 100)),
        atol=1e-6,
    )


def test_a_decay_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"WSD decays in 95 steps .* lower WSD.decay_steps"):
        rates(WSD(decay_steps=95), (0,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WSD(decay_fraction=0.0), r"WSD\.decay_fraction = 0\.0"),
        (lambda: WSD(decay_steps=0), r"WSD\.decay_steps = 0"),
        (lambda: WSD(decay="step"), r"WSD\.decay = 'step'"),
        (lambda: Cosine(1.0), r"Cosine\.final_fraction = 1\.0"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_gin_chooses_the_schedule():
    files, bindings = ["gin_configs/runs/quickstart.gin"], ["WSD.decay_fraction = 0.5"]
    config = loading.load(files, [*bindings, "Optimizer.schedule = @WSD()"], "Train")
    assert config.optimizer.schedule == WSD(decay_fraction=0.5)
    with pytest.raises(ConfigError, match=r"Optimizer\.schedule = 'cosine' .* @Cosine\(\)"):
        loading.load(files, ["Optimizer.schedule = 'cosine'"], "Train")
