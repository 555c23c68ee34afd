"""The public sets that are made to measure with, as they are distributed: one entry each.

An entry says how the files of a set are named, what tells them apart from other files, where their
text is and who published it. Three things follow from it:

- `prepare --tasks=text` recognises the files and leaves them out of training;
- `prepare --check_overlap` and `--exclude_overlap` read the text of the set, and nothing beside it;
- a set of translations, one that has a `task`, is measured by `evaluate --tasks=TASK`.

The labels of sets for classification and their scores are in `catalogue`.
"""

from __future__ import annotations

import dataclasses
import re

# Column of `SetFiles.text`: every column whose name is a language.
EVERY_LANGUAGE = "<language>"


@dataclasses.dataclass(frozen=True)
class SetFiles:
    """Files of one form of a set. A file without columns has a text on each line.

    Attributes:
      paths: Ends of the paths of the files, as regular expressions with the tokens of
        `path_patterns`. A group `split` is a word for a part of the set.
      text: Columns with text, the most important first; `EVERY_LANGUAGE` for all that are named by
        their language. Empty: the file has lines.
      columns: Further columns that a file of this form must have.
      languages: For each column of `text`, the columns that name its language, with "+" between
        them. Empty: the name of the file or of the column tells the language.
      unit: Column with the id of a unit, which is the same in all languages. Empty: units are
        counted by line or row.
      header: Names of the first columns of TSV files that have no header line.
      line: Regular expression of the first line of a file without header.
      split: Part of the set that files belong to whose path has no group `split`.
      is_corpus: Whether the files are also a corpus to train on, which has its own row in the table
        of distributions.
    """

    paths: tuple[str, ...]
    text: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    unit: str = ""
    header: tuple[str, ...] = ()
    line: str = ""
    split: str = ""
    is_corpus: bool = False


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """A set that is made to measure with.

    Attributes:
      name: Name in options and messages, such as "ntrex-128".
      title: Name in running text.
      files: Its files; a file has the first form that it fits.
      example: Path of one file, as downloaded.
      task: Name in `evaluate --tasks` of a set of translations; several sets may be one task. Empty
        if the set is no such set.
      folders: Names of the folders of a task that `evaluate` looks for, beside the task's name.
      beside: Ends of the paths of files that belong to the set and have no text of it.
      licence: Licence of the set, as the publisher states it.
      citation: Publication to cite.
      url: Address of the set.
    """

    name: str
    title: str
    files: tuple[SetFiles, ...]
    example: str
    task: str = ""
    folders: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    licence: str = ""
    citation: str = ""
    url: str = ""


_FLORES_CODE = r"(?P<language>[a-z]{3}_[A-Z][a-z]{3}(?:_\w+)?)"
_FLORES_SPLIT = r"(?P<split>dev|devtest)"
_FLORES_TABLES = (
    rf"{_FLORES_SPLIT}/<language>\.(?:jsonl|parquet)<z>",
    rf"<language>/{_FLORES_SPLIT}-\d+-of-\d+\.parquet",
)
# Tables of known columns are of a set, whoever packed them.
_TABLE = r"<language>(?:[-_./]<file>){0,2}\.(?:parquet|arrow|jsonl?|tsv|csv)<z>"
_TICO_COLUMNS = ("sourceLang", "targetLang", "sourceString", "targetString", "stringID")
_TICO_TEXT = _TICO_COLUMNS[2:4]
_TICO_PATH = r"(?P<split>dev|test|all)\.<pair>"
_ANSWERS = ("mc_answer1", "mc_answer2", "mc_answer3", "mc_answer4")

SETS: tuple[EvaluationSet, ...] = (
    EvaluationSet(
        "flores-200",
        "FLORES-200",
        (
            SetFiles(
                (
                    rf"{_FLORES_SPLIT}/<language>\.(?P=split)<z>",
                    rf"{_FLORES_CODE}\.{_FLORES_SPLIT}<z>",
                )
            ),
            # The predecessor of FLORES+ on the hub.
            SetFiles(
                (*_FLORES_TABLES, _TABLE),
                text=("sentence",),
                columns=("URL", "domain", "topic"),
                unit="id",
            ),
        ),
        "flores200_dataset/devtest/swh_Latn.devtest",
        task="flores",
        folders=("flores200_dataset", "flores101_dataset"),
        beside=(r"metadata_(?:dev|devtest)\.tsv",),
        licence="CC BY-SA 4.0",
        citation="NLLB Team, 2022, No Language Left Behind",
        url="https://github.com/facebookresearch/flores",
    ),
    EvaluationSet(
        "flores-plus",
        "FLORES+",
        (
            # OLDI's Seed, which is text to train on, has no domains and topics.
            SetFiles(
                (*_FLORES_TABLES, _TABLE),
                text=("text",),
                columns=("iso_639_3", "iso_15924", "domain", "topic"),
                languages=("iso_639_3+iso_15924",),
                unit="id",
            ),
            # Files of Moses are named `dev/dev.en`.
            SetFiles((rf"{_FLORES_SPLIT}/(?P=split)\.{_FLORES_CODE}<z>",)),
        ),
        "devtest/swh_Latn.parquet",
        task="flores",
        folders=("flores_plus",),
        licence="CC BY-SA 4.0",
        citation="NLLB Team, 2022, No Language Left Behind",
        url="https://huggingface.co/datasets/openlanguagedata/flores_plus",
    ),
    EvaluationSet(
        "ntrex-128",
        "NTREX-128",
        (
            SetFiles((r"newstest2019-(?:src|ref)\.<language>\.txt<z>",), split="test"),
            # A second translation into a language, which is in no measure.
            SetFiles((r"newstest2019-ref-\d\.<language>\.txt<z>",)),
        ),
        "NTREX-128/newstest2019-ref.swa.txt",
        task="ntrex",
        folders=("NTREX-128", "NTREX"),
        beside=(r"DOCUMENT_IDS\.tsv", r"LANGUAGES\.tsv"),
        licence="CC BY-SA 4.0",
        citation="Federmann et al., 2022, NTREX-128",
        url="https://github.com/MicrosoftTranslator/NTREX",
    ),
    EvaluationSet(
        "tico-19",
        "TICO-19",
        (
            SetFiles(
                (
                    rf"{_TICO_PATH}\.(?:tsv|parquet|jsonl)<z>",
                    r"(?:<file>[._])?<pair>\.(?:tsv|csv|parquet|jsonl)<z>",
                ),
                text=_TICO_TEXT,
                columns=("sourceLang", "targetLang", "stringID"),
                languages=("sourceLang", "targetLang"),
                unit="stringID",
            ),
            SetFiles(
                (rf"{_TICO_PATH}\.tsv<z>",),
                text=_TICO_TEXT,
                languages=("sourceLang", "targetLang"),
                unit="stringID",
                header=_TICO_COLUMNS,
                line=r"[a-z]{2,3}\t[a-z]{2,3}(?:-\w+)*\t[^\t]+\t[^\t]*\t\w+:\w+(?:\t.*)?",
            ),
        ),
        "test/test.en-sw.tsv",
        task="tico19",
        folders=("tico-19", "tico19-testset"),
        beside=(r"(?:dev|test)\.ids",),
        licence="CC0 1.0",
        citation="Anastasopoulos et al., 2020, TICO-19",
        url="https://tico-19.github.io",
    ),
    EvaluationSet(
        "sib-200",
        "SIB-200",
        (SetFiles((_TABLE,), text=("text",), columns=("index_id", "category")),),
        "data/annotated/swh_Latn/train.tsv",
        beside=(r"<language>/labels\.txt",),
        licence="CC BY-SA 4.0",
        citation="Adelani et al., 2024, SIB-200",
        url="https://github.com/dadelani/sib-200",
    ),
    EvaluationSet(
        "belebele",
        "Belebele",
        (
            SetFiles(
                (_TABLE,),
                text=("flores_passage", "question", *_ANSWERS),
                columns=("link",),
            ),
        ),
        "data/swh_Latn.jsonl",
        licence="CC BY-SA 4.0",
        citation="Bandarkar et al., 2024, The Belebele Benchmark",
        url="https://huggingface.co/datasets/facebook/belebele",
    ),
    EvaluationSet(
        "massive",
        "MASSIVE",
        (SetFiles((_TABLE,), text=("utt",), columns=("locale", "intent", "annot_utt")),),
        "1.1/data/sw-KE.jsonl",
        licence="CC BY 4.0",
        citation="FitzGerald et al., 2023, MASSIVE",
        url="https://github.com/alexa/massive",
    ),
    EvaluationSet(
        "taxi1500",
        "Taxi1500",
        (
            SetFiles((_TABLE,), text=("verse",), columns=("id", "label")),
            SetFiles((_TABLE,), text=("verse",), columns=("classification",)),
            # The number of a verse has the book, the chapter and the verse.
            SetFiles(
                (r"<language>(?:[-_./]<file>)?\.tsv<z>",),
                text=("verse",),
                header=("id", "label", "verse"),
                line=r"\d{8}\t[A-Za-z]+\t.*",
            ),
            SetFiles(
                (r"<language>-x-bible[\w.-]*\.txt<z>",),
                text=("verse",),
                header=("id", "verse"),
                line=r"\d{8}\t.*",
                is_corpus=True,
            ),
        ),
        "swh_Latn/swh_Latn_train.tsv",
        licence="research use",
        citation="Ma et al., 2023, Taxi1500",
        url="https://github.com/cisnlp/Taxi1500",
    ),
    EvaluationSet(
        "taxi1500-raw",
        "Taxi1500 raw text",
        (
            SetFiles(
                (r"<language>/taxi1500/<file>\.arrow",),
                text=("text",),
                columns=("lang_script",),
            ),
        ),
        "swh_Latn/taxi1500/dataset.arrow",
        licence="mixed, see its card",
        citation="Ma et al., 2023, Taxi1500",
        url="https://huggingface.co/datasets/cis-lmu/Taxi1500-RawData",
    ),
)


def is_table(files: SetFiles) -> bool:
    """Returns whether files name their columns, so that these tell them apart from others."""
    return bool(files.text) and not files.header


def of_task(task: str) -> list[EvaluationSet]:
    """Returns the sets that are one task of `evaluate`."""
    return [entry for entry in SETS if entry.task == task]


def tasks() -> dict[str, str]:
    """Returns {task of `evaluate`: name in running text} of the sets of translations."""
    titles: dict[str, list[str]] = {}
    for entry in SETS:
        if entry.task:
            titles.setdefault(entry.task, []).append(entry.title)
    # FLORES-200 and FLORES+ are FLORES.
    return {
        task: of_sets[0] if len(of_sets) == 1 else re.split(r"\W", of_sets[0])[0]
        for task, of_sets in titles.items()
    }


def folders() -> dict[str, tuple[str, ...]]:
    """Returns {task of `evaluate`: names of its folders beside its own}."""
    return {
        task: tuple(name for entry in of_task(task) for name in entry.folders) for task in tasks()
    }
