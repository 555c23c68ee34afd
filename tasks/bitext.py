"""Files of translation pairs as tasks `bitext_<lang>_<lang>`, and the mixture `bitext` of them all.

Moses files, OPUS zips, TSV, TMX and multi-way files, whatever `xlme_jax.data.bitext` finds in a
folder; all files of a pair make one task. The two languages of a pair stand in alphabetical order;
training keeps it, or swaps them at random where `Stream.flip` says so.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection

from tasks import features, mixtures, sources
from xlme_jax.data.bitext import BitextSource, discover_bitext, group_by_pair, read_bitext

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

    Returns:
      `[name]`.

    Raises:
      ValueError: If the folder, a language or a pair is missing.
    """
    folder = features.required_folder(directory, FOLDER_VARIABLE, "pair files", "bitext_dir")
    shared = features.as_vocabulary(vocabulary)
    groups = group_by_pair(discover_bitext(folder, languages or None, pairs or None, pivot))
    names = [sources.task_name(name, group[0].lang1, group[0].lang2) for group in groups.values()]
    # `en-pt_sw` and `en_pt-sw` are different pairs whose tasks would have one name.
    files = [group[0].paths[0] for group in groups.values()]
    sources.check_names(zip(names, files), "move one of them to another folder")
    for task, group in zip(names, groups.values()):
        shards = [_shard(source) for source in group]
        sources.add_task(task, {"train": shards}, (group[0].lang1, group[0].lang2), shared)
    return [mixtures.add_mixture(name, names, alpha, prepared).name]


def _shard(source: BitextSource) -> sources.Shard:
    title = " + ".join(map(os.fspath, source.paths))
    read = functools.partial(read_bitext, source)
    multiway = source.kind == "multiway"
    key = f"{source.kind} {source.swap}"
    return sources.Shard(title, read, source.paths, key, may_be_empty=multiway)
