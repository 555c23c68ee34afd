import re

import jax
import numpy as np
import pytest
from helpers import tiny

from xlme_jax.configuration import loading
from xlme_jax.model import flop_conventions, flops
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.training import mesh as meshes
from xlme_jax.training import model_info
from xlme_jax.training import sharded_state as states

SHAPES = {"monolingual": (8, 32), "bitext": (16, 32)}


@pytest.fixture(scope="module")
def made():
    """Returns a tiny XLM-E, its abstract state and the text."""
    files = ["gin_configs/models/xlme.gin", str(tiny.REPOSITORY / "tests" / "tiny.gin")]
    config = loading.load(files, [], "Train")
    objective = config.objective.build(200)
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    abstract = states.abstract_state(objective, config.optimizer.build(20), mesh)
    return objective, abstract, described(objective, abstract, mesh)


def described(objective, abstract, mesh, *options):
    """Returns the text of model-info.txt."""
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    return model_info.describe(objective, boxed, abstract, mesh, SHAPES, 200, *options)


def test_parameters_are_counted_without_the_padding_of_the_vocabulary(made):
    _, abstract, text = made
    stored = sum(leaf.size for leaf in jax.tree.leaves(abstract.params))
    padding = (256 - 200) * 32 + (256 - 200)  # rows of the table and of the output bias
    encoder = abstract.params["discriminator"]["encoder"]
    positions = abstract.params["discriminator"]["positions"]
    head = abstract.params["discriminator"]["head"]
    exported = sum(leaf.size for leaf in jax.tree.leaves((encoder, positions, head))) + 200 * 32
    first = text.splitlines()[0]
    assert first.startswith(
        f"Parameters: {stored - padding:,} in all, {exported:,} in the exported encoder "
    )


def test_scanned_layers_count_as_many_as_separate_ones():
    def count(*bindings):
        files = ["gin_configs/models/xlme.gin", str(tiny.REPOSITORY / "tests" / "tiny.gin")]
        config = loading.load(files, ["Encoder.num_layers = 3", *bindings], "Train")
        params = jax.eval_shape(config.objective.build(200).init, jax.random.key(0))
        return model_info.count_parameters(params, 200)

    assert count("Encoder.scan_layers = True") == count()


def test_every_weight_has_a_line(made):
    _, abstract, text = made
    table = text[text.index("weight ") :].splitlines()[1:]
    leaves = jax.tree_util.tree_flatten_with_path(abstract.params)[0]
    assert len(table) == len(leaves)
    for line, (path, leaf) in zip(table, leaves):
        name = ".".join(key.key for key in path)
        assert line.startswith(name + " ")
        assert str(leaf.shape) in line
        assert line.endswith(f" {leaf.size * leaf.dtype.itemsize:,}")


def test_the_state_of_one_device_is_all_of_it(made):
    _, abstract, text = made
    weights = sum(leaf.size * 4 for leaf in jax.tree.leaves(abstract.params))
    # Adam's two moments, its count, the schedule's count and the step.
    assert f"State per device: {3 * weights + 12:,} bytes, of which weights {weights:,}" in text
    assert model_info.bytes_per_device(abstract.params) == weights


def test_flops_add_up_and_the_formula_is_given(made):
    objective, _, text = made
    parts = objective.diagnostics.flops(SHAPES)
    assert "Tokens per step: 768 = monolingual 8 x 32 + bitext 16 x 32" in text
    total = sum(parts.values())
    step, token = re.search(r"FLOPs per step: (\S+); per token: (\S+)", text).groups()
    np.testing.assert_allclose([float(step), float(token)], [total, total / 768], rtol=1e-3)
    for name in parts:
        assert f"  {name}: " in text
    for line in flops.FORMULA.splitlines():
        assert line in text


def test_flops_as_xlme_counts_them(made):
    objective, _, text = made
    mono = sum(objective.diagnostics.flops({"monolingual": SHAPES["monolingual"]}).values())
    pairs = sum(objective.diagnostics.flops({"bitext": SHAPES["bitext"]}).values())
    counts = model_info.flops_per_step(objective, SHAPES, ["bitext"])
    np.testing.assert_allclose(counts["table_4"], mono / 2 + pairs / 4)
    np.testing.assert_allclose(counts["ours"], mono + pairs)
    assert model_info.flops_per_step(objective, SHAPES, [])["table_4"] == (mono + pairs) / 2
    assert f"half of the slots of pairs are text): {(mono + pairs) / 2:.4g} per step" in text


@pytest.mark.parametrize("run", ["infoxlm_base", "veco_small", "xlm_base", "xylent_base"])
def test_flops_of_every_system_as_xlme_counts_them(run):
    config = loading.load([f"gin_configs/runs/{run}.gin"], [], "Train")
    objective = config.objective.build(config.vocab_size)
    shapes = {stream.name: (stream.rows, stream.length) for stream in config.streams}
    pairs = [stream.name for stream in config.streams if stream.kind == "bitext"]
    flops = model_info.flops_per_step(objective, shapes, pairs)["table_4"]
    text = {name: (rows if name == "monolingual" else 0, n) for name, (rows, n) in shapes.items()}
    total, alone = (sum(objective.diagnostics.flops(part).values()) for part in (shapes, text))
    assert 0 < alone < total
    np.testing.assert_allclose(flops, alone / 2 + (total - alone) / 4)


def test_the_base_size_costs_what_table_4_says():
    """XLM-E, Table 4: 9.5e19 with TRTD and 6.3e19 without; `as_table_4` is within 4%."""
    encoder = EncoderConfig(num_layers=16, hidden_size=768, ffn_size=3072, num_heads=12)
    slots, length = 125_000 * 2048 * 512, 512
    forward = flops.encoder(encoder, length) + flops.rtd_head(768, "dense")
    forward += 0.15 * flops.mlm_head(768, 768, 250_002)
    task = 3 * slots * forward
    np.testing.assert_allclose(task, 1.22e20, rtol=0.005)
    np.testing.assert_allclose(flop_conventions.as_table_4(task, 0.0), 6.3e19, rtol=0.04)
    np.testing.assert_allclose(flop_conventions.as_table_4(2 * task, task), 9.5e19, rtol=0.04)


def test_skipped_shares_are_in_the_text(made):
    objective, abstract, text = made
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    description = described(objective, abstract, mesh, {"bitext": 0.0312})
    said = "Pairs of bitext longer than a row, which are skipped: 3.12% of the first drawn"
    assert [line for line in description.splitlines() if line not in text.splitlines()] == [said]
