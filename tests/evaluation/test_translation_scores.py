"""BLEU, chrF and the paired bootstrap are those that sacreBLEU's command prints."""

import os
import random
import re
import subprocess
import sys

import pytest
import tiny

from xlme_jax.evaluation.translation_scores import compare

pytest.importorskip("sacrebleu")
WORDS = [
    "the",
    "house",
    "tree",
    "green",
    "of",
    "and",
    "to",
    "see",
    "it",
    ",",
    ".",
    "'s",
    "good-looking",
]


@pytest.fixture
def files(tmp_path):
    """Writes references, and three systems: each changes more words than the one before."""
    rng = random.Random(0)
    lines = [rng.choices(WORDS, k=rng.randrange(4, 15)) for _ in range(60)]
    paths = []
    for name, share in (("ref", 0.0), ("a", 0.3), ("b", 0.32), ("c", 0.6)):
        changed = [[rng.choice(WORDS) if rng.random() < share else w for w in x] for x in lines]
        paths.append(tmp_path / f"{name}.txt")
        paths[-1].write_text("".join(f"{' '.join(x)}\n" for x in changed))
    return paths


def test_scores_and_p_values_are_those_of_sacrebleu(files):
    command = [sys.executable, "-m", "sacrebleu", files[0], "-i", *files[1:], "-m", "bleu", "chrf"]
    printed = subprocess.run(
        [*command, "--paired-bs", "-f", "text", "-w", "4"],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "SACREBLEU_SEED": "12345"},
    ).stdout
    theirs = re.findall(r"([\d.]+) \([\d.]+ ± ([\d.]+)\)", printed)
    p_values = re.findall(r"\(p = ([\d.]+)\)", printed)
    texts = {path.name: path.read_text().splitlines() for path in files}
    found = compare(texts.pop("ref.txt"), texts)
    ours = [one for system in zip(*found.scores.values()) for one in system]
    assert [(f"{one.score:.4f}", f"{one.margin:.4f}") for one in ours] == theirs
    assert [f"{one.p_value:.4f}" for one in ours[2:]] == p_values
    assert len(found.scores["BLEU"]) == 3 and found.scores["BLEU"][0].p_value is None
    assert found.scores["BLEU"][2].p_value < 0.01 < found.scores["BLEU"][1].p_value
    assert "tok:13a|smooth:exp" in found.signatures["BLEU"]


def test_the_command_prints_a_table(files, tmp_path):
    names = ",".join(map(str, files))
    one, many, wrong = tiny.run_each(
        "report",
        [f"--translations={files[0]},{files[1]}"],
        [f"--translations={names}", f"--output={tmp_path / 'out'}", "--tokenize=none"],
        [f"--translations={files[0]}"],
    )
    assert (one.returncode, many.returncode, wrong.returncode) == (0, 0, 1), (one, many)
    assert "p=" not in one.stdout and "BLEU: nrefs:1" in one.stdout
    rows = many.stdout.splitlines()
    assert [row.split()[0] for row in rows[1:4]] == [str(path) for path in files[1:]]
    assert rows[3].count("*") == 2 and "tok:none" in rows[4]
    assert (tmp_path / "out" / "translations.txt").read_text() == many.stdout
    assert "needs references and a system" in wrong.stderr


def test_the_language_chooses_the_tokenizer():
    found = compare(["我是一个好人", "你好"], {"a": ["我是一个好人", "你 好"]}, language="zh")
    assert "tok:zh" in found.signatures["BLEU"] and found.scores["BLEU"][0].score > 99


ERRORS = [
    ({"references": ["a"], "systems": {"x.txt": ["a", "b"]}}, "x.txt has 2 lines, .* 1 references"),
    ({"references": ["a"], "systems": {"x": ["a"]}, "tokenize": "perl"}, "sacreBLEU has .*13a"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=["lines", "tokenizer"])
def test_errors_name_their_cause(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments)
