"""Reads the pairs of one file, or of two, in the order of the languages that a test names."""

import dataclasses

from xlme_jax.data.text.pair_kinds import canonical_source, read_bitext
from xlme_jax.data.text.pair_readers import multiway_files
from xlme_jax.data.text.reading import DataError, ReadReport


def _read(kind, pair, paths, report, **fields):
    source = dataclasses.replace(canonical_source(kind, pair, *paths), **fields)
    pairs = read_bitext(source, ReadReport() if report is None else report)
    return ((second, first) for first, second in pairs) if source.swap else pairs


def read_moses(first, second, report=None):
    return _read("moses", ("en", "sw"), (first, second), report)


def read_opus_zip(path, lang1, lang2, report=None):
    return _read("zip", (lang1, lang2), (path,), report)


def read_tsv(path, report=None, columns=None):
    return _read("tsv", ("en", "sw"), (path,), report, columns=columns)


def read_tmx(path, lang1, lang2, report=None):
    return _read("tmx", (lang1, lang2), (path,), report)


def read_multiway(folder, lang1, lang2, report=None):
    files = {language: path for path, language in multiway_files(folder).items()}
    if not {lang1, lang2} <= files.keys():
        raise DataError(f"{folder}: has {', '.join(files)}, and a test asks for {lang1}, {lang2}")
    return _read("multiway", (lang1, lang2), (files[lang1], files[lang2]), report)
