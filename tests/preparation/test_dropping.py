"""Languages with few pairs."""

import pytest

from xlme_jax.data.prepared import FileInfo, TaskInfo
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import dropping
from xlme_jax.preparation.prepare_config import PrepareConfig


def row(one, two, examples, split="train"):
    """Returns the row of a task of pairs."""
    file = FileInfo("file", examples, 10 * examples, 1, "0" * 64)
    name, tokens = f"bitext_{one}_{two}", 10 * examples
    return TaskInfo(
        name, "bitext", split, (one, two), examples, tokens, shards=(file,), lengths=file
    )


PAGE = FileInfo("page", 1, 9, 1, "0" * 64)
# en 100, fr 90, sw 30, xh 25, zu 15.
TABLE = [
    row("en", "fr", 70),
    row("en", "sw", 10),
    row("en", "xh", 15),
    row("en", "zu", 5),
    row("fr", "sw", 20),
    row("sw", "zu", 0),
    row("xh", "zu", 10),
    row("en", "sw", 500, "validation"),
    TaskInfo("cc100_zu", "monolingual", "train", ("zu",), 1, 9, shards=(PAGE,)),
]


@pytest.mark.parametrize(
    "least, rare",
    [
        (0, {}),
        (15, {}),
        (16, {"zu": 15, "xh": 15}),  # Without zu, xh has 15 pairs left.
        (26, {"zu": 15, "xh": 25}),
        (31, {"zu": 15, "xh": 25, "sw": 30}),
        (71, {"zu": 15, "xh": 25, "sw": 30, "en": 70, "fr": 70}),
    ],
)
def test_languages_are_counted_again_without_the_rare_ones(least, rare):
    assert dropping.rare_languages(TABLE, least) == rare


def test_dropped_tasks_are_listed_with_counts_and_reasons():
    config = PrepareConfig("out", tasks=("tfds",), min_pairs=16)
    kept, dropped = dropping.drop(config, TABLE)
    assert [row.name for row in kept] == [
        *("bitext_en_fr", "bitext_en_sw", "bitext_fr_sw", "bitext_en_sw", "cc100_zu")
    ]
    assert [(entry["task"], entry["pairs"]) for entry in dropped] == [
        ("bitext_en_xh", 15),
        ("bitext_en_zu", 5),
        ("bitext_xh_zu", 10),
    ]
    assert list(dropping.summary_lines(dropped))[2] == (
        "dropped bitext_xh_zu (train, 10 pairs): xh has 15 pairs and zu has 15 pairs, fewer than "
        "min_pairs 16"
    )


def test_nothing_left_is_an_error():
    config = PrepareConfig("out", tasks=("tfds",), min_pairs=71)
    with pytest.raises(DataError, match=r"`min_pairs` is 71, and no language .*en 70, fr 70"):
        dropping.drop(config, TABLE)
