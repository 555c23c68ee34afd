"""Alignment error rate by hand and link by link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.evaluation.alignment_scores import aer, diagonal

links = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)


def reference_aer(predicted, sure, possible):
    """Counts link by link, as evaluation scripts do; P includes the sure links."""
    num_a = num_s = hit_s = hit_p = 0
    for a, s, p in zip(predicted, sure, possible):
        for link in a:
            hit_s += link in s
            hit_p += link in p or link in s
        num_a += len(a)
        num_s += len(s)
    return 1 - (hit_s + hit_p) / (num_a + num_s) if num_a + num_s else 0.0


@given(st.lists(st.tuples(links, links, links), max_size=5))
def test_aer_is_that_of_a_count_link_by_link(pairs):
    predicted, sure, possible = ([pair[side] for pair in pairs] for side in range(3))
    value = aer(predicted, sure, possible)
    assert value == pytest.approx(reference_aer(predicted, sure, possible), abs=1e-12)
    assert 0 <= value <= 1
    with_sure = [p | s for p, s in zip(possible, sure)]
    assert aer(predicted, sure, with_sure) == value
    assert aer(sure, sure, possible) == 0


def test_aer_of_the_paper_by_hand():
    """A = {1, 2, 3}, S = {1, 4}, P = {1, 2, 4}: 1 - (1 + 2) / (3 + 2)."""
    one, two, three, four = ((i, i) for i in range(4))
    predicted, sure, possible = {one, two, three}, {one, four}, {one, two, four}
    assert aer([predicted], [sure], [possible]) == pytest.approx(0.4)
    assert aer([set()], [set()], [{one}]) == 0
    assert aer([set()], [sure], [possible]) == 1
    with pytest.raises(ValueError, match="links of 1, 2, 1 pairs"):
        aer([sure], [sure, sure], [sure])


def test_the_diagonal():
    assert diagonal(3, 3) == {(0, 0), (1, 1), (2, 2)}
    assert diagonal(2, 5) == {(0, 0), (1, 4)}
    assert diagonal(5, 2) == {(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)}
    assert diagonal(1, 4) == {(0, 0)}
    assert diagonal(0, 4) == diagonal(4, 0) == set()
