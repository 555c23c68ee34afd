"""Measures of raw text against counts by hand."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from helpers import tiny
from raw_text import config_of, write_raw

from xlme_jax import api
from xlme_jax.data.cldr import CldrConfig
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.preparation import language_id, text_measures
from xlme_jax.preparation.prepare_config import CldrCorpus, PrepareConfig
from xlme_jax.studies.reports import corpora

HOUSES = [(f"The house {i} is red.", f"Nyumba {i} ni nyekundu.") for i in range(30)]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Returns documents, pairs, evaluation text and a vocabulary."""
    folder = tmp_path_factory.mktemp("raw")
    one, two = zip(*HOUSES)
    files = {
        "mono/en.txt": "One house.\nTwo  houses.\n\nONE HOUSE.\nA third line here.\n",
        "pairs/a.en-sw.tsv": "".join(f"{e}\t{f}\n" for e, f in HOUSES) + "only one side\t\n",
        # Two pairs again, and a pair of old sides that is new.
        "pairs/b.en-sw.tsv": "".join(
            f"{e.upper()}\t{f}\n" for e, f in [HOUSES[0], HOUSES[1], (one[2], two[3])]
        ),
        "eval/test.tsv": f"1\t{one[4]}\n2\t{two[4]}\n3\tNothing that is in training.\n",
        "eval/more.txt": "a third  line here.\n",
    }
    return write_raw(folder, files, [*one, *two], 200)


@pytest.fixture
def config(raw, tmp_path):
    return config_of(raw, tmp_path / "out", check_overlap=str(raw / "eval"))


def test_counts_by_hand(config, raw, tmp_path):
    documents, pairs = api.inspect_text(config)
    assert (documents.texts, documents.lines, documents.duplicates) == (2, 4, 1)
    assert documents.evaluation == 1
    (side,) = documents.sides
    assert (side.language, side.characters) == ("en", np.mean([10, 12, 10, 18]))
    assert (pairs.texts, pairs.lines, pairs.duplicates, pairs.evaluation) == (33, 33, 2, 2)
    assert (pairs.files, pairs.complete) == (2, True)
    assert pairs.bytes == sum(file.stat().st_size for file in (raw / "pairs").iterdir())
    assert pairs.skipped == {"empty side": 1}
    vocabulary = Vocabulary.load(config.vocabulary)
    for number, side in enumerate(pairs.sides):
        texts = [pair[number] for pair in HOUSES]
        again = [HOUSES[0][number], HOUSES[1][number], HOUSES[2 + number][number]]
        texts += [text.upper() for text in again] if number == 0 else again
        tokens = sum(len(vocabulary.encode(text)) for text in texts)
        words = " ".join(texts).split()
        assert side.tokens_per_word == tokens / len(words)
        assert side.tokens_per_character == tokens / sum(map(len, words))
        assert side.characters == np.mean([len(text) for text in texts])
    assert not (tmp_path / "out").exists()


def test_evaluation_files_that_cannot_be_read_are_counted(config, tmp_path, caplog):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "a.txt").write_text("a third  line here.\n")
    (tmp_path / "eval" / "b.pdf").write_bytes(b"%PDF-1.4\n")
    options = {**dict(config.options), "max_documents": 5}
    contents = api.inspect_text(
        dataclasses.replace(config, check_overlap=str(tmp_path / "eval"), options=options)
    )
    assert "not applied to the text that is measured: max_documents" in caplog.text
    assert [(x.evaluation, x.unread) for x in contents] == [(1, 1), (0, 1)]
    assert "overlap: NOT CHECKED: b.pdf: not text" in caplog.text
    lines = corpora.summary(contents).splitlines()
    assert "1 (1 files unread)" in lines[1] and "0 (1 files unread)" in lines[2]
    assert lines[-1] == "evaluation: 1 files COULD NOT BE READ and were not compared"


def test_options_that_change_no_raw_text_change_nothing(config):
    changed = dataclasses.replace(
        config, deduplicate=True, validation="every:3", shuffle_pairs=True
    )
    assert api.inspect_text(changed) == api.inspect_text(config)


@pytest.mark.slow
def test_workers_change_nothing(config):
    assert api.inspect_text(dataclasses.replace(config, workers=2)) == api.inspect_text(config)


def test_what_is_not_asked_for_is_not_measured(config):
    plain = dataclasses.replace(config, vocabulary=None, check_overlap="")
    for content in api.inspect_text(plain):
        assert content.evaluation is None
        assert {side.tokens_per_word for side in content.sides} == {None}


@pytest.mark.parametrize(
    "limit, texts, complete", [(4, 4, False), (10, 10, False), (33, 33, True), (32, 32, False)]
)
def test_a_limit_is_shared_by_the_files(config, limit, texts, complete):
    _, pairs = api.inspect_text(config, limit)
    assert (pairs.texts, pairs.complete) == (texts, complete)


def test_the_sample_is_uniform(monkeypatch):
    monkeypatch.setattr(text_measures, "SAMPLE", 20)
    counts = np.zeros(100)
    for seed in range(500):
        reading = text_measures._Reading(1, None, str(seed))
        for start in range(0, 100, 30):
            reading.add([(str(i),) for i in range(start, min(100, start + 30))])
        assert len(reading.sample) == 20
        for (text,) in reading.sample:
            counts[int(text)] += 1
    # Binomial with mean 100 and deviation 9.
    assert abs(counts - 100).max() < 45
    assert abs(counts[:20].mean() - 100) < 10 and abs(counts[80:].mean() - 100) < 10


def test_the_embedded_corpus_is_inspected(tmp_path):
    corpus = CldrCorpus(CldrConfig(("en", "ru"), inventory=40), documents=3, pairs=5)
    contents = api.inspect_text(PrepareConfig(str(tmp_path), cldr=corpus, workers=1))
    assert {content.task: content.texts for content in contents} == {
        "cldr_en": 3,
        "cldr_ru": 3,
        "cldr_bitext_en_ru": 5,
    }


def test_tasks_of_seqio_are_refused(config):
    with pytest.raises(ValueError, match="reads files and the embedded corpus, not xnli"):
        api.inspect_text(dataclasses.replace(config, tasks=("cc100", "xnli")))


def test_a_missing_package_is_named(config, monkeypatch):
    monkeypatch.setattr(language_id.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--identify needs py3langid, .*\[langid\]"):
        api.inspect_text(config, identify=True)


def test_languages_are_identified():
    pytest.importorskip("py3langid", reason="needs the extra langid")
    english = ["The weather was fine when they walked to the old town last week."] * 3
    russian = ["Погода была хорошая, когда они на прошлой неделе шли в старый город."]
    assert language_id.share_of_others(english, "en") == 0
    assert language_id.share_of_others([*english, *russian], "en-GB") == 0.25
    assert language_id.share_of_others([*english, *russian, "Too short."], "ru") == 0.75
    assert language_id.share_of_others(["Too short."], "en") is None
    assert language_id.share_of_others(english, "bbj") is None


def test_languages_are_identified_in_the_sample(config):
    pytest.importorskip("py3langid", reason="needs the extra langid")
    (content,) = api.inspect_text(dataclasses.replace(config, tasks=("bitext",)), identify=True)
    assert 0 <= content.sides[0].other_language <= 1


@pytest.mark.slow
def test_the_command_writes_two_files_and_prints(config, raw):
    flags = [
        *("--inspect", "--tasks=cc100,bitext", "--inspect_texts=10", "--workers=1"),
        *(f"--cc100_dir={raw / 'mono'}", f"--bitext_dir={raw / 'pairs'}"),
        f"--output={config.output}",
    ]
    (done,) = tiny.run_each("prepare", flags)
    assert done.returncode == 0, done.stderr
    *table, skipped = done.stdout.splitlines()
    assert [line.split()[0] for line in table] == ["task", "cc100_en", "bitext_en_sw"]
    assert skipped == "skipped in bitext_en_sw: 1 empty side"
    assert sorted(file.name for file in Path(config.output).iterdir()) == [
        *("inspect.png", "inspect.tsv")
    ]
