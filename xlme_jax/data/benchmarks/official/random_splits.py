"""Division of a training file into two splits, for benchmarks that lack a split."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from xlme_jax.data.benchmarks.examples import Example
from xlme_jax.data.benchmarks.official.finding import Format, Skips
from xlme_jax.data.text.text_digests import digest

# One passage in this many is held out.
_EVERY = 10


@dataclasses.dataclass(frozen=True)
class Passages:
    """Reader of the questions of a training file whose passages are held out, or are not.

    The text of a passage alone decides whether the passage is held out, so that all questions about
    it are on one side in every file that has it.

    Attributes:
      format: reader of the file.
      held_out: whether to read the questions whose passages are held out.
    """

    format: Format
    held_out: bool

    def read(
        self, path: Path, split: str, language: str, labels: Sequence[str], skips: Skips
    ) -> list[Example]:
        """Returns the questions of one side; see `Format.read`."""
        examples = self.format.read(path, split, language, labels, skips)
        return [example for example in examples if is_held_out(example) == self.held_out]


def is_held_out(example: Example) -> bool:
    """Returns whether the passage of a question is held out."""
    return digest(example.context) % _EVERY == 0  # type: ignore[union-attr]  # Questions have one.
