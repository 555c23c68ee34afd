"""Batches as pages, read with Python's own HTML parser."""

import html.parser

from helpers import made_batches

from xlme_jax.studies.reports import batch_page

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "span"),
    *("bdi", "mark", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
}
ATTRIBUTES = {"class", "dir", "lang", "charset", "name", "content", "http-equiv"}


class Reader(html.parser.HTMLParser):
    """Collects tags, attributes, and the text in each kind of tag."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = set(), set(), {}, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append((tag, dict(attrs)))
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for tag, _ in self.open:
            self.texts[tag][-1] += data


def test_a_page_shows_tokens_and_verdicts():
    page = batch_page.render(made_batches.batch(metrics={"text/rtd_loss": 0.5, "other/x": 2.0}))
    found = Reader(page)
    assert not found.open
    assert found.texts["h1"] == ["Step 3"]
    assert found.texts["h2"] == ["text (monolingual)"]
    assert found.texts["p"][2:] == [
        " <s>  the cats sat </s> ",
        " <s>  שלום עולם </s> ",
        "2 padding",
    ]
    assert "text/rtd_loss" in found.texts["td"] and "other/x" not in found.texts["td"]
    marks = found.texts["mark"][4:]  # After the legend.
    assert marks == ["cat", "שלום", "עולם"]
    assert '<mark class="found">cat</mark>' in page and '<mark class="alarm">שלום</mark>' in page
    assert '<p dir="ltr"> <bdi class="special">' in page
    assert '<p dir="rtl"> <bdi class="special">' in page
    assert '<bdi> <mark class="alarm">שלום</mark>' in page


def test_marks_of_a_discriminator_are_explained_where_there_is_one():
    reading = made_batches.reading()._replace(detection=None)
    page = batch_page.render(made_batches.batch(made_batches.stream(reading=reading)))
    assert ">masked</mark>" in page and ">false alarm</mark>" not in page


def test_nothing_executes():
    hostile = "<script>alert(1)</script>\x00\u202e\"'><img src=x onerror=alert(1)>&lt;"
    pieces = list(made_batches.PIECES)
    pieces[5], pieces[8], pieces[10] = hostile, f"</bdi>{hostile}", f"{hostile}</table>"
    shown = made_batches.stream(
        pieces, shares={hostile: 1.0}, drawn=[hostile], languages={hostile: ("<b>",)}
    )
    page = batch_page.render(made_batches.batch(shown, metrics={"text/<i>": 1.0}))
    found = Reader(page)
    assert not found.open
    assert found.tags <= TAGS and found.attributes <= ATTRIBUTES
    expected = hostile.replace("\x00", "␀").replace("\u202e", "⟨U+202E⟩")
    assert expected in found.texts["td"]
    assert expected in found.texts["mark"]
    assert not {"\x00", "\u202e"} & set(page)


def test_rows_are_limited():
    assert "<h3>" not in batch_page.render(made_batches.batch(), rows=0)
    assert "<h3>Row 0</h3>" in batch_page.render(made_batches.batch(), rows=None)


def test_a_masked_space_is_seen():
    pieces = [*made_batches.PIECES[:5], "▁", *made_batches.PIECES[6:]]
    assert '<mark class="found">▁</mark>' in batch_page.render(
        made_batches.batch(made_batches.stream(pieces))
    )
