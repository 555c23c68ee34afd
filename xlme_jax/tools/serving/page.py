"""The demo page: one HTML file that loads no other, and the policy that browsers enforce on it."""

import functools
from importlib import resources
from typing import NamedTuple

from xlme_jax.studies.reports import html_page


class Page(NamedTuple):
    """A page.

    Attributes:
      html: the page.
      policy: its Content-Security-Policy, which allows the script of the page alone, and requests
        to the server of the page alone.
    """

    html: str
    policy: str


@functools.cache
def page() -> Page:
    """Returns the page, assembled from the files of this folder."""
    body, style, script = (_read(f"page.{kind}") for kind in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; script-src 'sha256-{html_page.digest(script)}'; "
        "style-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    html = html_page.page("xlme_jax demo", body, style, [script], served=True)
    return Page(html, policy)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
