import dataclasses
import itertools
import lzma
from pathlib import Path

import pytest

from xlme_jax.api import load_tasks
from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary


@dataclasses.dataclass
class Raw:
    """CC-100 files and pair files of twelve sentences, and a vocabulary."""

    en: list[str]
    sw: list[str]
    mono: Path
    pairs: Path
    vocabulary: Path


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    load_tasks()
    folder = tmp_path_factory.mktemp("raw")
    combinations = itertools.product(
        [("big", "mkubwa"), ("old", "mzee"), ("red", "mwekundu")],
        [("cat", "Paka"), ("dog", "Mbwa")],
        [("sat", "alikaa"), ("ran", "alikimbia")],
    )
    sentences = [
        (f"The {a[0]} {b[0]} {c[0]}.", f"{b[1]} {a[1]} {c[1]}.") for a, b, c in combinations
    ]
    en, sw = map(list, zip(*sentences))
    made = Raw(en, sw, folder / "mono", folder / "pairs", folder / "vocabulary.model")
    made.mono.mkdir()
    made.pairs.mkdir()
    for language, lines in (("en", en), ("sw", sw)):
        # Documents of three paragraphs.
        text = "\n\n".join("\n".join(lines[i : i + 3]) for i in range(0, len(lines), 3))
        (made.mono / f"{language}.txt.xz").write_bytes(lzma.compress(text.encode()))
        (made.pairs / f"two.en-sw.{language}").write_text("\n".join(lines[:5]) + "\n")
    (made.pairs / "one.en-sw.tsv").write_text("".join(f"{e}\t{f}\n" for e, f in sentences))
    vocabulary = train_vocabulary(en + sw, 400, byte_fallback=False, allow_smaller=True)
    write_vocabulary(vocabulary, made.vocabulary)
    return made
