import dataclasses
import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from helpers import tiny
from helpers.runs import _Gin

from xlme_jax.tools.planning import table
from xlme_jax.tools.planning.compiling import Lowered
from xlme_jax.tools.planning.digest import digest
from xlme_jax.tools.planning.machines import parse_topology
from xlme_jax.training.loop_config import LoopConfig


def flags(*arguments, **bindings):
    bindings = {"Train__vocab_size": tiny.VOCABULARY, **bindings}
    return [*tiny.flags("unused", "no data", "xlm", **bindings), *arguments]


def command(*arguments, **bindings):
    return run_each(flags(*arguments, **bindings))[0]


def run_each(*each):
    """Runs the command where JAX may use any platform."""
    return tiny.run_each("plan", *each, variables={"JAX_PLATFORMS": ""})


@pytest.mark.slow
def test_a_plan_on_virtual_devices(tmp_path):
    """Plans for eight virtual devices: the whole path except another machine's compiler."""
    path = tmp_path / "plan.json"
    result = command(
        *("--topology=cpu:8", "--suggest=always", "--compilations=1", f"--output={path}"),
        Mesh__data=2,
        Mesh__fsdp=2,
        Mesh__tensor=2,
        Loop__micro_batches=2,
    )
    assert result.returncode == 0, result.stderr
    (plan,) = json.loads(path.read_text())
    given = plan["given"]
    assert given["mesh"] == {"data": 2, "fsdp": 2, "tensor": 2}
    assert given["micro_batches"] == 2
    memory = given["memory_bytes"]
    assert memory["optimizer"] == pytest.approx(2 * memory["params"], rel=0.01)
    assert memory["batch"] == 2 * 3 * 4 * 8 * 32 / 4  # two streams, three arrays, four shares
    assert memory["total"] >= memory["params"] + memory["optimizer"] + memory["temporary"]
    assert given["fits"]
    assert given["sent_bytes"]["all-reduce"] > memory["params"]
    assert given["executed_flops"] > 0.9 * given["model_flops"]
    (tried,) = plan["tried"]
    assert f"tried --gin.{tried['overrides'][0].replace(' = ', '=')} " in result.stdout
    assert "mesh data 2 x fsdp 2 x tensor 2, Loop.micro_batches = 2" in result.stdout
    assert "Traceback" not in result.stderr


PHASES = {
    "Train__phases": _Gin("(@late/Phase(),)"),
    "late/Phase__name": "late",
    "late/Phase__start_fraction": 0.9,
    "late/Phase__streams": _Gin("(@bitext/late/PairStream(),)"),
    "bitext/late/PairStream__rows": 12,
}
MISTAKES = [
    (("--topology=cpu:8",), PHASES, "plan each, with --phase= one of start, late."),
    (
        ("--topology=cpu:8", "--phase=late"),
        PHASES,
        "Stream 'bitext' has rows = 12, not divisible by 8",
    ),
    ((), {}, "No machine: pass --topology=v5e:16x16"),
    (("--topology=v5x:4",), {}, "--topology='v5x:4' is unknown. Pass KIND:SHAPE"),
    (
        ("--topology=cpu:8",),
        {"Train__vocab_size": None},
        "Train.vocab_size is None, and planning reads no data to infer it from: set it",
    ),
    (("--topology=cpu:8",), {"Mesh__fsdp": 3}, "fsdp=3, tensor=1) does not fit 8 devices"),
    (("--topology=cpu:8",), {"Loop__micro_batches": 4}, "not divisible by 32"),
    (("--topology=cpu:8",), {"Mesh__fsd": 1}, "Did you mean fsdp?"),
    (("--topology=cpu:8", "--attention=kernel_64"), {}, "has kernels for float32 and bfloat16 on"),
    (("--table=xlme_xxl",), {}, "matches none of: all, xlme_base v5e-256"),
    (("cpu:8",), {}, "Unknown argument 'cpu:8'"),
]


COMPILERS = [
    ("v5e:4x4", "libtpu", "xlme_jax[tpu]"),
    ("h100:8", "jax_cuda13_plugin", "xlme_jax[cuda13]"),
]


@pytest.fixture(scope="module")
def mistaken():
    """Returns the finished process of each mistake, and by topology those without a compiler."""
    each = [flags(*arguments, **bindings) for arguments, bindings, _ in MISTAKES]
    missing = [topology for topology, module, _ in COMPILERS if not find_spec(module)]
    of_missing = [flags(f"--topology={topology}") for topology in missing]
    done = tiny.run_each("plan", *each, *of_missing)
    return done[: len(each)], dict(zip(missing, done[len(each) :]))


@pytest.mark.parametrize(("arguments", "bindings", "expected"), MISTAKES)
def test_mistakes_are_one_line(mistaken, arguments, bindings, expected):
    result = mistaken[0][MISTAKES.index((arguments, bindings, expected))]
    assert result.returncode != 0
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert arguments == ("cpu:8",) or len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(("topology", "module", "install"), COMPILERS)
def test_a_missing_compiler_names_what_to_install(mistaken, topology, module, install):
    if find_spec(module):
        pytest.skip(f"{module} is installed")
    result = mistaken[1][topology]
    assert result.returncode == 1
    assert f"pip install '{install}'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "module", "devices"),
    [("v5e:2x4", "libtpu", 8), ("v4-8", "libtpu", 4), ("h100:8", "jax_cuda13_plugin", 8)],
)
def test_a_plan_for_machines_that_are_not_here(tmp_path, topology, module, devices):
    pytest.importorskip(module, reason="pip install 'xlme_jax[tpu]' or [cuda13] compiles for it")
    path = tmp_path / "plan.json"
    result = command(f"--topology={topology}", f"--output={path}", Mesh__fsdp=2)
    assert result.returncode == 0, result.stderr
    (plan,) = json.loads(path.read_text())
    assert plan["given"]["mesh"] == {"data": devices // 2, "fsdp": 2, "tensor": 1}
    assert plan["given"]["memory_bytes"]["temporary"] > 0
    assert plan["given"]["sent_bytes"]["all-reduce"] > 0
    assert plan["given"]["seconds"]["step"] > 0


def test_shipped_plans_exist_and_deal_rows_out_evenly():
    from xlme_jax.configuration import loading

    for shipped in table.SHIPPED:
        config = loading.load([shipped.file], shipped.bindings(), "Train")
        data, fsdp, _ = config.mesh.shape(parse_topology(shipped.topology).size)
        for stream in config.streams:
            parts = data * fsdp * config.loop.micro_batches
            assert stream.rows % parts == 0, shipped


def test_the_papers_runs_have_a_plan_for_each_machine():
    named = {(shipped.run, shipped.topology) for shipped in table.SHIPPED}
    for size in ("base", "large", "xl"):
        for machine in ("v5e-256", "v4-128", "a100:64"):
            assert (f"xlme_{size}", machine) in named
    assert ("xylent_xl", "a100:512") in named
    for pair in ("en_de", "en_fr"):
        for machine in ("h100:8", "h100:64"):
            assert (f"veco_wmt14_{pair}", machine) in named
    assert [one.run for one in table.chosen("xylent_xl v5p")] == ["xylent_xl"]
    assert len(table.chosen("all")) == len(table.SHIPPED)


MEMORY = {"params": 2**30, "optimizer": 2**31, "total": 2**34, "available": 2**33}
UNFIT = {"given": {"devices": 256, "memory_bytes": MEMORY, "fits": False}}


def test_the_table_shows_what_does_not_fit():
    text = table.markdown([(table.SHIPPED[0], UNFIT)])
    assert "16.0 of 8.0 **does not fit** | 3.0 |" in text
    assert "v5e-256 (256 devices)" in text


def test_plans_are_recorded_one_by_one(tmp_path):
    path, (first, second) = tmp_path / "plans.json", table.SHIPPED[:2]
    for shipped in (second, first, second):
        table.record(path, shipped, UNFIT)
    assert list(json.loads(path.read_text())) == [first.name, second.name]
    rows = table.recorded(path, [first, second])
    assert table.markdown(rows).count("16.0 of 8.0 **does not fit**") == 2
    other = dataclasses.replace(first, micro_batches=64)
    with pytest.raises(ValueError, match="has no plan of 'xlme_base v5e-256' with Mesh"):
        table.recorded(path, [second, other])


def test_a_recorded_plan_is_known_by_its_digest(tmp_path):
    path, (first, second) = tmp_path / "plans.json", table.SHIPPED[:2]
    assert table.recorded_plan(path, first, "1") is None
    table.record(path, first, UNFIT, "1")
    found = table.recorded_plan(path, first, "1")
    assert table.markdown([(first, found)]) == table.markdown([(first, UNFIT)])
    assert table.recorded_plan(path, first, "2") is None
    assert table.recorded_plan(path, second, "1") is None


def test_a_digest_covers_all_that_a_plan_depends_on(monkeypatch):
    def lowered(text="module", topology="v5e:4x4", options=(), **numbers):
        program = SimpleNamespace(as_text=lambda: text)
        known = {"params": 1, "optimizer": 2, "batch": 3}
        config = SimpleNamespace(loop=LoopConfig(9, compiler_options=options))
        return Lowered(program, config, parse_topology(topology), {"data": 16}, known, numbers)

    found = {
        digest(lowered()),
        digest(lowered("other module")),
        digest(lowered(topology="v5e:4x8")),
        digest(lowered(tokens=4)),
        digest(lowered(options=("xla_some_option=1",))),
    }
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_async_collective_fusion=false")
    found.add(digest(lowered()))
    monkeypatch.delenv("LIBTPU_INIT_ARGS")
    assert len(found) == 6
    assert digest(lowered()) in found
