"""The page of the self-check, on a CPU."""

import jax
import numpy as np
import pytest

from xlme_jax.runs import self_check
from xlme_jax.tools.tuning import attention_candidates, choosing


def ones(arrays):
    return {"output": arrays["q"] * 0 + 1, choosing.GRADIENT + "q": arrays["q"]}


@pytest.fixture
def planted(monkeypatch):
    """Replaces what takes long to compile; returns the kernels, to be spoilt, and the losses."""

    def losses(config, *_):
        return np.array(trained[config.discriminator.attention])

    kernels, trained = {"gpu": ones, "tpu": ones}, {"xla": [9.0, 8.0]}
    monkeypatch.setattr(
        attention_candidates, "interpreted", lambda kind, rate, block: kernels[kind]
    )
    monkeypatch.setattr(attention_candidates, "candidate", lambda *_: ones)
    monkeypatch.setattr(self_check, "_losses", losses)
    return kernels, trained


def test_a_page_of_correct_implementations(planted):
    page = self_check.check()
    assert page.passed and page.text.startswith("xlme_jax self-check: passed\n")
    assert f"  jax: {jax.__version__}\n" in page.text and "  devices: 1 x cpu" in page.text
    lines = [line.split() for line in page.text.splitlines()]
    assert [line[0] for line in lines if line[-1:] in (["correct"], ["chosen"])] == [
        *("xla", "gpu", "tpu"),
        "xla",
    ]


def test_a_wrong_kernel_fails(planted):
    planted[0]["tpu"] = lambda arrays: {**ones(arrays), "output": arrays["q"] * 0 + 1.001}
    page = self_check.check()
    assert not page.passed and page.text.startswith("xlme_jax self-check: FAILED\n")
    assert "output deviates by 1.0e-03, more than 1.3e-05 (interpreted 2 x 24)" in page.text


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [([9.0, 8.01], "1.2e-03  WRONG"), ([9.0, np.nan], "nan  WRONG"), (None, "failed: KeyError")],
)
def test_wrong_training_fails(planted, monkeypatch, losses, verdict):
    names = ("xla", "kernel_64")
    monkeypatch.setattr(self_check, "implementations", lambda *_: names)
    if losses is not None:
        planted[1]["kernel_64"] = losses
    page = self_check.check()
    assert not page.passed and verdict in page.text.splitlines()[-1]


@pytest.mark.slow
def test_the_kernels_pass_interpreted():
    page = self_check.check()
    assert page.passed, page.text
