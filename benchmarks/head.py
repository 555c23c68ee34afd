"""Compares streamed and dense vocabulary heads: time here, memory on other devices.

    python benchmarks/head.py                                # Loss, gradient, sample; alternating.
    python benchmarks/head.py --compile_for=v5e:1x1,h100:1   # Temporaries; needs [tpu], [cuda13].

The dense head computes all logits: log-softmax for the loss, argmax, and a sample with Gumbel noise
on every logit (`jax.random.categorical`). "kept" is the streamed head that keeps the exponentials
of its logits for the backward pass; logits as few as those of the default shapes always are.
"""

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if any("--compile_for" in argument for argument in sys.argv):
    os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")

import jax
import jax.numpy as jnp
import machine
import numpy as np

from xlme_jax.ops.vocabulary_head import num_chunks, padded_size, vocabulary_head
from xlme_jax.tools.planning.compiling import devices_of
from xlme_jax.tools.planning.machines import parse_topology


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", default="304x256x32768,304x512x65536", help="Comma-separated MxDxV."
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--compile_for", default="", help="Topologies, as in xlme_jax.plan.")
    parser.add_argument("--compile_shape", default="2464x768x500000", help="MxDxV, in bfloat16.")
    parser.add_argument("--output", default="benchmarks/results/head.json")
    options = parser.parse_args()
    results = machine.describe("jax", "jaxlib")
    if options.compile_for:
        shape = _shape(options.compile_shape)
        memory = {name: temporaries(name, shape) for name in options.compile_for.split(",")}
        results |= {"shape": shape, "temporary_bytes": memory}
    else:
        shapes = options.shapes.split(",")
        results["seconds"] = {text: seconds(_shape(text), options.rounds) for text in shapes}
    machine.write(options.output, results)


def _shape(text: str) -> tuple[int, int, int]:
    rows, width, vocabulary = (int(size) for size in text.split("x"))
    return rows, width, vocabulary


def streamed(hidden, table, bias, targets, key, vocabulary, keep=False):
    """Returns loss, argmax and samples of `ops.vocabulary_head`."""
    uniforms = jax.random.uniform(key, (hidden.shape[0], num_chunks(vocabulary), 2))
    prediction = vocabulary_head(
        hidden, table, bias, targets, uniforms, vocab_size=vocabulary, keep=keep
    )
    return prediction.loss.mean(), (prediction.argmax, prediction.sample)


def dense(hidden, table, bias, targets, key, vocabulary):
    """Returns the same as `streamed`, computed from all logits."""
    logits = jnp.einsum(
        "md,vd->mv", hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32
    )
    logits = logits + jnp.where(jnp.arange(bias.shape[0]) < vocabulary, bias, -jnp.inf)
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1).mean()
    return loss, (logits.argmax(axis=1), jax.random.categorical(key, logits))


HEADS = {"streamed": streamed, "kept": functools.partial(streamed, keep=True), "dense": dense}


def compiled(head: Callable[..., Any], shape: tuple[int, int, int], dtype: Any, **options: Any):
    """Returns the compiled forward and backward pass of a head for a shape (M, D, V)."""
    rows, width, vocabulary = shape
    size = padded_size(vocabulary)

    def array(shape: tuple[int, ...], dtype: Any = jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, **options)

    key = jax.eval_shape(lambda: jax.random.key(0))
    arguments = (
        array((rows, width), dtype),
        array((size, width)),
        array((size,)),
        array((rows,), jnp.int32),
        jax.ShapeDtypeStruct(key.shape, key.dtype, **options),
    )
    head = functools.partial(head, vocabulary=vocabulary)
    function = jax.value_and_grad(head, argnums=(0, 1, 2), has_aux=True)
    return jax.jit(function).lower(*arguments).compile()


def temporaries(name: str, shape: tuple[int, int, int]) -> dict[str, int]:
    """Returns bytes of temporaries of each head, compiled for one device of a topology."""
    device = devices_of(parse_topology(name))[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    found = {}
    for kind, head in HEADS.items():
        try:
            program = compiled(head, shape, jnp.bfloat16, sharding=sharding)
            found[kind] = program.memory_analysis().temp_size_in_bytes
            text = f"{found[kind] / 1e9:.3f} GB"
        except jax.errors.JaxRuntimeError as error:
            text = f"does not compile: {str(error).splitlines()[0][:200]}"
        print(f"{name:10} {kind:9} {text}", flush=True)
    return found


def seconds(shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """Returns seconds of forward and backward pass of each head, measured alternately."""
    rows, width, vocabulary = shape
    rng = np.random.default_rng(0)
    size = padded_size(vocabulary)
    arguments = (
        jnp.asarray(rng.normal(size=(rows, width)), jnp.float32),
        jnp.asarray(rng.normal(size=(size, width), scale=width**-0.5), jnp.float32),
        jnp.zeros(size),
        jnp.asarray(rng.integers(0, vocabulary, rows), jnp.int32),
        jax.random.key(0),
    )
    heads = {kind: HEADS[kind] for kind in ("streamed", "dense")}
    programs = {kind: compiled(head, shape, jnp.float32) for kind, head in heads.items()}
    times: dict[str, list[float]] = {kind: [] for kind in heads}
    for turn in range(rounds + 1):
        for kind, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            if turn:
                times[kind].append(time.perf_counter() - start)
    ratio = statistics.median(a / b for a, b in zip(times["streamed"], times["dense"]))
    middle = {kind: statistics.median(values) for kind, values in times.items()}
    print(
        f"{rows} x {width} x {vocabulary:,}: streamed {middle['streamed']:.3f} s, "
        f"dense {middle['dense']:.3f} s, ratio {ratio:.2f}"
    )
    return {"seconds": times, "streamed_over_dense": ratio}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
