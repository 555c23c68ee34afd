"""Stands in for gcloud, and on the workers for uv and Python, in test_tpu_vm.py.

There is at most one queued resource. Its two workers are folders on this machine, in which `ssh`
runs its commands. What happens to train is in the file outcomes-WORKER, a line for each start.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_GCLOUD"])
STATE, REFUSED = FOLDER / "state", FOLDER / "refused_connections"
WORKERS = [FOLDER / "worker-0", FOLDER / "worker-1"]
# The state at one look and the next.
NEXT = {"WAITING_FOR_RESOURCES": "PROVISIONING", "PROVISIONING": "ACTIVE", "FAILING": "FAILED"}


def record(name, value):
    with (FOLDER / name).open("a") as file:
        file.write(json.dumps(value) + "\n")


def flag(arguments, name):
    return next(x.split("=", 1)[1] for x in arguments if x.startswith(f"--{name}="))


def gcloud(*arguments):
    assert arguments[:2] == ("compute", "tpus")
    group, command, *rest = arguments[2:]
    record("calls", [f"{group} {command}", *rest])
    assert flag(rest, "zone") == "us-west4-a"
    return COMMANDS[f"{group} {command}"](*rest)


def listed(*arguments):
    state = STATE.read_text() if STATE.exists() else ""
    print(state, end="\n" if state else "")
    if state in NEXT:
        STATE.write_text(NEXT[state])


def create(*arguments):
    refusal = FOLDER / "refusal"
    if refusal.exists():
        print(refusal.read_text(), file=sys.stderr)
        return 1
    assert not STATE.exists()
    STATE.write_text(os.environ.get("FIRST_STATE", "WAITING_FOR_RESOURCES"))
    for home in WORKERS:
        (home / ".local" / "bin").mkdir(parents=True)
        shutil.copy(FOLDER / "bin" / "gcloud", home / ".local" / "bin" / "uv")


def delete(*arguments):
    STATE.unlink()
    for home in WORKERS:
        shutil.rmtree(home)


def scp(source, target, *arguments):
    for home in WORKERS:
        shutil.copy(source, home / target.split(":")[1])


def ssh(name, *arguments):
    refused = int(REFUSED.read_text()) if REFUSED.exists() else 0
    if refused:
        REFUSED.write_text(str(refused - 1))
    if refused or STATE.read_text() != "ACTIVE":
        return 255
    chosen = flag(arguments, "worker")
    codes = [
        subprocess.run(
            # As ssh does: one string, for a shell in the user's folder.
            ["bash", "-c", flag(arguments, "command")],
            cwd=home,
            env={
                **os.environ,
                "HOME": str(home),
                "PATH": f"{FOLDER / 'worker_bin'}:{os.environ['PATH']}",
            },
        ).returncode
        for number, home in enumerate(WORKERS)
        if chosen in ("all", str(number))
    ]
    return next((code for code in codes if code), 0)


def uv(*arguments):
    """Makes a virtual environment whose Python is this file."""
    record("installed", arguments)
    if arguments[0] == "venv":
        folder = Path(arguments[-1]) / "bin"
        folder.mkdir(parents=True)
        shutil.copy(FOLDER / "bin" / "gcloud", folder / "python")


def train(*arguments):
    worker = Path.cwd().parent.name
    outcomes = FOLDER / f"outcomes-{worker[-1]}"
    outcome, *rest = outcomes.read_text().split("\n")
    outcomes.write_text("\n".join(rest))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    record("started", [worker, *arguments])
    print(f"train says {outcome}", flush=True)
    if outcome == "preempted":
        while (FOLDER / "started").read_text().count("\n") % 2:  # The other worker starts.
            time.sleep(0.01)
        STATE.write_text("SUSPENDED")
        return 75
    if outcome == "disconnected":  # While train runs on.
        REFUSED.write_text("3")
        # Nobody connects again if the script has connected before these lines.
        deadline = time.monotonic() + 10
        while REFUSED.read_text() != "0" and time.monotonic() < deadline:
            time.sleep(0.05)
        return 0
    if outcome == "stopped":
        time.sleep(60)
    return int(outcome)


COMMANDS = {
    "queued-resources list": listed,
    "queued-resources create": create,
    "queued-resources delete": delete,
    "tpu-vm scp": scp,
    "tpu-vm ssh": ssh,
}

if __name__ == "__main__":
    program = {"gcloud": gcloud, "uv": uv, "python": train, "python3": lambda *_: 0}
    sys.exit(program[Path(sys.argv[1]).name](*sys.argv[2:]))
