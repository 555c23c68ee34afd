"""Text and translation sets of TensorFlow Datasets as a source; SeqIO reads them (`tasks.tfds`)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from xlme_jax.data.languages import canonical
from xlme_jax.preparation.source_types import Flag, Source, check_names

_VARIABLE = "TFDS_TASKS"
_LINE = re.compile(
    r"(?P<name>[\w/.-]+:[\w.*]+)=(?P<languages>[\w-]+)(?:@(?P<fields>[\w/]+(?:,[\w/]+)?))?"
)


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """A TensorFlow Datasets data set with text in one or two languages.

    Attributes:
      name: TFDS name with config and version ("wiki40b/th:1.3.0").
      languages: One language, or the two of a pair.
      fields: Field of the text of each language.
    """

    name: str
    languages: tuple[str, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> TfdsText:
        """Returns the data set that a line describes, in the form of the docstring of `tasks.tfds`.

        Raises:
          ValueError: The line is malformed.
        """
        match = _LINE.fullmatch(line.strip())
        languages = tuple(match["languages"].split("-")) if match else ()
        default = ("text",) if len(languages) == 1 else languages
        fields = tuple(match["fields"].split(",")) if match and match["fields"] else default
        if match is None or len(languages) not in (1, 2) or len(fields) != len(languages):
            raise ValueError(
                f"tfds: cannot read {line!r}; write NAME:VERSION=LANG or NAME:VERSION=LANG1-LANG2, "
                "such as wiki40b/th:1.3.0=th or para_crawl/ende:1.2.0=en-de, with @FIELD or "
                "@FIELD1,FIELD2 if the fields have other names"
            )
        try:
            return cls(match["name"], tuple(map(canonical, languages)), fields)
        except ValueError as error:
            raise ValueError(f"tfds: {line!r}: {error}") from error

    @property
    def task(self) -> str:
        """The name of the task."""
        plain = self.name.split(":")[0]
        return "tfds_" + re.sub(r"\W+", "_", plain)

    @property
    def mixture(self) -> str:
        """The name of the mixture: `tfds` (documents) or `tfds_bitext` (pairs)."""
        return "tfds" if len(self.languages) == 1 else "tfds_bitext"


class Tfds(Source):
    """The source `tfds`; its mixtures are `tfds` (documents) and `tfds_bitext` (pairs)."""

    flags: ClassVar = (
        Flag(
            "tfds",
            "TFDS data sets, such as wiki40b/th:1.3.0=th or para_crawl/ende:1.2.0=en-de.",
            "list",
            [],
        ),
    )
    needs_seqio: ClassVar = True

    def from_environment(self, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]] | None:
        """Returns the lines of $TFDS_TASKS, or None if there are none."""
        lines = environment.get(_VARIABLE)
        return {"tfds": tuple(lines.split(","))} if lines else None


def find_tfds(lines: Sequence[str]) -> list[TfdsText]:
    """Returns the data set that each line describes; reads nothing.

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
