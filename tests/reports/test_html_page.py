"""The frame of pages."""

from xlme_jax.reports import html_page


def test_titles_and_cells_are_escaped():
    page = html_page.page("<a>", html_page.table(["<b>"], [["<c>", '"&']]), "p { color: red; }")
    assert "<title>&lt;a&gt;</title>" in page and "p { color: red; }</style>" in page
    assert "<th>&lt;b&gt;</th>" in page and "<td>&lt;c&gt;</td><td>&quot;&amp;</td>" in page
    assert not {"<a>", "<b>", "<c>"} & set(page.split())


def test_pages_are_dark_or_light_and_fit_a_phone():
    page = html_page.page("", "")
    assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page


def test_details_without_content_are_empty():
    assert html_page.details("x", "") == ""
    assert html_page.details("<x>", "<p>y</p>") == (
        "<details><summary>&lt;x&gt;</summary>\n<p>y</p>\n</details>"
    )
