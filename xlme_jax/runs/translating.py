"""Translates lines of text with a trained run."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from xlme_jax.checkpoints.saved import checkpoint_of, read_record
from xlme_jax.configuration import loading
from xlme_jax.data.scripts import in_scripts
from xlme_jax.data.token_ids import BOS_ID, EOS_ID, UNK_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import results
from xlme_jax.evaluation.alignment_matrices import AlignmentMatrix, matrix_file
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.encoding import Text
from xlme_jax.evaluation.outcome import Outcome, Result
from xlme_jax.evaluation.random_translations import Sampling
from xlme_jax.evaluation.translation import Hypothesis, TranslationScore, Translator
from xlme_jax.runs import trained
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import pictures
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states

_log = logging.getLogger(__name__)
_EXPLAINED = 20  # Most lines that --explain draws.
_NAMED = 20  # Most lines with cut translations that a warning lists.


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation of a line.

    Attributes:
      line: number of the line, from 1.
      score: log-probability over length^penalty (`length_penalty` of the search).
      text: the translation.
    """

    line: int
    score: float
    text: str


def translate(
    checkpoint: str,
    lines: Sequence[str],
    language: str,
    search: BeamSearch | Sampling,
    n_best: int = 1,
    vocabulary: str | None = None,
    name: str = "the source",
    scripts: Sequence[str] = (),
    explain: Path | None = None,
    mesh: meshes.MeshConfig | None = None,
) -> Iterator[list[Translation]]:
    """Translates lines; yields up to `n_best` translations of each, none of an empty line.

    All lines are translated before the first is yielded.

    Args:
      checkpoint: MODEL_DIR of a run of `objectives.translator`, or one of its checkpoints.
      lines: the text.
      language: language to translate into.
      search: how to search translations, or to draw them.
      n_best: maximum number of translations of each line.
      vocabulary: SentencePiece model; None uses the one of the run's data.
      name: name of the text, for errors.
      scripts: ISO 15924 codes of the scripts that translations may be written in; empty for all.
      explain: folder for the cross-attention of the first lines (`write_attention`).
      mesh: how devices share weights and batches; None for the run's own (`trained.mesh_of`).

    Raises:
      ValueError: the run does not translate, or not into this language; `n_best` is below 1 or
        above the hypotheses of the search; the vocabulary lacks a script; or a line is longer than
        the model reads. Nothing was compiled.
    """
    if not 1 <= n_best <= search.hypotheses:
        raise ValueError(f"--n_best={n_best} must be from 1 to --beams={search.hypotheses}")
    with _loaded(checkpoint, vocabulary, search, scripts, mesh) as (loaded, translator):
        texts = _tokenized(lines, loaded.vocabulary, translator.max_length, name)
        filled = [number for number, text in enumerate(texts) if len(text) > 2]
        sources = [texts[number] for number in filled]
        decoded = translator.each(loaded.params, sources, language, filled)
        bar = tqdm(decoded, "translate", len(filled), unit="line", disable=len(filled) < 2)
        hypotheses = {filled[index]: best[:n_best] for index, best in bar}
        _report_cut(hypotheses)
        if explain is not None:
            best = {n: (texts[n], hypotheses[n][0]) for n in filled if hypotheses[n]}
            write_attention(loaded, translator, best, language, explain)
    for number in range(len(lines)):
        yield [
            Translation(number + 1, hypothesis.score, loaded.vocabulary.decode(hypothesis.tokens))
            for hypothesis in hypotheses.get(number, [])
        ]


def _report_cut(hypotheses: Mapping[int, Sequence[Hypothesis]]) -> None:
    """Logs how many translations end at the length limit of their lines.

    Args:
      hypotheses: {number of a line from 0: its translations}.
    """
    counts = {n: sum(hypothesis.is_cut for hypothesis in hypotheses[n]) for n in sorted(hypotheses)}
    lines = [number + 1 for number, count in counts.items() if count]
    if not lines:
        return
    named = ", ".join(map(str, lines[:_NAMED])) + (", ..." if len(lines) > _NAMED else "")
    _log.warning(
        "%d of %d translations are cut: they have all the tokens that their line allows (twice its "
        "own, rounded up as rows are, or the position table) and no end, as where a model repeats "
        "itself. Lines: %s",
        sum(counts.values()),
        sum(len(best) for best in hypotheses.values()),
        named,
    )


def write_attention(
    loaded: trained.LoadedRun,
    translator: Translator,
    best: Mapping[int, tuple[Text, Hypothesis]],
    language: str,
    folder: Path,
) -> None:
    """Writes which source tokens each token of a translation reads (`objectives.cross_attention`).

    For each of the first lines there is a picture of the weights (`line_1.png`), and a file of
    pieces and weights (`matrices/line_1.json`), which `evaluation.alignment_matrices.read_matrix`
    reads. Pieces that matplotlib cannot draw, such as pieces of scripts that run from right to
    left, are numbers in the picture.

    Args:
      loaded: the checkpoint.
      translator: the model.
      best: {number of a line from 0: (its tokens, its translation)}.
      language: language of the translations.
      folder: created if missing.
    """
    chosen = sorted(best)[:_EXPLAINED]
    if len(best) > len(chosen):
        _log.warning("--explain: the first %d of %d lines", len(chosen), len(best))
    pairs = []
    for number in chosen:
        source, hypothesis = best[number]
        end: Text = () if hypothesis.is_cut else (EOS_ID,)
        pairs.append((source, (BOS_ID, *hypothesis.tokens, *end)))
    for index, weights in translator.attention(loaded.params, pairs, language):
        pieces = [tuple(map(loaded.vocabulary.id_to_piece, text)) for text in pairs[index]]
        # A dot marks the source token that each token of the translation reads most.
        strongest = frozenset((int(i), j) for j, i in enumerate(weights.argmax(axis=1)))
        pair = AlignmentMatrix(pieces[0], pieces[1][1:], weights.T, predicted=strongest)
        name = f"line_{chosen[index] + 1}"
        replace_file(folder / f"{name}.png", pictures.alignment_matrix(pair, name))
        for path, text in matrix_file(name, pair).items():
            replace_file(folder / path, text.encode())


def write_results(
    checkpoint: str,
    test_set: str,
    language: str,
    scores: Mapping[str, float],
    signature: str,
    command: str,
) -> Path:
    """Writes the scores of a checkpoint's translations to MODEL_DIR/evaluation/STEP/results.json.

    Args:
      checkpoint: MODEL_DIR of the run, or one of its checkpoints.
      test_set: name of the test set, whose earlier results are replaced.
      language: language of the translations.
      scores: {metric: 0 to 100}.
      signature: description of how the scores were computed.
      command: the command line, stored with the results.

    Returns:
      The path of `results.json`.

    Raises:
      ResultsError: the file is damaged, or of another checkpoint.
    """
    folder = checkpoint_of(as_path(checkpoint))
    config = loading.load_text(read_record(folder).config, "Train", str(folder))
    objective: Any = config.objective
    layers, decoder = objective.encoder.num_layers, objective.decoder.num_layers
    setting = f"{layers} layers, decoder {objective.decoder_from} {decoder}; {signature}"
    rows = [Result(test_set, language, x, y / 100, setting=setting) for x, y in scores.items()]
    outcome = Outcome(tuple(rows), {f"{test_set}/{x}": y / 100 for x, y in scores.items()})
    output = folder.parent.parent / "evaluation" / folder.name
    return results.write(outcome, output, trained.header_of(folder, config, command))


def score(
    checkpoint: str,
    lines: Sequence[str],
    translations: Sequence[str],
    language: str,
    vocabulary: str | None = None,
    names: tuple[str, str] = ("the source", "the translations"),
    mesh: meshes.MeshConfig | None = None,
) -> list[TranslationScore]:
    """Returns the scores of given translations, one for each line.

    Args:
      checkpoint: MODEL_DIR of a run of `objectives.translator`, or one of its checkpoints.
      lines: the source text.
      translations: the translation of each line.
      language: language of the translations.
      vocabulary: SentencePiece model; None uses the one of the run's data.
      names: names of source and translations, for errors.
      mesh: how devices share weights and batches; None for the run's own (`trained.mesh_of`).

    Raises:
      ValueError: as `translate`; or the number of lines differs.
    """
    if len(lines) != len(translations):
        raise ValueError(
            f"{names[0]} has {len(lines):,} lines, {names[1]} has {len(translations):,}; line n of "
            "one must translate line n of the other"
        )
    with _loaded(checkpoint, vocabulary, BeamSearch(), mesh=mesh) as (loaded, translator):
        length = translator.max_length
        sides = [
            _tokenized(text, loaded.vocabulary, length, name)
            for text, name in zip((lines, translations), names)
        ]
        scores = dict(translator.score(loaded.params, list(zip(*sides)), language))
    return [scores[number] for number in range(len(lines))]


@contextlib.contextmanager
def _loaded(
    checkpoint: str,
    vocabulary: str | None,
    search: BeamSearch | Sampling,
    scripts: Sequence[str] = (),
    mesh: meshes.MeshConfig | None = None,
) -> Iterator[tuple[trained.LoadedRun, Translator]]:
    """Yields a checkpoint on all devices and its translator, under the mesh's sharding rules."""
    devices = meshes.make_mesh(mesh or trained.mesh_of(checkpoint))
    _log.info("Devices: %s", ", ".join(f"{axis} {n}" for axis, n in devices.shape.items()))
    with states.sharding_rules(devices):
        loaded = trained.load(checkpoint, vocabulary, devices)
        allowed = in_scripts(loaded.vocabulary, scripts) if scripts else None
        yield (
            loaded,
            Translator(loaded.objective, search, meshes.batch_shards(devices), allowed=allowed),
        )


def _tokenized(
    lines: Sequence[str], vocabulary: Vocabulary, length: int | None, name: str
) -> list[Text]:
    """Returns the ids of lines, `<s> x </s>`; ValueError if one has more than `length` tokens."""
    texts = [(BOS_ID, *ids, EOS_ID) for ids in vocabulary.encode_batch(lines)]
    long = [number for number, text in enumerate(texts, 1) if length and len(text) > length]
    if long:
        raise ValueError(
            f"{name}, line {long[0]} has {len(texts[long[0] - 1])} tokens, and the model reads "
            f"{length}; so have {len(long) - 1} other lines. Split them into sentences."
        )
    unknown = sum(UNK_ID in text for text in texts)
    if unknown:
        _log.warning(
            "%d of %d lines have characters that the vocabulary lacks", unknown, len(lines)
        )
    return texts
