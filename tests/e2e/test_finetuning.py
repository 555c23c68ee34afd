"""Fine-tuning from a pre-training run, and evaluation, on the embedded corpus."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from helpers import finetuning, hf_folders, tiny
from helpers.finetuning import finetune_flags, load, write_labelled, write_vocabulary
from helpers.runs import Interrupted, assert_same_bits

from xlme_jax.checkpoints.saved import read_best
from xlme_jax.configuration import loading, values
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.results import read
from xlme_jax.objectives.finetune import HEAD
from xlme_jax.preparation.preparing import train_cldr_vocabulary
from xlme_jax.runs import evaluating

TASKS = ("cldr_classification", "cldr_tagging", "cldr_answers")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return Vocabulary.load(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, vocabulary):
    """Returns a run with random weights."""
    folder = tmp_path_factory.mktemp("start") / "pretrained"
    return hf_folders.write_checkpoint(
        folder, words=vocabulary, Encoder__max_length=finetuning.LENGTH
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory, vocabulary):
    """Returns a function from a task to its data."""
    folder = tmp_path_factory.mktemp("labelled")
    return functools.cache(lambda task: write_labelled(folder / task, task, vocabulary))


@pytest.mark.parametrize("task", tiny.slow_except({"cldr_tagging"}, TASKS))
def test_a_run_starts_from_the_encoder_and_logs_its_figures(tmp_path, pretrained, data, task):
    state = finetuning.run(finetune_flags(tmp_path, data(task), pretrained, task))
    # An epoch of 64 examples, in some more rows if their contexts take several.
    assert 8 <= int(state.step) <= 24
    last = tiny.metrics(tmp_path)[-1]
    languages = {name.split("/")[-1] for name in last if name.startswith(f"eval/{task}")}
    assert languages == {"en", "ru", "el", "mean"}
    _, began = hf_folders.read_checkpoint(pretrained)
    moved = jax.tree.map(
        lambda a, b: float(np.abs(a - b).max()),
        state.params["discriminator"],
        began["discriminator"],
    )
    # Eight updates of a rate below 1e-3 each: it began where pre-training ended.
    assert 0 < max(jax.tree.leaves(moved["encoder"])) < 0.05
    assert set(state.params) == {"generator", "discriminator", HEAD}
    assert set(state.params["generator"]) == {"tokens"}


@pytest.mark.slow
def test_interrupted_run_is_bitwise_equal(tmp_path, pretrained, data, interrupt):
    bindings = {"CHECKPOINT_EVERY": 3, "Loop.keep_checkpoints": 9}
    flags = [
        finetune_flags(
            tmp_path / name, data("cldr_tagging"), pretrained, "cldr_tagging", **bindings
        )
        for name in ("whole", "broken")
    ]
    expected = finetuning.run(flags[0])
    restore = interrupt(5)
    with pytest.raises(Interrupted):
        finetuning.run(flags[1])
    restore()
    assert_same_bits(finetuning.run(flags[1]), expected)


def test_the_configuration_of_a_run_runs_again_as_it_is(tmp_path, pretrained, data):
    flags = finetune_flags(tmp_path / "run", data("cldr_tagging"), pretrained, "cldr_tagging")
    config = load(flags)
    text = loading.operative_config()
    assert config.objective.pretrained.discriminator.hidden_size == 32
    assert loading.load_text(text, "Train", "test") == config
    assert config.prepare.vocabulary == str(pretrained / "vocabulary.model")
    override = "--gin.pretrained/discriminator/Encoder.attention='xla'"
    assert load([*flags, override]).objective.pretrained.discriminator.attention == "xla"
    with pytest.raises(values.ConfigError, match="pre-training"):
        load([flag for flag in flags if "INIT_FROM" not in flag] + ["--gin.INIT_FROM=None"])


@pytest.mark.slow
def test_a_fine_tuned_encoder_is_a_start_too(tmp_path, pretrained, data):
    first = finetune_flags(tmp_path / "first", data("cldr_tagging"), pretrained, "cldr_tagging")
    finetuning.run(first)
    flags = finetune_flags(
        tmp_path / "second", data("cldr_answers"), tmp_path / "first", "cldr_answers", EPOCHS=0.25
    )
    state = finetuning.run(flags)
    assert state.params[HEAD]["kernel"].shape == (32, 2)


@pytest.mark.slow
def test_data_of_another_vocabulary_are_refused(tmp_path, pretrained, data):
    other = tmp_path / "other.model"
    # As large, so that the shapes fit, but with other pieces.
    corpus = finetuning.CldrCorpus(finetuning.cldr.CldrConfig(("en", "el"), ("language_list",)))
    other.write_bytes(train_cldr_vocabulary(corpus, 400).model)
    folder = write_labelled(tmp_path / "data", "cldr_tagging", Vocabulary.load(other))
    with pytest.raises(ValueError, match="another vocabulary"):
        finetuning.run(finetune_flags(tmp_path / "run", folder, pretrained, "cldr_tagging"))


def test_data_of_another_task_are_refused(tmp_path, pretrained, data):
    with pytest.raises(ValueError, match="whose labels are those of 'cldr_tagging'"):
        finetuning.run(
            finetune_flags(tmp_path, data("cldr_tagging"), pretrained, "cldr_classification")
        )


@pytest.mark.slow
def test_the_command_evaluates_both_kinds_of_checkpoint(tmp_path, pretrained, data):
    flags = finetune_flags(tmp_path / "run", data("cldr_answers"), pretrained, "cldr_answers")
    finetuning.run(flags)
    output = tiny.run(
        ["-m", "xlme_jax.evaluate", f"--checkpoint={tmp_path / 'run'}", "--split=validation"]
    )
    assert "cldr_answers/exact_match/ru" in output
    path = next((tmp_path / "run" / "evaluation").glob("*/results.json"))
    figures = read(path)
    assert {result.language for result in figures.results} == {"en", "ru", "el", "mean"}
    assert figures.header.seed == 0 and "xlme_jax.evaluate" in figures.header.command
    answers = json.loads((path.parent / "predictions/cldr_answers/dev-ru.json").read_text())
    assert len(answers) == 300


@pytest.mark.slow
def test_errors_of_the_command(tmp_path, pretrained):
    for arguments, said in (
        ([f"--checkpoint={tmp_path}"], "has no checkpoint"),
        (
            [f"--checkpoint={pretrained}", "--tasks=tatoba"],
            "unknown 'tatoba'; did you mean tatoeba?",
        ),
        ([f"--checkpoint={pretrained}", "--tasks=xnli"], "fine-tuned"),
        ([f"--checkpoint={pretrained}", "--tasks=tatoeba", f"--data={tmp_path}"], "tatoeba"),
        (
            [f"--checkpoint={pretrained}", f"--vocabulary={tmp_path / 'no.model'}"],
            "No vocabulary at",
        ),
    ):
        process = tiny.start(["-m", "xlme_jax.evaluate", *arguments])
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 1, output
        assert said in output and "Traceback" not in output


@pytest.mark.slow
def test_each_language_is_evaluated_with_its_own_best_checkpoint(tmp_path, pretrained, data):
    languages = ("ru", "el", "en")
    bindings = {"Best.languages": languages, "Loop.evaluate_every": 3, "TaskEvaluation.limit": 60}
    flags = finetune_flags(
        tmp_path / "run", data("cldr_tagging"), pretrained, "cldr_tagging", **bindings
    )
    finetuning.run([*flags, "--gin.Train.best=@Best()"])
    steps = {name.split("/")[-1]: step for name, (step, _) in read_best(tmp_path / "run").items()}
    assert list(steps) == list(languages)
    options = evaluating.Options(split="validation", limit=60)
    [found], path = evaluating.evaluate(str(tmp_path / "run"), options)
    assert path == tmp_path / "run" / "evaluation" / "by_language" / "results.json"
    scored = {(row.metric, row.language, row.system): row.value for row in found.results}
    for language, step in steps.items():
        one, _ = evaluating.evaluate(str(tmp_path / "run" / "checkpoints" / str(step)), options)
        rows = [row for row in one[0].results if row.language == language]
        assert rows and all(scored[r.metric, language, r.system] == r.value for r in rows)
        # What the run has logged of this checkpoint.
        logged = next(line for line in tiny.metrics(tmp_path / "run") if line["step"] == step)
        name = f"cldr_tagging/{rows[0].metric}/{language}"
        assert logged[f"eval/{name}"] == pytest.approx(found.headline[name], rel=1e-6)
    metric = found.results[0].metric
    mean = np.mean([scored[metric, language, "model"] for language in languages])
    assert scored[metric, "mean", "model"] == pytest.approx(mean, rel=1e-12)
    with pytest.raises(ValueError, match="no best checkpoint for de, but for"):
        evaluating.evaluate(
            str(tmp_path / "run"), dataclasses.replace(options, languages=("de", languages[0]))
        )
