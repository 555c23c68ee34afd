"""Training and preparation import neither TensorFlow nor SeqIO, nor training what prepares."""

import json

import pytest
from helpers import tiny
from helpers.runs import SHORT

# What `pip install xlme_jax` without extras does not bring, or brings only to prepare.
UNWANTED = (
    "tensorflow",
    "seqio",
    "tensorflow_datasets",
    "tensorflow_text",
    "apache_beam",
    "babel",
    "tasks",
)
# TensorBoard's writer imports torch where it is installed.
AT_START = (*UNWANTED, "torch", "transformers", "tokenizers", "safetensors")


def report(unwanted):
    """Returns code that prints which of these modules have been imported."""
    return f"""
import json, sys
print("IMPORTED", json.dumps(sorted(x for x in sys.modules if x.split(".")[0] in {unwanted!r})))
"""


def imported(output):
    """Returns what the first of such reports has found."""
    return json.loads(output.split("IMPORTED ")[1].splitlines()[0])


@pytest.mark.slow
def test_training_imports_no_tensorflow(tmp_path, tiny_data):
    # The probe and the report as well: all that a run does. Other tests compile its programs too.
    bindings = {
        "CHECKPOINT_EVERY": 100,
        "Loop__evaluate_every": 100,
        "XLM__translation_pairs": True,
    }
    flags = tiny.flags(tmp_path, tiny_data, **{**SHORT, **bindings})
    flags.append("--gin.Train.trackers=(@TensorBoard(),)")
    run = f"""
from absl import app
from xlme_jax.configuration import command_line
sys.argv = ["train", *{flags!r}]
try:
    command_line.run_app(train.main)
except SystemExit as status:
    assert not status.code, status.code
"""
    # A copy of the process imports the evaluation too, whose flags those of training are not.
    start = """
import os
import xlme_jax.train as train
if copy := not os.fork():
    import xlme_jax.evaluate
else:
    assert os.wait()[1] == 0
"""
    end_of_copy = "sys.stdout.flush()\nif copy: os._exit(0)\n"
    checks = report(AT_START) + end_of_copy, report(UNWANTED)
    output = tiny.run(["-c", start + checks[0] + run + checks[1]])
    assert (tmp_path / "report.html").exists()
    assert "probe/retrieval_untrained" in tiny.metrics(tmp_path)[-1]
    found = [line for line in output.splitlines() if line.startswith("IMPORTED ")]
    assert found == ["IMPORTED []"] * 3


@pytest.mark.slow
def test_preparation_of_our_sources_imports_no_tensorflow(tmp_path):
    for language, word in (("en", "House"), ("sw", "Nyumba")):
        lines = "\n".join(f"{word} number {i} here.\n" for i in range(400))
        (tmp_path / f"{language}.txt").write_text(lines)
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "en.txt").write_text("House number 1 here.\n")
    (tmp_path / "en-sw.tsv").write_text("".join(f"House {i}.\tNyumba {i}.\n" for i in range(50)))
    folders = [f"--cc100_dir={tmp_path}", f"--bitext_dir={tmp_path}", "--tasks=cc100,bitext"]
    model = f"{tmp_path}/v.model"
    commands = {
        "train_vocabulary": [*folders, "--size=320", "--allow_smaller", f"--output={model}"],
        "prepare": [
            "--tasks=cc100,bitext,cldr_answers,cldr",
            *folders[:2],
            *("--cldr_documents=2", "--cldr_pairs=9", "--cldr_validation_pairs=2"),
            f"--vocabulary={model}",
            f"--output={tmp_path}/out",
            "--languages=en,sw",
            f"--check_overlap={tmp_path}/eval",
            "--workers=1",
        ],
    }
    code = """
from xlme_jax.configuration import command_line
sys.argv = [{name!r}, *{arguments!r}]
try:
    command_line.run_app(command.main)
except SystemExit as status:
    assert not status.code, status.code
"""
    unwanted = {"tensorflow", "seqio", "tensorflow_datasets", "apache_beam", "tasks", "jax"}
    for name, arguments in commands.items():
        run = code.format(name=name, arguments=arguments)
        start = f"import sys\nimport xlme_jax.{name} as command\n"
        assert imported(tiny.run(["-c", start + run + report(tuple(unwanted))])) == [], name
    assert (tmp_path / "out" / "dataset.json").exists()


def test_the_proof_would_notice(tmp_path):
    package = tmp_path / "seqio"
    package.mkdir()
    (package / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import seqio\n"
    assert imported(tiny.run(["-c", code + report(UNWANTED)])) == ["seqio"]
