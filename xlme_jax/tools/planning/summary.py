"""Formats plans as text and as JSON."""

import dataclasses
from typing import Any

from xlme_jax.tools.planning.collectives import by_kind
from xlme_jax.tools.planning.compiling import Compiled
from xlme_jax.tools.planning.estimate import HEADROOM, estimate, fits
from xlme_jax.tools.planning.machines import EFFICIENCY, GIB, STREAMING
from xlme_jax.tools.planning.search import MeshCandidate, Plan

_GPU_SHARE = 0.75  # Fraction of a GPU's memory that JAX preallocates by default.


def describe(plan: Plan) -> str:
    """Returns the plan as human-readable text."""
    lines = _compiled(plan.given)
    for candidate, compiled in plan.tried:
        need = f"{compiled.memory.total / GIB:.2f} GiB"
        if fits(compiled):
            need += f", fits, {estimate(compiled).step:.2f} s/step"
        lines.append(f"  tried {candidate.flags()}: {need}")
    if plan.best is None:
        lines.append("No configuration fits; use more or larger accelerators.")
    elif plan.best[0] is not None:
        lines += [f"Suggested: {plan.best[0].flags()}", *_compiled(plan.best[1])]
    elif plan.tried:
        lines.append("No candidate is faster than the given configuration.")
    return "\n".join(lines) + "\n"


def _compiled(compiled: Compiled) -> list[str]:
    """Returns the lines of a compiled configuration: memory, FLOPs, communication and times."""
    topology = compiled.topology
    memory = compiled.memory
    machine = compiled.topology.machine
    mesh = " x ".join(f"{axis} {size}" for axis, size in compiled.mesh.items())
    micro = compiled.config.loop.micro_batches
    temporary = "?" if memory.temporary is None else f"{memory.temporary / GIB:.2f}"
    verdict = "fits" if fits(compiled) else "DOES NOT FIT"
    lines = [
        f"{topology.name}: {topology.size} devices, mesh {mesh}, Loop.micro_batches = {micro}",
        f"  memory per device, GiB: {memory.total / GIB:.2f} of {machine.hbm / GIB:.2f} "
        f"({HEADROOM:.0%} must stay free): {verdict}",
        f"    weights {memory.params / GIB:.2f}, optimizer {memory.optimizer / GIB:.2f}, "
        f"gradients, activations and temporaries {temporary}, batch {memory.batch / GIB:.3f}, "
        f"program {memory.code / GIB:.2f}",
    ]
    if machine.platform == "cuda" and fits(compiled) and memory.total > _GPU_SHARE * machine.hbm:
        lines.append(
            f"    set XLA_PYTHON_CLIENT_MEM_FRACTION={1 - HEADROOM:.2f}: by default, JAX uses only "
            f"{_GPU_SHARE:.0%} of a GPU's memory"
        )
    lines.append(
        f"  FLOPs per step: {compiled.model_flops:.4g} by formula, {compiled.executed_flops:.4g} "
        "executed (with recomputation)"
        + (
            f"; XLA's count per device, loop bodies once: {compiled.compiler_flops:.4g}"
            if compiled.compiler_flops
            else ""
        )
    )
    if memory.temporary is None:
        return lines
    return lines + _communication(compiled) + _times(compiled)


def _communication(compiled: Compiled) -> list[str]:
    """Returns the lines of what devices send, with the five largest collectives."""
    sent = ", ".join(
        f"{kind} {total / 1e9:.3f}" for kind, total in by_kind(list(compiled.collectives)).items()
    )
    lines = [f"  GB sent per device and step: {sent or 'none'}"]
    for collective in sorted(compiled.collectives, key=lambda c: -c.total)[:5]:
        lines.append(
            f"    {collective.total / 1e9:8.3f}  {collective.kind} among {len(collective.group)}, "
            f"{collective.times}x {_short(collective.types)}  {collective.what[-90:]}"
        )
    if compiled.unknown_loops:
        lines.append(f"    ({compiled.unknown_loops} loops with unknown trip count, counted once)")
    return lines


def _short(types: str) -> str:
    return types if len(types) < 60 else types[:57] + "..."


def _times(compiled: Compiled) -> list[str]:
    """Returns the lines of HBM traffic and of the estimated times."""
    times = estimate(compiled)
    traffic = compiled.hbm_bytes
    intensity = compiled.executed_flops / compiled.topology.size / max(traffic, 1)
    lines = [
        f"  GB read from and written to HBM per device and step: {traffic / 1e9:.1f}; "
        f"{intensity:.0f} FLOPs per byte",
    ]
    for transfer in compiled.transfers[:5]:
        lines.append(
            f"    {transfer.total / 1e9:8.3f}  {transfer.instruction.opcode}, {transfer.times}x "
            f"{_short(transfer.instruction.type)}  {transfer.instruction.what[-90:]}"
        )
    return [
        *lines,
        f"  estimate: compute {times.compute:.3f} s (at {EFFICIENCY:.0%} of peak), memory "
        f"{times.memory:.3f} s (at {STREAMING:.0%}), collectives {times.collectives:.3f} s, of "
        f"which {times.exposed:.3f} s are not hidden by the compiler's schedule",
        f"    step = max(compute, memory) + not hidden = {times.step:.3f} s ({times.best:.3f} s "
        f"with full overlap): {times.tokens_per_second:,.0f} tokens/s, MFU {times.mfu:.0%}, "
        f"{times.days:.1f} days for {times.train_steps:,} steps",
    ]


def facts(plan: Plan) -> dict[str, Any]:
    """Returns the plan as a JSON object."""
    return {
        "given": _facts(None, plan.given),
        "tried": [_facts(candidate, compiled) for candidate, compiled in plan.tried],
        "best": None if plan.best is None else _facts(*plan.best),
    }


def _facts(candidate: MeshCandidate | None, compiled: Compiled) -> dict[str, Any]:
    """Returns a compiled configuration as JSON; without times if the compiler ran out of memory."""
    memory = compiled.memory
    entries: dict[str, Any] = {
        "topology": compiled.topology.name,
        "devices": compiled.topology.size,
        "mesh": compiled.mesh,
        "micro_batches": compiled.config.loop.micro_batches,
        "overrides": [] if candidate is None else candidate.bindings(),
        "memory_bytes": {
            **dataclasses.asdict(memory),
            "available": compiled.topology.machine.hbm,
        },
        "fits": fits(compiled),
        "model_flops": compiled.model_flops,
        "executed_flops": compiled.executed_flops,
    }
    if memory.temporary is not None:
        times = estimate(compiled)
        entries |= {
            "sent_bytes": by_kind(list(compiled.collectives)),
            "hbm_bytes": compiled.hbm_bytes,
            "seconds": {
                "compute": times.compute,
                "memory": times.memory,
                "collectives": times.collectives,
                "exposed": times.exposed,
                "step": times.step,
                "best": times.best,
            },
            "tokens_per_second": times.tokens_per_second,
            "days": times.days,
            "mfu": times.mfu,
        }
    return entries
