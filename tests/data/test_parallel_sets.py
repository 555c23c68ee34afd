"""Tatoeba, BUCC and gold word alignments: layouts and inconsistent files."""

import pytest
from helpers import tiny
from hypothesis import given
from hypothesis import strategies as st

from xlme_jax.data.benchmarks.parallel_sets import (
    TATOEBA_14,
    TATOEBA_36,
    TATOEBA_CODES,
    alignment_folders,
    alignment_sets,
    bucc_languages,
    english_first,
    is_pair,
    read_alignments,
    read_bucc,
    read_tatoeba,
    tatoeba_languages,
)
from xlme_jax.data.text.reading import DataError, ReadReport

EVAL = tiny.REPOSITORY.parent / "shared" / "data" / "eval"
needs_eval = pytest.mark.skipif(not EVAL.is_dir(), reason="no ../shared/data/eval here")


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    return folder


# --- Tatoeba ---


def tatoeba(folder, code, sources, targets):
    return write(
        folder, **{f"tatoeba.{code}-eng.{code}": sources, f"tatoeba.{code}-eng.eng": targets}
    )


def test_lists_of_languages():
    assert len(TATOEBA_36) == len(set(TATOEBA_36)) == 36 and set(TATOEBA_CODES) == set(TATOEBA_36)
    assert len(set(TATOEBA_14)) == 14 and set(TATOEBA_14) < set(TATOEBA_36)


def test_tatoeba(tmp_path):
    tatoeba(tmp_path, "deu", "Ja.\nNein. \n\nEnde", "Yes.\n No.\nEmpty.\nEnd")
    tatoeba(tmp_path, "epo", "Jes.\n", "Yes.\n")
    assert tatoeba_languages(tmp_path) == ("de", "epo")
    report = ReadReport()
    found = read_tatoeba(tmp_path, "de", report)
    assert found.languages == ("de", "en")
    # The scorers of LASER and XTREME count every line.
    assert found.sources == ("Ja.", "Nein.", "", "Ende")
    assert found.targets == ("Yes.", "No.", "Empty.", "End")
    assert report.read == 4 and not report.skipped and report.repaired == {"empty side": 1}
    assert read_tatoeba(tmp_path, "deu", ReadReport()).sources == found.sources
    assert read_tatoeba(tmp_path, "epo", ReadReport()).sources == ("Jes.",)


def test_bad_tatoeba(tmp_path):
    tatoeba(tmp_path, "deu", "Ja.\nNein.\n", "Yes.\n")
    with pytest.raises(DataError, match=r"deu-eng.deu has 2 lines, .*deu-eng.eng has 1"):
        read_tatoeba(tmp_path, "de", ReadReport())
    with pytest.raises(DataError, match=r"no tatoeba.fra-eng.fra .* for 'fr'; available: de"):
        read_tatoeba(tmp_path, "fr", ReadReport())
    tatoeba(tmp_path, "ell", b"\xff\n", "Yes.\n")
    report = ReadReport()
    with pytest.raises(DataError, match="no usable pair of lines"):
        read_tatoeba(tmp_path, "el", report)
    assert report.repaired == {"invalid UTF-8": 1}
    tatoeba(tmp_path, "ell", b"\xff\n1\n", "Yes.\nOne\n")
    assert read_tatoeba(tmp_path, "el", ReadReport()).sources == ("\ufffd", "1")


def test_the_sorted_copy_of_xtreme_is_refused(tmp_path):
    write(tmp_path, **{"de-en.de": "Nein.\nJa.\n", "de-en.en": "No.\nYes.\n"})
    with pytest.raises(DataError, match=r"sorted.*use LASER's files"):
        read_tatoeba(tmp_path, "de", ReadReport())


# --- BUCC ---


@pytest.mark.parametrize(
    "name, split", [("dev", "validation"), ("sample", "validation"), ("training", "test")]
)
def test_bucc(tmp_path, name, split):
    write(
        tmp_path,
        **{
            f"de-en.{name}.de": "de-1\tJa.\nde-2\tNein.\nde-2\tDoch.\n" + "de-x\tx\n" * 1,
            f"de-en.{name}.en": "en-1\tNo.\nen-2\tYes.\n",
            f"de-en.{name}.gold": "de-1\ten-2\nde-2\ten-1\n",
        },
    )
    report = ReadReport()
    with pytest.raises(DataError, match=r"1 of 4 items cannot be used .1 x id of another sentence"):
        read_bucc(tmp_path, "de", split, report)
    write(tmp_path, **{f"de-en.{name}.de": "de-1\tJa.\nde-2\tNein.\n"})
    assert bucc_languages(tmp_path, split) == ("de",)
    found = read_bucc(tmp_path, "de", split, ReadReport())
    assert found.sources == ("Ja.", "Nein.") and found.target_ids == ("en-1", "en-2")
    assert found.gold == {(0, 1), (1, 0)}
    (tmp_path / f"de-en.{name}.gold").unlink()
    assert read_bucc(tmp_path, "de", split, ReadReport()).gold is None


def test_the_test_set_is_the_labelled_one(tmp_path):
    for name in ("training", "test"):
        write(
            tmp_path,
            **{f"fr-en.{name}.fr": f"fr-1\t{name}\n", f"fr-en.{name}.en": "en-1\tx\n"},
        )
    assert read_bucc(tmp_path, "fr", "test", ReadReport()).sources == ("training",)


def test_gold_pairs_without_sentences_are_counted(tmp_path):
    ids = range(1, 201)
    write(
        tmp_path,
        **{
            "de-en.dev.de": "".join(f"de-{n}\tJa {n}.\n" for n in ids),
            "de-en.dev.en": "".join(f"en-{n}\tYes {n}.\n" for n in ids),
            "de-en.dev.gold": "".join(f"de-{n}\ten-{n}\n" for n in ids) + "de-7\ten-999\n",
        },
    )
    report = ReadReport()
    found = read_bucc(tmp_path, "de", "validation", report)
    assert found.gold is not None and (len(found.gold), found.outside) == (200, 1)
    assert report.repaired == {"gold names no sentence of the files: scored as wrong": 1}


@pytest.mark.parametrize(
    "gold, message",
    [
        ("de-1\ten-9\n", "1 of 1 items cannot be used .1 x gold names no sentence"),
        ("en-1\tde-1\n", "line 1: en-1 is a target and de-1 a source"),
    ],
)
def test_bad_bucc(tmp_path, gold, message):
    write(tmp_path, **{"de-en.dev.de": "de-1\tJa.\n", "de-en.dev.en": "en-1\tYes.\n"})
    write(tmp_path, **{"de-en.dev.gold": gold})
    with pytest.raises(DataError, match=message):
        read_bucc(tmp_path, "de", "validation", ReadReport())
    with pytest.raises(DataError, match=r"no ru-en.dev.ru for 'ru', validation; available: de"):
        read_bucc(tmp_path, "ru", "validation", ReadReport())
    with pytest.raises(ValueError, match="choose one of validation, test"):
        read_bucc(tmp_path, "de", "train", ReadReport())


# --- Word alignments ---


def inline(folder, sources, targets, gold):
    return write(folder / "en-de_x", **{"src.txt": sources, "tgt.txt": targets, "gold.txt": gold})


def listed(folder, sources, targets, gold, name="alignv2.txt"):
    return write(folder / "en-de", **{"test.en": sources, "test.de": targets, name: gold})


def read(folder):
    report = ReadReport()
    return read_alignments(folder, report), report


def test_inline_links(tmp_path):
    folder = inline(tmp_path, "a b c\nd\n", "x y\nz\n", "0-0 2p1\n0-0\n")
    found, report = read(folder)
    assert found.name == "en-de_x" and found.languages == ("en", "de") and found.index_base == 0
    assert found.sources == (("a", "b", "c"), ("d",)) and found.targets == (("x", "y"), ("z",))
    assert found.sure == ({(0, 0)}, {(0, 0)})
    assert found.possible == ({(0, 0), (2, 1)}, {(0, 0)})
    assert report.read == 2 and alignment_sets(tmp_path) == ("en-de_x",)


def test_inline_links_counted_from_1(tmp_path):
    found, _ = read(inline(tmp_path, "a b c\nd\n", "x y\nz\n", "1-1 3p2\n1-1\n"))
    assert found.index_base == 1
    assert found.sure == ({(0, 0)}, {(0, 0)}) and found.possible[0] == {(0, 0), (2, 1)}


def test_listed_links(tmp_path):
    gold = "0026 1 1 S\n0026 3 2 P\n0026 3 2 P 0.5\n0031 1 1 S\n"
    found, _ = read(listed(tmp_path, "a b c\nd\n", "x y\nz\n", gold))
    assert found.index_base == 1
    assert found.sure == ({(0, 0)}, {(0, 0)}) and found.possible[0] == {(0, 0), (2, 1)}


def test_listed_links_counted_from_0_without_marks(tmp_path):
    gold = "1 0 0\n1 2 1\n2 0 0\n"
    found, _ = read(listed(tmp_path, "a b c\nd\n", "x y\nz\n", gold, "align.txt"))
    assert found.index_base == 0 and found.sure == found.possible
    assert found.sure == ({(0, 0), (2, 1)}, {(0, 0)})


def test_sentences_without_links_keep_their_place(tmp_path):
    found, _ = read(listed(tmp_path, "a\nb\nc d\n", "x\ny\nz z\n", "1 1 1 S\n3 2 2 S\n"))
    assert found.sure == ({(0, 0)}, set(), {(1, 1)})


def test_alignv2_comes_before_align(tmp_path):
    listed(tmp_path, "a b\n", "x y\n", "1 1 1 S\n", "align.txt")
    found, _ = read(listed(tmp_path, "a b\n", "x y\n", "1 1 1 S\n1 2 2 P\n"))
    assert found.possible == ({(0, 0), (1, 1)},)


def test_a_link_outside_its_sentence_is_counted_and_listed(tmp_path, caplog):
    sources, targets = "a b\n" * 60, "x y\n" * 60
    gold = "".join(f"{n} 1 1 S\n{n} 2 2 S\n" for n in range(1, 61)) + "7 2 3 S\n"
    found, report = read(listed(tmp_path, sources, targets, gold))
    assert found.index_base == 1 and report.skipped == {"link outside its sentence": 1}
    assert "alignv2.txt, line 121: link outside its sentence (2-3 in (2, 2) words" in caplog.text
    assert all(links == {(0, 0), (1, 1)} for links in found.sure)


def test_links_that_name_no_word_do_not_refuse_a_small_set(tmp_path, caplog):
    gold = "0 1 1 S\n0 2 -99 S\n1 2 1 P\n1 -99 2 P\n1 1 3 S\n1 1 1\n"
    found, report = read(listed(tmp_path, "a b\nc d\n", "x y\nz w\n", gold))
    assert found.index_base == 1 and report.skipped == {"link outside its sentence": 3}
    assert found.sure == ({(0, 0)}, {(0, 0)}) and found.possible[1] == {(0, 0), (1, 0)}
    # Those that are only possible count nowhere.
    assert found.outside == ({(1, -100)}, {(0, 2)})
    for line, link in ((2, "2--99"), (4, "-99-2"), (5, "1-3")):
        assert f"alignv2.txt, line {line}: link outside its sentence ({link} in" in caplog.text


def test_links_in_line_may_name_no_word(tmp_path):
    found, report = read(inline(tmp_path, "a b\n", "x y\n", "-1-0 0-0 1p-99 1-1\n"))
    assert found.sure == ({(0, 0), (1, 1)},) and found.outside == ({(-1, 0)},)
    assert report.skipped == {"link outside its sentence": 2}


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("first", [0, 1, 26])
def test_the_archives_line_ends(tmp_path, base, first):
    """CRLF, a byte order mark and no line end at the end change nothing."""
    gold = "".join(
        f"{first + n} {i + base} {j + base}{mark}\n"
        for n, links in enumerate(["00S 21P", "10 01"])
        for i, j, mark in (
            (int(x[0]), int(x[1]), f" {x[2:]}" if x[2:] else "") for x in links.split()
        )
    )
    texts = ("a b c\nd e\n", "x y\nz w\n")
    expected, _ = read(listed(tmp_path / "plain", *texts, gold))
    assert expected.index_base == base
    assert expected.sure == ({(0, 0)}, {(1, 0), (0, 1)}) and expected.possible[0] == {
        (0, 0),
        (2, 1),
    }
    for number, changed in enumerate(
        [
            lambda text: text.replace("\n", "\r\n"),
            lambda text: "\ufeff" + text,
            lambda text: text.removesuffix("\n"),
            lambda text: ("\ufeff" + text).replace("\n", "\r\n").removesuffix("\r\n"),
        ]
    ):
        folder = listed(tmp_path / str(number), *map(changed, texts), changed(gold))
        assert read(folder)[0] == expected


def test_control_characters_split_no_words(tmp_path):
    folder = listed(tmp_path, "a\x92b c\u200b d\n", "x\x07 y\u00a0z\n", "1 3 3 S\n")
    found, report = read(folder)
    assert found.sources == (("a\x92b", "c\u200b", "d"),)
    # A no-break space separates words, as in Python.
    assert found.targets == (("x\x07", "y", "z"),)
    assert found.sure == ({(2, 2)},) and not report.repaired


def test_sentences_without_links_keep_their_place_counted_from_0(tmp_path):
    found, _ = read(listed(tmp_path, "a\nb\nc d\n", "x\ny\nz z\n", "0 1 1 S\n2 2 2 S\n"))
    assert found.sure == ({(0, 0)}, set(), {(1, 1)})


def test_sets_in_both_orders(tmp_path):
    """Links go from the language that the folder's name has first; nothing swaps them."""
    german, english = "a b c\nd\n", "x y\nz\n"
    write(
        tmp_path / "de-en",
        **{"test.de": german, "test.en": english, "alignv2.txt": "0 3 1 S\n1 1 1 S\n"},
    )
    write(
        tmp_path / "en-de",
        **{"test.de": german, "test.en": english, "alignv2.txt": "0 1 3 S\n1 1 1 S\n"},
    )
    one, other = read(tmp_path / "de-en")[0], read(tmp_path / "en-de")[0]
    assert one.languages == ("de", "en") and other.languages == ("en", "de")
    assert one.sources == other.targets and one.targets == other.sources
    assert one.sure == ({(2, 0)}, {(0, 0)}) and other.sure == ({(0, 2)}, {(0, 0)})
    write(tmp_path / "en-de", **{"alignv2.txt": "0 3 1 S\n0 3 2 S\n1 1 1 S\n"})
    with pytest.raises(DataError, match="source and target seem swapped"):
        read(tmp_path / "en-de")


def test_names_with_english_first():
    names = ["de-en", "en-de", "ro-en", "ru-en_xlwa_dev", "fr-de", "mean", "mean-14", "deu-eng"]
    expected = ["en-de", "en-de", "en-ro", "en-ru_xlwa_dev", "fr-de", "mean", "mean-14", "en-de"]
    assert [english_first(name) for name in names] == expected


def test_a_language_in_a_region_is_no_pair():
    names = ["pt-br", "zh-tw", "en-in", "en-de", "en-iw_dev", "swh-eng", "sw-KE", "sw_Latn"]
    assert [name for name in names if is_pair(name)] == ["en-de", "en-iw_dev", "swh-eng"]


def wpt(nulls=(), sentences=20, numbers=None, start=1):
    """Returns texts of 4 to 8 words and gold links n-n of most sentences, as WPT has them."""
    lengths = [4 + n % 5 for n in range(sentences)]
    gold = []
    for n, length in enumerate(lengths):
        if numbers is None or n in numbers:
            gold += [f"{n + start:04} {i} {i} S" for i in range(1, length + 1) if i != 3]
    texts = ["".join(" ".join(f"{x}{i}" for i in range(n)) + "\n" for n in lengths) for x in "ab"]
    return (*texts, "".join(f"{line}\n" for line in [*gold, *nulls]))


@pytest.mark.parametrize(
    "nulls",
    [
        ["0001 0 3 S"],
        ["0001 3 0 P"],
        ["0001 0 3 S", "0002 3 0 S", "0002 0 3 P"],
        [f"{n:04} {link} S" for n in range(1, 21) for link in ("0 3", "3 0", "0 4", "4 0")],
    ],
)
def test_links_to_null_are_left_out_and_shift_nothing(tmp_path, nulls, caplog):
    expected, _ = read(listed(tmp_path / "plain", *wpt()))
    folder = listed(tmp_path / "null", *wpt(nulls))
    found, report = read(folder)
    assert found == expected and found.index_base == 1
    assert (0, 0) in found.sure[0] and not found.outside[0]
    assert report.skipped == {"link to NULL, word 0 of words counted from 1": len(nulls)}
    assert f"words count from 1, so 0 is NULL in {len(nulls)} links, the first" in caplog.text


def test_no_single_line_tips_the_base(tmp_path):
    """Neither two zeros in a file that counts from 1, nor an end in one that counts from 0."""
    found, report = read(listed(tmp_path / "one", *wpt(["0001 0 0 S"])))
    assert found.index_base == 1 and report.skipped == {"link outside its sentence": 1}
    texts = "a b c d\n" * 20, "x y z w\n" * 20
    from_zero = "".join(f"{n} {i} {i} S\n" for n in range(1, 21) for i in range(3))
    found, report = read(listed(tmp_path / "zero", *texts, from_zero + "7 4 2 S\n"))
    assert found.index_base == 0 and report.skipped == {"link outside its sentence": 1}
    # Pharaoh's links count from 0 and have no NULL: first words that are linked are no NULLs.
    lines = ["0-1 1-0 2-2"] * 20
    lines[6] += " 4-2"
    found, report = read(inline(tmp_path, *texts, "\n".join(lines) + "\n"))
    assert found.index_base == 0 and report.skipped == {"link outside its sentence": 1}
    lines = [line.replace("2-2", "0-2 4-4 1-4 4-1 2-4") for line in ["0-1 1-1 2-2"] * 20]
    found, report = read(inline(tmp_path, *texts, "\n".join(lines) + "\n"))
    assert found.index_base == 1 and found.sure[0] == {(0, 0), (3, 3), (0, 3), (3, 0), (1, 3)}
    assert report.skipped == {"link to NULL, word 0 of words counted from 1": 40}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("missing", [{0}, {19}, {0, 7}, {7, 19}, {0, 19}])
def test_sentences_are_numbered_as_their_links_fit(tmp_path, start, missing):
    """The first or last sentence may be without links, so the least number proves nothing."""
    numbers = set(range(20)) - missing
    found, report = read(listed(tmp_path, *wpt(numbers=numbers, start=start)))
    assert {n for n, links in enumerate(found.sure) if links} == numbers and not report.skipped
    assert all(links == {(i, i) for i in range(4 + n % 5) if i != 2}
               for n, links in enumerate(found.sure) if links)  # fmt: skip


def test_the_remedy_of_unfit_links_exists(tmp_path):
    folder = inline(tmp_path, "a b\n" * 4, "x y\n" * 4, "0-0 2-2\n" * 4)
    with pytest.raises(DataError, match="correct these links, or use the texts of this gold file"):
        read(folder)


def test_undetermined_base_is_logged(tmp_path, caplog):
    folder = inline(tmp_path, "a b c\n", "x y z\n", "1-1\n")
    assert read(folder)[0].sure == ({(1, 1)},)
    assert "the links do not determine the index base; using 0" in caplog.text
    assert read(listed(tmp_path, "a b c\n", "x y z\n", "1 1 1 S\n"))[0].sure == ({(0, 0)},)


def test_contradictory_evidence(tmp_path):
    folder = inline(tmp_path, "a b\n" * 4, "x y\n" * 4, "0-0 2-2\n" * 4)
    with pytest.raises(DataError, match=r"from 0, 4 of 8 links .*; counted from 1, 4 of 8 "):
        read(folder)


def test_swapped_sides(tmp_path):
    folder = inline(tmp_path, "a b\n" * 4, "x y z w v\n" * 4, "0-0 4-1\n" * 4)
    with pytest.raises(DataError, match="source and target seem swapped"):
        read(folder)


@pytest.mark.parametrize(
    "sources, targets, gold, message",
    [
        ("a\nb\n", "x\n", "0-0\n0-0\n", r"src.txt has 2 lines, .*tgt.txt has 1"),
        ("a\nb\n", "x\ny\n", "0-0\n", r"gold.txt has 1 lines for 2 pairs"),
        ("a\n", "x\n", "0-0 0:0\n", r"gold.txt, line 1: '0:0' is not a link"),
        ("a\n", "x\n", "zero\n", r"gold.txt, line 1: 'zero' is not a link"),
        ("a\n", "x\n", "1 1 1 M\n", r"line 1: '1 1 1 M' is not a link"),
        ("a\n", "x\n", "7 1 1 S\n9 1 1 S\n", "links 2 sentences .* the texts have 1 lines"),
        ("a\n", "x\n", "\n", "no links in this file|links 0 sentences"),
        (b"\xff\n", "x\n", "0-0\n", "src.txt, line 1: invalid UTF-8"),
    ],
)
def test_bad_alignments(tmp_path, sources, targets, gold, message):
    with pytest.raises(DataError, match=message):
        read(inline(tmp_path, sources, targets, gold))


def test_a_folder_without_alignments(tmp_path, caplog):
    write(tmp_path / "en-de", **{"test.en": "a\n"})
    write(tmp_path / "notes", **{"src.txt": "", "tgt.txt": "", "gold.txt": ""})
    assert alignment_sets(tmp_path) == () and alignment_folders(tmp_path) == ("en-de",)
    assert "notes: not read; name it after its languages" in caplog.text
    with pytest.raises(DataError, match=r"no word alignments: expected src.txt"):
        read(tmp_path / "en-de")


pairs = st.lists(
    st.tuples(st.integers(2, 6), st.integers(2, 6)).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.sets(
                st.tuples(st.integers(0, size[0] - 1), st.integers(0, size[1] - 1)), max_size=5
            ),
        )
    ),
    min_size=1,
    max_size=5,
)


@given(pairs, st.integers(0, 1), st.booleans())
def test_any_links_come_back(tmp_path_factory, corpus, base, in_line):
    # The two corners prove the base.
    gold = [links | {(0, 0), (s - 1, t - 1)} for (s, t), links in corpus]
    sources = "".join("a " * s + "\n" for (s, _), _ in corpus)
    targets = "".join("x " * t + "\n" for (_, t), _ in corpus)
    folder = tmp_path_factory.mktemp("links")
    if in_line:
        lines = [" ".join(f"{i + base}-{j + base}" for i, j in links) for links in gold]
        inline(folder, sources, targets, "\n".join(lines) + "\n")
        found, report = read(folder / "en-de_x")
    else:
        lines = [
            f"{40 + 3 * n} {i + base} {j + base} S" for n, ls in enumerate(gold) for i, j in ls
        ]
        listed(folder, sources, targets, "\n".join(lines))
        found, report = read(folder / "en-de")
    assert found.index_base == base and not report.skipped
    assert found.sure == found.possible == tuple(gold)


# --- Real files ---


@needs_eval
def test_real_tatoeba_and_bucc():
    assert len(read_tatoeba(EVAL / "tatoeba", "de", ReadReport()).sources) == 1_000
    found = read_bucc(EVAL / "bucc2018", "zh", "validation", ReadReport())
    assert (len(found.sources), len(found.targets)) == (8_624, 13_589)
    assert found.gold is not None and len(found.gold) == 257


@pytest.mark.slow
@needs_eval
def test_real_alignments():
    found, report = read(EVAL / "wordalign" / "en-fr")
    assert (len(found.sources), found.index_base) == (447, 1)
    assert sum(map(len, found.sure)) == 4_038 and sum(map(len, found.possible)) == 17_438
    assert not report.skipped
    found, report = read(EVAL / "wordalign" / "en-hi")
    assert (len(found.sources), found.index_base) == (90, 1)
    assert sum(map(len, found.sure)) == 1_408
    assert report.skipped == {"link outside its sentence": 1}
    for name in alignment_sets(EVAL / "wordalign"):
        if name.endswith("_xlwa_dev"):
            found, report = read(EVAL / "wordalign" / name)
            assert found.index_base == 0 and not report.skipped
