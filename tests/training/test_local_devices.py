"""The GPUs of each process, from what the processes of a run see; no GPU is needed."""

import pytest

from xlme_jax.training import local_devices
from xlme_jax.training.local_devices import View, assign, unused, view

EIGHT = tuple("01234567")


def slurm(tasks, rank, visible=EIGHT, granted=8, node="a"):
    """Returns the view of a task of Slurm."""
    return View(
        node=node,
        tasks=tasks,
        rank=rank,
        visible=visible,
        restriction="" if visible is None else f"CUDA_VISIBLE_DEVICES={','.join(visible)}",
        granted=granted,
        source=f"SLURM_GPUS_ON_NODE={granted}",
    )


def test_the_only_process_of_a_node_uses_all_of_its_gpus():
    assert assign([slurm(1, 0, node="a"), slurm(1, 0, node="b")]) == ["all", "all"]
    assert assign([View("a", present=8)]) == ["all"]


@pytest.mark.parametrize("visible", [EIGHT, None, tuple(f"GPU-{i}" for i in range(8))])
def test_tasks_that_see_the_same_gpus_divide_them(visible):
    views = [slurm(4, rank, visible, node=node) for node in "ab" for rank in range(4)]
    assert assign(views) == ["0,1", "2,3", "4,5", "6,7"] * 2
    assert assign([slurm(8, rank, visible) for rank in range(8)]) == [*EIGHT]


@pytest.mark.parametrize(
    "lists",
    [
        [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")],
        [("0", "1")] * 4,  # Where Slurm hides devices from tasks, each task counts from 0.
        [(f"GPU-{i}", f"GPU-{i}1") for i in range(4)],
    ],
)
def test_tasks_that_are_bound_to_gpus_use_these(lists):
    views = [slurm(4, rank, gpus) for rank, gpus in enumerate(lists)]
    assert assign(views) == ["all"] * 4
    assert unused(views, [2] * 4) is None


def test_parts_may_be_unequal_if_tasks_are_bound():
    views = [slurm(2, 0, EIGHT[:6]), slurm(2, 1, EIGHT[6:])]
    assert assign(views) == ["all", "all"]
    assert unused(views, [6, 2]) is None


def test_the_order_of_ranks_on_a_node_is_the_launchers():
    assert assign([slurm(2, 1), slurm(2, 0)]) == ["4,5,6,7", "0,1,2,3"]


def mpi(tasks, rank, visible=None, present=0):
    restriction = "" if visible is None else f"CUDA_VISIBLE_DEVICES={','.join(visible)}"
    return View("a", tasks, rank, visible, restriction=restriction, present=present)


def test_without_slurm_the_lists_tell_whether_they_are_shared():
    assert assign([mpi(2, 0, ("0", "1")), mpi(2, 1, ("0", "1"))]) == ["0", "1"]
    assert assign([mpi(2, 0, ("0", "1")), mpi(2, 1, ("2", "3"))]) == ["all", "all"]
    # A script that sets CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK.
    assert assign([mpi(8, rank, (str(rank),)) for rank in range(8)]) == ["all"] * 8
    # They see none.
    assert assign([mpi(2, rank, ()) for rank in range(2)]) == ["all", "all"]
    # Nothing is known: as JAX does.
    assert assign([mpi(2, rank) for rank in range(2)]) == ["0", "1"]
    # Nothing is set: the machine's GPUs.
    assert assign([mpi(2, rank, present=8) for rank in range(2)]) == ["0,1,2,3", "4,5,6,7"]


def test_processes_that_were_started_by_hand_divide_the_gpus_too():
    views = [View("b", present=2), View("a", present=2), View("a", present=2)]
    assert assign(views) == ["all", "0", "1"]
    # One GPU, or none: JAX says what it cannot do, if it is to use GPUs at all.
    assert assign([View("a", present=1)] * 2) == ["all", "all"]
    assert assign([View("a")] * 2) == ["all", "all"]


@pytest.mark.parametrize("views", [[slurm(3, rank) for rank in range(3)], [slurm(16, 0)]])
def test_gpus_that_cannot_be_divided_are_refused(views):
    with pytest.raises(ValueError, match=r"a: 8 GPUs \(SLURM_GPUS_ON_NODE=8\) cannot be"):
        assign(views)


def test_several_tasks_with_a_list_of_mig_instances_are_refused():
    seen = {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2", "SLURM_GPUS_ON_NODE": "2"}
    task = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_NNODES": "1"}
    with pytest.raises(ValueError, match=r"one MIG instance.*--gpus-per-task=1"):
        assign([view(seen | task)])
    fact, remedy = unused([view(seen)], [1])
    assert "1 process uses 1 of 2 GPUs" in fact
    assert "one MIG instance" in remedy
    bound = [view(seen | task | {"CUDA_VISIBLE_DEVICES": f"MIG-{i}"}) for i in range(2)]
    assert assign(bound) == ["all", "all"]
    assert unused(bound, [1, 1]) is None


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("0,1", ("0", "1")),
        (" 2 , 3", ("2", "3")),
        ("GPU-8932f937,GPU-2", ("GPU-8932f937", "GPU-2")),
        ("MIG-1,MIG-2", ("MIG-1",)),
        ("MIG-GPU-8932f937/1/0", ("MIG-GPU-8932f937/1/0",)),
        ("0,-1,1", ("0",)),
        ("-1", ()),
        ("", ()),
        ("NoDevFiles", ()),
    ],
)
def test_what_cuda_shows(value, visible):
    assert view({"CUDA_VISIBLE_DEVICES": value}).visible == visible
    # ROCm reads this too, and Slurm sets both.
    other = {"CUDA_VISIBLE_DEVICES": value, "ROCR_VISIBLE_DEVICES": "7"}
    assert view(other).visible == visible
    assert view({"ROCR_VISIBLE_DEVICES": value}).visible == visible


def test_nodes_of_slurm_are_told_apart_on_one_machine():
    assert view({"SLURMD_NODENAME": "one"}).node == "one"
    assert view({}).node == local_devices.socket.gethostname()


def test_a_view_survives_its_text():
    for seen in (view({}), slurm(4, 1), view({"CUDA_VISIBLE_DEVICES": ""})):
        assert View.from_json(seen.to_json()) == seen


def test_all_granted_gpus_in_use_are_no_reason_to_stop():
    assert unused([slurm(1, 0, node=node) for node in "ab"], [8, 8]) is None
    assert unused([slurm(4, rank) for rank in range(4)], [2] * 4) is None
    assert unused([mpi(2, 0, ("0", "1")), mpi(2, 1, ("0", "1"))], [1, 1]) is None
    assert unused([View("a", present=8)], [0]) is None  # Nobody granted them; JAX warns.


@pytest.mark.parametrize(
    ("views", "used", "fact", "remedy"),
    [
        # JAX's default: the GPU of the local rank.
        ([slurm(1, 0, node=n) for n in "ab"], [8, 1], "b: 1 process uses 1 of 8 GPUs", "--exact"),
        ([slurm(4, r) for r in range(4)], [1] * 4, "4 processes use 4 of 8", "--gpus-per-task=2"),
        ([slurm(1, 0, ("0",))], [1], "uses 1 of 8", "Unset CUDA_VISIBLE_DEVICES=0"),
        ([mpi(1, 0, ("0", "9"))], [1], "1 of 2 GPUs (CUDA_VISIBLE_DEVICES=0,9)", "correct it"),
        ([slurm(1, 0)], [0], "0 of 8 GPUs (SLURM_GPUS_ON_NODE=8)", "JAX has no GPU backend"),
        ([slurm(1, 0, ())], [0], "uses 0 of 8", "hides them: unset it"),
        ([mpi(1, 0, ("0", "1"))], [0], "0 of 2 GPUs (CUDA_VISIBLE_DEVICES=0,1)", "no GPU backend"),
        ([mpi(2, 0, ("0", "1")), mpi(2, 1, ("2",))], [1, 1], "2 of 3", "--ntasks-per-node=1"),
        # --gpu-bind=closest: tasks of a socket see all of its GPUs.
        ([slurm(2, r, EIGHT[:4]) for r in range(2)] * 2, [4] * 4, "use 16 GPUs", "per-task=2"),
    ],
)
def test_idle_gpus_are_named(views, used, fact, remedy):
    said = unused(views, used)
    assert fact in said[0]
    assert remedy in said[1]


def test_gpus_are_not_used_twice_if_each_process_sees_others():
    views = [slurm(2, rank, (str(rank),), granted=1) for rank in range(2)]
    assert assign(views) == ["all", "all"]
    assert unused(views, [1, 1]) is None


def test_hardware_counts_where_several_processes_have_no_gpu_backend():
    views = [View("a", present=8), View("b", present=8)]
    assert unused(views, [0, 0], hardware=True)[0] == (
        "a: 1 process uses 0 of 8 GPUs (/dev/nvidia*)"
    )
    assert unused(views, [8, 8], hardware=True) is None
