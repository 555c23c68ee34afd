"""`prepare` on Apache Beam: writes the same shards with any number of machines.

Workers encode source shards in parallel, with the function that worker processes also run. An
element has many texts, because Beam spends as much time on an element as SentencePiece on a text.
Beam does not preserve order, but the order of documents matters. So batches of texts are grouped by
part, (source shard, number of the text // part size), and one worker sorts and writes each part.
The parts are equal to the parts that are written without Beam, byte by byte.

Workers share with the command only the sources and the output folder, which has a copy of the
vocabulary. A worker that is run again writes its part under another name. The command merges only
the parts that the pipeline's result lists. Files are read and written with `xlme_jax.storage`,
since Beam's own output needs Google's packages.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np

from xlme_jax.data import prepared
from xlme_jax.data.text.reading import DataError, ReadReport
from xlme_jax.preparation import on_beam, tokenizing
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path

_SHOWN_ERRORS = 5
# Most tokens of a batch, unless it is a single text, so that an element has about a megabyte.
_BATCH_TOKENS = 1 << 18
_NO_LABELS = np.empty(0, np.int32)

# ((number of the job, source shard, part), (number of the first text in its shard, content)). The
# content is a `tokenizing.Batch`, and for the last element of a shard the counts of skipped texts,
# or the message of the error that ended reading.
_Keyed = tuple[tuple[int, int, int], tuple[int, Any]]
# [number of the job, source shard, part, row of the part, message of an error]; the row or the
# message is None.
_Row = list[Any]


@dataclasses.dataclass(frozen=True)
class _Work:
    """The work of all workers; Beam sends this object to each worker.

    Attributes:
      config: The configuration.
      model: Path of the vocabulary in the output folder.
      jobs: All jobs.
    """

    config: PrepareConfig
    model: str
    jobs: tuple[tokenizing.Job, ...]

    def encode(self, shard: tuple[int, int]) -> Iterator[_Keyed]:
        """Yields the batches of a source shard by part, then an element that ends the shard.

        Args:
          shard: (number of the job, number of the source shard).
        """
        job = self.jobs[shard[0]]
        unit = tokenizing.Unit(job, shard[1])
        part_size = tokenizing.PART_TEXTS[job.kind]
        report = ReadReport()
        number = 0  # Of the next text in the shard.
        end: dict[str, int] | str
        try:
            for batch in tokenizing.encoded(self.config, self.model, unit, report):
                for ids, sizes, labels in _pieces(batch, number, part_size):
                    yield (*shard, number // part_size), (number, (ids, sizes, labels))
                    number += len(sizes)
            end = dict(report.skipped)
        except DataError as error:
            # Not raised, because runners would read the shard again, and then drop all tasks.
            end = str(error)
        yield (*shard, number // part_size), (number, end)

    def write(self, keyed: tuple[tuple[int, int, int], Iterable[tuple[int, Any]]]) -> _Row:
        """Writes a part and returns its row, or the error that ended reading its shard.

        Args:
          keyed: The key of the part, and its elements in any order.
        """
        (number, shard, part), unordered = keyed
        batches = sorted(unordered, key=operator.itemgetter(0))
        if isinstance(message := batches[-1][1], str):
            return [number, shard, part, None, message]
        writer = tokenizing.open_part(self.config, self.model, self.jobs[number], shard, part)
        with writer:
            for _, content in batches:
                if isinstance(content, dict):
                    writer.skipped.update(content)
                else:
                    tokenizing.add_texts(writer, *content)
            return [number, shard, part, writer.close().to_json(), None]


def _pieces(batch: tokenizing.Batch, number: int, part_size: int) -> Iterator[tokenizing.Batch]:
    """Yields the pieces of a batch, none of which is in two parts or has too many tokens.

    Args:
      batch: Encoded texts.
      number: Number of the first text in its source shard.
      part_size: Number of texts per part.
    """
    ids, sizes, labels = batch
    # Labelled examples are not split, since all examples of a shard form one part.
    while len(sizes) > 1 and not len(labels):
        room = part_size - number % part_size
        texts = int(np.searchsorted(np.cumsum(sizes[:room]), _BATCH_TOKENS, side="right")) or 1
        if texts == len(sizes):
            break
        tokens = int(sizes[:texts].sum())
        yield ids[:tokens], sizes[:texts], _NO_LABELS
        ids = ids[tokens:]
        sizes = sizes[texts:]
        number = number + texts
    # An empty piece would have the number of the next element, so their order would be undefined.
    if len(sizes):
        yield ids, sizes, labels


def run(
    config: PrepareConfig, model: str, units: Sequence[tokenizing.Unit]
) -> Iterator[tuple[tokenizing.Unit, list[prepared.TaskInfo]]]:
    """Runs all units in one pipeline.

    Args:
      config: The configuration, with the runner and its options.
      model: Path of the vocabulary in the output folder.
      units: Units of work, all units of each job.

    Yields:
      (unit, rows of its parts in order), except for units that could not be read.

    Raises:
      DataError: Source shards are damaged or malformed; raised after all units were yielded.
    """
    numbers = {job: i for i, job in enumerate(dict.fromkeys(unit.job for unit in units))}
    work = _Work(config, model, tuple(numbers))
    rows: dict[tuple[int, int], dict[int, prepared.TaskInfo]] = {}
    errors: dict[tuple[int, int], str] = {}
    for number, shard, part, row, message in _run_pipeline(
        work, [(numbers[unit.job], unit.shard) for unit in units]
    ):
        if message is None:
            rows.setdefault((number, shard), {})[part] = prepared.TaskInfo.from_json(row)
        else:
            errors[number, shard] = message
    for unit in units:
        key = numbers[unit.job], unit.shard
        if key not in errors:
            yield unit, [row for _, row in sorted(rows[key].items())]
    if errors:
        lines = [message for _, message in sorted(errors.items())]
        more = len(lines) - _SHOWN_ERRORS
        raise DataError(
            "\n".join(lines[:_SHOWN_ERRORS]) + (f"\nand {more} more" if more > 0 else "")
        )


def _run_pipeline(work: _Work, shards: Sequence[tuple[int, int]]) -> list[_Row]:
    """Encodes and writes source shards in a pipeline, and returns the rows of all parts.

    Args:
      work: The work of all workers.
      shards: (number of the job, number of the source shard) of each shard.
    """
    config = work.config
    # The name is unique, because workers of a killed command may still be running.
    rows_file = as_path(config.output) / ".parts" / f"rows-{uuid.uuid4().hex}.json"
    options = on_beam.settings(config.runner, config.runner_options)
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | "list shards" >> beam.Create(shards)
            | "encode" >> beam.FlatMap(work.encode)
            | "gather parts" >> beam.GroupByKey()
            | "write parts" >> beam.Map(work.write)
            | "gather rows" >> beam.combiners.ToList()
            | "write rows" >> beam.Map(_write_rows, str(rows_file))
        )
    rows: list[_Row] = json.loads(rows_file.read_bytes())
    return rows


def _write_rows(rows: list[_Row], file: str) -> None:
    """Writes the rows of all parts, as the last step of the pipeline."""
    replace_file(as_path(file), json.dumps(rows).encode())
