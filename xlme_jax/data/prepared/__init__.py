"""Prepared data set: token ids in ArrayRecord shards, described by `dataset.json`.

This module exports its readers; `writer` and `shared` write it.
"""

from xlme_jax.data.prepared.dataset import PreparedDataset, Records
from xlme_jax.data.prepared.format import (
    PAGE_TOKENS,
    FileInfo,
    PreparedDataError,
    PreparedDataMissing,
    TaskInfo,
)

__all__ = [
    "PAGE_TOKENS",
    "FileInfo",
    "PreparedDataError",
    "PreparedDataMissing",
    "PreparedDataset",
    "Records",
    "TaskInfo",
]
