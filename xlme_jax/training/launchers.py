"""How this process was started: by Slurm, by MPI, by torchrun, or by hand."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SLURM_STEP = ("SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS")
# Of each launcher: variables of the number of tasks and of this task's index, then of the number of
# tasks on this node and of this task's index on the node.
_OPEN_MPI = (
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
)
_HYDRA = ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID")
_TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
# Variables that say how many GPUs Slurm granted, the first that is set counts. Slurm sets the first
# one for each job step; a step may inherit the others from its job.
_GRANTS = (
    "SLURM_GPUS_ON_NODE",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS",
)
_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
# {launcher: command that starts one process}
_ONE = {
    "srun": "srun --nodes=1 --ntasks=1; for several runs, a job array",
    "mpirun": "mpirun -n 1",
    "mpiexec": "mpiexec -n 1",
    "torchrun": "python -m xlme_jax.train, without torchrun",
}


@dataclass(frozen=True)
class Launch:
    """The place of this process in a launch, by its environment variables.

    Attributes:
      launcher: command of the launcher: "srun", "mpirun", "mpiexec" or "torchrun".
      tasks: number of processes that the launcher started together.
      rank: index of this process among all.
      node_tasks: number of these processes on this node; None if the launcher does not say.
      node_rank: index of this process on its node; None if the launcher does not say.
    """

    launcher: str
    tasks: int
    rank: int
    node_tasks: int | None
    node_rank: int | None


def launch(environ: Mapping[str, str]) -> Launch | None:
    """Returns how a launcher started this process; None if by hand, or as a batch script.

    The variables of mpirun are looked at before Slurm's: in a Slurm job, Slurm's tasks are the
    daemons that mpirun starts.
    """
    return (
        _mpi_launch(environ, "mpirun", _OPEN_MPI)
        or _slurm_launch(environ)
        or _mpi_launch(environ, "mpiexec", _HYDRA)
        or _mpi_launch(environ, "torchrun", _TORCHRUN)
    )


def _mpi_launch(environ: Mapping[str, str], launcher: str, names: Sequence[str]) -> Launch | None:
    """Returns a launch from four variables, in the order of `_OPEN_MPI`; None if they are unset."""
    tasks, rank, node_tasks, node_rank = (_number(environ, name) for name in names)
    if tasks is None or rank is None:
        return None
    return Launch(launcher, tasks, rank, 1 if tasks == 1 else node_tasks, node_rank)


def _slurm_launch(environ: Mapping[str, str]) -> Launch | None:
    """Returns the launch of a task of srun; None for other processes."""
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS") or _number(environ, "SLURM_NTASKS")
    rank = _number(environ, "SLURM_PROCID")
    # A batch script has SLURM_NTASKS and SLURM_PROCID too, but is no task of srun.
    if tasks is None or rank is None or not any(name in environ for name in _SLURM_STEP):
        return None
    node_tasks = 1 if tasks == 1 else _slurm_node_tasks(environ, tasks)
    return Launch("srun", tasks, rank, node_tasks, _number(environ, "SLURM_LOCALID"))


def _slurm_node_tasks(environ: Mapping[str, str], tasks: int) -> int | None:
    """Returns how many of a step's tasks run on this node; None if nothing says."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        # "2(x3),1": two tasks on each of three nodes, one on the fourth.
        groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get(name, ""))
        counts = [int(count) for count, nodes in groups for _ in range(int(nodes or 1))]
        node = _number(environ, "SLURM_NODEID") or 0
        if node < len(counts):
            return counts[node]
    nodes = _number(environ, "SLURM_STEP_NUM_NODES") or _nodes(environ)
    if nodes and tasks % nodes == 0:
        return tasks // nodes
    return _number(environ, "SLURM_NTASKS_PER_NODE")


def _nodes(environ: Mapping[str, str]) -> int | None:
    """Returns the number of nodes of the Slurm job; None without one."""
    return next((number for name in _NODES if (number := _number(environ, name))), None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """Returns the number in an environment variable; None if it is unset or not a number."""
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None


def _slurm_tasks_here(environ: Mapping[str, str], processes: int | None) -> int:
    """Returns how many of Slurm's tasks of this step or job run on this node; 0 if unknown.

    They differ from the processes that mpirun or torchrun starts, and from those of a batch script;
    `processes`, those of the run on this node, are taken for a job that does not say its tasks.
    """
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS") or _number(environ, "SLURM_NTASKS")
    node_tasks = processes if tasks is None else _slurm_node_tasks(environ, tasks)
    return node_tasks or 0


def granted_gpus(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Returns how many GPUs Slurm granted on this node, and "VARIABLE=VALUE" that says so.

    Returns None if Slurm granted none, or does not say.
    """
    start = launch(environ)
    tasks = start.node_tasks if start else 1
    for name in _GRANTS:
        value = re.sub(r"\(.*?\)", "", environ.get(name, ""))  # 4(S:0-1): of sockets 0 and 1
        if name == "SLURM_STEP_GPUS" and tasks != 1:
            continue  # It has the task's GPUs, not the step's, if tasks are bound to GPUs.
        if name == "SLURM_GPUS" and _nodes(environ) != 1:
            continue  # It counts the GPUs of all nodes.
        is_list = name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
        count = _listed_gpus(value) if is_list else _counted_gpus(value)
        if name == "SLURM_GPUS_PER_TASK":
            count *= _slurm_tasks_here(environ, tasks)
        if count:
            return count, f"{name}={value}"
    return None


def _listed_gpus(value: str) -> int:
    """Returns the number of GPUs in a list of indices such as "0,1" or "0-7"; 0 for ""."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", value)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)


def _counted_gpus(value: str) -> int:
    """Returns the number of GPUs in a count such as "8", "a100:8" or "a100:4,v100:4"; 0 for ""."""
    return sum(map(int, re.findall(r"(?:^|[,:])(\d+)(?=,|$)", value)))


def check_single(environ: Mapping[str, str], cpus_chosen: bool, trains: bool = False) -> None:
    """Checks that this process is the only one, and that it leaves no node of the job idle.

    Args:
      environ: environment variables.
      cpus_chosen: whether the user has told JAX to use CPUs.
      trains: whether the command is train, which several processes can run together.

    Raises:
      ValueError: a launcher started several processes, each of which would do all of the work; or
        the GPUs of other nodes would be idle.
    """
    start = launch(environ)
    grant = granted_gpus(environ)
    nodes = _nodes(environ) or 1
    if start and start.tasks > 1:
        together = "Add --distributed to train together, or start" if trains else "Start"
        raise ValueError(
            f"{start.launcher} started {start.tasks} processes, each of which would do all of the "
            f"work alone and write the same files. {together} one: {_ONE[start.launcher]}."
        )
    if start is None and nodes > 1 and grant and not cpus_chosen:
        together = (
            "Train on all: srun --ntasks-per-node=1 python -m xlme_jax.train --distributed, as "
            "launch/slurm/train.sbatch does; on one"
            if trains
            else "Use one node"
        )
        raise ValueError(
            f"The job has {nodes} nodes with GPUs ({grant[1]}), and this process would use those "
            f"of one. {together}: {_ONE['srun']}."
        )


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for a process that is started by one of a launcher's tasks.

    The variables of launchers and of granted GPUs are left out if the launcher started several
    tasks: they describe these tasks together, and the new process is none of them. Otherwise the
    result is a copy of `environ`.
    """
    start = launch(environ)
    if start is None or start.tasks == 1:
        return dict(environ)
    hidden = {*_SLURM_STEP, *_GRANTS, *_NODES, *_OPEN_MPI, *_HYDRA, *_TORCHRUN}
    return {name: value for name, value in environ.items() if name not in hidden}
