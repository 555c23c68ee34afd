import pytest

from xlme_jax.api import prepare
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.preparation.prepare_config import PrepareConfig

seqio = pytest.importorskip("seqio")

import tasks  # noqa: E402


@pytest.fixture(scope="module")
def folder(raw, tmp_path_factory):
    path = tmp_path_factory.mktemp("eval")
    files = {
        "tatoeba/tatoeba.swh-eng.swh": raw.sw,
        "tatoeba/tatoeba.swh-eng.eng": raw.en,
        "bucc2018/ru-en.dev.ru": [f"ru-{i}\t{text}" for i, text in enumerate(raw.sw[:3])],
        "bucc2018/ru-en.dev.en": [f"en-{i}\t{text}" for i, text in enumerate(raw.en[:3])],
        "bucc2018/ru-en.dev.gold": ["ru-2\ten-2", "ru-0\ten-0"],
        "wordalign/en-sw/src.txt": ["The big cat sat.", "Old dog"],
        "wordalign/en-sw/tgt.txt": ["Paka mkubwa alikaa.", "Mbwa"],
        "wordalign/en-sw/gold.txt": ["1-1 2-0 3-2", "1-0"],
    }
    for name, lines in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("".join(f"{line}\n" for line in lines))
    return path


def read(name, split):
    dataset = seqio.get_mixture_or_task(name).get_dataset(split=split, shuffle=False)
    return [{k: v.tolist() for k, v in row.items()} for row in dataset.as_numpy_iterator()]


def test_parallel_sets_are_tasks_of_pairs(folder, raw):
    vocabulary = Vocabulary.load(raw.vocabulary)

    def pairs(sources, targets):
        return [
            {"source": vocabulary.encode(s), "target": vocabulary.encode(t)}
            for s, t in zip(sources, targets)
        ]

    assert tasks.analyses.register("tatoeba", folder, raw.vocabulary) == ["tatoeba_sw", "tatoeba"]
    assert read("tatoeba_sw", "test") == pairs(raw.sw, raw.en)
    assert seqio.TaskRegistry.get("tatoeba_sw").source.languages == ("sw", "en")
    assert tasks.analyses.register("bucc", folder, raw.vocabulary) == ["bucc_ru", "bucc"]
    assert read("bucc_ru", "validation") == pairs([raw.sw[0], raw.sw[2]], [raw.en[0], raw.en[2]])
    assert [task.name for task in seqio.MixtureRegistry.get("bucc").tasks] == ["bucc_ru"]


@pytest.mark.slow
def test_word_alignments_bring_their_links(folder, raw):
    vocabulary = Vocabulary.load(raw.vocabulary)
    names = tasks.analyses.register("wordalign", folder, raw.vocabulary)
    assert names == ["wordalign_en_sw", "wordalign"]
    first, second = read("wordalign_en_sw", "test")
    assert first["source"] == vocabulary.encode("The big cat sat.")
    assert first["target"] == vocabulary.encode("Paka mkubwa alikaa.")
    assert first["sure"] == first["possible"] == [1, 1, 2, 0, 3, 2]
    assert second["possible"] == [1, 0]


def test_what_is_missing_is_named(folder, raw, tmp_path):
    with pytest.raises(DataError, match="has no folder for tatoeba"):
        tasks.analyses.register("tatoeba", tmp_path)
    (tmp_path / "tatoeba").mkdir()
    with pytest.raises(DataError, match="has no file of tatoeba"):
        tasks.analyses.register("tatoeba", tmp_path)
    assert tasks.analyses.register_found(tmp_path) == []
    assert tasks.analyses.register_found(folder)[:2] == ["tatoeba_sw", "tatoeba"]


def test_two_alignment_sets_of_one_name_are_refused(tmp_path):
    for name in ("en-sw_dev", "en-sw-dev"):
        (tmp_path / "wordalign" / name).mkdir(parents=True)
        for file in ("src.txt", "tgt.txt", "gold.txt"):
            (tmp_path / "wordalign" / name / file).touch()
    with pytest.raises(ValueError, match=r"en-sw-dev and .*en-sw_dev: both would be the task"):
        tasks.analyses.register_found(tmp_path)


def test_there_is_nothing_to_prepare(folder, raw, tmp_path):
    tasks.analyses.register("tatoeba", folder, raw.vocabulary)
    config = PrepareConfig(str(tmp_path), ("tatoeba_sw",), vocabulary=str(raw.vocabulary))
    with pytest.raises(DataError, match="tatoeba_sw has no split train or validation"):
        prepare(config)
