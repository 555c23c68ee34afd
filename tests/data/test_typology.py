"""Features of languages, and distances from English."""

import pytest

from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.data.benchmarks.parallel_sets import TATOEBA_36
from xlme_jax.data.benchmarks.typology import (
    WORD_ORDER,
    script_distance,
    word_order_distance,
)


def test_all_languages_of_xtreme_are_there():
    tasks = ("udpos", "panx", "xnli", "xquad", "mlqa", "tydiqa", "pawsx")
    wanted = {*TATOEBA_36, *(x for task in tasks for x in BENCHMARKS[task].languages)}
    assert wanted == WORD_ORDER.keys()


def test_word_order_is_the_share_of_features_that_differ():
    assert word_order_distance("en") == 0
    assert word_order_distance("bg") == 0  # All seven as in English.
    assert word_order_distance("de") == pytest.approx(2 / 7)  # 81A and 86A.
    assert word_order_distance("tr") == pytest.approx(4 / 7)
    assert word_order_distance("ar") == pytest.approx(3 / 6)  # WALS has no 90A.
    assert word_order_distance("tr", "ja") == 0
    assert word_order_distance("hi", "en") == word_order_distance("en", "hi")
    assert word_order_distance("kk") is None and word_order_distance("bn") is None
    assert word_order_distance("xx") is None


def test_scripts_are_the_same_or_not():
    assert script_distance("de") == 0 and script_distance("ru") == 1
    assert script_distance("hi", "mr") == 0 and script_distance("xx") is None
