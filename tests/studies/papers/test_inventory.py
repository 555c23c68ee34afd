"""Every table and figure of a paper is listed, with ours or the commands of what is missing."""

import re
import shlex
from pathlib import Path

import pytest
from helpers import hf_folders, sheet_commands, tiny

from xlme_jax.configuration import command_line, loading
from xlme_jax.data.benchmarks.catalogue import BENCHMARKS
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.results import Header, Results
from xlme_jax.studies.papers import inventory
from xlme_jax.studies.papers.entries import entries
from xlme_jax.studies.papers.fine_tuned import GLUE
from xlme_jax.studies.papers.items import PAPERS, RECIPES
from xlme_jax.studies.papers.needs import VARIABLES, Need, command, is_pretrained

NAMES = {
    "xlme": "1 2 3 4 5 6 7 F1 F3 F4",
    "xylent": "1 1 2 3 4 5 6 7 10 11 12 13 14 F1 F3 F5",
    "infoxlm": "1 2 3 4 5 6 7 F1",
    "veco": "1 2 3 4 8 10 11 12 13 14 15 16 17 18",
}


GLUE_TASKS = {task for pairs in GLUE.values() for task, _ in pairs}


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


def parts_of(paper):
    """Yields (name, arguments) of each command of a paper; "a && b" are two."""
    for line in sheet_commands.every_command(paper):
        for part in line.split(" && "):
            python, option, module, *arguments = shlex.split(part)
            assert (python, option) == ("python", "-m")
            yield module.removeprefix("xlme_jax."), arguments


@pytest.mark.parametrize("paper", PAPERS)
def test_what_the_list_prints_is_every_command(paper):
    found = inventory.statuses(paper, ())
    printed = {line for status in found for line in (*status.commands, *status.runs)}
    assert printed == set(sheet_commands.every_command(paper))
    text = inventory.to_text(found, {"a command": "a reason"})
    assert all(line in text for line in printed) and "  a command\n    a reason\n" in text


@pytest.mark.parametrize("paper", PAPERS)
def test_flags_files_and_variables_of_the_commands_exist(paper, monkeypatch):
    monkeypatch.syspath_prepend(tiny.REPOSITORY / "tests" / "docs")
    import documented

    commands = sheet_commands.every_command(paper)
    assert commands and not documented.problems(
        "\n".join(f"```bash\n{line}\n```" for line in commands)
    )
    for line in commands:
        assert set(re.findall(r"\$\{?([A-Z_]+)", line)) <= set(VARIABLES), line
        for task in re.findall(r"--tasks=(\S+)", line):
            assert all(x in BENCHMARKS or is_pretrained(x) for x in task.split(",")), line


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    return hf_folders.write_checkpoint(tmp_path_factory.mktemp("started") / "run")


def loaded(arguments, started, roots):
    """Builds what the gin flags of a command configure; its variables are this run."""
    arguments = [re.sub(r"\$\{?[A-Z_]+\}?", str(started), word) for word in arguments]
    files, bindings = [], []
    for flag in command_line.gin_flags([word for word in arguments if "gin" in word[:6]]):
        name, value = flag.split("=", 1)
        (files if name == "--gin_file" else bindings).append(value)
    return [loading.load(files, bindings, root) for root in roots]


@pytest.mark.parametrize("paper", tiny.slow_except({"xlme"}, PAPERS))
def test_gin_flags_of_the_commands_are_valid(paper, started):
    roots = {"train": ["Train"], "sweep": ["Sweep", "Train"]}
    checked = [
        loaded(arguments, started, roots[name])
        for name, arguments in parts_of(paper)
        if name in roots
    ]
    assert all(map(all, checked)) and checked


def test_each_training_has_folders_of_its_own():
    """Of all papers together: in the folder of another one, a run would find nothing to do."""
    trained, prepared = {}, {}
    for paper in PAPERS:
        for name, arguments in parts_of(paper):
            if name not in ("train", "sweep"):
                continue
            marks = {"train": "--gin.MODEL_DIR=", "sweep": "--output="}
            (folder,) = (word for word in arguments if word.startswith(marks[name]))
            settings = tuple(word for word in arguments if not word.startswith("--evaluate="))
            trained.setdefault(folder.split("=")[1].strip("'"), set()).add(settings)
            if name == "sweep":
                (data,) = (word for word in arguments if word.startswith("--gin.DATA_DIR="))
                prepared.setdefault(data, set()).add(settings)
    assert len(trained) > 60
    for folders in (trained, prepared):
        assert not {folder: some for folder, some in folders.items() if len(some) > 1}


@pytest.mark.parametrize("paper", tiny.slow_except({"xlme"}, PAPERS))
def test_benchmarks_have_the_splits_that_commands_need(paper, started):
    def splits(task):
        found = BENCHMARKS[task].source.layouts
        templates = {"validation", "test", "train"}
        return {x for one in found for x in (templates if "{split}" in one.path else {one.split})}

    checked = 0
    for name, arguments in parts_of(paper):
        if name != "sweep":
            continue
        sweep, train = loaded(arguments, started, ["Sweep", "Train"])
        (evaluation,) = train.evaluators
        trained = train.objective.task
        selecting = evaluation.task or trained
        assert evaluation.split == "validation" in splits(selecting)
        languages = evaluation.languages or ("mean",)
        assert sweep.select.startswith(f"eval/{selecting}/")
        assert sweep.select.rpartition("/")[2] in (*languages, "mean")
        (scored,) = (word for word in arguments if word.startswith("--evaluate="))
        flags = dict(word.removeprefix("--").split("=", 1) for word in shlex.split(scored)[3:])
        for task in flags.get("tasks", trained).split(","):
            split = flags.get("split", "test")
            assert split in splits(task), (task, split)
            # What selects is not what is scored, where there is another split.
            labelled = task not in GLUE_TASKS
            assert (task, split) != (selecting, evaluation.split) or not labelled
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
    apart = one("xlme", "Table 7").commands[0]
    assert "finetune/xquad.gin" in apart and "--tasks=xquad " in apart
    translated = command(Need("pawsx", "translate-train"))
    assert "('pawsx_translate_train',)" in translated
    assert "--output=${RUN}_pawsx_translate_train " in translated
    assert "--gin.TASK=\"'cola'\"" in command(Need("cola"))
    assert "--tasks=mnli,mnli_mismatched --split=validation" in command(Need("mnli_mismatched"))
    assert "--pooling=first" in command(Need("tatoeba", "[CLS]"))
    zero_shot, translated = one("veco", "Table 14").commands
    assert "finetune/squad.gin --gin_file=gin_configs/finetune/veco.gin" in zero_shot
    assert "finetune/mlqa_dev.gin" in zero_shot and "--output=${RUN}_veco_squad " in zero_shot
    assert "finetune/veco_translate_train.gin" in translated and "mlqa_dev.gin" in translated
    xnli, mlqa = one("infoxlm", "Table 7").commands
    assert "finetune/infoxlm_xnli.gin" in xnli and "finetune/infoxlm_mlqa.gin" in mlqa
    *_, large = one("infoxlm", "Table 1").commands
    assert "infoxlm_large_xnli.gin" in large and "INIT_FROM=\"'$LARGE'\"" in large
    for task in ("wmt14_en_de", "tatoeba"):
        assert "$RUN" not in command(Need(task), is_large=True)
    assert "INIT_FROM=\"'$LARGE'\"" in command(Need("wmt14_en_de"), is_large=True)
    tydiqa = one("veco", "Table 15").commands[1]
    assert "INIT_FROM=\"'$SQUAD'\"" in tydiqa
    assert "TaskEvaluation.languages=\"('ar','bn','fi','id','ko','ru','sw','te')\"" in tydiqa


def test_squad_is_selected_in_mlqas_seven_languages(started):
    """Its files of two languages, such as de-en, are no development sets of the papers'."""
    for paper in ("infoxlm", "veco"):
        arguments = shlex.split(command(Need("mlqa"), RECIPES[paper]))
        sweep, train = loaded(arguments, started, ["Sweep", "Train"])
        assert sweep.select == "eval/mlqa/f1/mean"
        assert train.evaluators[0].languages == BENCHMARKS["mlqa"].languages


def test_sheets_say_what_is_scored_and_what_selects():
    for paper, name, said in (
        ("xlme", "Table 1", "a tenth of its training passages"),
        ("xlme", "Table 1", "SQuAD's selects"),
        ("veco", "Table 13", "MLQA's selects"),
        ("xylent", "Table 3", "select too, which flatters"),
        ("veco", "Table 12", "XTREME, at the threshold"),
        ("veco", "Table 15", "translations of the English passages"),
    ):
        assert said in sheet_of(paper, name, ()).caption
        assert any(said in note for note in one(paper, name).notes)
        assert said in inventory.to_text([one(paper, name)])


def test_the_mean_of_americasnli_is_with_and_without_english():
    """XY-LENT, Table 5, whose English column is XNLI's."""
    rows = [Result("americasnli", x, "accuracy", v) for x, v in (("gn", 0.4), ("aym", 0.5))]
    rows.append(Result("xnli", "en", "accuracy", 0.9))
    cells = row(sheet_of("xylent", "Table 5", systems(a=rows)), "a")
    assert (cells["en"], cells["Avg"], cells["Avg w/o en"]) == ("90.0", "60.0", "45.0")


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
    rows += [Result("tatoeba", "de", "accuracy_to_en", 0.01 * x, layer=x) for x in range(13)]
    without = row(sheet_of("veco", "Table 1", systems(a=rows)), "a")
    # Layers 2 of 4 and 6 of 12.
    assert (without["BUCC"], without["Tatoeba"], without["Avg"]) == ("20.0", "6.0", "–")
    rows += all_of("panx", "chunk_f1", 0.3)
    found = row(sheet_of("veco", "Table 1", systems(a=rows)), "a")
    assert found["Avg"] == f"{(90 + 80 + 70 + 30 + 3 * 50 + 20 + 6) / 9:.1f}"


def test_mining_at_the_middle_layer_alone_is_in_vecos_table():
    """`evaluate` mines at one layer: 6 of 12."""
    pairs = ("de-en", "fr-en", "ru-en", "zh-en")
    rows = [Result("bucc", pair, "f1", 0.25, layer=6) for pair in pairs]
    sheet = sheet_of("veco", "Table 1", systems(a=rows))
    (cell,) = (
        cells[sheet.columns.index("BUCC")] for cells, ours in zip(sheet.rows, sheet.ours) if ours
    )
    assert cell.text == "25.0" and cell.note == "layer 6; 1 run"


def test_frozen_encoders_have_the_papers_layers():
    """XLM-E: 9, and 7 and XTREME's for XLM-R; InfoXLM: <s> in the last; VECO: the middle one."""
    languages = BENCHMARKS["xnli"].languages

    def tatoeba(setting):
        return [
            Result("tatoeba", x, metric, 0.01 * (layer if layer < 11 else 1), layer=layer,
                   setting=setting)
            for layer in range(13)
            for x in ("de", "fr", *languages)
            for metric in ("accuracy", "accuracy_to_en", "accuracy_from_en")
        ]  # fmt: skip

    mean, first = tatoeba("mean over all tokens"), tatoeba("state of <s>")
    file = Results(Path("b"), Header("c", "b"), tuple(dict.fromkeys(first)), {}, {}, {})
    ours = [*systems(a=dict.fromkeys(mean)), *entries([("a", file)])]

    def names(paper, name):
        sheet = sheet_of(paper, name, ours)
        return [cells[0].text for cells, is_ours in zip(sheet.rows, sheet.ours) if is_ours]

    best = "layer 10 (best on this set)"
    assert names("xlme", "Table 5")[:4] == [f"a, layer {x}" for x in (9, 7, 8)] + [f"a, {best}"]
    assert [name for name in names("infoxlm", "Table 2") if name.endswith("xx→en")] == [
        *(f"a, {layer}, xx→en" for layer in ("layer 7", "layer 8", best)),
        *(f"a [CLS], {layer}, xx→en" for layer in ("layer 12", best)),
    ]
    assert names("veco", "Table 18")[:2] == ["a, layer 6, xx→en", f"a, {best}, xx→en"]
    aer = [
        Result("wordalign", x, "aer", 0.5 - 0.01 * layer, layer=layer)
        for layer in range(13)
        for x in ("en-de", "en-fr", "en-hi", "en-ro")
    ]
    sheet = sheet_of("xlme", "Table 6", systems(a=aer))
    assert row(sheet, "a, layer 9")["Avg"] == "41.0" and row(sheet, "a, layer 7")["en-de"] == "43.0"
    # The row "layer of XLM-R's alignment" of docs/papers/xlme.md.
    assert row(sheet, "a, layer 8")["Avg"] == "42.0"


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
    # The figure's 36 languages have no Esperanto.
    rows += [Result("tatoeba", "epo", "accuracy", 0.9, layer=x) for x in range(4)]
    sheet = sheet_of("xlme", "Figure 3", systems(a=rows))
    quoted = row(sheet, "XLM-E")
    assert (quoted["9"], quoted["10"], quoted["3"]) == ("63.66", "57.14", "–")
    assert row(sheet, "a")["3"] == "30.0" and row(sheet, "a")["4"] == "–"
    alone = sheet_of("xlme", "Figure 4", systems(a=rows))
    assert not alone.rows


def test_scores_stand_beside_the_flops_of_table_4():
    header = Header("c", "runs/a", flops={"ours": 2e15, "table_4": 1e15})
    file = Results(Path("a"), header, tuple(all_of("xnli", "accuracy", 0.5)), {}, {}, {})
    sheet = sheet_of("xlme", "Figure 1", entries([("a", file)]))
    assert row(sheet, "a")["FLOPs"] == "1e+15" and row(sheet, "a")["XNLI"] == "50.0"
    quoted = row(sheet, "XLM-E")
    assert quoted["FLOPs"] == "9.5e19" and quoted["XNLI"] == "76.6"
