"""What a sweep scores at its end is looked for before its first run."""

import dataclasses

import pytest
from helpers import hf_folders, official_files

from xlme_jax.configuration import loading
from xlme_jax.configuration.values import ConfigError
from xlme_jax.studies.sweeps import scoring
from xlme_jax.studies.sweeps.runner import checked_steps

EVALUATE = "python -m xlme_jax.evaluate --checkpoint={model_dir}"


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return hf_folders.write_checkpoint(tmp_path_factory.mktemp("start") / "run")


def bindings(start, data):
    return [f"INIT_FROM = {str(start)!r}", f"EVAL_DIR = {str(data)!r}"]


def test_a_split_that_is_not_there_ends_the_sweep_before_it_trains(tmp_path, start):
    official_files.write(tmp_path)
    for path in (tmp_path / "tydiqa" / "tydiqa-goldp-v1.1-dev").iterdir():
        path.unlink()
    files = ["gin_configs/finetune/tydiqa.gin"]
    config = loading.load(files, bindings(start, tmp_path), "Train")
    with pytest.raises(ConfigError, match=r"'test' of tydiqa, and .*tydiqa has no .* train, valid"):
        scoring.check(f"{EVALUATE} --data={tmp_path}", config)
    # The folder is EVAL_DIR without --data.
    steps = checked_steps(files, bindings(start, tmp_path), EVALUATE)
    with pytest.raises(ConfigError, match="'test' of tydiqa"):
        steps(["SEED = 0", f"MODEL_DIR = {str(tmp_path / 'new')!r}"])
    for fine in (f"{EVALUATE} --split=validation", f"{EVALUATE} --tasks=xquad,mlqa", "true", ""):
        scoring.check(fine, config)
    with pytest.raises(ConfigError, match=r"--evaluate: .*nowhere has no folder for mlqa"):
        scoring.check(f"{EVALUATE} --tasks=mlqa,xquad --data={tmp_path / 'nowhere'}", config)


def test_encoders_and_embedded_sets_need_no_files(start):
    config = loading.load(["gin_configs/finetune/cldr.gin"], bindings(start, "nowhere"), "Train")
    scoring.check(EVALUATE, config)
    before = dataclasses.replace(config, objective=config.objective.pretrained)
    scoring.check(f"{EVALUATE} --tasks=tatoeba", before)
