"""The control with shuffled pairs: the same texts with other partners."""

import collections

import pytest

from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import file_sources


def mismatched(count):
    def read(report):
        for number in range(count):
            report.read += 1
            yield f"e{number}", f"f{number}"

    report = ReadReport()
    pairs = list(file_sources.mismatched_pairs(read, report))
    assert report.read == count
    return pairs


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 4096, 4097, 10_000])
def test_mismatched_pairs_keep_every_text_and_no_partner(count):
    found = mismatched(count)
    assert [first for first, _ in found] == [f"e{n}" for n in range(count)]
    seconds = collections.Counter(second for _, second in found)
    assert seconds == collections.Counter(f"f{n}" for n in range(count))
    partners = sum(first[1:] == second[1:] for first, second in found)
    # The only pair of a window has no other partner.
    assert partners == (count % 4096 == 1)


def test_partners_stay_near():
    moves = [abs(int(first[1:]) - int(second[1:])) for first, second in mismatched(10_000)]
    assert max(moves) <= 2048
