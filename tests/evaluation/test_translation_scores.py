"""BLEU, chrF and the paired bootstrap are those that sacreBLEU's command prints."""

import collections
import math
import os
import random
import re
import subprocess
import sys

import pytest
import tiny

from xlme_jax.evaluation.translation_scores import compare, multi_bleu

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


def counted_as_multi_bleu(lines, references):
    """BLEU as multi-bleu.perl -lc computes it, from Papineni et al. 2002."""
    matches, totals, lengths = [0] * 4, [0] * 4, [0, 0]
    for both in zip(lines, references):
        ours, theirs = (text.lower().split() for text in both)
        lengths[0] += len(ours)
        lengths[1] += len(theirs)
        for n in range(1, 5):
            found, there = (
                collections.Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1))
                for x in (ours, theirs)
            )
            matches[n - 1] += (found & there).total()
            totals[n - 1] += found.total()
    if not all(matches):
        return 0.0
    mean = sum(math.log(a / b) for a, b in zip(matches, totals)) / 4
    return 100 * math.exp(mean + min(0, 1 - lengths[1] / lengths[0]))


def test_multi_bleu_counts_tokens_of_the_command_without_case(files):
    references, found = (path.read_text().splitlines() for path in files[:2])
    # Hyphens and apostrophes are tokens of their own.
    split = [[re.sub("([-'])", r" \1 ", x) for x in side] for side in (found, references)]
    expected = counted_as_multi_bleu(*split)
    shouted = [x.upper() for x in references]
    ours = multi_bleu(found, shouted, """sed -E "s/([-'])/ \\1 /g" """)
    assert ours == pytest.approx(expected) and 20 < ours < 99
    assert abs(ours - counted_as_multi_bleu(found, references)) > 0.1
    short = [" ".join(x.split()[:-1]) for x in found]  # The penalty of brevity.
    expected = counted_as_multi_bleu(short, references)
    assert multi_bleu(short, references, "cat") == pytest.approx(expected) and expected > 1
    assert multi_bleu(["a b c"], ["a b c"], "cat") == counted_as_multi_bleu(["a b c"], ["a b c"])


TOKENIZERS = [
    ("head -n 1", "made 1 lines of 2; it must write a line"),
    ("no_such_tokenizer -l de", "'no_such_tokenizer -l de' failed"),
    ("cat no_such_file", "failed: .* non-zero exit status 1.* No such file"),
    ("", "the tokenizer '' failed"),
]


@pytest.mark.parametrize(("command", "message"), TOKENIZERS)
def test_tokenizers_that_fail_are_named(command, message):
    with pytest.raises(ValueError, match=message):
        multi_bleu(["a", "b"], ["a", "b"], command)


ERRORS = [
    ({"references": ["a"], "systems": {"x.txt": ["a", "b"]}}, "x.txt has 2 lines, .* 1 references"),
    ({"references": ["a"], "systems": {"x": ["a"]}, "tokenize": "perl"}, "sacreBLEU has .*13a"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=["lines", "tokenizer"])
def test_errors_name_their_cause(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments)
