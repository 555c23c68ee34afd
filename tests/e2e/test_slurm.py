"""Runs launch/slurm/train.sbatch on a Slurm cluster of two nodes, both on this machine.

Each node has eight GPUs, which are links to /dev/null: Slurm counts them and tells tasks of them as
it does with real ones.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
from helpers import commands, runs, tiny

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
TaskPlugin=task/affinity
TaskPluginParam=autobind=cores
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
GresTypes=gpu
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs={cpus} Gres=gpu:8
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs={cpus} Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
BINDINGS = {**runs.SHORT, "TRAIN_STEPS": 40, "Train__evaluators": (), "Mesh__data": 2}


class Cluster:
    """A Slurm cluster of two nodes; both names resolve to this machine."""

    def __init__(self, folder):
        self.folder, host = folder, socket.gethostname()
        ports = [tiny.free_port() for _ in range(3)]
        (folder / "state").mkdir()
        for gpu in range(8):
            (folder / f"gpu{gpu}").symlink_to("/dev/null")
        gres = f"NodeName={host},localhost Name=gpu File={folder}/gpu[0-7]\n"
        (folder / "gres.conf").write_text(gres)
        names = {"port": ports[0], "first": ports[1], "second": ports[2], "cpus": os.cpu_count()}
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=host, **names))
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


def submit(cluster, folder, *flags, export="ALL", options=()):
    """Submits a job on both nodes; returns its number."""
    where = ("--nodes=2", f"--chdir={folder}", f"--export={export}")
    command = ["sbatch", "--parsable", *where, *options, str(SCRIPT), *flags]
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
    path = replace_python(
        tmp_path,
        "((${SLURM_RESTART_COUNT:-0} == 0)) || exit 0\n"
        f"codes=({codes[0]} {codes[1]})\nexit ${{codes[$SLURM_PROCID]}}\n",
    )
    job = submit(cluster, tmp_path, export=f"ALL,PATH={path}")
    assert ended(cluster, job) == (end, restarts)


def replace_python(folder, script):
    """Returns a PATH on which `python` is a shell script."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/bash\n{script}")
    python.chmod(0o755)
    return f"{python.parent}:{os.environ['PATH']}"


# Prints "node: GPUs that Slurm shows to the task; those of them that JAX uses; number of CPUs".
PROBE = """
import os
from jax._src import xla_bridge
from xlme_jax.training import peers
peers.join(None, None, None, 60)
gpus, cpus = os.environ["CUDA_VISIBLE_DEVICES"], len(os.sched_getaffinity(0))
print(f"{os.environ['SLURMD_NODENAME']}: {gpus}; {xla_bridge.CUDA_VISIBLE_DEVICES.value}; {cpus}")
"""
PROBED = re.compile(r"^(\S+): ([\d,]+); (\S+); (\d+)$", re.M)
EVERY_GPU = [(node, str(gpu)) for node in ("first", "second") for gpu in range(8)]


def used_gpus(output):
    """Returns (node, GPU) for each GPU that a task of the probe uses."""
    nodes = {socket.gethostname(): "first", "localhost": "second"}
    used = []
    for node, seen, indices, _ in PROBED.findall(output):
        gpus = seen.split(",")
        indices = range(len(gpus)) if indices == "all" else map(int, indices.split(","))
        used += [(nodes[node], gpus[index]) for index in indices]
    return sorted(used)


def test_a_task_of_the_script_has_all_gpus_and_cpus_of_its_node(cluster, tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    path = replace_python(tmp_path, f"exec {sys.executable} {tmp_path}/probe.py\n")
    options = ["--gpus-per-node=8"]
    job = submit(cluster, tmp_path, export=f"ALL,PATH={path}", options=options)
    assert ended(cluster, job) == ("COMPLETED", 0)
    said = "".join((tmp_path / f"slurm-{job}-{task}.log").read_text() for task in range(2))
    assert used_gpus(said) == EVERY_GPU
    assert [int(cpus) for *_, cpus in PROBED.findall(said)] == [os.cpu_count()] * 2


@pytest.mark.parametrize(
    "options",
    [
        ["--gpus-per-node=8"],
        ["--gres=gpu:8"],
        ["--gpus-per-task=4"],
        ["--gpus-per-node=8", "--gpu-bind=mask_gpu:0x3f,0xc0"],
    ],
    ids=" ".join,
)
def test_two_tasks_a_node_use_each_gpu_once(cluster, options):
    several = ["--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--overcommit", *options]
    assert used_gpus(cluster.ask("srun", *several, sys.executable, "-c", PROBE)) == EVERY_GPU


def refused(cluster, tmp_path, *options, flags=()):
    """Runs train as tasks that JAX gives no GPU; returns what it says of its refusal."""
    train = [sys.executable, "-m", "xlme_jax.train", *flags, "--gin_file=missing.gin"]
    done = subprocess.run(
        ["srun", *options, *train],
        env=cluster.environment | {"JAX_PLATFORMS": ""},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if "Error: " in line and "srun: " not in line]


def test_runs_that_would_leave_gpus_idle_are_refused(cluster, tmp_path):
    host = socket.gethostname()
    node = f"--nodelist={host}"
    [line] = refused(cluster, tmp_path, node, "--gpus-per-node=8")
    assert f"{host}: 1 process uses 0 of 8 GPUs (SLURM_GPUS_ON_NODE=8). JAX has no GPU" in line
    # What a step asks for counts, not what its job has.
    [line] = refused(cluster, tmp_path, node, "--gpus-per-node=1")
    assert "0 of 1 GPUs" in line
    both = refused(cluster, tmp_path, node, "--ntasks=2", "--gpus-per-node=8", "--overcommit")
    assert len(both) == 2
    assert all("srun started 2 processes, each of which" in line for line in both)
    odd = ["--ntasks=3", "--gpus-per-node=8", "--overcommit"]
    lines = refused(cluster, tmp_path, node, *odd, flags=["--distributed"])
    assert len(lines) == 3
    assert all("8 GPUs (SLURM_GPUS_ON_NODE=8) cannot be divided" in line for line in lines)
