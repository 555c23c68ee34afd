import json
import os
import subprocess
import sys
import time

import pytest

from xlme_jax.storage import leases


class Busy(Exception):
    """Raised if a lease is held."""


def refuse():
    raise Busy


@pytest.fixture
def lease(folder, monkeypatch):
    """Returns a lease's object; leases expire quickly."""
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(leases, "EXPIRE_SECONDS", 1.5)
    monkeypatch.setattr(leases, "_POLL_SECONDS", 0.05)
    return folder / ".lock"


def held_by(lease, **holder):
    lease.write_text(json.dumps({"machine": "other - -", "pid": 1, "process": "x"} | holder))


def test_a_lease_is_held_renewed_and_released(lease):
    with leases.hold(lease):
        first = lease.read_text()
        time.sleep(0.4)
        assert lease.read_text() != first
    assert not lease.exists()


def test_a_living_holder_is_noticed(lease):
    with leases.hold(lease), pytest.raises(Busy), leases.hold(lease, refuse):
        pass


def test_a_lease_that_is_not_renewed_is_taken_over(lease):
    held_by(lease)
    start = time.monotonic()
    with leases.hold(lease, refuse):
        assert time.monotonic() - start >= 1.5
        assert json.loads(lease.read_text())["pid"] == os.getpid()


def test_the_lease_of_an_ended_process_of_this_machine_is_taken_over_immediately(lease):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    held_by(lease, machine=leases._machine(), pid=ended.pid)
    start = time.monotonic()
    with leases.hold(lease, refuse):
        assert time.monotonic() - start < 1.0


def test_a_write_needs_the_generation_that_was_read(lease):
    generation = leases._write(lease, "0")
    assert generation and leases._write(lease, "0") == ""
    newer = leases._write(lease, generation)
    assert newer and leases._write(lease, generation) == ""
    lease.unlink()


def test_a_lost_lease_ends_the_process(lease, server):
    code = (
        "import time; from xlme_jax.storage import leases, paths;"
        "leases.RENEW_SECONDS = 0.1;\n"
        f"with leases.hold(paths.as_path('{lease}')): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    held_by(lease)
    assert holder.wait(30) == 1
    assert "lost the lease" in holder.stderr.read()


@pytest.mark.parametrize(
    "error",
    [pytest.param("RuntimeError('closed')", marks=pytest.mark.slow), "SystemExit(0)"],
    ids=["", "exit"],
)
def test_any_error_of_the_renewal_ends_the_process(lease, server, error):
    code = (
        "import time; from xlme_jax.storage import leases, paths;"
        "leases.RENEW_SECONDS, leases.EXPIRE_SECONDS = 0.1, 1.0;\n"
        "def fail(*_): raise " + error + "\n"
        f"with leases.hold(paths.as_path('{lease}')):\n"
        "    leases._write = fail; print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    assert holder.wait(30) == 1
    assert f"lost the lease ({error})" in holder.stderr.read()


def test_a_bucket_without_permission_is_an_error(lease, server):
    server.inject(read_only=True)
    with pytest.raises(PermissionError, match="permission denied"), leases.hold(lease):
        pass
