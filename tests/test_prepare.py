import dataclasses
import importlib.util
import json
import lzma
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from helpers import tiny

import xlme_jax.prepare as prepare_command
from xlme_jax import api
from xlme_jax.api import prepare
from xlme_jax.configuration import command_line, source_flags
from xlme_jax.data import cldr
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import (
    Vocabulary,
    VocabularyError,
    train_vocabulary,
    write_vocabulary,
)
from xlme_jax.preparation import prepare_config, preparing, tokenizing
from xlme_jax.preparation.jobs import list_jobs
from xlme_jax.preparation.prepare_config import CldrCorpus, PrepareConfig
from xlme_jax.storage import locks

pytest.importorskip("seqio")
api.load_tasks()

import seqio  # noqa: E402
from helpers.through_seqio import prepare_through_seqio  # noqa: E402


def no_seqio():
    raise AssertionError("our own sources need no SeqIO")


DOCUMENTS = {
    language: [f"{word} {i} one.\n{word} {i} two." for i in range(40)]
    for language, word in (("en", "House"), ("sw", "Nyumba"))
}
PAIRS = [(f"The house {i}.", f"Nyumba {i}.") for i in range(30)]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    for name in ("mono", "pairs"):
        (folder / name).mkdir()
    for language, documents in DOCUMENTS.items():
        text = "\n\n".join(documents).encode()
        if language == "en":
            text += b"\n\nbad \xff\xfe line\n"
        (folder / "mono" / f"{language}.txt.xz").write_bytes(lzma.compress(text))
    lines = [f"{e}\t{f}" for e, f in PAIRS]
    lines[3:3] = ["only one side\t", "long " * 300 + "\tndefu"]
    (folder / "pairs" / "x.en-sw.tsv").write_text("\n".join(lines) + "\n")
    (folder / "pairs" / "y.en-sw.en").write_text("More.\nAnd more.\n")
    (folder / "pairs" / "y.en-sw.sw").write_text("Zaidi.\nNa zaidi.\n")
    texts = [*DOCUMENTS["en"], *DOCUMENTS["sw"], *(side for pair in PAIRS for side in pair)]
    vocabulary = train_vocabulary(texts, 300, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, folder / "vocabulary.model")
    return folder


def of_files(folder, output, **settings):
    """Returns the configuration of the files and the vocabulary in a folder."""
    return PrepareConfig(
        output=str(output),
        tasks=("cc100", "bitext"),
        vocabulary=str(folder / "vocabulary.model"),
        cc100_dir=str(folder / "mono"),
        bitext_dir=str(folder / "pairs"),
        workers=1,
        **settings,
    )


@pytest.fixture
def config(raw, tmp_path):
    return of_files(raw, tmp_path / "out")


def cldr_config(output, **options):
    corpus = CldrCorpus(
        cldr.CldrConfig(("en", "ru"), kinds=("date", "territory_list"), inventory=40),
        documents=4,
        pairs=50,
        validation_pairs=10,
    )
    return PrepareConfig(str(output), cldr=corpus, vocabulary_size=300, workers=1, **options)


def contents(folder):
    folder = Path(folder)
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def without_fingerprints(folder):
    rows = json.loads((Path(folder) / "dataset.json").read_text())["tasks"]
    return [{k: v for k, v in row.items() if k != "fingerprint"} for row in rows]


def test_documents_become_running_text_and_pairs_records(config):
    prepare(config)
    dataset = PreparedDataset.load(config.output)
    vocabulary = Vocabulary.load(config.vocabulary)
    assert (dataset.vocabulary_size, dataset.vocabulary_path.read_bytes()) == (
        vocabulary.size,
        vocabulary.model,
    )
    assert [task.name for task in dataset.tasks] == ["bitext_en_sw", "cc100_en", "cc100_sw"]
    task = dataset.task("cc100_sw")
    expected = [i for text in DOCUMENTS["sw"] for i in (0, *vocabulary.encode(text), 2)]
    assert (task.kind, task.languages, task.examples) == ("monolingual", ("sw",), 40)
    assert np.concatenate(dataset.records(task)).tolist() == expected
    task = dataset.task("bitext_en_sw")
    encoded = [(vocabulary.encode(e), vocabulary.encode(f)) for e, f in PAIRS]
    encoded += [(vocabulary.encode("More."), vocabulary.encode("Zaidi."))]
    encoded += [(vocabulary.encode("And more."), vocabulary.encode("Na zaidi."))]
    records = [record.tolist() for record in dataset.records(task)]
    assert sorted(records) == sorted([0, *e, 2, *f, 2] for e, f in encoded)
    assert (task.kind, task.languages, task.examples) == ("bitext", ("en", "sw"), len(encoded))


def test_skipped_texts_are_counted_and_reported(config, capfd):
    prepare(config)
    skipped = {row.name: row.skipped for row in PreparedDataset.load(config.output).tasks}
    assert skipped["cc100_en"] == {"invalid UTF-8": 1}
    assert skipped["cc100_sw"] == {}
    assert skipped["bitext_en_sw"] == {"empty side": 1, "longer than 510 tokens": 1}
    said = capfd.readouterr().err
    assert "skipped lines of cc100_en (train): 1 invalid UTF-8" in said
    assert said.count("--max_pair_tokens sets the length of the longest pairs") == 1


def test_columns_that_are_not_checked_are_named_at_the_end(config, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(preparing.first_records.language_id, "is_installed", lambda: False)
    prepare(config)
    last = capfd.readouterr().err.splitlines()[-1]
    assert "Not checked: whether columns are exchanged (en-sw); that needs py3langid" in last
    (tmp_path / "moses").mkdir()  # Each file of this layout names one language.
    for language in ("en", "sw"):
        shutil.copy(f"{config.bitext_dir}/y.en-sw.{language}", tmp_path / "moses")
    prepare(dataclasses.replace(config, bitext_dir=str(tmp_path / "moses")))
    assert "Not checked" not in capfd.readouterr().err


def test_an_interrupted_run_goes_on(config, monkeypatch, raw, tmp_path):
    done = []
    original = tokenizing.run_unit

    def run_unit(settings, model, unit, report):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(unit.job.name)
        return original(settings, model, unit, report)

    monkeypatch.setattr(tokenizing, "run_unit", run_unit)
    config = dataclasses.replace(config, tasks=("cc100",))
    with pytest.raises(KeyboardInterrupt):
        prepare(config)
    assert not (Path(config.output) / "dataset.json").exists()
    assert not prepare_config.is_prepared(config)
    done.append("never again")
    prepare(config)
    assert {done[0], done[2]} == {"cc100_en", "cc100_sw"} and len(done) == 3
    assert prepare_config.is_prepared(config)
    whole = dataclasses.replace(config, output=str(tmp_path / "whole"))
    prepare(whole)
    assert contents(whole.output) == contents(config.output)


def test_only_what_changed_is_done_again(config, raw, tmp_path, monkeypatch):
    mono = tmp_path / "mono"
    shutil.copytree(raw / "mono", mono)
    config = dataclasses.replace(config, tasks=("cc100",), cc100_dir=str(mono))
    prepare(config)
    before = contents(config.output)
    done = []
    original = tokenizing.run_unit
    monkeypatch.setattr(
        tokenizing,
        "run_unit",
        lambda c, m, unit, r: (done.append(unit.job.name), original(c, m, unit, r))[1],
    )
    prepare(config)
    assert not done and contents(config.output) == before
    (mono / "sw.txt.xz").write_bytes(lzma.compress(b"Nyumba moja tu.\n"))
    prepare(config)
    assert done == ["cc100_sw"]
    assert PreparedDataset.load(config.output).task("cc100_sw").examples == 1


@pytest.fixture
def done(monkeypatch):
    """Records the names of finished tasks."""
    names = []
    original = tokenizing.run_unit

    def run_unit(config, model, unit, report):
        names.append(unit.job.name)
        return original(config, model, unit, report)

    monkeypatch.setattr(tokenizing, "run_unit", run_unit)
    return names


# File -> the task that has to be made again.
DAMAGED = {
    "monolingual": {"cc100_en", "cc100_sw"},
    "lengths": {"bitext_en_sw"},
    "tasks.json": set(),
    "dataset.json": set(),
    "prepare.json": set(),
    "vocabulary.model": set(),
}


@pytest.mark.parametrize("damage", tiny.slow_except(["changed"], ["changed", "cut", "gone"]))
def test_the_same_command_mends_what_is_damaged_and_nothing_else(config, done, capfd, damage):
    prepare(config, "the command")
    before = contents(config.output)
    dataset = PreparedDataset.load(config.output)
    shared = {
        "monolingual": dataset.task("cc100_sw").shards[0].file,
        "lengths": dataset.task("bitext_en_sw").lengths.file,
    }
    for entry, tasks in DAMAGED.items():
        name = shared.get(entry, entry)
        path = Path(config.output) / name
        if damage == "changed":
            path.write_bytes(before[name][:-50] + b"#" + before[name][-49:])
        elif damage == "cut":
            path.write_bytes(before[name][:-1])
        else:
            path.unlink()
        # A data set without a command has no prepare.json, and one of before no tasks.json.
        if damage != "gone" or name not in ("prepare.json", "tasks.json"):
            with pytest.raises(PreparedDataError, match=path.name):
                PreparedDataset.load(config.output).verify()
        done.clear()
        capfd.readouterr()
        prepare(config, "the command")
        assert set(done) == tasks
        said = capfd.readouterr().err
        who = "Task bitext_en_sw (train) is" if len(tasks) == 1 else "2 tasks that share it are"
        assert (f"{who} prepared again: {path}" in said) == bool(tasks)
        assert contents(config.output) == before


def test_a_description_that_is_damaged_or_lacks_files_is_not_prepared(config):
    prepare(config)
    before = contents(config.output)
    shard = PreparedDataset.load(config.output).task("cc100_sw").shards[0].file
    for name in ("dataset.json", "prepare.json", shard):
        path = Path(config.output) / name
        assert prepare_config.is_prepared(config)
        path.write_bytes(before[name][:-1])
        assert not prepare_config.is_prepared(config)
        path.write_bytes(before[name])


def test_damaged_default_vocabulary_is_reported(config):
    prepare(config)
    model = Path(config.output) / "vocabulary.model"
    other = train_vocabulary(DOCUMENTS["en"], 60, byte_fallback=False, allow_smaller=True)
    write_vocabulary(other, model)
    with pytest.raises(VocabularyError, match=r"vocabulary\.model is damaged .*--vocabulary"):
        prepare(dataclasses.replace(config, vocabulary=None))
    prepare(config)
    PreparedDataset.load(config.output).verify()


def test_data_of_an_older_format_is_prepared_again(config, done):
    prepare(config)
    before = contents(config.output)
    for path in Path(config.output).rglob("*.json"):
        content = json.loads(path.read_text())
        del content["sha256"]
        path.write_text(json.dumps({**content, "format": 1}))
    with pytest.raises(PreparedDataError, match=r"dataset\.json .*of an older version"):
        PreparedDataset.load(config.output)
    done.clear()
    prepare(config)
    assert set(done) == {"bitext_en_sw", "cc100_en", "cc100_sw"}
    assert contents(config.output) == before


def test_a_second_preparation_waits_for_the_first(config, done, monkeypatch):
    said, waiting = [], threading.Event()

    def log(line):
        said.append(line)
        if "Waiting" in line:
            waiting.set()

    monkeypatch.setattr(preparing._log, "info", log)
    Path(config.output).mkdir()
    with locks.hold(Path(config.output) / preparing.LOCK_FILE):  # as a first one does
        second = threading.Thread(target=prepare, args=(config,))
        second.start()
        assert waiting.wait(60)
        assert not done and not (Path(config.output) / "dataset.json").exists()
    second.join()
    assert [line for line in said if "Waiting" in line] == [
        f"{config.output}: another process is preparing it. Waiting for it to finish."
    ]
    assert set(done) == {"bitext_en_sw", "cc100_en", "cc100_sw"}
    done.clear()
    prepare(config)  # nobody there any more
    assert len([line for line in said if "Waiting" in line]) == 1 and not done


@pytest.mark.slow
@pytest.mark.parametrize(("moments", "least"), [([9, 40, 33], 2), (range(1, 500), 40)])
def test_killed_at_any_moment_the_same_command_ends_with_the_same_bytes(
    config, tmp_path, moments, least
):
    prepare(config)
    killed = dataclasses.replace(config, output=str(tmp_path / "killed"))
    file = tmp_path / "arguments"
    file.write_bytes(pickle.dumps((killed, moments)))
    (done,) = tiny.run_each("tests.helpers.killed_preparation", [file])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= least
    assert contents(killed.output) == contents(config.output)


def test_beam_writes_the_same_bytes(config, tmp_path, monkeypatch):
    pytest.importorskip("apache_beam")
    # Several parts, so that their order matters.
    monkeypatch.setattr(tokenizing, "PART_TEXTS", {"monolingual": 15, "bitext": 7})
    prepare(config)
    on_beam = dataclasses.replace(
        config,
        output=str(tmp_path / "beam"),
        runner="DirectRunner",
        runner_options=("--direct_num_workers=1",),
    )
    prepare(on_beam)
    assert len(PreparedDataset.load(config.output).task("cc100_sw").shards) == 3
    assert contents(on_beam.output) == contents(config.output)


def test_seqio_and_workers_without_it_write_the_same_bytes(config, tmp_path, monkeypatch):
    jobs = list_jobs(config, "", no_seqio)
    assert [len(job.reads) for job in jobs] == [1, 1, 2]
    assert all(pickle.loads(pickle.dumps(job)).reads for job in jobs)
    prepare(config)
    prepare_through_seqio(monkeypatch)
    through_seqio = dataclasses.replace(config, output=str(tmp_path / "seqio"))
    prepare(through_seqio)
    assert contents(through_seqio.output) == contents(config.output)
    assert all(job.encodes for job in list_jobs(config, "", no_seqio))


def test_two_workers_write_the_same_bytes(config, tmp_path):
    prepare(config)
    two = dataclasses.replace(config, output=str(tmp_path / "two"), workers=2)
    prepare(two)
    assert contents(two.output) == contents(config.output)


def test_the_embedded_corpus_trains_its_vocabulary_and_holds_phrases_out(tmp_path):
    config = cldr_config(tmp_path / "out")
    prepare(config)
    dataset = PreparedDataset.load(config.output)
    vocabulary = Vocabulary.load(dataset.vocabulary_path)
    rows = {(row.name, row.split): row.examples for row in dataset.tasks}
    assert rows == {
        ("cldr_en", "train"): 4,
        ("cldr_ru", "train"): 4,
        ("cldr_bitext_en_ru", "train"): 50,
        ("cldr_bitext_en_ru", "validation"): 10,
    }
    assert vocabulary.size == dataset.vocabulary_size <= 300
    pairs = list(cldr.pairs(config.cldr.config, "en", "ru", "validation", 10))
    expected = [[0, *vocabulary.encode(e), 2, *vocabulary.encode(f), 2] for e, f in pairs]
    task = dataset.task("cldr_bitext_en_ru", "validation")
    assert [record.tolist() for record in dataset.records(task)] == expected
    assert not any(vocabulary.unk_id in record for record in expected)
    assert prepare_config.is_prepared(config)
    assert not prepare_config.is_prepared(dataclasses.replace(config, vocabulary_size=299))


@pytest.mark.slow
def test_settings_that_change_the_text_make_it_again(tmp_path):
    config = cldr_config(tmp_path / "out")
    vocabulary = tmp_path / "v.model"
    write_vocabulary(preparing.resolve_vocabulary(config), vocabulary)
    config = dataclasses.replace(config, vocabulary=str(vocabulary))
    prepare(config)
    more = dataclasses.replace(config, cldr=dataclasses.replace(config.cldr, pairs=60))
    prepare(more)
    assert PreparedDataset.load(config.output).task("cldr_bitext_en_ru").examples == 60


def test_tfds_sets_are_prepared(config, tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    import seqio

    class TinyPairs(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.Translation(["en", "sw"])
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for i, (e, f) in enumerate(PAIRS):
                yield i, {"en": e, "sw": f}

    TinyPairs(data_dir=tmp_path / "tfds").download_and_prepare()
    seqio.set_tfds_data_dir_override(str(tmp_path / "tfds"))
    try:
        tiny = ("tiny_pairs:1.0.0=en-sw",)
        prepare(dataclasses.replace(config, tasks=("tfds",), tfds=tiny))
    finally:
        seqio.set_tfds_data_dir_override(None)
    dataset = PreparedDataset.load(config.output)
    vocabulary = Vocabulary.load(config.vocabulary)
    task = dataset.task("tfds_tiny_pairs")
    assert (task.examples, task.languages) == (len(PAIRS), ("en", "sw"))
    expected = [[0, *vocabulary.encode(e), 2, *vocabulary.encode(f), 2] for e, f in PAIRS]
    assert sorted(r.tolist() for r in dataset.records(task)) == sorted(expected)


def test_what_cannot_be_prepared_is_named(config, raw, tmp_path):
    def fails(error, match, **changes):
        with pytest.raises(error, match=match):
            prepare(dataclasses.replace(config, **changes))

    fails(DataError, "nowhere", cc100_dir=str(tmp_path / "nowhere"))
    fails(DataError, "cc100_dir", cc100_dir=None)
    fails(DataError, "no file for ha", tasks=("cc100",), languages=("en", "ha"))
    fails(ValueError, "`languages`: 'xx' is not a", tasks=("cc100",), languages=("en", "xx"))
    fails(DataError, "sw-zu", tasks=("bitext",), pairs=("en-sw", "sw-zu"))
    fails(VocabularyError, "train_vocabulary --tasks=cc100,bitext", vocabulary=None)
    fails(VocabularyError, "No vocabulary at", vocabulary=str(tmp_path / "none.model"))
    fails(ValueError, "unknown task 'cc10'.*cc100", tasks=("cc10",))
    assert not (tmp_path / "out" / "dataset.json").exists()
    empty = tmp_path / "mono"
    empty.mkdir()
    (empty / "yo.txt").write_text("\n\n")
    fails(DataError, r"yo\.txt", tasks=("cc100",), cc100_dir=str(empty))
    (empty / "yo.txt").unlink()
    damaged = lzma.compress("\n".join(map(str, np.random.default_rng(0).random(20_000))).encode())
    (empty / "yo.txt.xz").write_bytes(damaged[: len(damaged) // 2])
    fails(DataError, r"yo\.txt\.xz.*truncated", tasks=("cc100",), cc100_dir=str(empty))


def test_another_vocabulary_for_the_same_folder_is_refused(config, tmp_path):
    prepare(config)
    other = tmp_path / "other.model"
    write_vocabulary(
        train_vocabulary([*DOCUMENTS["en"]], 60, byte_fallback=False, allow_smaller=True), other
    )
    with pytest.raises(VocabularyError, match="contains data of another vocabulary"):
        prepare(dataclasses.replace(config, vocabulary=str(other)))


def test_pairs_without_common_units_are_skipped(config, tmp_path, capfd):
    folder = tmp_path / "multiway"
    folder.mkdir()
    (folder / "ids.txt").write_text("a\nb\n")
    for language, text in (("en", "One.\nTwo.\n"), ("sw", "Moja.\n\n"), ("fr", "\nDeux.\n")):
        (folder / f"{language}.txt").write_text(text)
    config = dataclasses.replace(config, tasks=("bitext",), bitext_dir=str(folder))
    prepare(config)
    assert [t.name for t in PreparedDataset.load(config.output).tasks] == [
        "bitext_en_fr",
        "bitext_en_sw",
    ]
    assert "no unit in common: bitext_fr_sw" in capfd.readouterr().err
    with pytest.raises(DataError, match=r"bitext_fr_sw \(fr-sw, train\) has no text"):
        prepare(dataclasses.replace(config, pairs=("fr-sw",)))


@pytest.mark.slow
def test_the_commands(raw, tmp_path):
    model, output = tmp_path / "v.model", tmp_path / "out"
    files = [f"--cc100_dir={raw / 'mono'}", f"--bitext_dir={raw / 'pairs'}", "--tasks=cc100,bitext"]
    (done,) = tiny.run_each(
        "train_vocabulary", [*files, "--size=110", "--nobyte_fallback", f"--output={model}"]
    )
    assert done.returncode == 0, done.stderr
    assert Vocabulary.load(model).size == 110
    assert "SentencePiece trains 110 ids on this sample; it prints nothing" in done.stderr
    next_words = shlex.split(done.stdout.removeprefix("Next: "))
    assert next_words[:3] == ["python", "-m", "xlme_jax.prepare"]
    assert {*next_words[3:]} == {*files, f"--vocabulary={model}", f"--output={tmp_path / 'v'}"}
    arguments = [*files, f"--vocabulary={model}", f"--output={output}"]
    verify = ["--verify", f"--output={output}"]
    text = [files[0], "--tasks=cc100", f"--vocabulary={model}", f"--output={output}3"]
    done, failed, verified, of_text = tiny.run_each(
        "prepare", arguments, ["--tasks=cc100", f"--output={output}2"], verify, text
    )
    flags = {"--gin.XLM.translation_pairs=False", "--gin.Train.stop_rules=()"}
    assert {*shlex.split(of_text.stdout)} > flags, of_text.stderr
    assert done.returncode == 0, done.stderr
    dataset = PreparedDataset.load(output)
    assert dataset.vocabulary_size == 110
    assert shlex.split(dataset.command) == ["python", "-m", "xlme_jax.prepare", *arguments]
    training = f"laptop_xlm.gin --gin.DATA_DIR={output} --gin.MODEL_DIR=runs/out --gin.TRAIN_STEPS="
    assert done.stdout.startswith("Next: ") and training in done.stdout
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr and "train_vocabulary" in failed.stderr
    assert verified.stdout == f"{len(dataset.files())} files, 0.001 GB, all as written\n"
    shard = output / dataset.task("cc100_sw").shards[0].file
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"#")
    failed = subprocess.run(
        [sys.executable, "-m", "xlme_jax.prepare", *verify],
        capture_output=True,
        text=True,
        env=tiny.environment(),
    )
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert f"{shard} is damaged" in failed.stderr
    # What the error says repairs it.
    command = shlex.split(failed.stderr.splitlines()[-1])
    assert command[:3] == ["python", "-m", "xlme_jax.prepare"]
    for done in tiny.run_each("prepare", command[3:], verify):
        assert done.returncode == 0, done.stderr
    assert shard.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        (["--tasks=cc100"], "--cc100_dir=/my texts"),
        (["--tasks=cc100", "--cc100_dir=given"], None),
        (["--tasks=bitext"], "--bitext_dir=pairs"),
        (["--tasks=cldr"], None),
    ],
)
def test_the_command_names_folders_of_the_environment(arguments, added, monkeypatch):
    monkeypatch.setenv("CC100_DIR", "/my texts")
    monkeypatch.setenv("BITEXT_DIR", "pairs")
    monkeypatch.setattr(sys, "argv", ["prepare.py", *arguments, "--output=x"])
    if "gin_file" not in flags.FLAGS:
        command_line.define_flags()
    with flagsaver.flagsaver():
        flags.FLAGS(sys.argv)
        words = shlex.split(prepare_command._command(source_flags.configuration()))
    assert words[:3] == ["python", "-m", "xlme_jax.prepare"]
    assert words[3:] == [*arguments, "--output=x", *([added] if added else [])]


def test_a_data_set_whose_shards_change_is_none_until_it_is_whole(config, monkeypatch, capfd):
    prepare(config)
    fewer = dataclasses.replace(config, tasks=("cc100",), languages=("sw",))
    prepare(fewer)
    said = capfd.readouterr().err
    assert "dropped from the data set: bitext_en_sw, cc100_en" in said
    assert [task.name for task in PreparedDataset.load(config.output).tasks] == ["cc100_sw"]
    assert "becomes another data set" not in said
    prepare(dataclasses.replace(fewer, max_document_chars=45))
    said = capfd.readouterr().err
    assert "becomes another data set (max_document_chars 100000 -> 45)" in said

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizing, "run_unit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(dataclasses.replace(fewer, max_document_chars=50))
    with pytest.raises(ValueError, match="no prepared data set"):
        PreparedDataset.load(config.output)


def test_tasks_of_a_users_module_are_prepared(config, raw, tmp_path, monkeypatch):
    (tmp_path / "my_tasks.py").write_text(
        f"""
import functools
import seqio
from tasks import cc100, features

vocabulary = features.XlmVocabulary({config.vocabulary!r})
cc100.register({str(raw / "mono")!r}, ["sw"], vocabulary, name="mine")


def no_language(split, shuffle_files):
    raise NotImplementedError


seqio.TaskRegistry.add(
    "untold",
    source=seqio.FunctionDataSource(no_language, splits=["train"]),
    preprocessors=features.preprocessors(),
    output_features=features.output_features(("tokens",), vocabulary),
)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = dataclasses.replace(config, tasks=("mine",), modules=("my_tasks",))
    prepare(config)
    (task,) = PreparedDataset.load(config.output).tasks
    assert (task.name, task.examples) == ("mine_sw", 40)
    with pytest.raises(ValueError, match="source of task untold has no languages"):
        prepare(dataclasses.replace(config, tasks=("untold",)))


@pytest.mark.slow
def test_beam_names_the_damaged_file(config, raw, tmp_path):
    pytest.importorskip("apache_beam")
    (tmp_path / "mono").mkdir()
    whole = (raw / "mono" / "sw.txt.xz").read_bytes()
    (tmp_path / "mono" / "sw.txt.xz").write_bytes(whole[: len(whole) // 2])
    broken = dataclasses.replace(config, tasks=("cc100",), cc100_dir=str(tmp_path / "mono"))
    with pytest.raises(DataError, match=r"sw\.txt\.xz.*truncated"):
        prepare(dataclasses.replace(broken, runner="DirectRunner"))


# --- Held-out data, overlap, columns of TSV files. ---


@pytest.fixture(scope="module")
def multiway(tmp_path_factory):
    """Writes a multi-way folder of three languages, and running text that repeats some lines."""
    root = tmp_path_factory.mktemp("multiway")
    (root / "pairs" / "way").mkdir(parents=True)
    (root / "mono").mkdir()
    words = {"en": "House", "fr": "Maison", "sw": "Nyumba"}
    for language, word in words.items():
        lines = [f"{word} number {i}." for i in range(40)]
        if language == "sw":
            lines[7] = ""
        (root / "pairs" / "way" / f"{language}.txt").write_text("\n".join(lines) + "\n")
        documents = [f"Only {word} {i} here.\n{word.upper()}  number {i + 1}." for i in range(20)]
        data = "\n\n".join(documents).encode()
        (root / "mono" / f"{language}.txt.xz").write_bytes(lzma.compress(data))
    (root / "pairs" / "way" / "ids.txt").write_text("".join(f"u{i}\n" for i in range(40)))
    (root / "eval").mkdir()
    (root / "eval" / "test.tsv").write_text(
        "1\tHouse number 1.\tMaison number 3.\n2\tNot there at all\tx\n"
    )
    texts = [f"{word} number {i} only here." for word in words.values() for i in range(40)]
    vocabulary = train_vocabulary(texts, 200, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, root / "vocabulary.model")
    return root


@pytest.fixture
def held_config(multiway, tmp_path):
    return of_files(multiway, tmp_path / "out", validation="every:4")


def texts_of(config):
    """Returns the texts of each task and split."""
    dataset, vocabulary = PreparedDataset.load(config.output), Vocabulary.load(config.vocabulary)
    found = {}
    for row in dataset.tasks:
        ids = np.concatenate(dataset.records(row)).tolist()
        pieces = []
        for token in ids:
            if token == 0:
                pieces.append([])
            elif token != 2:
                pieces[-1].append(token)
        found[row.name, row.split] = [vocabulary.decode(piece) for piece in pieces]
    return found


def test_validation_is_held_out_of_everything(held_config):
    prepare(held_config)
    rows = {(row.name, row.split): row for row in PreparedDataset.load(held_config.output).tasks}
    names = ["bitext_en_fr", "bitext_en_sw", "bitext_fr_sw", "cc100_en", "cc100_fr", "cc100_sw"]
    assert sorted(rows) == [(name, split) for name in names for split in ("train", "validation")]
    assert (
        {name: row.examples for name, row in rows.items()}
        == {
            ("bitext_en_fr", "train"): 25,  # 30, without the texts of five held-out documents
            ("bitext_en_fr", "validation"): 10,
            ("bitext_en_sw", "train"): 25,
            ("bitext_en_sw", "validation"): 9,
            ("bitext_fr_sw", "train"): 25,
            ("bitext_fr_sw", "validation"): 9,
            **{(name, "train"): 15 for name in names[3:]},
            **{(name, "validation"): 5 for name in names[3:]},
        }
    )
    pairs, lines = "pairs with a held-out text", "lines equal to held-out text"
    assert {name: row.skipped for name, row in rows.items() if row.skipped} == {
        ("bitext_en_fr", "train"): {pairs: 5},
        ("bitext_en_sw", "train"): {pairs: 5},
        ("bitext_fr_sw", "train"): {pairs: 5},
        ("cc100_en", "train"): {lines: 5},
        ("cc100_fr", "train"): {lines: 5},
        ("cc100_sw", "train"): {lines: 4},  # its line 7 is empty
        ("bitext_en_sw", "validation"): {"missing unit": 1},
        ("bitext_fr_sw", "validation"): {"missing unit": 1},
    }


@pytest.mark.slow
def test_a_multiway_folder_needs_no_ids(held_config, multiway, tmp_path):
    prepare(held_config)
    shutil.copytree(multiway / "pairs", tmp_path / "pairs")
    (tmp_path / "pairs" / "way" / "ids.txt").unlink()
    without = dataclasses.replace(
        held_config, output=str(tmp_path / "without"), bitext_dir=str(tmp_path / "pairs")
    )
    prepare(without)
    assert texts_of(without) == texts_of(held_config)
    texts = [
        sorted((text.language, *text.read()) for text in api.find_text(config))
        for config in (held_config, without)
    ]
    assert texts[0] == texts[1]
    counted = dataclasses.replace(without, validation="count:3")
    prepare(counted)
    assert len(texts_of(counted)["bitext_en_fr", "validation"]) == 3
    # The same folder as held-out text of other corpora.
    other = dataclasses.replace(without, validation=f"folder:{tmp_path / 'pairs'}")
    prepare(dataclasses.replace(other, tasks=("cc100",)))
    assert all("number" not in text for text in texts_of(other)["cc100_en", "train"])
    with (tmp_path / "pairs" / "way" / "sw.txt").open("a") as file:
        file.write("One more.\n")
    with pytest.raises(DataError, match=r"\.txt has 40 lines, .*one `<language>\.txt` per lang"):
        prepare(without)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no matching bitext .*optionally `ids\.txt`"):
        prepare(dataclasses.replace(without, bitext_dir=str(tmp_path / "empty")))


def test_only_text_of_its_own_split_is_written(held_config, multiway):
    # Documents end in the lines 1 to 20 of the folder.
    config = dataclasses.replace(held_config, validation="ids:" + str(multiway / "ids"))
    (multiway / "ids").write_text("u5\nu19\nu30\n")
    prepare(config)
    texts = texts_of(config)
    assert ("cc100_en", "validation") not in texts
    assert len(texts["bitext_en_fr", "validation"]) == 3
    numbers = {text.split()[-1] for text in texts["bitext_en_fr", "train"]}
    assert numbers == {f"{i}." for i in range(40)} - {"5.", "19.", "30."}
    assert sum("number" in text for text in texts["cc100_en", "train"]) == 18
    row = PreparedDataset.load(config.output).task("cc100_en")
    assert (row.examples, row.skipped) == (20, {"lines equal to held-out text": 2})


def test_shuffled_pairs_translate_nothing_in_training_alone(held_config):
    prepare(held_config)
    before = texts_of(held_config)
    prepare(dataclasses.replace(held_config, shuffle_pairs=True))
    after = texts_of(held_config)
    for split, translated in (("train", 0), ("validation", 10)):
        numbers = [re.findall(r"[0-9]+", text) for text in after["bitext_en_fr", split]]
        assert sum(one == other for one, other in numbers) == translated
    assert {name: texts for name, texts in before.items() if name[1] == "validation"} == {
        name: texts for name, texts in after.items() if name[1] == "validation"
    }
    assert before["cc100_en", "train"] == after["cc100_en", "train"]
    assert len(before["bitext_en_fr", "train"]) == len(after["bitext_en_fr", "train"])


@pytest.mark.slow
def test_held_out_units_are_made_once_and_again_if_they_change(held_config, done):
    prepare(held_config)
    before = contents(held_config.output)
    done.clear()
    prepare(held_config)
    assert not done and contents(held_config.output) == before
    prepare(dataclasses.replace(held_config, validation="count:3"))
    assert sorted(set(done)) == sorted({row.name for row in tasks_of(held_config)})
    sizes = {row.examples for row in tasks_of(held_config) if row.split == "validation"}
    assert sizes == {3}


def tasks_of(config):
    return PreparedDataset.load(config.output).tasks


@pytest.mark.slow
def test_held_out_data_are_the_same_with_workers_and_with_seqio(held_config, tmp_path, monkeypatch):
    prepare(held_config)
    expected = contents(held_config.output)
    several = dataclasses.replace(held_config, output=str(tmp_path / "several"), workers=2)
    prepare(several)
    assert contents(several.output) == expected
    prepare_through_seqio(monkeypatch)
    ours = dataclasses.replace(held_config, output=str(tmp_path / "seqio"))
    prepare(ours)
    assert contents(ours.output) == expected


@pytest.mark.slow
def test_held_out_data_on_beam(held_config, tmp_path):
    pytest.importorskip("apache_beam")
    config = dataclasses.replace(held_config, languages=("en", "fr"))
    prepare(config)
    other = dataclasses.replace(config, output=str(tmp_path / "beam"), runner="DirectRunner")
    prepare(other)
    assert contents(other.output) == contents(config.output)


@pytest.mark.slow
def test_plain_seqio_has_the_splits(multiway):
    from tasks import bitext, cc100
    from xlme_jax.data.text.held_out import HeldOutText, find_corpora

    model = str(multiway / "vocabulary.model")
    held = HeldOutText("every:4", corpora=find_corpora(multiway / "mono", multiway / "pairs"))
    cc100.register(multiway / "mono", vocabulary=model, held_out=held)
    bitext.register(multiway / "pairs", vocabulary=model, held_out=held)

    def count(name, split):
        task = seqio.get_mixture_or_task(name)
        return sum(1 for _ in task.get_dataset(split=split, num_epochs=1).as_numpy_iterator())

    assert count("bitext_en_sw", "train") == 25 and count("bitext_en_sw", "validation") == 9
    assert count("cc100_en", "train") == 15 and count("cc100_en", "validation") == 5
    assert set(seqio.get_mixture_or_task("cc100").splits) == {"train", "validation"}


def test_a_vocabulary_reads_nothing_held_out(held_config):

    texts = api.find_text(held_config)
    lines = {
        line
        for text in texts
        if text.language == "en"
        for piece in text.read()
        for line in piece.split("\n")
    }
    assert "House number 5." in lines and "Only House 4 here." in lines
    assert (
        not {"House number 3.", "House number 4.", "House number 39.", "Only House 3 here."} & lines
    )
    everything = api.find_text(dataclasses.replace(held_config, validation=""))
    assert "House number 3." in {piece for text in everything for piece in text.read()}


def test_overlap_with_evaluation_text_is_reported(held_config, multiway, capfd):
    config = dataclasses.replace(held_config, check_overlap=str(multiway / "eval"))
    prepare(config)
    report = json.loads((Path(config.output) / "overlap.json").read_text())
    # The third unit is held out, and its text gone from training with it.
    assert report["files"]["test.tsv"]["found"] == {
        "bitext_en_fr": 1,
        "bitext_en_sw": 1,
        "cc100_en": 1,
    }
    said = capfd.readouterr().err
    assert "test.tsv (5 texts): 1 in cc100_en, 1 in bitext_en_fr, 1 in bitext_en_sw\n" in said
    assert prepare_config.settings(config) == prepare_config.settings(held_config)


def test_evaluation_text_that_could_not_be_read_is_no_all_clear(held_config, tmp_path, capfd):
    folder = tmp_path / "eval"
    folder.mkdir()
    (folder / "test.sgm").write_text('<doc docid="a"><seg id="1">House number 5.</seg></doc>')
    (folder / "test.pdf").write_bytes(b"%PDF-1.4\n")
    config = dataclasses.replace(held_config, check_overlap=str(folder))
    with pytest.raises(DataError, match=r"complete, but 1 evaluation files .* unknown: test\.pdf"):
        prepare(config)
    assert prepare_config.is_prepared(config)
    report = json.loads((Path(config.output) / "overlap.json").read_text())
    assert report["files"]["test.sgm"]["found"]["cc100_en"] == 1
    assert list(report["unread"]) == ["test.pdf"]
    said = capfd.readouterr().err
    assert "overlap: NOT CHECKED: test.pdf: not text; convert it to a file of lines\n" in said
    assert "overlap: none in 0 of 1 evaluation files that were read, and 1 COULD NOT BE" in said


@pytest.fixture
def excluding(held_config, multiway):
    """Returns a configuration that removes evaluation text, without held-out data."""
    return dataclasses.replace(
        held_config,
        validation="",
        check_overlap=str(multiway / "eval"),
        exclude_overlap=True,
        languages=("en", "fr"),
    )


def test_evaluation_text_is_removed(excluding, capfd):
    prepare(excluding)
    rows = PreparedDataset.load(excluding.output).tasks
    reason = "evaluation text as a line"
    assert {row.name: (row.examples, row.skipped) for row in rows} == {
        "bitext_en_fr": (38, {reason: 2}),
        "cc100_en": (19, {reason: 1}),
        "cc100_fr": (19, {reason: 1}),
    }
    texts = texts_of(excluding)
    assert not any("number 1." in text for text in texts["cc100_en", "train"])
    report = json.loads((Path(excluding.output) / "overlap.json").read_text())
    assert report["excluded"] and report["training"]["bitext_en_fr"] == {
        "texts": 40,
        "with_evaluation_text": 2,
    }
    assert (
        "skipped lines of cc100_en (train): 1 evaluation text as a line\n" in capfd.readouterr().err
    )


@pytest.mark.slow
def test_evaluation_text_is_removed_by_workers_and_again(excluding, tmp_path, monkeypatch, capfd):
    prepare(excluding)
    expected = contents(excluding.output)
    monkeypatch.setattr(tokenizing, "BATCH_SIZE", 3)
    other = dataclasses.replace(excluding, output=str(tmp_path / "beam"), runner="DirectRunner")
    if importlib.util.find_spec("apache_beam"):
        prepare(other)
        assert contents(other.output) == expected
    several = dataclasses.replace(excluding, output=str(tmp_path / "several"), workers=2)
    prepare(several)
    assert contents(several.output) == expected

    # Other evaluation text: the tasks are prepared again.
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "a.txt").write_text("HOUSE number 2.\n")
    changed = dataclasses.replace(excluding, check_overlap=str(tmp_path / "eval"))
    capfd.readouterr()
    prepare(changed)
    assert "3 parts, 0 finished before" in capfd.readouterr().err
    assert PreparedDataset.load(excluding.output).task("cc100_fr").examples == 20
    assert prepare_config.is_prepared(changed) and not prepare_config.is_prepared(excluding)
    (tmp_path / "eval" / "b.pdf").write_bytes(b"%PDF-1.4\n")
    with pytest.raises(DataError, match=r"`exclude_overlap` is set, but 1 .* unknown: b\.pdf"):
        prepare(changed)


def test_what_exclude_overlap_cannot_do_is_refused(config, multiway, monkeypatch):
    with pytest.raises(ValueError, match=r"`exclude_overlap` removes .* set `check_overlap`"):
        dataclasses.replace(config, exclude_overlap=True)
    prepare_through_seqio(monkeypatch)
    excluding = dataclasses.replace(
        config, check_overlap=str(multiway / "eval"), exclude_overlap=True
    )
    with pytest.raises(
        ValueError, match="cc100_en yields tokens, but text is needed for exclude_ov"
    ):
        prepare(excluding)


def test_columns_of_scored_pairs(config, tmp_path):
    (tmp_path / "pairs").mkdir()
    lines = [f"1.{i:03}\tNyumba {i}.\tThe house {i}.\n" for i in range(30)]
    (tmp_path / "pairs" / "sw-en.tsv").write_text("".join(lines))
    config = dataclasses.replace(config, tasks=("bitext",), bitext_dir=str(tmp_path / "pairs"))
    with pytest.raises(DataError, match=r"sw-en\.tsv: column 0 .* pass --tsv_columns=1,2"):
        prepare(config)
    config = dataclasses.replace(config, tsv_columns=("1", "2"))  # as a flag gives them
    assert config.tsv_columns == (1, 2)
    prepare(config)
    dataset, vocabulary = PreparedDataset.load(config.output), Vocabulary.load(config.vocabulary)
    first = next(iter(dataset.records(dataset.task("bitext_en_sw")))).tolist()
    encoded = [vocabulary.encode(text) for text in ("The house 0.", "Nyumba 0.")]
    assert first == [0, *encoded[0], 2, *encoded[1], 2]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"validation": "every:1"}, "`validation` is 'every:1'; expected every:20"),
        (
            {"validation": "every:5", "tasks": ("tfds",)},
            "applies only to the tasks cc100, bitext, text, table",
        ),
        ({"tsv_columns": (1, 1)}, r"`tsv_columns` is \(1, 1\); give two different"),
        ({"tsv_columns": ("a", "b")}, "`tsv_columns` is .* give two different columns"),
        ({"tsv_columns": (0, 1, 2, 3)}, "`tsv_columns` is .* give two different columns"),
    ],
)
def test_values_about_splits_and_columns_are_checked(config, fields, message):
    with pytest.raises(ValueError, match=message):
        prepare(dataclasses.replace(config, **fields))


@pytest.mark.parametrize("rule", ["ids", "folder"])
def test_a_missing_file_of_units_is_named(held_config, rule):
    with pytest.raises(DataError, match="nowhere"):
        prepare(dataclasses.replace(held_config, validation=f"{rule}:nowhere"))


def test_without_held_out_data_fingerprints_are_as_before(tmp_path, monkeypatch):
    # Computed before there was `validation`: data sets of that time are not made again.
    monkeypatch.chdir(tmp_path)
    files = {
        "mono/en.txt": "One.\n\nTwo.\n",
        "pairs/a.en-sw.en": "One.\n",
        "pairs/a.en-sw.sw": "Moja.\n",
        "pairs/sw-en.tsv": "Moja.\tOne.\n",
        "pairs/way/ids.txt": "1\n",
        "pairs/way/en.txt": "One.\n",
        "pairs/way/sw.txt": "Moja.\n",
    }
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
        os.utime(name, ns=(10**18, 10**18))
    config = PrepareConfig("out", tasks=("cc100", "bitext"), cc100_dir="mono", bitext_dir="pairs")
    jobs = list_jobs(config, "0" * 64, no_seqio)
    assert {(job.name, job.split): job.fingerprint for job in jobs} == {
        ("cc100_en", "train"): "01f5524a375ab96090ce7db2f9d1decd3797a7aaa121d52b95012260d2248397",
        ("bitext_en_sw", "train"): (
            "ed0d154a6d201564e7315daef516d35cb72379249eec1337670245a9903c5e3e"
        ),
    }
    assert (
        not {"validation", "tsv_columns", "check_overlap"} & prepare_config.settings(config).keys()
    )
    held = dataclasses.replace(config, validation="every:2")
    fingerprints = {job.fingerprint for job in jobs}
    others = list_jobs(held, "0" * 64, no_seqio)
    assert len(others) == 4 and not {job.fingerprint for job in others} & fingerprints
