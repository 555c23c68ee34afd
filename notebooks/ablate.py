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
# # An ablation
#
# **What it shows.** Two short runs from Python that differ in one override: XLM-E with translation
# pairs, and without (the paper's "-TRTD", Table 2). Their curves, what differs between their
# configurations and at their ends, and their reports side by side.
#
# **How long.** About 8 minutes on two CPU cores for both runs; half of it if another notebook has
# trained `runs/notebook` already.
#
# **What to expect.** Both learn to find replaced tokens. Only the run with pairs begins to retrieve
# translations: without pairs nothing ties the scripts together. Retrieval comes late, so that a few
# percent are far above the untrained encoder here (README.md has 4,000 steps). One seed and few
# steps: this is a demonstration, not a result. Both take the same number of steps; with pairs, a
# step has three times the tokens.

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
    wanted = f"{folder}[data]" if folder.is_dir() else f"xlme_jax[data] @ {source}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)
    importlib.invalidate_caches()

# %% [markdown]
# An override is what `--gin.NAME=VALUE` is for the command. A wrong name or value is an error that
# says what was meant, before anything is compiled.

# %%
import xlme_jax

STEPS = 600
SHARED = {
    "TRAIN_STEPS": STEPS,
    "CHECKPOINT_EVERY": STEPS - 1,
    "Loop.log_every": 1,
    "Loop.evaluate_every": max(STEPS // 4, 1),
}
RUNS = {
    "with pairs": {"MODEL_DIR": "runs/notebook"},
    "without pairs": {
        "MODEL_DIR": "runs/notebook_without_pairs",
        "XLME.translation_pairs": False,
    },
}
configs = {
    name: xlme_jax.load_config("gin_configs/runs/quickstart.gin", {**SHARED, **overrides})
    for name, overrides in RUNS.items()
}
try:
    xlme_jax.load_config("gin_configs/runs/quickstart.gin", {"XLME.translation_pair": False})
except ValueError as error:
    print(error)

# %%
folders = {name: xlme_jax.train(config) for name, config in configs.items()}
folders

# %% [markdown]
# ## Curves
#
# `read_metrics` reads a run's `metrics.jsonl`. Retrieval is accuracy@1 among 450 held-out pairs
# (chance: 0.2%) of the generator's last layer, whose languages are centred: it is ahead of the
# discriminator in a run this short.

# %%
import matplotlib.pyplot as plt
import numpy as np

from xlme_jax.training.metrics import read_metrics

curves = {name: read_metrics(folder) for name, folder in folders.items()}
PANELS = {
    "monolingual/mlm_loss": "generator: MLM loss, nats",
    "monolingual/rtd_loss": "discriminator: RTD loss, nats",
    "monolingual/rtd_f1": "discriminator: F1",
    "probe/generator/centred/layer_2": "generator: retrieval of held-out pairs",
}


def smooth(values, width=20):
    """Returns means over the last `width` values."""
    sums = np.cumsum([0.0, *values])
    begins = np.maximum(np.arange(1, len(sums)) - width, 0)
    return (sums[1:] - sums[begins]) / (np.arange(1, len(sums)) - begins)


figure, axes = plt.subplots(2, 2, figsize=(10, 6), layout="constrained")
for axis, (metric, title) in zip(axes.flat, PANELS.items()):
    for name, run in curves.items():
        steps, values = zip(*run[metric])
        probed = metric.startswith("probe/")
        axis.plot(steps, values if probed else smooth(values), "o-" if probed else "-", label=name)
    axis.set(title=title, xlabel="step")
axes[0, 0].legend()
plt.show()

# %% [markdown]
# ## What differs
#
# `python -m xlme_jax.report --runs=A,B` shows the same, and what differs between the manifests and
# at the ends of further curves. Metrics that only one run has are those of the bitext stream.

# %%
import dataclasses

from IPython.display import Markdown

from xlme_jax.studies.reports.run_comparison import compare, to_markdown

comparison = compare([str(folder) for folder in folders.values()])
tables = [one for one in comparison.tables if one.title != "Manifest" and not one.is_folded]
Markdown(to_markdown(dataclasses.replace(comparison, tables=tables)))

# %% [markdown]
# ## The reports
#
# Each run has written `report.html`, and its pictures as `report.png`:

# %%
from IPython.display import Image

Image(folders["with pairs"] / "report.png", width=900)
