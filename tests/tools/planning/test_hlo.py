"""Shortened programs in the text format of the TPU and GPU compilers."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

from xlme_jax.ops.attention_kernel import flash_attention
from xlme_jax.tools.planning.collectives import by_kind, find_collectives
from xlme_jax.tools.planning.counting import matmul_flops
from xlme_jax.tools.planning.hlo import Program, type_bytes

LOOP = """\
HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%inner_body (p.1: (s32[], bf16[4,128])) -> (s32[], bf16[4,128]) {
  %p.1 = (s32[]{:T(128)}, bf16[4,128]{1,0:T(4,128)(2,1)S(1)}) parameter(0)
  %g.1 = bf16[4,128]{1,0:T(4,128)(2,1)S(1)} get-tuple-element(%p.1), index=1
  %permuted = (bf16[4,128]{1,0}, bf16[4,128]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) \
collective-permute-start(%g.1), channel_id=1, source_target_pairs={{0,1},{1,2}}
  ROOT %out.1 = (s32[], bf16[4,128]) tuple(%p.1, %permuted)
}

%inner_condition (p.2: (s32[], bf16[4,128])) -> pred[] {
  %p.2 = (s32[], bf16[4,128]) parameter(0)
  %n.2 = s32[]{:T(128)} constant(5)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  ROOT %less = pred[] compare(%i.2, %n.2), direction=LT
}

%body (p.3: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p.3 = (s32[], f32[8,128]{1,0:T(8,128)}) parameter(0)
  %g.3 = f32[8,128]{1,0:T(8,128)} get-tuple-element(%p.3), index=1
  %gathered = f32[32,128]{1,0:T(8,128)} all-gather(%g.3), replica_groups=[2,4]<=[4,2]T(1,0), \
dimensions={0}, metadata={op_name="jit(step)/layers/ffn" stack_frame_id=3}
  %while.1 = (s32[], bf16[4,128]) while(%p.3), condition=%inner_condition, body=%inner_body
  ROOT %out.3 = (s32[], f32[8,128]) tuple(%p.3, %g.3)
}

%condition (p.4: (s32[], f32[8,128])) -> pred[] {
  %p.4 = (s32[], f32[8,128]) parameter(0)
  ROOT %less.4 = pred[] custom-call(%p.4)
}

ENTRY %main (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  %reduced = (f32[8,128]{1,0}, /*index=1*/f32[8,128]{1,0}) all-reduce(%a, %a), \
replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %while.2 = (s32[], f32[8,128]) while(%reduced), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"12"},"other":{}}
  ROOT %r = f32[8,128]{1,0:T(8,128)} get-tuple-element(%while.2), index=1
}
"""
ARRAY = 8 * 128 * 4


def one(line, kind_of_group=""):
    """Returns a program of one collective on 8 devices."""
    text = (
        "ENTRY %main (a: f32[8,128]) -> f32[8,128] {\n"
        f"  %a = f32[8,128]{{1,0}} parameter(0)\n  ROOT %c = {line}{kind_of_group}\n}}\n"
    )
    (found,) = find_collectives(Program(text), 8)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[8,128]{1,0:T(8,128)}", 4096),
        ("bf16[]", 2),
        ("pred[16]", 16),
        ("s4[16]", 8),
        ("f8e4m3fn[4,2]", 8),
        ("(f32[2]{0}, /*index=1*/(s32[3]{0}, token[]))", 20),
        ("f32[0,5]", 0),
    ],
)
def test_bytes_of_a_type(text, expected):
    assert type_bytes(text) == expected


def test_collectives_in_loops_count_as_often_as_these_turn():
    program = Program(LOOP)
    found = {c.kind: c for c in find_collectives(program, 8)}
    assert {kind: c.times for kind, c in found.items()} == {
        "all-reduce": 1,
        "all-gather": 12,
        "collective-permute": 12 * 5,  # the bound in the condition
    }
    assert found["all-gather"].what == "jit(step)/layers/ffn"
    assert by_kind(list(found.values())) == {
        "all-gather": 12 * 3 * ARRAY,
        "all-reduce": 2 * (2 * ARRAY) * 3 / 4,
        "collective-permute": 60 * 4 * 128 * 2,
    }
    assert program.unknown_loops == 0


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
    program = Program(LOOP.replace('"known_trip_count"', '"no"'))
    assert program.unknown_loops == 1
    assert {c.kind: c.times for c in find_collectives(program, 8)}["all-gather"] == 1


@pytest.mark.parametrize(("step", "turns"), [(1, 5), (2, 3), (4, 2)])
def test_a_loop_may_count_in_larger_steps(step, turns):
    """The TPU compiler creates such loops to overlap gathering with a matrix product."""
    text = LOOP.replace(
        "  ROOT %out.1 = (s32[], bf16[4,128]) tuple(%p.1, %permuted)",
        f"  %step.1 = u32[]{{:T(128)}} constant({step})\n"
        "  %i.1 = s32[] get-tuple-element(%p.1), index=0\n"
        "  %next.1 = s32[] add(%i.1, %step.1)\n"
        "  ROOT %out.1 = (s32[], bf16[4,128]) tuple(%next.1, %permuted)",
    )
    found = {c.kind: c.times for c in find_collectives(Program(text), 8)}
    assert found["collective-permute"] == 12 * turns


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", (0, 1, 2, 3)),
        ("[2,4]<=[8]", (0, 1, 2, 3)),
        ("[2,4]<=[4,2]T(1,0)", (0, 2, 4, 6)),
        ("{}", tuple(range(8))),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_0','axis_1'}", tuple(range(8))),
        ("mesh['a'=2,'b'=4] {'a'}", (0, 4)),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", (0, 1)),
        ("mesh['a'=2,'b'=4] {'b':(1)2,'a'}", (0, 2, 4, 6)),
    ],
)
def test_groups_of_devices(groups, expected):
    found = one(f"f32[8,128]{{1,0}} all-reduce(%a), replica_groups={groups}, to_apply=%add")
    assert found.group == expected
    assert found.sent == 2 * ARRAY * (len(expected) - 1) / len(expected)


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("f32[64,128]{1,0} all-gather(%a), replica_groups={}, dimensions={0}", 7 * ARRAY),
        (
            "(f32[8,128]{1,0}, f32[64,128]{1,0}) all-gather-start(%a), replica_groups={}",
            7 * ARRAY,
        ),
        ("f32[1,128]{1,0} reduce-scatter(%a), replica_groups={}", 7 / 8 * ARRAY),
        ("f32[8,128]{1,0} all-to-all(%a), replica_groups={}", 7 / 8 * ARRAY),
        ("f32[8,128]{1,0} collective-permute(%a), source_target_pairs={{0,4}}", ARRAY),
    ],
)
def test_bytes_that_a_device_sends(line, sent):
    assert one(line).sent == sent


def test_an_asynchronous_collective_counts_once():
    text = """\
%wrapped (p: f32[8,128]) -> f32[64,128] {
  %p = f32[8,128]{1,0} parameter(0)
  ROOT %g = f32[64,128]{1,0} all-gather(%p), replica_groups={}
}

ENTRY %main (a: f32[8,128]) -> f32[64,128] {
  %a = f32[8,128]{1,0} parameter(0)
  %s = ((f32[8,128]{1,0}), f32[64,128]{1,0}) async-start(%a), calls=%wrapped
  ROOT %d = f32[64,128]{1,0} async-done(%s), calls=%wrapped
}
"""
    (found,) = find_collectives(Program(text), 8)
    assert found.total == 7 * ARRAY


@pytest.mark.parametrize(("kept", "factor"), [("%sum", 1), ("%doubled", 2)])
def test_a_sum_of_which_a_fusion_keeps_a_slice_is_scattered(kept, factor):
    text = f"""\
%all-reduce-scatter (p: f32[8,128], i: s32[]) -> f32[1,128] {{
  %p = f32[8,128]{{1,0}} parameter(0)
  %i = s32[] parameter(1)
  %sum = f32[8,128]{{1,0}} all-reduce(%p), replica_groups={{}}, to_apply=%add
  %doubled = f32[8,128]{{1,0}} add(%sum, %sum)
  ROOT %own = f32[1,128]{{1,0}} dynamic-slice({kept}, %i, %i), dynamic_slice_sizes={{1,128}}
}}

ENTRY %main (a: f32[8,128], i: s32[]) -> f32[1,128] {{
  %a = f32[8,128]{{1,0}} parameter(0)
  %i = s32[] parameter(1)
  ROOT %f = f32[1,128]{{1,0}} fusion(%a, %i), kind=kCustom, calls=%all-reduce-scatter
}}
"""
    (found,) = find_collectives(Program(text), 8)
    assert found.kind == ("reduce-scatter" if factor == 1 else "all-reduce")
    assert found.total == factor * 7 / 8 * ARRAY


def test_the_compilers_own_text_is_understood():
    """Compiles an all-reduce in a loop here; one device sends nothing, but the loop is counted."""

    def step(x, w):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    arguments = jnp.ones((16, 32)), jnp.ones((7, 32, 32))
    program = Program(jax.jit(step).lower(*arguments).compile().as_text())
    assert program.unknown_loops == 0
    dots = [times for instruction, _, times in program.instructions() if "dot" in instruction.text]
    assert max(dots) == 7


def test_matrix_products_are_counted_in_loops_and_when_recomputed():
    def layer(x, w):
        return jnp.tanh(x @ w), None

    def loss(x, w, recompute):
        return jax.lax.scan(jax.checkpoint(layer) if recompute else layer, x, w)[0].sum()

    x, w = jnp.ones((16, 32)), jnp.ones((7, 32, 32))
    forward = 2 * 16 * 32 * 32 * 7

    def count(recompute):
        gradient = jax.value_and_grad(loss, argnums=(0, 1))
        return matmul_flops(jax.make_jaxpr(lambda x, w: gradient(x, w, recompute))(x, w))

    assert count(False) == 3 * forward
    assert count(True) == 4 * forward
    batched = jax.make_jaxpr(lambda a, b: jnp.einsum("bij,bjk->bik", a, b))
    assert matmul_flops(batched(jnp.ones((3, 4, 5)), jnp.ones((3, 5, 6)))) == 2 * 3 * 4 * 5 * 6


def test_what_is_split_by_hand_counts_on_all_devices():
    automatic = (jax.sharding.AxisType.Auto,) * 2  # Not by default from JAX 0.11 on.
    mesh = jax.sharding.AbstractMesh((4, 2), ("a", "b"), axis_types=automatic)
    split = jax.shard_map(
        lambda x, w: x @ w,
        mesh=mesh,
        in_specs=(PartitionSpec("a"), PartitionSpec(None, "b")),
        out_specs=PartitionSpec("a", "b"),
    )
    whole = 2 * 8 * 16 * 6
    assert matmul_flops(jax.make_jaxpr(split)(jnp.ones((8, 16)), jnp.ones((16, 6)))) == whole


def test_kernels_count_on_their_whole_grid():
    def kernel(x, w, out):
        out[...] = jnp.dot(x[...], w[...])

    product = pl.pallas_call(
        kernel,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 16), lambda i: (i, 0)), pl.BlockSpec((16, 6), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((8, 6), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((32, 6), jnp.float32),
    )
    jaxpr = jax.make_jaxpr(product)(jnp.ones((32, 16)), jnp.ones((16, 6)))
    assert matmul_flops(jaxpr) == 2 * 32 * 16 * 6


@pytest.mark.parametrize(("platform", "products"), [("tpu", 2 + 5), ("gpu", 2 + 3 + 4)])
def test_attention_kernels_count_all_blocks(platform, products):
    """The loop over blocks of keys has bounds that only the data tell."""
    rows, length, heads, width = 2, 512, 3, 64

    def total(q, k, v, segments):
        return flash_attention(q, k, v, segments, platform=platform).sum()

    sides = [jnp.ones((rows, length, heads, width))] * 3
    jaxpr = jax.make_jaxpr(jax.grad(total, range(3)))(*sides, jnp.ones((rows, length), jnp.int32))
    assert matmul_flops(jaxpr) == products * 2 * rows * heads * length**2 * width


def test_the_most_expensive_branch_counts():
    def step(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert matmul_flops(jax.make_jaxpr(step)(jnp.ones((4, 4)))) == 2 * 2 * 4**3
