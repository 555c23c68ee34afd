import json

import numpy as np
import pytest

from xlme_jax.data.batches.pair_losses import PairLosses, extremes, read_baseline, table
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.robust_weights import best_response, clamped_response

TASKS = ("de-en", "de-fr", "en-fr")
INITIAL = np.array([0.5, 0.2, 0.3])


def tracked(**settings):
    return PairLosses(RobustSampling(**{"decay": 0.5, **settings}), TASKS, INITIAL)


def of_batches(**settings):
    return PairLosses(RobustSampling(estimator="batch_means", **settings), TASKS, INITIAL)


def parts(mlm, tokens=(1, 1, 1), **others):
    """Returns sums of a step from its means per token."""
    means = {"mlm": mlm, **others}
    tokens = np.array(tokens, np.float32)
    return {name: (np.array(mean, np.float32) * tokens, tokens) for name, mean in means.items()}


def test_a_loss_is_the_mean_of_recent_tokens_summed_over_parts():
    losses = tracked()
    assert np.isnan(losses.losses()).all()
    losses.observe(parts([4, 2, 0], (10, 1, 0), rtd=[1, 1, 0]))
    losses.observe(parts([2, 8, 0], (1, 2, 0), rtd=[3, 1, 0]))
    # Tokens of the first step count half: (4 * 5 + 2 * 1) / 6 and (2 * .5 + 8 * 2) / 2.5.
    expected = [22 / 6 + (1 * 5 + 3) / 6, 17 / 2.5 + 1]
    np.testing.assert_allclose(losses.losses()[:2], expected, rtol=1e-6)
    assert np.isnan(losses.losses()[2])


def test_batch_means_are_those_of_zhou():
    """A tenth of each batch's mean, whatever its tokens, from 0 in every phase."""
    losses = of_batches()
    losses.observe(parts([4, 2, 9], (10, 1, 0), rtd=[1, 1, 9]))
    losses.observe(parts([2, 8, 9], (1, 2, 0), rtd=[3, 1, 9]))
    expected = [0.9 * 0.4 + 0.2 + 0.9 * 0.1 + 0.3, 0.9 * 0.2 + 0.8 + 0.9 * 0.1 + 0.1]
    np.testing.assert_allclose(losses.losses()[:2], expected, rtol=1e-6)
    assert np.isnan(losses.losses()[2])
    losses.update(1)
    # A pair that was not drawn has loss 0, so that it falls; then all are forgotten.
    response = clamped_response(np.array([*expected, 0.0]), INITIAL, 0.05, 0.2)
    np.testing.assert_allclose(losses.weights, response, rtol=1e-6)
    assert losses.weights[2] < INITIAL[2]
    assert np.isnan(losses.losses()).all()
    losses.observe(parts([5, 5, 5]))
    np.testing.assert_allclose(losses.losses(), 0.5)


def test_batch_means_leave_out_a_baseline_above_all_losses():
    losses = PairLosses(RobustSampling(estimator="batch_means"), TASKS, INITIAL, np.full(3, 9.0))
    losses.observe(parts([3, 1, 2]))
    losses.update(1)
    response = clamped_response(np.array([0.3, 0.1, 0.2]), INITIAL, 0.05, 0.2)
    np.testing.assert_allclose(losses.weights, response, rtol=1e-6)


def test_a_diverged_step_leaves_the_losses_as_they_were():
    losses = tracked()
    losses.observe(parts([4, 2, 1]))
    losses.observe(parts([np.nan, np.inf, 3]))
    np.testing.assert_allclose(losses.losses(), [4, 2, (0.5 * 1 + 3) / 1.5])


def test_weights_are_the_best_response_around_the_initial_ones():
    losses = tracked(rho=0.1, floor=0.3)
    for step, means in ((5, [1.0, 2.0, 4.0]), (10, [9.0, 1.0, 1.0])):
        for _ in range(60):  # Earlier losses are forgotten.
            losses.observe(parts(means))
        losses.update(step)
        expected = best_response(np.array(means), INITIAL, 0.1, 0.3)
        np.testing.assert_allclose(losses.weights, expected, rtol=1e-9)
    assert losses.weights[0] > INITIAL[0]


def test_an_unseen_pair_counts_as_average_and_none_seen_changes_nothing():
    losses = tracked()
    losses.update(1)
    np.testing.assert_allclose(losses.weights, INITIAL, rtol=1e-9)
    losses.observe(parts([3, 1, 0], (7, 7, 0)))
    losses.update(2)
    mean = (0.5 * 3 + 0.2 * 1) / 0.7
    expected = best_response(np.array([3, 1, mean]), INITIAL, 0.05, 0.2)
    np.testing.assert_allclose(losses.weights, expected, rtol=1e-9)
    assert losses.summary()["phases"][1]["losses"] == [3.0, 1.0, None]
    assert losses.summary()["losses"] == {"de-en": 3.0, "de-fr": 1.0}


def test_a_baseline_is_subtracted(tmp_path):
    file = tmp_path / "losses.json"
    baseline = {"de-en": 2.5, "de-fr": 0.5, "en-fr": 3.0, "other": 1.0}
    file.write_text(json.dumps({"bitext": {"losses": baseline}}))
    read = read_baseline(str(file), "bitext", TASKS)
    np.testing.assert_array_equal(read, [2.5, 0.5, 3.0])
    losses = PairLosses(RobustSampling(), TASKS, INITIAL, read)
    losses.observe(parts([3, 2, 3]))
    losses.update(1)
    expected = best_response(np.array([0.5, 1.5, 0.0]), INITIAL, 0.05, 0.2)
    np.testing.assert_allclose(losses.weights, expected, rtol=1e-9)
    # What a run writes can be the baseline of another.
    file.write_text(json.dumps({"bitext": losses.summary()}))
    np.testing.assert_array_equal(read_baseline(str(file), "bitext", TASKS), [3, 2, 3])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "is not a readable JSON file"),
        ("{", "is not a readable JSON file"),
        ("[1]", "has no losses of this stream"),
        ('{"contrast": {"losses": {}}}', "has no losses of this stream"),
        ('{"bitext": {"losses": 3}}', "has no losses of this stream"),
        ('{"bitext": {"losses": {"de-en": 1}}}', "task 'de-fr' has the loss None"),
        ('{"bitext": {"losses": {"de-en": "1"}}}', "task 'de-en' has the loss '1'"),
        ('{"bitext": {"losses": {"de-en": NaN}}}', "task 'de-en' has the loss nan"),
        ('{"bitext": {"losses": {"de-en": true}}}', "task 'de-en' has the loss True"),
    ],
)
def test_a_bad_baseline_is_refused(tmp_path, content, expected):
    file = tmp_path / "losses.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=r"stream 'bitext': RobustSampling.baseline") as error:
        read_baseline(str(file), "bitext", TASKS)
    assert expected in str(error.value) and str(file) in str(error.value)


@pytest.mark.parametrize(("steps", "updates"), [(100, 10), (11, 10), (7, 2), (125_000, 10)])
def test_phases_are_of_equal_length_and_none_begins_at_the_end(steps, updates):
    losses = tracked(updates=updates)
    ends = []
    for step in range(steps + 1):
        if losses.due(step, steps):
            losses.update(step)
            ends.append(step)
    assert len(ends) == updates and ends[-1] < steps
    lengths = np.diff([0, *ends, steps])
    assert lengths.min() >= 1 and lengths.max() - lengths.min() <= 1


@pytest.mark.parametrize("begin", [tracked, of_batches])
def test_a_state_restores_losses_weights_and_phases(begin):
    losses, again = begin(), begin()
    losses.observe(parts([3, 1, 2], rtd=[0.1, 0.7, 0.3]))
    again.set_state(losses.get_state())  # Before the first change.
    np.testing.assert_array_equal(again.weights, INITIAL)
    losses.update(4)
    losses.observe(parts([1 / 3, 0.1, 2]))
    state = json.loads(json.dumps(losses.get_state()))
    again.check_state(state, "here")
    again.set_state(state)
    assert again.summary() == losses.summary()
    np.testing.assert_array_equal(again.weights, losses.weights)
    for one in (losses, again):
        one.observe(parts([0.3, 0.7, 0.9]))
        one.update(8)
    assert again.get_state() == losses.get_state()


@pytest.mark.parametrize(
    "change",
    [
        {"sums": None},
        {"sums": {"mlm": [[1.0], [1.0]]}},
        {"sums": {"mlm": [[1.0] * 3, [-1.0] * 3]}},
        {"sums": {"mlm": [["a"] * 3, [1.0] * 3]}},
        {"phases": [{"step": 3}]},
        {"phases": [{"step": 3, "losses": [], "weights": [0.5, 0.5]}]},
        {"phases": [{"step": 3, "losses": [], "weights": [0.5, 0.5, 0.0]}]},
        {"phases": [{"step": 3, "losses": [], "weights": [0.5, 0.5, 0.5]}]},
    ],
)
def test_a_state_of_other_tasks_is_refused(change):
    losses = tracked()
    losses.observe(parts([3, 1, 2]))
    losses.check_state(losses.get_state(), "here")
    with pytest.raises(ValueError, match="here: losses and weights must be of the stream's 3 task"):
        losses.check_state({**losses.get_state(), **change}, "here")


def test_the_extremes_are_those_of_the_last_change():
    tasks = [f"task{n:02}" for n in range(30)]
    losses = PairLosses(RobustSampling(), tasks, np.full(30, 1 / 30))
    assert extremes(losses.summary()) == []
    losses.observe({"mlm": (np.arange(30.0), np.ones(30))})
    losses.update(7)
    found = extremes(losses.summary())
    assert [row[0] for row in found] == [*reversed(tasks[20:]), *reversed(tasks[:10])]
    assert [row[3] for row in found[:2]] == [29.0, 28.0]
    assert found[0][2] > found[0][1] == found[-1][1] > found[-1][2]
    lines = table(losses.summary()).splitlines()
    assert len(lines) == 21 and lines[1].split()[0] == "task29" and lines[1].endswith(" 29.000")
    few = extremes(losses.summary(), 15)
    assert len(few) == len({row[0] for row in few}) == 30


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("updates", 0),
        ("rho", -0.1),
        ("rho", float("inf")),
        ("floor", 0.0),
        ("floor", 1.0),
        ("decay", 0.0),
        ("decay", 1.0),
    ],
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=f"RobustSampling.{field} = "):
        RobustSampling(**{field: value})


def test_a_state_of_another_estimator_is_refused():
    for losses, other in ((tracked(), of_batches()), (of_batches(), tracked())):
        losses.observe(parts([3, 1, 2]))
        with pytest.raises(ValueError, match="here: losses are of another estimator than Robust"):
            other.check_state(losses.get_state(), "here")


def test_an_estimator_that_is_not_there_or_ignores_a_setting_is_refused():
    with pytest.raises(ValueError, match=r"RobustSampling.estimator = 'mean': expected one of 't"):
        RobustSampling(estimator="mean")
    with pytest.raises(ValueError, match=r"decay = 0.9 is a setting of estimator = 'token_means'"):
        RobustSampling(estimator="batch_means", decay=0.9)
