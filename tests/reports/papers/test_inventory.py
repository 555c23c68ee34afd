"""Every table and figure of a paper is listed, with ours or the commands of what is missing."""

import re
import shlex
from pathlib import Path

import hugging
import pytest
import tiny

from xlme_jax.configuration import command_line, loading
from xlme_jax.data.benchmarks.registry import BENCHMARKS
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.results import Header, Results
from xlme_jax.reports.papers import inventory
from xlme_jax.reports.papers.entries import entries
from xlme_jax.reports.papers.items import PAPERS
from xlme_jax.reports.papers.needs import FROZEN, Need, command

NAMES = {
    "xlme": "1 2 3 4 5 6 7 F1 F3 F4",
    "xylent": "1 1 2 3 4 5 6 7 10 11 12 13 14 F3 F5",
    "infoxlm": "1 2 3 4 5 6 7 F1",
    "veco": "1 2 3 4 8 10 11 12 13 14 15 16 17 18",
}


def systems(**rows):
    """Returns entries with results."""
    return entries(
        [
            (
                name.replace("_", " "),
                Results(Path(name), Header("c", name), tuple(found), {}, {}, {}),
            )
            for name, found in rows.items()
        ]
    )


def all_of(task, metric, value, **fields):
    return [Result(task, x, metric, value, **fields) for x in BENCHMARKS[task].languages]


def one(paper, name, ours=()):
    return next(found for found in inventory.statuses(paper, ours) if found.name == name)


def row(sheet, name):
    cells = next(cells for cells in sheet.rows if cells[0].text == name)
    return dict(zip(sheet.columns, (cell.text for cell in cells)))


def sheet_of(paper, name, ours):
    return next(s for s in inventory.sheets(paper, ours) if s.title.startswith(f"{name}:"))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_is_listed_with_published_rows(paper):
    shown = []
    for item in PAPERS[paper]:
        kind, number = re.match(r"(Table|Figure) (\d+)", item.name).groups()
        shown.append(number if kind == "Table" else f"F{number}")
    assert shown == NAMES[paper].split()
    for found in inventory.sheets(paper, ()):
        printed = found.title.startswith("Table") or "Figure 1: Scores" in found.title
        assert not printed or len(found.rows) >= 2, found.title
        assert not any(found.ours)
        sources = {cells[1].text.split(",")[0] for cells in found.rows}
        assert len(sources) <= 1


@pytest.mark.parametrize("paper", PAPERS)
def test_commands_name_files_that_exist(paper):
    commands = [
        line for found in inventory.statuses(paper, ()) for line in (*found.commands, *found.runs)
    ]
    assert commands
    for line in commands:
        words = shlex.split(line)
        assert words[:2] == ["python", "-m"]
        for file in re.findall(r"--gin_file=(\S+)", line):
            assert (tiny.REPOSITORY / file).is_file(), line
        for task in re.findall(r"--tasks=(\S+)", line):
            assert all(x in BENCHMARKS or x in FROZEN for x in task.split(",")), line


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    return hugging.write_checkpoint(tmp_path_factory.mktemp("started") / "run")


@pytest.mark.parametrize("paper", PAPERS)
def test_gin_flags_of_the_commands_are_valid(paper, started, tmp_path):
    commands = dict.fromkeys(
        line for found in inventory.statuses(paper, ()) for line in (*found.commands, *found.runs)
    )
    checked = 0
    for line in commands:
        line = line.replace("$RUN", str(started)).replace("$DATA", str(tmp_path))
        words = shlex.split(line)
        files, bindings = [], []
        for flag in command_line.gin_flags([word for word in words if "gin" in word[:6]]):
            name, value = flag.split("=", 1)
            (files if name == "--gin_file" else bindings).append(value)
        for root in {"xlme_jax.train": ["Train"], "xlme_jax.sweep": ["Sweep", "Train"]}.get(
            words[2], []
        ):
            assert loading.load(files, bindings, root)
            checked += 1
    assert checked


def test_what_is_there_is_no_longer_missing():
    before = one("xlme", "Table 2")
    assert before.ours == () and before.missing == ("xnli", "mlqa")
    ours = systems(a=all_of("xnli", "accuracy", 0.5))
    after = one("xlme", "Table 2", ours)
    assert after.ours == ("a",) and after.missing == ("mlqa",)
    assert len(before.commands) == 2 and len(after.commands) == 1
    assert after.runs == before.runs != ()
    text = inventory.to_text(inventory.statuses("xlme", ours))
    assert "Table 2: Ablations\n  ours: a\n  missing: mlqa\n" in text
    listed = inventory.to_sheet([after])
    assert [cell.text for cell in listed.rows[0][:3]] == ["Table 2", "a", "mlqa"]


def test_settings_do_not_stand_for_one_another():
    found = all_of("xnli", "accuracy", 0.5)
    assert one("xylent", "Table 11", systems(a=found)).missing == ("xnli translate-train",)
    translated = systems(**{"a,_translate-train": found})
    assert one("xylent", "Table 11", translated).missing == ("xnli",)
    first = [Result("tatoeba", "de", "accuracy", 0.1, layer=1, setting="state of <s>; cosine")]
    assert one("infoxlm", "Table 2", systems(a=first)).missing == ("tatoeba",)
    mean = [Result("tatoeba", "de", "accuracy", 0.1, layer=1)]
    assert one("infoxlm", "Table 2", systems(a=mean)).missing == ("tatoeba [CLS]",)
    baseline = [Result("xnli", "de", "accuracy", 0.3, system="majority")]
    assert one("xlme", "Table 2", systems(a=baseline)).missing == ("xnli", "mlqa")


def test_commands_of_the_settings():
    assert "--gin_file=gin_configs/finetune/squad.gin" in command(Need("mlqa"))
    assert "--tasks=xquad,mlqa" in command(Need("xquad"))
    translated = command(Need("pawsx", "translate-train"))
    assert "('pawsx_translate_train',)" in translated and "runs/pawsx_translate_train" in translated
    assert "--gin.TASK=\"'cola'\"" in command(Need("cola"))
    assert "--tasks=mnli,mnli_mismatched --split=validation" in command(Need("mnli_mismatched"))
    assert "--pooling=first" in command(Need("tatoeba", "[CLS]"))
    zero_shot, translated = one("veco", "Table 14").commands
    assert "finetune/squad.gin --gin_file=gin_configs/finetune/veco.gin" in zero_shot
    assert "--gin.Sweep.task=\"'mlqa'\"" in zero_shot
    assert "finetune/veco_translate_train.gin" in translated
    xnli, mlqa = one("infoxlm", "Table 7").commands
    assert "finetune/infoxlm_xnli.gin" in xnli and "finetune/infoxlm_mlqa.gin" in mlqa


def test_questions_by_language_have_two_numbers_and_their_mean():
    rows = [
        Result("mlqa", language, metric, value)
        for language, values in (("en", (0.8, 0.6)), ("de", (0.6, 0.5)))
        for metric, value in zip(("f1", "exact_match"), values)
    ]
    found = row(sheet_of("veco", "Table 14", systems(a=rows)), "a")
    assert (found["en"], found["de"], found["Avg"]) == ("80.0 / 60.0", "60.0 / 50.0", "70.0 / 55.0")
    assert found["zh"] == "–"


def test_vecos_average_counts_nine_tasks():
    rows = all_of("xnli", "accuracy", 0.9) + all_of("pawsx", "accuracy", 0.8)
    for task in ("xquad", "mlqa", "tydiqa"):
        rows += all_of(task, "f1", 0.6) + all_of(task, "exact_match", 0.4)
    rows += all_of("udpos", "chunk_f1", 0.7)
    rows += [Result("bucc", "de-en", "f1", 0.1 * layer, layer=layer) for layer in range(5)]
    rows += [Result("tatoeba", "de", "accuracy_to_en", 0.2, layer=x) for x in range(5)]
    without = row(sheet_of("veco", "Table 1", systems(a=rows)), "a")
    assert without["BUCC"] == "30.0" and without["Avg"] == "–"  # Layer 3 of 4.
    rows += all_of("panx", "chunk_f1", 0.3)
    found = row(sheet_of("veco", "Table 1", systems(a=rows)), "a")
    assert found["Avg"] == f"{(90 + 80 + 70 + 30 + 3 * 50 + 30 + 20) / 9:.1f}"


def test_tatoeba_by_language_has_a_row_for_each_direction():
    rows = [
        Result("tatoeba", language, metric, value + 0.01 * layer, layer=layer)
        for layer in range(5)
        for language in ("de", "fr", "nl")
        for metric, value in (
            ("accuracy", 0.3), ("accuracy_to_en", 0.2), ("accuracy_from_en", 0.4)
        )
    ]  # fmt: skip
    ours = systems(a=rows)
    sheet = sheet_of("infoxlm", "Table 2", ours)
    assert row(sheet, "a, layer 3, xx→en")["Avg"] == "23.0"
    assert row(sheet, "a, layer 3, en→xx")["de"] == "43.0"
    names = [cells[0].text for cells in sheet_of("infoxlm", "Table 3", ours).rows]
    assert "a, layer 3, xx→en" in names and "a, layer 3, en→xx" not in names


def test_figures_over_layers_have_the_papers_values_and_ours():
    rows = [Result("tatoeba", "de", "accuracy", 0.1 * x, layer=x) for x in range(4)]
    sheet = sheet_of("xlme", "Figure 3", systems(a=rows))
    quoted = row(sheet, "XLM-E")
    assert (quoted["9"], quoted["10"], quoted["3"]) == ("63.66", "57.14", "–")
    assert row(sheet, "a")["3"] == "30.0" and row(sheet, "a")["4"] == "–"
    alone = sheet_of("xlme", "Figure 4", systems(a=rows))
    assert not alone.rows


def test_scores_stand_beside_the_flops_of_table_4():
    header = Header("c", "runs/a", flops=2e15, table_4_flops=1e15)
    file = Results(Path("a"), header, tuple(all_of("xnli", "accuracy", 0.5)), {}, {}, {})
    sheet = sheet_of("xlme", "Figure 1", entries([("a", file)]))
    assert row(sheet, "a")["FLOPs"] == "1e+15" and row(sheet, "a")["XNLI"] == "50.0"
    quoted = row(sheet, "XLM-E")
    assert quoted["FLOPs"] == "9.5e19" and quoted["XNLI"] == "76.6"
