"""The demo's app on hostile requests: refused with a reason, or shown as text."""

import json
import unicodedata

import pytest
from helpers import tiny

from xlme_jax.studies.reports.batch_rows import visible
from xlme_jax.tools.serving import request_fields

LONG = "a" * (request_fields.CHARACTERS + 1)
MARKUP = "<img src=x onerror=alert(1)>"
NASTY = ["\0", "a\0b", "\u202eabc", "a\u2066b\u2069", "\ufeff", "\ue000x", "\x1b[31m", "a\u2028b"]
NASTY += [
    MARKUP,
    "</script>",
    "&amp;",
    "{{7*7}}",
    "🏳️‍🌈 zw\u200dj",
    "\N{COMBINING ACUTE ACCENT}" * 90,
]


# A control, a mark of direction, a line break of Unicode, and markup.
BY_DEFAULT = {"\0", "\u202eabc", "a\u2028b", MARKUP}


def send(client, name, content):
    body = content if isinstance(content, bytes) else json.dumps(content)
    return client.post(f"/api/{name}", data=body, content_type="application/json")


@pytest.mark.parametrize(
    ("name", "content", "status", "error"),
    [
        ("detect", b"", 400, "the request is no JSON"),
        ("detect", b"{", 400, "the request is no JSON"),
        ("detect", b"\xff\xfe", 400, "the request is no JSON"),
        ("detect", b"[" * 100_000, 400, "the request is no JSON"),
        ("detect", b'{"text": ' + b"9" * 5_000 + b"}", 400, "the request is no JSON"),
        ("detect", [], 400, "the request must be an object with 'text'"),
        ("detect", {}, 400, "text must be a text"),
        ("detect", {"text": None}, 400, "text must be a text"),
        ("detect", {"text": " \n"}, 400, "text is empty"),
        ("detect", {"text": "a", "Text": "b"}, 400, "unknown field 'Text'"),
        ("detect", {"text": LONG}, 413, "1,001 characters; the most is 1,000"),
        ("detect", {"text": "a" * request_fields.BYTES}, 413, "larger than 1 MiB"),
        ("detect", {"text": "ab cd " * 20}, 400, "and the model reads 32; shorten"),
        ("detect", b'{"text": "\\ud800"}', 400, r"half of a surrogate pair (U+D800)"),
        ("fill", {"text": "abc"}, 400, "'abc' has no <mask>"),
        ("fill", {"text": "\u202eabc"}, 400, r"'\u202eabc'"),
        ("fill", {"text": "<mask>" * 9}, 413, "the most is 8"),
        ("fill", {"text": "<mask>", "k": 1e9}, 400, "k must be a whole number from 1 to 20"),
        ("fill", {"text": "<mask>", "k": True}, 400, "k must be a whole number"),
        ("retrieve", {"queries": "a", "candidates": ["b"]}, 400, "queries must be a list"),
        ("retrieve", {"queries": [1], "candidates": ["b"]}, 400, "queries must be a list"),
        ("retrieve", {"queries": [], "candidates": ["b"]}, 400, "queries is empty"),
        ("retrieve", {"queries": ["a"], "candidates": ["b", ""]}, 400, "candidates, line 2 is"),
        ("retrieve", {"queries": ["a"], "candidates": [LONG]}, 413, "candidates, line 1 has"),
        ("retrieve", {"queries": ["a"] * 101, "candidates": ["b"]}, 413, "101 lines; the most is"),
        ("retrieve", {"queries": ["a"], "candidates": ["b"], "layer": 9}, 400, "from 0 to 1"),
        ("align", {"source": "a", "target": "b " * 61}, 413, "target has 61 words; the most is 60"),
        ("align", {"source": "a", "target": "b", "layer": -1}, 400, "layer must be a whole"),
        ("translate", {}, 404, "there are detect, fill, retrieve, align"),
    ],
)
def test_requests_are_refused_with_a_reason(client, name, content, status, error):
    answer = send(client, name, content)
    assert answer.is_json and answer.status_code == status, answer.text
    assert error in answer.json["error"]


def texts_of(answer):
    """Yields all texts of an answer."""
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, (list, dict)):
        for one in answer.values() if isinstance(answer, dict) else answer:
            yield from texts_of(one)


@pytest.mark.parametrize("text", tiny.slow_except(BY_DEFAULT, NASTY))
def test_nasty_text_is_shown_as_text(client, text):
    requests = {
        "detect": {"text": text},
        "fill": {"text": f"{text}<mask>"},
        "retrieve": {"queries": [text], "candidates": [text, "abc"]},
        "align": {"source": text, "target": "abc"},
    }
    for name, content in requests.items():
        answer = send(client, name, content)
        if answer.status_code != 200:
            assert answer.status_code == 400 and "reads 32" in answer.json["error"]
            continue
        for found in texts_of(answer.json):
            assert not [c for c in found if unicodedata.category(c) in ("Cc", "Co", "Cs", "Zl")]
            assert not set(found) & set("\u202e\u2066\u2069\ufeff")
    found = send(client, "detect", {"text": text}).json
    if "words" in found:
        shown = "".join(word["before"] + word["text"] for word in found["words"]) + found["after"]
        assert shown.replace(" ", "") == visible(text).replace(" ", "").replace("\u2028", "")


def test_the_page_holds_no_text_of_a_request(client):
    before = client.get("/").data
    assert send(client, "detect", {"text": MARKUP}).status_code == 200
    assert client.get("/").data == before
    missing = client.get(f"/{MARKUP}")
    assert missing.status_code == 404 and missing.is_json
