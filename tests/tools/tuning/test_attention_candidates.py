"""What is compared on which device."""

import numpy as np
import pytest

from xlme_jax.ops.attention import attention
from xlme_jax.ops.implementations import Heads, fitting, implementations
from xlme_jax.tools.tuning import attention_candidates

PLAIN = Heads(12, 64, "none", 0.0, "bfloat16")
KERNELS = {
    "gpu": ("kernel_32", "kernel_64", "kernel_128"),
    "tpu": ("kernel_128", "kernel_256", "kernel_512"),
}


@pytest.mark.parametrize(
    ("platform", "kind", "heads", "more"),
    [
        ("cpu", "cpu", PLAIN, ()),
        ("tpu", "TPU v3", PLAIN, ()),
        ("tpu", "TPU v4", PLAIN, KERNELS["tpu"]),
        ("tpu", "TPU v5 lite", PLAIN, KERNELS["tpu"]),
        ("gpu", "NVIDIA H100", PLAIN, (*KERNELS["gpu"], "cudnn")),
        ("gpu", "NVIDIA H100", Heads(12, 64, "none", 0.1, "bfloat16"), KERNELS["gpu"]),
        ("gpu", "NVIDIA H100", Heads(12, 64, "plain", 0.0, "bfloat16"), KERNELS["gpu"]),
        ("gpu", "NVIDIA H100", Heads(12, 64, "none", 0.0, "float32"), KERNELS["gpu"]),
        ("gpu", "NVIDIA H100", Heads(12, 64, "none", 0.0, "float16"), ()),
    ],
)
def test_the_implementations_of_a_device(platform, kind, heads, more):
    assert implementations(platform, kind, heads) == ("xla", *more)


def test_blocks_longer_than_a_row_are_not_measured():
    names = ("xla", *KERNELS["tpu"], "cudnn")
    assert fitting(names, 128) == ["xla", "kernel_128", "cudnn"]
    assert fitting(names, 512) == list(names)


def test_rows_are_as_training_packs_them():
    arrays = attention_candidates.arguments(Heads(2, 4, "gated", 0.1, "float32"), 4, 32, True)
    assert arrays["q"].shape == (4, 32, 2, 4) and arrays["distance_bias"].shape == (2, 64)
    assert arrays["gate"].shape == (4, 32, 2) and arrays["dropout_seeds"].shape == (4,)
    ids = np.asarray(arrays["segment_ids"])
    assert (ids[:2] == 1).all()
    for row in ids[2:]:
        texts = row[row > 0]
        assert set(texts) == {1, 2, 3, 4} and (np.diff(texts) >= 0).all()
        assert (row[len(texts) :] == 0).all()
    plain = attention_candidates.arguments(Heads(2, 4, "none", 0.0, "float32"), 1, 8, False)
    assert plain.keys() == {"q", "k", "v", "weights", "segment_ids"}


def test_rows_are_fewer_where_plain_xla_would_need_too_much_memory(monkeypatch):
    monkeypatch.setattr(attention_candidates, "_MOST_SCORES", 3 * 2 * 16**2)
    heads = Heads(2, 4, "none", 0.0, "float32")
    assert attention_candidates.arguments(heads, 8, 16, False)["q"].shape[0] == 3
    assert attention_candidates.arguments(heads, 8, 64, False)["q"].shape[0] == 1


@pytest.mark.parametrize("implementation", ["cudnn", "kernel_64"])
def test_explicit_implementations_are_refused_where_they_do_not_run(implementation):
    arrays = attention_candidates.arguments(Heads(2, 4, "gated", 0.0, "float32"), 1, 8, False)
    del arrays["weights"]
    with pytest.raises(ValueError, match="use 'auto' or "):
        attention(**arrays, implementation=implementation)
