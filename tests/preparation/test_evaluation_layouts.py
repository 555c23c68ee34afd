"""One entry in the table of evaluation sets, and all that follows from it."""

import json

import pytest
from helpers import tiny

# A set of one table, with a column for each language, as IN22 is on the hub.
_SCRIPT = """
import json, sys
from pathlib import Path
from xlme_jax.data.benchmarks import evaluation_layouts
from xlme_jax.data.benchmarks.evaluation_layouts import EVERY_LANGUAGE, EvaluationSet, SetFiles

evaluation_layouts.SETS += (
    EvaluationSet(
        "in22-gen",
        "IN22-Gen",
        (
            SetFiles(
                (r"(?P<split>test)-<n>-of-<n>\\.(?:parquet|jsonl)",),
                text=(EVERY_LANGUAGE,),
                columns=("context", "eng_Latn"),
                unit="id",
            ),
        ),
        "data/test-00000-of-00001.parquet",
        task="in22",
        folders=("IN22-Gen",),
        beside=(r"in22\\.bib",),
        licence="CC BY 4.0",
    ),
)
sys.path += ["tests/evaluation", "tests"]
from test_tatoeba import Subject, parameters
from xlme_jax.data.benchmarks.labelled_rows import folder_of
from xlme_jax.evaluation import measures
from xlme_jax.preparation import distributions, evaluation_overlap, sources
from xlme_jax.preparation.prepare_config import PrepareConfig

root = Path(sys.argv[1])
refused = []
for parts in ((), ("evaluation",)):
    options = {"dir": str(root), "include_parts": parts}
    try:
        sources.SOURCES["text"].find(PrepareConfig("out", ("text",), options=options), None)
    except ValueError as error:
        refused.append(str(error))
evaluation = evaluation_overlap.evaluation_digests(root)
measure = measures.by_task()["in22"](str(folder_of(root, "in22")))
outcome = measure.build(Subject())(parameters())
print("SEEN", json.dumps({
    "parts": [file.part for file in distributions.recognise(root)],
    "refused": refused,
    "texts": {file: len(evaluation[file]) for file in evaluation},
    "sets": evaluation.sets,
    "headline": sorted(outcome.headline),
    "skipped": outcome.skipped,
    "languages": sorted({result.language for result in outcome.results}),
    "title": measure.about.tables[0].title,
}))
"""


@pytest.mark.slow
def test_an_entry_is_left_out_of_training_compared_with_it_and_measured(tmp_path):
    words = {"eng_Latn": "river", "hin_Deva": "नदी", "tam_Taml": "ஆறு"}
    rows = [
        {"id": i, "context": f"of no language, number {i}"}
        | {code: f"{word} {i} {word} of {i * 7}" for code, word in words.items()}
        for i in range(20)
    ]
    rows[3]["tam_Taml"] = None
    path = tmp_path / "IN22-Gen/data/test-00000-of-00001.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tiny.run(["-c", _SCRIPT, str(tmp_path)])
    line = next(x for x in output.splitlines() if x.startswith("SEEN "))
    seen = json.loads(line.removeprefix("SEEN "))
    name = path.relative_to(tmp_path).as_posix()
    assert seen["parts"] == ["evaluation"]
    assert "nothing to train on: this is IN22-Gen (evaluation)" in seen["refused"][0]
    assert f"{path}: this is IN22-Gen; " in seen["refused"][1]
    assert seen["texts"] == {name: 59} and seen["sets"] == {name: "IN22-Gen"}
    assert "in22/accuracy" in seen["headline"] and {"hi", "ta", "mean"} <= set(seen["languages"])
    assert seen["skipped"] == {"sentence without a translation": 1}
    assert seen["title"] == "IN22-Gen sentence retrieval"
