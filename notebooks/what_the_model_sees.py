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
# **What it shows.** One line of raw text on its way into the model: the SeqIO task, the shard, the
# packed row, the mask, the generator's samples and the discriminator's verdicts, token by token.
# Before that, the batches of a run, which are known before it starts.
#
# **How long.** About 4 minutes on two CPU cores; most of it is training. No accelerator is needed,
# and no network once the packages are there. If another notebook has trained `runs/notebook`
# already, that run is used.
#
# **What to expect.** After a few hundred steps the generator guesses some names right. The
# discriminator gives replaced tokens several times the probability of the others, and still misses
# many.

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
# The corpus is embedded: names of languages in English, Russian and Greek, and lists of two of
# them, as documents and as translation pairs. The model is the XLM-E of the quickstart.

# %%
import html
import json
from pathlib import Path

import numpy as np
from IPython.display import HTML

import xlme_jax

STEPS = 600
config = xlme_jax.load_config(
    "gin_configs/runs/quickstart.gin",
    {
        "MODEL_DIR": "runs/notebook",
        "TRAIN_STEPS": STEPS,
        "CHECKPOINT_EVERY": STEPS - 1,
        "Loop.log_every": 1,
        "Loop.evaluate_every": max(STEPS // 4, 1),
    },
)

# %% [markdown]
# ## Before training
#
# A batch depends on the configuration alone, so it can be read without a run. The first call
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

# %% [markdown]
# ## One line, from the text to the verdicts
#
# Which line? A translation pair that the last step read, with as many replaced tokens as there are.
# A segment of a packed row is one pair, and its label names the task.

# %%
bitext = next(rows for rows in last.streams if rows.stream.kind == "bitext")


def is_replaced(token):
    return token.verdict.is_replaced


found = [
    (sum(map(is_replaced, part.tokens)), row, part)
    for row in range(len(bitext.arrays["tokens"]))
    for part in bitext.row(row)
    if not isinstance(part, int)  # A number of padding tokens.
]
_, row, segment = max(found, key=lambda one: one[0])
task = segment.label.split(":")[0]
columns = [token.column for token in segment.tokens]
ids = bitext.arrays["tokens"][row, columns]
print(f"{task}, row {row}, columns {columns[0]} to {columns[-1]}: {ids.tolist()}")

# %% [markdown]
# **The shard.** Preparation wrote each pair once, as `<s> e </s> f </s>`. Training reads records by
# their number, in any order, so this is the place where a batch meets the text.

# %%
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import Vocabulary

dataset = PreparedDataset.load(config.train.data_dir)
vocabulary = Vocabulary.load(dataset.vocabulary_path)
prepared = dataset.task(task)
records = dataset.read_records(prepared, range(prepared.examples))
number = next(n for n, record in enumerate(records) if record.tolist() == ids.tolist())
print(f"{prepared.examples:,} pairs in {[shard.file for shard in prepared.shards]}")
print(f"record {number:,}: {records[number].tolist()}")

# %% [markdown]
# **The raw text.** Of the embedded corpus it is generated; of files this would be line `number`.

# %%
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation.cldr_source import find_cldr

corpus = config.train.prepare.cldr
(source,) = (one for one in find_cldr(corpus) if one.task == task)
(shard,) = source.splits["train"]
line = next(text for n, text in enumerate(shard.read(ReadReport())) if n == number)
print(f"{'-'.join(source.languages)}: {' ||| '.join(line)}")

# %% [markdown]
# **The SeqIO task.** It says where the text comes from and turns it into ids, without special
# tokens. `prepare` has run each task once; here it runs again, up to our line.

# %%
from xlme_jax.preparation import quiet

with quiet.tensorflow():  # Imports it without its notes on the machine.
    import seqio

    from tasks import cldr

cldr.register(corpus, vocabulary=dataset.vocabulary_path)
examples = seqio.get_mixture_or_task(task).get_dataset(split="train", shuffle=False)
example = next(iter(examples.skip(number).take(1).as_numpy_iterator()))
for side, text in zip(("source", "target"), line):
    pieces = [vocabulary.id_to_piece(token) for token in example[side].tolist()]
    print(f"{side}: {text!r} -> {pieces} -> {example[side].tolist()}")
assert [*example["source"], *example["target"]] == [token for token in ids if token > 2]

# %% [markdown]
# **The packed row.** Our pair shares its row with others. The model is told which tokens belong
# together (segment ids) and where each pair begins (positions restart).

# %%
PALETTE = {
    "ours": "#cfe3ff",
    "masked": "#fff1b8",
    "found": "#c8f0cd",
    "missed": "#ffd0cc",
    "false alarm": "#e8d4f7",
}


def cell(text, color="", note=""):
    """Returns a cell of a table with escaped text, on a color if there is one."""
    style = "text-align:center;" + (f"background:{color};color:black;" if color else "")
    return f'<td style="{style}" title="{html.escape(note)}">{html.escape(text)}</td>'


def table(rows):
    """Shows {heading: cells} as a table with a column for each token."""
    lines = (f"<tr><th>{name}</th>{''.join(cells)}</tr>" for name, cells in rows.items())
    return HTML(f'<div style="overflow-x:auto"><table>{"".join(lines)}</table></div>')


around = slice(max(columns[0] - 3, 0), columns[-1] + 4)
arrays = {name: bitext.arrays[name][row, around] for name in ("tokens", "segment_ids", "positions")}
ours = [PALETTE["ours"] if n == segment.number else "" for n in arrays["segment_ids"]]
table(
    {
        "token": map(cell, map(vocabulary.id_to_piece, arrays["tokens"].tolist()), ours),
        **{name: map(cell, map(str, arrays[name]), ours) for name in ("segment_ids", "positions")},
    }
)

# %% [markdown]
# **Mask, samples, verdicts.** Yellow: the tokens that are masked. The generator reads the row with
# `<mask>` in their place and samples a token for each; the percentage is the probability that it
# gave to the original. A sample that is the original by chance counts as original. The
# discriminator reads the row with the samples, and its last line is the probability that it calls a
# token replaced. Green: replaced, and found. Red: replaced, and missed. Violet: a false alarm.


# %%
def sample(token):
    guess = token.predictions.get("generator")
    return cell(f"{guess.piece} {guess.of_original:.0%}", PALETTE["masked"]) if guess else cell("")


def verdict(token):
    color = PALETTE.get(token.verdict.kind, "")
    return cell(f"{token.verdict.probability:.0%}", color, token.verdict.kind)


def read(token):
    color = PALETTE.get(token.verdict.kind if is_replaced(token) else "", "")
    return cell(token.verdict.piece, color)


tokens = segment.tokens
table(
    {
        "original": [cell(t.piece) for t in tokens],
        "generator reads": [cell(t.read, PALETTE["masked"] if t.is_masked else "") for t in tokens],
        "generator samples": map(sample, tokens),
        "discriminator reads": map(read, tokens),
        "replaced?": map(verdict, tokens),
    }
)

# %% [markdown]
# ## The whole batch
#
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

# %% [markdown]
# All rows in the same colours, as `python -m xlme_jax.inspect --output=batch.html` writes them. The
# page opens when you run the cell: GitHub shows nothing.

# %%
last
