import configparser
import subprocess
import sys

import pytest
from helpers import tiny

from xlme_jax import api
from xlme_jax.validation.extras import EXTRAS


def test_each_extra_has_its_package():
    setup = configparser.ConfigParser()
    setup.read(tiny.REPOSITORY / "setup.cfg")
    packages = setup["options.extras_require"]
    for package, extra in EXTRAS.items():
        assert package.replace("_", "-") in packages[extra].replace("_", "-"), package


def test_seqio_is_missing_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "seqio", None)
    with pytest.raises(ValueError, match=r"SeqIO or TFDS needs seqio.*pip install 'xlme_jax\[data"):
        api.load_tasks()


@pytest.mark.parametrize(("command", "package"), [("export", "safetensors"), ("demo", "flask")])
def test_a_command_without_its_package_ends_in_one_line(command, package):
    arguments = [command, "--checkpoint=a"] + ["--output=b"] * (command == "export")
    code = f"""
import runpy, sys
sys.modules[{package!r}] = None
sys.argv = {arguments!r}
runpy.run_module("xlme_jax.{command}", run_name="__main__", alter_sys=True)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    end = f"{package}, which is not installed: pip install 'xlme_jax[{EXTRAS[package]}]'"
    assert line.endswith(end), line
