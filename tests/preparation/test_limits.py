"""Limits take the same text with any number of workers, and say what they leave unread."""

import dataclasses
import json
from pathlib import Path

import pytest
from raw_text import config_of, write_raw

from xlme_jax.api import prepare
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.preparation import tokenizing

FILES, DOCUMENTS, PAIRS = 6, 5, 4


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Returns folders of six files of documents and three of pairs, and a vocabulary."""
    files = {
        f"mono/sw-{file}.txt": "\n\n".join(f"Nyumba {file} {i}." for i in range(DOCUMENTS))
        for file in range(FILES)
    }
    files |= {
        f"pairs/{file}.en-sw.tsv": "".join(
            f"House {file} {i}.\tNyumba {file} {i}.\n" for i in range(PAIRS)
        )
        for file in "abc"
    }
    files["mono/en.txt"] = "A house.\n\nAnother house.\n"
    texts = [line for content in files.values() for line in content.replace("\t", "\n").split("\n")]
    return write_raw(tmp_path_factory.mktemp("raw"), files, texts, 200)


@pytest.fixture
def config(raw, tmp_path):
    return config_of(raw, tmp_path / "out", options={"max_documents": 12, "max_pairs": 5})


def written(config):
    """Returns `dataset.json` without what depends on the command."""
    content = json.loads((Path(config.output) / "dataset.json").read_bytes())
    return content["tasks"], content.get("dropped", [])


def texts(config, task):
    """Returns the texts of a task: documents, or pairs in one string."""
    dataset, vocabulary = PreparedDataset.load(config.output), Vocabulary.load(config.vocabulary)
    ids = [i for record in dataset.records(dataset.task(task)) for i in record.tolist()]
    return vocabulary.decode(ids)


def test_files_behind_a_limit_are_not_read(config, raw, tmp_path, capsys):
    table = {row.name: row for row in prepare(config)}
    counts = {name: row.examples for name, row in table.items()}
    assert counts == {"cc100_en": 2, "cc100_sw": 12, "bitext_en_sw": 5}
    _, dropped = written(config)
    # Five documents, five, and two of the third file; four pairs, and one of the second file.
    unread = [Path(entry["file"]) for entry in dropped]
    reasons = [entry["reason"].rpartition(", ")[2] for entry in dropped]
    within, behind = (f"as a limit was reached {where} it" for where in ("in", "before"))
    assert reasons == [within, behind, behind, behind, within, behind]
    assert [entry["bytes"] for entry in dropped] == [file.stat().st_size for file in unread]
    assert "not read, as a limit was reached before it: 4 files" in capsys.readouterr().err
    # They may be anything: the same bytes come out.
    for folder in ("mono", "pairs"):
        (tmp_path / folder).mkdir()
        for file in (raw / folder).iterdir():
            is_read = file not in unread or reasons[unread.index(file)] == within
            content = file.read_bytes() if is_read else b"\xff" * 99
            (tmp_path / folder / file.name).write_bytes(content)
    elsewhere = dataclasses.replace(
        config,
        output=str(tmp_path / "elsewhere"),
        cc100_dir=str(tmp_path / "mono"),
        bitext_dir=str(tmp_path / "pairs"),
    )
    for before, after in zip(table.values(), prepare(elsewhere), strict=True):
        assert [x.sha256 for x in after.shards] == [x.sha256 for x in before.shards]
    # Another seed takes other files, and a second run nothing again.
    seeded = dataclasses.replace(config, options={**dict(config.options), "limit_seed": 1})
    capsys.readouterr()
    prepare(config)
    assert "3 parts, 3 finished before" in capsys.readouterr().err
    before = texts(config, "cc100_sw")
    prepare(seeded)
    assert texts(config, "cc100_sw") != before


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"workers": 2}, {"runner": "DirectRunner"}])
def test_workers_make_no_difference(config, tmp_path, monkeypatch, how):
    if "runner" in how:
        pytest.importorskip("apache_beam")
        monkeypatch.setattr(tokenizing, "PART_TEXTS", {"monolingual": 3, "bitext": 2})
    config = dataclasses.replace(config, options={"max_tokens": 40}, validation="every:4")
    prepare(config)
    other = dataclasses.replace(config, output=str(tmp_path / "other"), **how)
    prepare(other)
    assert written(other) == written(config)


def test_tokens_are_at_most_the_limit(config):
    whole = {row.name: row.tokens for row in prepare(dataclasses.replace(config, options=()))}
    for tokens in (30, 31, 32):
        limited = dataclasses.replace(config, options={"max_tokens": tokens})
        table = {row.name: row for row in prepare(limited)}
        for name in ("cc100_sw", "bitext_en_sw"):
            row = table[name]
            assert tokens - row.longest < row.tokens <= tokens < whole[name], (name, tokens)
    # A limit that nothing reaches leaves nothing out.
    ample = dataclasses.replace(config, options={"max_tokens": 10**6, "max_documents": 31})
    assert {row.name: row.tokens for row in prepare(ample)} == whole
    assert written(ample)[1] == []


@pytest.mark.parametrize(
    ("options", "tasks", "message"),
    [
        ({"max_pairs": 3}, ("cc100",), "`max_pairs` applies only to translation pairs"),
        ({"max_document": 3}, ("cc100",), "'max_document', which is no setting; nearest: max_doc"),
        ({"max_documents": 0}, ("cc100",), "`max_documents` is 0; give a whole number"),
    ],
)
def test_a_limit_that_limits_nothing_is_an_error(config, options, tasks, message):
    with pytest.raises(ValueError, match=message):
        prepare(dataclasses.replace(config, tasks=tasks, options=options))
