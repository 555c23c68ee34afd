"""Checks the files in launch/ as far as that goes without the systems that they are for."""

import configparser
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from absl import flags
from helpers import tiny

import xlme_jax.train  # noqa: F401 (its flags)
from xlme_jax.configuration import loading
from xlme_jax.configuration.command_line import gin_flags
from xlme_jax.training.peers import EXIT_LOST_PEERS
from xlme_jax.training.stopping import EXIT_STOPPED, StopOnSignal

LAUNCH = tiny.REPOSITORY / "launch"
MANIFESTS = ["tpu", "gpu"]
SCRIPTS = ["slurm/train.sbatch", "tpu_vm/tpu_vm.sh"]
DOCKERFILES = sorted(LAUNCH.glob("docker/Dockerfile.*"))
# Codes of train after which a restart helps: docs/guide/faults.md.
RESTART = [EXIT_STOPPED, EXIT_LOST_PEERS, 128 + signal.SIGABRT]
CRD = "JOBSET_CRD"


def jobset(name):
    return yaml.safe_load((LAUNCH / "gke" / f"{name}.yaml").read_text())


def only(items):
    [item] = items
    return item


def replicated_job(name):
    return only(jobset(name)["spec"]["replicatedJobs"])


def job(name):
    return replicated_job(name)["template"]["spec"]


def pod(name):
    return job(name)["template"]["spec"]


def train(name):
    """Returns the container that trains."""
    return only(pod(name)["containers"])


def options(name):
    """Returns {flag: value} of train's arguments, without those for gin."""
    command = train(name)["args"]
    assert command[:3] == ["python", "-m", "xlme_jax.train"]
    pairs = [argument.removeprefix("--").partition("=") for argument in command[3:]]
    return {flag: value for flag, _, value in pairs if not flag.startswith("gin")}


@pytest.mark.parametrize("name", MANIFESTS)
def test_errors_fail_the_jobset_and_all_else_restarts_it(name):
    disruption, error = job(name)["podFailurePolicy"]["rules"]  # The first that fits counts.
    assert disruption == {
        "action": "Count",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert error["action"] == "FailJob"
    assert error["onExitCodes"] == {
        "containerName": train(name)["name"],
        "operator": "NotIn",
        "values": RESTART,
    }
    policy = jobset(name)["spec"]["failurePolicy"]
    rule = only(policy["rules"])
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert policy["maxRestarts"] == 100
    # Kubernetes allows podFailurePolicy with Never only, and a pod is never replaced alone.
    assert (pod(name)["restartPolicy"], job(name)["backoffLimit"]) == ("Never", 0)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_restart_after_the_same_codes(script):
    cases = re.findall(r"^ *(\d+(?: \| \d+)+)\)", (LAUNCH / script).read_text(), re.MULTILINE)
    assert cases
    assert {case for case in cases} == {" | ".join(map(str, RESTART))}


def test_the_documentation_has_the_same_codes():
    text = (tiny.REPOSITORY / "docs" / "guide" / "faults.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    restarted = [int(row[1]) for row in rows if re.match(r" (run|start) ", row[3])]
    assert restarted == RESTART


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_have_time_to_save(name):
    agreement = StopOnSignal.__init__.__defaults__[0]
    assert pod(name)["terminationGracePeriodSeconds"] >= 2 * agreement


def test_a_tpu_pod_has_a_process_for_each_host():
    topology = pod("tpu")["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = math.prod(map(int, topology.split("x")))
    hosts = chips // train("tpu")["resources"]["limits"]["google.com/tpu"]
    assert (job("tpu")["parallelism"], job("tpu")["completions"]) == (hosts, hosts)
    assert options("tpu") == {"distributed": ""}


def test_a_gpu_process_is_told_of_the_others():
    processes = job("gpu")["parallelism"]
    assert job("gpu")["completions"] == processes
    pods = f"$(JOBSET)-{replicated_job('gpu')['name']}-0"
    assert options("gpu") == {
        "coordinator_address": f"{pods}-0.$(JOBSET):8476",
        "num_processes": str(processes),
        "process_id": "$(JOB_COMPLETION_INDEX)",
    }


def test_the_init_container_waits_for_all_pods(tmp_path):
    getent = tmp_path / "getent"
    getent.write_text(f'#!/bin/bash\necho "$2" >> {tmp_path}/asked\n')
    getent.chmod(0o755)
    init = only(pod("gpu")["initContainers"])
    assert init["image"] == train("gpu")["image"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOBSET": "a"}
    subprocess.run(init["args"], env=environment, check=True, timeout=60)
    name = replicated_job("gpu")["name"]
    expected = [f"a-{name}-0-{index}.a" for index in range(job("gpu")["parallelism"])]
    assert (tmp_path / "asked").read_text().split() == expected


@pytest.mark.parametrize("name", MANIFESTS)
def test_arguments_are_understood_without_a_shell(name):
    assert options(name).keys() <= set(flags.FLAGS)
    gin = [flag.split("=", 1) for flag in gin_flags(train(name)["args"]) if "--gin" in flag]
    files = [value for flag, value in gin if flag == "--gin_file"]
    bindings = [value for flag, value in gin if flag == "--gin_bindings"]
    config = loading.load(files, bindings, "Train")
    assert str(config.model_dir) == "gs://my-bucket/runs/xlme_base"
    assert str(config.data_dir) == "gs://my-bucket/data"


@pytest.mark.parametrize("name", MANIFESTS)
def test_copies_of_data_go_to_a_volume(name):
    mounts = {mount["mountPath"]: mount["name"] for mount in train(name)["volumeMounts"]}
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod(name)["volumes"]}
    assert set(mounts.values()) == volumes.keys()
    environment = {variable["name"]: variable.get("value") for variable in train(name)["env"]}
    cache = volumes[mounts[environment["XDG_CACHE_HOME"]]]["sizeLimit"]
    assert train(name)["resources"]["requests"]["ephemeral-storage"] == cache
    gigabytes = int(cache.removesuffix("Gi")) * 2**30 / 1e9
    assert gigabytes > loading.load(["gin_configs/runs/xlme_base.gin"], [], "Train").data_cache_gb


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_fit_the_jobset_schema(name):
    if CRD not in os.environ:
        pytest.skip(f"{CRD} is not set to JobSet's config/components/crd/bases/*_jobsets.yaml")
    jsonschema = pytest.importorskip("jsonschema")
    versions = yaml.safe_load(Path(os.environ[CRD]).read_text())["spec"]["versions"]
    schema = only(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v1alpha2")
    forbid_unknown_fields(schema)
    jsonschema.validate(jobset(name), schema)


def forbid_unknown_fields(schema):
    if isinstance(schema, dict):
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        schema = schema.values()
    if not isinstance(schema, str | int | None):
        for part in schema:
            forbid_unknown_fields(part)


def instructions(dockerfile):
    """Returns the instructions of a Dockerfile, (name, argument)."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_pass_signals_on_and_do_not_run_as_root(dockerfile):
    found = dict(instructions(dockerfile))
    assert json.loads(found["ENTRYPOINT"]) == ["tini", "--"]
    assert json.loads(found["CMD"])[:3] == ["python", "-m", "xlme_jax.train"]
    assert found["USER"].isdigit() and found["USER"] != "0"
    [extras] = re.findall(r"^EXTRAS=(.*)", found["ARG"])
    assert set(extras.split(",")) <= extras_of_the_package()
    assert f"docker build -f {dockerfile.relative_to(tiny.REPOSITORY)} " in dockerfile.read_text()


def extras_of_the_package():
    setup = configparser.ConfigParser()
    setup.read(tiny.REPOSITORY / "setup.cfg")
    return set(setup["options.extras_require"])


def test_extras_of_the_scripts_exist():
    texts = [file.read_text() for file in [*DOCKERFILES, LAUNCH / "tpu_vm" / "tpu_vm.sh"]]
    named = re.findall(r"EXTRAS(?:=|:-| \()([\w,]+)", "\n".join(texts))
    assert len(named) > 4
    assert set(",".join(named).split(",")) <= extras_of_the_package()


def test_images_are_built_from_named_files_alone():
    lines = (tiny.REPOSITORY / ".dockerignore").read_text().splitlines()
    first, *rest = [line for line in lines if not line.startswith("#")]
    assert first == "*"
    for name in (line.removeprefix("!") for line in rest if line.startswith("!")):
        assert (tiny.REPOSITORY / name).exists(), name


def test_scripts_have_no_mistakes_that_bash_or_shellcheck_find():
    files = [str(LAUNCH / script) for script in SCRIPTS]
    for file in files:
        subprocess.run(["bash", "-n", file], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, *files], check=True)


def test_files_say_that_they_were_not_run():
    tested = {LAUNCH / "slurm" / "train.sbatch"}  # tests/e2e/test_slurm.py
    for file in set(LAUNCH.glob("*/*")) - tested:
        assert re.search(r"^# Not (run|built): needs ", file.read_text(), re.MULTILINE), file


def test_commands_in_the_documentation_name_files_that_exist():
    text = (tiny.REPOSITORY / "docs" / "guide" / "pods.md").read_text()
    words = [
        word
        for block in re.findall(r"```bash\n(.*?)```", text, re.S)
        for word in shlex.split(block)
    ]
    named = [word for word in words if word.startswith("launch/")]
    assert len(named) > 4
    for word in named:
        assert (tiny.REPOSITORY / word).is_file(), word
