"""Rows of `Translations.directions`: sources in the first half, translations in the second."""

import collections
import dataclasses

import numpy as np
import pytest
from helpers import tiny

from tests.data.test_pipeline import complete, fill, iterate, pair
from tests.data.test_pipeline_layouts import texts
from xlme_jax.data.batches.one_pass import one_pass
from xlme_jax.data.batches.pair_layouts import Translations
from xlme_jax.data.batches.streams import PairStream, held_out_tasks
from xlme_jax.data.prepared import PreparedDataError
from xlme_jax.data.prepared.writer import BitextWriter

LANGUAGES = ("en", "fr", "sw")
STREAM = PairStream("b", rows=4, length=64, layout=Translations(LANGUAGES))


def directed(*directions, **changes):
    return dataclasses.replace(STREAM, layout=Translations(LANGUAGES, directions), **changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    pairs = {
        "en-fr": [pair(rng, n) for n in rng.integers(7, 80, 90)],
        "en-sw": [pair(rng, n) for n in rng.integers(7, 28, 20)],
    }
    folder, rows = tmp_path_factory.mktemp("data"), []
    for name, found in pairs.items():
        writer = BitextWriter(folder, name, name.split("-"), 300)
        rows.append(fill(writer, found))
    return complete(folder, rows)


def items(batch):
    """Yields (source, target, language of the source, of the target) of a batch's pairs."""
    middle = batch["tokens"].shape[1] // 2
    for row in range(len(batch["tokens"])):
        array = {name: values[row] for name, values in batch.items()}
        assert not (array["segment_ids"][:middle] % 2 == 0)[array["segment_ids"][:middle] > 0].any()
        for number in range(1, array["segment_ids"].max() + 1, 2):
            here = [np.flatnonzero(array["segment_ids"] == n) for n in (number, number + 1)]
            assert here[0].max() < middle <= here[1].min()
            for columns in here:
                expected = np.arange(len(columns))
                np.testing.assert_array_equal(array["positions"][columns], expected)
                np.testing.assert_array_equal(columns, columns[0] + expected)
            sides = [tuple(array["tokens"][columns].tolist()) for columns in here]
            yield *sides, *(int(array["languages"][columns[-1]]) for columns in here)


def stored(data, name):
    return {texts(record.tolist()) for record in data.records(data.task(name))}


@pytest.mark.parametrize("prefetch", tiny.slow_except({2}, [0, 2]))
def test_each_pair_is_drawn_in_the_direction_asked_for(data, prefetch):
    stream = directed("fr-en", "en-sw")
    iterator = iterate(data, [stream], prefetch=prefetch)
    seen = collections.Counter()
    for _ in range(80):
        for source, target, *languages in items(next(iterator)["b"]):
            assert (source[0], target[0]) == (0, 0)
            turned = languages == [2, 1]
            assert turned or languages == [1, 3]
            found = (target[1:], source[1:]) if turned else (source[1:], target[1:])
            seen["en-fr" if turned else "en-sw", found] += 1
    # Each pair in which no side is longer than half a row, and nothing else.
    fits = {
        (name, sides)
        for name in ("en-fr", "en-sw")
        for sides in stored(data, name)
        if max(map(len, sides)) + 1 <= 32
    }
    assert set(seen) == fits and len(fits) < 105
    iterator.close()


def test_a_pair_with_both_directions_takes_either(data):
    iterator = iterate(data, [directed("fr-en", "en-fr")])
    counts, pairs = collections.Counter(), stored(data, "en-fr")
    for _ in range(60):
        for source, _, *languages in items(next(iterator)["b"]):
            side = languages.index(1)  # The side of the English text.
            assert any(source[1:] == sides[side] for sides in pairs)
            counts[tuple(languages)] += 1
    assert set(counts) == {(1, 2), (2, 1)}  # No pair of en-sw.
    assert abs(counts[1, 2] / counts.total() - 0.5) < 0.1


def test_rows_do_not_depend_on_the_processes(data):
    stream = directed("fr-en", "en-sw", rows=4)
    whole = iterate(data, [stream])
    halves = [iterate(data, [stream], process_index=n, process_count=2) for n in (0, 1)]
    for _ in range(5):
        expected, found = next(whole)["b"], [next(half)["b"] for half in halves]
        for name, array in expected.items():
            np.testing.assert_array_equal(np.concatenate([half[name] for half in found]), array)


def test_a_pass_has_each_pair_once(data):
    stream = directed("sw-en")
    tasks = [data.task("en-sw")]
    found = one_pass(data, tasks, stream)
    seen = [item for batch in found.batches(2) for item in items(batch)]
    assert {languages for *_, one, other in seen for languages in [(one, other)]} == {(3, 1)}
    assert sorted((target[1:], source[1:]) for source, target, *_ in seen) == sorted(
        stored(data, "en-sw")
    )
    assert held_out_tasks(data, stream) == ()


ERRORS = [
    ("en-de", {}, "'en-de' must be SOURCE-TARGET, two of the languages en, fr, sw"),
    ("en-fr", {"flip": 0.5}, "set flip=0.0, not 0.5"),
    ("en-fr", {"length": 63}, "an even length, not 63"),
]


@pytest.mark.parametrize(
    ("direction", "changes", "message"), ERRORS, ids=lambda value: str(value)[:30]
)
def test_bad_directions_are_refused(direction, changes, message):
    with pytest.raises(ValueError, match=message):
        directed(direction, **changes)


def test_a_direction_without_pairs_is_refused(data):
    with pytest.raises(PreparedDataError, match=r"pairs for directions=\('fr-sw',\); prepare"):
        iterate(data, [directed("en-fr", "fr-sw")])
