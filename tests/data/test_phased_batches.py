"""The order of streams that change between phases."""

import collections
import dataclasses
import json

import numpy as np
import pytest
from helpers import tiny
from test_pipeline import WINDOW, build, document, iterate, pair, segments, take

from xlme_jax.data.batches.pair_layouts import Sides
from xlme_jax.data.batches.phased_batches import PhasedBatches
from xlme_jax.data.batches.robust_sampling import RobustSampling
from xlme_jax.data.batches.streams import LabelledStream, PairStream, TextStream

TEXT = TextStream("text", rows=4, length=32, tasks=("en", "sw"))
PAIRS = PairStream("pairs", rows=4, length=64)
# Another temperature, and a language that comes late; then text alone is as before.
LATE = dataclasses.replace(TEXT, alpha=0.0, tasks=())
WITH_PIVOT = dataclasses.replace(PAIRS, tasks=("a", "c"), rows=6, flip=0.5)
STREAMS = ([TEXT, PAIRS], [LATE, PAIRS], [LATE, WITH_PIVOT])
STEPS = (7, 9, 8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a data set of which no task ends an epoch here."""
    rng = np.random.default_rng(0)
    sizes = {"a": 900, "b": 500, "c": 700}
    return build(
        tmp_path_factory.mktemp("data"),
        monolingual={
            name: [document(rng, n) for n in rng.integers(40, 90, count)]
            for name, count in {"en": 120, "sw": 80, "yo": 60}.items()
        },
        bitext={
            name: [pair(rng, n) for n in rng.integers(6, 30, count)]
            for name, count in sizes.items()
        },
    )


def phased(data, number=0, streams=STREAMS, process=(0, 1)):
    return PhasedBatches(data, streams, number, 1, *process, window_draws=WINDOW)


def in_phases(batches, steps=STEPS, position=False):
    """Returns the batches of all phases, or with `position` those and the position after each."""
    taken = []
    for number, count in enumerate(steps):
        if number:
            batches.next_phase()
        for _ in range(count):
            batch = next(batches)
            taken.append((batch, json.loads(json.dumps(batches.get_state()))))
    return taken if position else [batch for batch, _ in taken]


@pytest.fixture(scope="module")
def whole(data):
    """Returns the batches of all phases and the position after each."""
    return in_phases(phased(data), position=True)


def assert_same(batch, expected):
    assert batch.keys() == expected.keys()
    for stream, arrays in batch.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, expected[stream][name], err_msg=name)


def test_the_first_phase_is_a_run_without_phases(data, whole):
    plain = iterate(data, STREAMS[0])
    for expected, position in whole[: STEPS[0]]:
        assert_same(next(plain), expected)
        assert position == plain.get_state()


def test_a_stream_that_does_not_change_goes_on(data, whole):
    """Its rows are those of a run without phases, in the phases in which it stays."""
    plain = iterate(data, [PAIRS])
    for (batch, _), expected in zip(whole[: sum(STEPS[:2])], take(plain, 16), strict=True):
        assert_same({"pairs": batch["pairs"]}, expected)


@pytest.mark.parametrize("processes", tiny.slow_except({2}, [2, 4]))
def test_processes_do_not_change_the_order(data, whole, processes):
    streams = [[dataclasses.replace(s, rows=4) for s in of_phase] for of_phase in STREAMS]
    expected = in_phases(phased(data, streams=streams))
    parts = [in_phases(phased(data, 0, streams, (n, processes))) for n in range(processes)]
    for number, batch in enumerate(expected):
        for stream, arrays in batch.items():
            for name, array in arrays.items():
                shares = [part[number][stream][name] for part in parts]
                np.testing.assert_array_equal(np.concatenate(shares), array)


@pytest.mark.parametrize("step", tiny.slow_except({3, 8, 23}, [0, 3, 7, 8, 15, 16, 17, 23]))
def test_a_position_continues_within_and_between_phases(data, whole, step):
    """At the end of a phase, the position of its last batch leads into the next phase."""
    ends = np.cumsum(STEPS)
    number = int(np.searchsorted(ends, step, side="right"))
    batches = phased(data, number)
    if step:
        batches.set_state(whole[step - 1][1])
    rest = in_phases_from(batches, number, ends[number] - step)
    for batch, (expected, _) in zip(rest, whole[step:], strict=True):
        assert_same(batch, expected)
    assert batches.get_state() == whole[-1][1]


def in_phases_from(batches, number, count):
    rest = [next(batches) for _ in range(count)]
    for steps in STEPS[number + 1 :]:
        batches.next_phase()
        rest += [next(batches) for _ in range(steps)]
    return rest


def test_a_phase_without_steps_is_passed(data, whole):
    """A branch may begin after several phases have begun."""
    batches = phased(data, 2)
    batches.set_state(whole[STEPS[0] - 1][1])
    direct = phased(data)
    take(direct, STEPS[0])
    direct.next_phase()
    direct.next_phase()
    assert_same(next(batches), next(direct))


def test_no_example_comes_twice_before_all_others(data, whole):
    """Rows of text and pairs of an epoch are drawn once, in whatever phase; late ones come too."""
    rows, pairs = collections.Counter(), collections.Counter()
    for batch, _ in whole:
        rows.update(tuple(row.tolist()) for row in batch["text"]["tokens"])
        pairs.update(frozenset(ids) for ids in segments(batch["pairs"]))
    assert max(rows.values()) == 1 and len(rows) == 4 * sum(STEPS)
    assert max(pairs.values()) == 1 and len(pairs) > 200
    languages = collections.Counter()
    batches = phased(data)
    for number, count in enumerate(STEPS):
        if number:
            batches.next_phase()
        for _ in range(count):
            next(batches)
            languages.update({(number, *item) for item in batches.tasks()["text"].items()})
    late = {number for number, task, _ in languages if task == "yo"}
    assert late == {1, 2}


def test_text_in_rows_of_another_length_begins_again(data, caplog):
    longer = dataclasses.replace(TEXT, length=48)
    batches = phased(data, streams=([TEXT], [longer], [TEXT]))
    in_phases(batches, (3,))
    with caplog.at_level("INFO"):
        batches.next_phase()
    assert "rows of 47 tokens of text instead of 31: its text is cut anew" in caplog.text
    assert next(batches)["text"]["tokens"].shape == (4, 48)


def test_mixup_goes_on_with_whole_windows(data):
    """Items of two pairs each have half as many items as draws."""
    sides = PairStream("pairs", 4, 128, layout=Sides(mixup="order", pairs_per_row=2))
    other = dataclasses.replace(sides, alpha=0.2)
    batches = phased(data, streams=([sides], [other]))
    taken = in_phases(batches, (5, 5), position=True)
    again = phased(data, 1, ([sides], [other]))
    again.set_state(taken[4][1])
    assert_same(next(again), taken[5][0])
    seen = collections.Counter()
    for batch, _ in taken:
        tokens, ids = batch["pairs"]["tokens"], batch["pairs"]["segment_ids"]
        for row, numbers in zip(tokens, ids):
            seen.update(tuple(row[numbers == n].tolist()) for n in range(1, numbers.max() + 1))
    assert max(seen.values()) == 1


def test_other_streams_are_refused(data):
    robust = dataclasses.replace(PAIRS, robust=RobustSampling())
    labelled = LabelledStream("labelled", 4, 64)
    for stream, problem in (
        (robust, "robust does not go with Train.phases"),
        (dataclasses.replace(PAIRS, one_task=True), "one_task does not go with Train.phases"),
        (labelled, "labelled examples; leave Train.phases out"),
    ):
        with pytest.raises(ValueError, match=problem):
            phased(data, streams=([TEXT], [stream]))


def test_positions_of_later_phases_and_damaged_ones_are_refused(data, whole):
    position = whole[-1][1]
    with pytest.raises(ValueError, match="position is of phase 2, and its step is in phase 1 now"):
        phased(data, 1).set_state(position)
    for damage in ({"first_draw": -1}, {"drawn": {"a": 1.5}}, {"phase": "1"}):
        start = {**position["phase"]["starts"]["text"], **damage}
        phase = {"number": 2, "starts": {"text": start}}
        with pytest.raises(ValueError, match=r"'text', phase: .* is not a number of draws"):
            phased(data, 2).set_state({**position, "phase": phase})
