"""Hostile tables: clean texts or our own error, and every row read or counted."""

import csv
import io
import json

import nasty
import pytest
from fuzzing import assert_as_expected, assert_clean, budgets, check, damaged, memory_below, outcome
from hypothesis import strategies as st
from test_hostile_text import NAMES

from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.text.table_files import discover_table_pairs, discover_tables
from xlme_jax.data.text.tables import TableText, column_names, read_table, table_units

pytest.importorskip("pyarrow")
TEXTS = {
    **{f"jsonl: {name}": ("jsonl", *case) for name, case in nasty.JSONLS.items()},
    **{f"csv: {name}": ("csv", *case) for name, case in nasty.CSVS.items()},
    **{f"tsv: {name}": ("tsv", b"text\tother\n" + data, None) for name, (data, _) in
       nasty.TSVS.items() if name not in ("only tabs", "too many columns", "column of NUL")},
}  # fmt: skip


def read(path):
    """Reads and checks all documents of a file; returns them and the error, if any."""
    report = ReadReport()
    table = TableText(path, "en", "text")
    documents, message = outcome(lambda: list(read_table(table, report, 500)), path)
    if documents is not None:
        assert documents and report.read == len(documents)
        for document in documents:
            assert_clean(document, allowed="\n")
            assert "\n\n" not in document and len(document) <= 500
    outcome(lambda: column_names(path), path)
    pairs, _ = outcome(lambda: list(table_units(path, ReadReport(), ("text", "id"))), path)
    for text in (text for pair in pairs or () if not isinstance(pair, str) for text in pair):
        assert_clean(text)
    return documents, message


@pytest.mark.parametrize("name", TEXTS)
def test_nasty_rows_of_text(tmp_path, name):
    suffix, data, error = TEXTS[name]
    path = tmp_path / f"en.{suffix}"
    path.write_bytes(data)
    with memory_below(60):
        _, message = read(path)
    assert_as_expected(message, error)


def test_nasty_columnar_files(tmp_path):
    for name, (suffix, data, error) in nasty.columnar().items():
        path = tmp_path / f"{name.replace(':', '')}.{suffix}"
        path.write_bytes(data)
        _, message = read(path)
        assert_as_expected(message, error)


@budgets("tables")
def test_any_damage_of_tables(tmp_path, cases):
    originals = {"parquet": [], "arrow": []}
    for suffix, data, _ in nasty.columnar().values():
        originals[suffix].append(data)
    originals["jsonl"] = [data for data, _ in nasty.JSONLS.values() if len(data) < 10_000]
    originals["csv"] = [data for data, _ in nasty.CSVS.values() if len(data) < 10_000]
    originals["tsv"] = [b"id\ttext\n1\tone\n2\ttwo\r\n", b"text\n\xff\n\na\tb\n"]

    def property_(case):
        suffix, data = case
        path = tmp_path / f"en.{suffix}"
        path.write_bytes(data)
        read(path)

    kinds = [st.tuples(st.just(kind), damaged(files)) for kind, files in originals.items()]
    check(cases, st.one_of(*kinds), property_)


@budgets("table rows")
def test_any_rows_are_read_or_counted_in_every_format(tmp_path, cases):
    import pyarrow as pa

    def property_(texts):
        rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
        table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})
        lines = io.StringIO()
        writer = csv.DictWriter(lines, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows)
        files = {
            "parquet": nasty.to_parquet(table),
            "arrow": nasty.to_arrow(table),
            "jsonl": "".join(f"{json.dumps(row)}\n" for row in rows).encode(),
            "csv": lines.getvalue().encode(),
        }
        found = []
        for suffix, data in files.items():
            path = tmp_path / f"en.{suffix}"
            path.write_bytes(data)
            report = ReadReport()
            read_all = lambda: list(read_table(TableText(path, "en", "text"), report, 10**6))  # noqa: B023, E731
            documents, message = outcome(read_all, path)
            assert report.read + sum(report.skipped.values()) == len(texts)
            assert bool(message) == (not report.read)
            found.append((documents, report.skipped))
        assert all(one == found[0] for one in found), found

    check(cases, st.lists(st.none() | st.text(), max_size=6), property_)


PLAIN_NAMES = NAMES.map(lambda name: name.replace("\n", "x"))
SUFFIXES = st.sampled_from([".parquet", ".jsonl", ".csv.gz", ".arrow", ".txt", ""])
STATES = st.sampled_from(
    [None, b"", b"[]", b'{"_data_files": 3}', b'{"_data_files": [{"filename": "../x"}]}']
    + [json.dumps({"_data_files": [{"filename": name}]}).encode() for name in ("a", "en.arrow")]
)


@budgets("table folders")
def test_any_names_of_tables(tmp_path, cases):
    made = iter(range(10**6))

    def property_(case):
        names, state = case
        folder = tmp_path / str(next(made))
        (folder / "en").mkdir(parents=True)
        for name, suffix in names:
            (folder / f"{name}{suffix}").touch()
            (folder / "en" / f"{name}{suffix}").touch()
        if state is not None:
            (folder / "en" / "state.json").write_bytes(state)
        found, _ = outcome(lambda: discover_tables(folder, None, "text"), folder.name)
        for texts in (found or {}).values():
            assert {text.path.parent for text in texts} <= {folder, folder / "en"}
        outcome(lambda: discover_table_pairs(folder, None, None, None), folder.name)

    check(
        cases, st.tuples(st.lists(st.tuples(PLAIN_NAMES, SUFFIXES), max_size=6), STATES), property_
    )
