"""Limits and filters of the text that `prepare` encodes, in two tables that `tokenizing` applies.

To add a limit or filter, add an entry to `LIMITS` or `TEXT_FILTERS`. The flag, the check, the part
in fingerprints and the counts in `dataset.json` follow from the entry. All limits and filters are
off by default. Their settings are entries of `PrepareConfig.options`, under the name of the flag.

Limits, and filters that compare a document with earlier ones, need the files of a task in one
order. Then one worker reads all these files, so that the result does not depend on the number of
workers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xlme_jax.data.text.reading import ReadReport
from xlme_jax.preparation import duplicates, language_id, text_rules
from xlme_jax.preparation.source_types import Flag, Shard, Texts, setting

if TYPE_CHECKING:
    from xlme_jax.preparation.prepare_config import PrepareConfig

DOCUMENTS, PAIRS = "monolingual", "bitext"
_KINDS = {DOCUMENTS: "running text", PAIRS: "translation pairs"}
# Reasons in the counts of skipped texts of a task, for the files that a limit leaves unread: a file
# that is not opened, and the rest of the file in which the limit is reached.
UNREAD, REST = "whole files behind a limit", "rest of a file behind a limit"
_ORDER = Flag(
    "limit_seed",
    "Seed of the order in which files are read under a limit (default: 0).",
    "integer",
    minimum=0,
)


def _positive(value: Any) -> str:
    """Returns "" for a positive integer, else words for what is allowed."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return "" if is_number and value >= 1 else "a whole number of at least 1"


def _share(value: Any) -> str:
    """Returns "" for a share above 0, else words for what is allowed."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if is_number and 0 < value <= 1 else "a number above 0, up to 1"


# --- Limits ---


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit on what is encoded of each task: of each language, or pair of languages.

    Attributes:
      flag: Flag that sets the limit.
      kinds: Kinds of tasks that the limit applies to.
      amounts: Takes the numbers of tokens of N examples, int64[N], and returns how much each
        example counts towards the limit, int64[N].
    """

    flag: Flag
    kinds: tuple[str, ...]
    amounts: Callable[[np.ndarray], np.ndarray]


LIMITS = (
    Limit(
        Flag(
            "max_documents",
            "Encode at most this many documents of each language, of each source; further files "
            "are not read.",
            "integer",
            minimum=1,
        ),
        (DOCUMENTS,),
        lambda sizes: (sizes > 0).astype(np.int64),
    ),
    Limit(
        Flag(
            "max_pairs",
            "Encode at most this many pairs of each pair of languages; likewise.",
            "integer",
            minimum=1,
        ),
        (PAIRS,),
        lambda sizes: (sizes > 0).astype(np.int64),
    ),
    Limit(
        Flag(
            "max_tokens",
            "Encode at most this many tokens of each language, and of each pair of languages; the "
            "text that would exceed it is the first that is left out.",
            "integer",
            minimum=1,
        ),
        (DOCUMENTS, PAIRS),
        lambda sizes: sizes,
    ),
)


class Room:
    """The examples that the limits of a task still admit.

    Attributes:
      is_full: Whether a limit is reached, so that no further example is read.

    Args:
      config: The configuration, with the limits.
      kind: Kind of the task.
    """

    def __init__(self, config: PrepareConfig, kind: str):
        self._remaining = [
            [limit, value]
            for limit in LIMITS
            if kind in limit.kinds and (value := setting(config, limit.flag.name)) is not None
        ]
        self._longest = config.max_pair_tokens if kind == PAIRS else None
        self.is_full = False

    def most_texts(self, number: int) -> int:
        """Returns how many texts are worth reading: at most `number`, at least 1."""
        # A text that has tokens counts at least 1 towards every limit.
        return max(min([number, *(value for _, value in self._remaining)]), 1)

    def fitting(self, sizes: np.ndarray) -> int:
        """Returns how many of the next examples fit, and subtracts them from what is left.

        Examples that are too long, which the writer skips, count nothing.

        Args:
          sizes: int64[N], tokens of each example.
        """
        if not self._remaining:
            return len(sizes)
        if self._longest is not None:
            sizes = np.where(sizes > self._longest, 0, sizes)
        totals = [np.cumsum(limit.amounts(sizes)) for limit, _ in self._remaining]
        number = min(
            int(np.searchsorted(total, value, side="right"))
            for total, (_, value) in zip(totals, self._remaining)
        )
        for total, entry in zip(totals, self._remaining):
            entry[1] -= int(total[number - 1]) if number else 0
        self.is_full = number < len(sizes) or any(not value for _, value in self._remaining)
        return number


# --- Filters of text ---

# Yields the examples that pass a filter, perhaps changed, and counts the skipped ones.
Stage = Callable[[Texts, ReadReport], Texts]


@dataclasses.dataclass(frozen=True)
class TextFilter:
    """A filter of documents or pairs, before they are encoded.

    Attributes:
      flag: Flag that sets the value of the filter.
      kinds: Kinds of tasks that the filter applies to.
      problem: Takes a value and returns "" if it is valid, else words for what is allowed.
      open: Takes a value and the languages of a task, and returns the stage; called in a worker.
      in_order: Whether the filter needs all files of a task in one order.
      version: Takes a value and returns what else the result depends on, such as a package version.
      check: Takes a value and raises ValueError if a library or file is missing.
      warning: Takes a value and languages, and returns a sentence about those languages that the
        filter leaves as they are, or "".
    """

    flag: Flag
    kinds: tuple[str, ...]
    problem: Callable[[Any], str]
    open: Callable[[Any, Sequence[str]], Stage]
    in_order: bool = False
    version: Callable[[Any], object] = lambda value: ""
    check: Callable[[Any], None] = lambda value: None
    warning: Callable[[Any, Collection[str]], str] = lambda value, languages: ""


def _each(reason: str, is_good: Sequence[Callable[[str], bool]]) -> Stage:
    """Returns a stage that skips examples with a text that is not good.

    Args:
      reason: Reason in the counts of skipped examples.
      is_good: For each text of an example, a function that tells whether the text is good.
    """

    def stage(texts: Texts, report: ReadReport) -> Texts:
        for example in texts:
            if all(good(text) for good, text in zip(is_good, example)):
                yield example
            else:
                report.skip(reason)

    return stage


def _open_line_rules(value: str, languages: Sequence[str]) -> Stage:
    rules = text_rules.LINE_RULES[value](languages[0])

    def stage(texts: Texts, report: ReadReport) -> Texts:
        for (document,) in texts:
            if cleaned := rules(document, report):
                yield (cleaned,)

    return stage


def _open_repeated_lines(value: float, languages: Sequence[str]) -> Stage:
    return _each(
        f"repeated lines over {value:g}", [lambda text: text_rules.repeated_lines(text) <= value]
    )


def _open_min_characters(value: int, languages: Sequence[str]) -> Stage:
    return _each(f"fewer than {value} characters", [lambda text: len(text) >= value])


def _open_letters(value: float, languages: Sequence[str]) -> Stage:
    rules = [lambda text: text_rules.letters(text) >= value for _ in languages]
    return _each(f"letters under {value:g}", rules)


def _open_identified(value: str, languages: Sequence[str]) -> Stage:
    identifier = language_id.identifier(value)
    rules = [identifier.accepts(language) for language in languages]
    return _each("identified as another language", rules)


def _open_near_duplicates(value: float, languages: Sequence[str]) -> Stage:
    seen = duplicates.NearDuplicates(value)

    def stage(texts: Texts, report: ReadReport) -> Texts:
        for example in texts:
            if seen.add(example[0]):
                yield example
            else:
                report.skip("near-duplicate document")

    return stage


# In the order in which they are applied: filters that change documents first, the slowest last.
TEXT_FILTERS = (
    TextFilter(
        Flag(
            "line_rules",
            "Remove lines and documents by the rules of a corpus: c4 (lines without an end mark or "
            "of fewer than 5 words, JavaScript and cookie notices; documents with fewer than 3 "
            "sentences, lorem ipsum or `{`; Raffel et al., 2020, Sec. 2.2). End marks are those of "
            "all scripts but Thai and Lao; words count only where spaces separate them.",
        ),
        (DOCUMENTS,),
        lambda value: "" if value in text_rules.LINE_RULES else ", ".join(text_rules.LINE_RULES),
        _open_line_rules,
    ),
    TextFilter(
        Flag(
            "max_repeated_lines",
            "Skip documents in which a larger share of the lines repeats earlier ones, such as .3 "
            "(Rae et al., 2021, Table A1).",
            "float",
        ),
        (DOCUMENTS,),
        _share,
        _open_repeated_lines,
    ),
    TextFilter(
        Flag("min_characters", "Skip shorter documents.", "integer", minimum=1),
        (DOCUMENTS,),
        _positive,
        _open_min_characters,
    ),
    TextFilter(
        Flag(
            "min_letters",
            "Skip documents and pairs with a text of which a smaller share are letters and their "
            "vowel signs, such as .6; white space does not count.",
            "float",
        ),
        (DOCUMENTS, PAIRS),
        _share,
        _open_letters,
        version=lambda value: text_rules.UNICODE_VERSION,
    ),
    TextFilter(
        Flag(
            "keep_identified",
            "Skip documents and pairs identified as another language than theirs: py3langid, or a "
            "fastText model file, such as GlotLID's model.bin. Texts under 20 characters stay, and "
            "so do languages that the model does not know, which a warning names.",
        ),
        (DOCUMENTS, PAIRS),
        lambda value: "" if value and isinstance(value, str) else "py3langid or a fastText model",
        _open_identified,
        version=language_id.version,
        check=language_id.check_identifier,
        warning=lambda value, languages: language_id.unknown(value, languages),
    ),
    TextFilter(
        Flag(
            "near_duplicates",
            "Skip documents as similar as this to an earlier one of their language, by the Jaccard "
            "similarity of word 5-grams, such as .8 (MinHash; Lee et al., 2022). It takes about "
            "2.5 KB a document, and one worker for each language.",
            "float",
        ),
        (DOCUMENTS,),
        _share,
        _open_near_duplicates,
        in_order=True,
        version=lambda value: duplicates.near_duplicates_version(),
        check=lambda value: duplicates.check_near_duplicates(),
    ),
)


# --- What `prepare` asks ---


def flags() -> list[Flag]:
    """Returns the flags of all limits and filters."""
    return [*(entry.flag for entry in (*LIMITS, *TEXT_FILTERS)), _ORDER]


def _text_filters(config: PrepareConfig, kind: str) -> Iterator[tuple[TextFilter, Any]]:
    """Yields the filters that apply to a kind of task, with their values."""
    for entry in TEXT_FILTERS:
        value = setting(config, entry.flag.name)
        if kind in entry.kinds and value is not None:
            yield entry, value


def check(config: PrepareConfig) -> None:
    """Raises ValueError if a limit or filter has an invalid value, or lacks its library or file."""
    for limit in LIMITS:
        _check_value(limit.flag.name, setting(config, limit.flag.name), _positive)
    for entry in TEXT_FILTERS:
        value = setting(config, entry.flag.name)
        _check_value(entry.flag.name, value, entry.problem)
        if value is not None:
            entry.check(value)


def _check_value(name: str, value: Any, problem: Callable[[Any], str]) -> None:
    if value is not None and (allowed := problem(value)):
        raise ValueError(f"prepare: `{name}` is {value!r}; give {allowed}, or leave it out")


def check_tasks(config: PrepareConfig, kinds: Collection[str]) -> None:
    """Raises ValueError if a limit or filter applies to no kind of task that there is."""
    for entry in (*LIMITS, *TEXT_FILTERS):
        if setting(config, entry.flag.name) is not None and not set(entry.kinds) & set(kinds):
            text = " and ".join(_KINDS[kind] for kind in entry.kinds)
            raise ValueError(
                f"prepare: `{entry.flag.name}` applies only to {text}, of which the tasks "
                f"({', '.join(config.tasks)}) have none; leave it out"
            )


def warnings(config: PrepareConfig, languages: Collection[str]) -> list[str]:
    """Returns sentences about languages that a filter does not know, and so leaves as they are."""
    sentences = [
        entry.warning(value, languages)
        for entry in TEXT_FILTERS
        if (value := setting(config, entry.flag.name)) is not None
    ]
    return [sentence for sentence in sentences if sentence]


def named(config: PrepareConfig) -> list[str]:
    """Returns the names of the limits and filters that a configuration sets."""
    names = [entry.flag.name for entry in (*LIMITS, *TEXT_FILTERS)]
    return [name for name in names if setting(config, name) is not None]


def excludes_evaluation_text(config: PrepareConfig, kind: str, split: str) -> bool:
    """Returns whether texts with evaluation text are removed from a split.

    Args:
      config: The configuration.
      kind: Kind of the task: "monolingual", "bitext" or "labelled".
      split: The split.
    """
    return config.exclude_overlap and kind != "labelled" and split == "train"


def reading_text(config: PrepareConfig, kind: str, split: str) -> list[str]:
    """Returns the names of the settings that need the text of a split.

    The arguments are those of `excludes_evaluation_text`.
    """
    names = [entry.flag.name for entry, _ in _text_filters(config, kind)]
    if excludes_evaluation_text(config, kind, split):
        names.append("exclude_overlap")
    return names


def has_limits(config: PrepareConfig) -> bool:
    """Returns whether a limit is set, for any kind of task."""
    return any(setting(config, limit.flag.name) is not None for limit in LIMITS)


def needs_order(config: PrepareConfig, kind: str) -> bool:
    """Returns whether the files of a task must be read one after the other."""
    has_limit = any(
        kind in limit.kinds and setting(config, limit.flag.name) is not None for limit in LIMITS
    )
    return has_limit or any(entry.in_order for entry, _ in _text_filters(config, kind))


def fingerprint(config: PrepareConfig, kind: str) -> tuple[object, ...]:
    """Returns the limits and filters that the result of a kind of task depends on.

    The result, which is () without limits and filters, has no `limit_seed`: the order of the shards
    in the fingerprint of the job depends on the seed.
    """
    limits = [
        (limit.flag.name, value)
        for limit in LIMITS
        if kind in limit.kinds and (value := setting(config, limit.flag.name)) is not None
    ]
    texts = [
        (entry.flag.name, value, entry.version(value))
        for entry, value in _text_filters(config, kind)
    ]
    return (*limits, *texts)


def stages(config: PrepareConfig, kind: str, languages: Sequence[str]) -> Stage:
    """Returns one stage that applies all filters of a task.

    Filters that compare documents remember the documents of all files that the stage has read.
    """
    opened = [entry.open(value, languages) for entry, value in _text_filters(config, kind)]

    def stage(texts: Texts, report: ReadReport) -> Texts:
        for apply in opened:
            texts = apply(texts, report)
        return texts

    return stage


def in_order(config: PrepareConfig, shards: Sequence[Shard]) -> list[Shard]:
    """Returns source shards in the order in which a limit takes them.

    The shards are sorted by digests of `limit_seed` and the names of their files, without folders.
    So the order is random but fixed, and a limit takes a sample of all files, not the first by
    name.
    """
    seed = setting(config, _ORDER.name) or 0

    def digest(shard: Shard) -> tuple[bytes, str]:
        names = "\n".join(file.name for file in shard.files) or os.path.basename(shard.name)
        return hashlib.sha256(f"{seed}\n{names}".encode()).digest(), shard.name

    return sorted(shards, key=digest)
