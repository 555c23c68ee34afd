"""Filters of `prepare` together: what is left, what is counted, and that nothing else decides."""

import dataclasses
import gzip
import itertools
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from raw_text import write_raw

import xlme_jax.prepare as prepare_command
from xlme_jax.api import load_tasks, prepare
from xlme_jax.configuration import command_line, source_flags
from xlme_jax.data.cldr import CldrConfig
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.preparation import prepare_config, preparing, tokenizing, vocabulary_text
from xlme_jax.preparation.jobs import list_jobs
from xlme_jax.preparation.prepare_config import CldrCorpus, PrepareConfig
from xlme_jax.storage.paths import as_path

pytest.importorskip("seqio")
load_tasks()

from helpers.through_seqio import prepare_through_seqio  # noqa: E402

GOOD = [(f"The house {i} is red.", f"Nyumba {i} ni nyekundu.") for i in range(12)]
LONG = ("Red.", "Nyumba ni nyekundu na kubwa na nzuri na mpya na safi.")


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Returns two folders of pairs, mined (with scores) and aligned, and a vocabulary."""
    folder = tmp_path_factory.mktemp("raw")
    files = {
        # Scores, and the same pairs in two files of the folder.
        "mined/a.en-sw.tsv": "".join(f"{e}\t{f}\t1.{i:02}\n" for i, (e, f) in enumerate(GOOD)),
        "mined/b.en-sw.tsv": "".join(f"{e.upper()} \t{f}\t1.5\n" for e, f in [*GOOD[8:], LONG]),
        "mined/en-zu.tsv": "One house.\tIndlu eyodwa.\t1.9\n",
        # en-sw is in the first folder, en-fr is not.
        "aligned/en-sw.tsv": "Another house.\tNyumba nyingine.\t1.4\n",
        "aligned/en-fr.tsv": "".join(f"House {i}.\tMaison {i}.\t1.2\n" for i in range(6)),
    }
    texts = [text for content in files.values() for text in content.replace("\t", "\n").split("\n")]
    return write_raw(folder, files, texts, 300)


@pytest.fixture
def config(raw, tmp_path):
    return PrepareConfig(
        output=str(tmp_path / "out"),
        tasks=("bitext",),
        vocabulary=str(raw / "v.model"),
        bitext_dir=f"{raw / 'mined'},{raw / 'aligned'}",
        bitext_merge="first",
        tsv_columns=(0, 1, 2),
        min_score=1.03,
        deduplicate=True,
        max_length_ratio=3,
        min_pairs=5,
        workers=1,
    )


def pairs(config, task="bitext_en_sw"):
    """Returns the pairs of a task as text."""
    dataset, vocabulary = PreparedDataset.load(config.output), Vocabulary.load(config.vocabulary)
    found = []
    for ids in dataset.records(dataset.task(task)):
        end = ids.tolist().index(2)
        found.append((vocabulary.decode(ids[1:end]), vocabulary.decode(ids[end + 1 : -1])))
    return found


def content(output):
    """Returns the shards, and the rows and dropped tasks of `dataset.json`."""
    names = {
        str(file.relative_to(output)): file.read_bytes()
        for pattern in ("*.arrayrecord", "*.npy")
        for file in Path(output).glob(pattern)
    }
    written = json.loads((Path(output) / "dataset.json").read_text())
    return names, written["tasks"], written["dropped"]


def test_what_is_left_and_every_reason(config, raw, capfd):
    table = prepare(config)
    assert [(row.name, row.examples) for row in table] == [("bitext_en_fr", 6), ("bitext_en_sw", 9)]
    assert pairs(config) == GOOD[3:]
    written = json.loads((Path(config.output) / "dataset.json").read_text())
    assert {row["name"]: row["skipped"] for row in written["tasks"]} == {
        "bitext_en_fr": {},
        "bitext_en_sw": {
            "score below 1.03": 3,
            "duplicate pair": 4,
            "one text over 3 times as long": 1,
        },
    }
    aligned = raw / "aligned" / "en-sw.tsv"
    assert written["dropped"] == [
        {
            "task": "bitext_en_zu",
            "split": "train",
            "pairs": 1,
            "reason": "zu has 1 pairs, fewer than min_pairs 5",
        },
        {
            "file": str(aligned),
            "bytes": aligned.stat().st_size,
            "reason": "en-sw is in an earlier folder",
        },
    ]
    printed = capfd.readouterr().err
    for line in (
        "skipped pairs of bitext_en_sw (train): 4 duplicate pair, 3 score below 1.03, "
        "1 one text over 3",
        "dropped bitext_en_zu (train, 1 pairs): zu has 1 pairs, fewer than min_pairs 5",
        "not read: 1 files of 1 pairs (0.000 GB), which are in an earlier folder",
    ):
        assert line in printed


def test_each_filter_alone_is_off_by_default(config):
    plain = dataclasses.replace(
        config,
        **{"bitext_merge": "all", "min_score": None, "deduplicate": False, "min_pairs": 0},
        max_length_ratio=None,
    )
    table = prepare(plain)
    assert {row.name: row.examples for row in table} == {
        "bitext_en_fr": 6,
        "bitext_en_sw": 12 + 5 + 1,
        "bitext_en_zu": 1,
    }
    assert not any(row.skipped for row in table)
    assert "dropped" not in json.loads((Path(plain.output) / "dataset.json").read_text())
    recorded = prepare_config.settings(plain)
    assert not {"bitext_merge", "deduplicate", "min_score", "min_pairs"} & recorded.keys()
    distinct = prepare(dataclasses.replace(plain, output=f"{plain.output}-2", deduplicate=True))
    assert {row.name: row.examples for row in distinct}["bitext_en_sw"] == 12 + 1 + 1


@pytest.mark.slow
@pytest.mark.parametrize("validation", ["", "every:4"])
def test_beam_and_seqio_write_the_same_bytes(config, tmp_path, monkeypatch, validation):
    pytest.importorskip("apache_beam")
    # Parts of a few pairs, so that a file and its duplicates are in different ones.
    monkeypatch.setattr(tokenizing, "PART_TEXTS", {"monolingual": 3, "bitext": 4})
    config = dataclasses.replace(config, validation=validation, shuffle_pairs=bool(validation))
    prepare(config)
    expected = content(config.output)
    beam = dataclasses.replace(config, output=str(tmp_path / "beam"), runner="DirectRunner")
    prepare(beam)
    assert content(beam.output) == expected
    prepare_through_seqio(monkeypatch)
    seqio = dataclasses.replace(config, output=str(tmp_path / "seqio"))
    prepare(seqio)
    assert content(seqio.output) == expected


@pytest.mark.slow
def test_two_workers_write_the_same_bytes(config, tmp_path):
    prepare(config)
    other = dataclasses.replace(config, output=str(tmp_path / "two"), workers=2)
    prepare(other)
    assert content(other.output) == content(config.output)


@pytest.mark.slow
def test_folders_and_scores_in_a_bucket(config, raw, server):
    prepare(dataclasses.replace(config, min_pairs=0))
    for file in raw.glob("*/*.tsv"):
        server.write(f"filters/{file.parent.name}/{file.name}", file.read_bytes())
    bucket = "gs://bucket/filters"
    for end, scores in (("en", "A.\nB.\n"), ("es", "A.\nB.\n"), ("scores", "1.5\n1.0\n")):
        server.write(f"filters/more/m.en-es.{end}", scores.encode())
    there = dataclasses.replace(
        config,
        output=f"{bucket}/out",
        bitext_dir=f"{bucket}/mined,{bucket}/aligned,{bucket}/more",
        min_pairs=0,
    )
    table = {row.name: row for row in prepare(there)}
    assert pairs(there) == pairs(config) == GOOD[3:]
    assert (table["bitext_en_es"].examples, table["bitext_en_es"].skipped) == (
        1,
        {"score below 1.03": 1},
    )
    (entry,) = json.loads(as_path(f"{there.output}/dataset.json").read_bytes())["dropped"]
    assert entry["file"] == f"{bucket}/aligned/en-sw.tsv"


def test_held_out_pairs_are_distinct_and_not_trained_on(config):
    config = dataclasses.replace(config, validation="every:4", min_pairs=0, min_score=None)
    prepare(config)
    dataset = PreparedDataset.load(config.output)
    counts = {(row.name, row.split): row.examples for row in dataset.tasks}
    # Units 3, 7, 11 of the first file and 3 of the second, which is the same as 11.
    assert counts["bitext_en_sw", "validation"] == 3
    assert counts["bitext_en_sw", "train"] == 9
    (row,) = [r for r in dataset.tasks if (r.name, r.split) == ("bitext_en_sw", "train")]
    assert row.skipped == {"duplicate pair": 3, "one text over 3 times as long": 1}


def test_a_pair_without_a_good_pair_is_dropped_and_counted(config):
    prepare(dataclasses.replace(config, min_score=1.9, min_pairs=0))
    written = json.loads((Path(config.output) / "dataset.json").read_text())
    assert [row["name"] for row in written["tasks"]] == ["bitext_en_zu"]
    assert written["dropped"][:2] == [
        {
            "task": "bitext_en_fr",
            "split": "train",
            "pairs": 0,
            "skipped": {"score below 1.9": 6},
            "reason": "no pair passes the filters",
        },
        {
            "task": "bitext_en_sw",
            "split": "train",
            "pairs": 0,
            "skipped": {"score below 1.9": 17},
            "reason": "no pair passes the filters",
        },
    ]


def test_another_limit_prepares_nothing_again(config, monkeypatch):
    prepare(config)
    monkeypatch.setattr(preparing, "_run", lambda *arguments: dict.fromkeys(arguments[3]))
    wider = dataclasses.replace(config, min_pairs=1)
    assert not prepare_config.is_prepared(wider)
    assert [row.name for row in prepare(wider)] == ["bitext_en_fr", "bitext_en_sw", "bitext_en_zu"]
    assert prepare_config.is_prepared(wider)


@pytest.mark.parametrize(
    "changed", [{"min_score": 1.05}, {"deduplicate": False}, {"max_length_ratio": 2}]
)
def test_another_filter_prepares_the_pairs_again(config, changed, tmp_path):
    jobs = [
        {(job.name, job.split): job.fingerprint for job in list_jobs(c, "0" * 64, load_tasks)}
        for c in (config, config, dataclasses.replace(config, **changed))
    ]
    assert jobs[0] == jobs[1]
    assert all(jobs[0][key] != jobs[2][key] for key in jobs[0])


def test_the_ratio_counts_tokens(config, monkeypatch):
    vocabulary = Vocabulary.load(config.vocabulary)
    lengths = [
        [len(vocabulary.encode(text)) for text in pair] for pair in (*GOOD[3:], LONG, *GOOD[:3])
    ]
    ratios = [max(pair) / min(pair) for pair in lengths]
    for ratio in sorted(ratios)[::3]:
        output = f"{config.output}-{ratio}"
        changed = {"max_length_ratio": ratio, "min_score": None, "min_pairs": 0}
        table = prepare(dataclasses.replace(config, output=output, **changed))
        (row,) = [row for row in table if row.name == "bitext_en_sw"]
        assert row.examples == np.sum(np.array(ratios) <= ratio)


def test_vocabularies_read_the_chosen_files_and_scores(config, raw):
    texts = vocabulary_text.find_text(config, load_tasks)
    found = sorted(itertools.chain.from_iterable(text.read() for text in texts))
    assert "Another house." not in found
    assert found.count(GOOD[0][0]) == 0  # Its score is below 1.03.
    assert found.count(GOOD[3][0]) == 1
    assert "Maison 0." in found


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"bitext_merge": "some"}, "`bitext_merge` is 'some'; give 'all' or 'first'"),
        ({"max_length_ratio": 0.5}, "`max_length_ratio` is 0.5; give a number of at least 1"),
        ({"max_length_ratio": float("nan")}, "`max_length_ratio` is nan"),
        ({"min_pairs": -1}, "`min_pairs` is -1; give 0"),
        ({"min_pairs": 1000}, "`min_pairs` is 1,000, and no language has as many pairs"),
        ({"min_score": float("inf")}, "`min_score` is inf; give a finite number"),
        ({"min_score": 2, "min_pairs": 0}, "no text is left .*score below 2"),
        ({"tsv_columns": (0, 1)}, "no pair file has scores"),
        ({"tsv_columns": (0, 1, 1)}, "`tsv_columns` is .* three with that of the scores"),
        ({"tasks": ("cldr",)}, "`deduplicate` applies only to pair files"),
        ({"bitext_dir": "mined"}, "`bitext_merge` is 'first' but bitext_dir is a single folder"),
        (
            {"tasks": ("cldr",), "deduplicate": False},
            "`bitext_merge` applies only to pair files of the tasks bitext, text; `tasks` is cldr",
        ),
        (
            {"tasks": ("text",), "options": (("dir", "mined,aligned"),)},
            "`tsv_columns` applies only to pair files of the tasks bitext; `tasks` is text",
        ),
        ({"bitext_dir": "mined,nowhere"}, "nowhere .* is not a folder"),
    ],
)
def test_values_are_checked(config, raw, changed, message, monkeypatch):
    monkeypatch.chdir(raw)
    corpus = CldrCorpus(CldrConfig(("en", "ru")))
    with pytest.raises(ValueError, match=message):
        prepare(dataclasses.replace(config, cldr=corpus, **changed))


def test_folders_of_distributions_have_an_order_too(raw, tmp_path):
    """CCAligned has the pairs that CCMatrix lacks (XY-LENT, Sec. 5, footnote 3)."""
    aligned = "ccaligned/sentence-aligned"
    files = {
        "ccmatrix/en-sw.bitextf.tsv.gz": "".join(
            f"1.{i:02}\t{e}\t{f}\n" for i, (e, f) in enumerate(GOOD)
        ),
        f"{aligned}/en_XX-sw_KE.tsv.xz": "Another house.\tNyumba nyingine.\t1.4\n",
        f"{aligned}/en_XX-fr_XX.tsv.xz": "House 1.\tMaison 1.\t1.2\nHouse 2.\tMaison 2.\t1.01\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = gzip.open if name.endswith("gz") else lzma.open
        with opened(path, "wt", encoding="utf-8") as file:
            file.write(content)
    config = PrepareConfig(
        output=str(tmp_path / "out"),
        tasks=("text",),
        vocabulary=str(raw / "v.model"),
        options=(("dir", f"{tmp_path / 'ccmatrix'},{tmp_path / 'ccaligned'}"),),
        bitext_merge="first",
        min_score=1.03,
        workers=1,
    )
    prepare(config)
    assert pairs(config, "text_pairs_en_sw") == GOOD[3:]
    assert pairs(config, "text_pairs_en_fr") == [("House 1.", "Maison 1.")]
    [left_out] = json.loads((tmp_path / "out" / "dataset.json").read_text())["dropped"]
    assert left_out["file"].endswith("en_XX-sw_KE.tsv.xz")
    assert left_out["reason"] == "en-sw is in an earlier folder"
    with pytest.raises(ValueError, match="`bitext_merge` is 'first' but dir is a single folder"):
        prepare(dataclasses.replace(config, options=(("dir", str(tmp_path / "ccmatrix")),)))


def test_spellings_of_a_language_in_two_folders_are_one(config, raw, tmp_path):
    for folder, name in (("one", "en-pt_BR.tsv"), ("two", "eng_Latn-por_Latn.tsv")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(f"House {folder}.\tCasa {folder}.\t1.4\n")
    folders = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    counts = r"no language has as many pairs \(en 2, pt 2\)"
    with pytest.raises(ValueError, match=counts):
        prepare(dataclasses.replace(config, bitext_dir=folders, bitext_merge="all"))


def test_the_flags_set_the_fields():
    assert prepare_command.__name__ == "xlme_jax.prepare"  # It defines flags.
    if "gin_file" not in flags.FLAGS:
        command_line.define_flags()
    given = [
        *("--tasks=bitext", "--bitext_dir=a,b", "--bitext_merge=first", "--min_score=1.06"),
        *("--tsv_columns=1,2,0", "--deduplicate", "--max_length_ratio=3", "--min_pairs=50000"),
    ]
    with flagsaver.flagsaver():
        flags.FLAGS(["prepare", *given, "--output=x"])
        config = source_flags.configuration()
    assert (config.bitext_dir, config.bitext_merge) == ("a,b", "first")
    assert (config.min_score, config.tsv_columns) == (1.06, (1, 2, 0))
    assert (config.deduplicate, config.max_length_ratio, config.min_pairs) == (True, 3.0, 50_000)
