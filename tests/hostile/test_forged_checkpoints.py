"""A checkpoint from somebody else runs no code and opens no files of its choice."""

import json
import shutil
import sys

import pytest
from helpers import finetuning, hf_folders, tiny

from xlme_jax.checkpoints import digests
from xlme_jax.configuration import loading
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.storage.sealed_json import checksum

STEP = 4
# Writes a file when it is imported.
CODE = "import os, pathlib\npathlib.Path(os.environ['PROOF']).write_text('ran')\n"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    words = Vocabulary.load(finetuning.write_vocabulary(folder))
    length = {"Encoder__max_length": finetuning.LENGTH}
    return hf_folders.write_checkpoint(folder / "run", "xlm", words, (STEP,), **length)


@pytest.fixture
def forged(tmp_path, original, monkeypatch):
    """Returns a function from lines of a configuration to a sealed checkpoint that has them."""
    (tmp_path / "modules" / "evil_package").mkdir(parents=True)
    (tmp_path / "modules" / "evil_package" / "__init__.py").write_text(CODE)
    (tmp_path / "modules" / "evil.py").write_text(CODE)
    monkeypatch.setenv("PROOF", str(tmp_path / "proof"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    def forge(lines):
        folder = tmp_path / "forged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        checkpoint = folder / "checkpoints" / str(STEP)
        record = checkpoint / "run" / "metadata"
        content = json.loads(record.read_bytes())
        content["config"] = lines + content["config"]
        del content["sha256"]
        record.write_text(json.dumps(content | {"sha256": checksum(content)}))
        (checkpoint / digests.FILE).unlink(missing_ok=True)
        digests.seal_files(checkpoint)
        return folder

    yield forge
    for name in ("evil", "evil_package"):
        sys.modules.pop(name, None)
    assert not (tmp_path / "proof").exists()


IMPORTS = {
    "plain": "import evil\n",
    "package": "import evil_package\n",
    "from": "from evil_package import evil\n",
    "alias": "import evil as xlme\n",
    "late": "DATA_DIR = 'a'\nimport evil\n",
    "continued": "import \\\n  evil\n",
}


@pytest.mark.parametrize("lines", IMPORTS.values(), ids=IMPORTS)
def test_imports_are_refused(lines):
    with pytest.raises(ConfigError, match=r"runs/a: .* imports the Python module evil"):
        loading.load_text(lines, "Train", "runs/a")


def test_includes_are_refused(tmp_path):
    (tmp_path / "a.gin").write_text("import evil\n")
    for path in (tmp_path / "a.gin", "gs://bucket/a.gin", "gin_configs/base/train.gin"):
        with pytest.raises(ConfigError, match=r"runs/a: .* includes '.*a\w*\.gin'.*not read"):
            loading.load_text(f"include '{path}'\n", "Train", "runs/a")


def commands(folder, output, data):
    """Returns the commands that read a checkpoint, and their arguments."""
    tuned = finetuning.finetune_flags(output / "tuned", data, folder, "cldr_tagging")
    return {
        "evaluate": [f"--checkpoint={folder}", f"--data={data}", "--tasks=tatoeba"],
        "export": [f"--checkpoint={folder}", f"--output={output / 'exported'}"],
        "average": [f"--checkpoint={folder}", "--last=1", f"--output={output / 'mean'}"],
        "translate": [f"--checkpoint={folder}", f"--source={__file__}", "--target=fr"],
        "demo": [f"--checkpoint={folder}"],
        "train": tuned,
    }


@pytest.mark.parametrize(
    "command",
    tiny.slow_except({"evaluate"}, ["evaluate", "export", "average", "translate", "demo", "train"]),
)
@pytest.mark.parametrize("lines", tiny.slow_except({"import evil\n"}, IMPORTS.values()))
def test_no_command_runs_the_code(tmp_path, forged, tiny_data, command, lines):
    folder = forged(lines)
    variables = {
        "PYTHONPATH": f"{tmp_path / 'modules'}:{tiny.REPOSITORY}",
        "PROOF": str(tmp_path / "proof"),
    }
    arguments = commands(folder, tmp_path / "out", tiny_data)[command]
    (process,) = tiny.run_each(command, arguments, later=variables)
    assert process.returncode == 1, process.stdout + process.stderr
    assert "imports the Python module evil" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.slow
def test_what_the_user_trusts_is_imported(tmp_path, forged, tiny_data):
    trusted = exported(tmp_path, forged("import evil\n"), tiny_data, "evil")
    assert trusted.returncode == 0, trusted.stderr
    assert (tmp_path / "trusted").read_text() == "ran"


def test_a_trusted_module_that_is_not_there_is_named(tmp_path, forged, tiny_data):
    unknown = exported(tmp_path, forged("import evil\n"), tiny_data, "evil,no_such_module")
    assert unknown.returncode == 1 and "--trusted_modules=no_such_module" in unknown.stderr


def exported(tmp_path, folder, data, modules):
    """Exports a checkpoint with trusted modules; returns the process that has ended."""
    variables = {
        "PYTHONPATH": f"{tmp_path / 'modules'}:{tiny.REPOSITORY}",
        "PROOF": str(tmp_path / "trusted"),
    }
    arguments = commands(folder, tmp_path / "out", data)["export"]
    (done,) = tiny.run_each("export", [*arguments, f"--trusted_modules={modules}"], later=variables)
    return done
