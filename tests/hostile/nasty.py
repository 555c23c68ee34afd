"""A corpus of files that break naive readers, and the expected outcome of each.

The tables map a name to the content and the expected error text; None means no error.
"""

import bz2
import functools
import gzip
import io
import lzma
import os
import stat
import struct
import warnings
import zipfile

import zstandard

COMPRESS = {
    "txt": lambda data: data,
    "gz": lambda data: gzip.compress(data, mtime=0),
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bz2": bz2.compress,
}
COMPRESSED = sorted(set(COMPRESS) - {"txt"})

PLAIN = "One line.\nTwo söz.\n\nThree 語 lines.\n\nFour.\n".encode()
BITEXT = {
    "en": "One line.\nTwo wörds.\n\nFour, 語.\nFive\r\n".encode(),
    "sw": "Mstari mmoja.\nManeno mawili.\nTatu\nNne, 語.\nTano\r\n".encode(),
}
TSV = "One line.\tMstari mmoja.\t0.9\nTwo\tMbili\n\nThree 語\tTatu\r\nfour\n".encode()
TMX_HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'


def tmx(*units, head=TMX_HEAD):
    return head + b'<tmx version="1.4"><body>' + b"".join(units) + b"</body></tmx>\n"


def unit(first=b"One.", second=b"Moja."):
    return (
        b'<tu tuid="1"><tuv xml:lang="en"><seg>%b</seg></tuv>'
        b'<tuv xml:lang="sw"><prop>x</prop><seg>%b</seg></tuv></tu>' % (first, second)
    )


TMX = tmx(unit(), unit("Caf\u00e9 &amp; <ph x='1'/>語.".encode(), b"<bpt>{</bpt>Mkahawa."), unit())

# --- Text, as a whole file in CC-100's layout, or one side of a pair of files ---

TEXTS = {
    "empty": (b"", "no text in this file"),
    "only line ends": (b"\n\r\n\n", "no text in this file"),
    "only blank lines": (b" \n\t\n \r\n\x0c\n", "no text in this file"),
    "only NUL": (b"\0" * 1000, "no text in this file"),
    "only a byte order mark": (b"\xef\xbb\xbf", "no text in this file"),
    "only unseen characters": ("\u2028\u0085\ufeff\n".encode(), "no text in this file"),
    "UTF-8 byte order mark": (b"\xef\xbb\xbftext\n", None),
    "two byte order marks": (b"\xef\xbb\xbf\xef\xbb\xbftext\n", None),
    "byte order mark inside": (b"text\n\xef\xbb\xbftext\n", None),
    "UTF-16 little": ("text\n".encode("utf-16"), "UTF-16 text.*iconv"),
    "UTF-16 big": (b"\xfe\xff\0t\0\n", "UTF-16 text.*iconv"),
    "UTF-16 without mark": ("text\n".encode("utf-16-le"), "UTF-16 text.*iconv -f UTF-16LE"),
    "UTF-32": ("text\n".encode("utf-32"), "UTF-32 text.*iconv -f UTF-32"),
    "CRLF": (b"one\r\ntwo\r\n\r\nthree\r\n", None),
    "lone CR": (b"one\rtwo\r\rthree\r", None),
    "lone CR, LF at the end": (b"one\r" * 20 + b"\n", None),
    "line ends of two systems": (b"one\r" * 20 + b"two\nthree", "line 21, .* line feed"),
    "only CR": (b"\r" * 100_000, "no text in this file"),
    "CR before CRLF": (b"one\r\r\ntwo\r\n", None),
    "no final line end": (b"one\ntwo", None),
    "final CR": (b"one\ntwo\r", None),
    "NUL inside": (b"on\0e\n\0\ntw\0o\n", None),
    "all control characters": (bytes(range(32)) + b"text\x7f\n", None),
    "C1 control characters": ("".join(map(chr, range(0x7F, 0xA0))).encode() + b"text\n", None),
    "Latin-1": ("caf\xe9\n".encode("latin-1") + b"text\n", None),
    "CESU surrogates": (b"\xed\xa0\xbd\xed\xb8\x80\ntext\n", None),
    "lone surrogate": (b"a\xed\xa0\x80b\ntext\n", None),
    "overlong": (b"\xc0\xaf\xe0\x80\xaf\ntext\n", None),
    "beyond Unicode": (b"\xf4\x90\x80\x80 \xf8\x88\x80\x80\x80\ntext\n", None),
    "cut character": ("text\nsö".encode()[:-1], None),
    "continuation bytes": (b"\x80" * 5000 + b"\ntext\n", None),
    "right to left": ("\u202eשלום\u202c \u2067مرحبا\u2069\n".encode(), None),
    "zero width": ("a\u200bb\u200c\u200d\u2060c\n".encode(), None),
    "line separators": ("a\u2028b\u2029c\u0085d\u000be\u000cf\x1cg\n".encode(), None),
    "combining": ("e" + "\u0301" * 5000 + "\n", None),
    "noncharacters": ("a\ufffe\uffff\U0010ffff\n".encode(), None),
    "binary": (bytes(range(256)) * 40 + b"\ntext\n", "lines are not UTF-8.*iconv"),
    "some binary": (bytes(range(256)) * 4 + b"\ntext\n", None),
    "first letters of bzip2": (b"BZh9 is text\n", None),
    "a zip": (b"PK\x03\x04 and so on\n", "zip archive instead of a text file"),
    "line of 3 MB": (b"x" * (3 << 20) + b"\ntext\n", None),
    "line of spaces": (b"a\n" + b" " * (3 << 20) + b"b\ntext\n", None),
    "many line ends": (b"\n" * 100_000 + b"text\n", None),
}
TEXTS = {
    name: (text.encode() if isinstance(text, str) else text, error)
    for name, (text, error) in TEXTS.items()
}

TSVS = {
    "no columns": (b"one\ntwo\n", "none of the 2 lines has 2 tab-separated"),
    "too few columns": (b"one\ttwo\nthree\n", None),
    "too many columns": (b"one\ttwo" + b"\tx" * 50_000 + b"\n", None),
    "only tabs": (b"\t\t\t\n", None),
    "quotes": (b'"one\ttwo\n"\n', None),
    "empty sides": (b"\tone\ntwo\t\n\t\n", None),
    "column of NUL": (b"\0\tone\n", None),
    "column with CR": (b"a\rb\tc\rd\r\n", None),
}

# --- Compressed files ---


def damaged_archives(suffix):
    """Yields name and content of valid archives, truncated and changed at many places."""
    data = "".join(f"line {i * i}\n" for i in range(3000)).encode()
    whole = COMPRESS[suffix](data)
    length = len(whole)
    for kept in (1, 3, 7, 8, 9, 20, length // 2, length - 12, length - 8, length - 4, length - 1):
        yield f"{kept} bytes kept", whole[:kept]
    for place in (0, 2, 4, 6, 10, length // 2, length - 9, length - 5, length - 1):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        yield f"byte {place} changed", bytes(changed)
    yield "without its first half", whole[length // 2 :]
    yield "garbage behind", whole + b"\xa5garbage" * 9
    yield "short garbage behind", whole + b"x"
    yield "text behind", whole + data
    yield "second stream cut", whole + whole[: length // 2]
    yield "another kind behind", whole + COMPRESS["xz" if suffix == "gz" else "gz"](data)
    yield "compressed twice", COMPRESS[suffix](whole)
    yield "empty streams", COMPRESS[suffix](b"") * 2000
    yield "NUL behind", whole + bytes(5000)
    yield "only NUL", bytes(1000)


def multi_stream(suffix):
    """Returns text in several compressed streams, one ending inside a character."""
    parts = [b"one\n", b"", "s\u00f6".encode()[:2], "s\u00f6z\n".encode()[2:]]
    return b"".join(map(COMPRESS[suffix], parts)), "one\nsöz\n"


def bomb(suffix, megabytes, unit=b"\0"):
    """Returns a compressed run of one byte of the given size in megabytes."""
    compressor = {
        "gz": lambda: _gzip_object(),
        "xz": lambda: lzma.LZMACompressor(preset=0),
        "zst": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
        "bz2": lambda: bz2.BZ2Compressor(9),
    }[suffix]()
    block = unit * (1 << 20)
    blocks = [compressor.compress(block) for _ in range(megabytes)]
    return b"".join([*blocks, compressor.flush()])


def _gzip_object():
    import zlib

    return zlib.compressobj(9, wbits=31)


# --- What is no regular file ---


def odd_files(folder, name):
    """Creates unreadable files called `name`, each in its own folder.

    Returns:
        {description: path}
    """
    paths = {}
    for what in ("folder", "broken link", "circle of links", "named pipe", "link to a device"):
        place = folder / what
        place.mkdir(parents=True)
        path = paths[what] = place / name
        if what == "folder":
            path.mkdir()
        elif what == "named pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(
                {"broken link": "absent", "circle of links": name, "link to a device": "/dev/zero"}[
                    what
                ]
            )
    return paths


# --- Zips ---


def make_zip(*members, method=zipfile.ZIP_DEFLATED):
    """Returns a zip; members are (name, content) or (ZipInfo, content), names may repeat."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that repeat
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, data in members:
                archive.writestr(name, data)
    return file.getvalue()


PAIR = [(f"A.en-sw.{language}", data) for language, data in BITEXT.items()]


def _link(name, target):
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target


def _changed(local, central, value):
    """Returns a zip with the bytes `value` at these offsets in both headers of every member."""
    data = bytearray(make_zip(*PAIR))
    for signature, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        place = data.find(signature)
        while place >= 0 and offset is not None:
            data[place + offset : place + offset + len(value)] = value
            place = data.find(signature, place + 1)
    return bytes(data)


@functools.cache
def zips():
    """Returns {name: (content, expected error text)}."""
    whole = make_zip(*PAIR)
    en, sw = PAIR
    nested = make_zip(("inner.zip", whole))
    return {
        "valid": (whole, None),
        "stored": (make_zip(*PAIR, method=zipfile.ZIP_STORED), None),
        "empty file": (b"", "not a readable zip archive"),
        "no members": (make_zip(), r"no files NAME\.en and NAME\.sw.*it contains nothing"),
        "text": (PLAIN, "not a readable zip archive"),
        "encrypted": (_changed(6, 8, b"\1\0"), "encrypted"),
        "patched": (_changed(6, 8, b"\x20\0"), r"readable zip archive \(compressed patched data"),
        "a later version": (_changed(4, 6, b"\x63\0"), r"readable zip archive \(zip file version"),
        "a name that is no UTF-8": (
            _changed(6, 8, b"\0\x08").replace(b"A.en-sw.en", b"\xff.en-sw.en"),
            r"readable zip archive \('utf-8' codec can't decode",
        ),
        "bzip2 inside": (make_zip(*PAIR, method=zipfile.ZIP_BZIP2), "compression method 12"),
        "LZMA inside": (make_zip(*PAIR, method=zipfile.ZIP_LZMA), "compression method 14"),
        "size too small": (_changed(None, 24, struct.pack("<I", 5)), "truncated or damaged"),
        "size too large": (_changed(None, 24, struct.pack("<I", 1 << 31)), None),
        "path upwards": (make_zip(("../../../x.en", en[1]), ("../../../x.sw", sw[1])), None),
        "absolute path": (make_zip(("/etc/x.en", en[1]), ("/etc/x.sw", sw[1])), None),
        "backslashes": (make_zip(("..\\x.en", en[1]), ("..\\x.sw", sw[1])), None),
        "link": (make_zip(_link("A.en-sw.en", "/etc/passwd"), sw), "symbolic link"),
        "link elsewhere": (make_zip(_link("README", "/etc/passwd"), en, sw), None),
        "member twice": (make_zip(en, sw, en), "are text in one language"),
        "language twice": (
            make_zip(en, sw, (f"{en[0]}.gz", gzip.compress(en[1]))),
            "are text in one language",
        ),
        "case differs": (make_zip(en, sw, ("A.en-sw.EN", en[1])), "are text in one language"),
        "nested": (nested, r"no files NAME\.en.*inner\.zip"),
        "zip as a member": (make_zip((en[0], whole), sw), "zip archive instead of a text file"),
        "one half": (make_zip(en), r"no files NAME\.en and NAME\.sw"),
        "folders": (make_zip(("x.en/", b""), ("x.sw/", b"")), r"no files NAME\.en"),
        "control characters in names": (
            make_zip(("\x1b[31m\n", b"")),
            r"it contains \ufffd\[31m\ufffd\. Download",
        ),
        "long name": (make_zip(("x" * 60_000, b"")), "it contains x{100}\\.{4} Download"),
        "many members": (make_zip(*((f"{i}.xx", b"") for i in range(5000))), r"no files NAME\.en"),
        "nothing behind the start": (whole[:30], "not a readable zip archive"),
        "directory cut": (whole[:-30], "not a readable zip archive"),
        "garbage in front": (b"garbage" * 9 + whole, None),
        "garbage behind": (whole + b"garbage", None),
        "compressed member": (make_zip((f"{en[0]}.gz", gzip.compress(en[1])), sw), None),
    }


# --- TMX ---

_SUBSET = b"%b<!DOCTYPE tmx [%b]>\n"
_LAUGHS = b'<!ENTITY a "ha">' + b"".join(
    b'<!ENTITY %c "%b">' % (c, b"&%c;" % (c - 1) * 10) for c in range(ord("b"), ord("k"))
)
_NO_ENCODINGS = ["zlib", "bz2", "hex", "rot13", "base64", "undefined", "idna", "punycode", "utf-7"]
_NO_ENCODINGS += ["unicode_escape", "raw_unicode_escape", "utf-32", "cp037", "x" * 80]
TMXS = {
    "valid": (TMX, None),
    "empty": (b"", "empty file"),
    "text": (PLAIN, r"x\.tmx:1: not well-formed"),
    "billion laughs": (
        tmx(unit(b"&j;"), head=_SUBSET % (TMX_HEAD, _LAUGHS)),
        "internal DTD, refused",
    ),
    "external entity": (
        tmx(unit(b"&e;"), head=_SUBSET % (TMX_HEAD, b'<!ENTITY e SYSTEM "file:///etc/passwd">')),
        "internal DTD, refused",
    ),
    "parameter entity": (
        tmx(unit(), head=_SUBSET % (TMX_HEAD, b'<!ENTITY % e SYSTEM "http://localhost:9/"> %e;')),
        "internal DTD, refused",
    ),
    "empty internal DTD": (tmx(unit(), head=_SUBSET % (TMX_HEAD, b"")), "internal DTD, refused"),
    "external DTD": (
        tmx(unit(b"&unknown;"), head=TMX_HEAD + b'<!DOCTYPE tmx SYSTEM "http://localhost:9/">'),
        None,
    ),
    "unknown entity": (tmx(unit(b"&unknown;")), "undefined entity"),
    "surrogate by number": (tmx(unit(b"&#xD800;")), "invalid character number"),
    "NUL by number": (tmx(unit(b"&#0;")), "invalid character number"),
    "unseen characters by number": (
        tmx(unit(b"&#x85;&#xfeff;a&#x2028;&#x7f;&#x9b;b"), unit(b"&#xfeff;")),
        None,
    ),
    "UTF-16": (TMX.decode().replace("UTF-8", "UTF-16").encode("utf-16"), None),
    "UTF-16 cut": (TMX.decode().encode("utf-16")[:-31], "not well-formed"),
    "says UTF-16": (TMX.replace(b"UTF-8", b"UTF-16"), "unknown encoding 'UTF-16'"),
    **{
        f"says {encoding}": (
            TMX.replace(b"UTF-8", encoding.encode()),
            f"unknown encoding '{encoding}'",
        )
        for encoding in _NO_ENCODINGS
    },
    "escapes as text": (tmx(unit(rb"\ud800 \x00")), None),
    "wrong encoding": (TMX.replace(b"UTF-8", b"ASCII"), None),
    "namespace": (
        TMX.replace(b"<tmx ", b'<tmx xmlns="http://www.lisa.org/tmx14" '),
        None,
    ),
    "prefix": (
        tmx(unit()).replace(b"</", b"</t:").replace(b"<t", b"<t:t").replace(b"t:t:", b"t:"),
        "not well-formed|no translation unit",
    ),
    "no tuv": (tmx(b"<tu></tu>", b"<tu/>"), "no translation unit has both en and sw"),
    "one tuv": (tmx(b'<tu><tuv lang="en"><seg>a</seg></tuv></tu>'), "file's languages are en$"),
    "no seg": (tmx(b'<tu><tuv lang="en"/><tuv lang="sw"/></tu>'), "no translation unit has both"),
    "no language": (tmx(b"<tu><tuv><seg>a</seg></tuv></tu>"), "no translation unit has both"),
    "long language": (
        tmx(b'<tu><tuv lang="%b"><seg>a</seg></tuv></tu>' % (b"x" * 500_000)),
        r"file's languages are x{100}\.\.\.$",
    ),
    "seg outside": (tmx(b"<seg>a</seg>", unit()), None),
    "seg in seg": (tmx(unit(b"a<seg>b</seg>c")), None),
    "tu in tu": (tmx(b"<tu>%b</tu>" % unit(), unit()), None),
    "tuv in tuv": (tmx(unit(b'a</seg><tuv lang="sw"><seg>b</seg></tuv><seg>c')), None),
    "control characters": (tmx(unit(b"a\x01\x02\0b", b"c\x7f")), None),
    "invalid bytes": (tmx(unit(b"a\xff\xed\xa0\x80"), unit()), None),
    "long segment": (tmx(unit(b"x" * (3 << 20)), unit()), None),
    "CDATA": (tmx(unit(b"<![CDATA[a <b> & c]]>")), None),
    "deep": (tmx(b"<a>" * 200_000), "more than 1,000 deep"),
    "deep enough": (tmx(b"<a>" * 900 + b"</a>" * 900, unit()), None),
    "long comment": (tmx(b"<!--%b-->" % (b"x" * (5 << 20)), unit()), "a tag or comment of more"),
    "long attribute": (tmx(b'<a b="%b"/>' % (b"x" * (5 << 20)), unit()), "a tag or comment"),
    "many names": (
        tmx(b"".join(b"<a%d/>" % i for i in range(60_000)), unit()),
        "more than 10,000 element and attribute names",
    ),
    "many attributes": (
        tmx(b"".join(b'<a b%d=""/>' % i for i in range(60_000)), unit()),
        "more than 10,000 element and attribute names",
    ),
    "attribute twice": (tmx(b'<a b="" b=""/>', unit()), "duplicate attribute"),
    "two roots": (TMX + TMX.removeprefix(TMX_HEAD), "junk after document element"),
    "cut": (TMX[:-20], "not well-formed"),
    "declaration late": (b" " + TMX, "not well-formed"),
    "long declaration": (
        b"<?xml " + b" " * (2 << 20) + b'version="1.0"?><tmx/>',
        "a tag or comment of more",
    ),
}

# --- Tables: rows with named columns, read for the column "text" ---

JSONLS = {
    "valid": (b'{"text": "one", "id": 1}\n{"text": "two"}', None),
    "empty": (b"", "none of the first 0 lines is a JSON object"),
    "text": (PLAIN, "none of the first 4 lines is a JSON object"),
    "an array": (b'[{"text": "one"},\n{"text": "two"}]\n', "none of the first 2 lines is a JSON"),
    "indented": (b'{\n "text": "one"\n}\n', "none of the first 3 lines is a JSON object"),
    "another key": (b'{"id": 1, "a": {"b": 2}}\n', r"no column 'text'; its columns are id, a\.b\."),
    "key in some rows": (b'{"id": 1}\n{"text": "one"}\n', None),
    "key of an object": (b'{"text": {"a": "b"}}\n', "no text in column 'text' .*'not text': 1"),
    "numbers and nothing": (b'{"text": 5}\n{"text": null}\n{"text": ""}\n', "no text in column"),
    "lone surrogate": (rb'{"text": "\ud800"}', "no text in column 'text' .*'invalid UTF-8': 1"),
    "NUL by escape": (rb'{"text": "a\u0000b\u2028\u0085c\r\n\nd"}', None),
    "only NUL": (rb'{"text": "\u0000\ufeff\n"}', "no text in column 'text' .*'empty text': 1"),
    "deep": (b'{"text": ' + b"[" * 100_000 + b"\n", "none of the first 1 lines is a JSON object"),
    "huge number": (b'{"text": %b}\n{"text": "a"}' % (b"9" * 9999), None),
    "no number": (b'{"id": NaN, "text": "a"}\n', None),
    "key twice": (b'{"text": 1, "text": "a"}\n', None),
    "long key": (b'{"%b": 1}\n' % (b"x" * 500_000), r"its columns are x{100}\.\.\."),
    "many keys": (
        b"".join(b'{"k%d": 1}\n' % i for i in range(3000)),
        r"columns are k0, .* and \d+ more\. Name one of them with --text_column",
    ),
    "invalid UTF-8": (b'{"text": "a\xff"}\n{"text": "b"}\n', None),
    "UTF-16": ('{"text": "a"}\n'.encode("utf-16"), "UTF-16 text.*iconv"),
    "byte order mark": (b'\xef\xbb\xbf{"text": "a"}\r\n', None),
}
CSVS = {
    "valid": (b'id,text\r\n1,one\r\n2,"two, ""2""\r\n\r\nlines"\r\n', None),
    "empty": (b"", "empty; the first line must name the columns"),
    "only names": (b"id,text\n", "no text in column 'text' .skipped: nothing"),
    "another column": (b"id,sentence\n1,a\n", "no column 'text'; its columns are id, sentence"),
    "semicolons": (b"id;text\n1;a\n", "semicolons separate the fields, as in 'id;text'; save"),
    "tabs": (b"id\ttext\n1\ta\n", "tabs separate the fields"),
    "column twice": (b"text,text\na,b\n", "2 columns are called 'text'"),
    "quote without end": (b'text\na\n"b\nc\n', "line 3: a quoted field does not end"),
    "cut": (b'text\na\n"b ""', "line 3: a quoted field does not end"),
    "text behind a quote": (b'text\n"a"b\nc\n', None),
    "quote inside": (b'text\na "b" c\n', None),
    "fields of another number": (b"id,text\n1\n1,a,b\n", "more fields than columns"),
    "blank lines": (b"text\n\n\na\n", None),
    "NUL": (b'text\n"\0a\0"\n', None),
    "lone CR": (b"text\na\rb\r\r\n", None),
    "line separators": ('text\n"a\u2028\x85\x1c\x0bb"\n'.encode(), None),
    "invalid UTF-8 before a quote": (b'text\n"a\xff\n"\nb\n', None),
    "Latin-1 name": (b"caf\xe9\na\n", "its columns are caf\ufffd"),
    "byte order mark": (b"\xef\xbb\xbftext\na\n", None),
    "UTF-16": ("text\na\n".encode("utf-16"), "UTF-16 text.*iconv"),
    "many columns": (b"text" + b",x" * 50_000 + b"\na\n", None),
    "long name": (b"x" * 500_000 + b"\na\n", r"its columns are x{100}\.\.\."),
}


def to_parquet(table):
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(table, file, row_group_size=2)
    return file.getvalue()


def to_arrow(table, kind="stream"):
    import pyarrow as pa

    file = io.BytesIO()
    with getattr(pa.ipc, f"new_{kind}")(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return file.getvalue()


@functools.cache
def columnar():
    """Returns {name: (suffix, content, expected error text)} of Parquet and Arrow files."""
    import pyarrow as pa

    rows = {"id": [1, 2, 3, 4], "text": ["One.\n\nTwo.", None, "", "語 \0 \u2028x"]}
    table = pa.table(rows)
    bytes_ = pa.array([b"a\xff", b"b"])
    invalid = pa.StringArray.from_buffers(2, *bytes_.buffers()[1:])
    tables = {
        "valid": (table, None),
        "no rows": (table.slice(0, 0), "no text in column 'text' .skipped: nothing"),
        "another column": (pa.table({"id": [1]}), "no column 'text'; its columns are id"),
        "numbers": (pa.table({"text": [1, 2]}), "no text in column 'text' .*'not text': 2"),
        "lists": (pa.table({"text": [["a"], []]}), "no text in column 'text' .*'not text': 2"),
        "nulls": (pa.table({"text": [None]}), "no text in column 'text' .*'empty text': 1"),
        "a struct": (pa.table({"text": [{"a": "b"}]}), "'not text': 1|its columns are text.a"),
        "bytes": (pa.table({"text": bytes_}), None),
        "invalid UTF-8": (pa.table({"text": invalid}), None),
        "large text": (pa.table({"text": pa.array(["a"], pa.large_string())}), None),
        "categories": (pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()}), None),
    }
    twice = pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"])
    files = {}
    for suffix, write in {"parquet": to_parquet, "arrow": to_arrow}.items():
        found = {name: (write(content), error) for name, (content, error) in tables.items()}
        whole = found["valid"][0]
        found |= {
            "column twice": (write(twice), "2 columns are called 'text'"),
            "empty": (b"", "not a readable"),
            "as text": (PLAIN, "not a readable"),
            "cut": (whole[:-9], "truncated or damaged"),
            "first half": (whole[: len(whole) // 2], "truncated or damaged"),
            "compressed": (gzip.compress(whole), "not a readable"),
            "of the other format": (
                (to_arrow if suffix == "parquet" else to_parquet)(table),
                "not a readable",
            ),
        }
        files |= {f"{suffix}: {name}": (suffix, *one) for name, one in found.items()}
    files["arrow: file format"] = ("arrow", to_arrow(table, "file"), None)
    files["arrow: end missing"] = ("arrow", to_arrow(table)[:-8], "stream has no end")
    return files


# --- Gin files, to be read after those of a model and of tests/tiny.gin ---

GINS = {
    "empty": (b"", None),
    "valid": (b"SEED = 7\nEncoder.dropout = 0.1\n", None),
    "UTF-8 byte order mark": (b"\xef\xbb\xbfSEED = 7\n", None),
    "CRLF": (b"SEED = 7\r\nTRAIN_STEPS = 30\r\n", None),
    "block": (b"Encoder:\n  dropout = 0.1\n", None),
    "block without content": (b"Encoder:\n", "Expected indentation"),
    "block, badly indented": (b"Encoder:\n    dropout = 0.1\n  max_length = 3\n", "unindent"),
    "binary": (bytes(range(128, 256)), "not UTF-8 text"),
    "NUL": (b"SEED = 7\0\0\n", "x.gin"),
    "NUL alone": (bytes(100), "x.gin"),
    "UTF-16": ("SEED = 7\n".encode("utf-16"), "UTF-16 text.*iconv"),
    "Latin-1": (b"# caf\xe9\nSEED = 7\n", "not UTF-8 text"),
    "surrogate": (b"DATA_DIR = '\xed\xa0\x80'\n", "not UTF-8 text"),
    "zip": (b"PK\x03\x04\x14\0\0\0", "x.gin"),
    "too large": (b"# x\n" * 100_000, "more than 262,144 bytes"),
    "long line": (b"DATA_DIR = '" + b"x" * 200_000 + b"'\n", None),
    "long name": (b"x" * 200_000 + b" = 1\n", None),
    "long wrong name": (b"Encoder." + b"x" * 200_000 + b" = 1\n", "doesn't have a parameter"),
    "long wrong value": (b"TRAIN_STEPS = '" + b"x" * 200_000 + b"'\n", "Loop.train_steps = 'xx"),
    "many strings": (b"DATA_DIR = (" + b"'' " * 50_000 + b")\n", "too many adjacent strings"),
    "many brackets": (b"SEED = " + b"(" * 50_000, r"nested too deep|not closed|too many nested"),
    "deep brackets": (
        b"SEED = " + b"[" * 5000 + b"]" * 5000 + b"\n",
        "nested too deep|too many nested",
    ),
    "closed brackets": (b"SEED = " + b"[" * 90 + b"]" * 90 + b"\n", "Loop.seed = "),
    "open string": (b"DATA_DIR = '''x\n", "not closed|unterminated"),
    "huge integer": (b"SEED = " + b"9" * 10_000 + b"\n", "Failed to parse token"),
    "large integer": (b"SEED = " + b"9" * 30 + b"\n", "Loop.seed = 9.*fit 64 bits"),
    "hexadecimal": (b"SEED = 0x" + b"f" * 10_000 + b"\n", r"Loop.seed = \(too large to show\)"),
    "negative": (b"SEED = -" + b"9" * 30 + b"\n", "fit 64 bits"),
    "integer for a float": (b"Encoder.dropout = " + b"9" * 400 + b"\n", "expected float|fit 64"),
    "infinite": (b"Optimizer.learning_rate = 1e400\n", "Optimizer.learning_rate = inf.*finite"),
    "minus infinity": (b"Optimizer.eps = -1e400\n", "Optimizer.eps = -inf.*finite"),
    "infinite in a list": (b"Masking.split = (1e400, 0, 0)\n", r"Masking.split\[0\] = inf"),
    "nan": (b"Optimizer.eps = nan\n", "Failed to parse token 'nan'"),
    "complex": (b"SEED = 1j\n", "Loop.seed = 1j: expected int"),
    "bytes": (b"DATA_DIR = b'x'\n", "expected str"),
    "NUL in a string": (b"DATA_DIR = 'a\\0b'\n", "without NUL"),
    "surrogate by escape": (b"DATA_DIR = '\\ud800'\n", "Unicode without NUL"),
    "f-string": (b"DATA_DIR = f'{1}'\n", "x.gin"),
    "expression": (b"SEED = __import__('os').getpid()\n", "x.gin"),
    "list as a key": (b"SEED = {[1]: 2}\n", "unhashable"),
    "reference as a key": (b"SEED = {%DATA_DIR: 2}\n", "a key cannot be a reference"),
    "Unicode name": ("Sürüm = 1\n".encode(), None),
    "Unicode digits": ("SEED = ٣\n".encode(), "x.gin|Loop.seed"),
    "look-alike": ("ЅEED = 7\n".encode(), "Malformatted"),  # a Cyrillic letter
    "ligature": ("ﬁeld = 1\n".encode(), "Malformatted"),
    "right to left": ("SEED\u202e = 7\n".encode(), "x.gin"),
    "no-break space": ("SEED\u00a0= 7\n".encode(), "x.gin"),
    "semicolon": (b"SEED = 7; TRAIN_STEPS = 30\n", "Expected newline"),
    "circle of macros": (b"SEED = %A\nA = %B\nB = %C\nC = %A\n", "goes round in a circle"),
    "macro of itself": (b"SEED = %SEED\n", "%SEED -> %SEED: goes round in a circle"),
    "circle in a list": (b"A = (1, [%A])\n", "goes round in a circle"),
    "macros that double": (
        b"SEED = %A0\n"
        + b"".join(b"A%d = (%%A%d, %%A%d)\n" % (i, i + 1, i + 1) for i in range(60))
        + b"A60 = 1\n",
        "expands to more than 100,000 values",
    ),
    "long chain of macros": (
        b"SEED = %A0\n" + b"".join(b"A%d = %%A%d\n" % (i, i + 1) for i in range(3000)) + b"A3000=1",
        "nested too deep",
    ),
    "configurable of itself": (b"Train.objective = @Train()\n", "Train refers to itself"),
    "configurables that double": (
        b"Train.evaluators = %A0\n"
        + b"".join(b"A%d = (@Mesh(), %%A%d, %%A%d)\n" % (i, i + 1, i + 1) for i in range(60))
        + b"A60 = 1\n",
        "expands to more than 100,000 values",
    ),
    "unknown reference": (b"SEED = @os.system()\n", "No configurable matching"),
    "gin's functions": (b"SEED = @gin.singleton()\n", "a function of gin"),
    "gin's constants": (b"SEED = %gin.REQUIRED\n", "a function of gin"),
    "gin's parameters": (b"gin.singleton.constructor = 3\n", "functions of gin cannot"),
    "gin's other parameters": (b"gin.singleton.x = 3\n", "doesn't have a parameter named 'x'"),
    "dynamic registration": (
        b"from __gin__ import dynamic_registration\nimport os\nSEED = @os.getpid()\n",
        "dynamic registration is not supported",
    ),
    "absent module": (b"import no_such_module_of_mine\n", "No module named"),
    "include of itself": (b"include 'x.gin'\n", "x.gin: includes itself"),
    "include of a device": (b"include '/dev/zero'\n", "Unable to open file: /dev/zero"),
    "include of a pipe": (b"include 'pipe.gin'\n", "Unable to open file: pipe.gin"),
    "include of a folder": (b"include '/'\n", "Unable to open file: /"),
    "include of a package": (b"include 'tests/x.gin'\n", "Unable to open file: tests/x.gin"),
    "include of NUL": (b"include 'a\\0b'\n", "Unable to open file"),
    "include of a long name": (b"include '" + b"x" * 5000 + b"'\n", "Unable to open file"),
    "include of nothing": (b"include\n", "Expected file path"),
    "include that doubles": (b"include 'double0.gin'\n", "more than 262,144 bytes"),
    "include of bad syntax": (b"include 'bad.gin'\n", "bad.gin: a bracket or quote|bad.gin"),
}


def included_files(folder):
    """Writes the files that the gin files above include."""
    os.mkfifo(folder / "pipe.gin")
    (folder / "bad.gin").write_text("SEED = 7\nSEED = (1,\n")
    for i in range(40):
        line = f"include 'double{i + 1}.gin'\n"
        (folder / f"double{i}.gin").write_text(line * 2 + "#" * 4000)
    (folder / "double40.gin").write_text("SEED = 1\n")
