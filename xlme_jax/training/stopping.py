"""Graceful shutdown on signals: finish the step, save a checkpoint, exit with a code.

The first signal asks the run to end, a second one ends it at once. A separate thread reads signals,
since Python's handlers do not run while the main thread is in C++, which takes minutes when a
program compiles. While nothing would be lost (before the first step, or while a saved state is
evaluated), that thread ends the process itself.

All processes must save the same step. They agree on the step through the key-value store of
`jax.distributed`: a process that gets a signal publishes it; each process then publishes its step
and waits; the run ends with the first step that no process has passed. If one of several processes
is stuck, the others wait for it in a collective; after a time without progress they end.
"""

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from xlme_jax.training import peers
from xlme_jax.training.run import NeverStop

_log = logging.getLogger(__name__)

# EX_TEMPFAIL of sysexits.h: everything is saved, and the same command resumes the run.
EXIT_STOPPED = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_POLL_SECONDS = 0.5
_PREFIX = "xlme_jax/stop"


class Stopped(Exception):
    """The run ended early because it was asked to; its state is saved.

    Args:
      step: finished steps; None if the run had not begun.
    """

    def __init__(self, step: int | None):
        when = "before the first step" if step is None else f"after step {step}"
        super().__init__(f"Stopped {when}. Run the same command again to resume.")


class StopOnSignal(NeverStop):
    """Ends a run on a signal; use it once, in the main thread, in a `with` statement.

    Args:
      timeout: seconds that processes wait for each other to agree on the last step.
      step_timeout: most seconds from a step to the next one, or to its saved state. A process of
        several ends when they have passed.
      phase_timeout: most seconds from the start, or from a saved state, to the next step, for data,
        compilation and evaluations. A process of several ends when they have passed.
    """

    def __init__(
        self,
        timeout: float = 300.0,
        step_timeout: float = math.inf,
        phase_timeout: float = math.inf,
    ):
        self._timeout, self._step_timeout = timeout, step_timeout
        self._phase_timeout = phase_timeout
        self._client = peers.coordination_client()
        self._lock = threading.Lock()  # Held while processes agree.
        self._step = 0  # Steps that this process has passed; valid if the run has begun.
        self._begun = False  # Whether the run has started or resumed.
        # Waits for the checkpoint of `_step`; None if that step is not saved and would be lost.
        self._wait: Callable[[], None] | None = lambda: None
        self._last: int | None = None  # The step to end with, once processes have agreed.
        self._deadline = time.monotonic() + phase_timeout  # For the next step or saved state.
        self._closing = threading.Event()

    def __enter__(self) -> "StopOnSignal":
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # `nohup` ignores SIGHUP.
        handled = [
            n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN
        ]
        self._old_handlers = {number: signal.signal(number, _ignore) for number in handled}
        self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        targets = [self._listen]
        if self._client:
            targets.append(self._poll)
        for target in targets:
            threading.Thread(target=target, name="stopping", daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closing.set()
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        os.close(self._write)

    def requested(self, step: int) -> bool:
        """Returns whether the run is to end after `step`, which devices may still compute.

        The answer is the same in all processes.
        """
        with self._lock:
            self._step = step
            self._wait = None
            self._deadline = time.monotonic() + self._step_timeout
            return self._last is not None and step >= self._last

    def saved(self, step: int, wait: Callable[[], None]) -> None:
        """Allows a signal to end the process at any moment until the next step is passed.

        Args:
          step: finished steps, whose state is saved or being saved.
          wait: function that waits for pending writes.

        Raises:
          Stopped: the run was asked to end.
        """
        with self._lock:
            self._step = step
            self._wait = wait
            self._begun = True
            self._deadline = time.monotonic() + self._phase_timeout
            if self._last is not None and self._last <= step:
                raise Stopped(step)

    def _listen(self) -> None:
        """Reads signals as they arrive: the first asks for the end, a second ends the process."""
        count = 0
        while data := os.read(self._read, 1):
            number = data[0]
            if number not in SIGNALS:
                continue
            count += 1
            name = signal.Signals(number).name
            if count > 1:
                say(f"{name} again: ending at once. The last checkpoint is kept.")
                os._exit(128 + number)
            say(f"{name}: the run ends after this step and saves. A second signal ends it at once.")
            if self._client:
                with contextlib.suppress(jax.errors.JaxRuntimeError):  # Another process did.
                    self._client.key_value_set(f"{_PREFIX}/requested", name)
            else:
                # In another thread, because this one must read a second signal meanwhile.
                threading.Thread(target=self._agree, daemon=True).start()
        os.close(self._read)

    def _poll(self) -> None:
        """Agrees on the last step once a process asks for it; leaves if no step ends in time."""
        while not self._closing.wait(_POLL_SECONDS):
            if time.monotonic() > self._deadline:
                self._leave(self._overdue())
            if self._last is not None:
                continue
            try:
                self._client.key_value_try_get(f"{_PREFIX}/requested")
            except jax.errors.JaxRuntimeError:  # No request yet.
                continue
            try:
                self._agree()
            except jax.errors.JaxRuntimeError as error:
                reason = str(error).splitlines()[0]
                self._leave(f"the processes did not agree on a last step ({reason})")

    def _overdue(self) -> str:
        """Returns which timeout has passed, for the message."""
        if self._wait is None:
            limit = self._step_timeout
            return f"no step ended for {limit:.0f} s after step {self._step} (--step_timeout)"
        since = f"step {self._step} was saved" if self._begun else "the start"
        return f"no step ended for {self._phase_timeout:.0f} s after {since} (--phase_timeout)"

    def _leave(self, reason: str) -> None:
        """Reports the `reason` and ends this process without saving."""
        if not self._closing.is_set():
            say(peers.lost_peers(reason))
            peers.leave(peers.EXIT_LOST_PEERS)

    def _agree(self) -> None:
        """Sets the step to end with; ends this process if the state after that step is saved."""
        with self._lock:  # The main thread cannot pass another step meanwhile.
            # After a step that is not saved, the run goes on: it can end with the next step.
            reachable = self._step + 1 if self._wait is None else self._step
            self._last = self._largest(reachable) if self._client else reachable
            if self._wait is not None and self._last <= self._step:
                self._exit(self._wait)

    def _largest(self, value: int) -> int:
        """Returns the largest `value` of all processes; waits for all."""
        timeout = int(self._timeout * 1000)
        self._client.key_value_set(f"{_PREFIX}/steps/{jax.process_index()}", str(value))
        self._client.wait_at_barrier(f"{_PREFIX}/agreed", timeout)
        return max(int(v) for _, v in self._client.key_value_dir_get(f"{_PREFIX}/steps/"))

    def _exit(self, wait: Callable[[], None]) -> None:
        """Ends this process after pending writes; the exit code tells whether all is saved."""
        status = EXIT_STOPPED
        try:
            wait()
            say(str(Stopped(self._step if self._begun else None)))
        except Exception as error:
            say(f"{type(error).__name__}: {error}")
            status = 1
        os._exit(status)


def _ignore(number: int, frame: Any) -> None:
    """Does nothing, because a thread reads the signals."""


def say(text: str) -> None:
    """Logs a message from any thread, and flushes the handlers, as the process may end at once."""
    _log.warning("%s", text)
    for handler in logging.getLogger().handlers:
        handler.flush()
