import gzip
import json

import pytest

from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import overlap

LONG = "The quick brown fox jumps"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "eval"
    (root / "deep").mkdir(parents=True)
    (root / "lines.txt").write_text(f"{LONG}\nnot in training\n{LONG.upper()}\nA fox.\n")
    (root / "deep" / "fields.tsv.gz").write_bytes(gzip.compress(f"7\t{LONG}\tx\n".encode()))
    squad = {"data": [{"paragraphs": [{"context": f"{LONG}\nEine  zweite Zeile"}]}]}
    (root / "squad.json").write_text(json.dumps(squad))
    (root / "rows.jsonl").write_text(json.dumps({"text": LONG}) + "\n{broken\n")
    (root / "zh.txt").write_text("这句话没有空格但是长度足够所以应该被计算在内\n短句\n")
    (root / ".hidden").write_text(LONG)
    (root / "picture.png").write_bytes(b"\x89PNG\xff\xfe\n")
    return root


def test_counts_by_file_and_task(folder):
    evaluation = overlap.evaluation_digests(folder)
    assert {name: len(digests) for name, digests in evaluation.items()} == {
        "deep/fields.tsv.gz": 2,  # the line and its long field
        "lines.txt": 2,  # equal texts once, short ones not
        "rows.jsonl": 1,
        "squad.json": 2,
        "zh.txt": 1,
    }
    training = [
        ("mono", [("something\nthe QUICK brown  fox jumps",), ("A fox.",)]),
        ("pairs", [("x", "这句话没有空格但是长度足够所以应该被计算在内")]),
        ("pairs", [("eine zweite zeile", "y")]),
        ("clean", [("nothing of it",)]),
    ]
    found = overlap.find(evaluation, training)
    assert found.found == {
        "deep/fields.tsv.gz": {"mono": 1},
        "lines.txt": {"mono": 1},
        "rows.jsonl": {"mono": 1},
        "squad.json": {"mono": 1, "pairs": 1},
        "zh.txt": {"pairs": 1},
    }
    assert "overlap of squad.json (2 texts): 1 in mono, 1 in pairs" in found.lines()
    assert found.to_json()["files"]["zh.txt"] == {"texts": 1, "found": {"pairs": 1}}


def test_nothing_to_compare_with(tmp_path):
    (tmp_path / "short.txt").write_text("A fox.\n")
    with pytest.raises(DataError, match="no text found; set `check_overlap`"):
        overlap.evaluation_digests(tmp_path)
