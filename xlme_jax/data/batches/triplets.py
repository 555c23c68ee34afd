"""Layout of pairs with a mined negative, the third side that `xlme_jax.mine` writes."""

import dataclasses
from typing import ClassVar

from xlme_jax.data.batches.pair_layouts import Sides


@dataclasses.dataclass(frozen=True)
class Triplets(Sides):
    """A pair and its negative are three segments: `<s> e </s>`, `<s> f </s>` and `<s> g </s>`.

    The segment ids of pair p = 1, 2, ... of a row are 3p - 2, 3p - 1 and 3p. The third segment of a
    pair without a negative is `<s> </s>`. `Sides.mixup` joins no triplets.
    """

    name: ClassVar[str] = "triplets"
    segments: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixup != "none":
            raise ValueError(f"Triplets.mixup = {self.mixup!r}: triplets are not mixed; remove it.")

    def order_settings(self) -> dict[str, object]:
        """See `Sides`."""
        return {"layout": self.name, "pairs_per_row": self.pairs_per_row}
