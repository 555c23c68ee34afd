import bz2
import csv
import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile

import pytest
import zstandard

from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import evaluation_overlap

LONG = "The quick brown fox jumps"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "eval"
    (root / "deep").mkdir(parents=True)
    (root / "lines.txt").write_text(f"{LONG}\nnot in training\n{LONG.upper()}\nA fox.\n")
    (root / "deep" / "fields.tsv.gz").write_bytes(gzip.compress(f"7\t{LONG}\tx\n".encode()))
    squad = {"data": [{"paragraphs": [{"context": f"{LONG}\nEine  zweite Zeile"}]}]}
    (root / "squad.json").write_text(json.dumps(squad))
    (root / "rows.jsonl").write_text(json.dumps({"text": LONG}) + "\n{broken\n")
    (root / "zh.txt").write_text("这句话没有空格但是长度足够所以应该被计算在内\n短句\n")
    (root / ".hidden").write_text(LONG)
    (root / "picture.png").write_bytes(b"\x89PNG\xff\xfe\n")
    return root


def test_counts_by_file_and_task(folder):
    evaluation = evaluation_overlap.evaluation_digests(folder)
    assert {name: len(digests) for name, digests in evaluation.items()} == {
        "deep/fields.tsv.gz": 2,  # the line and its long field
        "lines.txt": 2,  # equal texts once, short ones not
        "rows.jsonl": 1,
        "squad.json": 2,
        "zh.txt": 1,
    }
    training = [
        ("mono", [("something\nthe QUICK brown  fox jumps",), ("A fox.",)]),
        ("pairs", [("x", "这句话没有空格但是长度足够所以应该被计算在内")]),
        ("pairs", [("eine zweite zeile", "y")]),
        ("clean", [("nothing of it",)]),
    ]
    found = evaluation_overlap.count_overlap(evaluation, training)
    assert found.whole == {
        "deep/fields.tsv.gz": {"mono": 1},
        "lines.txt": {"mono": 1},
        "rows.jsonl": {"mono": 1},
        "squad.json": {"mono": 1, "pairs": 1},
        "zh.txt": {"pairs": 1},
    }
    assert "overlap of squad.json (2 texts): 1 in mono, 1 in pairs" in found.lines()
    assert found.to_json()["files"]["zh.txt"] == {
        "texts": 1,
        "found": {"pairs": 1},
        "words_in_a_row": {},
    }


THIRTEEN = "Nobody knew who had built the old stone bridge near our little village"
CHINESE_26 = "这句话没有空格但是长度足够所以应该被计算在内因为它很"
THAI = "ภาษาไทยเป็นภาษาที่ใช้กันมากที่สุดในประเทศไทยและเป็นภาษาราชการของประเทศ"


@pytest.mark.parametrize(
    "text, training, count",
    [
        (f"{THIRTEEN} anyway.", f"Then:\n{THIRTEEN.upper()},\nshe said", 1),
        (f"{THIRTEEN}.", f"Then {THIRTEEN.replace(' old', ', old,')}", 1),
        (f"{THIRTEEN}.", f"Then {THIRTEEN.replace(' old', ' very old')}", 0),
        (THIRTEEN.rpartition(" ")[0], f"Then {THIRTEEN}", 0),  # Shorter than 13 words.
        (f"7\t{THIRTEEN.replace('stone', 'stone' + chr(9))}", THIRTEEN, 0),  # Of two fields.
        (" ".join(map(str, range(40))), " ".join(map(str, range(10, 40))), 0),
        (CHINESE_26, f"他说{CHINESE_26}了", 1),
        (CHINESE_26[:-1], f"他说{CHINESE_26}了", 0),
        (THAI, f"{THAI[3:]}อื่น", 1),
        (THAI, f"{THAI[20:]}อื่น", 0),
    ],
)  # fmt: skip
def test_a_part_of_13_words_is_found(tmp_path, text, training, count):
    (tmp_path / "test.txt").write_text(f"{text}\nAnother text here.\n")
    evaluation = evaluation_overlap.evaluation_digests(tmp_path)
    overlaps = evaluation_overlap.count_overlap(
        evaluation, [("pairs", [("x", "y"), ("x", training)])]
    )
    assert overlaps.whole == {"test.txt": {}}
    assert overlaps.in_part == {"test.txt": {"pairs": 1} if count else {}}
    assert vars(overlaps.training["pairs"]) == {"texts": 2, "with_evaluation_text": count}
    said = [f"overlap of test.txt ({len(evaluation['test.txt'])} texts): 13 words of 1 in pairs"]
    said.append("overlap: 1 of 2 texts of pairs have evaluation text")
    assert list(overlaps.lines())[:-1] == (said if count else [])


# --- Formats ---

FIRST = "The old harbour, it's said, was rebuilt after the \u201cgreat\u201d storm (1907)."
SECOND = "Nobody remembered <how> the bridge & its towers had been built."
CHINESE = "这句话没有空格但是长度足够所以应该被计算在内。"
# `FIRST` as treebanks split it; the tokens before which it has no space.
WORDS = [
    *("The", "old", "harbour", ",", "it", "'s", "said", ",", "was", "rebuilt", "after"),
    *("the", "“", "great", "”", "storm", "(", "1907", ")", "."),
]
GLUED = {3, 5, 7, 13, 14, 17, 18, 19}


def markup(form):
    texts = [
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        for text in (FIRST, SECOND)
    ]
    return form.format(*texts)


def quoted(delimiter=",", rows=((0, FIRST), (1, SECOND))):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    return out.getvalue()


def conllu(comment):
    lines = [f"# text = {FIRST}"] if comment else []
    for number, word in enumerate(WORDS):
        glued = "SpaceAfter=No" if number + 1 in GLUED else "_"
        lines.append(f"{number + 1}\t{word}" + "\t_" * 7 + f"\t{glued}")
        if number == 3:
            lines.append("4.1\tnothing" + "\t_" * 8)
    return "\n".join(lines) + f"\n\n# text = {SECOND}\n"


def parquet():
    import pyarrow as pa
    from pyarrow import parquet

    out = io.BytesIO()
    rows = [{"id": 1, "a": {"text": [FIRST]}, "pair": {"en": SECOND, "de": None}}]
    parquet.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def arrow():
    import pyarrow as pa

    out = io.BytesIO()
    table = pa.Table.from_pylist([{"turns": [{"text": FIRST}, {"text": SECOND}]}])
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def zipped(name, content, mode=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", mode) as archive:
        archive.writestr(name, content)
        archive.writestr("__MACOSX/._x", b"\0\1")
    return out.getvalue()


def tarred(name, content):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


LINES = f"{FIRST}\n{SECOND}\n"
SEGMENTS = markup(
    '<srcset setid="x"><doc docid="a"><seg id=1>{0}</seg>\n<seg id="2"> {1} </seg></doc></srcset>'
)
TMX = markup(
    '<?xml version="1.0" encoding="{{}}"?><tmx version="1.4"><body><tu><tuv xml:lang="en">'
    '<seg>{0}</seg></tuv><tuv xml:lang="sw"><seg><bpt i="1">&lt;b&gt;</bpt>{1}<ept i="1"/></seg>'
    "</tuv></tu></body></tmx>"
)
SQUAD = json.dumps({"data": [{"paragraphs": [{"context": FIRST, "qas": [{"question": SECOND}]}]}]})
FORMATS = {
    "lines": LINES,
    "lines.en": "\ufeff" + LINES,
    "cr.txt": LINES.replace("\n", "\r"),
    "crlf.txt": LINES.replace("\n", "\r\n"),
    "utf16.txt": LINES.encode("utf-16"),
    "utf16_without_mark.txt": LINES.encode("utf-16-le"),
    "fields.tsv": f"0\t{FIRST}\t{SECOND}\n",
    "quoted.tsv": quoted("\t"),
    "fast_align.txt": f"{FIRST} ||| {SECOND}\n",
    "table.md": f"| a | b |\n|---|---|\n| {FIRST} | {SECOND} |\n",
    "quoted.csv": quoted(),
    "semicolons.csv": quoted(";"),
    "line_ends.csv": quoted(rows=[(0, f"{FIRST}\n{SECOND}")]),
    "unclosed.csv": f'id,text\n0,"open\n1,"{FIRST}"\n2,"{SECOND}"\n',
    "ref.en.sgm": SEGMENTS,
    "two_references.sgm": SEGMENTS.replace("</srcset>", "") + SEGMENTS.split(">", 1)[1],
    "wmt21.xml": '<?xml version="1.0"?>\n<dataset>' + SEGMENTS + "</dataset>",
    "cdata.xml": f"<a><b><![CDATA[{FIRST}]]></b><b><![CDATA[{SECOND}]]></b></a>",
    "attributes.xml": markup('<a text="{0}"/><a text=\'x\'>{1}</a>'),
    "a.tmx": TMX.format("utf-8"),
    "b.tmx": TMX.format("utf-16").encode("utf-16"),
    "c.xlf": markup("<xliff><unit><source>{0}</source><target>{1}</target></unit></xliff>"),
    "page.html": markup("<!DOCTYPE html><p><b>{0}</b></p><p>{1}</p>"),
    "treebank.conllu": conllu(True),
    "spaces.conllu": conllu(False),
    "squad.json": SQUAD,
    "rows.jsonl": json.dumps({"a": FIRST}) + "\n" + json.dumps({"b": [SECOND, 1]}) + "\n",
    "rows": json.dumps({"a": FIRST}) + "\n" + json.dumps([SECOND]) + "\n",
    "rows.parquet": parquet,
    "rows.arrow": arrow,
    "a.yaml": f"- text: {json.dumps(FIRST)}\n  other: '{SECOND}'\n",
    "a.po": f"msgid {json.dumps(FIRST, ensure_ascii=False)}\nmsgstr {json.dumps(SECOND)}\n",
    "test.zip": lambda: zipped("deep/test.sgm", SEGMENTS),
    "document.docx": lambda: zipped("word/document.xml", markup("<w><t>{0}</t><t>{1}</t></w>")),
    "test.tar": lambda: tarred("a/test.csv", quoted().encode()),
    "test.tgz": lambda: gzip.compress(tarred("a/test.txt.xz", lzma.compress(LINES.encode()))),
    "test.tar.zst": lambda: zstandard.compress(tarred("x.zip", zipped("t.json", SQUAD))),
    "test.sgm.bz2": lambda: bz2.compress(SEGMENTS.encode()),
    "test.csv.gz": lambda: gzip.compress(quoted().encode()),
    "test.json.xz": lambda: lzma.compress(SQUAD.encode()),
}  # fmt: skip


def find(folder, lines=(FIRST, SECOND)):
    evaluation = evaluation_overlap.evaluation_digests(folder)
    return evaluation, evaluation_overlap.count_overlap(
        evaluation, [("mono", [("\n".join(lines),)])]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_text_is_found_in_every_format(tmp_path, name):
    content = FORMATS[name]
    content = content() if callable(content) else content
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    evaluation, found = find(tmp_path)
    assert not evaluation.unread and not evaluation.without_text
    ((file, tasks),) = found.whole.items()
    assert file.startswith(name) and tasks == {"mono": 2}
    assert list(found.lines())[-1] == "overlap: none in 0 of 1 evaluation files that were read"


@pytest.mark.parametrize(
    "name, lines, text",
    [
        ("train-en.tsv", [f"{word}\tNOUN" for word in WORDS], FIRST.replace("it's", "it 's")),
        ("test-en.tsv", WORDS, FIRST.replace("it's", "it 's")),
        ("dev", [f"en:{word}\tB-LOC" for word in WORDS], " ".join(WORDS)),
        ("a.conll", [f"{word} NN B-NP O" for word in WORDS], " ".join(WORDS)),
        ("words.jsonl", [json.dumps({"tokens": list(CHINESE)})], CHINESE),
        ("zh.tsv", [f"{word}\tX" for word in CHINESE], CHINESE),
    ],
)
def test_sentences_of_words_are_found(tmp_path, name, lines, text):
    (tmp_path / name).write_text("\n".join(lines) + "\n\n" + "\n".join(lines[:3]) + "\n")
    assert find(tmp_path, (text,))[1].whole[name] == {"mono": 1}


UNREADABLE = {
    "a.pdf": b"%PDF-1.4\nThe text is compressed\n",
    "a.png": b"\x89PNG\r\n\x1a\n\0\0",
    "a.rtf": b"{\\rtf1 The old harbour}",
    "a.pkl": pickle.dumps([FIRST], protocol=0),
    "a.npy": b"\x93NUMPY\x01\0",
    "a.tfrecord": b"\x10\0\0\0\0\0\0\0text of a record",
    "a.txt": f"{FIRST}\n".encode() + "Straße nach Süden, die.\n".encode("latin-1"),
    "a.csv": "id,Straße nach Süden\n".encode("latin-1"),
    "a.txt.gz": gzip.compress(LINES.encode() * 999)[:-20],
    "a.parquet": b"PAR1 and nothing else",
    "a.zip": zipped("x.txt", LINES)[:-30],
    "a.tar.gz": gzip.compress(b"no archive"),
    "b.zip": zipped("a.pdf", b"%PDF-1.4\n"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_could_not_be_read_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(UNREADABLE[name])
    (tmp_path / "lines.txt").write_text(LINES)
    evaluation, found = find(tmp_path, ["Something else altogether is here."])
    ((unread, why),) = evaluation.unread.items()
    assert unread.startswith(name) and why and str(tmp_path) not in why
    assert "evaluation files that were read, and 1 COULD NOT BE READ" in list(found.lines())[-1]
    assert list(evaluation.warnings()) == [f"overlap: NOT CHECKED: {unread}: {why}"]
    said = (
        "1 evaluation files could not be read, so their overlap with the training text is unknown"
    )
    assert evaluation.problem().startswith(said)
    assert found.to_json()["unread"] == {unread: why}
    (tmp_path / "lines.txt").unlink()
    if name in ("a.txt", "a.txt.gz"):  # Their first lines can be read.
        assert find(tmp_path, [FIRST])[1].whole == {name: {"mono": 1}}
    else:
        with pytest.raises(DataError, match=f"no text found; .*could not be read.*{name}"):
            evaluation_overlap.evaluation_digests(tmp_path)


def test_what_is_no_file_is_named_and_links_are_followed(tmp_path):
    (tmp_path / "eval").mkdir()
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "other" / "deep" / "a.txt").write_text(LINES)
    (tmp_path / "other" / "again").symlink_to(tmp_path / "other")
    (tmp_path / "eval" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "eval" / "broken.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "eval" / "labels.txt").write_text("neutral\n")
    (tmp_path / "eval" / ".hidden").write_text(LINES)
    os.mkfifo(tmp_path / "eval" / "pipe")
    evaluation, found = find(tmp_path / "eval")
    assert found.whole == {"link/deep/a.txt": {"mono": 2}}
    assert evaluation.unread == dict.fromkeys(("broken.txt", "pipe"), "broken link, pipe or device")
    assert evaluation.without_text == ["labels.txt"] and evaluation.hidden == 1
    assert list(evaluation.warnings())[2:] == [
        "overlap: no text of 3 words or 20 characters in labels.txt",
        "overlap: 1 hidden files were not read",
    ]


def test_nothing_to_compare_with(tmp_path):
    (tmp_path / "short.txt").write_text("A fox.\n")
    with pytest.raises(DataError, match="no text found; set `check_overlap`"):
        evaluation_overlap.evaluation_digests(tmp_path)
