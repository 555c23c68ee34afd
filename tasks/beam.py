"""`prepare` on Apache Beam: writes the same shards with any number of machines.

SeqIO's `PreprocessTask` reads and tokenizes the source shards in parallel, one text per element.
Beam does not preserve order, but the order of documents matters. So each text is grouped by its
part, (source shard, number // part size), and one worker sorts and writes each part. The parts are
the same as without Beam, and therefore also the bytes.

All workers must have access to the output folder; parts are merged where the command runs.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import seqio
from apache_beam.options.pipeline_options import PipelineOptions
from seqio import beam_utils

from tasks import execution
from xlme_jax.data import prepared
from xlme_jax.preparation import tokenizing
from xlme_jax.preparation.config import PrepareConfig
from xlme_jax.storage.paths import as_path

_ROWS_FILE = "beam-rows.jsonl"

# ((source shard, part), (number of the text in its shard, (ids, labels))). The last element of a
# shard has the counts of skipped texts instead of (ids, labels).
_Keyed = tuple[tuple[int, int], tuple[int, Any]]


class EncodeShards(beam_utils.PreprocessTask):
    """Yields framed ids and labels by part, and counts of skipped texts at the end of a shard."""

    def __init__(self, config: PrepareConfig, model: str, job: tokenizing.Job):
        """Makes the transform of a job; workers register its task from `config` and `model`."""
        super().__init__(seqio.TaskRegistry.get(job.name), job.split)
        self._config, self._model, self._job = config, model, job

    def _emit_examples(self, shard: tuple[int, str]) -> Iterator[_Keyed]:
        number, _ = shard
        part_size = tokenizing.PART_TEXTS[self._job.kind]
        texts = 0
        execution.register(self._config, self._model)
        task = seqio.TaskRegistry.get(self._job.name)
        for example in execution.with_causes(task, super()._emit_examples(shard)):
            yield (number, texts // part_size), (texts, self._encoded(example))
            texts += 1
        skipped = dict(execution.read_report(task, self._job.split, number).skipped)
        yield (number, texts // part_size), (texts, skipped)

    def _encoded(self, example: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        if self._job.kind == "labelled":  # Already framed.
            return np.asarray(example["tokens"]), np.asarray(example["labels"])
        fields = [np.asarray(example[name]) for name in execution.field_names(self._job.kind)]
        ids, _ = tokenizing.framed([(field, np.array([len(field)])) for field in fields])
        return ids, np.empty(0, np.int32)


def _write_part(
    config: PrepareConfig,
    model: str,
    job: tokenizing.Job,
    keyed: tuple[tuple[int, int], Iterable[tuple[int, Any]]],
) -> str:
    """Writes a part; returns [task, split, shard, part, row] as a line of JSON."""
    execution.register(config, model)
    (shard, part), texts = keyed
    writer = tokenizing.open_part(config, model, job, shard, part)
    with writer:
        for _, content in sorted(texts, key=lambda text: text[0]):
            if isinstance(content, dict):
                writer.skipped.update(content)
            else:
                ids, labels = content
                tokenizing.add_texts(writer, ids, np.array([len(ids)]), labels)
        row = writer.close()
    return json.dumps([job.name, job.split, shard, part, row.to_json()])


def run(
    config: PrepareConfig, model: str, units: Sequence[tokenizing.Unit]
) -> Iterator[tuple[tokenizing.Unit, list[prepared.TaskInfo]]]:
    """Runs all units in one pipeline.

    Args:
      config: The configuration, with the runner and its options.
      model: Path of the vocabulary, readable by the workers.
      units: Source shards, all shards of each job.

    Yields:
      Each unit with the rows of its parts.
    """
    jobs = {(unit.job.name, unit.job.split): unit.job for unit in units}
    logging.getLogger("apache_beam").setLevel(logging.WARNING)
    rows_file = as_path(config.output) / ".parts" / _ROWS_FILE
    rows_file.parent.mkdir(parents=True, exist_ok=True)
    options = PipelineOptions(
        list(config.runner_options), runner=config.runner, save_main_session=False
    )
    with beam.Pipeline(options=options) as pipeline:
        rows = [_job_rows(pipeline, config, model, job) for job in jobs.values()]
        _ = (
            rows
            | "all rows" >> beam.Flatten()
            | "write rows" >> beam.io.WriteToText(str(rows_file), shard_name_template="")
        )
    parts: dict[tuple[str, str, int], dict[int, prepared.TaskInfo]] = {}
    for line in rows_file.read_text("utf-8").splitlines():
        name, split, shard, part, row = json.loads(line)
        parts.setdefault((name, split, shard), {})[part] = prepared.TaskInfo.from_json(row)
    for unit in units:
        found = parts[unit.job.name, unit.job.split, unit.shard]
        yield unit, [row for _, row in sorted(found.items())]


def _job_rows(
    pipeline: beam.Pipeline, config: PrepareConfig, model: str, job: tokenizing.Job
) -> beam.PCollection:
    label = f"{job.name} {job.split}"
    return (
        pipeline
        | f"{label}: encode" >> EncodeShards(config, model, job)
        | f"{label}: gather" >> beam.GroupByKey()
        | f"{label}: write" >> beam.Map(functools.partial(_write_part, config, model, job))
    )
