"""Configuration of `prepare`, and its record, which tells whether a data set is up to date."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from xlme_jax.data.cldr_config import CldrConfig
from xlme_jax.data.languages import canonical
from xlme_jax.data.prepared.dataset import PreparedDataset
from xlme_jax.data.prepared.format import FORMAT, SETTINGS_FILE, unseal
from xlme_jax.data.text import DEFAULT_MAX_DOCUMENT_CHARS
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path
from xlme_jax.storage.sealed_json import seal

_FILTERS = ("min_score", "deduplicate", "max_length_ratio", "min_pairs")


@dataclasses.dataclass(frozen=True)
class CldrCorpus:
    """Amount of text to generate for the embedded corpus.

    Attributes:
      config: Languages and kinds of phrases.
      documents: Training documents per language.
      pairs: Training pairs per language pair.
      validation_documents: Held-out documents per language.
      validation_pairs: Held-out pairs per language pair.
      phrases_per_document: Lines per document.
    """

    config: CldrConfig
    documents: int = 2000
    pairs: int = 10_000
    validation_documents: int = 0
    validation_pairs: int = 1000
    phrases_per_document: int = 16

    def documents_per_split(self) -> dict[str, int]:
        """Returns the documents per language of each split."""
        return {"train": self.documents, "validation": self.validation_documents}

    def pairs_per_split(self) -> dict[str, int]:
        """Returns the pairs per language pair of each split."""
        return {"train": self.pairs, "validation": self.validation_pairs}


@dataclasses.dataclass(frozen=True)
class PrepareConfig:
    """Settings of a prepared data set.

    Attributes:
      output: Folder of the prepared data set.
      tasks: Sources ("cldr", "cc100", ...; see `xlme_jax.preparation.sources`), tasks of a
        benchmark ("xnli", see `tasks.labelled`), or names of registered SeqIO tasks or mixtures.
      vocabulary: SentencePiece model. None: that of `output`, or for `cldr` alone one trained on
        its phrases.
      vocabulary_size: Largest size of the vocabulary trained for `cldr`.
      cldr: The embedded corpus.
      cc100_dir: Folder of `<lang>.txt.xz` files.
      bitext_dir: Folder of pair files, or several, separated by commas, in order of preference.
      bitext_merge: "all" reads a pair in all folders of `bitext_dir` or of `text`, "first" in the
        first that has it.
      languages: Languages to use, in any spelling; empty: all that are found.
      pairs: Language pairs to use ("en-sw"); empty: all that are found.
      pivot: Use only pairs with this language ("en": English-centric).
      tfds: TFDS data sets, "wiki40b/th:1.3.0=th" or "para_crawl/ende:1.2.0=en-de"; see
        `xlme_jax.preparation.tfds_source`.
      modules: Python modules that register further SeqIO tasks.
      eval_dir: Folder with a folder for each benchmark.
      max_length: Longer labelled examples are truncated, or split (`featurize`), in tokens. None:
        384 for questions, 128 otherwise.
      stride: Tokens shared by neighboring windows of a question's context.
      max_document_chars: Longer documents are split.
      max_pair_tokens: Longer pairs (`<s> e </s> f </s>`) are skipped and counted.
      tsv_columns: Columns of TSV pair files, counted from 0, with text in the first and second
        language of the file's name, and optionally the one with scores. None: the first two, which
        must not be numbers.
      min_score: Pairs with a lower score are skipped, in files that have scores: TSV files whose
        third of `tsv_columns` is one, Moses files and OPUS zips with a file `NAME.scores`.
      deduplicate: Whether a pair of files is skipped if it occurs before in the text of its task,
        compared as held-out text is (`text_digests.normalized`).
      max_length_ratio: Pairs are skipped if one text has more than this many times the tokens of
        the other. None: no limit.
      min_pairs: Languages with fewer pairs than this, over all their tasks, are dropped from the
        tasks of pairs.
      shuffle_pairs: Whether training pairs are mismatched, as a control without translations.
      validation: Units of `cc100`, `bitext`, `text` and tables that form the split "validation" and
        whose text is removed from all training text: "every:20", "count:1000", "ids:FILE" or
        "folder:PATH", see `held_out`. Empty: none.
      check_overlap: Folder of evaluation files. Their texts that occur in the training text are
        reported and counted in `overlap.json`, and files that could not be read are an error at the
        end. Empty: no report.
      exclude_overlap: Whether documents and pairs with text of the files in `check_overlap` are
        removed from the training text, and counted.
      workers: Worker processes; 0 selects a number from the amount of text and the cores.
      runner: Apache Beam runner ("DirectRunner", "DataflowRunner", ...); empty: no Beam.
      runner_options: Further Beam options, as on the command line ("--project=...").
      options: Settings of sources that have no field here: (name, value) pairs or a dict, such as
        {"my_source_dir": "/data"}.
    """

    output: str
    tasks: tuple[str, ...] = ("cldr",)
    vocabulary: str | None = None
    vocabulary_size: int = 1200
    cldr: CldrCorpus | None = None
    cc100_dir: str | None = None
    bitext_dir: str | None = None
    bitext_merge: str = "all"
    languages: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    pivot: str | None = None
    tfds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    eval_dir: str | None = None
    max_length: int | None = None
    stride: int = 128
    max_document_chars: int = DEFAULT_MAX_DOCUMENT_CHARS
    max_pair_tokens: int = 510
    tsv_columns: tuple[int, ...] | None = None
    min_score: float | None = None
    deduplicate: bool = False
    max_length_ratio: float | None = None
    min_pairs: int = 0
    shuffle_pairs: bool = False
    validation: str = ""
    check_overlap: str = ""
    exclude_overlap: bool = False
    workers: int = 0
    runner: str = ""
    runner_options: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for field in ("tasks", "languages", "pairs", "tfds", "modules", "runner_options"):
            value = getattr(self, field)
            if isinstance(value, str):
                raise ValueError(
                    f"prepare: `{field}` is {value!r}; give a list, such as ({value!r},)"
                )
            object.__setattr__(self, field, tuple(value))
        try:
            tags = dict.fromkeys(map(canonical, self.languages))
            object.__setattr__(self, "languages", tuple(tags))
        except ValueError as error:
            raise ValueError(f"prepare: `languages`: {error}") from error
        object.__setattr__(self, "options", tuple(dict(self.options).items()))
        if not self.output:
            raise ValueError("prepare: `output` is empty; give the folder of the prepared data set")
        if not self.tasks:
            raise ValueError(
                "prepare: `tasks` is empty; name at least one source such as cc100 (--help lists "
                "them) or a benchmark such as xnli"
            )
        if "cldr" in self.tasks and self.cldr is None:
            raise ValueError(
                "prepare: task `cldr` needs the field `cldr`, a CldrCorpus (its languages)"
            )
        if self.tsv_columns is not None:
            object.__setattr__(self, "tsv_columns", _columns(self.tsv_columns))
        if self.validation:
            # Training has this configuration too, and reads no text.
            from xlme_jax.data.text import held_out

            held_out.parse(self.validation)
        self._check_filters()
        if self.exclude_overlap and not self.check_overlap:
            raise ValueError(
                "prepare: `exclude_overlap` removes the text of evaluation files, but there are "
                "none; set `check_overlap` to their folder"
            )
        if self.workers < 0:
            raise ValueError(f"prepare: `workers` is {self.workers}; give 0 (automatic) or more")

    def _check_filters(self) -> None:
        if self.bitext_merge not in ("all", "first"):
            raise ValueError(
                f"prepare: `bitext_merge` is {self.bitext_merge!r}; give 'all' or 'first'"
            )
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise ValueError(
                f"prepare: `max_length_ratio` is {self.max_length_ratio}; give a number of at "
                "least 1, such as 3"
            )
        if self.min_pairs < 0:
            raise ValueError(f"prepare: `min_pairs` is {self.min_pairs}; give 0 (off) or more")
        if self.min_score is not None and not math.isfinite(self.min_score):
            raise ValueError(f"prepare: `min_score` is {self.min_score}; give a finite number")


def _columns(value: Any) -> tuple[int, ...]:
    """Returns `tsv_columns` as integers; raises ValueError if they are not two or three columns."""
    try:
        columns = tuple(int(column) for column in value)
    except (TypeError, ValueError):
        columns = ()
    if len(columns) not in (2, 3) or len(set(columns)) < len(columns) or min(columns) < 0:
        raise ValueError(
            f"prepare: `tsv_columns` is {value!r}; give two different columns counted from 0, such "
            "as 1,2, or three with that of the scores, such as 1,2,0"
        )
    return columns


def settings(config: PrepareConfig) -> dict[str, Any]:
    """Returns the settings that the content of the data set depends on, as JSON values."""
    content = dataclasses.asdict(config)
    for field in ("output", "workers", "runner", "runner_options"):
        del content[field]
    if not config.exclude_overlap:
        del content["exclude_overlap"], content["check_overlap"]
    # Omitted if empty, so that data sets from before these fields existed stay valid.
    if content["bitext_merge"] == "all":
        del content["bitext_merge"]
    for field in ("tsv_columns", "shuffle_pairs", "validation", "options", *_FILTERS):
        if content[field] in (None, 0, "", []):  # Also False and ().
            del content[field]
    return json.loads(json.dumps(content))


def is_prepared(config: PrepareConfig) -> bool:
    """Returns whether `config.output` is complete and has the same settings.

    Reads two small files. Returns False if they are damaged or another file is missing, so that
    `prepare` repairs the data set.
    """
    output = as_path(config.output)
    try:
        written = unseal((output / SETTINGS_FILE).read_bytes())
        PreparedDataset.load(output)
    except (OSError, ValueError):
        return False
    return written.get("settings") == settings(config)


def write_settings(config: PrepareConfig, command: str) -> None:
    """Writes the settings beside the data set; `is_prepared` returns True from then on."""
    content = {"format": FORMAT, "settings": settings(config), "command": command}
    replace_file(as_path(config.output) / SETTINGS_FILE, seal(content))
