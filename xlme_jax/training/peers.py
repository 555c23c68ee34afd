"""Joins the processes of a run, detects lost ones, and exits without waiting for them.

When a process dies, the others hang in a collective. JAX's coordination service ends them after
some time, but from C++ and with messages of its own. Here each process keeps asking the service
which processes are alive. The call returns once all processes have asked; if that takes too long,
the process reports the loss. Only if process 0 dies, which hosts the service, JAX is faster: it
aborts the others immediately.
"""

import faulthandler
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from xlme_jax.storage.sealed_json import checksum

# EX_PROTOCOL of sysexits.h: start all processes again to resume from the newest checkpoint.
EXIT_LOST_PEERS = 76
_ASK_SECONDS = 1.0
# JAX's own timeout comes after ours, whose message is more helpful.
_GRACE_SECONDS = 30
# Process 0 hosts the service, so the others must report before it exits.
_LINGER_SECONDS = 3.0
_NAMED = 5
_gathered = itertools.count()  # The service takes each name once.
# How long processes wait in `gather` for work of another process that may take long; the timeouts
# of `StopOnSignal` end the wait earlier.
LONG_SECONDS = 7 * 86_400
# How long processes wait in `gather` otherwise.
_TELL_SECONDS = 300
# JAX's own variable: "0,1" are the GPUs of this process.
_LOCAL_DEVICES = "JAX_LOCAL_DEVICE_IDS"
_TPU_HOSTS = "TPU_WORKER_HOSTNAMES"  # GKE sets it in pods that have TPUs.
_NOT_DETECTED = (
    "--distributed: no other processes are known. JAX detects those of srun, of Open MPI 4 and, "
    "with the extra `tpu`, of Cloud TPUs. In a batch script, start the command with srun; under "
    "another launcher, set --coordinator_address=HOST:PORT of process 0, by hand also "
    "--num_processes and --process_id"
)


def join(
    coordinator: str | None, processes: int | None, index: int | None, timeout_seconds: int
) -> None:
    """Joins the processes of a run, and chooses the GPUs of this process.

    To be called before JAX has devices.

    Args:
      coordinator: "host:port" of process 0; None if `jax.distributed` is to detect it, with
        `processes` and `index`.
      processes: number of processes; None if it is detected, or the launcher says it.
      index: index of this process; None if it is detected, or the launcher says it.
      timeout_seconds: how long `Watch` waits for a response.

    Raises:
      ValueError: the other processes are not known, or GPUs cannot be divided among them.
    """
    faulthandler.disable()  # Stacks of all threads would bury the message with which JAX aborts.
    from xlme_jax.training import launchers, local_devices

    start = launchers.launch(os.environ)
    if coordinator and start:
        processes = start.tasks if processes is None else processes
        index = start.rank if index is None else index
    # With None, JAX uses the GPU of the local rank, or the GPUs that _LOCAL_DEVICES lists.
    local_device_ids: list[int] | None = None if _LOCAL_DEVICES in os.environ else []
    limit = timeout_seconds + _GRACE_SECONDS
    try:
        jax.distributed.initialize(
            coordinator, processes, index, local_device_ids, heartbeat_timeout_seconds=limit
        )
    except ValueError as error:
        raise ValueError(f"{_NOT_DETECTED} (JAX: {error})") from None
    if _LOCAL_DEVICES not in os.environ:
        views = gather("gpus", local_devices.view(os.environ).to_json())
        gpus = local_devices.assign([local_devices.View.from_json(text) for text in views])
        for platform in ("cuda", "rocm"):
            jax.config.update(f"jax_{platform}_visible_devices", gpus[_state().process_id])


def check_single(trains: bool = False) -> None:
    """Checks that this command runs as one process (`launchers.check_single`).

    Args:
      trains: whether the command is train, which several processes can run together.

    Raises:
      ValueError: a launcher started several processes, or the GPUs of other nodes would be idle.
    """
    from xlme_jax.training import launchers

    launchers.check_single(os.environ, cpus_chosen(), trains)


def check_devices(say: Callable[[str], None]) -> None:
    """Checks that JAX has all GPUs that the processes were granted, and TPUs if there are any.

    Args:
      say: function that reports too few CPUs for the GPUs, and GPUs that are idle because JAX was
        told so (by JAX_PLATFORMS=cpu or JAX_LOCAL_DEVICE_IDS).

    Raises:
      ValueError: GPUs or TPUs are idle, GPUs are used twice, or the processes have not joined.
    """
    if jax.process_count() > 1 and _state().client is None:
        raise ValueError(
            f"JAX has devices of {jax.process_count()} hosts, and this process has not joined the "
            "others: to train, add --distributed on all hosts."
        )
    backend = jax.default_backend()
    if backend == "cpu" and _TPU_HOSTS in os.environ and not cpus_chosen():
        raise ValueError(
            f"JAX has no TPU backend here, but this host has TPUs ({_TPU_HOSTS}): pip install -e "
            "'.[tpu]', or set JAX_PLATFORMS=cpu to use CPUs."
        )
    if backend == "tpu":
        return
    gpus = sum(device.platform == "gpu" for device in jax.local_devices())
    if gpus > (cpus := len(os.sched_getaffinity(0))):
        say(
            f"{gpus} GPUs of this process are fed by {cpus} CPUs, because it may use no others: "
            "start it with sbatch --exclusive and srun --cpu-bind=none."
        )
    from xlme_jax.training import local_devices

    gathered = gather("used", json.dumps([local_devices.view(os.environ).to_json(), gpus]))
    views, counts = zip(*map(json.loads, gathered), strict=True)
    unasked = jax.process_count() > 1 and not cpus_chosen()
    unused = local_devices.unused([*map(local_devices.View.from_json, views)], counts, unasked)
    if unused is None:
        return
    fact, remedy = unused
    if cpus_chosen():
        say(f"{fact}, because of JAX_PLATFORMS=cpu.")
    elif _LOCAL_DEVICES in os.environ and _state().client is not None:
        say(f"{fact}, because of {_LOCAL_DEVICES}={os.environ[_LOCAL_DEVICES]}.")
    else:
        raise ValueError(f"{fact}. {remedy}")


def cpus_chosen() -> bool:
    """Returns whether the user has told JAX to use CPUs alone."""
    return jax.config.values["jax_platforms"] == "cpu"


def check_same(subject: str, facts: Mapping[str, str]) -> None:
    """Checks that all processes were given the same facts; waits for all of them.

    Args:
      subject: name of the comparison; all processes make the same comparisons in the same order.
      facts: {name of a fact: its value}.

    Raises:
      ValueError: in all processes, if two processes differ; names the facts and the processes.
    """
    state = _state()
    digests = gather(f"{subject}/digest", checksum(facts))
    differing = [index for index, digest in enumerate(digests) if digest != digests[0]]
    if not differing:
        return
    first = differing[0]
    is_compared = state.process_id in (0, first)
    gathered = gather(f"{subject}/facts", json.dumps(facts, sort_keys=True) if is_compared else "")
    of_0 = json.loads(gathered[0])
    of_first = json.loads(gathered[first])
    name, *other_names = (name for name in of_0 | of_first if of_0.get(name) != of_first.get(name))
    remainder = ""
    if other_names:
        ellipsis = ", ..." if len(other_names) > _NAMED else ""
        remainder = f" So do: {', '.join(other_names[:_NAMED])}{ellipsis}."
    raise ValueError(
        f"{name} differs: {of_first.get(name)} in process {first}, {of_0.get(name)} in process "
        f"0{_and_processes(differing[1:])}.{remainder} Start all processes with the same command, "
        "configuration, code, packages and data. Nothing was compiled."
    )


def _and_processes(indices: Sequence[int]) -> str:
    """Returns how many more processes differ, in parentheses, for a message; "" if none do."""
    return f" ({len(indices)} more differ: {_processes(indices[:_NAMED])})" if indices else ""


def gather(subject: str, value: str, seconds: float = _TELL_SECONDS) -> list[str]:
    """Returns the values of all processes for a subject, by index; waits for all of them.

    A collective of devices could not wait for long: the first collective that a backend runs fails
    if a process comes 30 seconds late.

    Args:
      subject: name of the subject; all processes gather the same subjects in the same order.
      value: value of this process.
      seconds: how long to wait.

    Raises:
      JaxRuntimeError: a process gave no value in this time.
    """
    state = _state()
    if state.client is None:
        return [value]
    key = f"xlme_jax/{subject}/{next(_gathered)}"
    state.client.key_value_set(f"{key}/{state.process_id}", value)
    state.client.wait_at_barrier(key, int(seconds * 1000))
    values = {
        int(name.rpartition("/")[2]): text for name, text in state.client.key_value_dir_get(key)
    }
    return [values[index] for index in range(state.num_processes)]


def _state() -> Any:
    """Returns JAX's state of the processes: `client`, `process_id` and `num_processes`."""
    # The module is not public, but Orbax synchronises through it as well.
    from jax._src import distributed

    return distributed.global_state


def coordination_client() -> Any:
    """Returns the client of JAX's coordination service; None in a run of one process."""
    return None if jax.process_count() == 1 else _state().client


def leave(status: int) -> None:
    """Exits with `status` and without the barrier of a normal exit, which waits for all processes.

    Process 0 of several first gives the others some seconds to report.
    """
    if jax.process_index() == 0 and jax.process_count() > 1:
        time.sleep(_LINGER_SECONDS)
    os._exit(status)


class Watch:
    """Ends this process when another one stops responding; use it in a `with` statement.

    Args:
      timeout_seconds: how long to wait for a response.
      say: function that reports why this process ends.
      clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        timeout_seconds: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._timeout, self._say, self._clock = timeout_seconds, say, clock
        self._client = coordination_client()
        self._closing = threading.Event()
        self._asked: float | None = None

    def __enter__(self) -> "Watch":
        if self._client is not None:
            for target in (self._ask, self._check):
                threading.Thread(target=target, name="peers", daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the watch, because this process is about to end for a reason of its own."""
        self._closing.set()

    def _ask(self) -> None:
        """Asks the service, again and again, which processes are alive; runs in a thread."""
        everybody = list(range(jax.process_count()))
        while not self._closing.wait(_ASK_SECONDS):
            self._asked = self._clock()
            try:
                alive = self._client.get_live_nodes(everybody)
            except jax.errors.JaxRuntimeError as error:
                self._end(f"lost the coordinator, process 0 ({str(error).splitlines()[0]})")
                return
            self._asked = None
            if gone := sorted(set(everybody) - set(alive)):
                self._end(f"lost {_processes(gone)}")

    def _check(self) -> None:
        """Ends this process when `_ask` waits too long for an answer; runs in a thread."""
        while not self._closing.wait(_ASK_SECONDS):
            asked = self._asked
            if asked is not None and self._clock() - asked > self._timeout:
                self._end(f"no response from another process for {self._timeout:.0f} seconds")

    def _end(self, reason: str) -> None:
        """Reports the `reason` and ends this process, unless the watch is closed."""
        if self._closing.is_set():
            return
        self._say(lost_peers(reason))
        leave(EXIT_LOST_PEERS)


def lost_peers(event: str) -> str:
    """Returns the message of a process that cannot continue after `event`, with the remedy."""
    return (
        f"Process {jax.process_index()} of {jax.process_count()}: {event}. See the logs of the "
        "others for the cause. Start all processes again with the same command to resume from the "
        "newest checkpoint."
    )


def _processes(indices: Sequence[int]) -> str:
    return ("process " if len(indices) == 1 else "processes ") + ", ".join(map(str, indices))
