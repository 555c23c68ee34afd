"""Repeated text takes no reader more than linear time: openings that nothing closes, above all.

No time is asserted. What is quadratic in the size here takes minutes, and is ended as a hang.
"""

import signal

import pytest
from helpers import tiny
from helpers.pair_files import read_moses, read_tmx, read_tsv

from xlme_jax.data.benchmarks.official import squad
from xlme_jax.data.text.reading import read_documents
from xlme_jax.data.text.row_lines import json_names
from xlme_jax.data.text.sgm import segments
from xlme_jax.evaluation import results
from xlme_jax.preparation import evaluation_files
from xlme_jax.training.metrics import read_metrics

SIZES = {"small": 200_000, "large": 4_000_000}
HANG_SECONDS = 60
UNITS = [
    *(b"<seg ", b"<seg>", b'<seg id="1">', b"<seg id='1'", b"</seg>", b"<doc ", b"<doc docid="),
    *(b"<!--", b"<![CDATA[", b"<", b">", b"<p>", b"<p", b"</p>", b"<bpt>", b"<tu><tuv><seg>"),
    *(b'"', b'\\"', b'"\\', b"'", b'=" ', b"&", b"&#", b"&amp", b"[", b"{", b'{"a":', b"[[1,"),
    *(b"\r", b"\n", b"\r\n", b"\r\r\n", b"\n \n", b"\t", b" ", b"\xc2\xa0", b"\x1f", b"\0"),
    *(
        b",",
        b";",
        b"|||",
        b"|",
        b"a b\n",
        b"a\tb\n",
        b"# text = ",
        b"- a: ",
        b"1-2\t",
        b"e\xcc\x81",
    ),
    *(b"a.", b"A. ", b"e.g. ", b"<0x41>", "\u2581".encode(), b"%PDF", b"PK", b"9", b"1e", b"-"),
]


def documents(path):
    for _ in read_documents(path):
        pass


def pairs(path):
    partner = path.with_name("x.sw")
    partner.write_bytes(path.read_bytes())
    for _ in read_moses(path, partner):
        pass


def tsv(path):
    for _ in read_tsv(path):
        pass


def tmx(path):
    path.write_bytes(b"<tmx><body>" + path.read_bytes())
    for _ in read_tmx(path, "en", "sw"):
        pass


def evaluation_texts(path):
    for _ in evaluation_files.texts(path, []):
        pass


def questions(path):
    for _ in squad._questions(path):
        pass


READERS = {
    "txt": (documents, evaluation_texts),
    "en": (pairs,),
    "tsv": (tsv, evaluation_texts),
    "tmx": (tmx, evaluation_texts),
    "sgm": (segments, evaluation_texts),
    "jsonl": (json_names, evaluation_texts, read_metrics),
    "json": (questions, results.read, evaluation_texts),
    **dict.fromkeys(("csv", "xml", "html", "yaml", "po", "conllu"), (evaluation_texts,)),
}


@pytest.mark.parametrize("size", tiny.slow_except({"small"}, SIZES))
@pytest.mark.parametrize("suffix", tiny.slow_except({"tmx"}, READERS))
def test_time_is_linear(tmp_path, suffix, size):
    for unit in UNITS:
        for head in (b"", b"<?xml version='1.0'?>\n") if suffix == "xml" else (b"",):
            for reader in READERS[suffix]:
                path = tmp_path / f"x.{suffix}"
                path.write_bytes(head + unit * (SIZES[size] // len(unit)) + b"\n")
                signal.alarm(HANG_SECONDS)  # The fixture's handler fails the test.
                try:
                    reader(path)
                except ValueError as error:
                    assert str(error)
