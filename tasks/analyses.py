"""Evaluation sets of frozen encoders as tasks: Tatoeba, BUCC and gold word alignments.

- `tatoeba_de`: sentences and their English translations, split "test";
- `bucc_zh`: gold pairs of the mining corpora, "validation" or "test" (`xlme_jax.evaluation.bucc`
  mines them from all sentences);
- `wordalign_en_fr`: manually aligned sentence pairs, "test". Besides the pair, an example has the
  links "sure" and "possible" (which include the sure ones), int32[2 n]: 0-based numbers of source
  word, target word, source word, ...

Mixtures: `tatoeba`, `bucc`, `wordalign`. "source" and "target" are int32 ids without special
tokens, as in all pair tasks. TFDS has the first two as pairs too, by a line such as
`tatoeba/tatoeba_de:1.0.0=de-en@source_sentence,target_sentence` (see `tasks.tfds`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import seqio
import tensorflow as tf

from tasks import features, seqio_sources
from xlme_jax.data.benchmarks import labelled_rows, parallel_sets
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation.source_types import required_folder
from xlme_jax.preparation.tokenizing import Texts

NAMES = ("tatoeba", "bucc", "wordalign")
LINKS = ("sure", "possible")


def register(
    name: str,
    directory: str | os.PathLike[str] | None = None,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
) -> list[str]:
    """Registers the tasks of a set and their mixture; lists folders but reads no text.

    Args:
      name: One of `NAMES`.
      directory: Folder with a folder for each set; None uses the environment variable `EVAL_DIR`.
      vocabulary: See `tasks.features.as_vocabulary`.

    Returns:
      Names of the tasks and of the mixture.

    Raises:
      ValueError: The folder is missing or has no file of the set.
    """
    content = "a folder for each benchmark"
    parent = required_folder(directory, "EVAL_DIR", content, "eval_dir")
    folder = labelled_rows.folder_of(parent, name)
    shared = features.as_vocabulary(vocabulary)
    if name == "wordalign":
        folders = [folder / corpus for corpus in parallel_sets.alignment_sets(folder)]
        origins = ((seqio_sources.task_name(name, path.name), path) for path in folders)
        seqio_sources.check_names(origins, "rename one")
        names = [_add_links(path, shared) for path in folders]
    else:
        by_split = _languages(name, folder)
        codes = sorted({code for codes in by_split.values() for code in codes})
        names = [
            _add_pairs(name, folder, code, [s for s in by_split if code in by_split[s]], shared)
            for code in codes
        ]
    if not names:
        raise DataError(
            f"{folder} has no file of {name}; `xlme_jax.data.benchmarks.parallel_sets` describes "
            "the expected files."
        )
    seqio.MixtureRegistry.remove(name)
    seqio.MixtureRegistry.add(name, names, default_rate=1.0)
    return [*names, name]


def register_found(
    directory: str | os.PathLike[str],
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
) -> list[str]:
    """Registers the sets that a folder contains; returns the names of tasks and mixtures."""
    registered = []
    for name in NAMES:
        try:
            registered += register(name, directory, vocabulary)
        except DataError:
            continue
    return registered


def _languages(name: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """Returns {split: languages other than English} of Tatoeba or BUCC."""
    if name == "tatoeba":
        return {"test": parallel_sets.tatoeba_languages(folder)}
    return {split: parallel_sets.bucc_languages(folder, split) for split in ("validation", "test")}


def _add_pairs(
    name: str, folder: Path, code: str, splits: Iterable[str], vocabulary: features.XlmVocabulary
) -> str:
    """Registers the task of Tatoeba or BUCC in a language and English; returns its name."""
    read = _tatoeba if name == "tatoeba" else _bucc
    shards = {
        split: [seqio_sources.Shard(split, functools.partial(read, os.fspath(folder), code, split))]
        for split in splits
    }
    return seqio_sources.add_task(
        seqio_sources.task_name(name, code), shards, (code, "en"), vocabulary
    ).name


def _tatoeba(folder: str, code: str, split: str, report: ReadReport) -> Texts:
    """Yields the pairs of Tatoeba in a language and English."""
    del split  # Tatoeba has only one.
    pairs = parallel_sets.read_tatoeba(folder, code, report)
    return zip(pairs.sources, pairs.targets)


def _bucc(folder: str, code: str, split: str, report: ReadReport) -> Texts:
    """Returns the gold pairs of BUCC in a language and English.

    Raises:
      DataError: The split has no file of gold pairs.
    """
    corpus = parallel_sets.read_bucc(folder, code, split, report)
    if corpus.gold is None:
        raise DataError(f"{folder}: no gold pairs for {code}-en, {split}; add the .gold file")
    return ((corpus.sources[i], corpus.targets[j]) for i, j in sorted(corpus.gold))


def _add_links(folder: Path, vocabulary: features.XlmVocabulary) -> str:
    """Registers the task of the word alignments in a folder; returns its name."""
    read = functools.partial(_linked, os.fspath(folder))
    languages = tuple(folder.name.split("_")[0].split("-")[:2])
    name = seqio_sources.task_name("wordalign", folder.name)
    fields = (*features.BITEXT_FIELDS, *LINKS)
    links = seqio.Feature(seqio.PassThroughVocabulary(1 << 31), add_eos=False, dtype=tf.int32)
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=seqio_sources.TextSource(
            {"test": [seqio_sources.Shard("test", read)]}, languages, fields
        ),
        preprocessors=[encode_linked, seqio.CacheDatasetPlaceholder()],
        output_features={
            **features.output_features(features.BITEXT_FIELDS, vocabulary),
            **dict.fromkeys(LINKS, links),
        },
        metric_fns=[],
    )
    return name


def _linked(folder: str, report: ReadReport) -> Texts:
    """Yields (source, target, sure links, possible links) of sentences; links as "0 0 1 2"."""
    corpus = parallel_sets.read_alignments(folder, report)
    for source, target, *links in zip(corpus.sources, corpus.targets, corpus.sure, corpus.possible):
        texts = (" ".join(f"{i} {j}" for i, j in sorted(pairs)) for pairs in links)
        yield (" ".join(source), " ".join(target), *texts)


def encode_linked(
    dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Preprocessor: tokenizes texts (`features.tokenize`) and parses links into numbers."""
    texts = {name: output_features[name] for name in features.BITEXT_FIELDS}

    def join(ids: Mapping[str, tf.Tensor], example: Mapping[str, tf.Tensor]) -> dict:
        links = {
            name: tf.strings.to_number(tf.strings.split(example[name]), tf.int32) for name in LINKS
        }
        return {**ids, **links}

    return tf.data.Dataset.zip((features.tokenize(dataset, texts), dataset)).map(join)
