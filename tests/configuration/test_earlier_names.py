"""Configurations that name every stream `Stream`, as checkpoints and users have them."""

import pytest
from helpers import tiny

from xlme_jax.configuration import loading
from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.batches.pair_layouts import Joint, Sides, Translations
from xlme_jax.data.batches.streams import LabelledStream, PairStream, TextStream

TINY = str(tiny.REPOSITORY / "tests" / "tiny.gin")
MODELS = "gin_configs/models"
# The streams of a stored configuration, and what else it needs.
STORED = """
Train.model_dir = 'm'
Train.data_dir = 'd'
Train.objective = @XLM()
XLM.encoder = @Encoder()
Encoder.num_layers = 1
Encoder.hidden_size = 32
Encoder.num_heads = 2
Train.loop = @Loop()
Loop.train_steps = 9
Loop.checkpoint_every = 3
Train.streams = (
    @text/Stream(), @veco/Stream(), @pairs/Stream(), @contrast/Stream(), @both/Stream(),
    @labelled/Stream())
ALPHA = 0.3
Stream.rows = 8
Stream.length = 64
text/Stream.name = 'text'
text/Stream.kind = 'monolingual'
text/Stream.alpha = %ALPHA
text/Stream.flip = 0.0
text/Stream.shares = (('en*', 0.5),)
veco/Stream.name = 'veco'
veco/Stream.kind = 'monolingual'
veco/Stream.layout = 'sides'
pairs/Stream.name = 'pairs'
pairs/Stream.kind = 'bitext'
pairs/Stream.positions = 'restart'
pairs/Stream.sampling = 'sinkhorn'
pairs/Stream.smoothing = 0.5
pairs/Stream.robust = @RobustSampling()
RobustSampling.updates = 3
contrast/Stream.name = 'contrast'
contrast/Stream.kind = 'bitext'
contrast/Stream.layout = 'sides'
contrast/Stream.flip = 0.5
contrast/Stream.mixup = 'order'
contrast/Stream.pairs_per_row = 1
both/Stream.name = 'both'
both/Stream.kind = 'bitext'
both/Stream.layout = 'sides'
both/Stream.languages = ('en', 'fr')
both/Stream.directions = ('en-fr',)
labelled/Stream.name = 'labelled'
labelled/Stream.kind = 'labelled'
labelled/Stream.by_length = 8
"""


def test_a_stored_configuration_loads_and_is_stored_under_the_names_of_now():
    config = loading.load_text(STORED, "Train", "a checkpoint")
    text, veco, pairs, contrast, both, labelled = config.streams
    shares = (("en*", 0.5),)
    assert text == TextStream("text", rows=8, length=64, alpha=0.3, shares=shares)
    assert veco == TextStream("veco", rows=8, length=64, split_pieces=True)
    assert pairs == PairStream(
        "pairs",
        rows=8,
        length=64,
        layout=Joint(positions="restart"),
        sampling="sinkhorn",
        smoothing=0.5,
        robust=pairs.robust,
    )
    assert pairs.robust.updates == 3
    mixed = Sides(mixup="order", pairs_per_row=1)
    assert contrast == PairStream("contrast", rows=8, length=64, flip=0.5, layout=mixed)
    assert both == PairStream(
        "both", rows=8, length=64, layout=Translations(("en", "fr"), ("en-fr",))
    )
    assert labelled == LabelledStream("labelled", rows=8, length=64, by_length=8)
    stored = loading.operative_config()
    assert "/Stream" not in stored and "\nStream" not in stored
    assert loading.load_text(stored, "Train", "a checkpoint") == config


def test_settings_in_data_positions_are_spelled_as_earlier():
    *_, pairs, contrast, both, labelled = loading.load_text(STORED, "Train", "").streams
    assert [list(stream.choices().items()) for stream in (pairs, contrast, both, labelled)] == [
        [("sampling", "sinkhorn"), ("smoothing", 0.5), ("positions", "restart")],
        [("layout", "sides"), ("flip", 0.5), ("mixup", "order"), ("pairs_per_row", 1)],
        [("layout", "sides"), ("directions", ("en-fr",))],
        [("by_length", 8)],
    ]


@pytest.mark.parametrize(
    ("model", "earlier", "now"),
    [
        ("xlm", "bitext/Stream.rows = 16", "bitext/PairStream.rows = 16"),
        ("xlm", "monolingual/Stream.weight = 0.5", "monolingual/TextStream.weight = 0.5"),
        ("xlm", "bitext/Stream.positions = 'restart'", "bitext/Joint.positions = 'restart'"),
        ("xlm", "Stream.alpha = 0.1", "PairStream.alpha = 0.1\nTextStream.alpha = 0.1"),
        ("infoxlm", "contrast/Stream.mixup = 'none'", "contrast/Sides.mixup = 'none'"),
        ("infoxlm", "contrast/Stream.layout = 'joint'", "contrast/PairStream.layout = @Joint()"),
        ("veco", "monolingual/Stream.layout = 'joint'", "TextStream.split_pieces = False"),
        ("xlm", "Train.streams = (@bitext/Stream(),)", "Train.streams = (@bitext/PairStream(),)"),
    ],
)
def test_an_earlier_override_does_what_its_name_of_now_does(model, earlier, now):
    files = (f"{MODELS}/{model}.gin", TINY)
    default = loading.load(files, (), "Train")
    if "split_pieces" in now:
        now = f"monolingual/{now}"
    expected = loading.load(files, now.split("\n"), "Train")
    assert loading.load(files, (earlier,), "Train") == expected != default


def test_a_field_of_all_streams_does_not_decide_the_kind_of_one():
    text = "Stream.flip = 0.0\n" + STORED
    assert loading.load_text(text, "Train", "").streams == (
        loading.load_text(STORED, "Train", "").streams
    )


def test_later_overrides_win_under_whichever_name():
    rows = ["bitext/Stream.rows = 16", "bitext/PairStream.rows = 24", "bitext/Stream.rows = 32"]
    for count in (1, 2, 3):
        config = loading.load((f"{MODELS}/xlm.gin", TINY), rows[:count], "Train")
        assert config.streams[1].rows == 8 + 8 * count


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        ("bitext/Stream.kind = 'pairs'", "bitext/Stream.kind = 'pairs': expected one of 'mono"),
        ("bitext/Stream.kind = 'monolingual'", "name @bitext/TextStream() in Train.streams"),
        ("bitext/Stream.layout = 'side'", "Now it is bitext/PairStream.layout = @Joint(), @Sid"),
        ("monolingual/Stream.flip = 0.5", "PairStream has this field, and TextStream does not"),
        ("bitext/Stream.rows = 'all'", "bitext/PairStream.rows = 'all': expected int."),
        ("bitex/Stream.rows = 8", "--gin.bitex/: no file has this scope. Did you mean bitext?"),
        ("Train.streams = (@Stream(),)", "@Stream() has no kind; it is one of TextStream, Pair"),
    ],
)
def test_what_earlier_names_cannot_say_is_answered_with_those_of_now(binding, expected):
    with pytest.raises(ConfigError) as error:
        loading.load((f"{MODELS}/xlm.gin", TINY), (binding,), "Train")
    assert expected in str(error.value)
