"""The page of results: images, tables and errors."""

import dataclasses
import io
import struct
import types

import numpy as np
import pytest
from helpers import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from xlme_jax.evaluation import alignment_matrices, results
from xlme_jax.evaluation.alignment_matrices import AlignmentMatrix
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.results import Header, Spread
from xlme_jax.studies.papers import comparison_page as pages
from xlme_jax.studies.papers import fine_tuned
from xlme_jax.studies.reports import html_page, pictures
from xlme_jax.studies.reports.pictures import Curve

PAIR = AlignmentMatrix(
    ("The", "cat", "$x_1$"),
    ("кот", "बिल्ली", "猫", "قط"),
    np.arange(12).reshape(3, 4) / 12,
    sure=frozenset({(0, 0), (1, 1)}),
    possible=frozenset({(2, 2)}),
    predicted=frozenset({(1, 1), (2, 3)}),
)


def _image(png):
    """Returns the pixels [height, width, 4]."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    pixels = imread(io.BytesIO(png), format="png")
    assert pixels.shape[:2] == (height, width)
    return pixels


def _has(pixels, color):
    """Returns whether a colour "#rrggbb" occurs."""
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return bool((np.abs(pixels[..., :3] - wanted).max(axis=-1) < 0.02).any())


def _write(folder, seed=0, flops=1e15, files=None):
    rows = [
        Result("tatoeba", language, "accuracy", 0.1 + 0.1 * layer + 0.01 * seed, layer=layer,
               system=system)
        for layer in range(5)
        for language in ("de", "fr")
        for system in ("model", "untrained")
    ]  # fmt: skip
    rows += [Result("tatoeba", "de", "accuracy", 0.001, system="chance")]
    rows += [
        Result("wordalign", "en-fr", "aer", 0.5 - 0.1 * layer, layer=layer) for layer in (0, 1)
    ]
    rows += [Result("wordalign", "en-fr", "aer", 0.7, system="diagonal")]
    rows += [Result("xnli", language, "accuracy", 0.4 + 0.1 * seed) for language in ("en", "de")]
    counts = {"ours": flops, "table_4": flops / 2} if flops else {}
    header = Header(f"evaluate {seed}", f"runs/{folder.name}", 10, seed, "", counts)
    return results.write(Outcome(tuple(rows), {}, files or {}, {"too long": 7}), folder, header)


# ---- Pictures ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_layer_curves_are_drawn():
    points = {float(x): Spread((0.1 * x, 0.1 * x + 0.05)) for x in range(4)}
    curves = [Curve("a", points), Curve("b", points, ":"), Curve("paper", points, ":", True)]
    pixels = _image(pictures.layer_curves(curves, "Title", "percent"))
    assert _has(pixels, "#0072B2") and _has(pixels, "#888888")
    assert not _has(_image(pictures.layer_curves([], "Title", "percent")), "#0072B2")


@pytest.mark.slow
def test_flops_are_drawn_for_ours_and_the_papers():
    quoted = [Curve(f"p{i}", {1e20: Spread((0.7 + i / 1000,))}, "", True) for i in range(4)]
    ours = Curve("a", {1e15: Spread((0.4,))})
    pixels = _image(pictures.on_log_axis([ours, *quoted], "T", "y", "x"))
    assert _has(pixels, "#0072B2") and _has(pixels, "#888888")


def test_sizes_have_the_papers_lines_and_our_points(tmp_path, monkeypatch):
    record = types.SimpleNamespace(encoder_parameters=5_000_000)
    monkeypatch.setattr(fine_tuned, "read_record", lambda run: record)
    drawn = []
    monkeypatch.setattr(
        pictures, "on_log_axis", lambda curves, *labels: drawn.extend(curves) or b""
    )
    for seed, value in enumerate((0.25, 0.5, 1.0)):
        results.write(
            Outcome((Result("xnli", "en", "accuracy", value),), {}),
            tmp_path / "in" / str(seed),
            Header("c", f"runs/s{seed}", seed=seed),
        )
    named = [f"{name}={tmp_path / 'in'}" for name in ("ours", "ours, translate-train")]
    pages.write(pages.load(named), tmp_path / "out", paper="xylent")
    points = {curve.label: {x: y.mean for x, y in curve.points.items()} for curve in drawn}
    assert points.pop("ours") == {5e6: 0.5}  # The median; translate-train is left out.
    assert [(name, len(line)) for name, line in points.items()] == [
        ("XLM-R", 4), ("mT5", 4), ("XLM-E", 3), ("XY-LENT", 3)
    ]  # fmt: skip
    assert points["XY-LENT"] == {477e6: 0.805, 814e6: 0.83, 2.1e9: 0.848}
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "| **ours** | ours | 5M | 50.0 [1] |" in markdown


@pytest.mark.filterwarnings("error::UserWarning")  # As for glyphs that are missing.
def test_a_matrix_is_drawn_in_any_script_without_a_warning():
    pixels = _image(pictures.alignment_matrix(PAIR, "$ny_title$"))
    assert _has(pixels, "#D55E00") and _has(pixels, "#08306B")  # Gold links, the strongest shade.
    bare = AlignmentMatrix(("a",), ("b",), np.zeros((1, 1)))
    assert not _has(_image(pictures.alignment_matrix(bare)), "#D55E00")


def test_words_that_would_be_drawn_wrongly_are_numbers():
    words = ["cat", "là", "кот", "γάτα", "mèo", "قط", "חתול", "बिल्ली", "\U0001f431\u200d", ""]
    shown = pictures.drawable(words)
    assert shown[:5] == words[:5]
    assert shown[5:] == ["[5]", "[6]", "[7]", "[8]", "[9]"]
    assert pictures.drawable(["\U000f0000"]) == ["[0]"]  # Private use: no font has it.


@settings(deadline=None)  # Another process may take the machine for a while.
@given(st.data())
def test_a_matrix_is_read_as_it_was_written(tmp_path_factory, data):
    words = st.lists(st.text(max_size=5), min_size=1, max_size=4).map(tuple)
    source, target = data.draw(words), data.draw(words)
    links = st.frozensets(
        st.tuples(st.integers(0, len(source) - 1), st.integers(0, len(target) - 1))
    )
    matrix = np.random.default_rng(0).random((len(source), len(target)))
    pair = AlignmentMatrix(source, target, matrix, *(data.draw(links) for _ in range(3)))
    [(name, text)] = alignment_matrices.matrix_file("a", pair).items()
    path = tmp_path_factory.getbasetemp() / "matrix.json"
    path.write_text(text, encoding="utf-8")
    found = alignment_matrices.read_matrix(path)
    assert name == "matrices/a.json"
    np.testing.assert_allclose(found.matrix, matrix, atol=1e-6)
    for field in ("source", "target", "sure", "possible", "predicted"):
        assert getattr(found, field) == getattr(pair, field)


@pytest.mark.parametrize("change", [{"matrix": np.zeros((2, 2))}, {"sure": frozenset({(3, 0)})}])
def test_a_matrix_that_does_not_fit_its_words_is_refused(change):
    with pytest.raises(ValueError, match=r"shape|outside"):
        dataclasses.replace(PAIR, **change)


def test_a_damaged_matrix_is_named(tmp_path):
    path = tmp_path / "x.json"
    for text in ("{", "{}", "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"x\.json holds no alignment matrix"):
            alignment_matrices.read_matrix(path)


# ---- The report --------------------------------------------------------------------------------


def test_a_report_holds_tables_and_pictures(tmp_path):
    matrix = alignment_matrices.matrix_file("en-hi_0", PAIR)
    _write(tmp_path / "in" / "s0", 0, files=matrix)
    _write(tmp_path / "in" / "s1", 1, files=matrix)  # The same system: not drawn again.
    page = pages.write(pages.load([f"small & <ours>={tmp_path / 'in'}"]), tmp_path / "out", "it")
    text = page.read_text()
    assert "small &amp; &lt;ours&gt;" in text and "<ours>" not in text
    assert html_page.SORTING in text  # By the number before a note's.
    assert "<td>45.0 ± 7.1<sup>" in text and "2 of 15 languages: de, en; 2 runs" in text
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "| **small & <ours>, layer 3** |" in markdown and "7 too long" in markdown
    assert "| XLM-E | XLM-E, Table 1 | 75.6 | 63.5 | 76.2 / 60.2 |" in markdown
    assert "evaluate 0" in markdown and "it\n" in markdown
    names = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert names == {
        "tatoeba_layers", "wordalign_layers", "flops_xnli", "flops_tatoeba", "flops_wordalign",
        "matrix_00", "tatoeba_families", "tatoeba_word_order",
    }  # fmt: skip
    for path in (tmp_path / "out").glob("*.png"):
        _image(path.read_bytes())
        assert f"({path.name})" in markdown
    assert text.count("data:image/png;base64,") == 8
    assert "[1] बिल्ली" in text  # What the picture could not show.


@pytest.mark.parametrize(
    ("paper", "drawn", "titles"),
    [
        pytest.param("xlme", {"tatoeba_layers", "wordalign_layers", "flops_xnli", "flops_tatoeba",
                  "flops_wordalign"}, ("Table 7: Transfer gap", "Figure 4: Word alignment"),
                  marks=pytest.mark.slow),
        ("xylent", {"sizes"},
         ("Table 14: XQuAD", "Figure 1: XNLI over sizes", "Figure 3: Language families")),
        ("infoxlm", {"tatoeba_to_english_layers"}, ("Table 3: Tatoeba", "Figure 1: Tatoeba")),
        ("veco", set(), ("Table 18: Tatoeba",)),
    ],
)  # fmt: skip
def test_a_papers_page_has_its_tables_and_pictures_alone(tmp_path, paper, drawn, titles):
    rows = [
        Result("tatoeba", "de", "accuracy_to_en", 0.1 * layer, layer=layer) for layer in range(5)
    ]
    results.write(Outcome(tuple(rows), {}), tmp_path / "in" / "other", Header("c", "runs/other"))
    _write(tmp_path / "in" / "s0", 0)
    pages.write(pages.load([f"ours={tmp_path / 'in'}"]), tmp_path / "out", "it", paper)
    markdown = (tmp_path / "out" / "report.md").read_text()
    headings = [line[3:] for line in markdown.splitlines() if line.startswith("## ")]
    assert headings[0] == "What is there" and headings[-1] == "Our runs"
    assert all(any(one.startswith(title) for one in headings) for title in titles)
    assert all(one.startswith(("Table", "Figure")) for one in headings[1:-1])
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == drawn


def test_results_without_flops_or_layers_make_a_report(tmp_path):
    outcome = Outcome((Result("rte", "en", "accuracy", 0.5, "validation"),), {})
    results.write(outcome, tmp_path / "in", Header("c", "runs/a"))
    pages.write(pages.load([str(tmp_path / "in")]), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.png"))
    assert "| **in** | ours | – | – | – | – | – | 50.0 [1] |" in (
        (tmp_path / "out" / "report.md").read_text()
    )


def test_names_are_given_or_the_folders(tmp_path):
    path = _write(tmp_path / "a=b")
    assert [name for name, _ in pages.load([str(tmp_path / "a=b")])] == ["a=b"]
    assert [name for name, _ in pages.load([str(path)])] == ["a=b"]
    assert [name for name, _ in pages.load([f"x={path}"])] == ["x"]


def test_a_result_that_counts_twice_is_refused(tmp_path):
    path = _write(tmp_path / "a")
    with pytest.raises(results.ResultsError, match="leave one out"):
        pages.write(pages.load([f"x={path}", f"x={path}"]), tmp_path / "out")


@pytest.mark.slow
def test_command_and_its_errors(tmp_path):
    _write(tmp_path / "a")
    flags = [[f"--output={tmp_path / 'out'}", f"--results=x={tmp_path / name}"] for name in "ab"]
    done, failed = tiny.run_each("report", *flags)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").exists()
    assert failed.returncode == 1 and f"{tmp_path / 'b'}: no results.json" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_the_command_lists_what_a_paper_lacks(tmp_path):
    _write(tmp_path / "a")
    (done,) = tiny.run_each("report", ["--paper=xlme", f"--results=x={tmp_path / 'a'}"])
    output = done.stdout
    assert "Table 1: Zero-shot cross-lingual understanding\n  ours: x\n" in output
    assert "  missing: udpos, panx, xquad, mlqa, tydiqa, pawsx\n" in output
    assert not (tmp_path / "out").exists()
