import json
import math
import re

import pytest

from xlme_jax.studies.reports import run_comparison
from xlme_jax.training.manifest import MANIFEST_FILE


def write_run(folder, seed, loss, commit="aaaa", steps=(10, 20), tokens=100.0):
    folder.mkdir()
    values = {"loss": loss, "grad_norm": 1.5, "tokens_per_step": tokens}
    lines = [{"step": step, **values} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.gin").write_text(f"SEED = {seed}\nTRAIN_STEPS = 20\n")
    start = {"started": folder.name, "commit": commit, "packages": {"jax": "0.10.2"}}
    (folder / MANIFEST_FILE).write_text(json.dumps({"id": folder.name, "starts": [start]}))
    return str(folder)


def compared(*runs):
    return run_comparison.to_markdown(run_comparison.compare(runs))


def test_shows_only_what_differs(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    b = write_run(tmp_path / "b", seed=1, loss=5.0, commit="bbbb")
    text = compared(a, b)
    assert "| `SEED` | 0 | 1 |" in text
    assert "| `commit` | aaaa | bbbb |" in text
    assert "| weighted sum of all losses (`loss`) | 4 | 5 | +25.0% |" in text
    assert f"| {a} | 20 | 2,000 |" in text and "different lengths" not in text
    for same in ("TRAIN_STEPS", "packages/jax", "grad_norm", "started"):
        assert same not in text
    assert "2 metrics are equal" in text


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"steps": (10, 20, 40)}, "b has 40 steps and 4,000 tokens"),
        ({"tokens": 200.0}, "b has 20 steps and 4,000 tokens"),
    ],
)
def test_runs_of_different_lengths_are_pointed_out(tmp_path, other, said):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    b = write_run(tmp_path / "b", seed=0, loss=4.0, **other)
    text = compared(a, b)
    assert text.count("of different lengths") == 2  # At the top, and at the ends of curves.
    assert "a has 20 steps and 2,000 tokens" in text and said in text


def test_a_run_compared_with_itself_has_no_differences(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    assert compared(a, a).count("No differences.") == 3


def test_what_one_run_lacks_is_marked(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    b = write_run(tmp_path / "b", seed=0, loss=4.0)
    (tmp_path / "b" / MANIFEST_FILE).unlink()
    (tmp_path / "b" / "config.gin").unlink()
    text = compared(a, b)
    assert "| `SEED` | 0 | – |" in text and "| `packages/jax` | 0.10.2 | – |" in text


def test_needs_two_runs(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    with pytest.raises(ValueError, match="two runs"):
        run_comparison.compare([a])
    with pytest.raises(ValueError, match=r"no such metrics file"):
        run_comparison.compare([a, str(tmp_path / "absent")])


def test_ends_have_a_deviation_and_tables_a_file(tmp_path):
    runs = [write_run(tmp_path / name, seed=0, loss=4.0) for name in "ab"]
    lines = [{"step": n, "loss": 5.0 + n % 2, "held_out/x/mlm_loss": n} for n in range(1, 41)]
    (tmp_path / "b" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    comparison = run_comparison.compare(runs)
    text = run_comparison.to_markdown(comparison)
    # Of 40 points the last four: 6, 5, 6, 5.
    assert f"(`loss`) | 4 | 5.5 ± {math.sqrt(1 / 3):.2g} | +37.5% |" in text
    assert "| held_out/x: masked LM loss (`held_out/x/mlm_loss`) | – | 38.5 ± 1.3 | – |" in text
    counted = run_comparison.to_markdown(comparison, elsewhere="in FILE")
    assert re.search(r"^Ends of further curves: \d+, in FILE\.$", counted, re.MULTILINE)
    assert "<details>" in text and "<details>" not in counted
    head, *rows = (row.split("\t") for row in run_comparison.to_tsv(comparison).splitlines())
    assert head == ["table", "name", *runs, "last to first"]
    assert {len(row) for row in rows} == {5} and rows[0] == ["Length", "steps", "20", "40", ""]
    assert ["Ends of the curves", "loss", "4", "5.5 ± 0.58", "+37.5%"] in rows


def test_retrieval_is_named_by_the_readout_and_layer_of_each_run(tmp_path):
    runs = [write_run(tmp_path / name, seed=0, loss=4.0) for name in "ab"]
    for run, accuracy, readout, layer in zip(runs, (0.5, 0.25), ("raw", "centred"), (1, 0)):
        values = {"probe/retrieval_accuracy": accuracy, f"probe/retrieval_layer/{readout}": layer}
        with open(f"{run}/metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": 30, **values}) + "\n")
    assert (
        "| held-out retrieval (raw, layer 1 or centred, layer 0), accuracy@1 "
        "(`probe/retrieval_accuracy`) | 0.5 | 0.25 | -50.0% |"
    ) in compared(*runs)


def test_runs_without_metrics_have_tables(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    (tmp_path / "a" / "metrics.jsonl").write_text("")
    assert compared(a, a).count("No differences.") == 3
