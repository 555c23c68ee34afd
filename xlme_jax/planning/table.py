"""The papers' runs on machines with enough memory, and the table of docs/scale.md."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from xlme_jax.planning.machines import GIB
from xlme_jax.planning.search import Remat


@dataclasses.dataclass(frozen=True)
class Shipped:
    """A run of gin_configs and its partitioning on a machine.

    Attributes:
      run: name of the gin file, without suffix.
      topology: the machine, as in --topology.
      mesh: sizes of the axes data, fsdp and tensor.
      micro_batches: micro-batches per step.
      remat: what encoders recompute, as `Encoder.remat`.
      folder: folder of the gin file.
    """

    run: str
    topology: str
    mesh: tuple[int, int, int]
    micro_batches: int = 1
    remat: Remat = "products"
    folder: str = "runs"

    @property
    def file(self) -> str:
        """Path of the gin file."""
        return f"gin_configs/{self.folder}/{self.run}.gin"

    def bindings(self) -> list[str]:
        """Returns the gin bindings of the mesh, the micro-batches and remat."""
        sizes = zip(("data", "fsdp", "tensor"), self.mesh)
        return [
            *(f"Mesh.{axis} = {size}" for axis, size in sizes),
            f"Loop.micro_batches = {self.micro_batches}",
            f"Encoder.remat = {self.remat!r}",
        ]


# If the weights do not fit unsharded, fsdp is as small as the memory allows, because smaller groups
# send less. On GPUs, fsdp groups stay within a node. Products are kept where they are predicted to
# fit.
SHIPPED = (
    Shipped("xlme_base", "v5e-256", (256, 1, 1)),
    Shipped("xlme_base", "v4-128", (64, 1, 1)),
    Shipped("xlme_base", "a100:64", (64, 1, 1)),
    Shipped("xlme_large", "v5e-256", (32, 8, 1)),
    Shipped("xlme_large", "v4-128", (8, 8, 1)),
    Shipped("xlme_large", "a100:64", (8, 8, 1)),
    Shipped("xlme_xl", "v5e-256", (32, 8, 1), remat=True),
    Shipped("xlme_xl", "v4-128", (8, 8, 1), remat=True),
    Shipped("xlme_xl", "a100:64", (8, 8, 1)),
    Shipped("xylent_base", "a100-40:128", (16, 8, 1)),
    Shipped("xylent_large", "a100-40:128", (16, 8, 1)),
    Shipped("xylent_xl", "a100:512", (64, 8, 1)),
    Shipped("xylent_xl", "v5p-256", (16, 8, 1), remat=True),
    Shipped("veco_wmt14_en_de", "h100:8", (1, 8, 1), folder="finetune"),
    Shipped("veco_wmt14_en_de", "h100:64", (8, 8, 1), folder="finetune"),
    Shipped("veco_wmt14_en_fr", "h100:8", (1, 8, 1), 4, folder="finetune"),
    Shipped("veco_wmt14_en_fr", "h100:64", (8, 8, 1), folder="finetune"),
)


def chosen(text: str) -> list[Shipped]:
    """Returns the shipped runs whose "RUN TOPOLOGY" contains `text`, or all for "all".

    Args:
      text: such as "all", "xlme_xl", "v5e" or "xlme_xl v5e-256".

    Raises:
      ValueError: no run matches.
    """
    named = {f"{shipped.run} {shipped.topology}": shipped for shipped in SHIPPED}
    found = [shipped for name, shipped in named.items() if text == "all" or text in name]
    if not found:
        raise ValueError(f"--table={text!r} matches none of: all, {', '.join(named)}.")
    return found


def markdown(rows: Sequence[tuple[Shipped, dict[str, Any]]]) -> str:
    """Returns a Markdown table of shipped runs.

    Args:
      rows: each run with its `summary.facts`.
    """
    lines = [
        "| run | machine | mesh (data x fsdp x tensor), micro-batches, remat | memory of a device, "
        "GiB | of which state | read and written, GB a step | sent, GB a step | step, s | tokens/s "
        "| MFU | days |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for shipped, plan in rows:
        found = plan["given"]
        memory = found["memory_bytes"]
        cells = [
            shipped.run,
            f"{shipped.topology} ({found['devices']} devices)",
            f"{' x '.join(map(str, shipped.mesh))}, {shipped.micro_batches}, {shipped.remat}",
            f"{memory['total'] / GIB:.1f} of {memory['available'] / GIB:.1f}"
            + ("" if found["fits"] else " **does not fit**"),
            f"{(memory['params'] + memory['optimizer']) / GIB:.1f}",
        ]
        if "seconds" in found:
            seconds = found["seconds"]
            cells += [
                f"{found['hbm_bytes'] / 1e9:.0f}",
                f"{sum(found['sent_bytes'].values()) / 1e9:.1f}",
                f"{seconds['step']:.2f} ({seconds['best']:.2f})",
                f"{found['tokens_per_second'] / 1e6:.2f} M",
                f"{found['mfu']:.0%}",
                f"{found['days']:.1f}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
