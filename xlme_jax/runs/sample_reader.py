"""Reads the samples of a run: what its weights predict of a few rows of its first batches.

The rows have text of every language. Rows, masks and random draws are always the same, so that
samples of different steps differ by the weights alone. They depend neither on the mesh nor on the
number of processes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xlme_jax.data.batches.pipeline import make_iterator
from xlme_jax.objectives.abilities import Reads
from xlme_jax.objectives.base import Objective, Params
from xlme_jax.objectives.readings import Reading
from xlme_jax.runs.parts import Parts
from xlme_jax.training import mesh as meshes
from xlme_jax.training.metrics import ReadSamples, Samples
from xlme_jax.training.step_readings import read_rows

if TYPE_CHECKING:
    from xlme_jax.studies.reports.batch_rows import StreamRows

_BATCHES = 8  # Most batches in which languages are looked for.
Arrays = Mapping[str, Mapping[str, np.ndarray]]


def reader(parts: Parts, config: Any, mesh: jax.sharding.Mesh) -> ReadSamples:
    """Returns the function from weights to samples, for a run with `Loop.samples_every`.

    Args:
      parts: the parts of the run.
      config: the configuration of the run's objective. If it has a version for held-out text
        (`SystemConfig.held_out`), that version reads, without dropout.
      mesh: the mesh of the run.

    Raises:
      ValueError: the system does not show what it reads.
    """
    objective = parts.objective
    if not isinstance(objective, Reads):
        raise ValueError(
            f"Loop.samples_every = {parts.settings.samples_every}: {type(objective).__name__} does "
            "not show what it predicts (it has no method `read`, objectives/abilities.py); leave "
            "Loop.samples_every at None."
        )
    if (held_out := config.held_out()) is not None:
        objective = held_out.build(parts.dataset.vocabulary_size, parts.dtype)
    return _Reader(parts, objective, mesh)


class _Rows(NamedTuple):
    """Some rows of the first batches, as arrays for the devices and as texts to show."""

    arrays: Arrays
    streams: Sequence[StreamRows]


class _Reader:
    """Reads the samples of a run; the first call reads the first batches of its data."""

    def __init__(self, parts: Parts, objective: Objective, mesh: jax.sharding.Mesh):
        self._parts = parts
        self._shards = meshes.batch_shards(mesh)
        whole = NamedSharding(mesh, PartitionSpec())
        self._compute = jax.jit(
            lambda params, arrays, step: read_rows(
                objective, parts.settings.seed, arrays, step, params
            ),
            out_shardings=whole,
        )

    def __call__(self, params: Params) -> Samples | None:
        # Every process has all rows; the sharding rules split them over the devices.
        readings = self._compute(params, self._rows.arrays, np.int32(1))
        if jax.process_index() != 0:
            return None
        return _samples(self._rows.streams, jax.device_get(readings))

    @functools.cached_property
    def _rows(self) -> _Rows:
        """Rows of the first batches, the first of each stream that have all its languages."""
        # Imported here because a run needs no texts until it shows some.
        from xlme_jax.studies.reports import samples
        from xlme_jax.studies.reports.batch_rows import joined, stream_rows

        parts = self._parts
        batches = make_iterator(parts.dataset, parts.streams, parts.settings.seed)
        rows: dict[str, StreamRows] = {}
        try:
            for _ in range(_BATCHES):
                batch: Any = next(batches)
                for more in stream_rows(parts.dataset, parts.streams, batches, batch, {}):
                    name = more.stream.name
                    every = joined([rows[name], more]) if name in rows else more
                    numbers = every.covering(
                        samples.MOST_ROWS, samples.LEAST_ROWS, samples.LANGUAGE_TOKENS
                    )
                    rows[name] = every.take(numbers)
                if all(samples.has_enough(of_stream) for of_stream in rows.values()):
                    break
        finally:
            batches.close()
        arrays = {name: self._even(of_stream.arrays) for name, of_stream in rows.items()}
        return _Rows(arrays, [*rows.values()])

    def _even(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns rows, the last one repeated until the devices split them evenly."""
        count = len(arrays["tokens"])
        numbers = np.minimum(np.arange(-(-count // self._shards) * self._shards), count - 1)
        return {name: array[numbers] for name, array in arrays.items()}


def _samples(streams: Sequence[StreamRows], readings: Mapping[str, Reading]) -> Samples:
    """Returns the samples as JSON and text, from the rows and from what was read of them."""
    from xlme_jax.studies.reports import samples

    sentences = [
        sentence
        for rows in streams
        if rows.stream.name in readings
        for sentence in samples.sentences(
            dataclasses.replace(rows, reading=readings[rows.stream.name])
        )
    ]
    content = {"sentences": [samples.to_json(sentence) for sentence in sentences]}
    languages = [language for rows in streams for language in rows.all_languages]
    return Samples(content, samples.to_text(sentences, languages))
