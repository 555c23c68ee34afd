"""Two commits are compared: which figures count, what is noise, and the exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import tiny

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import compare

    return compare


def test_costs_are_compared_and_nothing_else(compare):
    content = {
        "command": "python x.py",
        "cpu": "AMD EPYC",
        "cores": 2,
        "shapes": {"tiny": {"seconds": [3.0, 1.0, 2.0], "tokens_per_second": 9, "mfu": 0.5}},
        "tokens a second": {"wall": [5.0], "cpu": [5.0]},
        "time": [{"implementation": "xla", "ms": 4.0, "cpu ms": 5}],
        "bytes": True,
        "memory": {"kernel MB": 7, "seconds": []},
    }
    assert compare.figures(content) == {
        "shapes.tiny.seconds": 2.0,
        "time.0.ms": 4.0,
        "time.0.cpu ms": 5.0,
        "memory.kernel MB": 7.0,
    }


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.2, 1.3, 1.25), "regression"),
        ((1.02, 1.03, 1.01), "worse"),
        ((0.9, 0.8, 0.95), "better"),
        ((1.2, 1.3, 0.99, 1.4, 1.3), "noise"),
        ((1.2, 1.3, 0.99, 1.4, 1.3, 1.2, 1.2, 1.2, 1.2, 1.2), "regression"),
        ((1.0, 1.0), "noise"),
        ((1.2,), "regression"),
    ],
)
def test_a_difference_counts_if_the_rounds_agree(compare, ratios, verdict):
    rounds = [({"x": 2.0, "gone": 1.0}, {"x": 2.0 * ratio, "new": 1.0}) for ratio in ratios]
    rows = compare.compare(rounds, threshold=1.05)
    assert rows.keys() == {"x"} and rows["x"]["verdict"] == verdict
    assert min(ratios) <= rows["x"]["ratio"] <= max(ratios)
    assert verdict in compare.table(rows)


SCRIPT = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--output")
parser.add_argument("--factor", type=float)
options = parser.parse_args()
with open(options.output, "w") as file:
    json.dump({"seconds": [options.factor * SECONDS], "MB": 8}, file)
"""


@pytest.mark.slow
def test_two_commits_run_their_own_benchmarks(tmp_path):
    repository, output = tmp_path / "repository", tmp_path / "found.json"

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", repository, *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(seconds):
        script = repository / "benchmarks" / "work.py"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPT.replace("SECONDS", seconds))
        if not (repository / ".git").exists():
            git("init", "--quiet")
        git("add", ".")
        git("commit", "--quiet", "-m", "a")
        return git("rev-parse", "HEAD")

    def compare(*commits):
        return subprocess.run(
            [
                *(sys.executable, BENCHMARKS / "compare.py", *commits, "--benchmark=work"),
                *(f"--repository={repository}", f"--output={output}", "--rounds=2"),
                *("--", "--factor=2"),
            ],
            env=tiny.environment(),
            capture_output=True,
            text=True,
        )

    old, new = commit("1.0"), commit("1.5")
    done = compare(old, "HEAD")
    assert done.returncode == 1, done.stderr
    found = json.loads(output.read_text())
    row = found["figures"]["seconds"]
    assert (row["A"], row["B"], row["verdict"]) == (2.0, 3.0, "regression")
    assert found["figures"]["MB"]["verdict"] == "noise" and found["commits"] == [old, new]
    assert found["figures"]["process, peak MB"]["A"] > 1
    assert "seconds" in done.stdout and "1.500" in done.stdout
    assert len(git("worktree", "list").splitlines()) == 1
    refused = compare(old, "nowhere")
    assert refused.returncode == 1 and "'nowhere' is no commit of" in refused.stderr
