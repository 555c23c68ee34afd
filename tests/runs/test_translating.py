"""Errors before anything is compiled, and what is written beside translations."""

import re

import numpy as np
import pytest
from helpers import hf_folders, tiny

from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import results
from xlme_jax.evaluation.alignment_matrices import read_matrix
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.random_translations import Sampling
from xlme_jax.evaluation.translation import Hypothesis, Translator
from xlme_jax.evaluation.translation_scores import score as score_lines
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMConfig
from xlme_jax.runs import trained, translating
from xlme_jax.runs.translating import score, translate
from xlme_jax.training.mesh import MeshConfig


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a MODEL_DIR with random weights."""
    return hf_folders.write_checkpoint(tmp_path_factory.mktemp("translate") / "run", "translate")


@pytest.mark.parametrize("stopping", ["always", None])
def test_unknown_rules_are_refused(stopping):
    with pytest.raises(ValueError, match=r"BeamSearch\.early_stopping"):
        BeamSearch(early_stopping=stopping)


DRAWS = [
    ({"temperature": 0.0}, "temperature = 0.0 must be above 0; top_k=1 is greedy"),
    ({"top_p": 0.0}, "top_p = 0.0 must lie in"),
    ({"top_k": 0}, "top_k = 0 must be at least 1"),
]


@pytest.mark.parametrize(("options", "message"), DRAWS)
def test_impossible_draws_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_translations_of_other_lines_are_refused():
    with pytest.raises(ValueError, match=r"a.txt has 2 lines, b.txt has 1; line n of one must"):
        score("run", ["x", "y"], ["z"], "fr", names=("a.txt", "b.txt"))


EXCLUDING = [
    (["--top_k=3"], "--top_k: only with --sample"),
    (["--sample", "--beams=3"], "--sample does not search; leave out --beams"),
    (["--score=x.txt", "--n_best=2"], "--score translates nothing; leave out --n_best"),
    (["--score=x.txt", "--explain=f"], "--score translates nothing; leave out --explain"),
    (["--test_set=wmt14_en_de"], "--test_set: only with --references"),
    (["--mesh=1,8"], "--mesh=1,8: give three sizes, data,fsdp,tensor"),
]


def test_flags_that_exclude_each_other_are_refused():
    commands = [["--checkpoint=run", "--target=fr", *flags] for flags, _ in EXCLUDING]
    for found, (_, message) in zip(tiny.run_each("translate", *commands), EXCLUDING, strict=True):
        assert found.returncode == 1 and message in found.stderr, found


@pytest.mark.slow
def test_scores_of_a_test_set_are_results_of_the_checkpoint(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run", "translate")
    source, references = tmp_path / "source.txt", tmp_path / "references.txt"
    source.write_text("abc def\n\nghi\n")
    references.write_text("ab cd ef gh\n\nij\n")
    flags = [f"--checkpoint={run}", "--target=fr", f"--source={source}", "--beams=1"]
    flags += [f"--references={references}", f"--output={tmp_path / 'out.txt'}"]
    named = ["--test_set=wmt14_en_fr", "--multi_bleu=cat"]
    explained = [f"--explain={tmp_path / 'explained'}", "--scripts=Latn"]
    first, failed, again = tiny.run_each(
        "translate",
        [*flags, *named, *explained],
        [*flags, "--multi_bleu=head -n 1"],
        [*flags, *named, "--scripts=Latn"],
    )
    pictures = sorted(file.name for file in (tmp_path / "explained").glob("*.png"))
    assert pictures == ["line_1.png", "line_3.png"]
    assert (first.returncode, failed.returncode, again.returncode) == (0, 1, 0), first.stderr
    assert "made 1 lines of 3" in failed.stderr and "BLEU of tokenized text" in first.stderr
    found = results.read(run / "evaluation" / str(hf_folders.STEP))
    assert found.header.step == hf_folders.STEP and found.header.checkpoint.endswith(
        "checkpoints/7"
    )
    assert "--multi_bleu=cat" in found.commands["wmt14_en_fr"]
    assert [(row.task, row.language) for row in found.results] == [("wmt14_en_fr", "fr")] * 3
    values = {row.metric: 100 * row.value for row in found.results}
    ours = (tmp_path / "out.txt").read_text().split("\n")[:3]
    expected = score_lines(ours, references.read_text().split("\n")[:3])
    assert values["bleu"] == pytest.approx(expected["bleu"])
    assert values["chrf"] == pytest.approx(expected["chrf"]) and "multi_bleu" in values
    setting = found.results[0].setting
    assert setting.startswith("1 layers, decoder last 1; BLEU: nrefs:1|") and "-lc, cat" in setting
    shown = tiny.run_each("report", ["--paper=veco", f"--results=mine={run}"])[0].stdout
    assert "Table 3: Machine translation\n  ours: mine\n  missing: wmt14_en_de\n" in shown


def test_what_cannot_be_scored_is_said_before_anything_is_read(tmp_path):
    """There is no checkpoint, which would be the next error."""
    (tmp_path / "broken" / "MeCab").mkdir(parents=True)
    (tmp_path / "broken" / "MeCab" / "__init__.py").write_text("raise ImportError")
    lines = tmp_path / "lines.txt"
    lines.write_text("今日は\n")
    flags = [f"--checkpoint={tmp_path / 'none'}", f"--source={lines}", f"--references={lines}"]
    path = f"{tmp_path / 'broken'}:{tiny.REPOSITORY}"
    for found, message in zip(
        tiny.run_each(
            "translate",
            [*flags, "--target=jpn_Jpan"],
            [*flags, "--target=zh", "--multi_bleu=no_such_command"],
            [*flags, "--target=zh"],
            later={"PYTHONPATH": path},
        ),
        ("pip install 'sacrebleu[ja]'", "'no_such_command' failed", "none"),
    ):
        assert found.returncode == 1 and message in found.stderr and not found.stdout, found


def test_explained_lines_have_pictures_and_weights(tmp_path, monkeypatch, caplog):
    run = hf_folders.write_checkpoint(tmp_path / "run", "translate", Encoder__num_layers=2)
    lines, folder = ["abc def", "", "ghi я", "ghi"], tmp_path / "explained"
    monkeypatch.setattr(translating, "_EXPLAINED", 2)
    options = {"scripts": ["Latn"], "explain": folder}
    found = list(translate(str(run), lines, "fr", BeamSearch(2), **options))
    assert "--explain: the first 2 of 3 lines" in caplog.text
    names = ["line_1", "line_3"]
    assert sorted(x.name for x in folder.glob("*.png")) == [f"{name}.png" for name in names]
    words = Vocabulary.load(run / "vocabulary.model")
    for name in names:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        pair = read_matrix(folder / "matrices" / f"{name}.json")
        (best,) = found[int(name.removeprefix("line_")) - 1]
        assert words.decode(map(words.piece_to_id, pair.target)) == best.text
        assert pair.source[0] == "<s>" and pair.source[-1] == "</s>"
        np.testing.assert_allclose(pair.matrix.sum(axis=0), 1, atol=1e-4)
        assert len(pair.predicted) == len(pair.target)
    with pytest.raises(ValueError, match="letters of Latn, not of Cyrl"):
        next(translate(str(run), lines, "fr", BeamSearch(2), scripts=["Cyrl", "Latn"]))


def test_cut_translations_are_counted_and_their_lines_named(run, monkeypatch, caplog):
    whole, cut = Hypothesis((5, 6), -1.0), Hypothesis((7,), -1.5, is_cut=True)

    def each(*_):
        yield 1, [whole, cut]
        yield 0, [cut, whole]

    monkeypatch.setattr(Translator, "each", each)
    for n_best, expected in ((1, "1 of 2 .* Lines: 1$"), (2, "2 of 4 .* Lines: 1, 3$")):
        caplog.clear()
        list(translate(str(run), ["abc", "", "def"], "fr", BeamSearch(2), n_best))
        (message,) = [x.getMessage() for x in caplog.records if x.levelname == "WARNING"]
        assert re.search(expected, message), message


@pytest.mark.slow
def test_draws_of_a_line_depend_on_its_number_in_the_file(run):
    """An empty line counts: it used to shift the numbers of those after it."""
    draw = Sampling(3, seed=4)
    files = ["abc", "", "defg"], ["abc", "h" * 20, "defg"]
    found = [list(translate(str(run), lines, "fr", draw, n_best=3)) for lines in files]
    assert not found[0][1] and found[1][1]
    for line in (0, 2):
        texts = [[one.text for one in best[line]] for best in found]
        assert texts[0] == texts[1] and len(set(texts[0])) == 3


def test_lines_of_files_are_checked(tmp_path, run):
    texts = {"good": b"abc\n\n   \nd e\n", "none": b"", "latin1": b"abc\nd\xe9\n"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    cases = {
        ("latin1",): "latin1, line 2 is not UTF-8",
        ("missing",): "missing",
        ("good", "references", "none"): "good has 4 lines, .*none has 0; line n of one must",
        ("good", "references", "latin1"): "latin1, line 2 is not UTF-8",
        ("good", "score", "none"): "good has 4 lines, .*none has 0; line n of one must",
    }

    def flags(source, *more):
        found = [f"--checkpoint={run}", "--target=fr", f"--source={tmp_path / source}", "--beams=1"]
        return found + ([f"--{more[0]}={tmp_path / more[1]}"] if more else [])

    score_flags = [flag for flag in flags("good", "score", "none") if "beams" not in flag]
    runs = [score_flags if "score" in case else flags(*case) for case in cases]
    good, none, *bad = tiny.run_each("translate", flags("good"), flags("none"), *runs)
    assert (good.returncode, none.returncode, none.stdout) == (0, 0, ""), good.stderr
    assert [bool(line) for line in good.stdout.split("\n")] == [True, False, False, True, False]
    for found, message in zip(bad, cases.values(), strict=True):
        assert found.returncode == 1 and re.search(message, found.stderr), (message, found)
        assert not found.stdout and "Traceback" not in found.stderr


def test_long_lines_are_named_before_anything_is_compiled(run, monkeypatch):
    for method in ("each", "score"):
        monkeypatch.setattr(Translator, method, None)
    lines = ["abc", "abc def " * 30, "", "d"]
    message = "long, line 2 has .* tokens, and the model reads 32; so have 0 other lines"
    with pytest.raises(ValueError, match=message):
        next(translate(str(run), lines, "fr", BeamSearch(), name="long"))
    for sides in ((lines, ["d"] * 4), (["d"] * 4, lines)):
        names = ("long", "other") if sides[0] is lines else ("other", "long")
        with pytest.raises(ValueError, match=message):
            score(str(run), *sides, "fr", names=names)


def test_the_mesh_of_a_run_is_kept_where_devices_allow(tmp_path, monkeypatch):
    runs = {
        "fixed": {"Mesh__data": 1, "Mesh__fsdp": 4},
        "rest": {"Mesh__data": 1, "Mesh__fsdp": -1, "Mesh__tensor": 2},
    }
    found = {}
    for name, sizes in runs.items():
        run = str(hf_folders.write_checkpoint(tmp_path / name, "translate", **sizes))
        for devices in (1, 6, 8, 16):
            monkeypatch.setattr("jax.device_count", lambda devices=devices: devices)
            found[name, devices] = trained.mesh_of(run)
    whole, rest = MeshConfig(), MeshConfig(1, -1, 2)
    assert [found["fixed", n] for n in (1, 6, 8, 16)] == [whole] * 2 + [MeshConfig(-1, 4)] * 2
    assert [found["rest", n] for n in (1, 6, 8, 16)] == [whole] + [rest] * 3


def test_a_model_without_a_decoder_is_refused():
    encoder = EncoderConfig(hidden_size=8, num_layers=1, num_heads=1, ffn_size=8)
    with pytest.raises(ValueError, match="this model does not translate: fine-tune it"):
        Translator(XLMConfig(encoder).build(40), BeamSearch())
