import dataclasses
import fnmatch
import re
import subprocess
import sys

import pytest
from helpers import tiny

from xlme_jax.configuration import command_line, gin_files, help_text, loading, registry
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.batches.pair_layouts import Sides
from xlme_jax.objectives.xlme import XLMConfig, XLMEConfig

TINY = str(tiny.REPOSITORY / "tests" / "tiny.gin")
XLME = ("gin_configs/models/xlme.gin", TINY)


def load(*bindings, files=XLME, root="Train"):
    return loading.load(files, bindings, root)


def message(*bindings, **options):
    with pytest.raises(ConfigError) as error:
        load(*bindings, **options)
    assert "0x" not in str(error.value).replace("<function", "")  # no addresses of objects
    return str(error.value)


def test_files_and_bindings_build_the_configuration():
    config = load("SEED = 7", "XLME.rtd_weight = 10", "generator/Encoder.num_layers = 3")
    assert isinstance(config.objective, XLMEConfig)
    assert config.loop.seed == 7
    assert config.objective.rtd_weight == 10.0
    assert isinstance(config.objective.rtd_weight, float)
    assert config.objective.generator.num_layers == 3
    assert config.objective.discriminator.num_layers == 1
    assert config.objective.generator.dropout == 0.0  # of the scope, not overridden by tiny.gin
    assert [(s.name, s.rows, s.length) for s in config.streams] == [
        ("monolingual", 8, 32),
        ("bitext", 8, 32),
    ]


def test_a_second_load_forgets_the_first():
    load("SEED = 7", "XLME.rtd_weight = 10.0")
    assert load().loop.seed == 0
    assert isinstance(load(files=("gin_configs/models/xlm.gin", TINY)).objective, XLMConfig)


def test_lists_become_the_tuples_that_fields_are():
    config = load("Masking.split = [0.85, 0, 0.15]")
    assert config.objective.masking.split == (0.85, 0.0, 0.15)


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        ("XLMEE.rtd_weight = 3.0", "No configurable matching 'XLMEE'. Did you mean XLME?"),
        ("XLME.rtd_wieght = 3.0", "parameter named 'rtd_wieght'. Did you mean rtd_weight?"),
        ("generator/Encoder.dropuot = 0.1", "'dropuot'. Did you mean dropout?"),
        (
            "Optimizer.rate = 3.0",
            "'rate'. Known: b1, b2, clip_norm, decay_all, eps, lear",
        ),
        ("Train.objective = @XLMM()", "'@XLMM()'. Did you mean XLM?"),
        (
            "TRAIN_STEP = 3",
            "--gin.TRAIN_STEP: no file defines it. Did you mean TRAIN_STEPS?",
        ),
        ("Loop.seed = %SED", "Loop.seed = %SED: nothing defines SED. Did you mean SEED?"),
        ("SEED = %MODL_DIR", "SEED = %MODL_DIR: nothing defines MODL_DIR. Did you mean MODEL_DIR?"),
        (
            "generatr/Encoder.dropout = 0.1",
            "--gin.generatr/: no file has this scope. Did you mean g",
        ),
    ],
)
def test_an_unknown_name_says_what_was_meant(binding, expected):
    assert expected in message(binding)


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        ("XLME.rtd_weight = 'a'", "XLME.rtd_weight = 'a': expected float."),
        ("TRAIN_STEPS = '10'", "Loop.train_steps = '10': expected int."),
        ("TRAIN_STEPS = 2.5", "Loop.train_steps = 2.5: expected int."),
        ("TRAIN_STEPS = True", "Loop.train_steps = True: expected int."),
        ("XLME.translation_pairs = 1", "XLME.translation_pairs = 1: expected bool."),
        ("Masking.split = (1, 0)", "Masking.split = (1, 0): expected tuple[float, float, float]."),
        ("Train.streams = 3", "Train.streams = 3: expected tuple[Stream, ...]."),
        ("Train.vocab_size = '9'", "Train.vocab_size = '9': expected int or None."),
        (
            "Train.objective = 3",
            "Train.objective = 3 is not an objective; bind one of @XLME(), @XLM()",
        ),
        ("Train.evaluators = (@Mesh(),)", "is no evaluation; bind (@RetrievalProbe(),)"),
    ],
)
def test_a_wrong_type_says_the_field_the_value_and_what_is_expected(binding, expected):
    assert expected in message(binding)


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        ("Encoder.relative_bias = 'gate'", "expected one of 'gated', 'plain', 'none'."),
        ("XLME.embedding_sharing = 'all'", "expected one of 'none', 'tokens', 'tokens+positions'"),
        ("Train.compute_dtype = 'fp16'", "expected one of 'auto', 'bfloat16', 'float32', 'mixed'."),
        ("Encoder.dropout = 1.5", "Encoder.dropout = 1.5 must lie in [0, 1)."),
        ("Encoder.num_heads = 3", "Encoder.hidden_size = 32 is not divisible by"),
        ("Masking.rate = 0.0", "Masking.rate = 0.0 must lie strictly between 0 and 1."),
        ("Masking.split = (0.8, 0.1, 0.2)", "sum 1."),
        ("CHECKPOINT_EVERY = 0", "Loop.checkpoint_every = 0 must be at least 1."),
        ("Optimizer.learning_rate = 0.0", "Optimizer.learning_rate = 0.0 must be positive."),
        ("bitext/Joint.positions = 'all'", "bitext/Joint.positions = 'all': expected one of"),
        (
            "bitext/PairStream.layout = 'joint'",
            "bitext/PairStream.layout = 'joint': expected Joint or Sides or Translations.",
        ),
        (
            "Train.streams = (@bitext/PairStream(), @bitext/PairStream())",
            "Train.streams = ['bitext', 'bitext']: each stream needs a name of its own.",
        ),
    ],
)
def test_a_bad_choice_says_what_is_allowed(binding, expected):
    assert expected in message(binding)


def test_a_value_that_is_no_literal_says_how_to_write_it():
    for binding in ("Encoder.relative_bias = gated", "MODEL_DIR = ", "MODEL_DIR"):
        text = message(binding)
        assert text.startswith(f"--gin.{binding.split()[0]}")
        assert "quote strings, as in --gin.Encoder.relative_bias=\"'none'\"" in text


def test_an_unknown_file_says_which_was_meant(caplog):
    text = message(files=("gin_configs/runs/quickstrat.gin",))
    assert "gin_configs/runs/quickstrat.gin" in text
    assert "Did you mean gin_configs/runs/quickstart.gin?" in text
    # Of two files, that of the same name in another folder, not one of a similar path.
    text = message(files=("gin_configs/laptop_xlm.gin",))
    assert "Did you mean gin_configs/runs/laptop_xlm.gin?" in text
    assert not caplog.records  # gin logs each folder it looked in
    assert "pass --gin_file=" in message(files=())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Encoder.dropout 0.1", "{path}, line 3: Couldn't parse statement, expected ':' or '='."),
        ("Encoder.dropuot = 0.1", "{path}, line 3: Configurable 'Encoder' doesn't have"),
        (
            "Encodr.dropout = 0.1",
            "{path}, line 3: No configurable matching 'Encodr'. Did you mean E",
        ),
        ("include 'gin_configs/models/xlem.gin'", "{path}, line 3: Unable to open file: gin_conf"),
        ("import no_such_module", "{path}, line 3: No module named 'no_such_module'"),
        ("Encoder.dropout = (0.1", "{path}: a bracket or quote is not closed."),
    ],
)
def test_an_error_in_a_file_says_the_file_and_the_line(tmp_path, line, expected):
    path = tmp_path / "mine.gin"
    path.write_text(f"include 'gin_configs/models/xlme.gin'\n# Mine.\n{line}\n")
    assert message(files=(str(path),)).startswith(expected.format(path=path))


def test_a_required_value_that_nothing_binds_is_named(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("Train.data_dir = 'd'\n")
    assert message(files=(str(path),)) == "Train.model_dir has no value; bind it in a gin file."


def test_every_configuration_builds_and_defines_the_macros():
    files = sorted((tiny.REPOSITORY / "gin_configs" / "runs").glob("*.gin"))
    assert len(files) >= 6
    for file in files:
        config = load(
            *("MODEL_DIR = 'm'", "DATA_DIR = 'd'", "TRAIN_STEPS = 20_000"),
            *("CHECKPOINT_EVERY = 7", "SEED = 3"),
            files=(str(file),),
        )
        assert (config.model_dir, config.data_dir) == ("m", "d"), file
        loop = config.loop
        assert (loop.train_steps, loop.checkpoint_every, loop.seed) == (20_000, 7, 3), file


def test_small_runs_warm_up_within_any_number_of_steps():
    """The papers' runs keep their warm-up; a small run with fewer steps warms up for fewer."""
    runs = tiny.REPOSITORY / "gin_configs" / "runs"
    files = [f for f in runs.glob("*.gin") if re.search("quickstart|laptop|small", f.stem)]
    assert len(files) >= 9
    for file in files:
        if file.stem not in ("veco_small", "xlm_small"):  # The paper's steps on smaller sizes.
            optimizer = load("TRAIN_STEPS = 20", files=(str(file),)).optimizer
            assert optimizer.warmup_steps is None and optimizer.warmup_fraction, file


def test_every_configuration_says_what_it_is():
    for file in (tiny.REPOSITORY / "gin_configs").rglob("*.gin"):
        assert file.read_text().startswith("# "), file


@pytest.mark.parametrize(
    ("name", "get", "value"),
    [
        ("no_trtd", lambda objective: objective.translation_pairs, False),
        ("no_gate", lambda objective: objective.discriminator.relative_bias, "plain"),
        ("no_relative_bias", lambda objective: objective.generator.relative_bias, "none"),
    ],
)
def test_an_ablation_is_added_after_the_file_of_a_run(name, get, value):
    run = "gin_configs/runs/xlme_base.gin"
    assert get(load(files=(run,)).objective) != value
    assert get(load(files=(run, f"gin_configs/ablations/{name}.gin")).objective) == value


def test_english_centric_pairs_are_one_file_away():
    run = "gin_configs/runs/xylent_base.gin"
    bitext = load(files=(run,)).streams[1]
    assert (bitext.sampling, bitext.flip, bitext.pivot) == ("sinkhorn", 0.5, None)
    bitext = load(files=(run, "gin_configs/ablations/english_centric.gin")).streams[1]
    assert (bitext.sampling, bitext.flip, bitext.pivot) == ("temperature", 0.5, "en")
    laptop = "gin_configs/runs/laptop_infoxlm.gin"
    ablated = load(files=(laptop, "gin_configs/ablations/english_centric.gin"))
    assert [s.pivot for s in load(files=(laptop,)).streams[1:]] == [None] * 2
    assert [s.pivot for s in ablated.streams[1:]] == ["en", "en"]


@pytest.mark.parametrize("run", ["xylent_base", "xlm_base", "laptop_xlme"])
def test_continued_training_is_one_file_away(run):
    files = (f"gin_configs/runs/{run}.gin", "gin_configs/ablations/continued.gin")
    plain, continued = (load(files=files[:n]) for n in (1, 2))
    names = ("cc100_en", "cc100_pcm", "bitext_de_en", "cc100_en_pubmed")

    def matching(patterns):
        return [any(fnmatch.fnmatchcase(name, p) for p in patterns) for name in names]

    # As the paper: the new text alone.
    assert matching(continued.streams[0].tasks) == [False, False, False, True]
    assert not continued.objective.translation_pairs
    old, new = continued.evaluators
    assert (old.name, new.name, new.tasks) == ("old", "new", ("cc100_*_pubmed",))
    assert matching(old.tasks) == [True, True, False, False]
    mixed = load(files=(files[0], "gin_configs/ablations/continued_mixed.gin"))
    assert mixed.streams[0].shares == (("cc100_*_pubmed", 0.5),) and not mixed.streams[0].tasks
    assert mixed.streams[1] == plain.streams[1] and mixed.objective == plain.objective
    assert matching(mixed.evaluators[0].tasks) == [True, True, True, False]


@pytest.mark.parametrize("run", ["xylent_base", "xlme_base", "xlm_base", "laptop_xylent"])
def test_sampling_by_losses_is_one_file_away(run):
    files = (f"gin_configs/runs/{run}.gin", "gin_configs/ablations/robust_sampling.gin")
    plain, bitext = (load(files=files[:n]).streams[1] for n in (1, 2))
    assert plain.robust is None and bitext.robust.updates == 10
    assert dataclasses.replace(bitext, robust=None) == plain


@pytest.mark.parametrize(
    ("binding", "get", "value"),
    [
        ("InfoXLM.contrast = None", lambda c: c.objective.contrast, None),  # -XLCo
        ("InfoXLM.translation_pairs = False", lambda c: c.objective.translation_pairs, False),
        ("contrast/Sides.mixup = 'none'", lambda c: c.streams[2].layout.mixup, "none"),
        ("XLCo.momentum = 0.0", lambda c: c.objective.contrast.momentum, 0.0),
        ("XLCo.layer = 12", lambda c: c.objective.contrast.layer, 12),  # -Universal
    ],
)
def test_the_ablations_of_infoxlm_are_one_override_each(binding, get, value):
    """Table 7."""
    run = "gin_configs/runs/infoxlm_base.gin"
    assert get(load(files=(run,))) != value
    assert get(load(binding, files=(run,))) == value


PRESETS = [
    # Layers, D, F, H, steps, learning rate, warm-up, clipping, betas: Tables 8, 9 of XY-LENT,
    # 10 of InfoXLM, 7 of VECO.
    ("xylent_base", 12, 768, 3072, 12, 125_000, 8e-4, 10_000, 2.0, (0.9, 0.98)),
    ("xylent_large", 24, 1024, 4096, 16, 500_000, 2e-4, 10_000, 1.0, (0.9, 0.98)),
    ("xylent_xl", 48, 1536, 6144, 24, 150_000, 1e-4, 10_000, 1.0, (0.9, 0.98)),
    ("xylent_base_250k", 12, 768, 3072, 12, 125_000, 8e-4, 10_000, 2.0, (0.9, 0.98)),
    ("xylent_base_mlm", 12, 768, 3072, 12, 125_000, 8e-4, 10_000, 2.0, (0.9, 0.98)),
    ("xlme_base_500k", 12, 768, 3072, 12, 125_000, 5e-4, 10_000, 2.0, (0.9, 0.98)),
    ("infoxlm15_base", 12, 768, 3072, 12, 100_000, 2e-4, 10_000, 1.0, (0.9, 0.98)),
    ("infoxlm_base", 12, 768, 3072, 12, 150_000, 2e-4, 10_000, 1.0, (0.9, 0.98)),
    ("infoxlm_large", 24, 1024, 4096, 16, 200_000, 1e-4, 10_000, 1.0, (0.9, 0.98)),
    ("veco_large", 24, 1024, 4096, 16, 240_000, 2e-4, 12_000, None, (0.9, 0.98)),
    ("veco_small", 6, 768, 3072, 12, 240_000, 3e-4, 12_000, None, (0.9, 0.999)),
    ("xlm_small", 6, 768, 3072, 12, 240_000, 3e-4, 12_000, None, (0.9, 0.999)),
]


@pytest.mark.parametrize(
    ("run", "layers", "width", "ffn", "heads", "steps", "rate", "warmup", "clip", "betas"), PRESETS
)
def test_presets_have_the_papers_hyper_parameters(
    run, layers, width, ffn, heads, steps, rate, warmup, clip, betas
):
    config = load(files=(f"gin_configs/runs/{run}.gin",))
    encoder = config.objective.build(config.vocab_size).encoder.config
    shape = encoder.num_layers, encoder.hidden_size, encoder.ffn_size, encoder.num_heads
    assert shape == (layers, width, ffn, heads)
    optimizer = config.optimizer
    assert config.loop.train_steps == steps
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (rate, warmup)
    assert clip in (None, optimizer.clip_norm)
    assert (optimizer.b1, optimizer.b2) == betas
    assert (optimizer.eps, optimizer.weight_decay) == (1e-6, 0.01)


@pytest.mark.parametrize("size", ["base", "large"])
def test_presets_of_infoxlm_have_the_papers_batch_and_the_codes_loss(size):
    """Table 10: 2,048 examples of each task a step; pairs of 64 tokens are four to a row."""
    config = load(files=(f"gin_configs/runs/infoxlm_{size}.gin",))
    monolingual, bitext, contrast = config.streams
    assert (monolingual.rows, monolingual.length) == (2048, 512)
    assert bitext.rows * bitext.length == 2048 * 64
    assert (contrast.rows, contrast.layout) == (2048, Sides(mixup="order", pairs_per_row=1))
    assert config.objective.mean == "items"
    assert (config.objective.encoder.dropout, config.objective.encoder.attention_dropout) == (0, 0)


@pytest.mark.parametrize(("size", "tokens"), [("base", 4), ("large", 1), ("xl", 4)])
def test_presets_of_xylent_have_the_papers_streams(size, tokens):
    """Tables 8 and 9, Secs. 3 to 5; tokens in millions (2^20)."""
    config = load(files=(f"gin_configs/runs/xylent_{size}.gin",))
    assert config.vocab_size == 500_000
    assert [s.rows * s.length for s in config.streams] == [tokens * 2**20] * 2
    bitext = config.streams[1]
    assert (bitext.sampling, bitext.flip, bitext.pivot) == ("sinkhorn", 0.5, None)
    generator = config.objective.generator
    assert (generator.dropout, generator.attention_dropout) == (0.0, 0.0)
    assert not config.objective.masking.mask_bos


@pytest.mark.parametrize(
    ("run", "like", "vocab"),
    [
        ("xlme_base_500k", "xlme_base", 500_000),
        ("xylent_base_250k", "xylent_base", 250_002),
        ("infoxlm15_base", "infoxlm_base", 250_002),
    ],
)
def test_controls_differ_in_one_thing(run, like, vocab):
    one, other = (load(files=(f"gin_configs/runs/{name}.gin",)) for name in (run, like))
    assert one.objective == other.objective and one.streams == other.streams
    assert one.optimizer == other.optimizer and one.vocab_size == vocab


def test_masked_language_modelling_on_xylents_data_has_its_encoder_and_tokens():
    """XY-LENT, Table 2."""
    mlm, xylent = (
        load(files=(f"gin_configs/runs/{name}.gin",)) for name in ("xylent_base_mlm", "xylent_base")
    )
    assert mlm.objective.encoder == xylent.objective.discriminator
    assert mlm.streams == xylent.streams and mlm.optimizer == xylent.optimizer
    steps = (mlm.loop.train_steps, xylent.loop.train_steps)
    assert steps[0] == steps[1] and mlm.vocab_size == xylent.vocab_size


@pytest.mark.parametrize(
    ("names", "mask_bos", "as_fairseq"),
    [
        ("xlme_base xlme_large xlme_xl xlme_base_500k xlm_base", True, True),
        ("infoxlm_base infoxlm_large infoxlm15_base", True, True),
        # XY-LENT, Sec. 4, lists not masking the first token as a change.
        ("xylent_base xylent_large xylent_xl xylent_base_mlm", False, True),
        ("quickstart", False, False),
    ],
)
def test_full_size_presets_mask_and_decay_as_fairseq(names, mask_bos, as_fairseq):
    for name in names.split():
        config = load(files=(f"gin_configs/runs/{name}.gin",))
        masking = config.objective.masking
        assert (masking.mask_bos, masking.mask_eos) == (mask_bos, as_fairseq)
        assert config.optimizer.decay_all == as_fairseq


def test_presets_have_the_papers_tasks():
    base, large = (load(files=(f"gin_configs/runs/infoxlm_{s}.gin",)) for s in ("base", "large"))
    for config, layer in ((base, 8), (large, 12)):
        xlco = config.objective.contrast
        assert (xlco.layer, xlco.momentum, xlco.queue_size) == (layer, 0.999, 131_072)
    for name in ("veco_small", "veco_large", "xlm_small"):
        config = load(files=(f"gin_configs/runs/{name}.gin",))
        masking = config.objective.masking, config.objective.bitext_masking
        assert [m.rate for m in masking] == [0.15, 0.25]
        shapes = [(stream.rows, stream.length) for stream in config.streams]
        # 4,096 pairs of 64 tokens, packed.
        assert shapes == [(1024, 512), (4096 * 64 // 128, 128)]


def test_the_operative_configuration_builds_the_same(tmp_path):
    config = load("SEED = 7", "Masking.split = (0.85, 0.0, 0.15)", "MODEL_DIR = 'it\\'s'")
    path = tmp_path / "config.gin"
    path.write_text(loading.operative_config())
    again = load(files=(str(path),))
    assert again == config
    assert load("TRAIN_STEPS = 9", files=(str(path),)).loop.train_steps == 9


def test_gin_flags_are_rewritten():
    assert command_line.gin_flags(["train", "--gin.A.b='x=y'", "--gin_file=f", "--gin.C=1"]) == [
        "train",
        "--gin_bindings=A.b = 'x=y'",
        "--gin_file=f",
        "--gin_bindings=C = 1",
    ]


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ("MODEL_DIR = runs/a", "MODEL_DIR = 'runs/a'"),
        ("DATA_DIR=/data/a-b.1", "DATA_DIR = '/data/a-b.1'"),
        ("MODEL_DIR = 'runs/a'", "MODEL_DIR = 'runs/a'"),
        ("Teacher.checkpoint = runs/a", "Teacher.checkpoint = 'runs/a'"),
        ("INIT_FROM = None", "INIT_FROM = None"),
        ("INIT_FROM = %MODEL_DIR", "INIT_FROM = %MODEL_DIR"),
        ("TRAIN_STEPS = runs/a", "TRAIN_STEPS = runs/a"),
    ],
)
def test_paths_need_no_quotes(given, bound):
    assert gin_files.with_quotes(given) == bound


def test_a_bare_path_reaches_the_configuration():
    assert load("MODEL_DIR = runs/a").model_dir == "runs/a"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--TRAIN_STEPS=2", r"Unknown flag --TRAIN_STEPS\. Did you mean --gin\.TRAIN_STEPS=2\?"),
        ("--Loop.seed=2", r"Did you mean --gin\.Loop\.seed=2\?"),
        ("--checkpoint=runs/a", r"Did you mean --gin\.INIT_FROM=runs/a\?"),
        ("--num_processed=2", r"Did you mean --num_processes or --process_id\?"),
        ("--ginfile=x", r"Unknown flag --ginfile\. Did you mean --gin_file\?\n--help lists"),
        ("--process=1", r"Did you mean --process_id or --num_processes\?"),
        ("--zebra=1", r"Unknown flag --zebra\.\n--help lists"),
    ],
)
def test_an_unknown_flag_says_what_was_meant(argument, said):
    assert re.search(said, _error_of("train", argument))


def test_beam_is_a_runner_of_prepare():
    said = _error_of("prepare", "--beam=DirectRunner")
    assert "Did you mean --runner=DirectRunner?" in said


def _error_of(command, *arguments):
    """Returns what a command prints on wrong flags."""
    (result,) = tiny.run_each(command, arguments)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    return result.stderr


def test_a_missing_flag_says_what_it_is():
    assert "--checkpoint=... is missing: MODEL_DIR of a run" in _error_of("evaluate")
    assert "--output=... is missing: " in _error_of("export", "--checkpoint=a")


@pytest.mark.slow
def test_help_ends_silently_when_nobody_reads_on():
    command = f"{sys.executable} -m xlme_jax.average --help | true"
    result = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=tiny.REPOSITORY
    )
    assert not result.stderr


def test_the_description_names_every_field_with_type_and_default():
    text = help_text.configurables()
    for name, cls in registry.classes().items():
        assert re.search(rf"^  {name}: \w", text, re.M), name
        for field in dataclasses.fields(cls):
            line = re.search(rf"^    {name}\.{field.name}: (.+)$", text, re.M)
            assert line, field.name
            required = (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            )
            assert line[1].endswith(" (required)") == required, line[0]
            assert required or " = " in line[1], line[0]
    assert "    Loop.train_steps: int (required)\n        " in text
    assert "    Optimizer.learning_rate: float = 0.0005" in text
    assert "    Loop.init_from: str or None = None" in text
    assert "    Encoder.relative_bias: one of 'gated', 'plain', 'none' = 'gated'" in text
