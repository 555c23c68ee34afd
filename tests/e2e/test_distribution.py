"""What is built for package indexes: installed outside the checkout, it trains the quickstart."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from helpers import tiny

pytestmark = pytest.mark.slow
# Of an example of each kind of file that is no module.
DATA = (
    "gin_configs/runs/quickstart.gin",
    "gin_configs/models/xlme.gin",
    "xlme_jax/py.typed",
    "xlme_jax/studies/published/xlme/table_1.tsv",
    "xlme_jax/tools/serving/page.js",
    "tasks/as_source.py",
)


def call(arguments, **options):
    done = subprocess.run(
        list(map(str, arguments)), capture_output=True, text=True, timeout=900, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Returns a copy of what is tracked: building writes into the checkout."""
    pytest.importorskip("setuptools", minversion="77", reason="builds need setuptools 77")
    copy = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=tiny.REPOSITORY,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not in a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (tiny.REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tiny.REPOSITORY / name, copy / name)
    return copy


def build(checkout, kind, output):
    """Builds a distribution with the project's own backend, without the network."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(output)!r}))"
    call([sys.executable, "-c", code], cwd=checkout)
    (found,) = output.iterdir()
    return found


def test_the_wheel_trains_from_another_folder(checkout, tmp_path):
    (tmp_path / "wheel").mkdir()
    wheel = build(checkout, "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names.issuperset(DATA)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        *("gin_configs", "tasks", "xlme_jax")
    }
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    folder = Path(
        call([python, "-c", "import sysconfig as s; print(s.get_path('purelib'))"]).strip()
    )
    call([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel])
    # The libraries of this environment, but not its editable installation.
    (folder / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    options = {"cwd": tmp_path, "env": bare}
    where = call([python, "-c", "import xlme_jax; print(xlme_jax.__file__)"], **options)
    assert where.startswith(str(folder))
    command = tmp_path / "venv" / "bin" / "xlme-jax"
    assert "train_vocabulary" in call([command, "--help"], **options)
    bindings = {"TRAIN_STEPS": 3, "MODEL_DIR": "run", "Train.evaluators": ()}
    bindings |= {"CldrCorpus.documents": 200, "CldrCorpus.pairs": 400}
    flags = [f"--gin.{name}={value!r}" for name, value in bindings.items()]
    call([command, "train", "--gin_file=gin_configs/runs/quickstart.gin", *flags], **options)
    assert (tmp_path / "run" / "checkpoints" / "3").is_dir()
    assert (tmp_path / "data" / "quickstart" / "dataset.json").is_file()


def test_the_source_distribution_builds_the_same_wheel(checkout, tmp_path):
    for name in ("source", "wheel", "first"):
        (tmp_path / name).mkdir()
    source = build(checkout, "sdist", tmp_path / "source")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    names = [
        set(zipfile.ZipFile(build(where, "wheel", tmp_path / output)).namelist())
        for where, output in ((unpacked, "wheel"), (checkout, "first"))
    ]
    assert names[0] == names[1]
