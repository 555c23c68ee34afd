"""The table of measures, and what it asks of an entry."""

import dataclasses
import re
from typing import ClassVar

import pytest
from helpers import tiny

from xlme_jax.data.text.reading import DataError
from xlme_jax.evaluation import measures
from xlme_jax.evaluation.finetuned import TaskEvaluation
from xlme_jax.evaluation.measure import About, Measure, Request, ScoreColumn, ScoreTable
from xlme_jax.evaluation.outcome import Outcome


@dataclasses.dataclass(frozen=True)
class Length(Measure):
    """A measure of nothing."""

    about: ClassVar[About] = About("length", needs="masked_lm")
    folder: str
    languages: tuple[str, ...] = ()
    layer: int | None = None
    factor: float = 1.0

    def build(self, subject):
        """Returns what measures nothing."""
        return lambda params: Outcome((), {})


@pytest.fixture
def added(monkeypatch):
    monkeypatch.setattr(measures, "_added", {})
    measures.add(Length)


def test_tasks_belong_to_one_measure_each():
    assert measures.names() == [
        *("held_out", "tatoeba", "wordalign", "bucc", "flores", "ntrex", "tico19"),
        *("sib200_probe", "massive_probe", "taxi1500_probe"),
        "held_out_retrieval",
    ]
    assert measures.defaults() == ["tatoeba", "wordalign"]
    assert measures.of_task("xnli") is TaskEvaluation
    assert measures.of_task("wmt14_en_de") is None


def test_a_measure_from_outside_is_known_by_its_name(added):
    assert measures.of_task("length") is Length and measures.names()[-1] == "length"
    assert measures.of_tasks(["length", "xnli", "mlqa"]) == [TaskEvaluation, Length]
    measures.add(Length)


@pytest.mark.parametrize("name", ["length", "tatoeba", "xnli"])
def test_two_measures_of_one_name_are_refused(added, name):
    class Other(Length):
        about = About(name)

    def add():
        measures.add(Other)
        measures.by_task()

    with pytest.raises(ValueError, match=f"Other.about.name = '{name}' is a task of .*; choose"):
        add()


def test_settings_are_those_of_the_request_and_else_of_the_run(tmp_path):
    (tmp_path / "length").mkdir()
    folder = str(tmp_path / "length")
    request = Request(data=str(tmp_path), languages=("de",), layer=3)
    assert Length.requested("length", request, ()) == Length(folder, ("de",), 3)
    of_run = Length("elsewhere", ("fr",), 1, factor=2.0)
    evaluators = (TaskEvaluation(), of_run)
    assert Length.requested("length", request, evaluators) == Length(folder, ("de",), 3, factor=2.0)
    assert Length.requested("length", Request(), evaluators) == of_run
    with pytest.raises(DataError, match="has no folder for length"):
        Length.requested("length", Request(), ())


def test_a_layer_that_another_encoder_lacks_is_left_open():
    assert Length("x", layer=3).for_depth(3).layer == 3
    assert Length("x", layer=3).for_depth(2).layer is None
    assert TaskEvaluation().for_depth(2) == TaskEvaluation()


def test_published_rows_have_a_score_for_each_column():
    columns = (ScoreColumn("a", "accuracy"), ScoreColumn("b", "f1"))
    table = ScoreTable("T", "C", columns, {"Paper, Table 1": "A model | 1.0 -\nB | 2 3"})
    assert list(table.rows()) == [
        ("Paper, Table 1", "A model", ("1.0", "-")),
        ("Paper, Table 1", "B", ("2", "3")),
    ]
    with pytest.raises(ValueError, match="'B' has 1 scores, and the table 'T' has 2 columns"):
        ScoreTable("T", "C", columns, {"Paper": "B | 2"})


def test_code_names_measures_in_their_own_files_alone():
    """Besides, the folders of official files name them."""
    literal = re.compile(r'"(tatoeba|wordalign|bucc|held_out_retrieval)"')
    files = {
        file.relative_to(tiny.REPOSITORY / "xlme_jax").as_posix()
        for file in (tiny.REPOSITORY / "xlme_jax").rglob("*.py")
        if literal.search(file.read_text(encoding="utf-8"))
    }
    assert files == {
        "data/benchmarks/labelled_rows.py",
        *(f"evaluation/{x}.py" for x in ("alignment", "bucc", "held_out_retrieval", "tatoeba")),
    }
