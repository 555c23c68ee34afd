"""What `xlme_jax.evaluate` passes to each evaluation."""

import pytest
from helpers import hf_folders

from xlme_jax.evaluation import measures
from xlme_jax.evaluation.results import read
from xlme_jax.runs import evaluating
from xlme_jax.studies.reports import evaluation_text


@pytest.fixture
def folder(tmp_path):
    for name in ("de-en", "en-fr", "en-fr_dev", "ro-en"):
        (tmp_path / "wordalign" / name).mkdir(parents=True)
    for split in ("dev", "training"):
        for code in ("de", "zh") if split == "dev" else ("de",):
            for name in (code, "en"):
                path = tmp_path / "bucc2018" / f"{code}-en.{split}.{name}"
                path.parent.mkdir(exist_ok=True)
                path.touch()
    (tmp_path / "tatoeba").mkdir()
    return tmp_path


def settings(task, folder, **options):
    options = evaluating.Options(data=str(folder), **options)
    return measures.of_task(task).requested(task, options, ())


def test_languages_and_sets_go_to_the_tasks_that_have_them(folder):
    options = {"tasks": ("tatoeba", "wordalign", "bucc"), "languages": ("de", "sw", "fr-en")}
    assert settings("tatoeba", folder, **options).languages == ("de", "sw")
    assert settings("wordalign", folder, **options).corpora == ("fr-en",)
    assert settings("bucc", folder, **options).languages == ("de",)
    assert settings("bucc", folder, tasks=("bucc",), languages=("sw",)).languages == ("sw",)
    assert settings("wordalign", folder, languages=("ro", "fr")).corpora == (
        *("en-fr", "en-fr_dev", "ro-en"),
    )
    assert settings("wordalign", folder).corpora == settings("bucc", folder).languages == ()


def test_languages_that_no_file_has_are_errors(folder):
    options = {"tasks": ("tatoeba", "wordalign", "bucc"), "languages": ("sw", "en")}
    with pytest.raises(ValueError, match=r"--languages=sw,en: .* has no word alignments of sw;"):
        settings("wordalign", folder, **options)
    with pytest.raises(ValueError, match=r"--languages=sw,en: .*, test; choose from de, or leave"):
        settings("bucc", folder, **options)
    with pytest.raises(ValueError, match="no word alignments of sw; choose from de-en, en-fr"):
        settings("wordalign", folder, tasks=("wordalign",), languages=("sw", "de"))
    for task in ("bucc", "tatoeba"):
        with pytest.raises(ValueError, match=r"pairs each language with English; .* such as de"):
            settings(task, folder, tasks=(task,), languages=("de-en",))


@pytest.mark.parametrize("task", ["tatoeba", "bucc"])
def test_pairs_never_stand_for_all_languages(folder, task, caplog):
    options = evaluating.Options(data=str(folder), languages=("de-en", "ro-en"))
    assert [*evaluating._settings([task, "wordalign"], options, ())] == ["wordalign"]
    assert f"{task} is left out: it reads none of --languages=de-en,ro-en" in caplog.text
    with pytest.raises(ValueError, match="pairs each language with English"):
        evaluating._settings([task, "sib200_probe"], options, ())


def test_languages_that_are_left_out_are_said(folder, caplog):
    options = evaluating.Options(data=str(folder), languages=("de", "sw"))
    evaluating._settings(["tatoeba", "bucc"], options, ())
    assert "bucc is not evaluated in sw, test" in caplog.text
    options = evaluating.Options(data=str(folder), languages=("de", "ro-en"))
    evaluating._settings(["wordalign"], options, ())
    assert "de is left out, as sets are named too" in caplog.text


def test_sets_and_languages_are_named_in_every_spelling(folder):
    for code in ("pt-br", "zh-tw", "swh_Latn"):
        assert settings("tatoeba", folder, languages=(code,)).languages == (code,)
    assert settings("bucc", folder, languages=("deu",), tasks=("bucc", "x")).languages == ("de",)
    chosen = settings("wordalign", folder, languages=("ron",))
    assert chosen.corpora == ("ro-en",)
    chosen = settings("wordalign", folder, languages=("deu-eng", "eng-ron"))
    assert list(chosen._names()) == ["de-en", "ro-en"]


def test_the_split_reaches_bucc(folder):
    assert settings("bucc", folder, split="validation").split == "validation"
    assert settings("bucc", folder, split="test").split == "test"
    assert settings("bucc", folder).split == "test"
    (folder / "bucc2018" / "de-en.training.en").unlink()
    assert settings("bucc", folder).split == "validation"


def test_a_task_that_does_not_exist_is_named_first():
    with pytest.raises(ValueError, match="unknown 'held_out_retrival'; did you mean held_out_ret"):
        evaluating.evaluate("no/such/run", evaluating.Options(tasks=("held_out_retrival",)))


def test_the_encoders_of_a_system_are_evaluated_under_their_names(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run", "xlme")
    (tmp_path / "tatoeba").mkdir()
    for code, lines in (("rus", ["ab cd", "ef", "gh ij kl"]), ("eng", ["dc ba", "fe", "lk ji hg"])):
        (tmp_path / "tatoeba" / f"tatoeba.rus-eng.{code}").write_text("\n".join(lines) + "\n")
    options = evaluating.Options(tasks=("tatoeba",), data=str(tmp_path), layer=1)
    [outcome], path = evaluating.evaluate(str(run), options)
    assert outcome.encoder == "discriminator"
    assert "tatoeba_readouts.png" in outcome.files and (path.parent / "results.json").is_file()
    systems = {row.system for row in read(path).results}
    assert systems >= {"model", "untrained", "generator", "generator (untrained)", "chance"}
    heads = [line.split() for line in evaluation_text.to_text([outcome]).splitlines()]
    names = [words[0] for words in heads if words[1:3] == ["raw", "centred_transductive"]]
    assert names == ["discriminator", "generator"]
