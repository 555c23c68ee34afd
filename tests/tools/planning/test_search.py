"""The search, with a fake compiler."""

import dataclasses

import pytest
from helpers import tiny

from xlme_jax.configuration import loading
from xlme_jax.tools.planning import summary
from xlme_jax.tools.planning.collectives import Collective, bandwidth
from xlme_jax.tools.planning.compiling import Compiled, MemoryUse
from xlme_jax.tools.planning.estimate import HEADROOM, estimate, fits
from xlme_jax.tools.planning.machines import GIB, parse_topology
from xlme_jax.tools.planning.search import CostModel, MeshCandidate, search

RUN = "gin_configs/runs/xlme_large.gin"
GIVEN = MeshCandidate(data=1, fsdp=256, tensor=1, micro_batches=1, remat=True)


@pytest.fixture(scope="module")
def config():
    return loading.load([RUN], [], "Train")


@pytest.fixture
def costs(config):
    return CostModel(config, parse_topology("v5e:16x16"))


def compiler(config, need, seconds=lambda candidate: 1.0):
    """Returns a fake compiler: `need` bytes of temporaries and `seconds` of memory traffic."""

    def compile_candidate(candidate):
        topology = parse_topology("v5e:16x16")
        total = int(need(candidate))
        bandwidth = topology.machine.hbm_bandwidth
        return Compiled(
            config=dataclasses.replace(
                config,
                loop=dataclasses.replace(config.loop, micro_batches=candidate.micro_batches),
            ),
            topology=topology,
            mesh={"data": candidate.data, "fsdp": candidate.fsdp, "tensor": candidate.tensor},
            memory=MemoryUse(GIB, 2 * GIB, 0, max(total - 3 * GIB, 0), 0, total),
            model_flops=1e15,
            executed_flops=1e15,
            tokens=2**21,
            hbm_bytes=int(seconds(candidate) * bandwidth * 0.8),
        )

    calls = []

    def remembered(candidate):
        calls.append(candidate)
        return compile_candidate(candidate)

    return remembered, calls


def per_row(scale):
    """Returns memory that grows with rows per device and shrinks with sharded weights."""

    def need(candidate):
        rows = 4096 / candidate.data / candidate.fsdp / candidate.micro_batches
        kept = 1 if candidate.remat else 4
        return 10 * GIB / candidate.fsdp / candidate.tensor + scale * kept * rows * GIB

    return need


def test_candidates_deal_rows_and_heads_out_evenly(costs):
    base = loading.load(["gin_configs/runs/xlme_base.gin"], [], "Train")
    tensors = {c.tensor for c in CostModel(base, parse_topology("v5e:16x16")).candidates()}
    assert tensors == {1, 2, 4}  # of 12 heads
    candidates = list(costs.candidates())
    assert GIVEN in candidates
    assert len(set(candidates)) == len(candidates)
    for candidate in candidates:
        assert candidate.data * candidate.fsdp * candidate.tensor == 256
        assert 16 % candidate.tensor == 0
        assert 2048 % (candidate.data * candidate.fsdp * candidate.micro_batches) == 0


def test_the_rules_know_what_follows_from_shapes(costs):
    weights, rest = costs._state(1, 1, 1)
    assert weights == pytest.approx(4 * 895e6, rel=0.01)  # discriminator, generator, one table
    assert rest == pytest.approx(2 * weights, rel=0.001)
    assert costs._state(64, 4, 1)[0] == pytest.approx(weights / 4, rel=0.01)
    # Over heads and feed-forward as well; positions and biases stay whole.
    assert weights / 256 < costs._state(1, 64, 4)[0] < weights / 180
    # Recomputing and micro-batches save memory and cost time; sharing weights saves memory.
    base = MeshCandidate(64, 4, 1, 1, False)
    for saver in (
        dataclasses.replace(base, remat=True),
        dataclasses.replace(base, micro_batches=4),
    ):
        assert costs.bytes(saver) < costs.bytes(base)
        assert costs.seconds(saver) > costs.seconds(base)
    assert costs.bytes(MeshCandidate(8, 32, 1, 1, False)) < costs.bytes(base)


def test_what_the_compiler_found_corrects_the_rules(costs):
    before = costs.bytes(GIVEN)
    compile_candidate, _ = compiler(costs._config, lambda _: 2 * before)
    costs.correct(GIVEN, compile_candidate(GIVEN))
    assert costs.bytes(GIVEN) == pytest.approx(2 * before, rel=0.01)


def test_a_configuration_that_does_not_fit_gets_one_that_does(config, costs):
    compile_candidate, calls = compiler(config, per_row(2.0))
    given = compile_candidate(GIVEN)
    assert not fits(given)
    plan = search(costs, given, compile_candidate, 6)
    candidate, compiled = plan.best
    assert fits(compiled)
    assert 1 < len(calls) <= 7
    assert len(set(calls)) == len(calls)
    text = summary.describe(plan)
    assert "DOES NOT FIT" in text
    assert f"Suggested: {candidate.flags()}" in text
    loaded = loading.load([RUN], candidate.bindings(), "Train")
    assert loaded.mesh.shape(256) == (candidate.data, candidate.fsdp, candidate.tensor)
    assert loaded.loop.micro_batches == candidate.micro_batches
    assert loaded.objective.discriminator.remat == candidate.remat


def test_remat_is_that_of_the_encoder_that_the_file_names():
    files = ["gin_configs/runs/modern_xlme.gin"]
    config = loading.load(files, [], "Train")
    costs = CostModel(config, parse_topology("v5e:16x16"))
    candidate = next(iter(costs.candidates()))
    bindings = dataclasses.replace(candidate, remat="products").bindings()
    assert loading.load(files, bindings, "Train").objective.discriminator.remat == "products"


def test_compilations_are_bounded(config, costs):
    compile_candidate, calls = compiler(config, lambda _: 100 * GIB)
    plan = search(costs, compile_candidate(GIVEN), compile_candidate, 3)
    assert plan.best is None
    assert not plan.fits
    assert len(calls) == 1 + 3
    assert "No configuration fits" in summary.describe(plan)


@pytest.mark.parametrize("others", tiny.slow_except([0.5], [0.5, 2.0]))
def test_the_fastest_that_fits_is_taken_by_its_estimate_not_by_rule(config, costs, others):
    # Everything fits; by rule the given one, which shares its weights among all, is slow.
    compile_candidate, calls = compiler(
        config, lambda _: GIB, lambda candidate: 1.0 if candidate == GIVEN else others
    )
    plan = search(costs, compile_candidate(GIVEN), compile_candidate, 4)
    assert plan.fits
    assert len(calls) > 1
    assert plan.best[0] == (calls[1] if others < 1.0 else None)
    assert ("No candidate is faster" in summary.describe(plan)) == (others > 1.0)


def test_an_estimate_adds_up(config):
    compile_candidate, _ = compiler(config, lambda _: GIB)
    ring = Collective("all-reduce", tuple(range(256)), 2e9, 3, "", "")
    compiled = dataclasses.replace(compile_candidate(GIVEN), collectives=(ring,), exposed=0.02)
    times = estimate(compiled)
    assert times.compute == pytest.approx(1e15 / 256 / (197e12 * 0.6))
    assert times.memory == pytest.approx(1.0)
    assert times.collectives == pytest.approx(6e9 / 200e9)
    assert times.step == pytest.approx(1.0 + 0.02)
    assert times.best == pytest.approx(1.0)
    assert times.tokens_per_second == pytest.approx(2**21 / 1.02)
    assert times.days == pytest.approx(125_000 * 1.02 / 86_400)
    assert times.mfu == pytest.approx(1e15 / 1.02 / (256 * 197e12))


def test_what_is_to_stay_free(config):
    compile_candidate, _ = compiler(config, lambda candidate: candidate.fsdp)
    compiled = compile_candidate(GIVEN)
    limit = int(compiled.topology.machine.hbm * (1 - HEADROOM))

    def needs(total, temporary=0):
        memory = MemoryUse(0, 0, 0, temporary, 0, total)
        return fits(dataclasses.replace(compiled, memory=memory))

    assert needs(limit)
    assert not needs(limit + 1)
    assert not needs(limit, None)  # The compiler gave up.


@pytest.mark.parametrize(
    ("topology", "group", "expected"),
    [
        ("v5e:16x16", range(256), 200e9),
        ("v5e:16x16", range(16), 100e9),  # one of two dimensions
        ("v4:4x4x4", range(4), 100e9),
        ("v4:4x4x4", range(16), 200e9),
        ("h100:16", range(8), 450e9),  # NVLink
        ("h100:16", (0, 8), 50e9),  # one network card each
        ("h100:16", range(16), 400e9),  # eight a node
        ("a100:16", (0, 4, 8, 12), 50e9),
    ],
)
def test_bandwidth_of_a_group(topology, group, expected):
    collective = Collective("all-gather", tuple(group), 1.0, 1, "", "")
    assert bandwidth(parse_topology(topology), collective) == pytest.approx(expected)


def test_a_permutation_uses_one_direction_of_a_ring():
    shift = Collective("collective-permute", (0, 1), 1.0, 1, "", "")
    assert bandwidth(parse_topology("v5e:16x16"), shift) == pytest.approx(50e9)
    assert bandwidth(parse_topology("h100:16"), shift) == pytest.approx(450e9)


def test_gpus_short_of_jax_default_memory_get_a_hint(config):
    compile_candidate, _ = compiler(config, lambda _: 55 * GIB)
    compiled = dataclasses.replace(compile_candidate(GIVEN), topology=parse_topology("a100:64"))
    plan = search(CostModel(config, compiled.topology), compiled, compile_candidate, 0)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92" not in summary.describe(plan)
    memory = dataclasses.replace(compiled.memory, total=int(65 * GIB))
    large = dataclasses.replace(plan, given=dataclasses.replace(compiled, memory=memory))
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92" in summary.describe(large)
