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
# # What the model sees
#
# The batches of a run, before it and while it learns: which tokens are masked, what the generator
# puts in their place, and which of them the discriminator finds. The corpus is embedded: names of
# languages in English, Russian and Greek. Training takes a few minutes on two CPU cores.

# %%
import json
from pathlib import Path

import numpy as np

import xlme_jax

STEPS = 300
config = xlme_jax.load_config(
    "gin_configs/runs/quickstart.gin",
    {
        "MODEL_DIR": "runs/notebook",
        "TRAIN_STEPS": STEPS,
        "CHECKPOINT_EVERY": STEPS - 1,
        "Loop.log_every": 1,
        "Train.evaluators": (),
    },
)

# %% [markdown]
# ## Before training
#
# A batch depends on the configuration alone, so that it can be read without a run. The first call
# prepares the data.

# %%
first = xlme_jax.inspect_batch(config, step=1)
print(first.text(rows=1))

# %% [markdown]
# All arrays are there as well. Rows are packed: texts and pairs share a row, separated by segment
# ids, and little of it is padding.

# %%
for rows in first.streams:
    segments = rows.arrays["segment_ids"]
    real, masked = segments > 0, rows.reading.is_masked
    print(
        f"{rows.stream.name:12} {segments.max(axis=1).mean():5.1f} segments a row, "
        f"{(~real).mean():.1%} padding, {masked[real].mean():.1%} of the tokens masked"
    )

# %% [markdown]
# ## After training
#
# With the checkpoint of the step before, the masks, samples and verdicts are those of the step, and
# so are its metrics: they are the last line of the log.

# %%
model_dir = Path(xlme_jax.train(config))
last = xlme_jax.inspect_batch(
    config, step=STEPS, checkpoint=model_dir / "checkpoints" / str(STEPS - 1)
)
logged = json.loads((model_dir / "metrics.jsonl").read_text().splitlines()[-1])
for name in ("bitext/mlm_loss", "bitext/rtd_loss", "bitext/replace_rate"):
    print(f"{name:20} {last.metrics[name]:.5f}, in the log {logged[name]:.5f}")
    assert np.isclose(last.metrics[name], logged[name], rtol=1e-4)

# %%
last

# %% [markdown]
# How sure is the discriminator? Its probability that a token was replaced, of tokens that were and
# of tokens that were not.

# %%
for rows in last.streams:
    verdicts, real = rows.reading.detection, rows.arrays["segment_ids"] > 0
    replaced = (verdicts.tokens != rows.arrays["tokens"]) & real
    print(
        f"{rows.stream.name:12} replaced {verdicts.probability[replaced].mean():.1%}, "
        f"original {verdicts.probability[real & ~replaced].mean():.1%}"
    )
