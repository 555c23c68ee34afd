"""Hostile tables: clean texts or our own error, and every row read or counted."""

import csv
import io
import json
import re

import nasty
import pytest
from fuzzing import assert_as_expected, assert_clean, budgets, check, damaged, memory_below, outcome
from helpers import tiny
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

    def read_all(suffix, data, count):
        path = tmp_path / f"en.{suffix}"
        path.write_bytes(data)
        report = ReadReport()
        read = lambda: list(read_table(TableText(path, "en", "text"), report, 10**6))  # noqa: E731
        documents, message = outcome(read, path)
        assert report.read + sum(report.skipped.values()) == count
        assert bool(message) == (not report.read)
        return documents, report.skipped

    def as_json_lines(rows):
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()

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
            "jsonl": as_json_lines(rows),
        }
        contents = [read_all(suffix, data, len(texts)) for suffix, data in files.items()]
        assert all(content == contents[0] for content in contents), contents
        # CSV may end its lines with a carriage return; inside of a line it is a space.
        in_lines = [row | {"text": _without_returns(row["text"])} for row in rows]
        expected = read_all("jsonl", as_json_lines(in_lines), len(texts))
        assert read_all("csv", lines.getvalue().encode(), len(texts)) == expected

    check(cases, st.lists(st.none() | st.text(), max_size=6), property_)


def _without_returns(text):
    return text and re.sub(r"\r+\n", "\n", text).replace("\r", " ")


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


ROWS = 1_000_000


def bombs():
    """Returns {name: (writer of a small file, its suffix)} of tables that expand to gigabytes."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    value = "x" * 1_000_000
    zeros = pa.nulls(160_000_000, pa.int64()).fill_null(0)
    shared = pa.DictionaryArray.from_arrays(pa.nulls(ROWS, pa.int32()).fill_null(0), [value])

    def arrow(array, opening, compression="zstd"):
        def write(path):
            table = pa.table({"text": array})
            options = ipc.IpcWriteOptions(compression=compression)
            with opening(str(path), table.schema, options=options) as writer:
                writer.write_table(table)

        return write, "arrow"

    def in_parquet(array):
        return lambda path: parquet.write_table(pa.table({"text": array}), path), "parquet"

    return {
        "compressed batch of a file": arrow(zeros, ipc.new_file),
        "compressed batch of a stream": arrow(zeros, ipc.new_stream),
        "dictionary in Arrow": arrow(shared, ipc.new_file, None),
        "dictionary in Parquet": in_parquet(shared),
    }


MEASURED = """
import resource, sys
from pathlib import Path
from xlme_jax.data.text import columnar
from xlme_jax.data.text.decompression import DataError
import pyarrow, pyarrow.compute, pyarrow.ipc, pyarrow.parquet
path = Path(sys.argv[1])
read = columnar.arrow_rows if path.suffix == ".arrow" else columnar.parquet_rows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for row in read(path, ["text"]):
        pass
except DataError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
BOMBS = ("compressed batch of a stream", "compressed batch of a file", "dictionary in Arrow")
BOMBS += ("dictionary in Parquet",)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_table_that_expands_is_refused_in_bounded_memory(tmp_path, name):
    write, suffix = bombs()[name]
    path = tmp_path / f"bomb.{suffix}"
    write(path)
    assert path.stat().st_size < 10_000_000
    with tiny.start(["-c", MEASURED, path]) as process:
        *said, megabytes = process.communicate(timeout=60)[0].splitlines()
    assert "decompression bomb" in said[0], said
    assert int(megabytes) < 1500
