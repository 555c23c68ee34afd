import pytest

from xlme_jax.data.vocabulary import Vocabulary

tfds = pytest.importorskip("tensorflow_datasets")
seqio = pytest.importorskip("seqio")

import tasks  # noqa: E402


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wiki40b/th:1.3.0=th", ("tfds_wiki40b_th", "wiki40b/th:1.3.0", ("th",), ("text",))),
        (
            "para_crawl/ende:1.2.0=en-de",
            ("tfds_para_crawl_ende", "para_crawl/ende:1.2.0", ("en", "de"), ("en", "de")),
        ),
        (
            "wmt14_translate/de-en:1.0.0=de-en",
            (
                "tfds_wmt14_translate_de_en",
                "wmt14_translate/de-en:1.0.0",
                ("de", "en"),
                ("de", "en"),
            ),
        ),
        ("x:1.0.0=en-sw@a,b/c", ("tfds_x", "x:1.0.0", ("en", "sw"), ("a", "b/c"))),
    ],
)
def test_a_line_names_a_data_set(line, expected):
    text = tasks.tfds.TfdsText.parse(line)
    assert (text.task, text.name, text.languages, text.fields) == expected


@pytest.mark.parametrize(
    "line", ["wiki40b/th=th", "x:1.0.0=en-de-fr", "x:1.0.0=en@a,b", "x:1=", ""]
)
def test_other_lines_are_refused(line):
    with pytest.raises(ValueError, match="tfds: cannot read"):
        tasks.tfds.TfdsText.parse(line)
    with pytest.raises(ValueError, match="no data set given"):
        tasks.tfds.register_all([])


def test_two_lines_of_one_set_are_refused():
    lines = ["wiki40b/th:1.3.0=th", "wiki40b/en:1.3.0=en", "wiki40b/th:1.2.0=th"]
    with pytest.raises(ValueError, match=r"th:1\.3\.0=th and .*th:1\.2\.0=th: both .*remove one"):
        tasks.tfds.register_all(lines)


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        pytest.param("wiki40b/th:1.3.0=th", {"tokens": "text"}, marks=pytest.mark.slow),
        ("para_crawl/ende:1.2.0=en-de", {"source": "en", "target": "de"}),
    ],
)
def test_text_and_translation_sets_become_tasks(line, fields, raw, tmp_path):
    vocabulary = Vocabulary.load(raw.vocabulary)
    with tfds.testing.mock_data(num_examples=5):
        tasks.tfds.register_all([line], raw.vocabulary)
        text = tasks.tfds.TfdsText.parse(line)
        task = seqio.get_mixture_or_task(text.task)
        assert task.source.languages == text.languages
        got = list(task.get_dataset(split="train", shuffle=False).as_numpy_iterator())
        source = list(tfds.load(text.name, split="train").as_numpy_iterator())
        assert len(got) == len(source) == 5
        for example, original in zip(got, source):
            assert {k: v.tolist() for k, v in example.items()} == {
                feature: vocabulary.encode(original[field].decode())
                for feature, field in fields.items()
            }
