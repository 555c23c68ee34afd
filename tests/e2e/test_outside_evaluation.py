"""A measure from another package: a copy of the one in examples/."""

import json
import shutil

import pytest
from helpers import finetuning, tiny

from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.results import read

EXAMPLE = tiny.REPOSITORY / "examples" / "new_evaluation"
PAIRS = {
    "en": [("Russian and Greek", "Russian or or Greek"), ("a language", "language a a language")],
    "ru": [("русский и греческий", "русский и и и греческий")],
}
# What the three commands do, in one process.
SCRIPT = """
import sys
from pathlib import Path
from xlme_jax.configuration import command_line, loading
from xlme_jax.runs import assembly, evaluating
from xlme_jax.studies.papers import comparison_page
folder, *flags = sys.argv[1:]
files, bindings = [], []
for flag in command_line.gin_flags(flags):
    name, value = flag.split("=", 1)
    (files if name == "--gin_file" else bindings).append(value)
config = loading.load(files, bindings, "Train")
assembly.train(config, loading.operative_config())
options = evaluating.Options(tasks=("minimal_pairs",), data=folder, command="a command")
outcomes, path = evaluating.evaluate(config.model_dir, options)
comparison_page.write([("ours", comparison_page.results.read(path))], Path(folder) / "report")
"""


@pytest.fixture
def outside(tmp_path):
    """Returns a folder with a copy of the example and pairs, and the environment to import it."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "minimal_pairs").mkdir()
    for language, pairs in PAIRS.items():
        text = "".join(f"{good}\t{bad}\n" for good, bad in pairs)
        (folder / "minimal_pairs" / f"{language}.tsv").write_text(text, encoding="utf-8")
    return folder, {"PYTHONPATH": f"{folder}:{tiny.REPOSITORY}"}


@pytest.fixture
def flags(tmp_path, outside):
    """Returns the flags of a run of two steps that is evaluated before and after each."""
    folder, _ = outside
    vocabulary = Vocabulary.load(finetuning.write_vocabulary(tmp_path))
    short = {"XLM__translation_pairs": False, "Loop__evaluate_every": 1}
    sizes = finetuning.pretrain_flags(tmp_path, vocabulary, "xlm", **short)
    return [
        f"--gin_file={folder / 'minimal_pairs.gin'}",
        *(flag for flag in sizes if "gin_configs/models" not in flag),
        "--gin.Train.prepare_if_missing=False",
        "--gin.Train.evaluators=(@MinimalPairs(),)",
        f"--gin.MinimalPairs.folder='{folder / 'minimal_pairs'}'",
        "--gin.MinimalPairs.length=32",
    ]


def check(tmp_path, folder):
    """Asserts that the measure is in the log, in the results, in predictions and in a sheet."""
    model_dir = tmp_path / "pretrained"
    logged = [x for x in tiny.metrics(model_dir) if "eval/minimal_pairs/accuracy" in x]
    assert [line["step"] for line in logged] == [0, 1, 2]
    results = read(model_dir / "evaluation" / "2")
    by_row = {(x.language, x.system): x.value for x in results.results if x.metric == "accuracy"}
    assert by_row["mean", "model"] == logged[-1]["eval/minimal_pairs/accuracy"]
    assert by_row["mean", "chance"] == 0.5 and ("mean", "untrained") in by_row
    assert results.headline["minimal_pairs/accuracy"] == by_row["mean", "model"]
    predictions = model_dir / "evaluation/2/predictions/minimal_pairs/test-en.tsv"
    choices = predictions.read_text().split()
    assert len(choices) == 2
    assert choices.count("good") / 2 == by_row["en", "model"]
    report = (folder / "report" / "report.md").read_text()
    assert "## Minimal pairs\n" in report and "## minimal_pairs: accuracy" in report
    assert "| a coin | by definition | 50.0 | 50.0 |" in report
    assert f"| **ours** | ours | {100 * by_row['en', 'model']:.1f} |" in report


@pytest.mark.slow
def test_runs_on_a_schedule_on_a_checkpoint_and_in_a_report(tmp_path, outside, flags):
    folder, variables = outside
    modules = (*tiny.TRAINING, "xlme_jax.runs.evaluating")
    tiny.run(["-c", SCRIPT, str(folder), *flags], variables=variables, modules=modules)
    check(tmp_path, folder)
    # The run's own settings, and the folder that `evaluate` was given.
    config = (tmp_path / "pretrained" / "config.gin").read_text()
    assert "MinimalPairs.length = 32" in config and "import minimal_pairs" in config


@pytest.mark.slow
def test_the_commands_know_it_by_its_module(tmp_path, outside, flags):
    folder, variables = outside
    run = tmp_path / "pretrained"
    trusted = "--trusted_modules=minimal_pairs"
    [trained] = tiny.run_each("train", flags, variables=variables)
    assert trained.returncode == 0, trained.stderr
    evaluation = [f"--checkpoint={run}", "--tasks=minimal_pairs", f"--data={folder}"]
    refused, evaluated = tiny.run_each(
        "evaluate", evaluation, [*evaluation, trusted], variables=variables
    )
    assert refused.returncode == 1 and "unknown 'minimal_pairs'" in refused.stderr
    assert evaluated.returncode == 0, evaluated.stderr
    assert "minimal_pairs/accuracy" in evaluated.stdout
    output = [f"--results=ours={run / 'evaluation'}", f"--output={folder / 'report'}", trusted]
    [reported] = tiny.run_each("report", output, variables=variables)
    assert reported.returncode == 0, reported.stderr
    check(tmp_path, folder)
    [exported] = tiny.run_each(
        "export",
        [f"--checkpoint={run}", f"--output={folder / 'out'}", trusted],
        variables=variables,
    )
    assert exported.returncode == 0, exported.stderr
    card = (folder / "out" / "README.md").read_text()
    assert '"fill-mask"' in card and json.dumps("minimal_pairs (mean)") in card
