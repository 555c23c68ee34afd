"""Any TensorFlow Datasets text or translation set as a task, by one line of configuration.

The line is `NAME[/CONFIG]:VERSION=LANGUAGES[@FIELDS]` (SeqIO insists on the version):

- `wiki40b/th:1.3.0=th` is running text in Thai, task `tfds_wiki40b_th`;
- `para_crawl/ende:1.2.0=en-de` is pairs, task `tfds_para_crawl_ende`;
- `my_set:1.0.0=en@body` takes the text from the field `body`; `my_pairs:1.0.0=en-sw@src,tgt` takes
  both from named fields.

Without `@` the text is in `text` and the sides of a pair are fields named by their languages, as in
all translation sets of TFDS. Nothing is downloaded or read before a task is used.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence

import seqio
import tensorflow as tf

from tasks import features, mixtures, sources

PREFIX = "tfds"
TASKS_VARIABLE = "TFDS_TASKS"
_LINE = re.compile(
    r"(?P<name>[\w/.-]+:[\w.*]+)=(?P<languages>[\w-]+)(?:@(?P<fields>[\w/]+(?:,[\w/]+)?))?"
)


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """A TFDS data set and where its text is.

    Attributes:
      name: As TFDS knows it, with config and version ("wiki40b/th:1.3.0").
      languages: One language, or the two of a pair.
      fields: Field of each language.
    """

    name: str
    languages: tuple[str, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> TfdsText:
        """Reads a line as described above.

        Raises:
          ValueError: If it is not of that form.
        """
        match = _LINE.fullmatch(line.strip())
        languages = tuple(match["languages"].split("-")) if match else ()
        default = ("text",) if len(languages) == 1 else languages
        fields = tuple(match["fields"].split(",")) if match and match["fields"] else default
        if match is None or len(languages) not in (1, 2) or len(fields) != len(languages):
            raise ValueError(
                f"tfds: cannot read {line!r}; write NAME:VERSION=LANG or NAME:VERSION=LANG1-LANG2, "
                "such as wiki40b/th:1.3.0=th or para_crawl/ende:1.2.0=en-de, with @FIELD or "
                "@FIELD1,FIELD2 where the fields have other names"
            )
        return cls(match["name"], languages, fields)

    @property
    def task(self) -> str:
        """Name of the SeqIO task."""
        plain = self.name.split(":")[0]
        return f"{PREFIX}_" + re.sub(r"\W+", "_", plain)


class LanguageTfdsSource(seqio.TfdsDataSource):
    """A `seqio.TfdsDataSource` that says its languages and also works before it was downloaded.

    SeqIO asks a data set for splits, sizes and files that TFDS knows only after generating it.
    """

    def __init__(self, name: str, languages: Sequence[str]):
        """Makes the source; TFDS is asked at first use."""
        super().__init__(tfds_name=name)
        self.languages = tuple(languages)

    @property
    def splits(self) -> Sequence[str]:
        """Returns the splits; downloads and generates the data set if that was not done."""
        if not self.tfds_dataset.info.splits:
            self.tfds_dataset.builder.download_and_prepare()
        return tuple(self.tfds_dataset.info.splits)

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the files of a split; downloads and generates the data set if need be."""
        if split not in self.splits:
            raise ValueError(f"{self.tfds_dataset.name} has no split {split!r}: {self.splits}")
        return super().list_shards(split)

    def num_input_examples(self, split: str) -> int | None:
        """Returns the examples of a split, None as long as the data set is not generated."""
        known = self.tfds_dataset.info.splits
        return super().num_input_examples(split) if split in known else None


def register(
    text: TfdsText, vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None
) -> str:
    """Registers one task, replacing one of the same name, and returns its name."""
    monolingual = len(text.languages) == 1
    fields = features.MONOLINGUAL_FIELDS if monolingual else features.BITEXT_FIELDS
    chosen = dict(zip(fields, text.fields))
    seqio.TaskRegistry.remove(text.task)
    seqio.TaskRegistry.add(
        text.task,
        source=LanguageTfdsSource(text.name, text.languages),
        preprocessors=[functools.partial(choose_fields, fields=chosen), *features.preprocessors()],
        output_features=features.output_features(fields, features.as_vocabulary(vocabulary)),
        metric_fns=[],
    )
    return text.task


def register_all(
    lines: Sequence[str],
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers a task per line, and the mixtures `tfds` (running text) and `tfds_bitext` of them.

    Args:
      lines: As described in the module's docstring.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixtures' rates.

    Returns:
      Names of the mixtures.

    Raises:
      ValueError: If there is no line, one cannot be read, or two are of the same set.
    """
    if not lines:
        raise ValueError(
            "tfds: no data set given; name some, such as "
            "--tfds=wiki40b/th:1.3.0=th,para_crawl/ende:1.2.0=en-de"
        )
    shared = features.as_vocabulary(vocabulary)
    groups: dict[str, list[str]] = {}
    texts = [TfdsText.parse(line) for line in lines]
    origins = zip([text.task for text in texts], lines)
    sources.check_names(origins, "leave one out of --tfds")
    for text in texts:
        mixture = PREFIX if len(text.languages) == 1 else f"{PREFIX}_bitext"
        groups.setdefault(mixture, []).append(register(text, shared))
    return [mixtures.add_mixture(name, names, alpha).name for name, names in groups.items()]


def choose_fields(dataset: tf.data.Dataset, fields: Mapping[str, str]) -> tf.data.Dataset:
    """Preprocessor: takes the texts out of an example; a field "a/b" is field b inside a."""

    def choose(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {
            feature: functools.reduce(lambda part, key: part[key], path.split("/"), example)
            for feature, path in fields.items()
        }

    return dataset.map(choose, num_parallel_calls=tf.data.AUTOTUNE)
