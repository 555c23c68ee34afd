"""Runs launch/slurm/train.sbatch on a Slurm cluster of two nodes, both on this machine."""

import os
import shutil
import socket
import subprocess
import time

import commands
import pytest
import runs
import tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("slurmctld") and shutil.which("slurmd")),
        reason="needs Slurm: apt-get install slurmctld slurmd slurm-client",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd needs root"),
]

SCRIPT = tiny.REPOSITORY / "launch" / "slurm" / "train.sbatch"
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
BINDINGS = {**runs.SHORT, "TRAIN_STEPS": 40, "Train__evaluators": (), "Mesh__data": 2}


class Cluster:
    """A Slurm cluster of two nodes; both names resolve to this machine."""

    def __init__(self, folder):
        self.folder, host = folder, socket.gethostname()
        ports = [tiny.free_port() for _ in range(3)]
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(
            CONFIG.format(folder=folder, host=host, port=ports[0], first=ports[1], second=ports[2])
        )
        self.environment = {**tiny.environment(1), "SLURM_CONF": str(folder / "slurm.conf")}
        daemons = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", n] for n in (host, "localhost"))]
        self._processes = [self._start(daemon) for daemon in daemons]

    def _start(self, command):
        output = (self.folder / "daemons.log").open("ab")
        return subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)

    def ask(self, *command):
        """Runs a command of Slurm; returns its output."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def state(self, job):
        """Returns the state of a job and how often it was restarted."""
        shown = dict(
            field.split("=", 1)
            for field in self.ask("scontrol", "show", "job", job).split()
            if "=" in field
        )
        return shown["JobState"], int(shown["Restarts"])

    def until(self, condition, seconds=300):
        """Waits until a condition is true."""
        deadline = time.monotonic() + seconds
        while not condition():
            logs = [path.read_text()[-2000:] for path in self.folder.glob("*.log")]
            assert time.monotonic() < deadline, "\n".join(logs)
            time.sleep(0.2)

    def stop(self):
        """Ends the daemons."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)


@pytest.fixture
def cluster(tmp_path):
    """Returns a `Cluster` whose nodes are idle."""
    cluster = Cluster(tmp_path)
    try:
        cluster.until(lambda: cluster.ask("sinfo", "-h", "-o", "%T %D").strip() == "idle 2", 60)
        yield cluster
    finally:
        cluster.stop()


def submit(cluster, folder, *flags, export="ALL"):
    """Submits a job on both nodes; returns its number."""
    where = ("--nodes=2", f"--chdir={folder}", f"--export={export}")
    command = ["sbatch", "--parsable", *where, str(SCRIPT), *flags]
    return cluster.ask(*command).strip()


def ended(cluster, job):
    """Waits for the end of a job; returns its state and number of restarts."""
    cluster.until(lambda: cluster.state(job)[0] not in ("RUNNING", "PENDING", "COMPLETING"))
    return cluster.state(job)


def flags(model_dir, data_dir):
    """Returns flags that hold in any working folder."""
    first, *rest = tiny.flags(model_dir, data_dir, **BINDINGS)
    return [first.replace("gin_configs", str(tiny.REPOSITORY / "gin_configs")), *rest]


def test_a_stopped_job_is_requeued_and_ends_with_the_same_bits(cluster, tmp_path, tiny_data):
    whole = submit(cluster, tmp_path, *flags(tmp_path / "whole", tiny_data))
    assert ended(cluster, whole) == ("COMPLETED", 0)
    job = submit(cluster, tmp_path, *flags(tmp_path / "run", tiny_data))
    cluster.until(lambda: commands.last_line(tmp_path / "run") >= 5)
    cluster.ask("scancel", "--signal=TERM", job)
    cluster.until(lambda: cluster.state(job)[1] == 1)
    stopped = commands.newest(tmp_path / "run")
    assert 5 <= stopped < 40
    assert ended(cluster, job) == ("COMPLETED", 1)
    said = (tmp_path / f"slurm-{job}-0.log").read_text()
    assert f"Resuming from the checkpoint of step {stopped}" in said
    assert "train ended with 75; requeued" in (tmp_path / f"slurm-{job}.log").read_text()
    assert commands.differences(tmp_path / "run", tmp_path / "whole") == []
    # One device in each task: a sum of two has one order. With more, the order of a sum within a
    # process and between processes differs, and so do the last bits.
    one = tmp_path / "one"
    commands.Command(flags(one, tiny_data), one, tmp_path / "log", 2).finish()
    assert commands.differences(tmp_path / "run", one) == []


def test_an_error_is_not_requeued(cluster, tmp_path, tiny_data):
    job = submit(cluster, tmp_path, "--gin_file=missing.gin")
    assert ended(cluster, job) == ("FAILED", 0)
    assert "missing.gin" in (tmp_path / f"slurm-{job}-0.log").read_text()


@pytest.mark.parametrize(
    ("codes", "end", "restarts"),
    [((76, 1), "FAILED", 0), ((1, 76), "FAILED", 0), ((76, 134), "COMPLETED", 1)],
)
def test_an_error_behind_a_lost_process_is_not_requeued(cluster, tmp_path, codes, end, restarts):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        "#!/bin/bash\n((${SLURM_RESTART_COUNT:-0} == 0)) || exit 0\n"
        f"codes=({codes[0]} {codes[1]})\nexit ${{codes[$SLURM_PROCID]}}\n"
    )
    python.chmod(0o755)
    job = submit(cluster, tmp_path, export=f"ALL,PATH={python.parent}:{os.environ['PATH']}")
    assert ended(cluster, job) == (end, restarts)
