"""Sentences that the demo begins with."""

import pytest
from helpers import finetuning

from xlme_jax.data import cldr
from xlme_jax.data.prepared.writer import BitextWriter, write_dataset
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.tools.serving.first_sentences import find


def write(folder, vocabulary, tasks):
    """Prepares pairs: {(source, target, split): list of pairs}."""
    rows = []
    for (one, other, split), pairs in tasks.items():
        name = f"{one}-{other}"
        writer = BitextWriter(folder, name, [one, other], vocabulary.size, split=split)
        for pair in pairs:
            source, target = map(vocabulary.encode, pair)
            writer.add([0, *source, 2, *target, 2])
        rows.append(writer.close())
    write_dataset(folder, rows, vocabulary.path, vocabulary.size)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return Vocabulary.load(finetuning.write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


def test_held_out_pairs_with_english_are_chosen(tmp_path, vocabulary):
    config = finetuning.CORPUS.config
    tasks = {
        (one, other, split): list(cldr.pairs(config, one, other, split, 40))
        for split in ("train", "validation")
        for one, other in (("el", "ru"), ("el", "en"))
    }
    write(tmp_path / "data", vocabulary, tasks)
    found = find(tmp_path / "data", vocabulary)
    assert found.languages == ("en", "el")
    assert "el-en (validation)" in found.origin
    known = {(target, source) for source, target in tasks["el", "en", "validation"]}
    assert len(found.pairs) == 5 and known.issuperset(found.pairs)
    words = [set(source.split()) for source, _ in found.pairs]
    assert all(one is other or len(one & other) < 2 for one in words for other in words)
    first, second = (pair[0].split() for pair in found.pairs[:2])
    middle = (len(first) - 1) // 2
    odd = found.pairs[-1][1].split()[-1]
    assert found.odd.split() == [*first[:middle], odd, *first[middle + 1 :]]
    masked = found.masked.split()
    assert len(second) >= 3 and masked == [
        *second[: len(second) // 2],
        "<mask>",
        *second[len(second) // 2 + 1 :],
    ]


def test_without_pairs_the_built_in_ones_are_shown(tmp_path, vocabulary):
    found = find(tmp_path / "nothing", vocabulary)
    assert found.languages == ("en", "fr") and "built in" in found.origin
    assert found.masked.count("<mask>") == 1
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "dataset.json").write_text("{")
    assert find(tmp_path / "damaged", vocabulary) == found
