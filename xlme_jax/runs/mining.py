"""Mines a hard negative for each translation pair of a prepared data set.

The negative of a pair is the target of another pair of the same task that an encoder puts nearest
to the source, of those that are no translation: its text is no translation of this source in the
data, and its score is well below that of the pair (`mine_hard_negatives` of sentence-transformers;
Moreira et al. 2024, "NV-Retriever", TopK-PercPos).
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from xlme_jax.data.prepared import PreparedDataset, TaskInfo
from xlme_jax.data.prepared.finished import remove_unused
from xlme_jax.data.prepared.format import DATASET_FILE, PARTS_FOLDER, stored_files
from xlme_jax.data.prepared.shared import share
from xlme_jax.data.prepared.writer import TripletWriter, write_dataset
from xlme_jax.data.token_ids import EOS_ID
from xlme_jax.evaluation import bucc, encoding
from xlme_jax.evaluation.encoding import Pooling, Text
from xlme_jax.evaluation.readouts import unit_rows
from xlme_jax.runs import trained
from xlme_jax.storage.files import remove_folder, replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.training import mesh as meshes
from xlme_jax.training import sharded_state as states
from xlme_jax.validation.fields import check_at_least, check_choices

_log = logging.getLogger("xlme_jax.mine")
_NEIGHBOURS = 4  # Of the ratio margin, as in Artetxe and Schwenk 2019, Sec. 4.


@dataclasses.dataclass(frozen=True)
class Mining:
    """How negatives are chosen. The names of the limits are those of `mine_hard_negatives`.

    Attributes:
      relative_margin: a target whose score is above that of the pair, less this share of its
        absolute value, is no negative. Of several translations of a source, the farthest one
        counts as the pair.
      max_score: a target with a larger score is no negative; None for no limit.
      range_max: number of targets of the largest cosines to choose from, translations included.
      layer: the layer that is pooled; None for that of `Contrast`, or the last one.
      pooling: how it is pooled; None for that of `Contrast`, or "mean".
      score: what stands for the cosine in all of this, once the nearest targets are found: the
        cosine, or its ratio margin (`bucc.ratio_margin`), which a target that is near to many
        sources does not win by that alone.
    """

    relative_margin: float = 0.05
    max_score: float | None = None
    range_max: int = 50
    layer: int | None = None
    pooling: Pooling | None = None
    score: Literal["cosine", "margin"] = "cosine"

    def __post_init__(self) -> None:
        check_choices(self, "Mining")
        check_at_least(self, "Mining", 0, "relative_margin")
        check_at_least(self, "Mining", 2, "range_max")


class Negatives(NamedTuple):
    """The negatives of N pairs.

    Attributes:
      pairs: int64[N], number of the pair whose second side is the negative; -1 without one.
      counts: {"compared", or the rule: number of targets}: those that were compared with a source,
        and those that each rule leaves out and no earlier one did.
      scores: mean score of the pairs that have a negative, and of the first sides with it.
    """

    pairs: np.ndarray
    counts: Mapping[str, int]
    scores: tuple[float, float]


def choose(
    sources: Sequence[Text],
    targets: Sequence[Text],
    embed: Callable[[Sequence[Text]], np.ndarray],
    settings: Mining,
) -> Negatives:
    """Chooses a negative for each pair: of the targets that no rule leaves out, the nearest.

    Args:
      sources: first sides of N pairs.
      targets: their second sides.
      embed: texts -> their vectors, [texts, D].
      settings: the limits.
    """
    source_of, distinct, _ = _numbered(sources)
    target_of, candidates, occurs = _numbered(targets)
    sides = embed(distinct), embed(candidates)
    nearest, scores = bucc.nearest(sides[0], sides[1], settings.range_max)
    first, second = (unit_rows(side) for side in sides)
    of_pairs = np.einsum("nd,nd->n", first[source_of], second[target_of])
    if settings.score == "margin":
        source_means = bucc.nearest(sides[0], sides[1], _NEIGHBOURS)[1].mean(axis=1)
        target_means = bucc.nearest(sides[1], sides[0], _NEIGHBOURS)[1].mean(axis=1)
        scores = bucc.ratio_margin(scores, source_means[:, None], target_means[nearest])
        of_pairs = bucc.ratio_margin(of_pairs, source_means[source_of], target_means[target_of])
    farthest = np.full(len(distinct), np.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(farthest, source_of, of_pairs)  # NaN if one is.
    # A source and a target as one number.
    pairs = source_of * len(candidates) + target_of
    compared = np.arange(len(distinct))[:, None] * len(candidates) + nearest
    number_of = {text: number for number, text in enumerate(candidates)}
    copies = np.array([number_of.get(text, -1) for text in distinct])
    highest = np.inf if settings.max_score is None else settings.max_score
    rules = {
        "translations": np.isin(compared, pairs) | (nearest == copies[:, None]),
        "near translations": scores
        > (farthest - settings.relative_margin * np.abs(farthest))[:, None],
        "above the maximum": scores > highest,
        "not finite": ~np.isfinite(scores + farthest[:, None]),
    }
    counts, remains = {"compared": scores.size}, np.ones(scores.shape, bool)
    for rule, applies in rules.items():
        counts[rule] = int((remains & applies).sum())
        remains &= ~applies
    best = np.where(remains, scores, -np.inf).argmax(axis=1)
    has_negative = remains[source_of].any(axis=1)
    of_sources = occurs[nearest[np.arange(len(best)), best]]
    of_best, mean_scores = scores[np.arange(len(best)), best], (np.nan, np.nan)
    if has_negative.any():
        mean_scores = of_pairs[has_negative].mean(), of_best[source_of][has_negative].mean()
    return Negatives(np.where(has_negative, of_sources[source_of], -1), counts, mean_scores)


def _numbered(texts: Sequence[Text]) -> tuple[np.ndarray, list[Text], np.ndarray]:
    """Returns the numbers of texts among the distinct ones, these, and where each occurs first.

    These are int64[N], M texts, and int64[M].
    """
    numbers: dict[Text, int] = {}
    for text in texts:
        numbers.setdefault(text, len(numbers))
    of_texts = np.array([numbers[text] for text in texts])
    return of_texts, list(numbers), np.unique(of_texts, return_index=True)[1]


def mine(
    checkpoint: str, data: str, output: str, settings: Mining, command: str = ""
) -> list[TaskInfo]:
    """Writes a data set whose training pairs have a third side, the negative.

    All other tasks are copied. Pairs without a negative stay, with an empty third side.

    Args:
      checkpoint: MODEL_DIR of a run, or one of its checkpoints.
      data: folder of a prepared data set.
      output: folder of the data set to write.
      settings: how negatives are chosen.
      command: command line, recorded in the data set.

    Returns:
      The rows of all tasks.

    Raises:
      ValueError: `output` has a data set; the vocabulary is another one; or there are no pairs, or
        no two different ones in a task, or no pair has a negative. The message says what to do.
    """
    folder, dataset = as_path(output), PreparedDataset.load(data)
    if (folder / DATASET_FILE).is_file():
        raise ValueError(f"{folder} has a data set; delete it, or choose another --output")
    pairs = [task for task in dataset.tasks if (task.kind, task.split) == ("bitext", "train")]
    if not pairs:
        kinds = ", ".join(sorted({f"{task.kind}/{task.split}" for task in dataset.tasks}))
        raise ValueError(
            f"{dataset.directory} has no bitext task in split 'train' to mine negatives for (it "
            f"has {kinds or 'nothing'}); prepare translation pairs"
        )
    for task in pairs:
        if task.examples < 2:
            raise ValueError(
                f"{dataset.directory}: task {task.name} has {task.examples} pair, and the negative "
                "is the target of another one; prepare more pairs, or leave the task out"
            )
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with states.sharding_rules(mesh):
        run = trained.load(checkpoint, None, mesh)
        dataset.check_vocabulary(run.vocabulary.size, run.vocabulary.digest)
        embed = _embedding(run, settings)
        remove_folder(folder / PARTS_FOLDER)
        mined = [_mine_task(dataset, task, embed, settings, folder) for task in pairs]
    copied = [task for task in dataset.tasks if task not in pairs]
    for file in stored_files(file for task in copied for file in task.files):
        replace_file(folder / file.file, (dataset.directory / file.file).read_bytes())
    tasks = share(folder, [*mined, *copied])
    write_dataset(folder, tasks, dataset.vocabulary_path, dataset.vocabulary_size, command)
    remove_unused(folder, tasks)
    remove_folder(folder / PARTS_FOLDER)
    return tasks


def _embedding(run: trained.LoadedRun, settings: Mining) -> Callable[[Sequence[Text]], np.ndarray]:
    """Returns the function from texts to their vectors, float32[texts, D].

    Raises:
      ValueError: the encoder has no such layer.
    """
    subject = run.subject()
    layer = settings.layer
    if layer is None and subject.pooled is None:
        layer = subject.num_layers
    layer = encoding.choose_layer(layer, subject, "--layer")
    pooling = settings.pooling or subject.default_pooling
    _log.info("Vectors: layer %d, %s", layer, encoding.POOLINGS[pooling])

    def pooled(params: Any, rows: Mapping[str, Any]) -> jax.Array:
        return encoding.pool(subject.encode(params, rows)[layer], rows, pooling)

    compiled = jax.jit(pooled)

    def embed(texts: Sequence[Text]) -> np.ndarray:
        length = subject.max_length or max(map(len, texts))
        if long := sum(len(text) > length for text in texts):
            _log.warning("%d of %d texts are cut to %d tokens", long, len(texts), length)
        cut = [encoding.cut(text, length) for text in texts]
        batches = encoding.batches(cut, subject.row_multiple)
        with tqdm(total=len(batches), desc="encode", unit="batch") as bar:

            def counted(params: Any, rows: Mapping[str, Any]) -> jax.Array:
                bar.update()
                return compiled(params, rows)

            return encoding.embed(counted, run.params, batches)

    return embed


def _mine_task(
    dataset: PreparedDataset,
    task: TaskInfo,
    embed: Callable[[Sequence[Text]], np.ndarray],
    settings: Mining,
    folder: Path,
) -> TaskInfo:
    """Writes the pairs of a task with their negatives, logs what was left out; returns its row.

    Raises:
      ValueError: no pair has a negative.
    """
    stored = dataset.read_pairs(task, np.arange(task.examples))
    sources, targets = ([tuple(pair[side].tolist()) for pair in stored] for side in (0, 1))
    _log.info("%s: encoding %d pairs", task.name, len(stored))
    negatives = choose(sources, targets, embed, settings)
    has_negative = negatives.pairs >= 0
    rules = ", ".join(f"{count:,} {rule}" for rule, count in negatives.counts.items())
    if not has_negative.any():
        raise ValueError(
            f"{dataset.directory}: no pair of task {task.name} has a negative (targets: {rules}); "
            "lower --relative_margin, raise --max_score or --range_max, or leave the task out"
        )
    _log.info(
        "%s: %d of %d pairs have a negative. Mean %s: pairs %.3f, negatives %.3f. Targets: %s",
        task.name,
        has_negative.sum(),
        len(stored),
        settings.score,
        *negatives.scores,
        rules,
    )
    size = dataset.vocabulary_size
    with TripletWriter(folder, task.name, task.languages, size) as writer:
        for (first, second), pair in zip(stored, negatives.pairs.tolist()):
            third = stored[pair][1][1:] if pair >= 0 else [EOS_ID]
            writer.add(np.concatenate([first, second[1:], third]))
        return writer.close()
