"""How FLOPs are counted: checkpoints and results hold {convention: FLOPs}.

Only this module knows the conventions; a new convention is an entry of `CONVENTIONS`.
"""

from collections.abc import Callable, Mapping
from typing import Any

# The convention of `model.flops`.
OURS = "ours"
# The convention of XLM-E's Table 4.
TABLE_4 = "table_4"


def as_table_4(all_streams: float, pairs: float) -> float:
    """Returns FLOPs as XLM-E's Table 4 counts them, for comparison with the table.

    The paper gives no formula. This formula is inferred from the table's figures of XLM-E Base
    (125k steps of 2,048 x 512 slots for each task), 6.3e19 without TRTD and 9.5e19 with TRTD.
    `model.flops` counts 1.22e20 and 2.44e20:

    - a multiply-add is one operation in the table and two in `model.flops`: with one, 6.1e19
      without TRTD;
    - TRTD adds half of MRTD's figure to the table, as if half of the slots of TRTD's batches, which
      are as long as their longest pair, were padding. `model.flops` counts every slot; with half
      of them, 9.2e19 with TRTD.

    The table's figures are 3% higher; what else they count is not known.

    Args:
      all_streams: FLOPs of all streams, as `model.flops` counts them.
      pairs: the part of these FLOPs that is spent on streams of pairs.
    """
    return (all_streams - pairs) / 2 + pairs / 4


CONVENTIONS: Mapping[str, Callable[[float, float], float]] = {
    OURS: lambda all_streams, pairs: all_streams,
    TABLE_4: as_table_4,
}
"""{convention: function of the arguments of `as_table_4` that returns FLOPs}."""


def by_convention(all_streams: float, pairs: float) -> dict[str, float]:
    """Returns {convention: FLOPs of a train step as it counts them}.

    Args:
      all_streams: FLOPs of all streams, as `model.flops` counts them.
      pairs: the part of these FLOPs that is spent on streams of pairs.
    """
    return {name: convention(all_streams, pairs) for name, convention in CONVENTIONS.items()}


def upgraded(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Returns a copy of the fields of a JSON file with {convention: FLOPs} under each of `names`.

    Older files have FLOPs of the convention "ours" under such a name, and FLOPs of Table 4's
    convention under a second name, with "table_4_flops" instead of "flops".
    """
    content = dict(fields)
    for name in names:
        older = content.pop(name.replace("flops", f"{TABLE_4}_flops"), None)
        if not isinstance(content.get(name), dict):
            counts = {OURS: content.get(name), TABLE_4: older}
            content[name] = {x: number for x, number in counts.items() if number is not None}
    return content
