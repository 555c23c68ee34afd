r"""Trains a SentencePiece vocabulary: `python -m xlme_jax.train_vocabulary`.

For example, to train 16,000 ids for the languages of CC-100 files and pair files::

    python -m xlme_jax.train_vocabulary --tasks=cc100,bitext --cc100_dir=mono --bitext_dir=pairs \
        --size=16000 --output=vocabulary.model

Languages are sampled with p ∝ n^alpha, where n is the bytes of a language. The default, 0.7, is
that of training, so pieces are allocated in proportion to training tokens. XLM-R's vocabulary was
sampled with 0.3, which gives small languages more pieces and every language longer rows. With a few
hundred megabytes or less, alpha hardly matters, since small languages are used completely.

`--method=vocap` is the method of XLM-E's and XY-LENT's 500k vocabularies (Zheng et al. 2021): it
trains candidates of several sizes for each language on its own, and chooses those that raise the
log-probability of the languages' text most. Candidates are kept in the folder `--candidates`; after
an interruption, the same command goes on, and other `--size` or `--beta` take them from there.
`--runner=DataflowRunner` (or FlinkRunner, SparkRunner) trains them on Apache Beam::

    python -m xlme_jax.train_vocabulary --method=vocap --tasks=cc100 --cc100_dir=mono \
        --size=64000 --candidate_sizes=1000,2000,4000,8000 --output=vocap.model

`--extend` adds pieces of new languages to an existing vocabulary, whose ids and scores stay, so
that a checkpoint trained with it can be continued (`docs/guide/add_languages.md`). `--size` is then
the number of new pieces, and `--keep` names old languages whose text should be tokenized as
before::

    python -m xlme_jax.train_vocabulary --extend=vocabulary.model --tasks=cc100 --cc100_dir=mono \
        --languages=el,sw --keep=en,fr,ru --size=+4000 --output=extended.model

`--trim` leaves out the pieces that the text of `--languages` does not use; that text keeps its
pieces, and a checkpoint trained with the old vocabulary can be continued with a smaller table
(`docs/guide/vocabularies.md`). With `--size`, new pieces of `--languages` are added, as by
`--extend`, and `--keep` names further languages, whose pieces stay too::

    python -m xlme_jax.train_vocabulary --trim=vocabulary.model --tasks=cc100 --cc100_dir=mono \
        --languages=en,fr,sw --output=trimmed.model
    python -m xlme_jax.train_vocabulary --trim=vocabulary.model --tasks=cc100 --cc100_dir=mono \
        --languages=sw --keep=en,fr --size=+4000 --output=trimmed.model

`--report` measures the vocabulary on the text of each language, next to others (`--against`).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from absl import flags

from xlme_jax.configuration import source_flags, worker_flags
from xlme_jax.data.languages import tag_or_code
from xlme_jax.preparation import sources
from xlme_jax.storage.files import check_output
from xlme_jax.storage.paths import as_path
from xlme_jax.validation import shell

if TYPE_CHECKING:
    from xlme_jax.data.vocabulary import Vocabulary
    from xlme_jax.preparation.source_types import LanguageText
    from xlme_jax.vocabularies.vocap import VocapConfig

flags.adopt_module_key_flags(source_flags)
flags.adopt_module_key_flags(worker_flags)

_METHOD = flags.DEFINE_enum(
    "method",
    "temperature",
    ["temperature", "vocap"],
    "temperature: one model on text of all languages; vocap: see above.",
)
_SIZE = flags.DEFINE_integer(
    "size",
    16_000,
    "Number of ids, including <pad> and <mask>; with --extend or --trim, of new pieces.",
    8,
)
_EXTEND = flags.DEFINE_string(
    "extend", None, "Vocabulary to add pieces to; its ids and scores stay."
)
_TRIM = flags.DEFINE_string(
    "trim", None, "Vocabulary to leave pieces out of that the text does not use."
)
_UNUSED_CHARACTERS = flags.DEFINE_bool(
    "unused_characters",
    True,
    "trim: keep single characters that the text does not use; else they become bytes or <unk>.",
)
_KEEP = flags.DEFINE_list(
    "keep", [], "extend, trim: old languages in the same folders, whose tokens hardly change."
)
_OUTPUT = flags.DEFINE_string("output", "vocabulary.model", "File to write.")
_ALPHA = flags.DEFINE_float(
    "alpha", 0.7, "Exponent of the sampling over languages (p ∝ bytes^alpha).", 0.0, 1.0
)
_BUDGET = flags.DEFINE_integer(
    "sample_bytes",
    None,
    "Bytes of text to train on (default: 1,500 per id; 16k ids: 24 MB); trim: to "
    "count pieces in (default: all).",
    1,
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the sampling.")
_BYTE_FALLBACK = flags.DEFINE_bool(
    "byte_fallback", True, "Encode rare characters as UTF-8 bytes (256 ids) instead of <unk>."
)
_COVERAGE = flags.DEFINE_float(
    "character_coverage", 0.9995, "Share of the text's characters with their own id.", 0.98, 1
)
_ALLOW_SMALLER = flags.DEFINE_bool(
    "allow_smaller", False, "Accept fewer ids if the text does not support --size."
)
_BETA = flags.DEFINE_float(
    "beta", 0.7, "vocap: languages weigh p^beta, with p ∝ bytes^alpha.", 0.0, 1.0
)
_CANDIDATES = flags.DEFINE_string(
    "candidates", None, "vocap: folder of the candidates (default: --output with .candidates)."
)
_CANDIDATE_SIZES = flags.DEFINE_list(
    "candidate_sizes",
    None,
    "vocap: ids of each language's candidates (default: 1000,2000,4000,8000,16000,32000; the paper "
    "has 1000 to 50000 in steps of 1000).",
)
_CANDIDATE_BYTES = flags.DEFINE_integer(
    "candidate_bytes", 10_000_000, "Bytes of each language for its candidates and --report.", 1
)
_CHANGE_BYTES = 1_000_000  # Of each language, to measure how an extension changes its tokens.
_OF_VOCAP = ("beta", "candidates", "candidate_sizes", "workers", "runner", "runner_options")
_REPORT = flags.DEFINE_string("report", None, "Folder of a table and a picture over languages.")
_AGAINST = flags.DEFINE_list("against", [], "Further vocabularies for --report, .model files.")


def _check_report() -> None:
    """Creates the folder of --report before training; raises ValueError if that fails."""
    if _AGAINST.value and not _REPORT.value:
        raise ValueError("--against needs --report=FOLDER, where the comparison is written.")
    if _REPORT.value:
        try:
            as_path(_REPORT.value).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"--report={_REPORT.value} is not a folder and cannot become one "
                f"({error.strerror}); choose another"
            ) from error


def _check_method() -> None:
    """Raises ValueError if the flags given belong to different methods, or one is missing."""
    if _TRIM.value and _EXTEND.value:
        raise ValueError("--trim adds pieces too if --size=+N is given; remove --extend.")
    if not _UNUSED_CHARACTERS.value and not _TRIM.value:
        raise ValueError("--nounused_characters is a flag of --trim=FILE.model; add that.")
    if _TRIM.value and (_METHOD.value == "vocap" or not _BYTE_FALLBACK.value):
        raise ValueError(
            "--trim keeps the kind of the vocabulary that it trims; remove --method=vocap and "
            "--nobyte_fallback."
        )
    if _TRIM.value and not flags.FLAGS.languages:
        raise ValueError(
            "--trim needs --languages, whose pieces stay, such as --languages=en,fr,sw"
        )
    if _TRIM.value and _KEEP.value and not flags.FLAGS["size"].present:
        raise ValueError(
            "--keep with --trim is for languages that get no new pieces, and without --size=+N "
            "none does; name all languages in --languages."
        )
    if _EXTEND.value and (_METHOD.value == "vocap" or not _BYTE_FALLBACK.value):
        raise ValueError(
            "--extend keeps the kind of the vocabulary that it extends; remove --method=vocap and "
            "--nobyte_fallback."
        )
    if _EXTEND.value and not flags.FLAGS.languages:
        raise ValueError("--extend needs --languages, the new languages, such as --languages=el,sw")
    if _KEEP.value and not (_EXTEND.value or _TRIM.value):
        raise ValueError("--keep is a flag of --extend=FILE.model; add that, or remove --keep.")
    old, new = (set(map(tag_or_code, codes)) for codes in (_KEEP.value, flags.FLAGS.languages))
    if both := sorted(old & new):
        raise ValueError(f"--keep and --languages both have {both[0]}; a language is old or new.")
    set_flags = [name for name in _OF_VOCAP if flags.FLAGS[name].present]
    if set_flags and _METHOD.value != "vocap":
        raise ValueError(
            f"--{set_flags[0]} is a flag of --method=vocap; add that, or remove --{set_flags[0]}."
        )


def _vocap_config() -> VocapConfig | None:
    """Returns the settings of VoCap from the flags, or None for another method."""
    if _METHOD.value != "vocap":
        return None
    from xlme_jax.vocabularies import vocap

    asked = _CANDIDATE_SIZES.value or vocap.SIZES
    try:
        sizes = tuple(int(size) for size in asked)
    except ValueError:
        raise ValueError(
            f"--candidate_sizes={','.join(map(str, asked))}: give whole numbers, such as "
            "1000,2000,4000"
        ) from None
    parsed = flags.FLAGS
    return vocap.VocapConfig(
        size=_SIZE.value,
        folder=_CANDIDATES.value or f"{_OUTPUT.value.removesuffix('.model')}.candidates",
        sizes=sizes,
        alpha=_ALPHA.value,
        beta=_BETA.value,
        candidate_bytes=_CANDIDATE_BYTES.value,
        sample_bytes=_budget(),
        character_coverage=_COVERAGE.value,
        byte_fallback=_BYTE_FALLBACK.value,
        allow_smaller=_ALLOW_SMALLER.value,
        seed=_SEED.value,
        workers=parsed.workers,
        runner=parsed.runner,
        runner_options=tuple(parsed.runner_options),
    )


def _budget() -> int:
    """Returns the number of bytes of text to train on."""
    return _BUDGET.value or 1500 * _SIZE.value


def _by_temperature(texts: Sequence[LanguageText]) -> Vocabulary:
    """Returns a vocabulary that is trained on text of all languages together."""
    from xlme_jax.data import vocabulary
    from xlme_jax.preparation import vocabulary_text

    sample = vocabulary_text.sample_text(texts, _budget(), _ALPHA.value, _SEED.value)
    handler = signal.getsignal(signal.SIGINT)
    try:
        return vocabulary.train_vocabulary(
            _announced(vocabulary_text.progress_bar(sample)),
            _SIZE.value,
            byte_fallback=_BYTE_FALLBACK.value,
            character_coverage=_COVERAGE.value,
            allow_smaller=_ALLOW_SMALLER.value,
        )
    finally:
        signal.signal(signal.SIGINT, handler)


def _announced(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts, and then says that SentencePiece, which prints nothing, begins."""
    yield from texts
    print(
        f"SentencePiece trains {_SIZE.value:,} ids on this sample; it prints nothing meanwhile, "
        "often for minutes.",
        file=sys.stderr,
    )
    # Python's handler would wait for SentencePiece, minutes long. No file is open here.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _old_languages() -> list[str]:
    """Returns the codes of --keep."""
    return list(dict.fromkeys(map(tag_or_code, _KEEP.value)))


def _new_languages() -> list[str]:
    """Returns the codes of --languages."""
    return list(dict.fromkeys(map(tag_or_code, flags.FLAGS.languages)))


def _by_extension(texts: Sequence[LanguageText], old: Vocabulary) -> Vocabulary:
    """Returns the old vocabulary with pieces of the new languages added."""
    from xlme_jax.data.vocabulary import sentences
    from xlme_jax.preparation import vocabulary_text
    from xlme_jax.vocabularies import extending

    def sample(languages: Sequence[str]) -> list[str]:
        chosen = [text for text in texts if text.language in languages]
        if not chosen:
            return []
        sampled = vocabulary_text.sample_text(chosen, _budget(), _ALPHA.value, _SEED.value)
        return list(sentences(vocabulary_text.progress_bar(sampled)))

    return extending.extend(
        old,
        sample(_new_languages()),
        _SIZE.value,
        sample(_old_languages()),
        character_coverage=_COVERAGE.value,
        allow_smaller=_ALLOW_SMALLER.value,
    )


def _by_trimming(texts: Sequence[LanguageText], old: Vocabulary) -> Vocabulary:
    """Returns the pieces of the old vocabulary that the text uses; with --size, new pieces too.

    Prints how many pieces each language uses.
    """
    import numpy as np

    from xlme_jax.data import vocabulary_extension
    from xlme_jax.vocabularies import trimming

    adds = flags.FLAGS["size"].present
    # Pieces are added first, so that old ones which only they replace are left out, and all
    # scores are those of --extend.
    extended = _by_extension(texts, old) if adds else old
    counts = trimming.piece_counts(extended, texts, _BUDGET.value, _ALPHA.value, _SEED.value)
    print(trimming.summary(trimming.uses_of(extended, counts)))
    used = np.sum(list(counts.values()), axis=0) > 0
    used[old.size - 1 :] = True  # New pieces stay.
    trimmed = vocabulary_extension.trim(extended, used, old, _UNUSED_CHARACTERS.value)
    print(
        f"{old.size:,} ids become {trimmed.size:,}: {extended.size - trimmed.size:,} left out, "
        f"{extended.size - old.size:,} new"
    )
    return trimmed


def _print_changes(texts: Sequence[LanguageText], old: Vocabulary, new: Vocabulary) -> None:
    """Prints how the tokens of each language change."""
    from xlme_jax.data.vocabulary import sentences
    from xlme_jax.preparation import vocabulary_text, workers
    from xlme_jax.vocabularies import extending

    changes = []
    languages = (*_old_languages(), *_new_languages())
    with workers.open_bar(desc="compare", unit="language", total=len(languages)) as bar:
        for language in languages:
            lines = vocabulary_text.sample_language(texts, language, _CHANGE_BYTES, _SEED.value + 1)
            changes.append((language, extending.changes(old, new, sentences(lines))))
            bar.update()
    print(extending.summary(changes))


def _by_vocap(
    texts: Sequence[LanguageText], config: VocapConfig
) -> tuple[Vocabulary, dict[str, int]]:
    """Trains by VoCap; returns the vocabulary, and {language: pieces of its chosen candidate}."""
    from xlme_jax.vocabularies import vocap

    trained = vocap.train(texts, config)
    sizes = {language: candidate.pieces for language, candidate in trained.chosen.items()}
    largest = max(config.sizes)
    full = [lang for lang, candidate in trained.chosen.items() if candidate.request.size == largest]
    if full:
        print(
            f"Languages with the largest candidate ({largest:,} ids), which larger "
            f"--candidate_sizes might give more: {' '.join(full)}",
            file=sys.stderr,
        )
    return trained.vocabulary, sizes


def _report(
    folder: str,
    texts: Sequence[LanguageText],
    vocabularies: Mapping[str, Vocabulary],
    allocated: Mapping[str, int] | None,
) -> None:
    """Measures vocabularies on the text of each language; writes the table and the picture.

    Args:
      folder: folder to write.
      texts: the text of each language.
      vocabularies: {file: vocabulary}.
      allocated: {language: pieces of its candidate} of the first vocabulary; None without VoCap.
    """
    from xlme_jax.studies.reports import vocabulary_fits
    from xlme_jax.vocabularies import vocabulary_measures

    fits = vocabulary_measures.measure_languages(
        vocabularies, texts, _CANDIDATE_BYTES.value, _SEED.value
    )
    vocabulary_fits.write(as_path(folder), fits, allocated)
    print(vocabulary_fits.summary(fits))
    print(f"{folder}: {vocabulary_fits.TABLE}, {vocabulary_fits.PICTURE}", file=sys.stderr)


def main() -> None:
    """Trains and writes the vocabulary, and the report if --report is given."""
    from xlme_jax import api
    from xlme_jax.data import vocabulary
    from xlme_jax.preparation import vocabulary_text

    if not flags.FLAGS["tasks"].present and not flags.FLAGS.gin_file:
        raise ValueError(
            f"--tasks is missing; name the text to train on: {sources.describe()}, such as "
            "--tasks=cc100,bitext with --cc100_dir and --bitext_dir, or SeqIO tasks."
        )
    _check_method()
    check_output(as_path(_OUTPUT.value), "v.model")
    _check_report()
    compared = {path: vocabulary.Vocabulary.load(path) for path in _AGAINST.value}
    config = _vocap_config()
    source = _EXTEND.value or _TRIM.value
    old = vocabulary.Vocabulary.load(source) if source else None
    start = time.monotonic()
    fixed = {"languages": (*flags.FLAGS.languages, *_KEEP.value)} if old else {}
    texts = api.find_text(
        source_flags.configuration(output=".", workers=0, runner="", runner_options=(), **fixed)
    )
    languages = vocabulary_text.languages_of(texts)
    print(f"{len(languages)} languages: {' '.join(languages)}", file=sys.stderr)
    allocated = None
    if config:
        trained, allocated = _by_vocap(texts, config)
    elif old:
        trained = (_by_trimming if _TRIM.value else _by_extension)(texts, old)
        _print_changes(texts, old, trained)
    else:
        trained = _by_temperature(texts)
    vocabulary.write_vocabulary(trained, _OUTPUT.value)
    seconds = time.monotonic() - start
    print(f"{_OUTPUT.value}: {trained.size} ids, {seconds:.0f} s", file=sys.stderr)
    if _REPORT.value:
        _report(_REPORT.value, texts, {_OUTPUT.value: trained, **compared}, allocated)
    if not (old or flags.FLAGS.gin_file):
        output = _OUTPUT.value.removesuffix(".model")
        words = [*source_flags.given(), f"--vocabulary={_OUTPUT.value}", f"--output={output}"]
        print(f"Next: {shell.join(['python', '-m', 'xlme_jax.prepare', *words])}")


if __name__ == "__main__":
    from xlme_jax.configuration import command_line

    command_line.run_app(main)
