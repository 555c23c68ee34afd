"""Detects lost processes of a run, and exits without waiting for them.

When a process dies, the others hang in a collective. JAX's coordination service ends them in time,
but from C++ and with messages of its own. Here each process asks the service which processes are
alive, a call that returns once all have asked, and reports the loss if that takes too long. Only if
process 0 dies, which hosts the service, JAX is faster: it aborts the others immediately.
"""

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

# EX_PROTOCOL of sysexits.h: start all processes again to resume from the newest checkpoint.
EXIT_LOST_PEERS = 76
_ASK_SECONDS = 1.0
# JAX's own timeout comes after ours, whose message is more helpful.
_GRACE_SECONDS = 30
# Process 0 hosts the service, so the others must report before it exits.
_LINGER_SECONDS = 3.0


def join(
    coordinator: str | None, processes: int | None, index: int | None, timeout_seconds: int
) -> None:
    """Joins the processes of a run; `jax.distributed.initialize` detects what is None."""
    limit = timeout_seconds + _GRACE_SECONDS
    faulthandler.disable()  # Stacks of all threads would bury the message with which JAX aborts.
    jax.distributed.initialize(coordinator, processes, index, heartbeat_timeout_seconds=limit)


def coordination_client() -> Any:
    """Returns the client of JAX's coordination service; None in a run of one process."""
    if jax.process_count() == 1:
        return None
    # Not public, but Orbax synchronises through it as well.
    from jax._src import distributed

    return distributed.global_state.client


def leave(status: int) -> None:
    """Exits immediately, as the barrier of a normal exit would wait for the other processes."""
    if jax.process_index() == 0 and jax.process_count() > 1:
        time.sleep(_LINGER_SECONDS)
    os._exit(status)


class Watch:
    """Ends this process when another one stops responding; use it in a `with` statement.

    Args:
      timeout_seconds: how long to wait for a response.
      say: reports the message.
      clock: monotonic seconds.
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
        self._closing.set()

    def _ask(self) -> None:
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
        while not self._closing.wait(_ASK_SECONDS):
            asked = self._asked
            if asked is not None and self._clock() - asked > self._timeout:
                self._end(f"no response from another process for {self._timeout:.0f} seconds")

    def _end(self, what: str) -> None:
        if self._closing.is_set():
            return
        self._say(lost_peers(what))
        leave(EXIT_LOST_PEERS)


def lost_peers(what: str) -> str:
    """Returns the message of a process that cannot continue without the others."""
    return (
        f"Process {jax.process_index()} of {jax.process_count()}: {what}. See the logs of the "
        "others for the cause. Start all processes again with the same command to resume from the "
        "newest checkpoint."
    )


def _processes(indices: list[int]) -> str:
    return ("process " if len(indices) == 1 else "processes ") + ", ".join(map(str, indices))
