"""The papers' runs on machines with enough memory, and the table of docs/lab/plan_tables.md."""

import dataclasses
import datetime
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.tools.planning.digest import versions
from xlme_jax.tools.planning.machines import GIB
from xlme_jax.tools.planning.search import MeshCandidate, Remat

_log = logging.getLogger(__name__)


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
      compiler_options: as `Loop.compiler_options`.
    """

    run: str
    topology: str
    mesh: tuple[int, int, int]
    micro_batches: int = 1
    remat: Remat = "products"
    folder: str = "runs"
    compiler_options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the row, such as "xlme_base v5e-256"."""
        return f"{self.run} {self.topology}"

    @property
    def file(self) -> str:
        """Path of the gin file."""
        return f"gin_configs/{self.folder}/{self.run}.gin"

    def bindings(self) -> list[str]:
        """Returns the gin bindings of the mesh, the micro-batches and remat."""
        bindings = MeshCandidate(*self.mesh, self.micro_batches, self.remat).bindings()
        options = self.compiler_options
        return [*bindings, *([f"Loop.compiler_options = {options}"] if options else [])]


# Products are kept, in as few micro-batches as the memory allows, but on v4 and v5p in so many that
# a device has 4,096 tokens (XLM-E XL on v4: 8,192), whose activations mostly stay in on-chip
# memory. On GPUs, fsdp groups stay within a node. On v5e, where a device has few tokens, fsdp also
# saves the traffic of the optimizer; a group of 32 spans both dimensions of the torus. On v5p, the
# whole state fits a device, which then sends the gradients alone, once a step.
# On more than 16 chips of v5e, XLA waits for permutations, which it sends between the parts of a
# product elsewhere: there, products wait for whole weights instead.
_WHOLE_PRODUCTS = ("xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",)
# XLA's GPU programs wait for each transfer at once unless asked not to.
_HIDDEN_TRANSFERS = ("xla_gpu_enable_latency_hiding_scheduler=true",)
SHIPPED = (
    Shipped("xlme_base", "v5e-256", (64, 4, 1), 1, compiler_options=_WHOLE_PRODUCTS),
    Shipped("xlme_base", "v4-128", (64, 1, 1), 8),
    Shipped("xlme_base", "a100:64", (64, 1, 1)),
    Shipped("xlme_large", "v5e-256", (64, 4, 1), 1, compiler_options=_WHOLE_PRODUCTS),
    Shipped("xlme_large", "v4-128", (64, 1, 1), 8),
    Shipped("xlme_large", "a100:64", (8, 8, 1)),
    Shipped("xlme_xl", "v5e-256", (8, 32, 1), 2, compiler_options=_WHOLE_PRODUCTS),
    Shipped("xlme_xl", "v4-128", (8, 8, 1), 4),
    Shipped("xlme_xl", "a100:64", (8, 8, 1), 2),
    Shipped("xylent_base", "a100-40:128", (16, 8, 1)),
    Shipped("xylent_large", "a100-40:128", (16, 8, 1), compiler_options=_HIDDEN_TRANSFERS),
    Shipped("xylent_xl", "a100:512", (64, 8, 1)),
    Shipped("xylent_xl", "v5p-256", (128, 1, 1), 16),
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
    runs = [shipped for shipped in SHIPPED if text == "all" or text in shipped.name]
    if not runs:
        names = ", ".join(shipped.name for shipped in SHIPPED)
        raise ValueError(f"--table={text!r} matches none of: all, {names}.")
    return runs


def record(path: Path, shipped: Shipped, facts: dict[str, Any], digest: str = "") -> None:
    """Adds the plan of a shipped run to a JSON file, or replaces it there.

    Args:
      path: the file; it need not exist.
      shipped: the run.
      facts: `summary.facts` of its plan.
      digest: digest of the lowered step (`digest.digest`); "" for none.
    """
    plans = _read(path)
    compiled = {
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "digest": digest,
    }
    plans[shipped.name] = {"settings": shipped.bindings(), **compiled, **facts["given"]}
    names = [run.name for run in SHIPPED if run.name in plans]
    ordered = {name: plans[name] for name in names}
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def recorded_plan(path: Path, shipped: Shipped, digest: str) -> dict[str, Any] | None:
    """Returns {"given": the recorded plan} of a run; None without a plan that has this digest."""
    plan = _read(path).get(shipped.name, {})
    if plan.get("digest") != digest:
        return None
    _log.info("%s: listed from %s, which has the plan of this program.", shipped.name, path)
    return {"given": plan}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def recorded(path: Path, shipped_plans: Sequence[Shipped]) -> list[tuple[Shipped, dict[str, Any]]]:
    """Returns (shipped run, its facts) of the shipped runs that have plans in a file of `record`.

    Raises:
      ValueError: a plan in the file has other settings than the shipped run.
    """
    plans = _read(path)
    runs = [shipped for shipped in shipped_plans if shipped.name in plans]
    for shipped in runs:
        if plans[shipped.name]["settings"] != shipped.bindings():
            raise ValueError(
                f"{path} has no plan of {shipped.name!r} with {', '.join(shipped.bindings())}: "
                f"run python -m xlme_jax.plan --table='{shipped.name}' --output={path}"
            )
    return [(shipped, {"given": plans[shipped.name]}) for shipped in runs]


def markdown(rows: Sequence[tuple[Shipped, dict[str, Any]]]) -> str:
    """Returns a Markdown table of shipped runs.

    Args:
      rows: (shipped run, `summary.facts` of its plan).
    """
    lines = [
        "| run | machine | mesh (data x fsdp x tensor), micro-batches, remat | memory of a device, "
        "GiB | of which state | read and written, GB | sent, GB | products, memory, links (not "
        "hidden), s | step, s | tokens/s | MFU (overlapped) | days |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(_cells(shipped, plan["given"])) + " |" for shipped, plan in rows]
    return "\n".join(lines) + "\n"


def _cells(shipped: Shipped, facts: Mapping[str, Any]) -> list[str]:
    """Returns the cells of a run in the table of `markdown`; those of memory alone without times.

    Args:
      shipped: the run.
      facts: "given" of `summary.facts` of its plan.
    """
    memory = facts["memory_bytes"]
    cells = [
        shipped.run,
        f"{shipped.topology} ({facts['devices']} devices)",
        f"{' x '.join(map(str, shipped.mesh))}, {shipped.micro_batches}, {shipped.remat}",
        f"{memory['total'] / GIB:.1f} of {memory['available'] / GIB:.1f}"
        + ("" if facts["fits"] else " **does not fit**"),
        f"{(memory['params'] + memory['optimizer']) / GIB:.1f}",
    ]
    if "seconds" not in facts:
        return cells
    seconds = facts["seconds"]
    parts = (seconds[part] for part in ("compute", "memory", "collectives", "exposed"))
    overlapped = facts["mfu"] * seconds["step"] / seconds["best"]
    return [
        *cells,
        f"{facts['hbm_bytes'] / 1e9:.0f}",
        f"{sum(facts['sent_bytes'].values()) / 1e9:.1f}",
        "{:.3f}, {:.3f}, {:.3f} ({:.3f})".format(*parts),
        f"{seconds['step']:.3f}",
        f"{facts['tokens_per_second'] / 1e6:.2f} M",
        f"{facts['mfu']:.0%} ({overlapped:.0%})",
        f"{facts['days']:.1f}",
    ]
