"""The processes of one run: noticing that one is gone, and leaving without waiting for it.

A process that dies leaves the others waiting in a collective. JAX's coordination service ends them
in time, but from C++ and in its own words; here each process asks the service who is alive, which
is answered when all have asked, and says what is the matter if that takes too long. Only when
process 0 dies, which hosts the service, JAX is faster: it aborts the others at once.
"""

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

# EX_PROTOCOL of sysexits.h: start all processes again, the run goes on from its checkpoint.
EXIT_LOST_PEERS = 76
_ASK_SECONDS = 1.0
# JAX's own limit comes after ours, which says more.
_GRACE_SECONDS = 30
# Process 0 serves the others: they are to have their say before it is gone.
_LINGER_SECONDS = 3.0


def join(
    coordinator: str | None, processes: int | None, index: int | None, timeout_seconds: int
) -> None:
    """Joins the processes of a run; what is None is detected (`jax.distributed.initialize`)."""
    limit = timeout_seconds + _GRACE_SECONDS
    faulthandler.disable()  # Stacks of all threads would bury what JAX says when it aborts.
    jax.distributed.initialize(coordinator, processes, index, heartbeat_timeout_seconds=limit)


def coordination_client() -> Any:
    """The client of JAX's coordination service; None in a run of one process."""
    if jax.process_count() == 1:
        return None
    # Not public, but what Orbax too synchronises through.
    from jax._src import distributed

    return distributed.global_state.client


def leave(status: int) -> None:
    """Ends this process at once: the barrier of an orderly exit would wait for the others."""
    if jax.process_index() == 0 and jax.process_count() > 1:
        time.sleep(_LINGER_SECONDS)
    os._exit(status)


class Watch:
    """Ends the process when another one has given no sign of life; use by `with`.

    Args:
      timeout_seconds: how long to wait for a sign.
      say: what takes the message.
      clock: seconds that only grow.
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
                self._end(f"no sign of life from another process for {self._timeout:.0f} seconds")

    def _end(self, what: str) -> None:
        if self._closing.is_set():
            return
        self._say(lost_peers(what))
        leave(EXIT_LOST_PEERS)


def lost_peers(what: str) -> str:
    """The message of a process that cannot go on alone."""
    return (
        f"Process {jax.process_index()} of {jax.process_count()}: {what}. See the logs of the "
        "others for the cause. Start all processes again with the same command: the run goes on "
        "from its newest checkpoint."
    )


def _processes(indices: list[int]) -> str:
    return ("process " if len(indices) == 1 else "processes ") + ", ".join(map(str, indices))
