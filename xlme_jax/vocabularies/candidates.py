"""Candidate vocabularies: one SentencePiece model per language and size, with its ALP, on disk.

The largest candidate of a language is trained from text alone; each smaller candidate starts from
the pieces of the next larger one, which takes a quarter of the time.

A candidate is identified by a digest of everything that it depends on: the sampled text, its size
and the larger ones, the settings and SentencePiece's version. Its files are written once and read
by whoever needs them later, so that an interrupted run goes on where it was, and vocabularies of
other sizes or weights share candidates::

    sw-<digest>.txt.zst   the sampled text, a sentence a line
    sw-4000-<digest>.model, .json   the model; its ALP and checksum
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import zstandard

from xlme_jax.data.vocabulary import (
    TooSmallError,
    Vocabulary,
    VocabularyError,
    sentences,
    train_model,
)
from xlme_jax.preparation import on_beam, workers
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import checksum, seal, unseal
from xlme_jax.vocabularies import vocabulary_measures
from xlme_jax.vocabularies.seeds import train_from

_FORMAT = 2  # Changes if candidates of the same text and settings would differ.


@dataclasses.dataclass(frozen=True)
class LanguageSample:
    """Sampled text of a language.

    Attributes:
      folder: Folder of the file.
      language: Language code.
      digest: SHA-256 of the text, in hexadecimal.
      bytes: Size of the text in bytes.
    """

    folder: str
    language: str
    digest: str
    bytes: int

    @property
    def file(self) -> Path:
        """Path of the compressed text."""
        return as_path(self.folder) / f"{self.language}-{self.digest[:16]}.txt.zst"

    def read(self) -> list[str]:
        """Returns the sentences.

        Raises:
          VocabularyError: The file is missing or damaged.
        """
        try:
            text = zstandard.decompress(self.file.read_bytes())
        except (OSError, zstandard.ZstdError) as error:
            raise VocabularyError(
                f"{self.file} cannot be read ({error}); run the same command again"
            ) from error
        if hashlib.sha256(text).hexdigest() != self.digest:
            raise VocabularyError(
                f"{self.file} is not what was written; delete it and run the same command again"
            )
        return text.decode().split("\n")


def write_sample(folder: str, language: str, texts: Iterable[str]) -> LanguageSample:
    """Writes the sampled text of a language, unless its file exists.

    Args:
      folder: Folder of the samples.
      language: Canonical tag.
      texts: The sampled texts; sentences without content are left out.

    Raises:
      VocabularyError: There is no text.
    """
    text = "\n".join(line for line in sentences(texts) if line.strip()).encode()
    if not text:
        raise VocabularyError(
            f"Language {language!r} has no text; exclude it with --languages, or add text."
        )
    sample = LanguageSample(folder, language, hashlib.sha256(text).hexdigest(), len(text))
    if not sample.file.is_file():
        replace_file(sample.file, zstandard.compress(text))
    return sample


@dataclasses.dataclass(frozen=True)
class CandidateRequest:
    """A candidate to train.

    Attributes:
      sample: Text of the language.
      size: Number of ids, special ones included, as for `train_model`.
      character_coverage: Share of the text's characters that are pieces.
      larger: Sizes of the language's larger candidates, largest first. The pieces of this candidate
        are selected from those of the next larger one; the largest is trained from text alone.
    """

    sample: LanguageSample
    size: int
    character_coverage: float
    larger: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of the candidate's files, without suffix."""
        parts = {
            "format": _FORMAT,
            "sample": self.sample.digest,
            "size": self.size,
            "coverage": self.character_coverage,
            "larger": self.larger,
            "sentencepiece": sentencepiece.__version__,
        }
        return f"{self.sample.language}-{self.size}-{checksum(parts)[:16]}"

    def file(self, suffix: str) -> Path:
        """Returns the path of the candidate's file with a suffix, ".model" or ".json"."""
        return as_path(self.sample.folder) / f"{self.name}{suffix}"


@dataclasses.dataclass(frozen=True)
class VocabularyCandidate:
    """A trained candidate.

    Attributes:
      request: Request that the candidate fulfils.
      pieces: Number of pieces, special ones not counted; 0 if the size is too small for the
        characters of the language.
      alp: Average log-probability of the sample, in nats per sentence.
    """

    request: CandidateRequest
    pieces: int
    alp: float

    def read(self) -> dict[str, float]:
        """Returns {piece: log-probability}, best first."""
        return Vocabulary.load(self.request.file(".model")).scored_pieces()


def find(request: CandidateRequest) -> VocabularyCandidate | None:
    """Returns a candidate that was trained before; None if it was not, or is damaged."""
    try:
        content = unseal(request.file(".json").read_bytes())
        if content["pieces"]:
            model = request.file(".model").read_bytes()
            if hashlib.sha256(model).hexdigest() != content["model"]:
                return None
        return VocabularyCandidate(request, content["pieces"], content["alp"])
    except (OSError, ValueError, KeyError):
        return None


def requests(
    sample: LanguageSample, sizes: Iterable[int], character_coverage: float
) -> list[CandidateRequest]:
    """Returns requests for the candidates of a language, the largest first.

    Args:
      sample: Text of the language.
      sizes: Numbers of pieces of the candidates.
      character_coverage: Share of the sample's characters that get pieces.
    """
    ordered = sorted(sizes, reverse=True)
    return [
        CandidateRequest(sample, size, character_coverage, tuple(ordered[:number]))
        for number, size in enumerate(ordered)
    ]


def train(
    requested: Sequence[CandidateRequest], report: workers.Report = lambda texts: None
) -> None:
    """Trains the candidates of a language that are missing.

    Args:
      requested: All candidates of the language, as `requests` returns them.
      report: Function called with the number of lines of text after each new candidate.

    Raises:
      VocabularyError: The text cannot be read or trained on.
    """
    lines = requested[0].sample.read()
    larger: VocabularyCandidate | None = None
    for request in requested:
        candidate = find(request)
        if candidate is None:
            candidate = _train_one(request, lines, larger)
            report(len(lines))
        larger = candidate


def _train_one(
    request: CandidateRequest, lines: Sequence[str], larger: VocabularyCandidate | None
) -> VocabularyCandidate:
    """Trains a candidate and writes its files, the description last.

    Candidates have no byte fallback: its 256 pieces would be the same in every language.

    Args:
      request: The candidate.
      lines: Its text.
      larger: The next larger candidate; None for the largest.

    Returns:
      The candidate, with 0 pieces if the size is too small for the characters of the text.
    """
    options = {
        "byte_fallback": False,
        "character_coverage": request.character_coverage,
        "num_threads": 1,  # languages are trained side by side
    }
    content: dict[str, Any] = {"pieces": 0, "alp": 0.0, "model": ""}
    try:
        if larger and larger.pieces:
            seeds = {piece: math.exp(score) for piece, score in larger.read().items()}
            model = train_from(seeds, lines, request.sample.bytes, request.size, **options)
        else:
            model = train_model(lines, request.size, **options)
    except TooSmallError:
        pass
    else:
        vocabulary = Vocabulary(model)
        counts, number = vocabulary_measures.token_counts(vocabulary, lines)
        content = {
            "pieces": len(vocabulary.scored_pieces()),
            "alp": vocabulary_measures.average_log_probability(counts, number),
            "model": vocabulary.digest,
        }
        replace_file(request.file(".model"), vocabulary.model)
    replace_file(request.file(".json"), seal(content))
    return VocabularyCandidate(request, content["pieces"], content["alp"])


def train_all(
    languages: Sequence[Sequence[CandidateRequest]],
    processes: int,
    runner: str = "",
    options: Sequence[str] = (),
) -> dict[CandidateRequest, VocabularyCandidate]:
    """Trains the candidates that are missing, in worker processes or on Apache Beam.

    Args:
      languages: The candidates of each language, as `requests` returns them.
      processes: Number of worker processes.
      runner: Beam runner; empty: worker processes.
      options: Further Beam options.

    Returns:
      {request: candidate} of all requests.

    Raises:
      ValueError: A sample is damaged, or a worker died.
    """
    all_requests = list(itertools.chain.from_iterable(languages))
    trained = dict(_trained(all_requests))
    pending = [
        of_language
        for of_language in languages
        if any(request not in trained for request in of_language)
    ]
    # The longest first, so that none runs alone at the end.
    pending.sort(key=lambda of_language: (-of_language[0].sample.bytes, of_language[0].name))
    if runner:
        on_beam.run(train, pending, runner, options)
    else:
        for _ in workers.run(train, pending, processes, None, "candidates", "language"):
            pass
    trained |= dict(_trained(request for request in all_requests if request not in trained))
    if missing := [request.name for request in all_requests if request not in trained]:
        raise VocabularyError(
            f"Candidates are missing or damaged after training: {', '.join(missing[:5])}. Workers "
            "must write to the folder of --candidates; check its disk, and run the command again."
        )
    return trained


def _trained(
    requests: Iterable[CandidateRequest],
) -> Iterator[tuple[CandidateRequest, VocabularyCandidate]]:
    """Yields (request, candidate) of each request whose candidate was trained and is whole."""
    for request in requests:
        if candidate := find(request):
            yield request, candidate


def curve(candidates: Iterable[VocabularyCandidate]) -> list[VocabularyCandidate]:
    """Returns the candidates of a language that can be chosen, by size.

    Sizes below the number of characters, and sizes that the text does not support, which repeat the
    pieces of a smaller one, are left out.

    Raises:
      VocabularyError: No candidate is left.
    """
    usable: list[VocabularyCandidate] = []
    by_size = sorted(candidates, key=lambda candidate: candidate.request.size)
    most_pieces = 0
    for candidate in by_size:
        if candidate.pieces > most_pieces:
            usable.append(candidate)
            most_pieces = candidate.pieces
    if not usable:
        last = by_size[-1].request
        raise VocabularyError(
            f"Language {last.sample.language!r} has more characters than its largest candidate has "
            f"ids ({last.size:,}): give larger --candidate_sizes or a lower --character_coverage."
        )
    return usable
