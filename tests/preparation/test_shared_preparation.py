"""A preparation with many small tasks resumes from the files that they share."""

import pytest
from raw_text import write_raw

from xlme_jax.api import load_tasks, prepare
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.preparation import preparing, tokenizing
from xlme_jax.preparation.prepare_config import PrepareConfig

pytest.importorskip("seqio")
load_tasks()
LANGUAGES = ("et", "fr", "ru", "sw", "zu")


@pytest.fixture
def prepared_again(tmp_path, monkeypatch):
    """Returns the raw text, and a function that prepares it and returns {prepared tasks}."""
    files = {
        f"pairs/en-{language}.tsv": "".join(f"House {i}.\t{language} {i}.\n" for i in range(4))
        for language in LANGUAGES
    }
    texts = [text for content in files.values() for text in content.replace("\t", "\n").split("\n")]
    raw = write_raw(tmp_path, files, texts, 300)
    config = PrepareConfig(
        output=str(tmp_path / "out"),
        tasks=("bitext",),
        vocabulary=str(raw / "v.model"),
        bitext_dir=str(raw / "pairs"),
        workers=1,
    )
    run = tokenizing.run_unit

    def again():
        done = set()
        monkeypatch.setattr(
            tokenizing, "run_unit", lambda *a: (done.add(a[2].job.name), run(*a))[1]
        )
        prepare(config)
        return done

    return raw, again


def test_only_what_changed_or_is_damaged_is_prepared_again(prepared_again, tmp_path, monkeypatch):
    raw, again = prepared_again
    output = tmp_path / "out"

    def content():
        return {f.name: f.read_bytes() for f in output.iterdir() if f.name.startswith("shared")}

    every = {f"bitext_en_{language}" for language in LANGUAGES}
    assert again() == every
    whole = content()
    assert not [path for path in output.iterdir() if path.is_dir()] and len(whole) == 2
    assert all(task.is_shared for task in PreparedDataset.load(output).tasks)
    assert again() == set() and content() == whole
    path = next(output.glob("shared-*.arrayrecord"))
    path.write_bytes(path.read_bytes()[:-1])
    assert again() == every and content() == whole

    # A kill after the shared files are written, before `dataset.json` names them.
    (raw / "pairs" / "en-sw.tsv").write_text("Houses.\tnyumba.\n")
    (raw / "pairs" / "en-yo.tsv").write_text("A house.\tile.\n")
    with monkeypatch.context() as patch:
        patch.setattr(preparing.dropping, "drop", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            again()
    assert not (output / "dataset.json").exists() and whole.keys() < content().keys()
    assert again() == set()
    tasks = PreparedDataset.load(output).tasks
    assert {task.name: task.examples for task in tasks} == {
        **dict.fromkeys(every, 4),
        "bitext_en_sw": 1,
        "bitext_en_yo": 1,
    }
    assert len(content()) == 2 and not content().keys() & (whole.keys())
    assert not [path for path in output.iterdir() if path.is_dir()]


def test_few_tasks_go_on_to_share_files(prepared_again, tmp_path):
    raw, again = prepared_again
    again()
    for language in ("fr", "ru"):
        (raw / "pairs" / f"en-{language}.tsv").unlink()
    assert again() == set()
    tasks = PreparedDataset.load(tmp_path / "out").tasks
    assert len(tasks) == 3 and all(task.is_shared for task in tasks)
    (raw / "pairs" / "en-fr.tsv").write_text("A house.\tune maison.\n")
    assert again() == {"bitext_en_fr"}
