"""The public distributions of text that `prepare --tasks=text` recognises: a row for each form.

A row says how the publisher of a distribution names its files and what the files contain, so that
they are read as downloaded. `xlme_jax.preparation.distributions` applies the rows in order: a file
belongs to the first row that fits both its path and its content. To add a corpus in a new format,
see `xlme_jax.preparation.sources`. The rows of sets to measure with are made from
`xlme_jax.data.benchmarks.evaluation_layouts`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator

from xlme_jax.data.benchmarks import evaluation_layouts
from xlme_jax.data.benchmarks.evaluation_layouts import EVERY_LANGUAGE, EvaluationSet, SetFiles
from xlme_jax.data.text.path_patterns import path_pattern

TRAIN, DEV, TEST, REMOVED, NOISY, EVALUATION = (
    "train",
    "dev",
    "test",
    "removed",
    "noisy",
    "evaluation",
)
# {word of a publisher for a part of a corpus: the part}.
PARTS = {
    **dict.fromkeys(("", "train", "clean", "cleaned", "deduplicated", "docs"), TRAIN),
    **dict.fromkeys(("dev", "valid", "validation", "eval", "newsdev"), DEV),
    **dict.fromkeys(("test", "devtest", "newstest"), TEST),
    **dict.fromkeys(("removed", "rejected", "discarded"), REMOVED),
    **dict.fromkeys(("noisy", "raw"), NOISY),
}


@dataclasses.dataclass(frozen=True)
class Distribution:
    """A public corpus in one of the layouts that it is distributed in.

    Attributes:
      name: Name in options and messages, such as "fineweb-2".
      title: Name in running text.
      paths: Ends of the paths of the files, as regular expressions with the tokens of
        `path_patterns`. The groups `part` and `split` match words of `PARTS`; `side` and `role` say
        which text of a pair a file contains.
      example: Path of one file, as downloaded.
      format: How a file is read: a key of `folder_source.DOCUMENTS`, or a format of
        `data.text.pair_kinds.KINDS`.
        Empty: the file is not read; `advice` says what to do.
      columns: Columns that a table must have.
      start: Regular expression that the start of a file without columns must contain.
      near: Paths relative to the folder of a file, at one of which there must be a file.
      text: Column of the text, or the columns of both texts, by name or counted from 0. The text
        of a file of lines ("lines") is all that follows so many tabs.
      score: Column of the scores of pairs; in TMX, the property (`<prop type="...">`) of a unit.
      language: Language of all text, or of the first text of pairs, where names do not say it.
      is_evaluation: Whether the corpus is made to measure with, so that it is no training text.
      is_escaped: Whether line ends are written as a backslash and an "n".
      beside: Ends of the paths of files that belong to the corpus and have no text. They are known
        as such only where files of the corpus lie too.
      read_by: Other sources (`cc100`, ...) that read the files right, or refuse them by themselves
        because they lack the columns that these sources read.
      advice: What the user should do, if the files are not read. `{file}` stands for the file,
        `{stem}` for its path up to the first dot of its name, `{folder}` for its folder.
      licence: Licence of the collection, as the publisher states it.
      citation: Publication to cite.
      url: Address of the corpus.
    """

    name: str
    title: str
    paths: tuple[str, ...]
    example: str
    format: str
    columns: tuple[str, ...] = ()
    start: str = ""
    near: tuple[str, ...] = ()
    text: tuple[str, ...] | tuple[int, ...] = ()
    score: str | int | None = None
    language: str = ""
    is_evaluation: bool = False
    is_escaped: bool = False
    beside: tuple[str, ...] = ()
    read_by: tuple[str, ...] = ()
    advice: str = ""
    licence: str = ""
    citation: str = ""
    url: str = ""

    @functools.cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of whole paths, for `fullmatch`."""
        return tuple(map(path_pattern, self.paths))

    @functools.cached_property
    def patterns_beside(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of whole paths of files without text."""
        return tuple(map(path_pattern, self.beside))


_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?"
_HUB = r"(?:<file>\.parquet|(?:partial-)?(?P<split>train|test|validation|dev)/<file>\.parquet)"
_BIBLE_LINE = (
    r"(?m)^(?:\d{8}[ \t]|(?:b\.)?[1-3]?[A-Za-z]{2,3}[ ._]\d+[.:_]\d+\t"
    r"|(?:\d\d[A-Z]|[1-3]?[A-Z]{2,3})\t\d+\t\d+\t)"
)

_TEXT = (
    Distribution(
        "fineweb-2",
        "FineWeb-2 and FineWeb2-HQ",
        (r"<language>(?:_(?P<part>removed))?/(?:(?P<split>train|test)[/-])?<file>\.parquet",),
        "data/swh_Latn/train/000_00000.parquet",
        "table",
        columns=("text", "language_script"),
        text=("text",),
        read_by=("table",),
        licence="ODC-By 1.0",
        citation="Penedo et al., 2025, FineWeb2: One Pipeline to Scale Them All",
        url="https://huggingface.co/datasets/HuggingFaceFW/fineweb-2",
    ),
    Distribution(
        "finepdfs",
        "FinePDFs",
        (r"<language>/(?P<split>train|test)/<file>\.parquet",),
        "data/swh_Latn/train/000_00000.parquet",
        "table",
        columns=("text", "full_doc_lid"),
        text=("text",),
        read_by=("table",),
        licence="ODC-By 1.0",
        citation="Kydlicek et al., 2025, FinePDFs",
        url="https://huggingface.co/datasets/HuggingFaceFW/finepdfs",
    ),
    Distribution(
        "fineweb",
        "FineWeb and FineWeb-Edu",
        (r"(?:CC-MAIN-\d{4}-\d+|\d+BT)/<file>\.parquet",),
        "sample/10BT/000_00000.parquet",
        "table",
        columns=("text", "language"),
        text=("text",),
        language="en",
        read_by=("table",),
        licence="ODC-By 1.0",
        citation="Penedo et al., 2024, The FineWeb Datasets",
        url="https://huggingface.co/datasets/HuggingFaceFW/fineweb",
    ),
    Distribution(
        "hplt-2",
        "HPLT v2 and v3",
        (r"(?P<language>[a-z]{3}_[A-Z][a-z]{3})/(?:<n>_)?<n>\.jsonl<z>",),
        "cleaned/swh_Latn/1.jsonl.zst",
        "table",
        columns=("text",),
        text=("text",),
        read_by=("table",),
        licence="CC0 1.0 (packaging)",
        citation="Burchell et al., 2025, An Expanded Massive Multilingual Dataset for "
        "High-Performance Language Technologies",
        url="https://hplt-project.org/datasets",
    ),
    Distribution(
        "hplt-2-hub",
        "HPLT v2 and v3 (hub)",
        (r"<language>/(?P<split>train)(?:-<n>-of-<n>|/<n>)\.parquet",),
        "swh_Latn/train-00000-of-00012.parquet",
        "table",
        columns=("text", "u"),
        text=("text",),
        read_by=("table",),
        licence="CC0 1.0 (packaging)",
        citation="Burchell et al., 2025, An Expanded Massive Multilingual Dataset for "
        "High-Performance Language Technologies",
        url="https://huggingface.co/datasets/HPLT/HPLT2.0_cleaned",
    ),
    Distribution(
        "hplt-1",
        "HPLT v1 documents",
        (
            r"(?:(?P<part>raw|deduplicated|cleaned)/(?:<language>/)?)<side>_<n>\.jsonl<z>",
            r"<language>_<n>\.jsonl<z>",
        ),
        "cleaned/sw/sw_1.jsonl.zst",
        "table",
        columns=("text",),
        text=("text",),
        read_by=("table",),
        licence="CC0 1.0 (packaging)",
        citation="de Gibert et al., 2024, A New Massive Multilingual Dataset for High-Performance "
        "Language Technologies",
        url="https://hplt-project.org/datasets/v1.2",
    ),
    Distribution(
        "madlad-400",
        "MADLAD-400",
        (
            r"<language>_(?P<part>clean|noisy)_<n>\.jsonl<z>",
            r"<language>/(?P<part>clean|noisy)(?:_[a-z0-9]+)*-<n>-of-<n>\.jsonl<z>",
        ),
        "data/sw/sw_clean_0000.jsonl.gz",
        "table",
        columns=("text",),
        text=("text",),
        is_escaped=True,
        licence="ODC-By 1.0",
        citation="Kudugunta et al., 2023, MADLAD-400",
        url="https://huggingface.co/datasets/allenai/MADLAD-400",
    ),
    Distribution(
        "mc4",
        "mC4 and C4",
        (r"c4-<language>(?:-(?P<part>validation))?\.tfrecord-<n>-of-<n>\.json<z>",),
        "multilingual/c4-sw.tfrecord-00000-of-00064.json.gz",
        "table",
        columns=("text", "url"),
        text=("text",),
        read_by=("table",),
        licence="ODC-By 1.0",
        citation="Xue et al., 2021, mT5",
        url="https://huggingface.co/datasets/allenai/c4",
    ),
    Distribution(
        "c4",
        "C4 (English)",
        (r"c4-(?P<part>train|validation)\.<n>-of-<n>\.json<z>",),
        "en/c4-train.00000-of-01024.json.gz",
        "table",
        columns=("text", "url"),
        text=("text",),
        language="en",
        read_by=("table",),
        licence="ODC-By 1.0",
        citation="Raffel et al., 2020, Exploring the Limits of Transfer Learning",
        url="https://huggingface.co/datasets/allenai/c4",
    ),
    Distribution(
        "oscar",
        "OSCAR 22.01 and 23.01",
        (r"<language>_meta(?:_part_<n>)?\.jsonl<z>",),
        "sw_meta/sw_meta_part_1.jsonl.zst",
        "table",
        columns=("content",),
        text=("content",),
        read_by=("table",),
        licence="CC0 1.0 (packaging)",
        citation="Abadji et al., 2022, Towards a Cleaner Document-Oriented Multilingual Crawled "
        "Corpus",
        url="https://huggingface.co/datasets/oscar-corpus/OSCAR-2301",
    ),
    Distribution(
        "oscar-2019",
        "OSCAR 2019 and 21.09",
        (r"<language>(?:_dedup)?_part_<n>\.txt<z>", r"<language>_dedup\.txt<z>"),
        "sw/sw_part_1.txt.gz",
        "documents",
        beside=(r"<language>_meta(?:_part_<n>)?\.jsonl<z>",),
        licence="CC0 1.0 (packaging)",
        citation="Ortiz Suarez et al., 2019, Asynchronous Pipeline for Processing Huge Corpora",
        url="https://oscar-project.org",
    ),
    Distribution(
        "culturax",
        "CulturaX",
        (r"<language>/<again>_part_<n>\.parquet", r"<language>/train/<n>\.parquet"),
        "sw/sw_part_00000.parquet",
        "table",
        columns=("text", "source", "timestamp"),
        text=("text",),
        read_by=("table",),
        licence="that of mC4 and OSCAR",
        citation="Nguyen et al., 2024, CulturaX",
        url="https://huggingface.co/datasets/uonlp/CulturaX",
    ),
    Distribution(
        "glotcc",
        "GlotCC",
        (r"<language>/<again>_<n>\.parquet", r"<language>/train/<n>\.parquet"),
        "v1.0/swh-Latn/swh-Latn_0.parquet",
        "table",
        columns=("content",),
        text=("content",),
        read_by=("table",),
        licence="CC0 1.0 (packaging)",
        citation="Kargaran et al., 2024, GlotCC",
        url="https://huggingface.co/datasets/cis-lmu/GlotCC-V1",
    ),
    Distribution(
        "glot500",
        "Glot500",
        (
            r"<language>/(?P<split>train|test)/(?:data-<n>-of-<n>|dataset)\.arrow",
            r"<language>/(?P<split>train|test)/<n>\.parquet",
        ),
        "swh_Latn/train/data-00000-of-00001.arrow",
        "table",
        columns=("text", "dataset"),
        text=("text",),
        read_by=("table",),
        licence="mixed, see its card",
        citation="Imani et al., 2023, Glot500",
        url="https://huggingface.co/datasets/cis-lmu/Glot500",
    ),
    Distribution(
        "wikipedia",
        "Wikipedia",
        (rf"\d{{8}}\.<language>/{_HUB}",),
        "20231101.sw/train-00000-of-00001.parquet",
        "table",
        columns=("title", "text"),
        text=("text",),
        read_by=("table",),
        licence="CC BY-SA 4.0 and GFDL",
        citation="Wikimedia Foundation, Wikimedia Downloads",
        url="https://huggingface.co/datasets/wikimedia/wikipedia",
    ),
    Distribution(
        "leipzig",
        "Leipzig Corpora Collection",
        (r"<language>(?:-[a-z]{2})?(?:_[a-z0-9-]+)*_\d{4}(?:_\d+[KM])?-sentences\.txt<z>",),
        "swa_wikipedia_2021_30K/swa_wikipedia_2021_30K-sentences.txt",
        "lines",
        start=r"(?m)^\d+\t\S",
        text=(1,),
        beside=(r"<file>-(?:words|sources|inv_so|inv_w|co_n|co_s|import|meta)\.(?:txt|sql)<z>",),
        licence="CC BY 4.0",
        citation="Goldhahn et al., 2012, Building Large Monolingual Dictionaries at the Leipzig "
        "Corpora Collection",
        url="https://wortschatz.uni-leipzig.de/en/download",
    ),
    Distribution(
        "ccnet",
        "CCNet and RedPajama-V2",
        (r"<language>_(?:head|middle|tail|all)(?:_<n>)?\.json<z>",),
        "mined/2019-09/sw_head_0000.json.gz",
        "table",
        columns=("raw_content",),
        text=("raw_content",),
        read_by=("table",),
        licence="that of Common Crawl",
        citation="Wenzek et al., 2020, CCNet",
        url="https://github.com/facebookresearch/cc_net",
    ),
    Distribution(
        "wura",
        "WURA",
        (r"(?P<split>train|eval)/<language>\.jsonl<z>",),
        "documents-v1.0/train/swa.jsonl",
        "table",
        columns=("content", "headline"),
        text=("content",),
        read_by=("table",),
        licence="that of mC4 and of its news sites",
        citation="Oladipo et al., 2023, Better Quality Pre-training Data and T5 Models for African "
        "Languages",
        url="https://huggingface.co/datasets/castorini/wura",
    ),
    Distribution(
        "afriberta",
        "AfriBERTa's corpus and WURA's passages",
        (
            r"(?P<language>[a-z]+)/(?P<split>train|eval)\.txt<z>",
            r"passages-v[\d.]+/(?P<split>train|eval)/<language>\.txt<z>",
        ),
        "corpus/swahili/train.txt",
        "documents",
        licence="that of its news sites",
        citation="Ogueji et al., 2021, Small Data? No Problem!",
        url="https://huggingface.co/datasets/castorini/afriberta-corpus",
    ),
    Distribution(
        "sangraha",
        "Sangraha",
        (r"(?:verified|unverified|synthetic)/<language>/data-<n>\.parquet",),
        "verified/hin/data-0.parquet",
        "table",
        columns=("text", "doc_id"),
        text=("text",),
        read_by=("table",),
        licence="CC BY 4.0",
        citation="Khan et al., 2024, IndicLLMSuite",
        url="https://huggingface.co/datasets/ai4bharat/sangraha",
    ),
    Distribution(
        "news-crawl",
        "News Crawl",
        (r"news\.\d{4}\.<language>\.shuffled(?:\.deduped)?<z>",),
        "news.2020.sw.shuffled.deduped.gz",
        "lines",
        start=r"\S",
        text=(0,),
        licence="research use",
        citation="the findings of the WMT of its year",
        url="https://data.statmt.org/news-crawl",
    ),
    Distribution(
        "tatoeba-sentences",
        "Tatoeba (sentences)",
        (r"<language>_sentences\.tsv<z>",),
        "swh_sentences.tsv",
        "lines",
        start=r"\A\d+\t[a-z]{3}\t[^\t\n]+(?:\n|\Z)",
        text=(2,),
        beside=(r"(?:<pair>_)?links\.(?:tsv|csv)<z>",),
        licence="CC BY 2.0 FR",
        citation="Tatoeba, collection of sentences and translations",
        url="https://tatoeba.org/en/downloads",
    ),
)

_PAIRS = (
    Distribution(
        "nllb",
        "NLLB (AllenAI)",
        (r"(?P<pair>[a-z]{3}_[A-Z][a-z]{3}-[a-z]{3}_[A-Z][a-z]{3})(?:\.tsv)?<z>",),
        "eng_Latn-swh_Latn.gz",
        "tsv",
        start=rf"\A[^\t\n]*\t[^\t\n]*\t{_NUMBER}\t",
        text=(0, 1),
        score=2,
        read_by=("bitext",),
        licence="ODC-By 1.0",
        citation="NLLB Team, 2022, No Language Left Behind",
        url="https://huggingface.co/datasets/allenai/nllb",
    ),
    Distribution(
        "ccmatrix",
        "CCMatrix",
        (r"<pair>\.bitextf?\.tsv<z>",),
        "en-sw.bitextf.tsv.gz",
        "tsv",
        start=rf"\A{_NUMBER}\t[^\t\n]+\t[^\t\n]+",
        text=(1, 2),
        score=0,
        licence="that of Common Crawl",
        citation="Schwenk et al., 2021, CCMatrix",
        url="https://data.statmt.org/cc-matrix",
    ),
    Distribution(
        "wikimatrix",
        "WikiMatrix",
        (r"WikiMatrix(?:\.v\d)?\.<pair>(?:\.langid)?\.tsv<z>",),
        "WikiMatrix.en-sw.tsv.gz",
        "tsv",
        start=rf"\A{_NUMBER}\t[^\t\n]+\t[^\t\n]+",
        text=(1, 2),
        score=0,
        licence="CC BY-SA 3.0",
        citation="Schwenk et al., 2021, WikiMatrix",
        url="https://github.com/facebookresearch/LASER/tree/main/tasks/WikiMatrix",
    ),
    Distribution(
        "ccaligned-documents",
        "CCAligned documents",
        (r"(?P<pair>[a-z]{2,3}_[A-Z]{2}-[a-z]{2,3}_[A-Z]{2})\.tsv<z>",),
        "en_XX-sw_KE.tsv.xz",
        "",
        start=r"\A[^\t\n]*\thttps?:",
        advice="these are pages of addresses and documents, not translations of sentences; "
        "download the sentence-aligned files of CCAligned instead",
        citation="El-Kishky et al., 2020, CCAligned",
        url="https://www.statmt.org/cc-aligned",
    ),
    Distribution(
        "ccaligned",
        "CCAligned",
        (r"(?P<pair>[a-z]{2,3}_[A-Z]{2}-[a-z]{2,3}_[A-Z]{2})\.tsv<z>",),
        "sentence-aligned/en_XX-sw_KE.tsv.xz",
        "tsv",
        start=rf"\A(?!{_NUMBER}\t)[^\t\n]+\t(?!{_NUMBER}[\t\n])[^\t\n]+(?:\t{_NUMBER})?\r?(?:\n|\Z)",
        text=(0, 1),
        score=2,
        licence="that of Common Crawl",
        citation="El-Kishky et al., 2020, CCAligned",
        url="https://www.statmt.org/cc-aligned",
    ),
    Distribution(
        "paracrawl",
        "ParaCrawl and HPLT pairs (text)",
        (r"<pair>(?:\.bicleaner[\d.]*)?\.txt<z>",),
        "en-sw.txt.gz",
        "tsv",
        start=rf"\A(?!{_NUMBER}\t)[^\t\n]+\t(?!{_NUMBER}[\t\n])[^\t\n]+(?:\n|\Z)",
        text=(0, 1),
        read_by=("bitext",),
        licence="CC0 1.0 (packaging)",
        citation="Banon et al., 2020, ParaCrawl",
        url="https://paracrawl.eu",
    ),
    Distribution(
        "bitextor",
        "ParaCrawl and HPLT pairs (with addresses)",
        (r"<pair>(?:\.raw|\.classified)?(?:\.txt|\.tsv)?<z>",),
        "en-sw.raw.gz",
        "tsv",
        start=r"\Ahttps?://[^\t\n]*\thttps?://[^\t\n]*\t[^\t\n]+\t[^\t\n]+",
        text=(2, 3),
        licence="CC0 1.0 (packaging)",
        citation="Banon et al., 2020, ParaCrawl",
        url="https://paracrawl.eu",
    ),
    Distribution(
        "jparacrawl",
        "JParaCrawl",
        (r"<pair>\.bicleaner[\d.]*\.txt<z>",),
        "en-ja/en-ja.bicleaner05.txt",
        "tsv",
        start=rf"\A[^\t\n]+\t[^\t\n]*\t{_NUMBER}\t[^\t\n]+\t[^\t\n]+(?:\n|\Z)",
        text=(3, 4),
        score=2,
        licence="research use, see its page",
        citation="Morishita et al., 2020, JParaCrawl",
        url="https://www.kecl.ntt.co.jp/icl/lirg/jparacrawl",
    ),
    Distribution(
        "paracrawl-tmx",
        "ParaCrawl and HPLT pairs (TMX)",
        (r"(?:<file>[._-])?<pair>\.tmx<z>",),
        "en-sw.tmx.gz",
        "tmx",
        start=r"(?s)<tmx\b.*<prop\s+type=\"score-bicleaner\"",
        score="score-bicleaner",
        read_by=("bitext",),
        licence="CC0 1.0 (packaging)",
        citation="Banon et al., 2020, ParaCrawl",
        url="https://paracrawl.eu",
    ),
    Distribution(
        "macocu-tmx",
        "MaCoCu (TMX)",
        (r"(?:<file>[._-])?<pair>\.tmx<z>",),
        "MaCoCu-mt-en.tmx.gz",
        "tmx",
        start=r"(?s)<tmx\b.*<prop\s+type=\"score-bicleaner-ai\"",
        score="score-bicleaner-ai",
        read_by=("bitext",),
        licence="CC0 1.0 (packaging)",
        citation="Banon et al., 2022, MaCoCu",
        url="https://macocu.eu",
    ),
    Distribution(
        "tmx",
        "OPUS and others (TMX)",
        (r"(?:<file>[._-])?<pair>\.tmx<z>",),
        "QED_v2.0a_en-sw.tmx.gz",
        "tmx",
        start=r"<tmx\b",
        read_by=("bitext",),
        licence="that of the corpus",
        citation="Tiedemann, 2012, Parallel Data, Tools and Interfaces in OPUS",
        url="https://opus.nlpl.eu",
    ),
    Distribution(
        "opus-zip",
        "OPUS (zip)",
        (r"(?:<file>[._-])?<pair>\.txt\.zip",),
        "OPUS-Tatoeba/en-sw.txt.zip",
        "zip",
        read_by=("bitext",),
        licence="that of the corpus, in the archive",
        citation="Tiedemann, 2012, Parallel Data, Tools and Interfaces in OPUS",
        url="https://opus.nlpl.eu",
    ),
    Distribution(
        "opus-100",
        "OPUS-100",
        (r"opus\.<pair>-(?P<part>train|dev|test)\.<side>",),
        "supervised/en-sw/opus.en-sw-train.en",
        "moses",
        licence="that of its corpora in OPUS",
        citation="Zhang et al., 2020, Improving Massively Multilingual Neural Machine Translation "
        "and Zero-Shot Translation",
        url="https://opus.nlpl.eu/opus-100.php",
    ),
    Distribution(
        "nllb-hub",
        "NLLB (hub)",
        (r"<pair>/(?P<part>train)(?:-<n>-of-<n>|/<n>)\.parquet",),
        "eng_Latn-swh_Latn/train/0000.parquet",
        "table_pairs",
        columns=("translation", "laser_score"),
        score="laser_score",
        read_by=("table_pairs",),
        licence="ODC-By 1.0",
        citation="NLLB Team, 2022, No Language Left Behind",
        url="https://huggingface.co/datasets/allenai/nllb",
    ),
    Distribution(
        "nllb-seed",
        "NLLB-Seed",
        (r"<pair>/(?P<side>[a-z]{3}_[A-Z][a-z]{3})",),
        "NLLB-Seed/eng_Latn-swh_Latn/eng_Latn",
        "moses",
        licence="CC BY-SA 4.0",
        citation="NLLB Team, 2022, No Language Left Behind",
        url="https://github.com/facebookresearch/flores",
    ),
    Distribution(
        "oldi-seed",
        "OLDI Seed",
        (r"seed/(?P<language>[a-z]{3}_[A-Z][a-z]{3}(?:_[a-z0-9]+)?)",),
        "seed/swh_Latn",
        "multiway",
        licence="CC BY-SA 4.0",
        citation="Maillard et al., 2023, Small Data, Big Impact",
        url="https://github.com/openlanguagedata/seed",
    ),
    Distribution(
        "opus-100-hub",
        "OPUS-100 and other translation sets of the hub",
        (
            r"<pair>/(?P<part>train|validation|test)-<n>-of-<n>\.parquet",
            r"<pair>/(?P<part>train|validation|test)/<n>\.parquet",
            r"<pair_>/(?P<part>train|dev|validation|test)\.jsonl?<z>",
        ),
        "en-sw/train-00000-of-00001.parquet",
        "table_pairs",
        columns=("translation",),
        read_by=("table_pairs",),
        licence="that of its corpora in OPUS",
        citation="Zhang et al., 2020, Improving Massively Multilingual Neural Machine Translation "
        "and Zero-Shot Translation",
        url="https://huggingface.co/datasets/Helsinki-NLP/opus-100",
    ),
    Distribution(
        "samanantar-hub",
        "Samanantar (hub)",
        (r"<language>/(?P<part>train)-<n>-of-<n>\.parquet",),
        "hi/train-00000-of-00012.parquet",
        "table_pairs",
        columns=("src", "tgt", "idx"),
        text=("src", "tgt"),
        language="en",
        read_by=("table",),
        licence="CC0 1.0",
        citation="Ramesh et al., 2022, Samanantar",
        url="https://huggingface.co/datasets/ai4bharat/samanantar",
    ),
    Distribution(
        "bpcc-hub",
        "BPCC (hub)",
        (r"<language>\.tsv<z>",),
        "bpcc-seed-latest/hin_Deva.tsv",
        "table_pairs",
        columns=("src_lang", "tgt_lang", "src", "tgt"),
        text=("src", "tgt"),
        language="en",
        read_by=("table",),
        licence="CC0 1.0 and CC BY 4.0",
        citation="Gala et al., 2023, IndicTrans2",
        url="https://huggingface.co/datasets/ai4bharat/BPCC",
    ),
    Distribution(
        "smol",
        "SMOL (sentences)",
        (r"<pair_>\.jsonl<z>",),
        "smolsent/en_sw.jsonl",
        "table_pairs",
        columns=("sl", "tl", "src", "trg"),
        text=("src", "trg"),
        read_by=("table_pairs",),
        licence="CC BY 4.0",
        citation="Caswell et al., 2025, SMOL",
        url="https://huggingface.co/datasets/google/smol",
    ),
    Distribution(
        "parallel-sentences",
        "Parallel sentences of Sentence Transformers (TSV)",
        (r"<file>-<pair>-(?P<part>train|dev|test)\.tsv<z>",),
        "TED2020-en-sw-train.tsv.gz",
        "tsv",
        start=rf"\A(?!{_NUMBER}\t)[^\t\n]+\t(?!{_NUMBER}[\t\n])[^\t\n]+(?:\n|\Z)",
        text=(0, 1),
        licence="that of the corpus",
        citation="Reimers and Gurevych, 2020, Making Monolingual Sentence Embeddings Multilingual",
        url="https://public.ukp.informatik.tu-darmstadt.de/reimers/sentence-transformers/datasets",
    ),
    Distribution(
        "parallel-sentences-hub",
        "Parallel sentences of Sentence Transformers (hub)",
        (r"<pair>/(?P<part>train|dev|validation|test)-<n>-of-<n>\.parquet",),
        "en-sw/train-00000-of-00001.parquet",
        "table_pairs",
        columns=("english", "non_english"),
        text=("english", "non_english"),
        read_by=("table_pairs",),
        licence="that of the corpus",
        citation="Reimers and Gurevych, 2020, Making Monolingual Sentence Embeddings Multilingual",
        url="https://huggingface.co/datasets/sentence-transformers/parallel-sentences-ccmatrix",
    ),
    Distribution(
        "tatoeba-pairs",
        "Tatoeba (sentence pairs)",
        (r"Sentence pairs in (?P<pair>[A-Z][^-/]*-[A-Z][^-/]*?) ?- ?\d{4}-\d\d-\d\d\.tsv<z>",),
        "Sentence pairs in English-Swahili - 2024-01-01.tsv",
        "tsv",
        start=r"\A\d+\t[^\t\n]+\t\d+\t[^\t\n]+",
        text=(1, 3),
        licence="CC BY 2.0 FR",
        citation="Tatoeba, collection of sentences and translations",
        url="https://tatoeba.org/en/downloads",
    ),
    Distribution(
        "manythings",
        "Tatoeba pairs of manythings.org",
        (r"(?P<pair>[a-z]{3}-eng)/[a-z]{3}\.txt<z>",),
        "swh-eng/swh.txt",
        "tsv",
        start=r"\A[^\t\n]+\t[^\t\n]+\tCC-BY",
        text=(1, 0),
        beside=(r"_about\.txt",),
        licence="CC BY 2.0 FR",
        citation="Tatoeba, collection of sentences and translations",
        url="https://www.manythings.org/anki",
    ),
    Distribution(
        "tatoeba-challenge",
        "Tatoeba Challenge",
        (r"<pair>/(?P<part>train|dev|test)\.(?P<role>src|trg)<z>",),
        "eng-swa/train.src.gz",
        "moses",
        beside=(r"(?:train|dev|test)\.(?:ids?|domains?|langs?|txt|scores?)<z>",),
        licence="CC BY-NC-SA 4.0 (packaging); that of its corpora in OPUS",
        citation="Tiedemann, 2020, The Tatoeba Translation Challenge",
        url="https://github.com/Helsinki-NLP/Tatoeba-Challenge",
    ),
    Distribution(
        "tatoeba-retrieval",
        "Tatoeba retrieval",
        (r"tatoeba\.<pair>\.<side>",),
        "tatoeba.swh-eng.eng",
        "moses",
        is_evaluation=True,
        licence="CC BY 2.0",
        citation="Artetxe and Schwenk, 2019, Massively Multilingual Sentence Embeddings",
        url="https://github.com/facebookresearch/LASER/tree/main/data/tatoeba/v1",
    ),
    Distribution(
        "wmt-sgm",
        "WMT test sets and other SGM files",
        (r"(?P<part>newstest|newsdev|test|dev)<file>-(?P<role>src|ref)\.<side>\.sgml?<z>",),
        "newstest2014-deen-src.de.sgm",
        "sgm",
        read_by=("bitext",),
        licence="research use",
        citation="the findings of the WMT of its year",
        url="https://www.statmt.org",
    ),
    Distribution(
        "europarl-sgm",
        "Europarl and other SGM files",
        (r"<file>-(?P<role>src|ref)\.<side>\.sgml?<z>",),
        "europarl-deen-src.de.sgm",
        "sgm",
        read_by=("bitext",),
        licence="free",
        citation="Koehn, 2005, Europarl",
        url="https://www.statmt.org/europarl",
    ),
    Distribution(
        "europarl-tsv",
        "Europarl v9 and v10, News Commentary and other TSV files of WMT",
        (r"(?:europarl|news-commentary|wikititles|rapid)[-_]?v?\d+\.<pair>\.tsv<z>",),
        "europarl-v10.de-en.tsv.gz",
        "tsv",
        start=rf"\A(?!{_NUMBER}\t)[^\t\n]*\t(?!{_NUMBER}[\t\n])[^\t\n]*(?:\n|\Z)",
        text=(0, 1),
        read_by=("bitext",),
        licence="free",
        citation="Koehn, 2005, Europarl",
        url="https://www.statmt.org/europarl",
    ),
    Distribution(
        "iwslt-tags",
        "IWSLT (TED talks with tags)",
        (r"train\.tags\.<pair>\.<side><z>",),
        "en-sw/train.tags.en-sw.en",
        "",
        advice="lines of tags stand among its sentences; write the sentences of both languages "
        "alone, for FILE in {folder}/train.tags.*; do grep -v '^<' $FILE > "
        "${{FILE/train.tags/train}}; done, and move the files with tags",
        citation="Cettolo et al., 2012, WIT3",
        url="https://wit3.fbk.eu",
    ),
    Distribution(
        "opus-moses",
        "OPUS and Europarl (Moses files)",
        (r"<file>[._]<pair>\.<side><z>",),
        "Tatoeba.en-sw.en",
        "moses",
        beside=(r"<file>\.(?:ids|scores|xml|annotation)<z>",),
        read_by=("bitext",),
        licence="that of the corpus",
        citation="Tiedemann, 2012, Parallel Data, Tools and Interfaces in OPUS",
        url="https://opus.nlpl.eu",
    ),
    Distribution(
        "pair-folder",
        "Samanantar, BPCC, MAFAND and other folders of a pair (Moses files)",
        (
            r"<pair>/(?P<part>train|dev|valid|test|devtest)\.<side><z>",
            r"<pair_>/(?P<part>train|dev|valid|test|devtest)\.<side><z>",
        ),
        "en-hi/train.en",
        "moses",
        read_by=("bitext",),
        licence="that of the corpus",
        citation="Ramesh et al., 2022, Samanantar; Gala et al., 2023, IndicTrans2; Adelani et al., "
        "2022, A Few Thousand Translations Go a Long Way!",
        url="https://indicnlp.ai4bharat.org/samanantar",
    ),
    Distribution(
        "ebible",
        "eBible (a verse a line)",
        (r"<language>-[\w-]+\.txt<z>",),
        "corpus/swh-swhulb.txt",
        "vref",
        near=("vref.txt", "../vref.txt", "../metadata/vref.txt"),
        beside=(r"vref\.txt", r"metadata/<file>"),
        licence="mixed, in its metadata",
        citation="Akerman et al., 2023, The eBible Corpus",
        url="https://github.com/BibleNLP/ebible",
    ),
    Distribution(
        "bible",
        "Bibles by verse (JHUBC and others)",
        (r"<language>(?:[-_.][\w.-]*)?\.(?:txt|tsv)<z>",),
        "swh-x-bible-union.txt",
        "verses",
        start=_BIBLE_LINE,
        licence="mixed, in the head of each file",
        citation="McCarthy et al., 2020, The Johns Hopkins University Bible Corpus; Mayer and "
        "Cysouw, 2014, Creating a Massively Parallel Bible Corpus",
        url="https://aclanthology.org/2020.lrec-1.352",
    ),
    Distribution(
        "ebible-vpl",
        "eBible.org (verse per line)",
        (r"(?P<language>[a-z]{3})[a-z0-9]*_vpl\.txt<z>",),
        "swhulb_vpl/swhulb_vpl.txt",
        "verses",
        start=r"\A[1-3]?[A-Z]{2,3} \d+:\d+ \S",
        beside=(r"<file>_vpl\.(?:xml|sql)",),
        licence="mixed, see its page",
        citation="eBible.org",
        url="https://ebible.org/download.php",
    ),
    Distribution(
        "multiway",
        "African Storybook and other multi-way folders",
        (r"<language>\.txt<z>",),
        "asp_stories/sw.txt.xz",
        "multiway",
        near=("ids.txt", "ids.txt.xz", "ids.txt.gz", "ids.txt.zst"),
        beside=(r"ids\.txt<z>",),
        read_by=("bitext", "cc100"),
        licence="that of the folder (African Storybook: CC BY and CC BY-NC)",
        citation="African Storybook Initiative",
        url="https://africanstorybook.org",
    ),
    # After multi-way folders, which have the same names.
    Distribution(
        "cc100",
        "CC-100",
        (r"<language>(?:[-_.](?:part|shard)?[-_.]?\d+(?:-of-\d+)?)?\.txt<z>",),
        "sw.txt.xz",
        "documents",
        start=r"\S[^\n]*\n[ \t\r]*\n",
        read_by=("cc100",),
        licence="that of Common Crawl",
        citation="Conneau et al., 2020, XLM-R; Wenzek et al., 2020, CCNet",
        url="https://data.statmt.org/cc-100",
    ),
)


def _rows_of(entry: EvaluationSet) -> Iterator[Distribution]:
    """Yields a row for each form of the files of an evaluation set."""
    for files in (files for files in entry.files if not files.is_corpus):
        yield Distribution(
            entry.name,
            entry.title,
            files.paths,
            entry.example,
            _format(files),
            columns=() if files.header else _columns(files),
            start=rf"\A(?:# .*\n)*{files.line}" if files.line else "",
            text=files.text,
            is_evaluation=True,
            beside=entry.beside,
            advice="as its columns have no names, or it has several languages, it can only be "
            "measured with; leave it out (without --include_parts=evaluation)",
            licence=entry.licence,
            citation=entry.citation,
            url=entry.url,
        )


def _columns(files: SetFiles) -> tuple[str, ...]:
    names = (*files.text, *files.columns, files.unit)
    return tuple(name for name in names if name not in ("", EVERY_LANGUAGE))


def _format(files: SetFiles) -> str:
    """Returns the format of files of an evaluation set for those who train on them."""
    if not files.text:
        return "multiway"
    path = "".join(files.paths)
    if files.header or not ("<language>" in path or "<pair>" in path):
        return ""
    return "table_pairs" if "<pair>" in path else "table"


# Files that are not read as they are, and what to do with them.
_UNREAD = (
    Distribution(
        "archive",
        "an archive",
        (r"<file>\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz)",),
        "opus-100-corpus-v1.0.tar.gz",
        "",
        advice="unpack it first: mkdir {stem} && tar -xf {file} -C {stem}, and move the archive",
    ),
    Distribution(
        "unfinished",
        "an unfinished download",
        (r"<file>\.(?:incomplete|aria2|part|partial|crdownload|download|tmp)",),
        "000_00000.parquet.incomplete",
        "",
        advice="run the command that downloads it again until it ends, or remove the file",
    ),
    Distribution(
        "hub-cache",
        "the cache of the Hugging Face hub",
        (r"datasets--<file>/(?:blobs|refs|\.no_exist)/<file>",),
        "datasets--HuggingFaceFW--fineweb-2/refs/main",
        "",
        advice="give the folder of its newest snapshot instead, "
        "--dir=$(ls -td {folder.parent}/snapshots/*/ | head -1)",
    ),
    Distribution(
        "mediawiki",
        "a dump of MediaWiki",
        (r"<file>\.xml<z>",),
        "swwiki-20240101-pages-articles.xml.bz2",
        "",
        start=r"<mediawiki\b",
        advice="its text is wiki markup; take the text of the hub instead, "
        "--tasks=table --hf_dataset=wikimedia/wikipedia/20231101.CODE with the language's code, or "
        "extract it with WikiExtractor",
        url="https://dumps.wikimedia.org",
    ),
    Distribution(
        "wikiextractor",
        "WikiExtractor's output",
        (r"[A-Z]{2}/wiki_\d\d<z>",),
        "swwiki/AA/wiki_00",
        "",
        start=r"\A<doc id=",
        advice="join it in one file of its language: cat {folder.parent}/*/wiki_* | "
        "sed '/^<doc id=.*>$/d; s/^<[/]doc>$//' > CODE.txt (zcat or bzcat if it is compressed), "
        "and read its folder with --tasks=cc100 --cc100_dir=FOLDER",
        url="https://github.com/attardi/wikiextractor",
    ),
    Distribution(
        "wikiextractor-json",
        "WikiExtractor's output (JSON)",
        (r"[A-Z]{2}/wiki_\d\d<z>",),
        "swwiki/AA/wiki_00",
        "",
        start=r"\A\{\"\w+\":",
        advice="join it in one file of its language: cat {folder.parent}/*/wiki_* > CODE.jsonl "
        "(zcat or bzcat if it is compressed), and read its folder with --tasks=table "
        "--table_dir=FOLDER",
        url="https://github.com/attardi/wikiextractor",
    ),
    Distribution(
        "opus-xml",
        "OPUS (XML)",
        (r"<pair>\.xml<z>", r"(?:raw|xml|parsed)/<language>/(?:[^/]+/)*<file>\.xml<z>"),
        "Tatoeba/v2023/xml/en-sw.xml.gz",
        "",
        advice="download the same corpus in the Moses form, en-sw.txt.zip, which is read as it is",
        url="https://opus.nlpl.eu",
    ),
    Distribution(
        "common-crawl",
        "Common Crawl (WARC, WAT and WET)",
        (r"<file>\.warc(?:\.wat|\.wet)?<z>",),
        "CC-MAIN-20240101000000-00000.warc.wet.gz",
        "",
        advice="pages are in no language yet; take a corpus made of it, such as FineWeb-2 or HPLT",
        url="https://commoncrawl.org",
    ),
)
# After all others, because OPUS's archives are read as they are.
_ZIP = Distribution(
    "zip",
    "an archive (zip)",
    (r"<file>\.zip",),
    "ELRC_1234.zip",
    "",
    advice="unpack it first: unzip {file} -d {stem}, and move the archive",
)

DISTRIBUTIONS: tuple[Distribution, ...] = (
    *_UNREAD,
    *itertools.chain.from_iterable(map(_rows_of, evaluation_layouts.SETS)),
    *_TEXT,
    *_PAIRS,
    _ZIP,
)
