"""Discovery of tables, and what is special to a format."""

import io
import json
import sys

import pytest

from xlme_jax.data.text.decompression import DataError
from xlme_jax.data.text.pair_kinds import read_bitext
from xlme_jax.data.text.reading import ReadReport, read_documents
from xlme_jax.data.text.table_files import discover_table_pairs, discover_tables, table_files
from xlme_jax.data.text.tables import TableText, column_names, read_table

FILES = [
    "en.parquet",
    "fr-00000-of-00002.jsonl.gz",
    "sw/train-00000-of-00001.parquet",
    "20231101.de/train/0000.parquet",
    "zh-Hans/part-0.csv",
    "c4.ru.json.zst",
    "ar-train.arrow",
    "es_part_00003.parquet",
    "en/validation/0000.parquet",
    "en-test.csv",
    "hi/dev.jsonl",
    "dataset_infos.json",
    "README.md",
]


def touch(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_languages_are_those_of_names(tmp_path):
    touch(tmp_path, FILES)
    found = discover_tables(tmp_path, None, "text")
    names = {code: [str(x.path.relative_to(tmp_path)) for x in xs] for code, xs in found.items()}
    codes = ("en", "fr", "sw", "de", "zh", "ru", "ar", "es")
    assert names == {code: [name] for code, name in sorted(zip(codes, FILES))}
    held_out = {
        path.relative_to(tmp_path).as_posix() for path in table_files(tmp_path, "validation")
    }
    assert {"en/validation/0000.parquet", "hi/dev.jsonl", "en.parquet"} <= held_out
    assert not held_out & {"en-test.csv", "ar-train.arrow", "dataset_infos.json"}
    assert len(table_files(tmp_path, "all")) == len(FILES) - 2
    assert set(discover_tables(tmp_path, ["swh_Latn", "zho_Hans"], "text")) == {"sw", "zh"}
    with pytest.raises(DataError, match="no text in is; there is ar, de"):
        discover_tables(tmp_path, ["isl"], "text")
    with pytest.raises(DataError, match="languages: 'xx' is not a language code"):
        discover_tables(tmp_path, ["xx"], "text")
    touch(tmp_path, ["corpus.csv"])
    with pytest.raises(DataError, match=r"corpus\.csv: no language in the name .*--text_language"):
        discover_tables(tmp_path, None, "text")
    assert set(discover_tables(tmp_path, None, "text", language="is")) == {"is"}


def test_what_a_publisher_removed_is_a_split_of_its_own(tmp_path, caplog):
    train = ["swh_Latn/train/000_00000.parquet", "sw/sw_clean_0000.jsonl.gz"]
    removed = ["swh_Latn_removed/train/000_00000.parquet", "sw/sw_noisy_0000.jsonl.gz"]
    touch(tmp_path, train + removed)
    (texts,) = discover_tables(tmp_path, None, "text").values()
    assert {text.path for text in texts} == {tmp_path / name for name in train}
    assert all(name in caplog.text for name in removed) and "--table_split" in caplog.text
    files = table_files(tmp_path, "removed")
    assert set(files) == {tmp_path / name for name in removed} and len(files) == 2
    assert len(table_files(tmp_path, "all")) == 4


def test_a_saved_data_set_is_the_files_of_its_state(tmp_path):
    saved = tmp_path / "en" / "train"
    touch(saved, ["data-00000-of-00001.arrow", "cache-1f.arrow", "dataset_info.json"])
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (saved / "state.json").write_text(json.dumps(state))
    ((text,),) = discover_tables(tmp_path, None, "text").values()
    assert (text.language, text.path.name) == ("en", "data-00000-of-00001.arrow")
    (saved / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{}]}))
    with pytest.raises(DataError, match=r"state\.json: names an index .*save_to_disk"):
        table_files(tmp_path)
    state["_data_files"].append({"filename": "data-1.arrow"})
    (saved / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"data-1\.arrow: missing, but named by state\.json"):
        table_files(tmp_path)


def test_pairs_are_those_of_names_or_columns(tmp_path):
    touch(tmp_path, ["sw-en/train-00000-of-00001.csv", "news.en-fr-train.jsonl", "en-de-test.csv"])
    rows = [{"translation": {"sw": "a", "en": "b", "is": f"c{i}"}} for i in range(2)]
    (tmp_path / "many.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = discover_table_pairs(tmp_path, None, None, None)
    assert sorted(source.pair for source in found) == ["en-fr", "en-is", "en-sw", "en-sw", "is-sw"]
    (source,) = discover_table_pairs(tmp_path, None, ["sw-is"], None)
    assert list(read_bitext(source)) == [("c0", "a"), ("c1", "a")]
    with pytest.raises(DataError, match=r"no file for the pairs en-it"):
        discover_table_pairs(tmp_path, None, ["en-sw", "ita-en"], None)
    with pytest.raises(
        DataError, match=r"no matching pair; there is en-fr, en-is, en-sw, is-sw, which"
    ):
        discover_table_pairs(tmp_path, ["de", "en"], None, None)


def test_quotes_are_of_csv_alone(tmp_path):
    for suffix, expected in ((".csv", 'a "b"\nc'), (".tsv", '"a ""b""')):
        path = tmp_path / f"en{suffix}"
        path.write_text('text\n"a ""b""\nc"\n')
        report = ReadReport()
        assert next(read_table(TableText(path, "en", "text"), report, 100)) == expected


def test_arrow_files_need_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("en.parquet", "en.arrow"):
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=rf"{name}: .* pip install 'xlme_jax\[hfdata\]'"):
            column_names(tmp_path / name)


def test_long_documents_are_cut_as_in_plain_files(tmp_path):
    text = "one two three four five"
    (tmp_path / "en.txt").write_text(text)
    (tmp_path / "en.jsonl").write_text(json.dumps({"text": text}))
    report, plain = ReadReport(), ReadReport()
    found = list(read_table(TableText(tmp_path / "en.jsonl", "en", "text"), report, 10))
    assert found == list(read_documents(tmp_path / "en.txt", plain, 10))
    assert report == plain and report.read == 3


def test_null_structs_are_empty_sides(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"en": "a", "fr": "b"}, None, {"en": "c", "fr": None}]
    file = io.BytesIO()
    parquet.write_table(pa.table({"translation": rows}), file)
    (tmp_path / "train.parquet").write_bytes(file.getvalue())
    (source,) = discover_table_pairs(tmp_path, None, None, None)
    report = ReadReport()
    assert list(read_bitext(source, report)) == [("a", "b")]
    assert report.skipped == {"empty side": 2}
