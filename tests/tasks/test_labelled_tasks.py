import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import chemprot_files

from xlme_jax.api import prepare
from xlme_jax.data.batches import mixing
from xlme_jax.data.benchmarks import featurize, labelled_rows
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS, benchmark
from xlme_jax.data.benchmarks.examples import (
    Answer,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.data.token_ids import IGNORED
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
from xlme_jax.preparation.prepare_config import PrepareConfig

tfds = pytest.importorskip("tensorflow_datasets")
seqio = pytest.importorskip("seqio")

import tensorflow as tf  # noqa: E402
from helpers import tiny  # noqa: E402
from helpers.through_seqio import prepare_through_seqio  # noqa: E402

import tasks  # noqa: E402

EVAL = tiny.REPOSITORY.parent / "shared" / "data" / "eval"

SENTENCES = [
    [("The", "DET"), ("big", "ADJ"), ("cat", "NOUN"), ("sat", "VERB")],
    [("Old", "ADJ"), ("dog", "NOUN")],
    [("Red", "ADJ"), ("cat", "NOUN"), ("ran", "VERB")],
]
CONTEXT = "The big cat sat. The old dog ran."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes two benchmarks in the layout of XTREME's download, and one of SQuAD's."""
    path = tmp_path_factory.mktemp("eval")
    (path / "udpos").mkdir()
    for split, languages in (("train", "en de"), ("dev", "en de sw"), ("test", "sw")):
        for count, language in enumerate(languages.split(), 1):
            lines = ["\n".join("\t".join(pair) for pair in some) for some in SENTENCES[:count]]
            (path / "udpos" / f"{split}-{language}.tsv").write_text("\n\n".join(lines) + "\n")
    (path / "xnli").mkdir()
    for language in ("en", "sw"):
        rows = [f"The cat {i} sat\tThe dog {i} ran\tneutral\n" for i in range(4)]
        (path / "xnli" / f"dev-{language}.tsv").write_text("".join(rows))
    (path / "squad").mkdir()
    question = {"id": "q", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 8}]}
    content = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [question]}]}]}
    (path / "squad" / "train-v1.1.json").write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module")
def vocabulary(raw):
    return Vocabulary.load(raw.vocabulary)


def read(name, split="train"):
    dataset = seqio.get_mixture_or_task(name).get_dataset(split=split, shuffle=False)
    return [{k: v.tolist() for k, v in row.items()} for row in dataset.as_numpy_iterator()]


def expected(vocabulary, name, examples, max_length=128, stride=128):
    rows = featurize.encode(
        vocabulary,
        benchmark(name),
        examples,
        max_length,
        stride=stride,
        report=ReadReport(),
        training=True,
    )
    return [{"tokens": r.tokens.tolist(), "labels": r.labels.tolist()} for r in rows]


def tagged(count):
    return [
        TaggedExample(str(i), tuple(w for w, _ in some), tuple(tag for _, tag in some))
        for i, some in enumerate(SENTENCES[:count])
    ]


@pytest.mark.slow
def test_chemprot_has_a_task_for_groups_and_one_for_types(tmp_path, raw, vocabulary):
    for split in ("train", "validation", "test"):
        chemprot_files.write(tmp_path / "ChemProt_Corpus", split)
    for name, count in (("chemprot", 5), ("chemprot_types", 4)):
        assert tasks.labelled.register(name, tmp_path, raw.vocabulary) == [
            *(name, f"{name}_en", f"{name}_validation_en")
        ]
        splits = {"train", "validation_en", "test_en"}
        assert set(seqio.TaskRegistry.get(name).splits) == splits
        examples = benchmark(name).read(tmp_path / "ChemProt_Corpus", "train", "en", ReadReport())
        for split in splits:
            assert read(name, split) == expected(vocabulary, name, examples)
        assert len(examples) == count


def test_splits_are_training_data_and_each_language(folder, raw, vocabulary):
    names = tasks.labelled.register("udpos", folder, raw.vocabulary)
    assert names == [
        "udpos",
        *("udpos_de", "udpos_en"),
        *("udpos_validation_de", "udpos_validation_en", "udpos_validation_sw"),
        "udpos_translate_train",
    ]
    task = seqio.TaskRegistry.get("udpos")
    assert set(task.splits) == {
        "train",
        *("validation_de", "validation_en", "validation_sw"),
        "test_sw",
    }
    [row] = read("udpos")
    assert [row] == expected(vocabulary, "udpos", tagged(1))
    ids = benchmark("udpos").labels.index
    assert [label for label in row["labels"] if label != IGNORED] == [
        ids(tag) for _, tag in SENTENCES[0]
    ]
    assert read("udpos", "validation_sw") == expected(vocabulary, "udpos", tagged(3))
    assert read("udpos", "test_sw") == read("udpos_en")
    assert read("udpos_validation_sw") == read("udpos", "validation_sw")
    assert read("udpos_de") == expected(vocabulary, "udpos", tagged(2))


def test_translate_train_mixes_by_the_training_rule(folder, raw):
    tasks.labelled.register("udpos", folder, raw.vocabulary)
    mixture = seqio.get_mixture_or_task("udpos_translate_train")
    assert [task.name for task in mixture.tasks] == ["udpos_de", "udpos_en"]
    rates = [mixture.get_rate(task) for task in mixture.tasks]
    np.testing.assert_allclose(rates, mixing.temperature_weights([2, 1], 0.7), rtol=1e-12)


def test_windows_of_a_question_are_rows(folder, raw, vocabulary):
    tasks.labelled.register("squad", folder, raw.vocabulary, max_length=24, stride=4)
    example = QuestionExample("q", "Who sat?", CONTEXT, (Answer("cat", 8),))
    rows = read("squad")
    assert rows == expected(vocabulary, "squad", [example], 24, 4)
    assert len(rows) > 1 and all(len(row["labels"]) == 2 for row in rows)


def test_what_is_missing_is_named(folder, raw, monkeypatch, tmp_path):
    monkeypatch.delenv("EVAL_DIR", raising=False)
    with pytest.raises(DataError, match="EVAL_DIR"):
        tasks.labelled.register("xnli")
    with pytest.raises(DataError, match="has no folder for panx: put its files into panx or ner"):
        tasks.labelled.register("panx", folder)
    (tmp_path / "panx").mkdir()
    with pytest.raises(DataError, match="has no file of panx"):
        tasks.labelled.register("panx", tmp_path)
    with pytest.raises(ValueError, match="did you mean xnli"):
        tasks.labelled.register("xnl", folder)
    with pytest.raises(ValueError, match=r"TFDS does not have americasnli.*--eval_dir"):
        tasks.labelled_tfds.register("americasnli")


@pytest.mark.slow
def test_the_environment_and_the_package_are_always_registered(folder, raw):
    code = (
        "import seqio, tasks; n = seqio.TaskRegistry.names(); "
        "print([t in n for t in ('xnli', 'cldr_tagging', 'tfds_squad2', 'panx')], "
        "'cldr_answers_translate_train' in seqio.MixtureRegistry.names())"
    )
    environment = {**os.environ, "EVAL_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[True, True, True, False] True"


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_examples_survive_as_text(name):
    example = {
        "tagging": TaggedExample("1", ("a\tb", "א"), ("X", "Y")),
        "question_answering": QuestionExample("1", "q\n", "c", (Answer("c", 0),)),
        "regression": TextExample("1", ("a", "b"), 2.5),
        "classification": TextExample("1", ("a",), None),
        "multiple_choice": TextExample("1/2", ("a", "q b"), "right"),
    }[benchmark(name).kind]
    text = labelled_rows.to_text(example)
    assert "\n" not in text
    assert labelled_rows.from_text(benchmark(name).kind, text) == example


@pytest.fixture
def config(folder, raw, tmp_path):
    return PrepareConfig(
        output=str(tmp_path / "out"),
        tasks=("udpos", "udpos_translate_train"),
        vocabulary=str(raw.vocabulary),
        eval_dir=str(folder),
        workers=1,
    )


def rows_of(dataset, name):
    task = dataset.task(name)
    read = dataset.read_labelled(task, np.arange(task.examples))
    return [{"tokens": ids.tolist(), "labels": labels.tolist()} for ids, labels in read]


@pytest.mark.parametrize("runner", tiny.slow_except([""], ["", "DirectRunner"]))
def test_tasks_become_prepared_data(config, vocabulary, runner):
    if runner:
        pytest.importorskip("apache_beam")
    prepare(dataclasses.replace(config, runner=runner))
    dataset = PreparedDataset.load(config.output)
    languages = {task.name: (task.languages, task.labels) for task in dataset.tasks}
    assert languages == {
        "udpos": (("en",), "tokens"),
        "udpos_de": (("de",), "tokens"),
        "udpos_en": (("en",), "tokens"),
    }
    for name, count in (("udpos", 1), ("udpos_de", 2), ("udpos_en", 1)):
        assert rows_of(dataset, name) == expected(vocabulary, "udpos", tagged(count))
    dataset.verify()


@pytest.mark.slow
def test_workers_and_seqio_write_the_same(config, tmp_path, monkeypatch):
    prepare(config)
    one = PreparedDataset.load(config.output)
    prepare_through_seqio(monkeypatch)
    other = dataclasses.replace(config, output=str(tmp_path / "seqio"))
    prepare(other)
    assert one.digest == PreparedDataset.load(other.output).digest


def test_a_second_run_does_nothing_until_settings_change(config, capfd):
    first = prepare(config)
    assert prepare(config) == first
    assert "3 finished before" in capfd.readouterr().err
    again = dataclasses.replace(config, max_length=6)
    rows = prepare(again)
    assert "0 finished before" in capfd.readouterr().err
    assert [row.longest <= 6 for row in rows] == [True] * 3
    assert rows[1].examples > first[1].examples  # split, not cut


def test_without_training_data_the_error_names_other_tasks(config, vocabulary):
    with pytest.raises(DataError, match=r"xnli has no English training data.*xnli_validation_en"):
        prepare(dataclasses.replace(config, tasks=("xnli",)))
    with pytest.raises(ValueError, match=r"unknown task 'udpos_sw'\. Did you mean .*udpos_de"):
        prepare(dataclasses.replace(config, tasks=("udpos_sw",)))
    prepare(dataclasses.replace(config, tasks=("xnli_validation_sw",)))
    dataset = PreparedDataset.load(config.output)
    [task] = dataset.tasks
    assert (task.name, task.split, task.languages, task.labels) == (
        "xnli_validation_sw",
        "train",
        ("sw",),
        "one",
    )
    assert [row["labels"] for row in rows_of(dataset, task.name)] == [[2]] * 4
    with pytest.raises(VocabularyError, match="train_vocabulary"):
        out = config.output + "2"
        prepare(dataclasses.replace(config, tasks=("xnli",), vocabulary=None, output=out))


def test_embedded_benchmarks_need_no_folder(config):
    prepare(dataclasses.replace(config, tasks=("cldr_answers",), eval_dir=None))
    [task] = PreparedDataset.load(config.output).tasks
    assert (task.labels, task.examples > 100) == ("two", True)


def test_a_wrong_label_stops_the_preparation(config, tmp_path):
    (tmp_path / "bad" / "xnli").mkdir(parents=True)
    (tmp_path / "bad" / "xnli" / "train-en.tsv").write_text("a\tb\tneutral\na\tb\tmaybe\n")
    with pytest.raises(DataError, match=r"train-en\.tsv, line 2: label 'maybe'"):
        prepare(dataclasses.replace(config, tasks=("xnli",), eval_dir=str(tmp_path / "bad")))


@pytest.mark.slow
@pytest.mark.skipif(not EVAL.is_dir(), reason=f"{EVAL} is not there")
def test_real_files_become_tasks(raw):
    names = tasks.labelled.register_found(EVAL, raw.vocabulary)
    names += tasks.analyses.register_found(EVAL, raw.vocabulary)
    found = set(names)
    assert {"udpos", "panx_translate_train", "tydiqa", "xquad", "wnli", "tatoeba_de"} <= found
    assert {"xnli_validation_sw", "americasnli_validation_quy", "bucc_zh"} <= found
    wanted = [
        ("udpos", "train"),
        ("panx", "validation_sw"),
        ("xnli", "test_de"),
        ("xquad", "test_zh"),
        ("mlqa", "validation_hi"),
        ("rte", "train"),
        ("americasnli_validation_quy", "train"),
        ("wordalign_en_fr", "test"),
        ("bucc_zh", "validation"),
    ]
    for name, split in wanted:
        dataset = seqio.get_mixture_or_task(name).get_dataset(split=split, shuffle=False)
        row = next(dataset.as_numpy_iterator())
        assert len(row["source" if "source" in row else "tokens"]) > 0, name


# --- TFDS ---

MOCKED = {
    "multi_nli": [
        {"premise": b"big cat", "hypothesis": b"old dog", "label": label} for label in (0, 1, 2)
    ],
    "xnli": [
        {
            "premise": {"de": b"no", "sw": b"Paka"},
            "hypothesis": {"language": [b"de", b"sw"], "translation": [b"no", b"Mbwa"]},
            "label": 2,
        }
    ],
    "paws_x_wiki": [{"sentence1": b"cat", "sentence2": b"dog", "label": 1}],
    "xtreme_pos": [{"tokens": [b"cat", b"of", b"sat"], "upos": [7, 17, 15]}],
    "wikiann": [
        {"tokens": [b"cat", b"sat"], "tags": [1, 0], "langs": [b"sw"] * 2, "spans": [b"PER: cat"]}
    ],
    "tydi_qa": [
        {
            "id": id,
            "title": b"",
            "question": b"Who sat?",
            "context": CONTEXT.encode(),
            "answers": {"text": [b"cat", b"cat"], "answer_start": starts},
        }
        for id, starts in (
            (b"swahili-1", [8, 8]),
            (b"english-1", [8, 9]),
            (b"english-2", [7, 9]),
        )
    ],
    "glue": [
        {"sentence1": b"cat", "sentence2": b"dog", "idx": i, "label": np.float32(score)}
        for i, score in enumerate((2.5, -1.0))
    ],
}


def mocked(self, *args, **kwargs):
    def signature(value):
        array = np.asarray(value)
        kind = tf.string if array.dtype.kind == "S" else array.dtype
        return tf.TensorSpec([None] * array.ndim, kind)

    def structure(value):
        if isinstance(value, dict):
            return {name: structure(item) for name, item in value.items()}
        return signature(value)

    examples = MOCKED[self.name]
    return tf.data.Dataset.from_generator(
        lambda: iter(examples), output_signature=structure(examples[0])
    )


def text_rows(vocabulary, name, examples, labels):
    made = [TextExample("", texts, label) for texts, label in zip(examples, labels)]
    return expected(vocabulary, name, made)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [("udpos", "tydiqa"), ()], ids=["some", "all"])
def test_sets_of_tfds_become_the_same_rows(raw, vocabulary, chosen):
    pair = ("cat", "dog")
    question = QuestionExample("", "Who sat?", CONTEXT, (Answer("cat", 8),))
    nli = text_rows(
        vocabulary,
        "xnli",
        [("big cat", "old dog")] * 3,
        ["entailment", "neutral", "contradiction"],
    )
    cases = [
        ("xnli", "train", nli),
        (
            "xnli",
            "validation_sw",
            text_rows(vocabulary, "xnli", [("Paka", "Mbwa")], ["contradiction"]),
        ),
        ("pawsx_de", "train", text_rows(vocabulary, "pawsx", [pair], ["1"])),
        (
            "udpos",
            "validation_de",
            expected(vocabulary, "udpos", [TaggedExample("", ("cat", "sat"), ("NOUN", "VERB"))]),
        ),
        (
            "panx_sw",
            "train",
            expected(vocabulary, "panx", [TaggedExample("", ("cat", "sat"), ("B-PER", "O"))]),
        ),
        ("tydiqa", "train", expected(vocabulary, "tydiqa", [question], 384)),
        # The second one is of a test set: without a score.
        ("stsb", "train", text_rows(vocabulary, "stsb", [pair], [2.5])),
    ]
    with tfds.testing.mock_data(as_dataset_fn=mocked):
        for name, split, rows in cases:
            if chosen and name not in chosen:
                continue
            tasks.labelled_tfds.register(name.split("_")[0], raw.vocabulary)
            assert read(f"tfds_{name}", split) == rows, name


def test_labels_of_tfds_must_be_those_of_the_benchmark():
    feature = tfds.features.ClassLabel(names=["no", "yes"])
    assert tasks.labelled_tfds.label_names({"label": feature}, benchmark("pawsx")) == ("0", "1")
    with pytest.raises(ValueError, match="TFDS has the labels"):
        tasks.labelled_tfds.label_names({"label": feature}, benchmark("xnli"))


def test_tfds_knows_the_languages_of_the_benchmarks():
    for name, subsets in tasks.labelled_tfds.SUBSETS.items():
        assert {language for _, language in subsets} == set(benchmark(name).languages), name


def test_sets_of_tfds_are_prepared(config, tmp_path, monkeypatch, vocabulary):
    class TinyQuestions(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            answers = {"text": tfds.features.Text(), "answer_start": np.int32}
            fields = {
                **{name: tfds.features.Text() for name in ("id", "question", "context")},
                "answers": tfds.features.Sequence(answers),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(fields))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, start in enumerate((8, 8, 3)):
                answers = {"text": ["cat"], "answer_start": [start]}
                fields = {"id": f"{number}", "question": "Who sat?", "context": CONTEXT}
                yield number, {**fields, "answers": answers}

    TinyQuestions(data_dir=tmp_path / "tfds").download_and_prepare()
    subset = tasks.labelled_tfds.Subset("tiny_questions:1.0.0", "train")
    monkeypatch.setitem(tasks.labelled_tfds.SUBSETS, "squad", {("train", "en"): subset})
    seqio.set_tfds_data_dir_override(str(tmp_path / "tfds"))
    try:
        prepare(dataclasses.replace(config, tasks=("tfds_squad",)))
    finally:
        seqio.set_tfds_data_dir_override(None)
    dataset = PreparedDataset.load(config.output)
    [task] = dataset.tasks
    question = QuestionExample("", "Who sat?", CONTEXT, (Answer("cat", 8),))
    assert rows_of(dataset, "tfds_squad") == expected(vocabulary, "squad", [question] * 2, 384)
    assert task.skipped == {
        "answer not in its context at its offset": 1,
        "question without a usable answer": 1,
    }
