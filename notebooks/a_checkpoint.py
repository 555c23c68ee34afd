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
# # A checkpoint
#
# **What it shows.** What a trained encoder knows of its languages, layer by layer: which layer
# retrieves translations, which words it aligns, what the neighbours of a text in another language
# are, and how far apart the languages lie before and after each language's mean is subtracted.
#
# **How long.** About 5 minutes on two CPU cores; most of it is training. For a checkpoint of your
# own, set `checkpoint` and the lists of texts.
#
# **What to expect.** The encoder is small and trained for minutes, but with InfoXLM's contrast,
# which pulls translations together. It retrieves most held-out translations, the untrained one
# hardly any; and languages that are separate clusters at first overlap once they are centred.

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

# %%
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image

import xlme_jax

STEPS = 600
config = xlme_jax.load_config(
    "gin_configs/runs/infoxlm_quickstart.gin",
    {
        "MODEL_DIR": "runs/notebook_infoxlm",
        "TRAIN_STEPS": STEPS,
        "Loop.evaluate_every": STEPS,
    },
)
checkpoint = xlme_jax.train(config)
model = xlme_jax.load(checkpoint)
model

# %% [markdown]
# ## Held-out translations
#
# The prepared data set has pairs of texts that training never reads: names of languages that do not
# occur in the training text, and lists with them. We keep pairs whose texts occur once, so that
# every text has exactly one translation.

# %%
from collections import Counter

from xlme_jax.data.prepared import PreparedDataset

dataset = PreparedDataset.load(config.train.data_dir)


def held_out(task, most=300):
    """Returns the texts of both sides of a task's held-out pairs."""
    rows = dataset.task(task, "validation")
    sides = zip(*dataset.read_pairs(rows, range(rows.examples)))
    pairs = list(zip(*([model.vocabulary.decode(ids.tolist()) for ids in side] for side in sides)))
    counts = Counter(text for pair in pairs for text in pair)
    return zip(*[pair for pair in pairs if counts[pair[0]] == counts[pair[1]] == 1][:most])


english, russian = map(list, held_out("cldr_bitext_en_ru"))
print(f"{len(english)} pairs, such as {english[0]!r} and {russian[0]!r}")

# %% [markdown]
# ## Retrieval by layer
#
# `encode_layers` embeds texts by every layer in one pass: 0 is the embeddings, k the output of
# layer k. Each English text looks for its translation among all Russian ones, and the other way
# round. How embeddings are compared matters as much as the layer: `raw` is the cosine,
# `centred_transductive` subtracts each language's mean over these texts first, `csls` corrects for
# texts that are close to everything. The dashed lines are the same model with its initial weights.

# %%
from xlme_jax.evaluation import readouts

READOUTS = ("raw", "centred_transductive", "csls")


def accuracies(model):
    """Returns accuracy@1 by readout at each layer, the mean of both directions."""
    sides = (model.encode_layers(texts) for texts in (english, russian))
    found = readouts.search(*sides, readouts=READOUTS)
    return {name: readouts.accuracies(of)["mean"] for name, of in found.items()}


trained, untrained = accuracies(model), accuracies(model.untrained())
figure, axis = plt.subplots(figsize=(7.5, 3.5), layout="constrained")
for number, name in enumerate(READOUTS):
    axis.plot(100 * trained[name], f"C{number}o-", label=name)
    axis.plot(100 * untrained[name], f"C{number}--", label=f"{name}, untrained")
axis.axhline(100 / len(english), color="gray", linestyle=":", label="chance")
axis.set(xlabel="layer", ylabel="accuracy@1 in percent", title="English and Russian, held out")
axis.set_xticks(range(model.num_layers + 1))
figure.legend(loc="outside right upper", fontsize=8)
plt.show()
best = int(np.argmax(trained["csls"]))
print(f"best layer: {best}, {trained['csls'][best]:.1%} by csls; chance {1 / len(english):.1%}")

# %% [markdown]
# ## Alignment of words
#
# `align` links the words of a pair by optimal transport between their hidden states: the darker,
# the stronger; the dots are the links.

# %%
from xlme_jax.studies.reports import pictures

number = max(range(len(english)), key=lambda n: len(english[n].split()) * len(russian[n].split()))
links = model.align(english[number], russian[number], layer=best)
print(sorted((links.source[i], links.target[j]) for i, j in links.predicted))
Image(pictures.alignment_matrix(links))

# %% [markdown]
# ## Neighbours in another language
#
# The three Russian texts that are closest to an English one. Look at the others, too: most share a
# name with the translation.

# %%
SHOWN = 8
matches = model.retrieve(english[:SHOWN], russian, k=3, layer=best)
for query, truth, indices in zip(english, russian, matches.indices):
    print(f"{query}  ({truth})")
    for rank, index in enumerate(indices, start=1):
        print(f"    {rank}. {russian[index]}{'   <- right' * (russian[index] == truth)}")

# %% [markdown]
# ## Languages in the plane
#
# The first two principal components of all texts; thin lines join a few translations. Left: the
# languages lie apart, with the same shape each: single names at one end, lists at the other. Right:
# after subtracting each language's mean, texts of different languages mix, and translations are
# close. This is why `raw` and `centred_transductive` differ above. `planes.languages(states)` draws
# the same without lines, and `evaluate --tasks=held_out_retrieval` writes it as a file.

# %%
from xlme_jax.studies.reports import planes

greek, _ = map(list, held_out("cldr_bitext_el_en"))
texts = {"English": english, "Russian": russian, "Greek": greek}
states = {name: model.encode(side, layer=best) for name, side in texts.items()}
centred = {name: rows - rows.mean(axis=0) for name, rows in states.items()}
ends = np.cumsum([len(side) for side in texts.values()])[:-1]
figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for axis, title, each in zip(axes, ("as they are", "each language centred"), (states, centred)):
    points, _ = planes.principal_components(np.concatenate(list(each.values())))
    points = np.split(points, ends)
    for name, side in zip(texts, points):
        axis.scatter(*side.T, s=8, alpha=0.6, label=name)
    for one, other in zip(points[0][:15], points[1][:15]):
        axis.plot(*zip(one, other), color="gray", linewidth=0.6)
    axis.set(title=title, xticks=[], yticks=[])
axes[0].legend()
plt.show()
