"""Conditions on columns choose the same rows in all formats; files are chosen by their names."""

import dataclasses
import json

import pytest
from raw_text import write_raw

from xlme_jax.api import prepare
from xlme_jax.data.text import columnar, row_conditions
from xlme_jax.data.text.bitext_files import canonical_source
from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.text.tables import TableText, read_table, table_units
from xlme_jax.preparation import file_sources
from xlme_jax.preparation.prepare_config import PrepareConfig

SOURCES = ("news", "web")
ROWS = [
    {
        "text": f"Nyumba {i}.",
        "en": f"House {i}.",
        "score": i / 10,
        "source": SOURCES[i % 2],
        "n": i,
    }
    for i in range(10)
]


def write(folder, suffix, rows=ROWS):
    """Writes rows in a format; returns the file."""
    file = folder / f"sw{suffix}"
    if suffix == ".jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif suffix == ".tsv":
        lines = [rows[0], *(row.values() for row in rows)]
        file.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    else:
        pa = pytest.importorskip("pyarrow")
        table = pa.Table.from_pylist(rows)
        if suffix == ".arrow":
            with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table)
        else:
            pytest.importorskip("pyarrow.parquet").write_table(table, file, row_group_size=2)
    return file


CONDITIONS = {
    "score>=.7": {7, 8, 9},
    "score < 0.2, n != 0": {1},
    "source==web,n>4": {5, 7, 9},
    "source in (web, 'books'),n in (1,2,3)": {1, 3},
    'source=="x"': set(),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".tsv", ".arrow", ".parquet"])
def test_rows_are_chosen_and_the_others_counted(tmp_path, suffix):
    file = write(tmp_path, suffix)
    for where, numbers in CONDITIONS.items():
        report = ReadReport()
        texts = list(read_table(TableText(file, "sw", "text", where=where), report, 1000))
        assert texts == [f"Nyumba {i}." for i in sorted(numbers)], where
        assert report.skipped == {f"not {where}": 10 - len(numbers)}
        units = list(table_units(file, ReadReport(), ("en", "text"), where=where))
        pairs = [unit for unit in units if not isinstance(unit, str)]
        assert pairs == [(f"House {i}.", f"Nyumba {i}.") for i in sorted(numbers)]
        # Held-out units are chosen by number, so a row has one number in all formats.
        assert [i for i, unit in enumerate(units) if unit in pairs] == sorted(numbers)
        assert len(units) == 10
    with pytest.raises(DataError, match=r"no column 'language_score'; its columns are text, en, "):
        list(read_table(TableText(file, "sw", "text", where="language_score>1"), None, 99))


@pytest.mark.parametrize("spec", ["every:3", "count:4"])
def test_formats_hold_out_the_same_pairs(tmp_path, spec):
    pairs = {}
    for suffix in (".jsonl", ".parquet"):
        source = canonical_source("table", ("en", "sw"), write(tmp_path, suffix))
        source = dataclasses.replace(source, fields=("en", "text"), where="n!=4,n!=6,score<.9")
        held = HeldOutText(spec, corpora=Corpora(sources=(source,)))
        pairs[suffix] = [
            list(file_sources.split_pairs(held, source, split, ReadReport()))
            for split in ("train", "validation")
        ]
    assert pairs[".jsonl"] == pairs[".parquet"]
    assert sum(map(len, pairs[".jsonl"])) == 7 and all(pairs[".jsonl"])


def test_groups_of_rows_that_cannot_satisfy_conditions_are_not_read(tmp_path, monkeypatch):
    file, read = write(tmp_path, ".parquet"), []
    batches = columnar._parquet_batches

    def recorded(path, table, size, columns, groups):
        read.extend(groups)
        return batches(path, table, size, columns, groups)

    monkeypatch.setattr(columnar, "_parquet_batches", recorded)
    rows = list(columnar.parquet_rows(file, ["text"], "score>=.7,n<9"))
    reason = "not score>=.7,n<9"
    assert (rows, read) == ([*[reason] * 7, (b"Nyumba 7.",), (b"Nyumba 8.",), reason], [3, 4])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("score>=high", r"column 'score' has .*--where='score>=high' compares it with text; give"),
        ("tags==a", "column 'tags' has lists or objects"),
    ],
)
def test_what_does_not_fit_a_column_is_an_error(tmp_path, suffix, where, message):
    file = write(tmp_path, suffix, [{"text": "a", "score": 0.5, "tags": ["a"], "n": "x"}])
    with pytest.raises(DataError, match=message):
        list(read_table(TableText(file, "sw", "text", where=where), None, 99))


def test_text_is_not_compared_by_size_with_numbers(tmp_path):
    file = write(tmp_path, ".parquet", [{"text": "a", "n": "10"}])
    with pytest.raises(DataError, match=r"'n' has string, and --where='n>9' compares it with a nu"):
        list(read_table(TableText(file, "sw", "text", where="n>9"), None, 99))
    table = TableText(file, "sw", "text", where="n==10.0")
    assert list(read_table(table, None, 99)) == ["a"]
    (condition,) = row_conditions.parse("date>=2024-01-01")
    assert [condition.holds(date, "f") for date in ("2023-12-31", "2024-02-01", None)] == [0, 1, 0]


@pytest.mark.parametrize("where", ["score", "score=.9", "score>=.9 n<3", "source in web", ">1"])
def test_malformed_conditions_are_errors(where):
    with pytest.raises(ValueError, match=r"`where` is .* is no condition; give COLUMN>=VALUE"):
        row_conditions.parse(where)


@pytest.fixture
def config(tmp_path):
    files = {
        f"hplt/{language}/{bucket}_{number}.jsonl": json.dumps(
            {"text": f"Nyumba {language} {bucket} {number}.", "score": number / 2}
        )
        for language, bucket, number in [
            ("swh_Latn", 10, 1), ("swh_Latn", 10, 2), ("swh_Latn", 9, 1), ("zul_Latn", 8, 1),
        ]
    }  # fmt: skip
    for language in ("swh_Latn", "zul_Latn"):
        (tmp_path / "hplt" / language).mkdir(parents=True)
    write_raw(tmp_path, files, list(files.values()), 80)
    return PrepareConfig(
        str(tmp_path / "out"),
        ("table",),
        vocabulary=str(tmp_path / "v.model"),
        workers=1,
        options={"table_dir": str(tmp_path / "hplt"), "shards": ("10_*",)},
    )


def test_files_are_chosen_by_name_and_rows_by_conditions(config, capsys):
    (row,) = prepare(config)
    assert (row.name, row.examples) == ("table_sw", 2)
    assert "not read, as no file of zu matches --shards" in capsys.readouterr().err
    chosen = {**dict(config.options), "where": "score>=1"}
    (scored,) = prepare(dataclasses.replace(config, options=chosen))
    assert (scored.examples, scored.skipped) == (1, {"not score>=1": 1})
    # A language of which no row satisfies them is dropped, not an error.
    chosen = {**chosen, "shards": ("9_*", "8_*", "10_2*")}
    (scored,) = prepare(dataclasses.replace(config, options=chosen))
    assert scored.name == "table_sw"
    with pytest.raises(DataError, match="no file of zu matches --shards; fix the pattern"):
        prepare(dataclasses.replace(config, languages=("swa", "zu")))
    with pytest.raises(DataError, match=r"no file matches --shards=11_\*; there are 10_1.jsonl"):
        prepare(dataclasses.replace(config, options={**chosen, "shards": ("11_*",)}))
    with pytest.raises(ValueError, match="`where` has conditions on columns of tables"):
        prepare(dataclasses.replace(config, tasks=("cc100",), options={"where": "n>1"}))
