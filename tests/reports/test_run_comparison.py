import json

import pytest

from xlme_jax.reports import run_comparison
from xlme_jax.training.manifest import MANIFEST_FILE


def write_run(folder, seed, loss, commit="aaaa"):
    folder.mkdir()
    lines = [{"step": step, "loss": loss, "grad_norm": 1.5} for step in (10, 20)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.gin").write_text(f"SEED = {seed}\nTRAIN_STEPS = 20\n")
    start = {"started": folder.name, "commit": commit, "packages": {"jax": "0.10.2"}}
    (folder / MANIFEST_FILE).write_text(json.dumps({"id": folder.name, "starts": [start]}))
    return str(folder)


def test_shows_only_what_differs(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    b = write_run(tmp_path / "b", seed=1, loss=5.0, commit="bbbb")
    text = run_comparison.compare([a, b])
    assert "| `SEED` | 0 | 1 |" in text
    assert "| `commit` | aaaa | bbbb |" in text
    assert "| `loss` | 4 | 5 | +25.0% |" in text
    assert f"| {a} | 20 |" in text
    for same in ("TRAIN_STEPS", "packages/jax", "grad_norm", "started"):
        assert same not in text
    assert "1 metrics are equal" in text


def test_a_run_compared_with_itself_has_no_differences(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    assert run_comparison.compare([a, a]).count("No differences.") == 3


def test_what_one_run_lacks_is_marked(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    b = write_run(tmp_path / "b", seed=0, loss=4.0)
    (tmp_path / "b" / MANIFEST_FILE).unlink()
    (tmp_path / "b" / "config.gin").unlink()
    text = run_comparison.compare([a, b])
    assert "| `SEED` | 0 | – |" in text and "| `packages/jax` | 0.10.2 | – |" in text


def test_needs_two_runs(tmp_path):
    a = write_run(tmp_path / "a", seed=0, loss=4.0)
    with pytest.raises(ValueError, match="two runs"):
        run_comparison.compare([a])
    with pytest.raises(ValueError, match=r"no such metrics file"):
        run_comparison.compare([a, str(tmp_path / "absent")])
