"""Training on prepared data imports neither TensorFlow nor SeqIO nor preparation libraries."""

import json

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


def test_training_imports_no_tensorflow(tmp_path, tiny_data):
    # The probe and the report as well: all that a run does. Other tests compile its programs too.
    own = {"CHECKPOINT_EVERY": 100, "Loop__evaluate_every": 100}
    flags = tiny.flags(tmp_path, tiny_data, **{**SHORT, **own})
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


def test_the_proof_would_notice(tmp_path):
    package = tmp_path / "seqio"
    package.mkdir()
    (package / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import seqio\n"
    assert imported(tiny.run(["-c", code + report(UNWANTED)])) == ["seqio"]
