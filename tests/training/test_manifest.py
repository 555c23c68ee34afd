import json
import subprocess

import gin
import jax
import pytest

from xlme_jax.training import manifest


def test_a_start_names_command_code_packages_and_devices():
    start = manifest.describe_start("python -m xlme_jax.train", seed=3)
    assert start["command"] == "python -m xlme_jax.train" and start["seed"] == 3
    assert start["packages"]["jax"] == jax.__version__
    assert start["packages"].keys() >= {"flax", "optax", "orbax-checkpoint", "numpy", "jaxlib"}
    assert start["devices"].startswith(f"{jax.device_count()} x ")
    json.dumps(start)


def test_commit_and_changes_of_a_checkout(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git("init")
    assert manifest._code(package) == {}  # The package is not part of the repository.
    git("add", ".")
    git("commit", "-m", "Begin")
    commit = git("rev-parse", "HEAD")
    assert manifest._code(package) == {"commit": commit, "uncommitted_changes": False}
    (package / "__init__.py").write_text("1")
    assert manifest._code(package) == {"commit": commit, "uncommitted_changes": True}


def test_starts_are_added_and_the_id_stays(tmp_path):
    first = manifest.with_start(tmp_path, {"command": "a"})
    (tmp_path / manifest.MANIFEST_FILE).write_text(json.dumps(first))
    second = manifest.with_start(tmp_path, {"command": "b"})
    assert second["starts"] == [{"command": "a"}, {"command": "b"}]
    assert second["id"] == first["id"] and second["name"] == tmp_path.name
    assert manifest.with_start(tmp_path / "other", {})["id"] != first["id"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id": 1, "starts": []}', '{"id": "a"}'])
def test_a_damaged_manifest_is_ignored(tmp_path, text, caplog):
    (tmp_path / manifest.MANIFEST_FILE).write_text(text)
    assert manifest.read(tmp_path) == {}
    assert "unreadable" in caplog.text


def test_bindings_of_a_configuration():
    text = """# Macros:
# ==================
MODEL_DIR = 'runs/a = b'
SEED = 3

# Parameters for Train:
# ==================
Train.evaluators = \\
    (@HeldOut(),
     @RetrievalProbe())
bitext/PairStream.rows = 14
Train.none = None
"""
    assert manifest.bindings(text) == {
        "MODEL_DIR": "'runs/a = b'",
        "SEED": "3",
        "Train.evaluators": "(@HeldOut(), @RetrievalProbe())",
        "bitext/PairStream.rows": "14",
        "Train.none": "None",
    }


def test_bindings_are_those_that_gin_writes():
    with gin.unlock_config():
        gin.clear_config()

        @gin.configurable("manifest_example", module="tests")
        def example(numbers=(), words=None):
            return numbers, words

        gin.parse_config(
            f"manifest_example.numbers = {tuple(range(60))}\nmanifest_example.words = {{'a': 'b'}}"
        )
        found = manifest.bindings(gin.config_str(max_line_length=60))
        gin.clear_config()
    assert found == {
        "manifest_example.numbers": str(tuple(range(60))),
        "manifest_example.words": "{'a': 'b'}",
    }
