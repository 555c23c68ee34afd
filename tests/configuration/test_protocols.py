"""Files of fine-tuning recipes: the grids and settings of the papers' tables."""

import dataclasses

import pytest

from xlme_jax.configuration import loading
from xlme_jax.configuration.best_config import BestConfig
from xlme_jax.configuration.sweep_config import SweepConfig

LEARNING_RATE, WEIGHT_DECAY = "Optimizer.learning_rate", "Optimizer.weight_decay"
LANGUAGES = ("ar", "de", "en", "es", "hi", "vi", "zh")
# InfoXLM's Tables 11 and 12, and VECO's Table 9: {files: (grid, task, languages)}.
TABLES = {
    ("infoxlm_xnli",): ({LEARNING_RATE: {5e-6, 7e-6, 1e-5}}, "xnli", ()),
    ("infoxlm_large_xnli",): (
        {LEARNING_RATE: {4e-6, 5e-6, 6e-6}, WEIGHT_DECAY: {0, 0.01}},
        "xnli",
        (),
    ),
    ("infoxlm_mlqa",): (
        {LEARNING_RATE: {2e-5, 3e-5, 5e-5}, "BATCH": {16, 32}, "EPOCHS": {2, 3, 4}},
        "mlqa",
        LANGUAGES,
    ),
    ("pawsx", "veco"): (
        {LEARNING_RATE: {1e-5, 2e-5, 3e-5}, "BATCH": {16, 32, 64}, "EPOCHS": {3, 5, 10}},
        "pawsx",
        (),
    ),
    ("xnli", "veco_translate_train"): (
        {LEARNING_RATE: {3e-6, 5e-6, 1e-5}, "BATCH": {16, 32, 64}, "EPOCHS": {3, 5, 10}},
        "xnli",
        (),
    ),
}


def built(names, root, *bindings):
    """Returns a configurable of some files, for an encoder that is not there."""
    files = [f"gin_configs/finetune/{name}.gin" for name in names]
    return loading.load(files, ["FineTune.pretrained = @XLM()", *bindings], root)


@pytest.mark.parametrize("names", TABLES, ids="+".join)
def test_a_recipe_has_the_grid_of_its_table_and_selects_jointly(names):
    grid, task, languages = TABLES[names]
    sweep = built(names, "Sweep")
    assert {name: set(values) for name, values in sweep.grid} == grid
    metric = {"xnli": "accuracy", "pawsx": "accuracy", "mlqa": "f1"}[task]
    assert sweep.select == f"eval/{task}/{metric}/mean"
    assert sweep.seeds == 5 and not sweep.by_language
    (evaluation,) = built(names, "Train").evaluators
    assert (evaluation.task, evaluation.languages) == (task, languages)
    assert evaluation.split == "validation"


def test_infoxlm_keeps_the_best_of_its_evaluations_on_xnli():
    for name, warmup in (("infoxlm_xnli", 12_500), ("infoxlm_large_xnli", 5_000)):
        assert built([name], "Best").metrics == ("eval/xnli/accuracy/mean",)
        assert built([name], "Loop").evaluate_every == 5_000
        optimizer = built([name], "Optimizer")
        assert (optimizer.warmup_steps, optimizer.weight_decay) == (warmup, 0)
    optimizer = built(["infoxlm_mlqa"], "Optimizer")
    assert (optimizer.warmup_steps, optimizer.warmup_fraction) == (None, 0.1)


def test_veco_has_its_adam_whichever_task():
    """The values of its own tables are those of the page (`tests/docs/test_paper_pages.py`)."""
    expected = built(["xnli", "veco"], "Optimizer")
    for names in (["udpos", "veco"], ["pawsx", "veco_translate_train"]):
        rate = built(names, "Optimizer").learning_rate
        optimizer = dataclasses.replace(expected, learning_rate=rate)
        assert built(names, "Optimizer") == optimizer
        assert built(names, "Best").metrics == (built(names, "Sweep").select,)


def test_the_files_of_questions_may_come_in_any_order():
    for names in (["veco", "veco_questions", "mlqa_dev"], ["mlqa_dev", "veco"], ["mlqa_dev"]):
        (evaluation,) = built(["squad", *names], "Train").evaluators
        assert (evaluation.task, evaluation.languages) == ("mlqa", LANGUAGES)


def test_chemprot_has_the_settings_of_gururangan():
    assert built(["chemprot"], "Best").patience == 3
    assert built(["chemprot"], "Sweep").select == "eval/chemprot/micro_f1/en"
    types = built(["chemprot"], "Sweep", "TASK = 'chemprot_types'")
    assert types.select == "eval/chemprot_types/accuracy/en" and types.seeds == 5


def test_xquad_has_the_grid_of_mlqa_with_its_own_epochs():
    """XLM-E, Table 11."""
    xquad, mlqa = (dict(built([name], "Sweep").grid) for name in ("xquad", "squad"))
    assert mlqa.pop("EPOCHS") == (2, 3, 4) and xquad == mlqa


def test_the_same_sets_select_the_checkpoint_and_the_point():
    for names, extra, expected in (
        (["xnli"], [], ["en"]),
        (["xnli", "joint_dev"], [], ["mean"]),
        (["xnli", "joint_dev"], ["SELECT_ON = ('en', 'de')"], ["en", "de"]),
    ):
        metrics = [f"eval/xnli/accuracy/{language}" for language in expected]
        assert list(built(names, "Best", *extra).metrics) == metrics
        sweep = built(names, "Sweep", *extra)
        assert sweep.select == metrics[0]
        assert list(sweep.by_language.values()) == (metrics if len(metrics) > 1 else [])


def test_a_metric_by_name_selects_alone():
    assert BestConfig(metrics=("a",), task="xnli").metrics == ("a",)
    assert SweepConfig(select="a", task="xnli", languages=("en", "de")).by_language == {}
    with pytest.raises(ValueError, match="Unknown benchmark 'xnly'; did you mean xnli"):
        BestConfig(task="xnly")
    with pytest.raises(ValueError, match=r"Sweep\.languages is empty"):
        SweepConfig(task="xnli", languages=())


@pytest.mark.parametrize(("pair", "tokens"), [("en_de", 1 << 16), ("en_fr", 1 << 18)])
def test_translation_has_the_shape_of_veco(pair, tokens):
    """Sec. 5.1; other values are on the page (`tests/docs/test_paper_pages.py`)."""
    config = loading.load([f"gin_configs/finetune/veco_wmt14_{pair}.gin"], [], "Train")
    objective = config.objective
    assert (objective.encoder.num_layers, objective.decoder_bounds) == (24, (18, 24))
    assert objective.directions == (pair.replace("_", "-"),)
    (stream,) = config.streams_of(objective.build(config.vocab_size))
    assert stream.rows * stream.length // 2 == tokens  # Of each side.
    optimizer, loop = config.optimizer, config.loop
    assert (optimizer.warmup_steps, loop.train_steps) == (16_000, 100_000)
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-8)
    assert loop.checkpoint_every == 5_000
    large = loading.load(["gin_configs/runs/veco_large.gin"], [], "Train").objective.encoder
    for name in ("num_layers", "hidden_size", "num_heads", "ffn_size", "max_length"):
        assert getattr(objective.encoder, name) == getattr(large, name)
