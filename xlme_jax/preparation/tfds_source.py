"""Text and translation sets of TensorFlow Datasets as a source; SeqIO reads them (`tasks.tfds`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xlme_jax.preparation.source_types import Flag, Source, TfdsText, check_names

_VARIABLE = "TFDS_TASKS"


def tfds_source() -> Source:
    """Returns the source `tfds`; its mixtures are `tfds` (documents) and `tfds_bitext` (pairs)."""
    help = "TFDS data sets, such as wiki40b/th:1.3.0=th or para_crawl/ende:1.2.0=en-de."
    return Source(
        "tfds",
        "TensorFlow Datasets",
        lambda config, held_out: find_tfds(config.tfds),
        flags=(Flag("tfds", help, "list", []),),
        from_environment=_from_environment,
    )


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]] | None:
    lines = environment.get(_VARIABLE)
    return {"tfds": tuple(lines.split(","))} if lines else None


def find_tfds(lines: Sequence[str]) -> list[TfdsText]:
    """Returns a data set per line; reads nothing.

    Raises:
      ValueError: There is no line, a line is malformed, or two lines would be the same task.
    """
    if not lines:
        raise ValueError(
            "tfds: no data set given; name some, such as "
            "--tfds=wiki40b/th:1.3.0=th,para_crawl/ende:1.2.0=en-de"
        )
    texts = [TfdsText.parse(line) for line in lines]
    check_names(((text.task, line) for text, line in zip(texts, lines)), "remove one from --tfds")
    return texts
