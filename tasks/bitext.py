"""Files of translation pairs as tasks `bitext_<lang>_<lang>`, and the mixture `bitext` of them all.

Moses files, OPUS zips, TSV, TMX and multi-way files, whatever `xlme_jax.data.text.bitext` finds in
a folder; all files of a pair make one task. The two languages of a pair stand in alphabetical
order; training keeps it, or swaps them at random where `Stream.flip` says so.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Collection, Sequence

from tasks import features, mixtures, sources
from xlme_jax.data.text.bitext import BitextSource, discover_bitext, group_by_pair, read_bitext
from xlme_jax.data.text.held_out import VALIDATION, HeldOut, corpus_name
from xlme_jax.preparation import examples

NAME = "bitext"
FOLDER_VARIABLE = "BITEXT_DIR"


def register(
    directory: str | os.PathLike[str] | None = None,
    languages: Collection[str] = (),
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
    prepared: str | os.PathLike[str] | None = None,
    pairs: Collection[str] = (),
    pivot: str | None = None,
    name: str = NAME,
    held_out: HeldOut | None = None,
    tsv_columns: tuple[int, int] | None = None,
    shuffle_pairs: bool = False,
) -> list[str]:
    """Registers a task per language pair found, and the mixture; reads folder listings, no text.

    Args:
      directory: Where the files are; by default the environment variable `BITEXT_DIR`.
      languages: Keep to pairs of these; empty: all.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixture's rates.
      prepared: Prepared data set with exact counts for the rates; else file sizes decide.
      pairs: Keep to these ("en-sw"); empty: all.
      pivot: Keep to pairs with this language.
      name: Of the mixture, and prefix of the tasks.
      held_out: What forms the split "validation"; None: there is no such split.
      tsv_columns: See `xlme_jax.data.text.bitext_files.BitextSource.columns`.
      shuffle_pairs: A control without translations: in split "train" each text gets the partner of
        another one of its file (`xlme_jax.preparation.examples.mismatched_pairs`).

    Returns:
      `[name]`.

    Raises:
      ValueError: If the folder, a language or a pair is missing.
    """
    folder = features.required_folder(directory, FOLDER_VARIABLE, "pair files", "bitext_dir")
    shared = features.as_vocabulary(vocabulary)
    groups = group_by_pair(
        discover_bitext(folder, languages or None, pairs or None, pivot, tsv_columns=tsv_columns)
    )
    names = [sources.task_name(name, group[0].lang1, group[0].lang2) for group in groups.values()]
    # `en-pt_sw` and `en_pt-sw` are different pairs whose tasks would have one name.
    files = [group[0].paths[0] for group in groups.values()]
    sources.check_names(zip(names, files), "move one of them to another folder")
    for task, group in zip(names, groups.values()):
        splits = {"train": [_shard(source) for source in group]}
        if held_out is not None:
            splits = _splits(held_out, group)
        if shuffle_pairs:
            splits["train"] = [_mismatched(shard) for shard in splits["train"]]
        sources.add_task(task, splits, (group[0].lang1, group[0].lang2), shared)
    return [mixtures.add_mixture(name, names, alpha, prepared).name]


def _shard(source: BitextSource) -> sources.Shard:
    title = " + ".join(map(os.fspath, source.paths))
    read = functools.partial(read_bitext, source)
    multiway = source.kind == "multiway"
    key = f"{source.kind} {source.swap}" + (f" {source.columns}" if source.columns else "")
    return sources.Shard(title, read, source.paths, key, may_be_empty=multiway)


def _mismatched(shard: sources.Shard) -> sources.Shard:
    read = functools.partial(examples.mismatched_pairs, shard.read)
    return dataclasses.replace(shard, read=read, key=f"{shard.key} mismatched")


def _splits(held_out: HeldOut, group: Sequence[BitextSource]) -> dict[str, list[sources.Shard]]:
    """The splits of a pair; without "validation" where nothing of it can be held out."""
    rule = held_out.rule
    if rule.kind == "folder":
        others = held_out.folder().sources
        validation = [_shard(other) for other in others if other.pair == group[0].pair]
    else:
        chosen = [s for s in group if rule.kind != "ids" or s.kind == "multiway"]
        validation = [_split_shard(held_out, source, VALIDATION) for source in chosen]
    splits = {"train": [_split_shard(held_out, source, "train") for source in group]}
    return {**splits, VALIDATION: validation} if validation else splits


def _split_shard(held_out: HeldOut, source: BitextSource, split: str) -> sources.Shard:
    whole = _shard(source)
    key = held_out.key(corpus_name(source), source.lang1, source.lang2)
    return dataclasses.replace(
        whole,
        read=functools.partial(examples.split_pairs, held_out.without_corpora(), source, split),
        key=f"{whole.key} {key}",
        may_be_empty=whole.may_be_empty or split == VALIDATION,
    )
