"""Training on prepared data imports neither TensorFlow nor SeqIO nor preparation libraries."""

import json

import tiny

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
REPORT = f"""
import json, sys
hits = sorted(name for name in sys.modules if name.split(".")[0] in {UNWANTED!r})
print("IMPORTED", json.dumps(hits))
"""


def imported(output):
    return json.loads(output.split("IMPORTED ")[1].splitlines()[0])


def test_training_imports_no_tensorflow(tmp_path, tiny_data):
    flags = tiny.flags(
        tmp_path,
        tiny_data,
        "xlm",
        TRAIN_STEPS=2,
        Optimizer__warmup_steps=1,
    )
    # The probe and the report as well: all that a run does.
    code = f"""
import sys
from absl import app
import xlme_jax.train as train
from xlme_jax.configuration import command_line
sys.argv = ["train", *{flags!r}, "--gin.Train.evaluators=(@RetrievalProbe(),)",
            "--gin.RetrievalProbe.length=32"]
try:
    command_line.run_app(train.main)
except SystemExit as status:
    assert not status.code, status.code
"""
    output = tiny.run(["-c", code + REPORT])
    assert (tmp_path / "report.html").exists()
    assert "probe/retrieval_untrained" in tiny.metrics(tmp_path)[-1]
    assert imported(output) == []


def test_the_proof_would_notice(tmp_path):
    package = tmp_path / "seqio"
    package.mkdir()
    (package / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import seqio\n"
    assert imported(tiny.run(["-c", code + REPORT])) == ["seqio"]
