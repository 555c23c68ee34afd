"""Which implementations of attention a device has, and which suit the length of its rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp

Platform = Literal["tpu", "gpu"]
# "kernel_64" is "kernel" with blocks of 64 queries and keys.
Implementation = Literal[
    "auto",
    "xla",
    "kernel",
    "kernel_32",
    "kernel_64",
    "kernel_128",
    "kernel_256",
    "kernel_512",
    "cudnn",
]

# {platform: blocks of queries and keys that its kernel may have}.
BLOCKS: dict[Platform, tuple[int, ...]] = {"gpu": (32, 64, 128), "tpu": (128, 256, 512)}
# Name, for checkpoint policies, of the results that a recomputed layer may keep.
KEPT = "attention"
# The score of a key that a query does not read.
MASKED = -1e30
# TPUs without the kernel.
_OLD_TPUS = ("TPU v2", "TPU v3", "TPU v4 lite")
# {stream: (rows that one device attends over at once, their length)}
Rows = Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Heads:
    """The attention of an encoder on one device.

    Attributes:
      count: H, number of heads on the device.
      width: K, width of a head.
      bias: `EncoderConfig.relative_bias`.
      dropout: probability of dropping an attention weight.
      dtype: name of the compute type.
    """

    count: int
    width: int
    bias: Literal["gated", "plain", "none"]
    dropout: float
    dtype: str


def has_kernel(platform: str, device_kind: str, dtype: Any) -> bool:
    """Returns whether "kernel" runs on a device ("cpu", "gpu" or "tpu", and its kind)."""
    is_supported = platform in ("tpu", "gpu") and dtype in (jnp.float32, jnp.bfloat16)
    return is_supported and device_kind not in _OLD_TPUS


def implementations(platform: str, device_kind: str, heads: Heads) -> tuple[Implementation, ...]:
    """Returns the implementations that a device has for an encoder's attention.

    Args:
      platform: "cpu", "gpu" or "tpu".
      device_kind: kind of the device, such as "TPU v4".
      heads: the attention.

    Returns:
      Names; "xla", which every device has, is the first.
    """
    names: list[Any] = ["xla"]
    if has_kernel(platform, device_kind, jnp.dtype(heads.dtype)):
        names += [f"kernel_{block}" for block in BLOCKS[platform]]  # type: ignore[index]
    is_plain = heads.bias == "none" and not heads.dropout
    if platform == "gpu" and is_plain and heads.dtype == "bfloat16":
        names.append("cudnn")
    return tuple(names)


def fitting(names: Sequence[Implementation], length: int) -> list[Implementation]:
    """Returns the implementations that suit rows of `length` tokens.

    A kernel is left out if at least half of its block would be padding.
    """
    blocks = {f"kernel_{block}": block for sizes in BLOCKS.values() for block in sizes}
    return [name for name in names if blocks.get(name, 0) < 2 * length]
