"""Schedules of which the time that a device waits for links is known."""

import pytest

from xlme_jax.tools.planning.collectives import find_collectives
from xlme_jax.tools.planning.exposed_communication import exposed_seconds
from xlme_jax.tools.planning.hlo import Program
from xlme_jax.tools.planning.machines import parse_topology
from xlme_jax.tools.planning.product_flops import instruction_flops
from xlme_jax.tools.planning.traffic import find_transfers

V5E = parse_topology("v5e:16x16")
SENT = 1024**2 / 50e9  # Half of a matrix, to the next in one direction of one dimension.
PRODUCT = 2 * 1024**3 / (197e12 * 0.6)
ARRAY = "bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}"  # In on-chip memory: no traffic.
DOT = f"{ARRAY} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
HALF = "bf16[512,1024]{1,0:T(8,128)(2,1)S(1)}"
PAIRS = "source_target_pairs={{0,1},{1,0}}"
WAIT = f"%s = {HALF} collective-permute(%h), {PAIRS}"
START, START_2 = (
    f"%s{n} = ({HALF}, {HALF}, u32[]{{:S(2)}}) collective-permute-start(%h), {PAIRS}"
    for n in (1, 2)
)
DONE, DONE_2 = (f"%d{n} = {HALF} collective-permute-done(%s{n})" for n in (1, 2))
DOT_1, DOT_2 = (f"%p{n} = {DOT}" for n in (1, 2))
LOOP = "%w = () while(%a), condition=%c, body=%body, backend_config={known_trip_count:{n:5}}"
# A collective that TPUs fuse with products is listed in each fusion.
BEGIN = f"%async-collective-start = {ARRAY} fusion(%a), kind=kCustom, calls=%begin"
CARRY = f"%f = {ARRAY} fusion(%a, %b), kind=kOutput, calls=%carry"
END = f"%async-collective-done = {ARRAY} fusion(%a), kind=kCustom, calls=%end"
BRANCHES = f"%w = {ARRAY} conditional(%a), branch_computations={{%body, %other}}"


def computation(name, *lines):
    """Returns the text of a computation with three parameters."""
    head = [f"%{n} = {kind} parameter(0)" for n, kind in zip("abh", (ARRAY, ARRAY, HALF))]
    return "\n".join((f"{name} () -> () {{", *(f"  {line}" for line in (*head, *lines)), "}", ""))


def gather(flag):
    """Returns a collective inside a fusion."""
    return (
        f"%x{flag} = {ARRAY} all-gather(%a), replica_groups=[128,2]<=[256], "
        'frontend_attributes={chain_id="7"}, backend_config='
        f'{{"async_collective_fusion_config":{{"flag_start":"{flag}","flag_end":"8"}}}}'
    )


def compiled(entry, body=()):
    fused = ("%begin", gather(-1)), ("%carry", gather(2), DOT_1), ("%end", gather(2))
    parts = [*fused, ("%body", *body), ("%other",), ("ENTRY %main", *entry)]
    return Program("".join(computation(*part) for part in parts))


def exposed(entry, body=(), busy=1.0):
    program = compiled(entry, body)
    found = find_collectives(program, V5E.size), find_transfers(program)
    return exposed_seconds(program, V5E, *found, busy)


@pytest.mark.parametrize(
    ("entry", "body", "expected"),
    [
        ([WAIT, DOT_1], (), SENT),
        ([START, DOT_1, DONE], (), SENT - PRODUCT),
        ([START, DOT_1, DOT_2, DONE], (), 0),
        ([START, DONE, DOT_1], (), SENT),
        ([START, DOT_1], (), SENT),  # Never awaited here.
        # Transfers share the links.
        ([START, START_2, DOT_1, DONE, DONE_2], (), 2 * SENT - PRODUCT),
        ([START, START_2, DOT_1, DONE, DOT_2, DONE_2], (), 2 * (SENT - PRODUCT)),
        ([START, WAIT, DONE], (), 2 * SENT),
        ([LOOP], [START, DOT_1, DONE], 5 * (SENT - PRODUCT)),
        # The links are busy with the body's transfers for as long as it waits.
        ([START, LOOP, DONE], [WAIT], 6 * SENT),
        ([START, LOOP, DONE], [DOT_1], 0),
        ([START, LOOP, DONE], [WAIT, DOT_1], 5 * SENT),
        ([BRANCHES], [WAIT], SENT),
        # A fused collective runs during the products that carry it on.
        ([BEGIN, CARRY, END], (), SENT - PRODUCT),
        ([BEGIN, DOT_1, END], (), SENT),
        ([BEGIN, LOOP, END], [CARRY], 0),
        ([BEGIN, LOOP, END], [WAIT, CARRY], 6 * SENT),
        ([BEGIN, START, CARRY, DONE, END], (), 2 * SENT - PRODUCT),
    ],
)
def test_what_a_schedule_hides(entry, body, expected):
    assert exposed(entry, body) == pytest.approx(expected, abs=1e-12)


def test_nothing_hides_behind_time_that_the_step_does_not_take():
    assert exposed([START, DOT_1, DONE], busy=PRODUCT / 2) == pytest.approx(SENT - PRODUCT / 2)


def test_a_fused_collective_is_sent_once():
    (found,) = find_collectives(compiled([BEGIN, LOOP, CARRY, END], [CARRY]), V5E.size)
    assert found.total == 2 * 1024**2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (DOT, 2 * 1024**3),
        # Of 32 rows with 8 channels each, by a kernel of 3 that reaches over both ends.
        (
            "f32[4,32,16] convolution(%l, %k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
            2 * 4 * 8 * 16 * (3 * 32 - 2),
        ),
    ],
)
def test_flops_of_an_instruction(line, expected):
    more = "%l = f32[4,32,8] parameter(2)", "%k = f32[3,8,16] parameter(3)"
    program = Program(computation("ENTRY %main", *more, f"ROOT %r = {line}"))
    inside = program.computations["main"]
    assert instruction_flops(program, inside["r"], inside) == expected
