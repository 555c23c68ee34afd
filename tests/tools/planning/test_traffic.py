"""Programs whose traffic is known."""

import jax
import jax.numpy as jnp
import pytest

from xlme_jax.tools.planning.hlo import Program, split_tuple
from xlme_jax.tools.planning.traffic import find_transfers, hbm_size

ROW = 8 * 128 * 4
STACK = 12 * ROW
TILED = "{2,1,0:T(8,128)}"


def moved(body, *computations):
    """Returns the bytes that a program moves: lines of the entry, and other computations."""
    entry = "ENTRY %main (a: f32[12,8,128]) -> f32[12,8,128] {\n" + body + "}\n"
    return sum(found.total for found in find_transfers(Program("\n".join((*computations, entry)))))


def compiled(function, *arguments, **options):
    """Returns the bytes that a compiled function moves on CPUs."""
    text = jax.jit(function, **options).lower(*arguments).compile().as_text()
    return sum(found.total for found in find_transfers(Program(text)))


ARGUMENTS = """\
  %a = f32[12,8,128]{2,1,0} parameter(0)
  %b = f32[1,8,128]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
"""
SLICED = """\
%sliced (p0: f32[12,8,128], p1: s32[]) -> bf16[1,8,128] {
  %p0 = f32[12,8,128]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %rows = f32[12,1024]{1,0} bitcast(%p0)
  %s = f32[1,1024]{1,0} dynamic-slice(%rows, %p1), dynamic_slice_sizes={1,1024}
  ROOT %n = bf16[1,1024]{1,0} convert(%s)
}
"""
NESTED = """\
%nested (r0: f32[12,8,128], r1: s32[]) -> bf16[1,1024] {
  %r0 = f32[12,8,128]{2,1,0} parameter(0)
  %r1 = s32[] parameter(1)
  ROOT %inner = bf16[1,1024]{1,0} fusion(%r0, %r1), kind=kLoop, calls=%sliced
}
"""
UPDATED = """\
%updated (q0: f32[12,8,128], q1: f32[1,8,128], q2: s32[]) -> f32[12,8,128] {
  %q0 = f32[12,8,128]{2,1,0} parameter(0)
  %q1 = f32[1,8,128]{2,1,0} parameter(1)
  %q2 = s32[] parameter(2)
  %old = f32[1,8,128]{2,1,0} dynamic-slice(%q0, %q2), dynamic_slice_sizes={1,8,128}
  %new = f32[1,8,128]{2,1,0} add(%old, %q1)
  %u = f32[12,8,128]{2,1,0} dynamic-update-slice(%q0, %new, %q2)
  ROOT %t = f32[12,8,128]{2,1,0} bitcast(%u)
}
"""
# The start of a fused collective, and a fusion that carries it on.
BEGUN = """\
%begun (g0: f32[12,8,128]) -> (f32[12,8,128], f32[24,8,128]) {
  %g0 = f32[12,8,128]{2,1,0} parameter(0)
  %g1 = f32[24,8,128]{2,1,0} all-gather(%g0), backend_config=\
{"async_collective_fusion_config":{"flag_start":"-1"}}
  ROOT %g2 = (f32[12,8,128]{2,1,0}, f32[24,8,128]{2,1,0}) tuple(%g0, %g1)
}
"""
CARRIED = BEGUN.replace("-1", "2").replace("%begun", "%carried")
GATHERED = "(f32[12,8,128]{2,1,0}, f32[24,8,128]{2,1,0})"
WHOLE = UPDATED.replace("bitcast(%u)", "negate(%u)").replace("%updated", "%whole")


@pytest.mark.parametrize(
    ("line", "computations", "expected"),
    [
        # A slice of a stack, read as float32 and written as bfloat16, and the index.
        ("bf16[1,1024]{1,0} fusion(%a, %i), calls=%sliced", [SLICED], ROW + ROW // 2 + 4),
        ("bf16[1,1024]{1,0} fusion(%a, %i), calls=%nested", [SLICED, NESTED], ROW + ROW // 2 + 4),
        # A slice is read, another added, and the sum written in place.
        ("f32[12,8,128]{2,1,0} fusion(%a, %b, %i), calls=%updated", [UPDATED], 3 * ROW + 4),
        # Not in place, because all of it changes: everything is read and written.
        ("f32[12,8,128]{2,1,0} fusion(%a, %b, %i), calls=%whole", [WHOLE], 2 * STACK + ROW + 4),
        (f"{GATHERED} fusion(%a), calls=%begun", [BEGUN], 3 * STACK),
        (f"{GATHERED} fusion(%a), calls=%carried", [CARRIED], 0),
        ("f32[1,8,128]{2,1,0} dynamic-slice(%a, %i)", [], 2 * ROW + 4),
        ("f32[12,8,128]{2,1,0} dynamic-update-slice(%a, %b, %i)", [], 2 * ROW),
        ("f32[12,8,128]{2,1,0} scatter(%a, %i, %b), to_apply=%add", [], 4 + 3 * ROW),
        ("f32[12,8,128]{2,1,0} copy(%a)", [], 2 * STACK),
        ("f32[12,8,128]{2,1,0} all-reduce(%a), to_apply=%add", [], 2 * STACK),
        ("f32[96,128]{1,0} bitcast(%a)", [], 0),
        ("(f32[12,8,128]{2,1,0}, s32[]) tuple(%a, %i)", [], 0),
        # Prefetching reads HBM once; on-chip results and operands are free.
        (
            "(f32[12,8,128]{2,1,0:S(1)}, f32[12,8,128]{2,1,0}, u32[]{:S(2)}) copy-start(%a)",
            [],
            STACK,
        ),
        (
            "((f32[12,8,128]{2,1,0}), f32[1,8,128]{2,1,0:S(1)}, s32[]) slice-start(%a)",
            [],
            ROW,
        ),
        ("f32[12,8,128]{2,1,0:S(1)} negate(%a)", [], STACK),
        # The workspace of a library is not traffic.
        (
            "(f32[1,8,128]{2,1,0}, s8[4194304]{0}) custom-call(%b, %b), "
            'custom_call_target="__cublas$gemm"',
            [],
            3 * ROW,
        ),
    ],
)
def test_bytes_of_an_instruction(line, computations, expected):
    assert moved(f"{ARGUMENTS}  ROOT %r = {line}\n", *computations) == expected


def test_an_asynchronous_computation_counts_once():
    wrapped = """\
%wrapped (w: f32[12,8,128]) -> f32[12,8,128] {
  %w = f32[12,8,128]{2,1,0} parameter(0)
  ROOT %c = f32[12,8,128]{2,1,0} copy(%w)
}
"""
    body = """\
  %a = f32[12,8,128]{2,1,0} parameter(0)
  %s = ((f32[12,8,128]{2,1,0}), f32[12,8,128]{2,1,0}, s32[]) async-start(%a), calls=%wrapped
  ROOT %d = f32[12,8,128]{2,1,0} async-done(%s), calls=%wrapped
"""
    assert moved(body, wrapped) == 2 * STACK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[12,100]{1,0:T(8,128)}", 16 * 128 * 4),
        ("f32[100,12]{0,1:T(8,128)}", 16 * 128 * 4),
        ("bf16[3,9,100]{2,1,0:T(8,128)(2,1)}", 3 * 16 * 128 * 2),
        ("f32[100]{0:T(128)}", 128 * 4),
        ("(f32[100]{0:T(128)S(1)}, s32[]{:T(128)})", 4),
        ("f32[12,100]{1,0}", 12 * 100 * 4),
    ],
)
def test_tiles_are_padded(text, expected):
    assert hbm_size(text) == expected


def test_elements_of_a_tuple_type():
    text = "((f32[8,128]{1,0:T(8,128)}, s32[]), /*index=1*/f32[2]{0})"
    assert split_tuple(text) == ["(f32[8,128]{1,0:T(8,128)}, s32[])", "f32[2]{0}"]
    assert split_tuple("f32[8,128]{1,0}") == ["f32[8,128]{1,0}"]


def test_a_scan_over_a_table_reads_it_once():
    """Each iteration reads its slice, and reads and writes the carried sum."""
    table = jax.ShapeDtypeStruct((64, 32, 128), jnp.float32)

    def total(table):
        return jax.lax.scan(lambda carry, rows: (carry + rows, None), table[0] * 0, table)[0]

    once, part = 64 * 32 * 128 * 4, 32 * 128 * 4
    assert 3 * once <= compiled(total, table) <= 3 * once + 4 * part + 64 * 64


def test_an_update_in_a_loop_writes_its_slices():
    table = jax.ShapeDtypeStruct((64, 4096), jnp.float32)

    def fill(table):
        def body(index, table):
            return jax.lax.dynamic_update_index_in_dim(table, jnp.sin(table[index]), index, 0)

        return jax.lax.fori_loop(0, 64, body, table)

    once = 64 * 4096 * 4
    assert 2 * once <= compiled(fill, table, donate_argnums=0) <= 2 * once + 64 * 64
    # Without the donated buffer, the table is copied first.
    assert 4 * once <= compiled(fill, table) <= 4 * once + 64 * 64


def test_a_gather_reads_its_rows():
    table = jax.ShapeDtypeStruct((10_000, 128), jnp.float32)
    ids = jax.ShapeDtypeStruct((256,), jnp.int32)
    rows = 256 * 128 * 4
    gathered = compiled(lambda table, ids: table.at[ids].get(mode="clip") * 2, table, ids)
    assert 2 * rows <= gathered <= 4 * rows + 16 * 256
