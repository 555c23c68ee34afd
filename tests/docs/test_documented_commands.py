"""Commands in the documentation."""

import os
import subprocess
import sys
from pathlib import Path

import documented
import pytest
from helpers import tiny


def test_commands_flags_files_and_overrides_exist():
    wrong = [
        f"{page.relative_to(documented.ROOT)}: {problem}"
        for page in documented.pages()
        for problem in documented.problems(page.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_each_training_has_a_folder_of_its_own():
    """A second one would resume the first and end at once, with the first one's weights."""
    flags_of = {}
    for page in documented.pages():
        for folder, flags in documented.trainings(page.read_text()):
            flags_of.setdefault(folder, set()).add(flags)
    assert len(flags_of) > 10
    shared = {folder: some for folder, some in flags_of.items() if len(some) > 1}
    assert not shared


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("python -m xlme_jax.trane --gin_file=x.gin", "no command 'trane'"),
        ("python -m xlme_jax.train --gin_fil=x.gin", "no flag --gin_fil"),
        ("python -m xlme_jax.train --gin_file=gin_configs/runs/no.gin", "no file"),
        ("python -m xlme_jax.evaluate --gin_file=gin_configs/common.gin", "no flag --gin_file"),
        (
            "python -m xlme_jax.train --gin.bitext/PairStream.row=1",
            "no field bitext/PairStream.row",
        ),
        ("$SWEEP --gin.Strem.rows=1", "no configurable Strem"),
        ("python -m xlme_jax.train --gin.STEPS=1", "no macro STEPS"),
        ('python -m xlme_jax.sweep --evaluate="python -m xlme_jax.evaluate --chekpoint=x"', "chek"),
        ("python -m xlme_jax.sweep --output=a \\\n    --grid=Loop.sed=1,2", "no field Loop.sed"),
    ],
)
def test_a_mistake_is_found(command, problem):
    (found,) = documented.problems(f"Text.\n\n```bash\n{command}\n```\n")
    assert problem in found


def test_inline_commands_are_checked():
    assert documented.problems("Add `--gin.Loop.seeds=1`.") == [
        "no field Loop.seeds: --gin.Loop.seeds"
    ]
    assert documented.problems("Run `python -m xlme_jax.train --sead=1` once.")


@pytest.mark.slow
def test_quick_start_runs(tmp_path):
    text = (documented.ROOT / "docs" / "guide" / "quickstart.md").read_text()
    commands = [block for block in documented.blocks(text) if "pip install" not in block]
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # Optimised, as for users: hundreds of steps.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
        "XLA_FLAGS": "",
    }
    options = {"cwd": tmp_path, "env": tiny.environment(variables=variables), "check": True}
    for command in commands:
        subprocess.run(["bash", "-euc", command], **options)
    for code in documented.blocks(text, "python"):
        subprocess.run([sys.executable, "-c", code], **options)
    assert (tmp_path / "runs/first/report.html").stat().st_size
    assert (tmp_path / "exported/first/model.safetensors").stat().st_size
