"""The order of a stream whose weights change between phases."""

import collections
import dataclasses
import json

import numpy as np
import pytest
from helpers import tiny
from test_pipeline import build, iterate, pair, segments, take

from xlme_jax.data.batches import mixing
from xlme_jax.data.batches.pair_layouts import Joint, Sides
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.streams import PairStream

STEPS = 40
STREAM = PairStream("b", 4, 64, robust=RobustSampling(updates=3, rho=0.3))
WINDOW = 48


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a data set of three tasks, none of which ends an epoch here, and a small one."""
    rng = np.random.default_rng(0)
    sizes = {"a": 3000, "b": 2000, "c": 1500, "d": 7}
    return build(
        tmp_path_factory.mktemp("data"),
        bitext={
            name: [pair(rng, n) for n in rng.integers(6, 30, count)]
            for name, count in sizes.items()
        },
    )


@pytest.fixture(scope="module")
def stored(data):
    """Returns {task: its pairs}."""
    return {
        task.name: [tuple(record.tolist()) for record in data.records(task)] for task in data.tasks
    }


def losses(batch):
    """Returns losses by task that only follow from the tokens of the whole batch, as in a run."""
    tasks = batch["tasks"][batch["segment_ids"] > 0]
    counts = np.bincount(tasks, minlength=4).astype(np.float32)
    return {"b": {"mlm": (counts * np.array([3.0, 1.0, 2.0, 4.0]), counts)}}


def advance(iterators, steps, first=0):
    """Yields the global batches of iterators that share them, and changes weights."""
    for step in range(first + 1, first + steps + 1):
        parts = [next(iterator)["b"] for iterator in iterators]
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        yield batch
        for iterator in iterators:
            iterator.observe(losses(batch))
            assert iterator.phase_ends(step, STEPS) == (step in (10, 20, 30, 40))
            iterator.next_phase(step, STEPS)


def assert_same(found, expected):
    assert found.keys() == expected.keys() == {"tokens", "segment_ids", "positions", "tasks"}
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.fixture(scope="module")
def whole(data):
    """Returns the batches of a run of one process, and its iterator."""
    iterator = iterate(data, [STREAM])
    return list(advance([iterator], STEPS)), iterator


@pytest.mark.parametrize(
    ("processes", "prefetch"), tiny.slow_except({(2, 3)}, [(2, 3), (4, 0), (1, 2)])
)
def test_processes_and_threads_do_not_change_the_order(data, whole, processes, prefetch):
    iterators = [
        iterate(data, [STREAM], 1, n, processes, prefetch=prefetch) for n in range(processes)
    ]
    for batch, expected in zip(advance(iterators, STEPS), whole[0], strict=True):
        assert_same(batch, expected)
    assert all(iterator.get_state() == whole[1].get_state() for iterator in iterators)
    for iterator in iterators:
        iterator.close()


@pytest.mark.parametrize("prefetch", tiny.slow_except({2}, [0, 2]))
@pytest.mark.parametrize("step", tiny.slow_except({3, 17, 36}, [0, 3, 10, 17, 30, 36]))
def test_restoring_continues_within_and_between_phases(data, whole, step, prefetch):
    iterator = iterate(data, [STREAM], prefetch=prefetch)
    list(advance([iterator], step))
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    again = iterate(data, [STREAM], prefetch=prefetch)
    take(again, 2)
    again.set_state(state)
    assert again.get_state() == state
    rest = list(advance([again], STEPS - step, step))
    for found, expected in zip(rest, whole[0][step:], strict=True):
        assert_same(found, expected)
    assert again.get_state() == whole[1].get_state()
    again.close()


def test_the_first_phase_is_that_of_constant_weights(data, whole):
    plain = iterate(data, [dataclasses.replace(STREAM, robust=None)])
    for batch, expected in zip(take(plain, 10), whole[0]):
        assert batch["b"].keys() == {"tokens", "segment_ids", "positions"}
        for name, rows in batch["b"].items():
            np.testing.assert_array_equal(rows, expected[name])
    assert plain.task_counts() == plain.phases() == {} and not plain.phase_ends(10, STEPS)


def test_a_later_phase_follows_the_new_weights(data):
    """A phase long enough for a whole block of draws has the shares of its weights."""
    iterator = iterate(data, [STREAM], prefetch=2)
    initial = iterator.phases()["b"]["initial"]
    for step in (10, 20):
        iterator.observe(losses({"tasks": np.arange(4), "segment_ids": np.ones(4)}))
        iterator.next_phase(step, STEPS)
    weights = np.array(iterator.phases()["b"]["phases"][-1]["weights"])
    assert weights[0] > 1.1 * initial[0] and weights[1] < 0.9 * initial[1]
    drawn = collections.Counter()
    for _ in range(120):
        next(iterator)
        drawn.update(iterator.tasks()["b"])
    shares = np.array([drawn[name] for name in "abcd"]) / drawn.total()
    # A block has 1,024 draws; the last one may be incomplete.
    assert drawn.total() > 1500
    np.testing.assert_allclose(shares, weights, atol=0.02)
    iterator.close()


def test_phases_do_not_repeat_examples(stored, whole):
    """Each phase takes the next examples of a task; those of a window just begun are skipped."""
    seen = collections.Counter()
    for batch in whole[0]:
        for ids in segments(batch):
            seen[tuple(ids)] += 1
    for name in "abc":
        counts = [seen[ids] for ids in set(stored[name]) if ids in seen]
        assert len(counts) > 40 and max(counts) == 1


def test_draws_of_a_schedule_are_counted():
    schedule = mixing.MixtureSchedule([0.7, 0.2, 0.1], ("a",), block=10)
    tasks, _ = schedule.lookup(np.arange(35))
    for count in (0, 4, 10, 35):
        expected = np.bincount(tasks[:count], minlength=3)
        np.testing.assert_array_equal(schedule.drawn(count), expected)


@pytest.mark.parametrize("name", tiny.slow_except({"sides"}, ["joint", "sides", "restart"]))
def test_every_token_has_the_task_of_its_pair(data, stored, name):
    layout = {"joint": Joint(), "sides": Sides(), "restart": Joint("restart")}[name]
    iterator = iterate(data, [dataclasses.replace(STREAM, layout=layout)])
    known = {}
    for number, name in enumerate("abcd"):
        for record in stored[name]:
            known[tuple(token for token in record if token)] = number
    count = 0
    for batch in take(iterator, 5):
        rows, each = batch["b"], layout.segments
        assert rows["tasks"].dtype == np.int32
        for tokens, ids, tasks in zip(rows["tokens"], rows["segment_ids"], rows["tasks"]):
            for first in range(1, int(ids.max()) + 1, each):
                here = (ids >= first) & (ids < first + each)
                number = known[tuple(tokens[here & (tokens > 0)].tolist())]
                assert (tasks[here] == number).all()
                count += 1
            assert (tasks[ids == 0] == 0).all()
    assert count > 50


def test_bad_states_are_refused_and_change_nothing(data):
    iterator = iterate(data, [STREAM])
    list(advance([iterator], 12))
    good = iterator.get_state()
    robust = good["streams"]["b"]["robust"]

    def changed(**fields):
        stream = {**good["streams"]["b"], "robust": {**robust, **fields}}
        return {**good, "streams": {"b": stream}}

    for state, expected in (
        (changed(drawn=[1, 2, 3]), "drawn must have a number for each task"),
        (changed(drawn=[1, 2, 3, -1]), "-1 is not a number of draws"),
        (changed(first_draw=1.5), "1.5 is not a number of draws"),
        (changed(sums=3), "losses and weights must be of the stream's 4 tasks"),
    ):
        with pytest.raises(ValueError, match="data position of stream 'b', robust") as error:
            iterator.set_state(state)
        assert expected in str(error.value)
        assert iterator.get_state() == good
    plain = iterate(data, [dataclasses.replace(STREAM, robust=None)])
    with pytest.raises(
        ValueError, match=r"saved with b/PairStream.robust, the configuration is wi"
    ):
        plain.set_state(good)
    with pytest.raises(
        ValueError, match=r"saved without b/PairStream.robust, the configuration is"
    ):
        iterator.set_state(plain.get_state())


def test_mixed_pairs_without_tasks_of_tokens_are_refused():
    with pytest.raises(ValueError, match="stream 'b': robust needs the task of each token"):
        dataclasses.replace(STREAM, layout=Sides(mixup="order"))


def test_a_baseline_is_read_before_the_first_batch(data, tmp_path):
    settings = dataclasses.replace(STREAM.robust, baseline=str(tmp_path / "gone.json"))
    with pytest.raises(ValueError, match=r"stream 'b': RobustSampling.baseline = .*gone.json"):
        iterate(data, [dataclasses.replace(STREAM, robust=settings)])


def test_tasks_are_marked_without_robust_sampling(data):
    marked = dataclasses.replace(STREAM, robust=None, mark_tasks=True)
    batch = next(iterate(data, [marked]))["b"]
    expected = next(iterate(data, [STREAM]))["b"]
    np.testing.assert_array_equal(batch["tasks"], expected["tasks"])
    assert marked.choices() == dataclasses.replace(marked, mark_tasks=False).choices()
