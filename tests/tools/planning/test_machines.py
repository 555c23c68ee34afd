import pytest

from xlme_jax.tools.planning import machines
from xlme_jax.tools.planning.compiling import gpu_target
from xlme_jax.tools.planning.machines import GIB, MACHINES, parse_topology
from xlme_jax.training.peak import peak_flops


@pytest.mark.parametrize(
    ("text", "name", "devices"),
    [
        ("v5e:16x16", "v5e:16x16", 256),
        ("v5e-256", "v5e:16x16", 256),
        ("v5litepod-16", "v5e:4x4", 16),
        ("v6e-8", "v6e:2x4", 8),
        ("v4:4x4x4", "v4:4x4x4", 64),
        # Google counts the TensorCores of v4 and v5p, of which a chip has two.
        ("v4-128", "v4:4x4x4", 64),
        ("v4-8", "v4:2x2x1", 4),
        ("v5p-256", "v5p:4x4x8", 128),
        ("h100:8", "h100:8", 8),
        ("a100-40:64", "a100-40:64", 64),
        ("a100-80:64", "a100:64", 64),
        ("b200:4", "b200:4", 4),
        ("cpu:8", "cpu:8", 8),
    ],
)
def test_names_of_topologies(text, name, devices):
    topology = parse_topology(text)
    assert (topology.name, topology.size) == (name, devices)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v5e", "'v5e' is unknown. Pass KIND:SHAPE"),
        ("v7:4x4", "one of v4, v5e, v5p"),
        ("h100-8", "is unknown"),
        ("h100:8x8", "invalid shape for h100; pass one like h100:8"),
        ("v5e:16", "pass one like v5e:4x4"),
        ("v4:4x4", "pass one like v4:2x2x4"),
        ("v5e:0x4", "pass one like v5e:4x4"),
        ("v4-127", "no such slice; available slices are v4-8, v4-16"),
        ("v5e-100", "no such slice; available slices are v5e-1, v5e-4"),
        ("h100:12", "nodes have 8 GPUs; pass a multiple of 8"),
        ("h100:x", "is unknown"),
    ],
)
def test_names_that_are_none(text, expected):
    with pytest.raises(ValueError) as error:
        parse_topology(text)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_the_table_agrees_with_the_one_that_running_jobs_use():
    kinds = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}
    for machine in MACHINES.values():
        kind = kinds.get(machine.name, machine.name.split("-")[0])
        if machine.platform != "cpu":
            assert peak_flops(kind) == machine.flops, machine


def test_every_machine_is_plausible():
    for machine in MACHINES.values():
        assert 15 * GIB < machine.hbm < 200 * GIB
        # Memory is faster than links, links than the network.
        assert machine.hbm_bandwidth > machine.link_bandwidth > machine.network_bandwidth
        assert (machine.target is not None) == (machine.platform == "cuda")
        assert (machine.network_bandwidth > 0) == (machine.platform == "cuda")
        for slices in machines._SLICES[machine.max_dims] if machine.max_dims else ():
            assert parse_topology(f"{machine.name}-{slices * machine.cores}").size == slices


def test_gpu_target_config():
    text = gpu_target(MACHINES["h200"])
    assert "major: 9 minor: 0" in text
    assert "core_count: 132" in text
    assert f"device_memory_size: {MACHINES['h200'].hbm}" in text
    assert text.count("{") == text.count("}")
