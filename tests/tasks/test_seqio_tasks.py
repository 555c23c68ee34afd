import os
import subprocess
import sys

import numpy as np
import pytest

from xlme_jax import api
from xlme_jax.data.batches import mixing
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError
from xlme_jax.preparation.prepare_config import PrepareConfig

seqio = pytest.importorskip("seqio")

import tasks  # noqa: E402


@pytest.fixture(scope="module")
def vocabulary(raw):
    return Vocabulary.load(raw.vocabulary)


@pytest.fixture
def cc100(raw):
    return tasks.cc100.register(raw.mono, vocabulary=raw.vocabulary)


@pytest.fixture
def bitext(raw):
    return tasks.bitext.register(raw.pairs, vocabulary=raw.vocabulary)


def read(name, **options):
    dataset = seqio.get_mixture_or_task(name).get_dataset(**{"shuffle": False, **options})
    return [{k: v.tolist() for k, v in example.items()} for example in dataset.as_numpy_iterator()]


def test_tokens_are_those_of_bare_sentencepiece(raw, cc100, vocabulary):
    documents = ["\n".join(raw.en[i : i + 3]) for i in range(0, len(raw.en), 3)]
    assert read("cc100_en") == [{"tokens": vocabulary.encode(text)} for text in documents]


def test_pairs_come_from_all_files_of_a_pair(raw, bitext, vocabulary):
    pairs = [
        *zip(raw.en[:5], raw.sw[:5]),
        *zip(raw.en, raw.sw),
    ]  # the Moses files sort before the TSV file
    expected = [{"source": vocabulary.encode(e), "target": vocabulary.encode(f)} for e, f in pairs]
    assert read("bitext_en_sw") == expected


def test_prepared_ids_are_those_of_seqio(raw, cc100, bitext, tmp_path):
    config = PrepareConfig(
        str(tmp_path / "out"),
        ("cc100", "bitext"),
        vocabulary=str(raw.vocabulary),
        cc100_dir=str(raw.mono),
        bitext_dir=str(raw.pairs),
        workers=1,
    )
    api.prepare(config)
    dataset = PreparedDataset.load(config.output)
    for language in ("en", "sw"):
        ids = [i for example in read(f"cc100_{language}") for i in (0, *example["tokens"], 2)]
        task = dataset.task(f"cc100_{language}")
        assert np.concatenate(dataset.records(task)).tolist() == ids
    pairs = [[0, *pair["source"], 2, *pair["target"], 2] for pair in read("bitext_en_sw")]
    records = [record.tolist() for record in dataset.records(dataset.task("bitext_en_sw"))]
    assert records == pairs


@pytest.mark.slow
def test_sharded_by_file(bitext):
    task = seqio.TaskRegistry.get("bitext_en_sw")
    assert [os.path.basename(n).split(".")[0] for n in task.source.list_shards("train")] == [
        "two",
        "one",
    ]
    parts = [read("bitext_en_sw", shard_info=seqio.ShardInfo(i, 2)) for i in range(2)]
    assert [len(part) for part in parts] == [5, 12]
    assert parts[0] + parts[1] == read("bitext_en_sw")
    # More shards than files: SeqIO deals out the examples.
    assert [len(read("bitext_en_sw", shard_info=seqio.ShardInfo(i, 3))) for i in range(3)] == [
        6,
        6,
        5,
    ]


@pytest.mark.slow
def test_mixture_trims_and_repeats(cc100):
    mixture = seqio.get_mixture_or_task("cc100")
    # Without a buffer of a thousand examples to shuffle, which twelve sentences fill slowly.
    dataset = mixture.get_dataset(
        sequence_length={"tokens": 4}, split="train", shuffle=False, seed=3
    )
    tokens = [example["tokens"] for example in dataset.take(50).as_numpy_iterator()]
    assert len(tokens) == 50 and all(t.dtype == np.int32 and len(t) == 4 for t in tokens)


def test_shuffling_keeps_the_examples(cc100):
    def content(examples):
        return sorted(example["tokens"] for example in examples)

    assert content(read("cc100_sw", shuffle=True, seed=1)) == content(read("cc100_sw"))


def test_rates_follow_file_sizes_by_the_training_rule(raw, cc100):
    names = ["cc100_en", "cc100_sw"]
    sizes = [(raw.mono / f"{n[-2:]}.txt.xz").stat().st_size for n in names]
    mixture = seqio.get_mixture_or_task("cc100")
    rates = [mixture.get_rate(seqio.TaskRegistry.get(name)) for name in names]
    np.testing.assert_allclose(rates, mixing.temperature_weights(sizes, 0.7), rtol=1e-12)


def test_rates_of_known_examples():
    from xlme_jax.data.cldr.corpus import CldrConfig
    from xlme_jax.preparation.prepare_config import CldrCorpus

    corpus = CldrCorpus(CldrConfig(("de", "en"), kinds=("date",)), documents=3, pairs=5)
    assert tasks.cldr.register(corpus) == ["cldr", "cldr_bitext"]
    mixture = seqio.get_mixture_or_task("cldr")
    assert [mixture.get_rate(task) for task in mixture.tasks] == [0.5, 0.5]
    assert mixture.num_input_examples("train") == 6


def test_vocabulary_decodes_in_tensorflow(raw, vocabulary):
    import tensorflow as tf

    adapter = tasks.features.XlmVocabulary(raw.vocabulary)
    ids = adapter.encode(raw.en[0])
    assert (
        ids
        == vocabulary.encode(raw.en[0])
        == adapter.encode_tf(tf.constant(raw.en[0])).numpy().tolist()
    )
    assert adapter.decode([*ids, 2, *ids]) == raw.en[0]
    assert adapter.decode_tf(tf.constant([ids, ids])).numpy().tolist() == [raw.en[0].encode()] * 2
    assert adapter.vocab_size == vocabulary.size
    assert adapter == tasks.features.XlmVocabulary(raw.vocabulary)


def test_what_is_missing_is_named(raw, monkeypatch):
    for variable in ("CC100_DIR", "BITEXT_DIR", "XLME_VOCABULARY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(DataError, match="CC100_DIR"):
        tasks.cc100.register()
    with pytest.raises(DataError, match="nowhere"):
        tasks.bitext.register(raw.mono / "nowhere")
    with pytest.raises(DataError, match="xx"):
        tasks.cc100.register(raw.mono, ["en", "xx"])
    tasks.cc100.register(raw.mono)
    with pytest.raises(VocabularyError, match="XLME_VOCABULARY"):
        seqio.get_mixture_or_task("cc100").get_dataset(split="train").take(1).get_single_element()


def test_tasks_of_an_earlier_call_are_replaced(tmp_path):
    (tmp_path / "en-sw.tsv").touch()
    for _ in range(2):
        assert tasks.bitext.register(tmp_path) == ["bitext"]


@pytest.mark.slow
def test_importing_tasks_reads_no_text(raw, tmp_path):
    # Files that cannot be read: a directory listing is all that importing may need.
    (tmp_path / "en.txt.xz").write_bytes(b"no xz file")
    code = (
        "import seqio, tasks; print(sorted(n for n in seqio.MixtureRegistry.names() "
        "if 'translate_train' not in n), "
        "[t.name for t in seqio.get_mixture_or_task('cc100').tasks], "
        "'babel' in __import__('sys').modules)"
    )
    environment = {**os.environ, "CC100_DIR": str(tmp_path), "BITEXT_DIR": str(raw.pairs)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['bitext', 'cc100', 'cldr', 'cldr_bitext'] ['cc100_en'] False"
