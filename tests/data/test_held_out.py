"""Held-out text: equal units in all languages, absent from training, and nothing else removed."""

import functools
import itertools
import pathlib
import pickle
import tempfile
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlme_jax.data.text import held_out
from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.document_files import TextFile
from xlme_jax.data.text.held_out import Corpora, HeldOutText, find_corpora
from xlme_jax.data.text.pair_kinds import canonical_source
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.text.text_digests import digest, folded, normalized, single_spaced
from xlme_jax.preparation import file_sources

LANGUAGES = ("en", "fr", "ru")
SPLITS = ("train", "validation")
# Few different texts, so that many are held out in one place and stand in another.
TEXT = st.sampled_from(["", "a", "A", "b", "ﬁ x", "FI  X", "c 1", "c 2", "é", "ж", "d e", "f"])


def write_multiway(folder, rows, ids=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ids.txt").write_text("".join(f"{i}\n" for i in ids or range(len(rows))))
    for column, language in enumerate(LANGUAGES):
        (folder / f"{language}.txt").write_text("".join(f"{row[column]}\n" for row in rows))


def write_documents(file, documents):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n")


def read_pairs(held, source, split):
    report = ReadReport()
    return list(file_sources.split_pairs(held, source, split, report)), report


def read_documents(held, language, file, split):
    report = ReadReport()
    texts = file_sources.split_documents(held, language, split, 1000, file, report)
    return [text for (text,) in texts], report


ROW = st.tuples(TEXT, TEXT, TEXT)
DOCUMENT = st.lists(TEXT.filter(bool), min_size=1, max_size=3)


def held_numbers(spec, units):
    kind, _, number = spec.partition(":")
    if kind == "every":
        return {i for i in range(units) if i % int(number) == int(number) - 1}
    count = min(int(number), units // 2)
    return {int((j + 0.5) * units / count) for j in range(count)}


def simplest(text):
    """An independent implementation of `normalized`."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(" " if c.isspace() else c for c in folded).split(" ")
    return " ".join(word for word in words if word)


@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    documents=st.lists(DOCUMENT, min_size=1, max_size=12),
    spec=st.sampled_from(["every:2", "every:3", "every:7", "count:1", "count:4", "count:99"]),
)
def test_splits_part_the_corpora_and_share_no_text(rows, documents, spec):
    rows = [("a 0", "b 0", "c 0"), *rows]  # no language is without text
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        write_multiway(root / "pairs", rows)
        write_documents(root / "mono" / "en.txt", documents)
        corpora = find_corpora(root / "mono", root / "pairs")
        held = HeldOutText(spec, corpora=corpora)
        chosen = held_numbers(spec, len(rows))
        texts = {language: set() for language in LANGUAGES}
        for i in chosen:
            for language, text in zip(LANGUAGES, rows[i]):
                texts[language].add(simplest(text))
        out = [documents[i] for i in sorted(held_numbers(spec, len(documents)))]
        texts["en"].update(simplest(line) for document in out for line in document)
        for held_texts in texts.values():
            held_texts.discard("")
        for source in corpora.sources:
            sides = [LANGUAGES.index(source.lang1), LANGUAGES.index(source.lang2)]
            pairs = [tuple(row[side] for side in sides) for row in rows]
            train, train_report = read_pairs(held, source, "train")
            validation, validation_report = read_pairs(held, source, "validation")
            # The same lines in every pair, and no others.
            assert validation == [pairs[i] for i in sorted(chosen) if all(pairs[i])]
            assert train == [
                pair
                for i, pair in enumerate(pairs)
                if i not in chosen
                and all(pair)
                and simplest(pair[0]) not in texts[source.lang1]
                and simplest(pair[1]) not in texts[source.lang2]
            ]
            skipped = train_report.skipped.total() + validation_report.skipped.total()
            assert len(train) + len(validation) + skipped == len(rows)
        (_, file), *_ = corpora.documents
        train, report = read_documents(held, "en", file, "train")
        validation, _ = read_documents(held, "en", file, "validation")
        assert validation == ["\n".join(document) for document in out]
        lines = [line for text in train for line in text.split("\n")]
        assert not {simplest(line) for line in lines} & texts["en"]
        whole = sum(map(len, documents)) - sum(map(len, out))
        assert len(lines) + report.skipped[held_out.LINES_REASON] == whole


SWAHILI = ("sw", "swa", "swh_Latn", "swh-Latn", "sw_KE")


@pytest.mark.parametrize(("of_documents", "of_pairs"), list(itertools.product(SWAHILI, repeat=2)))
def test_text_is_held_out_in_every_spelling_of_its_language(tmp_path, of_documents, of_pairs):
    lines = [f"Sentensi ya {i} kwa jaribio." for i in range(8)]
    documents = [["Mwanzo."], *([line] for line in lines)]  # One of two is held out itself.
    write_documents(tmp_path / "mono" / f"{of_documents}.txt", documents)
    (tmp_path / "pairs").mkdir()
    for language, word in (("en", "Sentence"), (of_pairs, "Sentensi ya")):
        text = "".join(f"{word} {i} kwa jaribio.\n" for i in range(8))
        (tmp_path / "pairs" / f"x.en-{of_pairs}.{language}").write_text(text)
    corpora = find_corpora(tmp_path / "mono", tmp_path / "pairs")
    held = HeldOutText("every:2", corpora=Corpora(sources=corpora.sources))
    ((language, file),) = corpora.documents
    train, report = read_documents(held, language, file, "train")
    assert (train, report.skipped[held_out.LINES_REASON]) == (["Mwanzo."], 4)


# Whitespace, marks and characters that NFKC replaces, in orders that composition depends on.
HARD = "，？１０…ำຳ\u3000\xa0 \t\n\x1c\x85\u2028aÉe\u0301\u0327\u0e48\u0e4d\u0ec8ßﬁ가\u11a8\u200b"


@settings(deadline=None)
@given(st.text(HARD, max_size=12) | st.text(max_size=12))
def test_shortcuts_of_normalisation_change_nothing(text):
    assert folded(text) == unicodedata.normalize("NFKC", text).casefold()
    assert single_spaced(text) == " ".join(text.split())


@settings(deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_digests_are_equal_where_normalised_texts_are(one, two):
    assert normalized(one) == simplest(one)
    assert (digest(one) == digest(two)) == (simplest(one) == simplest(two))
    assert digest(f" {one}\t\n") == digest(one)


def test_digits_punctuation_and_diacritics_count():
    texts = ["Article 1.", "Article 2.", "Article 1", "Årticle 1."]
    assert len(set(map(digest, texts))) == 4
    assert digest("ARTICLE  １.") == digest("article 1.")


def test_units_by_id(tmp_path):
    rows = [(f"e{i}", f"f{i}", f"r{i}") for i in range(6)]
    write_multiway(tmp_path / "pairs" / "one", rows[:3], ["x.1", "x.2", "x.3"])
    write_multiway(tmp_path / "pairs" / "two", rows[3:], ["y.1", "x.2", "y.3"])
    (tmp_path / "pairs" / "en-fr.tsv").write_text("e1\tother\nnew\tnouveau\n")
    write_documents(tmp_path / "mono" / "en.txt", [["e4", "kept"], ["e0"]])
    ids = tmp_path / "ids"
    ids.write_text("x.2\n\ny.3\n")
    corpora = find_corpora(tmp_path / "mono", tmp_path / "pairs")
    held = HeldOutText(f"ids:{ids}", corpora=corpora)
    found = {split: [] for split in SPLITS}
    for source, split in itertools.product(corpora.sources, SPLITS):
        if source.pair == "en-fr":
            found[split] += read_pairs(held, source, split)[0]
    assert found["validation"] == [("e1", "f1"), ("e4", "f4"), ("e5", "f5")]
    assert found["train"] == [("e0", "f0"), ("e2", "f2"), ("e3", "f3"), ("new", "nouveau")]
    file = corpora.documents[0][1]
    assert read_documents(held, "en", file, "train")[0] == ["kept", "e0"]
    assert read_documents(held, "en", file, "validation")[0] == []


def test_verses_by_id(tmp_path):
    """A verse is held out with those that a translation joins to it, under whichever of the ids."""
    texts = {"en": ("one", "two", "three", "four"), "sw": ("moja mbili", "", "tatu", "nne")}
    for code, of_language in texts.items():
        rows = [f"GEN 1:{i}\t{text}\n" for i, text in enumerate(of_language, 1)]
        (tmp_path / f"{code}.txt").write_text("".join(rows))
    source = canonical_source("verses", ("en", "sw"), tmp_path / "en.txt", tmp_path / "sw.txt")
    ids = tmp_path / "ids"
    ids.write_text("GEN 1:3\n")
    held = HeldOutText(f"ids:{ids}", corpora=Corpora(sources=(source,)))
    assert read_pairs(held, source, "validation")[0] == [("three", "tatu")]
    training, report = read_pairs(held, source, "train")
    assert training == [("four", "nne")] and report.skipped["missing verse"] == 1
    ids.write_text("GEN 1:2\nGEN 9:9\n")
    held = HeldOutText(f"ids:{ids}", corpora=Corpora(sources=(source,), max_document_chars=99))
    with pytest.raises(
        DataError, match=r"has a unit GEN 9:9, and no Bible such a verse; .*en\.txt"
    ):
        held.texts("en")


def test_an_unknown_id_is_named(tmp_path):
    write_multiway(tmp_path / "pairs", [("a", "b", "c")] * 2, ["x", "y"])
    corpora = find_corpora(None, tmp_path / "pairs")
    (tmp_path / "wanted").write_text("y\nnowhere.7\n")
    held = HeldOutText(f"ids:{tmp_path / 'wanted'}", corpora=corpora)
    with pytest.raises(DataError, match=r"wanted: no multi-way folder has a unit nowhere\.7, and"):
        held.texts("en")
    (tmp_path / "wanted").write_text("\n")
    with pytest.raises(DataError, match="no ids in this file"):
        held_out.write(HeldOutText(held.spec, str(tmp_path / "file"), corpora), "")


def test_text_of_a_folder(tmp_path):
    write_multiway(tmp_path / "pairs", [("One", "Un", "Odin"), ("Two", "Deux", "Dva")])
    write_documents(tmp_path / "mono" / "en.txt", [["three", "four"], ["FIVE"]])
    write_documents(tmp_path / "valid" / "en.txt", [["Three"]])
    write_documents(tmp_path / "valid" / "de.txt", [["Drei"]])  # of no training text
    (tmp_path / "valid" / "en-fr.tsv").write_text("five\tdeux\n")
    corpora = find_corpora(tmp_path / "mono", tmp_path / "pairs")
    held = HeldOutText(f"folder:{tmp_path / 'valid'}", corpora=corpora)
    folder = held.folder_corpora()
    assert [language for language, _ in folder.documents] == ["de", "en"]
    assert [source.pair for source in folder.sources] == ["en-fr"]
    by_pair = {source.pair: source for source in corpora.sources}
    assert read_pairs(held, by_pair["en-fr"], "train")[0] == [("One", "Un")]
    assert read_pairs(held, by_pair["en-ru"], "train")[0] == [("One", "Odin"), ("Two", "Dva")]
    assert read_documents(held, "en", corpora.documents[0][1], "train")[0] == ["four"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no text to hold out found"):
        HeldOutText(f"folder:{tmp_path / 'empty'}").folder_corpora()


def test_units_of_files_of_a_language_count_together(tmp_path):
    write_documents(tmp_path / "mono" / "en-1.txt", [[f"a{i}"] for i in range(30)])
    write_documents(tmp_path / "mono" / "en-2.txt", [[f"b{i}"] for i in range(10)])
    corpora = find_corpora(tmp_path / "mono")
    held = HeldOutText("count:4", corpora=corpora)
    files = [file for _, file in corpora.documents]
    found = [read_documents(held, "en", file, "validation")[0] for file in files]
    assert found == [["a5", "a15", "a25"], ["b5"]]


def test_a_file_tells_workers_what_memory_holds(tmp_path):
    rows = [(f"e{i}", f"f{i % 3}", f"r{i}") for i in range(40)]
    write_multiway(tmp_path / "pairs", rows)
    corpora = find_corpora(None, tmp_path / "pairs")
    for spec in ("every:9", "count:3"):
        here = HeldOutText(spec, corpora=corpora)
        there = HeldOutText(spec, str(tmp_path / f"{spec}.npz"), corpora)
        assert held_out.write(there, "1") and not held_out.write(there, "1")
        sent = pickle.dumps(there.without_corpora())
        assert len(sent) < 500
        worker = pickle.loads(sent)
        for language in LANGUAGES:
            assert worker.texts(language) == here.texts(language) != set()
        chosen = [held.chooses(str(tmp_path / "pairs")) for held in (worker, here)]
        numbers = [[i for i in range(40) if choose(i)] for choose in chosen]
        assert numbers[0] == numbers[1] == sorted(held_numbers(spec, 40))


def test_keys_follow_units_and_texts(tmp_path):
    rows = [(f"e{i}", f"f{i}", f"r{i}") for i in range(8)]
    folder = tmp_path / "pairs"
    write_multiway(folder, rows)

    def keys(spec, file):
        held = HeldOutText(spec, str(tmp_path / file), find_corpora(None, folder))
        held_out.write(held, file)
        return [held.key(str(folder), language) for language in LANGUAGES]

    before = keys("every:4", "a")
    assert keys("every:4", "b") == before and keys("every:2", "c") != before
    rows[3] = ("e3", "other", "r3")
    write_multiway(folder, rows)
    after = keys("every:4", "d")
    assert [one == two for one, two in zip(before, after)] == [True, False, True]
    damaged = HeldOutText("every:4", str(tmp_path / "a"), find_corpora(None, folder))
    pathlib.Path(damaged.file).write_bytes(b"PK\x03\x04 cut short")
    assert held_out.write(damaged, "a")  # made again


@pytest.mark.parametrize("suffix", ["tsv", "tmx"])
def test_pair_files_are_counted_in_places(tmp_path, suffix):
    pairs = [("e0", "f0"), ("e1", ""), ("e2", "f2"), ("e3", "f3")]
    file = tmp_path / f"fr-en.{suffix}"
    if suffix == "tsv":
        file.write_text("".join(f"{f}\t{e}\n" for e, f in pairs))
        expected = [("e3", "f3")]  # the line of e1 has no pair
    else:
        units = "".join(
            f'<tu><tuv xml:lang="en"><seg>{e}</seg></tuv>'
            f'<tuv xml:lang="fr"><seg>{f}</seg></tuv></tu>'
            for e, f in pairs
        )
        file.write_text(f'<tmx version="1.4"><header/><body>{units}</body></tmx>')
        expected = [("e2", "f2")]  # of three usable pairs
    (source,) = discover_bitext(tmp_path)
    held = HeldOutText("every:2", corpora=Corpora(sources=(source,)))
    train, report = read_pairs(held, source, "train")
    validation, other = read_pairs(held, source, "validation")
    assert validation == expected
    assert sorted(train + validation) == [("e0", "f0"), ("e2", "f2"), ("e3", "f3")]
    assert report.skipped + other.skipped == {"empty side": 1}


@pytest.mark.parametrize(
    "spec", ["every", "every:", "every:1", "every:x", "every:²", "count:0", "ids:", "file:x", "20"]
)
def test_specs_that_make_no_sense(spec):
    with pytest.raises(ValueError, match=r"`validation` is .*every:20 .*count:1000 .*ids:FILE"):
        held_out.parse(spec)


def test_spread_is_even():
    for units, count in ((10, 3), (1000, 7), (7, 100), (1, 1), (2, 1)):
        numbers = held_out._evenly(units, count)
        assert len(numbers) == min(count, units // 2)
        assert len(set(numbers.tolist())) == len(numbers)
        gaps = np.diff([-1, *numbers.tolist(), units])
        assert not len(numbers) or gaps[1:-1].max(initial=0) - gaps[1:-1].min(initial=units) <= 1


def test_reading_functions_can_be_sent_by_name(tmp_path):
    held = HeldOutText("every:2", str(tmp_path / "file"))
    read = functools.partial(
        file_sources.split_documents, held, "en", "train", 10, TextFile(tmp_path)
    )
    assert pickle.loads(pickle.dumps(read)).args == read.args
