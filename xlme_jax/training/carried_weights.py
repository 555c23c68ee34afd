"""Reads weights of other runs, such as a teacher's, into the carried state of a new run."""

from collections.abc import Mapping
from typing import Any

from xlme_jax.checkpoints.saved import read_record
from xlme_jax.checkpoints.warm_start import check_warm_start, warm_start
from xlme_jax.objectives.base import Carried, Params
from xlme_jax.storage.paths import as_path


def check_carried_weights(
    sources: Mapping[str, tuple[str, str]], abstract: Carried, vocabulary: str
) -> None:
    """Checks that `carried_weights` can read the weights; reads files, but creates no arrays.

    Args:
      sources: see `objectives.base.Carry`.
      abstract: the carried state, as ShapeDtypeStructs with shardings.
      vocabulary: digest of the vocabulary of the run's data; empty if it does not matter.

    Raises:
      ValueError: a checkpoint is missing or damaged, has another vocabulary, or lacks a weight, or
        the weight has another shape.
    """
    for part, (field, source) in sources.items():
        saved = read_record(as_path(source)).vocabulary
        if vocabulary and saved and vocabulary != saved:
            raise ValueError(
                f"{field} = {source!r} was trained with another vocabulary (sha256 {saved[:12]}) "
                f"than the data in DATA_DIR was prepared with ({vocabulary[:12]}), so that it "
                "cannot read the run's tokens. Choose a run with the same vocabulary, or prepare "
                "the data with the vocabulary.model of that run."
            )
        check_warm_start(**_arguments(field, source, abstract[part]))


def carried_weights(sources: Mapping[str, tuple[str, str]], abstract: Carried) -> dict[str, Params]:
    """Reads the parts of the carried state that are weights of other runs.

    Args:
      sources: see `objectives.base.Carry`; `check_carried_weights` has verified them.
      abstract: the carried state, as ShapeDtypeStructs with shardings.

    Returns:
      {part of the carried state: its weights}

    Raises:
      ValueError: as `check_carried_weights`, or an array is damaged or not finite.
    """
    return {
        part: warm_start(**_arguments(field, source, abstract[part]))
        for part, (field, source) in sources.items()
    }


def _arguments(field: str, source: str, abstract: Params) -> dict[str, Any]:
    """Returns the arguments of `warm_start` for weights of a run, which may have more of them."""
    return {
        "run": as_path(source),
        "abstract_params": abstract,
        "may_have_more": True,
        "field": field,
    }
