"""Chooses the GPUs of its node that a process uses, and reports GPUs that a run leaves idle.

By default under Slurm and Open MPI, JAX gives each process one GPU, with the process's index on the
node as its index. With one task a node, all other GPUs of the node would be idle. And a task that
the scheduler has bound to some GPUs (`--gpus-per-task`) sees only these, so that such an index is
out of range. Here the processes of a node tell each other which GPUs they see. GPUs that all of
them see are divided in equal parts. A process that sees fewer GPUs than its node was granted, or
other GPUs than its neighbours, uses all that it sees.

All decisions are functions of the views of all processes, so that all processes end with the same
error, and no process waits for one that has ended.
"""

import dataclasses
import json
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlme_jax.training import launchers

ALL = "all"  # As JAX's setting jax_cuda_visible_devices has it.
# Variables that restrict which GPUs CUDA or ROCm shows to a process; the first that is set counts.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_CPUS = "set JAX_PLATFORMS=cpu to train on CPUs"


@dataclasses.dataclass(frozen=True)
class View:
    """What a process knows of the GPUs of its node before JAX does.

    Attributes:
      node: name of the node.
      tasks: number of the run's processes on the node; None if no launcher says.
      rank: index of this process on the node; None if no launcher says.
      visible: the GPUs that CUDA shows to this process; None if it shows all.
      mig: number of MIG instances in the restriction; CUDA shows only the first to a process.
      restriction: the variable that restricts what is visible, with its value; "" for none.
      granted: number of GPUs that Slurm granted on the node; None if Slurm does not say.
      source: the variable with that number, with its value; "" for none.
      present: number of NVIDIA GPUs of the machine or container.
    """

    node: str
    tasks: int | None = None
    rank: int | None = None
    visible: tuple[str, ...] | None = None
    mig: int = 0
    restriction: str = ""
    granted: int | None = None
    source: str = ""
    present: int = 0

    def to_json(self) -> str:
        """Returns the view as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> "View":
        """Returns the view that `to_json` wrote."""
        values = json.loads(text)
        visible = values.pop("visible")
        return View(visible=None if visible is None else tuple(visible), **values)


def view(environ: Mapping[str, str]) -> View:
    """Returns this process's view of the GPUs of its node.

    Args:
      environ: environment variables, of Slurm or another launcher and of CUDA.
    """
    start = launchers.launch(environ)
    granted, source = launchers.granted_gpus(environ) or (None, "")
    variable = next((name for name in _VISIBLE if name in environ), None)
    visible = None if variable is None else _visible(environ[variable])
    mig = sum(gpu.startswith("MIG-") for gpu in visible or ())
    return View(
        # Slurm may run several nodes on one machine.
        node=environ.get("SLURMD_NODENAME") or socket.gethostname(),
        tasks=start.node_tasks if start else None,
        rank=start.node_rank if start else None,
        visible=visible[:1] if visible and mig else visible,
        mig=mig,
        restriction="" if variable is None else f"{variable}={environ[variable]}",
        granted=granted,
        source=source,
        present=sum(
            # Not /dev/nvidiactl and the like.
            path.name.removeprefix("nvidia").isdecimal()
            for path in Path("/dev").glob("nvidia*")
        ),
    )


def _visible(value: str) -> tuple[str, ...]:
    """Returns the GPUs in the value of a variable, up to the first entry that is no GPU.

    CUDA ignores such an entry, for example -1, and all that follow.
    """
    gpus = []
    for entry in (part.strip() for part in value.split(",")):
        if not re.fullmatch(r"\d+|(GPU|MIG)-.+", entry):
            break
        gpus.append(entry)
    return tuple(gpus)


def assign(views: Sequence[View]) -> list[str]:
    """Returns the GPUs that each process uses, for `jax_cuda_visible_devices`: indices, or "all".

    Indices count the GPUs that the process sees: 0 and 1 with CUDA_VISIBLE_DEVICES=4,5.

    Args:
      views: the views of the run's processes.

    Raises:
      ValueError: the GPUs of a node cannot be divided among its processes.
    """
    return [_gpus_of(views, index) for index in range(len(views))]


def _gpus_of(views: Sequence[View], index: int) -> str:
    """Returns the GPUs that process `index` uses; ValueError if its node cannot be divided."""
    view = views[index]
    neighbours = _on_node(views, views[index].node)
    tasks = view.tasks or len(neighbours)
    if tasks == 1:
        return ALL
    if view.mig > 1:
        raise ValueError(f"{view.node} ({view.restriction}): {_one_mig_instance()}")
    if view.visible is None:
        count = view.present if view.granted is None else view.granted
    else:
        count = len(view.visible)
        differ = len({views[neighbour].visible for neighbour in neighbours}) > 1
        if differ or count < (tasks if view.granted is None else view.granted):
            return ALL  # The launcher has bound the process to the GPUs that it sees.
    if count == 0:
        # The number is not known, as for AMD's GPUs. Take JAX's default, one GPU for each task; a
        # process that was started by hand takes all.
        return ALL if view.rank is None else str(view.rank)
    if count % tasks == 0:
        rank = neighbours.index(index) if view.rank is None else view.rank
        gpus = range(rank * count // tasks, (rank + 1) * count // tasks)
        return ",".join(map(str, gpus))
    if not (view.source or view.restriction):
        return ALL  # Nothing says that these processes are to use all GPUs of the machine.
    raise ValueError(
        f"{view.node}: {count} GPUs ({view.source or view.restriction}) cannot be divided among "
        f"{tasks} processes. Start one process a node (srun --ntasks-per-node=1, mpirun --map-by "
        f"ppr:1:node), which uses all of them, or one a GPU ({count} instead of {tasks})."
    )


def _on_node(views: Sequence[View], node: str) -> list[int]:
    """Returns the indices of the processes on a node."""
    return [index for index, view in enumerate(views) if view.node == node]


def unused(
    views: Sequence[View], used: Sequence[int], hardware: bool = False
) -> tuple[str, str] | None:
    """Returns which GPUs of a node are idle or used twice, and a remedy; None if all is well.

    Args:
      views: the views of the run's processes.
      used: number of GPUs that JAX uses in each process.
      hardware: whether all GPUs of a machine are to be used if no variable says how many.
    """
    for node in dict.fromkeys(view.node for view in views):
        indices = _on_node(views, node)
        view = views[indices[0]]
        count = sum(used[index] for index in indices)
        expected = _expected([views[index] for index in indices])
        if hardware and not (view.source or view.restriction):
            expected = view.present
        source = view.source or view.restriction or "/dev/nvidia*"
        processes = "1 process uses" if len(indices) == 1 else f"{len(indices)} processes use"
        if count < expected:
            fact = f"{node}: {processes} {count} of {expected} GPUs ({source})"
            return fact, _remedy(view, count, len(indices))
        lists = [views[index].visible or () for index in indices]
        # Whether the launcher lists GPUs for the processes, and none of them for two processes.
        disjoint = sum(map(len, lists)) == len(set().union(*lists)) > 0
        if view.granted is not None and count > view.granted and len(indices) > 1 and not disjoint:
            fact = f"{node}: {processes} {count} GPUs, of which there are {expected} ({source})"
            return fact, _bind(view, len(indices))
    return None


def _expected(views: Sequence[View]) -> int:
    """Returns how many GPUs the processes of a node are to use; 0 if nothing says."""
    if views[0].granted is not None:
        return views[0].granted
    if len({view.visible for view in views}) == 1:
        return max(views[0].mig, len(views[0].visible or ()))
    return sum(len(view.visible or ()) for view in views)


def _remedy(view: View, count: int, processes: int) -> str:
    """Returns the remedy by which no GPU of a node is idle.

    Args:
      view: the view of a process on the node.
      count: number of GPUs that are used there.
      processes: number of the run's processes there.
    """
    if view.mig > 1:
        return _one_mig_instance()
    if view.visible == ():
        return f"{view.restriction} hides them: unset it, or {_CPUS}."
    if count == 0:
        return (
            "JAX has no GPU backend here. Install it (pip install -e '.[cuda13]') and start the "
            f"command on the node of the GPUs (srun), or {_CPUS}."
        )
    if processes > 1:
        return _bind(view, processes)
    if view.granted is None:
        return f"JAX does not see all that {view.restriction} lists: correct it (nvidia-smi -L)."
    hidden = view.visible is not None and len(view.visible) < view.granted
    first = f"Unset {view.restriction}" if hidden else "Start the command on their node (srun)"
    return f"{first}; or ask for fewer: srun --exact --ntasks=1 --gpus-per-node={count}."


def _bind(view: View, processes: int) -> str:
    """Returns the remedy by which the processes of a node divide its GPUs."""
    share = max(1, (view.granted or 0) // processes)
    return (
        "Start one process a node (srun --ntasks-per-node=1), which uses all of them, or bind each "
        f"process to its own (srun --gpus-per-task={share})."
    )


def _one_mig_instance() -> str:
    """Returns the remedy for a process that sees several MIG instances."""
    return (
        "A process can use one MIG instance. Ask for whole GPUs; or for one instance "
        "(--gpus-per-node=1), or one for each process (srun --gpus-per-task=1)."
    )
