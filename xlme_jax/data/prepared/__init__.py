"""Prepared data set: token ids in ArrayRecord shards, described by `dataset.json`."""

from xlme_jax.data.prepared.dataset import PreparedDataset, Records
from xlme_jax.data.prepared.format import (
    PAGE_TOKENS,
    FileInfo,
    PreparedDataError,
    PreparedDataMissing,
    TaskInfo,
)
from xlme_jax.data.prepared.shared import remove_unused, share, shared_tasks
from xlme_jax.data.prepared.writer import (
    BitextWriter,
    LabelledWriter,
    MonolingualWriter,
    finished_task,
    merge_parts,
    write_dataset,
)

__all__ = [
    "PAGE_TOKENS",
    "BitextWriter",
    "FileInfo",
    "LabelledWriter",
    "MonolingualWriter",
    "PreparedDataError",
    "PreparedDataMissing",
    "PreparedDataset",
    "Records",
    "TaskInfo",
    "finished_task",
    "merge_parts",
    "remove_unused",
    "share",
    "shared_tasks",
    "write_dataset",
]
