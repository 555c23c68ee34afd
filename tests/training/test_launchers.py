"""How a process was started, from the variables of launchers."""

import pytest
from helpers.launch_variables import BATCH, HYDRA, OPEN_MPI, STEP, TORCHRUN

from xlme_jax.training import launchers
from xlme_jax.training.launchers import Launch


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        (BATCH, None),
        (STEP, Launch("srun", 2, 1, 1, 0)),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, Launch("srun", 1, 0, 1, 0)),
        (OPEN_MPI, Launch("mpirun", 16, 11, 8, 3)),
        # The daemons of mpirun are tasks of Slurm, and their processes have both.
        (STEP | OPEN_MPI, Launch("mpirun", 16, 11, 8, 3)),
        (
            {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
            Launch("mpirun", 1, 0, 1, None),
        ),
        (HYDRA, Launch("mpiexec", 4, 2, 2, 0)),
        (STEP | HYDRA, Launch("srun", 2, 1, 1, 0)),  # srun --mpi=pmi2
        (TORCHRUN, Launch("torchrun", 2, 1, 2, 1)),
        ({"WORLD_SIZE": "2"}, None),
    ],
)
def test_launch(environ, expected):
    assert launchers.launch(environ) == expected


@pytest.mark.parametrize(
    ("changes", "tasks"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,1(x2)", "SLURM_NODEID": "1"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_STEP_NUM_TASKS": "6"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_STEP_NUM_TASKS": "5"}, None),
    ],
)
def test_tasks_on_the_node(changes, tasks):
    assert launchers.launch(STEP | changes).node_tasks == tasks


PER_TASK = {name: value for name, value in BATCH.items() if "GPU" not in name} | {
    "SLURM_GPUS_PER_TASK": "1"
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"SLURM_GPUS_ON_NODE": "4(S:0-1)"}, (4, "SLURM_GPUS_ON_NODE=4")),
        ({"SLURM_GPUS_ON_NODE": "8"}, (8, "SLURM_GPUS_ON_NODE=8")),
        # A job step with one of the job's GPUs: srun --exact --gpus-per-node=1
        ({"SLURM_GPUS_ON_NODE": "1", "SLURM_GPUS_PER_NODE": "8"}, (1, "SLURM_GPUS_ON_NODE=1")),
        ({"SLURM_JOB_GPUS": "0,1,2,5"}, (4, "SLURM_JOB_GPUS=0,1,2,5")),
        ({"SLURM_JOB_GPUS": "0-2,6-7"}, (5, "SLURM_JOB_GPUS=0-2,6-7")),
        ({"SLURM_STEP_GPUS": "4,5"}, (2, "SLURM_STEP_GPUS=4,5")),
        ({"SLURM_GPUS_PER_NODE": "8"}, (8, "SLURM_GPUS_PER_NODE=8")),
        ({"SLURM_GPUS_PER_NODE": "a100:8"}, (8, "SLURM_GPUS_PER_NODE=a100:8")),
        ({"SLURM_GPUS_PER_NODE": "a100:4,v100:2"}, (6, "SLURM_GPUS_PER_NODE=a100:4,v100:2")),
        ({"SLURM_GPUS_PER_NODE": "1g.5gb:2"}, (2, "SLURM_GPUS_PER_NODE=1g.5gb:2")),
        (OPEN_MPI | {"SLURM_GPUS_PER_TASK": "1"}, (8, "SLURM_GPUS_PER_TASK=1")),
        # The tasks are Slurm's, not the processes that a batch script or mpirun starts.
        (PER_TASK, (4, "SLURM_GPUS_PER_TASK=1")),
        (PER_TASK | OPEN_MPI, (4, "SLURM_GPUS_PER_TASK=1")),
        # Five tasks on two nodes: nothing says how many on this one.
        (PER_TASK | {"SLURM_NTASKS": "5", "SLURM_NTASKS_PER_NODE": ""}, None),
        ({"SLURM_GPUS": "h100:4", "SLURM_NNODES": "1"}, (4, "SLURM_GPUS=h100:4")),
        ({"SLURM_GPUS": "8", "SLURM_NNODES": "2"}, None),
        # With --gpus-per-task these are the GPUs of one of the tasks.
        (OPEN_MPI | {"SLURM_STEP_GPUS": "4,5"}, None),
    ],
)
def test_granted_gpus(environ, expected):
    assert launchers.granted_gpus(environ) == expected


@pytest.mark.parametrize(
    ("environ", "remedy"),
    [
        (STEP, "srun --nodes=1 --ntasks=1"),
        (OPEN_MPI, "mpirun -n 1"),
        (HYDRA, "mpiexec -n 1"),
        (TORCHRUN, "without torchrun"),
    ],
)
@pytest.mark.parametrize("cpus_chosen", [False, True])
def test_copies_of_a_command_are_refused(environ, remedy, cpus_chosen):
    with pytest.raises(ValueError, match=r"started \d+ processes, each of which") as error:
        launchers.check_single(environ, cpus_chosen)
    assert remedy in str(error.value)
    assert "--distributed" not in str(error.value)
    with pytest.raises(ValueError, match="Add --distributed to train together"):
        launchers.check_single(environ, cpus_chosen, trains=True)


def test_a_batch_script_on_one_of_several_nodes_is_refused():
    with pytest.raises(ValueError, match=r"2 nodes with GPUs \(SLURM_GPUS_ON_NODE=8\)"):
        launchers.check_single(BATCH, cpus_chosen=False)
    with pytest.raises(ValueError, match="Train on all: srun --ntasks-per-node=1"):
        launchers.check_single(BATCH, cpus_chosen=False, trains=True)
    launchers.check_single(BATCH, cpus_chosen=True)
    launchers.check_single(BATCH | {"SLURM_JOB_NUM_NODES": "1"}, cpus_chosen=False)
    without_gpus = {name: value for name, value in BATCH.items() if "GPU" not in name}
    launchers.check_single(without_gpus, cpus_chosen=False)


def test_a_single_task_is_a_run_of_its_own():
    launchers.check_single({}, cpus_chosen=False)
    launchers.check_single(STEP | {"SLURM_STEP_NUM_TASKS": "1"}, cpus_chosen=False)


@pytest.mark.parametrize("environ", [STEP, OPEN_MPI, STEP | OPEN_MPI, HYDRA, TORCHRUN])
def test_a_run_that_a_task_starts_is_alone(environ):
    alone = launchers.without_launcher(environ | {"CUDA_VISIBLE_DEVICES": "3", "PATH": "/bin"})
    assert launchers.launch(alone) is None
    assert launchers.granted_gpus(alone) is None
    assert (alone["CUDA_VISIBLE_DEVICES"], alone["PATH"]) == ("3", "/bin")
    launchers.check_single(alone, cpus_chosen=False)


def test_the_only_task_passes_on_what_it_was_granted():
    assert launchers.without_launcher(BATCH) == BATCH
    only = STEP | {"SLURM_STEP_NUM_TASKS": "1"}
    assert launchers.without_launcher(only) == only
