"""Batches to show, with texts and predictions made by hand."""

import numpy as np

from xlme_jax.data.batches.streams import TextStream
from xlme_jax.objectives.readings import Detection, Guess, Reading
from xlme_jax.studies.reports.batch_rows import BatchRows, StreamRows

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PIECES = [*SPECIAL, "▁the", "▁cat", "s", "▁sat", "▁שלום", "▁עולם", "▁dog", "<mask>"]
MASK = len(PIECES) - 1
ROWS = [[0, 4, 5, 6, 7, 2, 0, 8, 9, 2, 1, 1]]
SEGMENTS = [[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]]


def reading(with_model=True):
    """Returns a reading in which "cat" is masked, became "dog", and "שלום" is a false alarm."""
    tokens = np.array(ROWS)
    masked = np.zeros(tokens.shape, bool)
    masked[0, [2, 8]] = True
    read = np.where(masked, MASK, tokens)
    if not with_model:
        return Reading(read, masked)
    sampled, probability = np.where(masked, 10, 0), np.where(masked, 0.25, 0)
    guess = Guess(sampled, probability, np.where(masked, 0.5, 0), masked)
    replaced = np.where(masked, [[0, 0, 10, 0, 0, 0, 0, 0, 9, 0, 0, 0]], tokens)
    replaced[0, 8] = 9
    replaced[0, 2] = 10
    called = np.zeros(tokens.shape)
    called[0, [2, 7]] = 0.9
    return Reading(read, masked, {"generator": guess}, Detection(replaced, called))


def stream(pieces=None, **fields):
    """Returns rows of a monolingual stream; `fields` replace those of `StreamRows`."""
    found = PIECES if pieces is None else pieces
    values = {
        "stream": TextStream("text", rows=1, length=12),
        "arrays": {
            "tokens": np.array(ROWS, np.int32),
            "segment_ids": np.array(SEGMENTS, np.int32),
        },
        "languages": {"en": ("en",), "news": ("he",)},
        "shares": {"en": 0.75, "news": 0.25},
        "drawn": ["en"],
        "reading": reading(),
        "pieces": found.__getitem__,
    }
    return StreamRows(**values | fields)


def batch(*streams, metrics=None):
    """Returns a batch of these streams."""
    return BatchRows(3, {"of": "9", "seed": "0"}, streams or (stream(),), metrics or {})
