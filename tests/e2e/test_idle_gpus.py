"""Commands end with one line, before they compile or write, if they would leave GPUs idle.

JAX has no GPU here, so GPUs that variables of the launcher promise are idle.
"""

import pytest
from helpers import tiny
from helpers.launch_variables import BATCH, STEP

COMMANDS = {
    "train": ["--gin_file=missing.gin"],
    "evaluate": ["--checkpoint=missing"],
    "translate": ["--checkpoint=missing", "--source=missing", "--target=de"],
}
UNASKED = {"JAX_PLATFORMS": ""}


def outcome(command, variables, imported_with=UNASKED):
    """Returns exit code and output of a command, without empty lines."""
    arguments = COMMANDS[command]
    [done] = tiny.run_each(command, arguments, variables=imported_with, later=variables)
    return done.returncode, done.stdout + done.stderr


REFUSED = {
    "granted": ({"SLURM_GPUS_ON_NODE": "64"}, "of 64 GPUs (SLURM_GPUS_ON_NODE=64)"),
    "listed": ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "of 2 GPUs (CUDA_VISIBLE_DEVICES=GPU-a,"),
    "tpus": ({"TPU_WORKER_HOSTNAMES": "a,b"}, "no TPU backend here"),
    "copies": (STEP, "srun started 2 processes, each of which would do all of the work"),
    "nodes": (BATCH, "The job has 2 nodes with GPUs (SLURM_GPUS_ON_NODE=8)"),
}
CASES = [(command, case) for command in COMMANDS for case in REFUSED]


@pytest.mark.parametrize(
    ("command", "case"), tiny.slow_except([("train", "granted"), ("evaluate", "copies")], CASES)
)
def test_idle_gpus_and_copies_are_refused(command, case):
    variables, said = REFUSED[case]
    code, output = outcome(command, variables)
    assert code == 1
    assert said in output
    assert "missing" not in output
    assert output.count("\n") == 1


def test_cpus_on_purpose_are_mentioned():
    code, output = outcome("train", {"SLURM_GPUS_ON_NODE": "8"}, imported_with={})
    assert (
        "1 process uses 0 of 8 GPUs (SLURM_GPUS_ON_NODE=8), because of JAX_PLATFORMS=cpu." in output
    )
    assert code == 1
    assert "missing.gin" in output  # It went on.
