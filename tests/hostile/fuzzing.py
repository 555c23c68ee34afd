"""Budgets of fuzz tests, damage to valid files, and checks of the outcome.

Every property has a default budget and a large one, marked slow. The cases depend only on the
property, so each run tests the same ones.
"""

import contextlib
import re
import tracemalloc

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from xlme_jax.configuration.values import ConfigError
from xlme_jax.data.text.reading import DataError
from xlme_jax.data.vocabulary import VocabularyError

# Property: cases by default, cases in the slow suite.
BUDGETS = {
    "plain documents": (30, 900),
    "compressed documents": (30, 1200),
    "document folders": (15, 400),
    "moses": (30, 900),
    "tsv": (25, 800),
    "zip": (30, 1200),
    "zip members": (20, 600),
    "tmx": (40, 1500),
    "multiway": (20, 600),
    "bitext folders": (15, 400),
    "tables": (50, 2000),
    "table rows": (20, 800),
    "table folders": (15, 400),
    "vocabulary": (15, 400),
    "gin files": (25, 900),
    "gin bindings": (25, 900),
    "flags": (20, 600),
    "descriptions": (40, 400),
    "resealed": (40, 500),
    "rows": (30, 300),
    "shards": (25, 300),
    "lengths": (60, 300),
    "positions": (50, 500),
    "sealed": (40, 400),
    "unsealed": (10, 400),
    "metrics": (30, 400),
}
DEFAULT_CASES = sum(default for default, _ in BUDGETS.values())
SLOW_CASES = sum(slow for _, slow in BUDGETS.values())

# No test waits for time; one that takes this long hangs.
HANG_SECONDS = 600
_OURS = (DataError, VocabularyError, ConfigError)


def budgets(name):
    """Runs a test with both budgets of a property, passed as `cases`."""
    default, slow = BUDGETS[name]
    return pytest.mark.parametrize(
        "cases",
        [pytest.param(default, id="few"), pytest.param(slow, id="many", marks=pytest.mark.slow)],
    )


def check(cases, strategy, property_):
    """Calls `property_` with this number of different cases."""
    passed = set()

    @settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(strategy)
    def run(case):
        key = repr(case)
        assume(key not in passed)  # Hypothesis repeats a tenth, which are not to count
        property_(case)
        passed.add(key)

    run()
    assert len(passed) >= cases


# --- Cases ---

# What tends to upset readers of text, whatever the format.
TOKENS = [
    *(b"\0", b"\n", b"\r", b"\r\n", b"\n\n", b"\t", b" ", b"\x1a", b"\x7f", b"\xff", b"\xc3"),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xc0\x80"),
    *(b"\xf4\x90\x80\x80", b"\xe2\x80\xa8", b"\xc2\x85", b"\xe2\x80\x8b", b"\xe2\x80\xae"),
    *(b"<", b">", b"&", b"&#0;", b"&#x85;", b"&#xfeff;", b"]]>", b"<!--", b"<![CDATA[", b"<tu>"),
    *(b"PK\x03\x04", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"),
    *(b"=", b"%", b"@", b"(", b")", b"[", b"]", b"{", b"}", b"'", b'"', b"'''", b"\\", b"#"),
    *(b":", b",", b".", b"/", b"-", b"1e999", b"9" * 30, b"0x", b"None", b"True", b"include '"),
]


def damaged(originals):
    """Returns random bytes, or one of `originals` after random edits."""
    position = st.integers(0, 1 << 16)
    edit = st.one_of(
        st.tuples(st.just("flip"), position, st.integers(1, 255)),
        st.tuples(st.just("delete"), position, st.integers(1, 40)),
        st.tuples(st.just("insert"), position, st.sampled_from(TOKENS) | st.binary(max_size=8)),
        st.tuples(st.just("truncate"), position, st.none()),
        st.tuples(st.just("splice"), position, st.tuples(position, position)),
    )
    edited = st.builds(
        _edited,
        st.sampled_from(originals),
        st.sampled_from(originals),
        st.lists(edit, min_size=1, max_size=6),
    )
    tokens = st.lists(st.sampled_from(TOKENS), max_size=30).map(b"".join)
    return st.one_of(edited, edited, edited, tokens, st.binary(max_size=300))


def _edited(data, other, edits):
    for kind, position, what in edits:
        at = position * len(data) >> 16
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ what]) + data[at + 1 :]
        elif kind == "delete":
            data = data[:at] + data[at + what :]
        elif kind == "insert":
            data = data[:at] + what + data[at:]
        elif kind == "truncate":
            data = data[:at]
        elif kind == "splice":
            start, end = sorted(place * len(other) >> 16 for place in what)
            data = data[:at] + other[start:end] + data[at:]
    return data


# --- What may come of it ---

_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u2028\u2029\ud800-\udfff]")


def outcome(read, *names):
    """Returns (result, "") of `read`, or (None, message) of an error that names one of `names`."""
    try:
        return read(), ""
    except _OURS as error:
        message = str(error)
        assert any(str(name) in message for name in names), message
        assert len(message) < 2000 and "\n" not in message, message
        return None, message


def assert_as_expected(message, error):
    """Checks that the error contains the expected text; None means no error."""
    assert bool(message) == bool(error) and re.search(error or "", message), message


def assert_clean(text, allowed=""):
    """Checks that text can be encoded and has no line breaks."""
    assert text and text == text.strip()
    assert not _UNCLEAN.search(text), repr(text)
    assert "\n" in allowed or "\n" not in text
    text.encode("utf-8")


@contextlib.contextmanager
def memory_below(megabytes):
    """Fails if Python allocates more than this at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * 1e6, f"{peak:,} bytes"
