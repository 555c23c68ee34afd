"""Each shipped configuration names its own folders."""

import re

import pytest
from helpers import tiny

from xlme_jax.configuration import loading

CONFIGS = tiny.REPOSITORY / "gin_configs"
# Parts of configurations, which change no weights, or are no runs by themselves.
PARTS = {"common.gin", "joint_dev.gin", "mlqa_dev.gin"}
FILES = sorted(
    path
    for folder in ("runs", "finetune", "ablations")
    for path in (CONFIGS / folder).glob("*.gin")
    if path.name not in PARTS
)


def own(path, name):
    """Returns what the file itself binds a macro to; None if nothing."""
    found = re.findall(rf"^{name} = '(.*)'$", path.read_text(), re.MULTILINE)
    return found[-1] if found else None


def test_no_two_files_train_in_one_folder():
    folders = [own(path, "MODEL_DIR") for path in FILES]
    missing = [path.name for path, folder in zip(FILES, folders) if folder is None]
    assert not missing and len(FILES) > 50
    assert len(set(folders)) == len(folders)


@pytest.mark.parametrize("path", sorted((CONFIGS / "runs").glob("*.gin")), ids=lambda p: p.stem)
def test_the_objective_of_each_run_reads_its_streams(path):
    config = loading.load([str(path)], [], "Train")
    assert config.streams_of(config.objective.build(300_000))


@pytest.mark.parametrize("run", ["xylent_base", "xylent_base_mlm", "quickstart"])
def test_continued_training_has_neither_the_folder_nor_the_data_of_the_run(run):
    base = f"gin_configs/runs/{run}.gin"
    before = loading.load([base], [], "Train")
    after = loading.load([base, "gin_configs/ablations/continued.gin"], [], "Train")
    assert after.model_dir != before.model_dir and after.data_dir != before.data_dir
    # Without the flag it ends at once, and does not begin at random weights.
    assert after.loop.init_from and not before.loop.init_from


@pytest.mark.parametrize(
    ("run", "start"),
    [
        ("infoxlm_base", "runs/xlmr_base"),
        ("infoxlm15_base", "runs/xlmr_base"),
        ("infoxlm_large", "runs/xlmr_large"),
        ("veco_large", "runs/xlmr_large"),
    ],
)
def test_runs_that_start_from_xlmr_say_so(run, start):
    config = loading.load([f"gin_configs/runs/{run}.gin"], [], "Train")
    assert config.loop.init_from == start
