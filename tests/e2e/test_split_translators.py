"""Translators whose weights are split over eight devices translate as on one."""

import ast

import pytest
from helpers import hf_folders, tiny

SPLIT = """
import sys
import jax, numpy as np, optax
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.translation import Translator
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.translator import TranslateConfig
from xlme_jax.objectives.veco import VecoConfig
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

# Wide enough an initialisation for hypotheses of different scores.
encoder = EncoderConfig(hidden_size=32, num_layers=2, num_heads=2, ffn_size=64, max_length=32,
                        relative_bias="none", init_std=0.3)
config = TranslateConfig(VecoConfig(encoder), ("en", "fr", "ru"))
rng = np.random.default_rng(0)
texts = [(0, *rng.integers(5, 1000, words).tolist(), 2) for words in rng.integers(1, 22, 70)]

def translate(mesh):
    with states.sharding_rules(mesh):
        objective = config.build(1024)
        abstract = states.abstract_state(objective, optax.identity(), mesh)
        params = states.fresh_state(objective, optax.identity(), abstract, 0).params
        # They start at zero, so that translations into all languages would be equal.
        noise = np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)
        params["languages"] = params["languages"] + noise
        # The same batches for both: the longest translation depends on them.
        translator = Translator(objective, BeamSearch(4), row_multiple=8, batch_tokens=256)
        found = [translator(params, texts, language) for language in ("fr", "ru", "fr")]
        assert found[0] == found[2] != found[1]
        shapes = {8 * -(-len(text) // 8) for text in texts}
        assert translator._translate._cache_size() == len(shapes) == 3, "compiled for each shape"
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(params))
    return found[:2], held

one, whole = translate(meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1]))
mesh = meshes.make_mesh(meshes.MeshConfig(*map(int, sys.argv[1:4])))
split, held = translate(mesh)
assert held < whole / int(sys.argv[4]), (held, whole)
for ours, theirs in zip(one, split):
    for best, other in zip(ours, theirs, strict=True):
        assert [h.tokens for h in best] == [h.tokens for h in other], (best, other)
        np.testing.assert_allclose([h.score for h in best], [h.score for h in other], rtol=1e-4)
print("the same")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "least"), [((1, 8, 1), 5), ((2, 2, 2), 2)])
def test_eight_devices_translate_as_one_does(mesh, least):
    """A device holds less than 1 / `least` of the weights."""
    assert "the same" in tiny.run(["-c", SPLIT, *map(str, (*mesh, least))], devices=8)


COMMANDS = """
import sys
import jax
from xlme_jax.evaluation.random_translations import Sampling
from xlme_jax.runs import trained, translating
from xlme_jax.training.mesh import MeshConfig

run, lines, meshes = sys.argv[1], open(sys.argv[2]).read().splitlines(), []
load = trained.load

def noting(checkpoint, vocabulary, mesh):
    found = load(checkpoint, vocabulary, mesh)
    table = found.params["tokens"]["embedding"]
    meshes.append((tuple(mesh.shape.values()), table.addressable_shards[0].data.size, table.size))
    return found

trained.load = noting
given = [None] if jax.device_count() == 1 else [None, MeshConfig(2, 2, 2)]
for mesh in given:
    for found in translating.translate(run, lines, "fr", Sampling(1), mesh=mesh):
        print("found", f"{found[0].score:.3f}", found[0].text.encode())
print("meshes", meshes)
"""


@pytest.mark.slow
def test_a_run_is_decoded_on_its_own_mesh(tmp_path):
    """The weights of a run with fsdp 4 are split over 8 devices, but not on one."""
    run = hf_folders.write_checkpoint(
        tmp_path / "run", "translate", Encoder__num_layers=2, Mesh__data=1, Mesh__fsdp=4
    )
    source = tmp_path / "en.txt"
    # Rows of one length, on which that of translations depends.
    source.write_text("abc def\nghi jk\nab\nlm no p\nbca\n")
    arguments = ["-c", COMMANDS, str(run), str(source)]
    one, eight = (tiny.run(arguments, devices=n).splitlines() for n in (1, 8))
    translations = [line for line in one if line.startswith("found")]
    assert len(set(translations)) == 5
    assert [line for line in eight if line.startswith("found")] == translations * 2
    assert any("(fsdp=4, tensor=1) does not fit 1 devices" in line for line in one)
    (whole,) = ast.literal_eval(one[-1].removeprefix("meshes "))
    own, given = ast.literal_eval(eight[-1].removeprefix("meshes "))
    assert (whole[0], own[0], given[0]) == ((1, 1, 1), (2, 4, 1), (2, 2, 2))
    assert whole[1] == own[1] * 4 == given[1] * 4 == whole[2]
