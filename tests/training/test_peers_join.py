"""The GPUs that JAX is set to use after processes have joined, under the variables of launchers."""

import re
import shutil
import subprocess
import sys

import pytest
from helpers import tiny
from helpers.launch_variables import STEP

PRINT_GPUS = """
import sys
from jax._src import xla_bridge
from xlme_jax.training import peers
address, *rest = (None if argument == "None" else argument for argument in sys.argv[1:])
peers.join(address, *(None if number is None else int(number) for number in rest), 60)
gpus = xla_bridge.CUDA_VISIBLE_DEVICES.value, xla_bridge._ROCM_VISIBLE_DEVICES.value
sys.stdout.write("GPUs: %s %s\\n" % gpus)  # At once, as mpirun mixes what processes print.
"""
LAUNCHERS = re.compile("SLURM|OMPI|PMI|MPI_LOCAL|WORLD_SIZE|RANK|CUDA_|ROCR_|HIP_|JAX_LOCAL")
# The only task of a node, as in train.sbatch. Slurm's job number gives the coordinator's port.
ONE = STEP | {
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NUM_NODES": "1",
}
ONE_OF_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "1",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}


def start(environ, address, processes=None, index=None):
    """Starts a process that joins and prints the GPUs that JAX is to use."""
    inherited = {k: v for k, v in tiny.environment().items() if not LAUNCHERS.search(k)}
    return tiny.start(
        ["-c", PRINT_GPUS, *map(str, (address, processes, index))],
        modules=("xlme_jax.training.peers",),
        env=inherited | environ,
    )


def gpus(*processes):
    """Waits for processes; returns what each has printed."""
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [re.findall(r"^GPUs: (.*)", output, re.M) or output for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize(
    "environ",
    [ONE, ONE_OF_MPI],
    ids=["Slurm", "Open MPI"],
)
def test_the_only_process_of_a_node_uses_all_gpus(environ):
    free = {"JAX_COORDINATOR_PORT": str(tiny.free_port())}
    assert gpus(start(environ | free, None)) == [["all all"]]


@pytest.mark.slow
def test_so_it_does_with_an_address_within_a_job():
    assert gpus(start(ONE, f"localhost:{tiny.free_port()}")) == [["all all"]]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        (["0,1,2,3", "0,1,2,3"], [["0,1 0,1"], ["2,3 2,3"]]),
        # --gpus-per-task=2; an index by local rank would leave one idle in each.
        pytest.param(["0,1", "2,3"], [["all all"], ["all all"]], marks=pytest.mark.slow),
    ],
    ids=["shared", "bound"],
)
def test_two_processes_of_a_node_use_different_gpus(lists, expected):
    address = f"localhost:{tiny.free_port()}"
    node = ONE_OF_MPI | {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    processes = [
        start(
            node
            | {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                "CUDA_VISIBLE_DEVICES": lists[rank],
            },
            address,
            2,
            rank,
        )
        for rank in range(2)
    ]
    assert gpus(*processes) == expected


@pytest.mark.slow
def test_the_launcher_says_which_process_this_is():
    address = f"localhost:{tiny.free_port()}"
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    size = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    node = size | {"CUDA_VISIBLE_DEVICES": "0,1"}  # Open MPI 5, which JAX does not detect.
    processes = [start(node | dict.fromkeys(names, str(rank)), address) for rank in range(2)]
    assert gpus(*processes) == [["0 0"], ["1 1"]]


@pytest.mark.slow
def test_jax_own_variable_stays_in_force():
    own = {"JAX_LOCAL_DEVICE_IDS": "2,3"}
    assert gpus(start(ONE | own, f"localhost:{tiny.free_port()}")) == [["2,3 2,3"]]


@pytest.mark.slow
def test_gpus_that_cannot_be_divided_end_both_processes():
    address = f"localhost:{tiny.free_port()}"
    odd = {"CUDA_VISIBLE_DEVICES": "0,1,2"}
    said = gpus(*(start(odd, address, 2, index) for index in range(2)))
    for output in said:
        assert "3 GPUs (CUDA_VISIBLE_DEVICES=0,1,2) cannot be divided among 2" in output


def test_a_batch_script_is_told_to_use_srun():
    batch = {"SLURM_JOB_ID": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    [output] = gpus(start(batch, None))
    assert "ValueError: --distributed: no other processes are known" in output
    assert "with srun" in output


@pytest.mark.skipif(
    not shutil.which("mpirun"), reason="needs Open MPI: apt-get install openmpi-bin"
)
def test_open_mpi_starts_two_processes_that_divide_the_gpus():
    inherited = {k: v for k, v in tiny.environment().items() if not LAUNCHERS.search(k)}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    free = {"JAX_COORDINATOR_PORT": str(tiny.free_port()), "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    command = ["mpirun", "--oversubscribe", "-n", "2", sys.executable, "-c", PRINT_GPUS]
    done = subprocess.run(
        [*command, "None", "None", "None"],
        env=inherited | as_root | free,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"GPUs: (\S+) (\S+)", done.stdout)
    assert sorted(printed) == [("0,1", "0,1"), ("2,3", "2,3")]
