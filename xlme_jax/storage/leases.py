"""A lease on a bucket's folder for one writer at a time, instead of a lock.

The lease is an object that its holder writes again every `RENEW_SECONDS`, on condition that the
object still has the generation that the holder wrote last. If the generation has not changed for
`EXPIRE_SECONDS`, the holder has ended, and the next process takes the lease over. Only durations
are measured, so that the clocks of different machines do not matter.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from xlme_jax.storage.buckets import file_system, naming

_log = logging.getLogger(__name__)
RENEW_SECONDS = 10.0
EXPIRE_SECONDS = 45.0
_POLL_SECONDS = 1.0
_PROCESS = uuid.uuid4().hex


@contextlib.contextmanager
def hold(file: pathlib.Path, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lease `file` in a bucket during the block.

    A background thread renews the lease. If the lease is lost, the thread ends the whole process.

    Args:
      file: path of the lease's object.
      busy: function called once if a living process holds the lease. If it raises, so does this
        function; else this process waits for the lease.

    Raises:
      OSError: the bucket is missing or not writable; the error names the object.
    """
    generation = _acquire(file, busy)
    closing = threading.Event()
    renewal = threading.Thread(target=_renew, args=(file, generation, closing), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        closing.set()
        renewal.join()
        with contextlib.suppress(OSError):  # A lease that stays expires.
            file.unlink(missing_ok=True)


def _acquire(file: pathlib.Path, busy: Callable[[], None]) -> str:
    """Waits for the lease; returns the generation of its object."""
    # The generation that was seen last, since when, and whether `busy` was called. An empty
    # `generation` means that this round must not write.
    seen = ""
    since = time.monotonic()
    asked = False
    while True:
        lease = _read(file)
        if lease is None or (lease["machine"] == _machine() and not _alive(lease)):
            generation = "0" if lease is None else lease["generation"]
        elif lease["generation"] != seen:
            if seen and not asked:  # It changed while this process watched: the holder lives.
                busy()
                asked = True
            if not seen:
                _log.info(
                    "%s: written by process %s on %s; waiting up to %.0f s to see whether it still "
                    "runs.",
                    file,
                    lease["pid"],
                    lease["machine"].split()[0],
                    EXPIRE_SECONDS,
                )
            seen = lease["generation"]
            since = time.monotonic()
            generation = ""
        else:
            generation = seen if time.monotonic() - since > EXPIRE_SECONDS else ""
        if generation and (written := _write(file, generation)):
            return written
        if not generation:
            time.sleep(_POLL_SECONDS)


def _renew(file: pathlib.Path, generation: str, closing: threading.Event) -> None:
    """Renews the lease until `closing` is set; ends the process if the lease is lost."""
    reason = ""
    try:
        reason = _renew_until(file, generation, closing)
    finally:
        if not closing.is_set():
            # Writing on could mix two runs in one folder. Printed, not logged: a handler's lock may
            # be held by a thread that hangs, and this process must end.
            print(
                f"{file}: lost the lease ({reason or repr(sys.exception())}), another process may "
                "write here now. Ending without saving; the run resumes from its newest "
                "checkpoint.",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)


def _renew_until(file: pathlib.Path, generation: str, closing: threading.Event) -> str:
    """Renews the lease until `closing` is set, or until the lease is lost.

    Returns:
      The reason why the lease is lost; "" if `closing` was set.
    """
    renewed = time.monotonic()
    while not closing.wait(RENEW_SECONDS):
        try:
            generation = _write(file, generation)
        except Exception as error:  # Libraries of buckets raise errors of many classes.
            # No other process can take the lease over before it expires.
            if time.monotonic() - renewed > EXPIRE_SECONDS - RENEW_SECONDS:
                return repr(error)
            _log.warning("%s could not be renewed: %s; trying again.", file, error)
            continue
        if not generation:
            return "it has another holder"
        renewed = time.monotonic()
    return ""


def _read(file: pathlib.Path) -> dict[str, Any] | None:
    """Returns the entries of a lease's object and its generation; None if there is no object.

    An object that is not JSON has entries of no machine and process.
    """
    with naming(file):
        try:
            generation = file_system().info(str(file)).get("generation", "1")
            content = json.loads(file_system().cat_file(str(file)))
        except FileNotFoundError:
            return None
        except ValueError:
            content = {"machine": "", "pid": 0, "process": ""}
    return {**content, "generation": str(generation)}


def _write(file: pathlib.Path, generation: str) -> str:
    """Writes the lease if its object has a generation.

    Args:
      file: path of the lease's object.
      generation: generation that the object must have; "0" if there must be no object.

    Returns:
      The new generation; "" if the object has another generation than required.

    Raises:
      OSError: the object cannot be written; the error names it.
    """
    bucket, _, name = str(file).removeprefix("gs://").partition("/")
    holder = {"machine": _machine(), "pid": os.getpid(), "process": _PROCESS}
    holder["request"] = uuid.uuid4().hex
    fs = file_system()
    with naming(file):
        try:
            answer = fs.call(
                "POST",
                f"{fs._location}/upload/storage/v1/b/{quote(bucket)}/o",
                uploadType="multipart",
                ifGenerationMatch=generation,
                headers={"Content-Type": 'multipart/related; boundary="=="'},
                data=_multipart({"name": name}, holder),
                json_out=True,
            )
        except FileExistsError:  # Status 412.
            # gcsfs repeats requests: the object may be what this call's first request wrote.
            lease = _read(file)
            return (
                lease["generation"] if lease and lease.get("request") == holder["request"] else ""
            )
    return str(answer.get("generation", "1"))


def _multipart(*parts: dict[str, Any]) -> bytes:
    """Returns the body of a multipart upload of JSON values: the object's fields and content."""
    head = "--==\nContent-Type: application/json\n\n"
    return ("\n".join(head + json.dumps(part) for part in parts) + "\n--==--").encode()


def _machine() -> str:
    """Returns words that identify the host, its boot, and the name space of process numbers."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    space = pathlib.Path("/proc/self/ns/pid")
    return " ".join(
        [
            socket.gethostname(),
            boot.read_text().strip() if boot.exists() else "-",
            os.readlink(space) if space.exists() else "-",
        ]
    )


def _alive(lease: dict[str, Any]) -> bool:
    """Returns whether the holder of a lease, a process of this machine, still runs."""
    if lease["pid"] == os.getpid():  # An earlier process may have had this number.
        return bool(lease["process"] == _PROCESS)
    try:
        os.kill(lease["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # The process of another user.
        pass
    return True
