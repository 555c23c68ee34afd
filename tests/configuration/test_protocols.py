"""Files of fine-tuning recipes: the grids and settings of the papers' tables."""

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
    evaluation = built(names, "TaskEvaluation")
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
    for names in (["udpos", "veco"], ["xnli", "veco_translate_train"]):
        optimizer = built(names, "Optimizer")
        assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-8)


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


@pytest.mark.parametrize(
    ("pair", "tokens", "rate", "dropout"),
    [("en_de", 1 << 16, 1e-4, 0.3), ("en_fr", 1 << 18, 2e-4, 0.1)],
)
def test_translation_has_the_settings_of_veco(pair, tokens, rate, dropout):
    """Sec. 5.1, and what the public code adds to it."""
    config = loading.load([f"gin_configs/finetune/veco_wmt14_{pair}.gin"], [], "Train")
    objective = config.objective
    assert (objective.encoder.num_layers, objective.decoder_bounds) == (24, (18, 24))
    assert objective.directions == (pair.replace("_", "-"),)
    assert (objective.dropout, objective.attention_dropout) == (dropout, 0.1)
    assert objective.label_smoothing == 0.2
    (stream,) = config.streams_of(objective.build(config.vocab_size))
    assert stream.rows * stream.length // 2 == tokens  # Of each side.
    optimizer, loop = config.optimizer, config.loop
    assert (optimizer.learning_rate, optimizer.warmup_steps, loop.train_steps) == (
        *(rate, 16_000, 100_000),
    )
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-8)
    assert (optimizer.clip_norm, optimizer.weight_decay) == (0.1, 0.01)
    assert (loop.keep_checkpoints, loop.checkpoint_every) == (10, 5_000)
    large = loading.load(["gin_configs/runs/veco_large.gin"], [], "Train").objective.encoder
    for name in ("num_layers", "hidden_size", "num_heads", "ffn_size", "max_length"):
        assert getattr(objective.encoder, name) == getattr(large, name)
