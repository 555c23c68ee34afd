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
# # Your own system
#
# **What it shows.** A pre-training system written outside the package: XLM in which the model also
# reads its own samples in place of the masked tokens, and predicts the original tokens again
# ("Replace MLM" of ELECTRA, with one network in both roles). The train loop, the reports, the
# inspection of batches and the loaded model take it as it is.
# docs/guide/own_system.md is the reference.
#
# **How long.** About 4 minutes on two CPU cores; most of it is training.
#
# **What to expect.** The accuracy of the second pass stays a little below that of the first,
# although many samples are right: `<mask>` says which token is missing, a plausible wrong one does
# not.

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
# ## A configuration
#
# A system is a module, because its checkpoints import it again: `evaluate`, `export` and a resumed
# run do. The following cells write one; together they are examples/hard_negatives.
#
# First the configuration, a frozen dataclass. Gin can set its fields, and its errors name the
# field.

# %%
# %%writefile hard_negatives.py
"""XLM that also corrects its own predictions: a pre-training system defined outside xlme_jax.

`<mask>` does not occur in the text of downstream tasks. Here each masked token is also replaced by
the model's own sample, a plausible wrong word, and predicted again: "Replace MLM" of ELECTRA (Clark
et al., 2020, Sec. 3.4), with one network in both roles.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.configuration import registry
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Diagnostics,
    LossOutputs,
    Metrics,
    Panel,
    Params,
    Shapes,
    Totals,
)
from xlme_jax.objectives.xlme import XLM, XLMConfig
from xlme_jax.ops import dropout, masking


@dataclasses.dataclass(frozen=True)
class HardNegativesConfig(XLMConfig):
    """XLM with corrections: L = MLM + TLM + correction_weight x correction.

    Attributes:
      encoder: as in `XLMConfig`.
      masking: as in `XLMConfig`.
      translation_pairs: as in `XLMConfig`.
      correction_weight: weight of predicting tokens from text with the model's samples; at least 0.
    """

    correction_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.correction_weight < 0:
            raise ValueError(
                f"HardNegatives.correction_weight = {self.correction_weight} must not be negative."
            )

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "HardNegatives":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return HardNegatives(self, vocab_size, dtype)


# %% [markdown]
# ## An objective
#
# The nearest system is XLM, so `loss` is all that changes. It gets the weights, the batch, the
# denominators of the means (`totals`, from the whole batch), and a key. It returns this batch's
# shares of the losses, and metrics as pairs of numerator and denominator. `stream_keys` and
# `predict` are those of the masked language models here; `keys_per_stream` asks for one key more
# than XLM.

# %%
# %%writefile -a hard_negatives.py


class HardNegatives(XLM):
    """Objective of `HardNegativesConfig`; see `xlme_jax.objectives.base.Objective`."""

    config: HardNegativesConfig
    keys_per_stream = 3  # Of masks, and of dropout in both passes.

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns the batch's shares of MLM, TLM and the corrections."""
        losses: dict[str, jax.Array] = {}
        metrics: Metrics = {}
        for name in self.masked_streams:
            mask_rng, *rngs = self.stream_keys(rng, name)
            masked, guess = self.predict(params, batch[name], mask_rng, rngs[0], name)
            losses[f"{name}/mlm"], mlm_metrics = masked.loss(guess, totals[name]["masked"])
            # The samples are integers, so no gradient flows through them.
            tokens = masking.replace(
                batch[name]["tokens"], masked.positions, masked.is_masked, guess.sample
            )
            correction: Any = self.model.apply(
                {"params": params},
                {**batch[name], "tokens": tokens},
                masked.positions,
                masked.targets,
                masked.uniforms,
                dropout.seeds(rngs[1], batch[name]["rows"]),
            )
            corrected, again = masked.loss(correction, totals[name]["masked"])
            losses[f"{name}/correction"] = self.config.correction_weight * corrected
            mlm_metrics |= {
                "correction_loss": again["mlm_loss"],
                "correction_accuracy": again["mlm_accuracy"],
            }
            metrics |= {f"{name}/{key}": value for key, value in mlm_metrics.items()}
        return LossOutputs(losses, metrics)

    @property
    def diagnostics(self) -> Diagnostics:
        """Those of XLM, and FLOPs and a plot of the corrections."""
        xlm = super().diagnostics
        panel = Panel(
            "Corrections", "good: falls", "nats per masked token", (("correction_loss", "", "-"),)
        )

        def flops(shapes: Shapes) -> dict[str, float]:
            parts = xlm.flops(shapes)
            return {**parts, "correction": sum(parts.values())}

        weights = {**xlm.loss_weights, "correction_loss": self.config.correction_weight}
        return dataclasses.replace(
            xlm, flops=flops, panels=(*xlm.panels, panel), loss_weights=weights
        )


# %% [markdown]
# `diagnostics` counts FLOPs and describes a plot for the report. The last line gives the
# configuration its name in gin.

# %%
# %%writefile -a hard_negatives.py

registry.add("HardNegatives", HardNegativesConfig)

# %% [markdown]
# ## A gin file
#
# It begins with the import. The line becomes part of every checkpoint.

# %%
from pathlib import Path

import xlme_jax

Path("hard_negatives.gin").write_text("""
import hard_negatives
include 'gin_configs/models/xlm.gin'
include 'gin_configs/embedded.gin'

MODEL_DIR = 'runs/hard_negatives'
Train.objective = @HardNegatives()
HardNegatives.encoder = @Encoder()
HardNegatives.masking = @Masking()
Encoder.num_layers = 2
""")
STEPS = 600
config = xlme_jax.load_config(
    "hard_negatives.gin",
    {
        "TRAIN_STEPS": STEPS,
        "Loop.log_every": 10,
        "Loop.evaluate_every": STEPS,
        "Optimizer.learning_rate": 2e-3,
    },
)
try:
    xlme_jax.load_config("hard_negatives.gin", {"HardNegatives.correction_weight": -1.0})
except ValueError as error:
    print(error)

# %% [markdown]
# ## Train

# %%
folder = xlme_jax.train(config)
print((folder / "config.gin").read_text().splitlines()[0])

# %% [markdown]
# The metrics of `loss` are in the log, by stream. `correction` is the second pass.

# %%
import matplotlib.pyplot as plt

from xlme_jax.training.metrics import read_metrics

curves = read_metrics(folder)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained", sharey=True)
for axis, stream in zip(axes, ("monolingual", "bitext")):
    for metric in ("mlm_accuracy", "correction_accuracy"):
        axis.plot(*zip(*curves[f"{stream}/{metric}"]), label=metric)
    axis.set(title=stream, xlabel="step", ylim=(0, 1))
axes[0].set_ylabel("share of masked tokens")
axes[0].legend()
plt.show()

# %% [markdown]
# `report.html` has a plot of its own for the panel in `diagnostics`:

# %%
from IPython.display import Image

Image(folder / "report.png", width=900)

# %% [markdown]
# ## Look at what it reads, and ask it
#
# `read` is inherited, so the masks and predictions of a batch can be seen; so is what `fill` needs.
# Here the trained weights read the batch of step 1.

# %%
print(xlme_jax.inspect_batch(config, step=1, checkpoint=folder).text(rows=1))

# %%
model = xlme_jax.load(folder)
for token, probability in model.fill("Bulgarian <mask> Telugu", k=3)[0]:
    print(f"{token:12} {probability:.3f}")

# %% [markdown]
# ## What a system must keep to
#
# - All methods are pure. Randomness comes from the key that `loss` receives and from
#   `rows["rows"]`, the number of each row in the global batch. Then one batch, four micro-batches
#   and eight devices give the same gradient.
# - A loss is a sum over a denominator of `totals`, never a mean over the micro-batch.
# - Metrics are (numerator, denominator) pairs.
