"""A pre-training system from another package: a copy of the one in examples/."""

import shutil

import pytest
from helpers import tiny

EXAMPLE = tiny.REPOSITORY / "examples" / "hard_negatives"
# What evaluate, export, plan and report begin with: the configuration of a checkpoint, once
# `--trusted_modules` has imported the system.
READ = """
import sys
import hard_negatives
from pathlib import Path
from xlme_jax.checkpoints.saved import checkpoint_of, read_record
from xlme_jax.configuration import loading
folder = checkpoint_of(Path(sys.argv[1]))
config = loading.load_text(read_record(folder).config, "Train", str(folder))
objective = config.objective.build(200)
print("FOUND", type(objective).__name__, folder.name, sorted(objective.diagnostics.flops({})))
"""


@pytest.fixture
def outside(tmp_path):
    """Returns a folder with a copy of the example and the environment to import it."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder, {"PYTHONPATH": f"{folder}:{tiny.REPOSITORY}"}


def flags(folder, tmp_path, data, steps, *more):
    """Returns the flags of a tiny run of the example."""
    bindings = {"MODEL_DIR": str(tmp_path / "run"), "DATA_DIR": str(data), "TRAIN_STEPS": steps}
    return [
        f"--gin_file={folder / 'hard_negatives.gin'}",
        f"--gin_file={tiny.REPOSITORY / 'tests' / 'tiny.gin'}",
        "--gin.Train.prepare_if_missing=False",
        "--gin.Train.evaluators=()",
        *(f"--gin.{name}={value!r}" for name, value in bindings.items()),
        *more,
    ]


@pytest.mark.slow
def test_trains_resumes_and_loads(tmp_path, tiny_data, outside):
    folder, variables = outside
    runs = (flags(folder, tmp_path, tiny_data, steps) for steps in (6, 8))
    first, second = tiny.run_each("train", *runs, variables=variables, drawn=True)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "Resuming from the checkpoint of step 6" in second.stderr
    last = tiny.metrics(tmp_path / "run")[-1]
    assert last["step"] == 8 and {"bitext/correction_loss", "bitext/mlm_loss"} <= last.keys()
    assert (tmp_path / "run" / "report.html").is_file()
    found = tiny.run(["-c", READ, str(tmp_path / "run")], variables=variables)
    assert "FOUND HardNegatives 8 ['MLM head', 'correction', 'encoder']" in found


@pytest.mark.slow
def test_errors_are_those_of_systems_inside(tmp_path, tiny_data, outside):
    folder, variables = outside
    for more, expected in (
        ("--gin.HardNegatives.correction_weigth=2.0", "Did you mean correction_weight?"),
        ("--gin.HardNegatives.correction_weight='a'", "expected float"),
        ("--gin.HardNegatives.correction_weight=-1.0", "must not be negative"),
    ):
        process = tiny.start(
            ["-m", "xlme_jax.train", *flags(folder, tmp_path, tiny_data, 6, more)],
            variables=variables,
        )
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 1 and expected in output and "Traceback" not in output
