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
# # Plan a pod run
#
# **What it shows.** Memory, traffic and time of XLM-E on a TPU pod, from a laptop: what a cost
# model says of every mesh, which of them the search compiles, and how to read what the compiler
# reports. `python -m xlme_jax.plan` does the same as a command (docs/guide/plans.md).
#
# **How long.** About 4 minutes on two CPU cores; nothing runs but compilers. No accelerator and no
# data are needed. With libtpu (the install cell brings it) the TPU's own compiler is used; without
# it, virtual CPU devices of the same number, whose partitioning is the same but not the fusion, and
# which compute in float32.
#
# **What to expect.** Hundreds of meshes, many of which fit, and the fastest of them close together.
# What the compiler needs differs from the first guess, which is why the search compiles.

# %%
import importlib.util
import subprocess
import sys
from pathlib import Path

# Where pip finds xlme_jax if it is not installed: the folder of a clone, or "git+https://..." with
# the address of its repository, as Colab needs. "" is the clone around or beside this notebook.
SOURCE = ""
packages = map(importlib.util.find_spec, ("xlme_jax",))
if not all(package and package.origin for package in packages):  # A mere folder has no origin.
    here = Path.cwd()
    clones = [here / "xlme_jax", here, *here.parents]
    source = SOURCE or next((x for x in clones if (x / "xlme_jax" / "api.py").is_file()), None)
    if source is None:
        raise ValueError("set SOURCE: xlme_jax is neither installed nor in a folder here")
    folder = Path(source).resolve()
    wanted = f"{folder}[tpu]" if folder.is_dir() else f"xlme_jax[tpu] @ {source}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
    importlib.invalidate_caches()

# %% [markdown]
# JAX must run on the CPU here, and libtpu must not look for a TPU. `SLICE` is the machine to
# compile for; of virtual devices, their number has to be known before JAX starts.

# %%
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import jax

import xlme_jax
from xlme_jax.tools.planning import compiling
from xlme_jax.tools.planning.machines import GIB, MACHINES, parse_topology

SLICE = "v5e:4x4" if importlib.util.find_spec("libtpu") else "cpu:16"
topology = parse_topology(SLICE)
# The programs are not run. On CPUs, XLA may leave out most optimisations: it takes half the time.
jax.config.update("jax_disable_most_optimizations", topology.machine.platform == "cpu")
devices = compiling.devices_of(topology)

print("machine    memory, GiB   peak, TFLOP/s   links, GB/s")
for machine in MACHINES.values():
    print(
        f"{machine.name:10} {machine.hbm / GIB:11.1f} {machine.flops / 1e12:15.0f} "
        f"{machine.link_bandwidth / 1e9:13.0f}"
    )

# %% [markdown]
# ## Every mesh at once
#
# The cost model needs no compiler. Bytes of weights and optimizer state are exact, because they
# follow from shapes and shardings; activations are a guess until a compilation has corrected it.
# Seconds are for comparing candidates with each other. XLM-E Large on 256 chips:

# %%
import matplotlib.pyplot as plt

from xlme_jax.tools.planning.estimate import HEADROOM
from xlme_jax.tools.planning.search import CostModel

large = xlme_jax.load_config("gin_configs/runs/xlme_large.gin").train
pod = parse_topology("v5e-256")
costs = CostModel(large, pod)
candidates = [(costs.bytes(one), costs.seconds(one), one) for one in costs.candidates()]
limit = (1 - HEADROOM) * pod.machine.hbm
figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
for number, fsdp in enumerate(sorted({one.fsdp for _, _, one in candidates})):
    points = [(size / GIB, time) for size, time, one in candidates if one.fsdp == fsdp]
    axis.scatter(*zip(*points), s=12, color=plt.cm.viridis(number / 9), label=f"fsdp {fsdp}")
axis.axvline(limit / GIB, color="red", linestyle=":", label="memory of a v5e")
axis.set(xscale="log", yscale="log", xlabel="memory of a device, GiB", ylabel="seconds a step")
for scale in (axis.xaxis, axis.yaxis):
    scale.set_major_formatter("{x:g}")
axis.yaxis.set_minor_formatter("{x:.1g}")
axis.set_title(f"XLM-E Large on {pod.name}: {len(candidates)} candidates")
figure.legend(loc="outside right upper", fontsize=8)
plt.show()
fitting = sorted((one for one in candidates if one[0] <= limit), key=lambda one: one[1])
print("the fastest of those that should fit:")
for size, time, one in fitting[:8]:
    print(f"  {time:6.3f} s, {size / GIB:5.1f} GiB: {one.flags()}")

# %% [markdown]
# ## Compile
#
# The search compiles the configuration as given, and then candidates, the most promising first.
# Each result corrects the cost model's activations. Compiling is what takes the time, so we plan
# XLM-E Base on a smaller slice. `RUN` is any gin file, `MORE` any overrides, as for `train`.

# %%
from xlme_jax.tools.planning import search, summary

RUN = "gin_configs/runs/xlme_base.gin"
MORE = {"monolingual/TextStream.rows": 256, "bitext/PairStream.rows": 256, "Mesh.fsdp": 4}
COMPILATIONS = 2


def load(candidate):
    """Returns the configuration with the settings of a candidate, as lines of gin."""
    lines = [f"{name} = {value!r}" for name, value in MORE.items()]
    return xlme_jax.load_config(RUN, [*lines, *candidate]).train


plan = search.plan(load, topology, devices, "always", COMPILATIONS)
print(summary.describe(plan))

# %% [markdown]
# ## Predicted and compiled
#
# What the compiler says of each candidate, beside the cost model before it knew any of that.

# %%
costs = CostModel(load([]), topology)
tried = [(costs.candidate_of(plan.given), plan.given), *plan.tried]
print("mesh (data x fsdp x tensor), micro-batches, remat     predicted      compiled     sent")
for candidate, one in tried:
    sizes = f"{candidate.data} x {candidate.fsdp} x {candidate.tensor}"
    print(
        f"{sizes:12} {candidate.micro_batches:3} {candidate.remat!s:6} "
        f"{costs.bytes(candidate) / GIB:34.2f} GiB {one.memory.total / GIB:8.2f} GiB "
        f"{sum(c.total for c in one.collectives) / 1e9:6.2f} GB"
    )

# %% [markdown]
# ## Traffic
#
# What each device sends in a step, by operation and by the number of devices that take part. Groups
# along `fsdp` gather weights and sum gradients, once for each micro-batch; groups along `data` sum
# gradients once.

# %%
from collections import Counter

figure, axes = plt.subplots(
    1, len(tried), figsize=(4 * len(tried), 3.2), layout="constrained", sharey=True, squeeze=False
)
for axis, (candidate, one) in zip(axes.flat, tried):
    sent = Counter()
    for collective in one.collectives:
        sent[f"{collective.kind}\namong {len(collective.group)}"] += collective.total / 1e9
    largest = dict(sent.most_common(4))
    axis.bar(range(len(largest)), list(largest.values()))
    axis.set_xticks(range(len(largest)), list(largest), fontsize=7)
    axis.set_title(f"{candidate.data} x {candidate.fsdp} x {candidate.tensor}")
axes[0, 0].set_ylabel("GB a step and device")
plt.show()

# %% [markdown]
# ## The flags
#
# What `train` is given on the machine itself:

# %%
settings, chosen = plan.best if plan.best else (None, plan.given)
flags = settings.flags() if settings else "(the configuration as it is)"
print(f"python -m xlme_jax.train --gin_file={RUN} {flags}")

# %% [markdown]
# The times of `summary.describe` are estimates for comparing meshes and machines. Of virtual CPU
# devices they mean nothing; look at memory and traffic there. docs/lab/plan_tables.md has the table
# of the papers' runs, docs/guide/plans.md the formulas.
