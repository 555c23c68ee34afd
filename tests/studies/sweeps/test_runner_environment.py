"""The environment of the runs that a sweep starts."""

import sys

from helpers.launch_variables import STEP

from xlme_jax.studies.sweeps.runner import Processes

PRINT = "import os; print([name for name in os.environ if name.startswith('SLURM_STEP')])"


def test_runs_of_a_shard_are_not_tasks_of_the_launcher(tmp_path, monkeypatch):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    with Processes() as processes:
        assert processes.run([sys.executable, "-c", PRINT], tmp_path / "train.log", -1) == 0
    shown = (tmp_path / "train.log").read_text().splitlines()[-1]
    assert "SLURM_STEP_ID" not in shown
    assert "SLURM_STEP_NUM_TASKS" not in shown
