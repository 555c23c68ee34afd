"""Text in tables is prepared as the same text in plain files is."""

import csv
import dataclasses
import gzip
import io
import json

import numpy as np
import pytest
import zstandard

from xlme_jax import api
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary
from xlme_jax.preparation import hub
from xlme_jax.preparation.prepare_config import PrepareConfig

pytest.importorskip("seqio")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = {
    "en": ['House 1, "red".\nSecond line.', "House 2\u2028 caf\u00e9.", "Three.", "Four houses."],
    "sw": ["Nyumba ya 1.", "Nyumba ya 2, \u8a9e.", "Tatu.\nTena.", "Nyumba nne."],
}
PAIRS = [(f"House {i}, \u00e9.", f"Nyumba {i}.") for i in range(9)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.model"
    texts = [text for texts in TEXTS.values() for text in texts] + [x for p in PAIRS for x in p]
    write_vocabulary(train_vocabulary(texts, 400, allow_smaller=True), path)
    return str(path)


def to_parquet(rows):
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=2)
    return file.getvalue()


def to_arrow(rows):
    file, table = io.BytesIO(), pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return file.getvalue()


def to_jsonl(rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def to_csv(rows):
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


FORMATS = {
    ".parquet": to_parquet,
    ".arrow": to_arrow,
    ".jsonl.gz": lambda rows: gzip.compress(to_jsonl(rows)),
    ".json.zst": lambda rows: zstandard.ZstdCompressor().compress(to_jsonl(rows)),
    ".csv": to_csv,
}
SUFFIXES = [(".parquet", ".csv"), pytest.param(tuple(FORMATS), marks=pytest.mark.slow)]


def content(config):
    """Returns {task without its source: [digests of shards, tokens, skipped]} once prepared."""
    api.prepare(config)
    dataset = PreparedDataset.load(config.output)
    dataset.verify()
    return {
        (task.split, *task.languages): (
            [shard.sha256 for shard in task.shards],
            np.concatenate([*dataset.records(task), []]).tolist(),
        )
        for task in dataset.tasks
    }


def config_of(tmp_path, model, name, **fields):
    output = str(tmp_path / f"out_{name.replace('.', '_')}")
    return PrepareConfig(output, vocabulary=model, workers=1, **fields)


@pytest.mark.parametrize("suffixes", SUFFIXES, ids=["some", "all"])
def test_documents_equal_those_of_plain_text(tmp_path, model, capsys, suffixes):
    (tmp_path / "plain").mkdir()
    for language, texts in TEXTS.items():
        (tmp_path / "plain" / f"{language}.txt").write_text("\n\n".join(texts) + "\n")
    shared = {"validation": "every:4"}
    plain = {"tasks": ("cc100",), "cc100_dir": str(tmp_path / "plain"), **shared}
    expected = content(config_of(tmp_path, model, "plain", **plain))
    assert expected.keys() == {(x, y) for x in ("train", "validation") for y in TEXTS}
    for suffix in suffixes:
        folder = tmp_path / f"table{suffix}"
        (folder / "en" / "train").mkdir(parents=True)
        for language, texts in TEXTS.items():
            rows = [{"id": i, "sentence": text} for i, text in enumerate(texts)]
            rows.insert(2, {"id": 9, "sentence": " \n"})  # Skipped, not held out.
            name = "en/train/data-00000-of-00001" if language == "en" else "sw-train"
            (folder / f"{name}{suffix}").write_bytes(FORMATS[suffix](rows))
        (folder / f"sw-test{suffix}").write_bytes(b"not read")
        options = {"table_dir": str(folder), "text_column": "sentence"}
        config = config_of(tmp_path, model, suffix, tasks=("table",), options=options, **shared)
        assert content(config) == expected, suffix
        capsys.readouterr()
        api.prepare(config)
        assert "4 parts, 4 finished before" in capsys.readouterr().err
        task = PreparedDataset.load(config.output).task("table_en", "train")
        assert task.skipped == {"empty text": 1}
        changed = dataclasses.replace(config, options={**options, "text_column": "body"})
        with pytest.raises(DataError, match=r"no column 'body'; its columns are id, sentence\."):
            api.prepare(changed)


@pytest.mark.parametrize("suffixes", SUFFIXES, ids=["some", "all"])
def test_pairs_equal_those_of_plain_text(tmp_path, model, suffixes):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "sw-en.tsv").write_text("".join(f"{b}\t{a}\n" for a, b in PAIRS))
    shared = {"validation": "every:4", "deduplicate": True}
    plain = {"tasks": ("bitext",), "bitext_dir": str(tmp_path / "plain"), **shared}
    expected = content(config_of(tmp_path, model, "plain", **plain))
    layouts = {
        "translation": ("train", [{"translation": {"sw": b, "en": a}} for a, b in PAIRS], {}),
        "codes": ("en-sw", [{"id": 1, "en": a, "sw": b} for a, b in PAIRS], {}),
        "named": ("sw-en", [{"b": b, "a": a} for a, b in PAIRS], {"pair_columns": ("b", "a")}),
    }
    for layout, (name, rows, options) in layouts.items():
        for suffix in suffixes:
            if layout == "translation" and suffix == ".csv":
                continue
            folder = tmp_path / f"{layout}{suffix}"
            folder.mkdir()
            (folder / f"{name}{suffix}").write_bytes(FORMATS[suffix](rows))
            options = {"table_pairs_dir": str(folder), **options}
            fields = {"tasks": ("table_pairs",), "options": options, **shared}
            config = config_of(tmp_path, model, layout + suffix, **fields)
            assert content(config) == expected, (layout, suffix)
    texts = {text.language: list(text.read()) for text in api.find_text(config)}
    kept = [pair for i, pair in enumerate(PAIRS) if i % 4 != 3]
    assert texts == {"en": [a for a, _ in kept], "sw": [b for _, b in kept]}


def test_rows_of_a_language_column_become_tasks(tmp_path, model):
    rows = [(code, text) for i in range(4) for code, text in ((x, TEXTS[x][i]) for x in TEXTS)]
    file = tmp_path / "validated.tsv"
    lines = [f"{code}\t{text.splitlines()[0]}" for code, text in rows]
    file.write_text("\n".join(["locale\tsentence", *lines, "??\tNo.", "en", "en\t"]) + "\n")
    options = {"table_dir": str(file), "text_column": "sentence", "language_column": "locale"}
    config = config_of(tmp_path, model, "all", tasks=("table",), options=options)
    api.prepare(config)
    dataset = PreparedDataset.load(config.output)
    for language in ("en", "sw"):
        task = dataset.task(f"table_{language}", "train")
        own = {"another language": 5 - (language == "en"), "no language": 1, "missing column": 1}
        own |= {"empty text": 1} if language == "en" else {}
        assert (task.examples, task.skipped) == (4, own)
    with pytest.raises(DataError, match=r"no text in fr; there is en, sw"):
        api.prepare(dataclasses.replace(config, languages=("en", "fr")))


BAD = [
    ({"table_split": "dev"}, "`table_split` is 'dev'; choose from train, validation"),
    ({"table_split": "test"}, "no table of split 'test', but of train; choose with --table_split"),
    ({"language_column": "text"}, r"no language code in column 'text', which has 'House 1"),
    ({"language_column": "text", "text_language": "en"}, "leave out one"),
    ({"hf_dataset": "owner/name"}, "both --hf_dataset=owner/name and --table_dir="),
    ({"text_column": "body"}, r"no column 'body'; its columns are text\. Name"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_wrong_settings_are_named(tmp_path, model, options, message):
    rows = [{"text": text} for text in TEXTS["en"]]
    (tmp_path / "en-train.parquet").write_bytes(to_parquet(rows))
    given = {"table_dir": str(tmp_path), **options}
    with pytest.raises(ValueError, match=message):
        api.prepare(config_of(tmp_path, model, "bad", tasks=("table",), options=given))


BAD_PAIRS = [
    ("en-sw.csv", {}, "no columns en and sw, and no column `translation`.*columns are id, b"),
    ("x.csv", {}, "no language pair in the name .*id, b; name the file as en-sw.parquet"),
    ("x.csv", {"pair_columns": ("id", "b")}, "no language pair in the name"),
    ("x.csv", {"pair_columns": ("b", "b")}, "`pair_columns` is 'b,b'; give two"),
    ("en-sw.csv", {"pair_columns": ("id", "c")}, "no column 'c'; its columns are id, b"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_PAIRS)
def test_pairs_without_columns_are_named(tmp_path, model, name, options, message):
    (tmp_path / name).write_bytes(to_csv([{"id": 1, "b": "x"}]))
    given = {"table_pairs_dir": str(tmp_path), **options}
    with pytest.raises(ValueError, match=message):
        api.prepare(config_of(tmp_path, model, "bad", tasks=("table_pairs",), options=given))


def test_scores_are_a_column(tmp_path, model):
    rows = [{"en": a, "sw": b, "score": 1 + i / 10} for i, (a, b) in enumerate(PAIRS)]
    rows[0]["score"] = None
    for suffix in (".parquet", ".csv"):
        (tmp_path / f"en-sw{suffix}").write_bytes(FORMATS[suffix](rows))
        options = {"table_pairs_dir": str(tmp_path / f"en-sw{suffix}")}
        fields = {"tasks": ("table_pairs",), "min_score": 1.5}
        bad = config_of(tmp_path, model, suffix, options=options, **fields)
        with pytest.raises(ValueError, match="no column has scores; name it with --score_column"):
            api.prepare(bad)
        api.prepare(dataclasses.replace(bad, options={**options, "score_column": "score"}))
        task = PreparedDataset.load(bad.output).task("table_pairs_en_sw", "train")
        assert (task.examples, task.skipped) == (4, {"no score": 1, "score below 1.5": 4})


def test_the_variable_registers_tables_that_need_no_flag(tmp_path, monkeypatch):
    import tasks

    (tmp_path / "en.csv").write_text("text\nOne.\n")
    (tmp_path / "x.csv").write_text("a,b\nOne.,Moja.\n")
    monkeypatch.setenv("TABLE_DIR", str(tmp_path / "en.csv"))
    monkeypatch.setenv("TABLE_PAIRS_DIR", str(tmp_path / "x.csv"))
    found = tasks.register_from_environment()
    assert "table" in found and "table_pairs" not in found


def test_a_data_set_of_the_hub_is_its_files(tmp_path, model, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "data" / "en").mkdir(parents=True)
    rows = [{"text": text} for text in TEXTS["en"]]
    (tmp_path / "data" / "en" / "train-00000-of-00001.parquet").write_bytes(to_parquet(rows))
    asked = []

    def downloaded(name, **more):
        asked.append((name, more))
        return str(tmp_path)

    def unreachable(*_, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloaded)
    options = {"hf_dataset": "owner/name/data@refs/convert/parquet"}
    config = config_of(tmp_path, model, "hub", tasks=("table",), options=options)
    (task,) = api.prepare(config)
    assert (task.name, task.examples) == ("table_en", 4)
    (name, how), *_ = asked
    assert (name, how["repo_type"], how["revision"]) == (
        *("owner/name", "dataset"),
        "refs/convert/parquet",
    )
    assert how["allow_patterns"] == ["data", "data/*"]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(DataError, match=r"owner/name/.*cannot be reached; .*hf download --repo"):
        api.prepare(config)
    assert hub.download(str(tmp_path)) == tmp_path
    with pytest.raises(DataError, match="neither a folder nor a name such as owner/name"):
        hub.download("https://huggingface.co/datasets/owner/name")
