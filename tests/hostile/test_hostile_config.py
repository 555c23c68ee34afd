"""Hostile configurations and flags: a valid configuration or an error with the reason."""

import copy
import os

import nasty
import pytest
from absl import flags
from fuzzing import assert_as_expected, budgets, check, damaged, outcome
from helpers import tiny
from hypothesis import strategies as st

from xlme_jax.configuration import command_line, loading, source_flags, user_errors
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.configuration.values import ConfigError
from xlme_jax.preparation.prepare_config import PrepareConfig

TINY = str(tiny.REPOSITORY / "tests" / "tiny.gin")
FILES = ("gin_configs/models/xlme.gin", TINY)
BINDING = "MODEL_DIR = 'runs/a'"


def load(files=(), bindings=()):
    """Builds a configuration and its operative text; returns the error, if any."""

    def build():
        built = loading.load((*FILES, *files), bindings, "Train")
        assert isinstance(built, TrainConfig)
        loading.operative_config().encode()

    # Most errors are of a field and say which; those of a file or flag say that.
    return outcome(build, *files, "--gin.", "Train", " = ", ".", "%", "{")[1]


@pytest.mark.parametrize("name", nasty.GINS)
def test_nasty_files(tmp_path, monkeypatch, name):
    data, error = nasty.GINS[name]
    monkeypatch.chdir(tmp_path)
    nasty.included_files(tmp_path)
    path = tmp_path / "x.gin"
    path.write_bytes(data)
    message = load([str(path)])
    assert_as_expected(message, error)
    if error and name not in _NAME_A_FIELD:
        assert "x.gin" in message or error.split(" ")[0] in message


_NAME_A_FIELD = {name for name, (_, error) in nasty.GINS.items() if error and "." in error}


# The families of `nasty.GINS` are together there.
@pytest.mark.parametrize("name", tiny.slow_except(list(nasty.GINS)[::4], nasty.GINS))
def test_nasty_bindings(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    text = os.fsdecode(nasty.GINS[name][0])
    load(bindings=[text])
    assert not load()  # and nothing of it stays


@pytest.mark.parametrize(
    ("binding", "error"),
    [
        ("SEED = 1\nTRAIN_STEPS = 9", ""),  # gin reads lines, and so are bindings
        ("SEED = 1\ninclude '/dev/zero'", "--gin.SEED=1.*Unable to open file: /dev/zero"),
        ("SEED = 1\n\0", "--gin.SEED=1"),
        ("SEED = '\udc80'", "--gin.SEED="),
        ("MODEL_DIR = '\\udc80'", "Train.model_dir = .*Unicode"),
        ("", ""),
        ("=", "--gin.="),
        ("= 3", "--gin.= 3"),
        (" = ", "--gin.="),
        ("SEED", "--gin.SEED"),
        ("SEED.SEED.SEED = 3", "No configurable matching 'SEED.SEED'"),
        ("/ = 3", "--gin./"),
        ("x/macro.value = 3", "--gin.x: no file defines it"),
        ("macro.value = 3", "--gin.: no file defines it"),
        ("Encoder = 3", "--gin.Encoder: no file defines it"),
        ("Encoder.__class__ = 3", "doesn't have a parameter named '__class__'"),
        ("Train.objective = {1: (%SEED, [@Encoder])}", "is not an objective"),
        ("Train.objective = " + "@XLME() " * 99, "Expected newline"),
    ],
)
def test_nasty_bindings_of_a_command(binding, error):
    message = outcome(lambda: loading.load(FILES, [binding], "Train"), "")[1].replace("\n", " ")
    assert_as_expected(message, error)


def test_files_that_are_none(tmp_path):
    for path in nasty.odd_files(tmp_path, "x.gin").values():
        assert f"{path}: Unable to open file" in load([str(path)])
    for name in ("", "a\0b", "x" * 5000, "tests/absent.gin", "a/../../b.gin"):
        with pytest.raises(ConfigError, match=r"Unable to open file"):
            loading.load([name], [], "Train")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "x.gin"
    path.touch(mode=0)
    assert "Permission denied" in load([str(path)])


def test_an_error_in_an_included_file_names_that_file(tmp_path):
    (tmp_path / "inner.gin").write_text("SEED = 7\n\nSEED = (1,\n")
    (tmp_path / "x.gin").write_text(f"include '{tmp_path}/inner.gin'\n")
    message = load([str(tmp_path / "x.gin")])
    assert message == f"{tmp_path}/inner.gin: a bracket or quote is not closed."
    (tmp_path / "inner.gin").write_text("Encoder:\n    dropout = 0.1\n  max_length = 3\n")
    assert load([str(tmp_path / "x.gin")]).startswith(f"{tmp_path}/inner.gin: unindent does not")
    (tmp_path / "inner.gin").write_text(f"include '{tmp_path}/./x.gin'\n")
    assert f"{tmp_path}/./x.gin: includes itself" in load([str(tmp_path / "x.gin")])


def test_one_file_may_be_included_twice(tmp_path):
    (tmp_path / "inner.gin").write_text("SEED = 7\n")
    (tmp_path / "x.gin").write_text(f"include '{tmp_path}/inner.gin'\n" * 2)
    assert not load([str(tmp_path / "x.gin")])


# --- Fuzzing ---

ORIGINALS = [data for data, _ in nasty.GINS.values() if len(data) < 3000]
ORIGINALS += [(tiny.REPOSITORY / file).read_bytes() for file in FILES] * 10


@budgets("gin files")
def test_any_file(tmp_path, monkeypatch, cases):
    monkeypatch.chdir(tmp_path)
    nasty.included_files(tmp_path)
    path = tmp_path / "x.gin"

    def property_(data):
        path.write_bytes(data)
        load([str(path)])

    check(cases, damaged(ORIGINALS), property_)


NAMES = ["SEED", "Encoder.dropout", "generator/Encoder.num_layers", "Train.streams", "Loop", "x"]
NAMES += [
    "Train.objective",
    "Masking.split",
    "Optimizer.b1",
    "bitext/PairStream.tasks",
    "",
    "gin.macro",
]
VALUES = st.recursive(
    st.one_of(
        st.integers(-(10**25), 10**25).map(str),
        st.floats().map(repr),
        st.text(max_size=8).map(repr),
        st.binary(max_size=4).map(repr),
        st.sampled_from(["%SEED", "%x", "@XLME()", "@Encoder", "@a/Stream()", "None", "True", "-"]),
        st.text("%@()[]{},'\"\\=: \n1aS_", max_size=8),
    ),
    lambda values: st.lists(values, max_size=3).map(
        lambda items: f"({', '.join(items)})" if len(items) % 2 else f"[{', '.join(items)}]"
    ),
    max_leaves=6,
)


@budgets("gin bindings")
def test_any_binding(tmp_path, monkeypatch, cases):
    monkeypatch.chdir(tmp_path)

    def property_(case):
        bindings = [f"{name} = {value}" for name, value in case[0]] + case[1]
        outcome(lambda: loading.load(FILES, bindings, "Train"), "")

    pairs = st.lists(st.tuples(st.sampled_from(NAMES) | st.text(max_size=5), VALUES), max_size=3)
    raw = st.lists(damaged(ORIGINALS).map(os.fsdecode), max_size=1)
    check(cases, st.tuples(pairs, raw), property_)


@pytest.fixture
def parse(monkeypatch, capsys):
    """Parses a command line of prepare; returns the error, if any."""
    fresh = copy.deepcopy(flags.FLAGS)  # of absl, and those of source_flags
    fresh.unparse_flags()
    for name in {"gin_file", "gin_bindings"} - set(fresh):  # an earlier test may have run a command
        flags.DEFINE_multi_string(name, [], "", flag_values=fresh)
    monkeypatch.setattr(flags, "FLAGS", fresh)

    def parsed(arguments):
        fresh.unparse_flags()
        for flag in fresh._flags().values():
            flag.unparse()
        try:
            command_line._parse_flags(command_line.gin_flags(["prepare", *arguments]))
        except SystemExit as end:
            output, printed = capsys.readouterr()
            if "-h" in arguments:
                assert end.code == 0 and "Configurables" in output
                return ""
            assert end.code == 1 and "Error: " in printed and "Traceback" not in printed
            return printed
        try:
            assert isinstance(source_flags.configuration(output="."), PrepareConfig)
            return ""
        except ValueError as error:
            assert user_errors.is_ours(error)
            return str(error)

    return parsed


def test_nasty_flags(parse):
    assert not parse([])
    assert not parse(["--languages=en,ru", "--cldr_pairs=3"])
    assert "Unknown flag --langauges." in parse(["--langauges=en"])
    assert "invalid literal for int" in parse(["--cldr_pairs=many"])
    assert "Missing value for flag" in parse(["--gin_file"])
    assert "Unknown flag --gin.SEED. Did you mean --gin.SEED=VALUE?" in parse(["--gin.SEED"])
    assert "no file defines it" in parse([f"--gin_file={TINY}", "--gin.SED=3"])
    assert "x.gin: Unable to open" in parse(["--gin_file=x.gin"])
    assert "flagfile" in parse(["--flagfile=/no/such/file"])
    assert "`tasks` is empty" in parse(["--tasks="])


FLAGS = ["languages", "pairs", "tasks", "pivot", "cc100_dir", "tfds", "modules", "cldr_kinds", "x"]
FLAGS += [
    "cldr_documents",
    "cldr_pairs",
    "gin_file",
    "gin.SEED",
    "gin.Prepare.tasks",
    "gin.",
    "task",
]


@budgets("flags")
def test_any_flags(parse, cases):
    words = st.sampled_from(["en", "ru", "zh", "cldr", "date", "3", "", "nan", "9" * 30, TINY])
    texts = st.text(max_size=6) | st.binary(max_size=5).map(os.fsdecode)
    values = st.lists(words | texts, max_size=3).map(",".join)
    flag = st.builds("--{}={}".format, st.sampled_from(FLAGS), values)
    check(cases, st.lists(flag | texts.map("-{}".format), max_size=4), parse)
