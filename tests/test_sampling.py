import numpy as np
import pytest
from helpers import tiny

from tests.data.test_pipeline import complete, fill, pair
from xlme_jax.data.prepared.writer import BitextWriter

PAIRS = {("en", "pt-br"): 9, ("en", "sw"): 6, ("pt-br", "sw"): 3, ("en", "zh-hant"): 4}
PAIRS[("sw", "zh-hant")] = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    rows = []
    for (one, other), count in PAIRS.items():
        writer = BitextWriter(directory, f"x_{one}_{other}", [one, other], 300)
        rows.append(fill(writer, [pair(rng, 9) for _ in range(count)]))
    return complete(directory, rows).directory


def test_the_command_and_its_errors(data, tmp_path):
    path = tmp_path / "densities.png"
    mistakes = {
        "language 'en' must get": [f"--data={data}", f"--output={tmp_path}/x.png", "--alpha=9"],
        "--output=FILE.png are needed": [f"--data={data}"],
    }
    done, *failed = tiny.run_each(
        "sampling", [f"--data={data}", "--alpha=0.9", f"--output={path}"], *mistakes.values()
    )
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(b"\x89PNG")
    lines = done.stdout.splitlines()
    assert lines[0] == "alpha=0.9, 5 pairs of 4 languages, 24 examples"
    never = {line[:16].strip(): int(line.split()[-6]) for line in lines[2:]}
    assert never["temperature"] == never["Sinkhorn"] == 0
    assert 1 <= never["linear programme"] <= 3
    for message, done in zip(mistakes, failed, strict=True):
        assert done.returncode == 1 and message in done.stderr
        assert "Traceback" not in done.stderr
