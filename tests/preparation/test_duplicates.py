"""Digests in sorted arrays against a Python set."""

import itertools
import random

import numpy as np
import pytest

from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import duplicates


@pytest.mark.parametrize("batch", [1, 7, 300])
def test_digests_are_a_set(batch):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 400, 1000).astype(np.uint64) << np.uint64(54)
    digests, known, runs = duplicates.Digests(), set(), []
    for start in range(0, len(values), batch):
        part = values[start : start + batch]
        expected = []
        for value in part.tolist():
            expected.append(value not in known)
            known.add(value)
        assert digests.add(part).tolist() == expected
        runs = [len(run) for run in digests._runs]
    assert sum(runs) == len(known)
    assert all(longer >= 2 * shorter for longer, shorter in itertools.pairwise(runs))


def reader(pairs):
    def read(report):
        for pair in pairs:
            report.read += 1
            yield pair

    return read


def test_the_first_of_equal_pairs_stays_across_files_and_batches(monkeypatch):
    monkeypatch.setattr(duplicates, "_BATCH", 3)
    rng = random.Random(1)
    texts = ["A house.", "a  HOUSE.", "A house!", "\uff21 house.", "B", "C", "D"]
    files = [[(rng.choice(texts), rng.choice(texts[:3])) for _ in range(40)] for _ in range(3)]
    expected, known = [], set()
    for one, two in (pair for file in files for pair in file):
        # "\uff21" is a full-width A.
        key = tuple(" ".join(text.replace("\uff21", "A").lower().split()) for text in (one, two))
        if key not in known:
            expected.append((one, two))
            known.add(key)
    report = ReadReport()
    assert list(duplicates.distinct(list(map(reader, files)), report)) == expected
    assert report.read == len(expected)
    assert report.skipped == {duplicates.REASON: 120 - len(expected)}


def test_sides_are_not_mixed_up():
    pairs = [("a b", "c"), ("a", "b c"), ("c", "a b"), ("a b", "c")]
    assert list(duplicates.distinct([reader(pairs)], ReadReport())) == pairs[:3]
