"""The data card says what `dataset.json` says, for people and for the hub."""

import dataclasses
import json
import lzma
import re

import pytest

from xlme_jax.data.cldr import CldrConfig
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary
from xlme_jax.preparation import data_card, distributions, preparing
from xlme_jax.preparation.prepare_config import CldrCorpus, PrepareConfig, is_prepared

CORPUS = CldrCorpus(CldrConfig(("en", "fr")), documents=5, pairs=5, validation_pairs=0)


def no_seqio():
    raise AssertionError("our own sources need no SeqIO")


@pytest.fixture
def config(tmp_path):
    (tmp_path / "mono").mkdir()
    (tmp_path / "pairs").mkdir()
    (tmp_path / "eval").mkdir()
    for code, word in (("en", "House"), ("sr-Latn", "Kuca"), ("no", "Hus")):
        documents = [f"{word} number {i}.\n{word} again {i} | here." for i in range(30)]
        (tmp_path / "mono" / f"{code}.txt").write_text("\n\n".join(documents) + "\n")
    pairs = "".join(f"House {i}.\tHus {i}.\n" for i in range(20))
    (tmp_path / "pairs" / "en-no.tsv").write_text(pairs + "only one\t\n")
    (tmp_path / "eval" / "a.txt").write_text("House number 5.\n")
    texts = [
        f"{word} number {i} again here. |" for word in ("House", "Kuca", "Hus") for i in range(30)
    ]
    model = tmp_path / "v.model"
    write_vocabulary(train_vocabulary(texts, 200, byte_fallback=False, allow_smaller=True), model)
    return PrepareConfig(
        output=str(tmp_path / "out"),
        tasks=("cc100", "bitext"),
        vocabulary=str(model),
        cc100_dir=str(tmp_path / "mono"),
        bitext_dir=str(tmp_path / "pairs"),
        validation="every:10",
        check_overlap=str(tmp_path / "eval"),
        exclude_overlap=True,
        workers=1,
    )  # fmt: skip


def prepare(config, command="python -m xlme_jax.prepare --tasks=cc100,bitext"):
    preparing.prepare(config, no_seqio, command)


def table(card, heading):
    """Returns the rows of the table below a heading, without its head."""
    section = card.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_card_agrees_with_dataset_json(config, tmp_path):
    prepare(config)
    card = (tmp_path / "out" / "data_card.md").read_text()
    content = json.loads((tmp_path / "out" / "dataset.json").read_text())
    rows = content["tasks"]
    assert [row[:5] for row in table(card, "Sources")] == [
        [
            row["name"],
            row["split"],
            " and ".join(row["languages"]),
            f"{row['examples']:,}",
            f"{row['tokens']:,}",
        ]
        for row in rows
    ]
    assert table(card, "Sources")[0][5:] == [
        "unknown",
        "pairs/en-no.tsv",
        str((tmp_path / "pairs" / "en-no.tsv").stat().st_size),
    ]
    assert table(card, "Left out") == [
        [row["name"], row["split"], reason, f"{count:,}"]
        for row in rows
        for reason, count in sorted(row["skipped"].items())
    ]
    assert ["cc100_en", "train", "evaluation text as a line", "1"] in table(card, "Left out")
    tokens = {row["languages"][0]: 0 for row in rows if row["kind"] == "monolingual"}
    for row in rows:
        if row["kind"] == "monolingual":
            tokens[row["languages"][0]] += row["tokens"]
    assert table(card, "Languages") == [
        ["en", "English", "Latn", "29", "20", "0", f"{tokens['en']:,}"],
        ["no", "Norwegian", "Latn", "30", "20", "0", f"{tokens['no']:,}"],
        ["sr-Latn", "Serbian (Latin)", "Latn", "30", "0", "0", f"{tokens['sr-Latn']:,}"],
    ]
    assert (
        "unknown distribution, 8 tasks: licence: not known to this project; see the source" in card
    )
    assert "```bash\npython -m xlme_jax.prepare --tasks=cc100,bitext\n```" in card
    dataset = PreparedDataset.load(tmp_path / "out")
    assert dataset.digest in card and content["vocabulary"]["sha256"] in card
    assert str(tmp_path) not in card
    dataset.verify()


def test_the_header_is_one_of_the_hub(config, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    prepare(config)
    header = hub.DatasetCard.load(tmp_path / "out" / "data_card.md").data.to_dict()
    assert header == {
        "language": ["en", "no", "sr"],
        "language_bcp47": ["en", "no", "sr-Latn"],
        "license": "other",
        "multilinguality": "multilingual",
        "size_categories": ["n<1K"],
        "task_categories": ["fill-mask", "translation"],
        "tags": ["xlme_jax"],
    }


def test_no_card_is_of_another_data_set(config, tmp_path, monkeypatch):
    prepare(config)
    card = tmp_path / "out" / "data_card.md"
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    card.unlink()  # as a folder from before there were cards
    assert is_prepared(config)
    prepare(config)
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before

    def killed(*arguments):
        raise KeyboardInterrupt

    fewer = dataclasses.replace(config, languages=("en", "no"))
    with monkeypatch.context() as patch:
        patch.setattr(data_card, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(fewer)
    assert not card.exists() and not is_prepared(fewer)
    prepare(fewer)
    assert "Serbian" not in card.read_text() and is_prepared(fewer)


def test_a_distribution_has_licence_citation_and_address(config, tmp_path):
    (tmp_path / "cc").mkdir()
    for code in ("en", "no"):
        text = (tmp_path / "mono" / f"{code}.txt").read_bytes()
        (tmp_path / "cc" / f"{code}.txt.xz").write_bytes(lzma.compress(text))
    options = (("dir", str(tmp_path / "cc")),)
    prepare(dataclasses.replace(config, tasks=("text", "cldr"), options=options, cldr=CORPUS))
    card = (tmp_path / "out" / "data_card.md").read_text()
    row = distributions.find("cc100")
    assert (
        f"- {row.title}, 4 tasks: licence: {row.licence}. Citation: {row.citation}. <{row.url}>"
        in card
    )
    assert "- Unicode CLDR, 3 tasks: licence: Unicode-3.0. " in card
    assert "\nlicense: other\n" in card  # As they have different ones.
    assert {line[5] for line in table(card, "Sources")} == {row.title, "Unicode CLDR"}
