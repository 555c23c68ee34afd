"""The frame of pages."""

import base64
import hashlib
import re

from xlme_jax.studies.reports import html_page


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


def test_a_browser_may_run_the_scripts_of_the_page_alone():
    page = html_page.page("", "<p>x</p>", scripts=["let a = '<b>';\r\n", html_page.SORTING])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data:;")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert scripts[0] == "let a = '<b>';\n"
    digests = [base64.b64encode(hashlib.sha256(x.encode()).digest()).decode() for x in scripts]
    assert allowed == digests and len(digests) == 2
    assert "script-src 'none'" in html_page.page("", "")


def test_control_characters_and_long_lines_are_shown():
    table = html_page.table(
        ["a\x00"], [["\u202eb"], ["x" * 1_000_000], [html_page.Html("<i>c</i>")]]
    )
    assert "<th>a␀</th>" in table and "<td>⟨U+202E⟩b</td>" in table and "<td><i>c</i></td>" in table
    assert "x… (1,000,000 characters)" in table and len(table) < 3_000


def test_rows_may_be_ours():
    table = html_page.table(["a"], [["1"], ["2"]], ours=[False, True])
    assert '<tr><td>1</td></tr>\n<tr class="ours"><td>2</td></tr>' in table
