# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A sharded model
#
# **What it shows.** How a model is laid out over eight devices, which are eight virtual ones of
# this CPU: the mesh, the rules that map names of dimensions to mesh axes, where each piece of a
# weight lies, the bytes of each device, and what the compiled train step sends. Then what changes
# with `data`, `fsdp` and `tensor`.
#
# **How long.** About a minute on two CPU cores. Nothing is trained; no data is needed.
#
# **What to expect.** `data` sends least and stores most. `fsdp` divides weights and optimizer state
# by its size, and sends the weights instead. `tensor` divides them too, and sends activations.

# %%
import importlib.util
import subprocess
import sys
from pathlib import Path

# Where pip finds xlme_jax if it is not installed: the folder of a clone, or "git+https://..." with
# the address of its repository, as Colab needs. "" is the clone around or beside this notebook.
SOURCE = ""
packages = map(importlib.util.find_spec, ("xlme_jax", "treescope", "rich"))
if not all(package and package.origin for package in packages):  # A mere folder has no origin.
    here = Path.cwd()
    clones = [here / "xlme_jax", here, *here.parents]
    source = SOURCE or next((x for x in clones if (x / "xlme_jax" / "api.py").is_file()), None)
    if source is None:
        raise ValueError("set SOURCE: xlme_jax is neither installed nor in a folder here")
    folder = Path(source).resolve()
    wanted = f"{folder}[notebooks]" if folder.is_dir() else f"xlme_jax[notebooks] @ {source}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
    importlib.invalidate_caches()

# %% [markdown]
# Eight devices have to be asked for before JAX starts.

# %%
import jax

DEVICES = 8
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)
jax.devices()

# %% [markdown]
# The model is XLM, the baseline of XLM-E, because it has one encoder and compiles fast: two layers
# of 128 with four heads, a vocabulary of 8,000, one stream of text. Its programs are only looked
# at, so that the compiler may leave out most optimisations; what is sent stays the same.

# %%
import xlme_jax

jax.config.update("jax_disable_most_optimizations", True)
LAYERS = 2
SIZES = {
    "Encoder.num_layers": LAYERS,
    "Encoder.num_heads": 4,
    "Train.vocab_size": 8_000,
    "XLM.translation_pairs": False,
    "monolingual/TextStream.rows": 32,
}


def load(data, fsdp, tensor):
    """Returns the configuration with a mesh of these sizes."""
    files = ["gin_configs/models/xlm.gin", "gin_configs/embedded.gin"]
    mesh = {"Mesh.data": data, "Mesh.fsdp": fsdp, "Mesh.tensor": tensor}
    return xlme_jax.load_config(files, {**SIZES, **mesh}).train


config = load(data=2, fsdp=2, tensor=2)

# %% [markdown]
# ## Mesh and rules
#
# A mesh has three axes. `data` and `fsdp` split the rows of a batch; `fsdp` and `tensor` split
# weights. The model does not know the mesh: each dimension of a weight or activation has a
# *logical* name, and one table maps names to mesh axes. Names that map to nothing are on every
# device in full.

# %%
from xlme_jax.training import mesh as meshes

mesh = meshes.make_mesh(config.mesh)
print(f"mesh: {dict(mesh.shape)}\n")
for name, axes in meshes.LOGICAL_AXIS_RULES:
    print(f"{name:18} -> {axes}")

# %% [markdown]
# The names of the weights of a layer, their shapes, and the mesh axes that follow. Nothing is
# computed here: `abstract_state` has shapes and shardings alone, and of a model of any size.

# %%
from xlme_jax.checkpoints.digests import leaf_name
from xlme_jax.training import sharded_state as states

objective = config.objective.build(config.vocab_size)
optimizer = objective.optimizer(config.optimizer.build(config.loop.train_steps))
abstract = states.abstract_state(objective, optimizer, mesh)
boxed = jax.eval_shape(objective.init, jax.random.key(0))


def is_box(leaf):
    return hasattr(leaf, "names")


named = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=is_box)
for (path, box), leaf in zip(named, jax.tree.leaves(abstract.params)):
    name = leaf_name(path)
    if name.startswith(("encoder.layer_0", "tokens")):
        print(f"{name}\n    {leaf.shape} {box.names} -> {leaf.sharding.spec}")

# %% [markdown]
# ## Where the pieces lie
#
# `fresh_state` creates the state in place: no device ever holds a whole weight that is split. The
# table of token embeddings, with a row for each id, is split over `fsdp` and `tensor` (four parts),
# and each part exists twice, once for each part of `data`.

# %%
with states.sharding_rules(mesh):
    state = states.fresh_state(objective, optimizer, abstract, seed=0)
weights = state.params["tokens"]["embedding"]
print(weights.shape, weights.sharding.spec)
jax.debug.visualize_array_sharding(weights)

# %% [markdown]
# A kernel of the feed-forward network is split along both dimensions: `embed` over `fsdp`, `mlp`
# over `tensor`.

# %%
layer = state.params["encoder"]["layer_0"]
kernel = layer["ffn"]["wi"]["kernel"]
print(kernel.shape, kernel.sharding.spec)
jax.debug.visualize_array_sharding(kernel)

# %% [markdown]
# [Treescope](https://treescope.readthedocs.io) draws the whole tree; click to open a node. Each
# array shows its values and how it is split. It draws when you run the cell: GitHub shows nothing.

# %%
import treescope

with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
    treescope.display(layer)

# %%
treescope.display(treescope.render_array_sharding(kernel))

# %% [markdown]
# Bytes of each device: counted from the shapes, and from the arrays that were created.

# %%
from xlme_jax.training.model_info import bytes_per_device

held = dict.fromkeys(jax.devices(), 0)
for leaf in jax.tree.leaves(state):
    for piece in leaf.addressable_shards:
        held[piece.device] += piece.data.nbytes
whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
print(f"{whole / 1e6:.1f} MB of state, {bytes_per_device(abstract) / 1e6:.2f} MB a device:")
for device, size in held.items():
    print(f"  {device}: {size / 1e6:.2f} MB")
assert set(held.values()) == {bytes_per_device(abstract)}

# %% [markdown]
# ## What the step sends
#
# `compile_step` compiles the train step for a mesh, as `python -m xlme_jax.plan` does, and counts
# memory and collective operations in the compiled program. A ring algorithm is assumed: of an
# all-reduce among n devices each sends 2 (n - 1) / n of the array.

# %%
from xlme_jax.tools.planning import collectives, compiling
from xlme_jax.tools.planning.machines import parse_topology

topology = parse_topology(f"cpu:{DEVICES}")
MESHES = ((8, 1, 1), (1, 8, 1), (2, 1, 4), (2, 2, 2))
compiled = {
    sizes: compiling.compile_step(load(*sizes), topology, jax.devices()) for sizes in MESHES
}
print("data x fsdp x tensor   weights  optimizer  temporary   sent by each device, MB a step")
for sizes, one in compiled.items():
    memory = (one.memory.params, one.memory.optimizer, one.memory.temporary)
    sent = collectives.by_kind(list(one.collectives))
    print(
        f"{' x '.join(map(str, sizes)):20} {''.join(f'{size / 1e6:8.2f} MB' for size in memory)}  "
        + ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in sent.items())
    )

# %%
import matplotlib.pyplot as plt

names = [" x ".join(map(str, sizes)) for sizes in compiled]
PARTS = {
    "memory of a device, MB": [
        {
            "weights": one.memory.params,
            "optimizer": one.memory.optimizer,
            "temporary": one.memory.temporary,
        }
        for one in compiled.values()
    ],
    "sent by a device, MB a step": [
        collectives.by_kind(list(one.collectives)) for one in compiled.values()
    ],
}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
for axis, (title, parts) in zip(axes, PARTS.items()):
    bottom = [0.0] * len(names)
    for kind in dict.fromkeys(kind for part in parts for kind in part):
        sizes = [part.get(kind, 0) / 1e6 for part in parts]
        axis.bar(names, sizes, bottom=bottom, label=kind)
        bottom = [low + size for low, size in zip(bottom, sizes)]
    highest = max(sum(part.values()) for part in parts) / 1e6
    axis.set(title=title, xlabel="data x fsdp x tensor", ylim=(0, 1.25 * highest))
    axis.legend(fontsize=8, ncols=4, loc="upper center")
plt.show()

# %% [markdown]
# - **data** (8 x 1 x 1): every device has all weights, and the gradients of all are summed in one
#   all-reduce.
# - **fsdp** (1 x 8 x 1): every device has an eighth of the state. Weights are gathered before they
#   are used, in the forward and the backward pass. A TPU's or GPU's compiler sums gradients by a
#   reduce-scatter; the CPU's by an all-reduce.
# - **tensor** (2 x 1 x 4): heads and feed-forward width are split, so that every layer sums
#   activations over the group, twice in each direction. These messages grow with the batch and not
#   with the model.
#
# The largest ones of the last mesh, with the operation of the model that they belong to:

# %%
for one in compiled[2, 2, 2].collectives[:8]:
    print(
        f"{one.total / 1e6:6.2f} MB  {one.kind} among {len(one.group)}, {one.times}x  "
        f"{one.what.split(':')[-1].split('/', 1)[-1][-80:]}"
    )

# %% [markdown]
# The loss does not depend on the mesh: `tests/e2e/test_devices.py` trains each system on one device
# and on eight and compares. `plan_a_pod_run` looks for the mesh of a large model on a large
# machine.
