"""Runs launch/tpu_vm/tpu_vm.sh with a stand-in for gcloud: fake_gcloud.py."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import tiny

SCRIPT = tiny.REPOSITORY / "launch" / "tpu_vm" / "tpu_vm.sh"
# What a shell might change on the way.
ARGUMENTS = [
    "--gin.MODEL_DIR='gs://b/runs/x'",
    '--gin.Train.trackers=(@TensorBoard(), @WandB("a b"))',
    "--gin.SEED=$HOME `id` \\n * ~ ; exit 3 &",
    "--gin.Train.stop_rules=(1,  2,\n 3)",
    "",
]


class Cloud:
    """A checkout with the script, and the stand-in's folder."""

    def __init__(self, folder):
        self.folder, self.checkout = folder, folder / "checkout"
        self.script = self.checkout / "launch" / "tpu_vm" / "tpu_vm.sh"
        self.script.parent.mkdir(parents=True)
        shutil.copy(SCRIPT, self.script)
        commit = "git init -q; git add -A; git -c user.name=a -c user.email=b commit -qm c"
        subprocess.run(commit, shell=True, cwd=self.checkout, check=True)
        stand_in = Path(__file__).with_name("fake_gcloud.py")
        for name in ("bin/gcloud", "worker_bin/python3"):
            program = folder / name
            program.parent.mkdir()
            program.write_text(f'#!/bin/bash\nexec {sys.executable} {stand_in} "$0" "$@"\n')
            program.chmod(0o755)

    def start(self, *arguments, worker_0=(), worker_1=None, **variables):
        """Starts the script.

        Args:
          arguments: of the script.
          worker_0: what happens to each start of train on worker 0.
          worker_1: as worker_0, which is the default.
          variables: environment variables.
        """
        for number, outcomes in enumerate([worker_0, worker_0 if worker_1 is None else worker_1]):
            if outcomes:
                (self.folder / f"outcomes-{number}").write_text("\n".join(map(str, outcomes)))
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "FAKE_GCLOUD": str(self.folder),
            "ZONE": "us-west4-a",
            "ACCELERATOR_TYPE": "v5litepod-8",
            "RUNTIME_VERSION": "v2-alpha-tpuv5-lite",
            "POLL_SECONDS": "0.05",
            **variables,
        }
        command = ["bash", str(self.script), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments, **options):
        """Runs the script as `start` does; returns its exit code."""
        process = self.start(*arguments, **options)
        self.output = "".join(process.communicate(timeout=60))
        print(self.output)  # Shown if the test fails.
        return process.returncode

    def read(self, name):
        """Returns the lines that the stand-in has recorded."""
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def calls(self):
        """Returns the commands of gcloud, without looks at the state."""
        names = [call[0].split()[1] for call in self.read("calls")]
        return [name for name in names if name != "list"]

    def starts(self):
        """Returns how often train was started on each worker."""
        workers = [worker for worker, *_ in self.read("started")]
        return [workers.count(f"worker-{number}") for number in (0, 1)]


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


INSTALL = ["scp", "ssh"]
RUN = ["ssh", "ssh", "ssh"]  # Start, follow, report.


def test_a_preempted_slice_is_replaced_and_train_runs_again(cloud):
    assert cloud.run("watch", "x", *ARGUMENTS, worker_0=["preempted", 0], worker_1=[75, 0]) == 0
    lost = ["ssh"] * 3
    assert cloud.calls() == ["create", *INSTALL, *lost, "delete", "create", *INSTALL, *RUN]
    assert cloud.starts() == [2, 2]
    expected = ["-m", "xlme_jax.train", "--distributed", *ARGUMENTS]
    assert [arguments for _, *arguments in cloud.read("started")] == [expected] * 4
    assert "train says 0" in cloud.output
    [first, second] = [call for call in cloud.read("calls") if call[0].endswith("create")]
    assert first == second
    assert first[1:] == [
        "x",
        "--node-id=x",
        "--accelerator-type=v5litepod-8",
        "--runtime-version=v2-alpha-tpuv5-lite",
        "--spot",
        "--zone=us-west4-a",
    ]


def test_the_commit_and_the_extras_are_installed_on_all_workers(cloud):
    assert cloud.run("create", "x", EXTRAS="gcs") == 0
    head = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(head, cwd=cloud.checkout, capture_output=True, check=True).stdout
    for worker in (0, 1):
        clone = cloud.folder / f"worker-{worker}" / "xlme_jax"
        assert subprocess.run(head, cwd=clone, capture_output=True).stdout == commit
    installed = [arguments for arguments in cloud.read("installed") if arguments[0] == "pip"]
    assert [arguments[-1] for arguments in installed] == ["xlme_jax[gcs]"] * 2


@pytest.mark.slow
def test_an_error_in_one_process_ends_it(cloud):
    assert cloud.run("watch", "x", worker_0=[76], worker_1=[1]) == 1
    assert cloud.starts() == [1, 1]
    assert cloud.calls() == ["create", *INSTALL, *RUN]


@pytest.mark.slow
def test_train_restarts_on_a_slice_that_is_still_there(cloud):
    assert cloud.run("watch", "x", worker_0=[76, 0], worker_1=[134, 0]) == 0
    assert cloud.starts() == [2, 2]
    assert cloud.calls().count("create") == 1
    assert len(cloud.read("installed")) == 4  # venv and pip on two workers, once


@pytest.mark.slow
def test_the_number_of_restarts_is_bounded(cloud):
    assert cloud.run("watch", "x", worker_0=[75] * 9, MAX_RESTARTS="1") == 75
    assert cloud.starts() == [2, 2]


@pytest.mark.slow
def test_train_runs_on_while_the_connection_is_lost(cloud):
    assert cloud.run("watch", "x", worker_0=["disconnected"], worker_1=[0]) == 0
    assert cloud.starts() == [1, 1]


def test_a_request_that_is_refused_is_not_repeated(cloud):
    (cloud.folder / "refusal").write_text("no such accelerator type")
    assert cloud.run("watch", "x") == 1
    assert cloud.calls() == ["create"]
    assert "no such accelerator type" in cloud.output


def test_a_request_that_fails_is_repeated_after_a_preemption_only(cloud):
    assert cloud.run("watch", "x", FIRST_STATE="FAILING") == 1
    assert cloud.calls() == ["create", "delete"]


@pytest.mark.slow
def test_stop_ends_train_and_delete_the_slice(cloud):
    assert cloud.run("create", "x") == 0
    run = cloud.start("run", "x", worker_0=["stopped"], worker_1=[0])
    while cloud.starts() != [1, 1]:
        assert run.poll() is None
        time.sleep(0.05)
    assert cloud.run("stop", "x") == 0
    assert run.wait(60) == 75
    assert cloud.run("delete", "x") == 0
    assert cloud.read("calls")[-1][1:] == ["x", "--force", "--quiet", "--zone=us-west4-a"]


@pytest.mark.parametrize("arguments", [(), ("watch",), ("start", "x")])
def test_mistakes_are_refused(cloud, arguments):
    assert cloud.run(*arguments) != 0
    assert cloud.calls() == []
