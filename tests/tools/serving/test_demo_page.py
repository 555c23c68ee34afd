"""The demo's page in Chromium."""

import contextlib
import shutil
import threading

import pytest
from helpers import hf_folders
from werkzeug.serving import make_server

from xlme_jax.runs import models
from xlme_jax.tools.serving.app import create
from xlme_jax.training.mesh import MeshConfig

pytestmark = pytest.mark.slow
TEXT = "<b onclick=x>\u202eab cd"
TIMEOUT = 120_000  # Milliseconds; the first answers are compiled.


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra test")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


@contextlib.contextmanager
def opened(browser, app, **options):
    """Yields a page of an app on a free port; fails on errors of its script, or of its policy."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    page = browser.new_page(**options)
    page.set_default_timeout(TIMEOUT)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.wait_for_selector("#align .result > *, #align .error:not([hidden])")
        yield page
    finally:
        page.close()
        server.shutdown()
        thread.join()
        server.server_close()
    assert not [text for text in said if "status of 4" not in text]
    assert all(url.startswith(f"http://127.0.0.1:{server.port}/") for url in asked)


def answered(page, panel):
    """Waits for the answer of a panel to what was typed."""
    page.wait_for_selector(f"#{panel}:not([aria-busy]) .result:not(.stale)", state="attached")


def test_what_is_typed_is_answered(browser, app):
    client = app.test_client()
    with opened(browser, app) as page:
        assert page.text_content("#about").startswith("XLME, 1 layers, ")
        box = page.get_by_label("Sentence", exact=True).first
        box.fill(TEXT)
        box.press("Enter")
        answered(page, "detect")
        found = client.post("/api/detect", json={"text": TEXT}).json["words"]
        words = page.locator("#detect .word")
        assert words.locator("bdi").all_text_contents() == [word["text"] for word in found]
        odd = [word["text"] for word in found if word["probability"] >= 0.5]
        assert page.locator("#detect .word.odd bdi").all_text_contents() == odd
        shares = [
            word.evaluate("e => getComputedStyle(e).getPropertyValue('--share')")
            for word in words.all()
        ]
        assert list(map(float, shares)) == [word["probability"] for word in found]

        page.evaluate("Math.random = () => 0")
        page.get_by_role("button", name="Replace a word for me").click()
        page.wait_for_selector("#swap:not([disabled])")
        assert "in place of" in page.text_content("#detect .result")

        page.get_by_label("Sentence with <mask>").fill("abc <mask> de")
        answered(page, "fill")
        first = page.locator("#fill .masks button").first
        text = first.locator("bdi").text_content().removeprefix("…")
        first.press("Enter")
        assert page.input_value("#fill-text") == f"abc {text} de"

        page.fill("#queries", "abc\nde fg")
        page.fill("#candidates", "hi\nde fg\nabc")
        page.get_by_role("button", name="Find translations").press("Enter")
        answered(page, "retrieve")
        page.get_by_role("button", name="Align de fg with de fg").click()
        answered(page, "align")
        assert [page.input_value("#source"), page.input_value("#target")] == ["de fg", "de fg"]
        assert page.locator("table.heat tbody td").count() == 4


def test_errors_and_absent_parts_are_shown(browser, app, examples, tmp_path):
    with opened(browser, app) as page:
        page.fill("#queries", "a\n" * 101)
        page.wait_for_selector("#retrieve .error:not([hidden])")
        assert "101 lines; the most is 100" in page.get_by_role("alert").first.text_content()
        page.fill("#queries", "a")
        answered(page, "retrieve")
        assert not page.locator("#retrieve .error").is_visible()
    folder = hf_folders.write_checkpoint(tmp_path / "run", "xlm")
    model = models.load(str(folder), None, MeshConfig())
    with opened(browser, create(model, examples)) as page:
        assert "Not available: detect needs a discriminator" in page.text_content("#detect")
        assert not page.locator("#detect form").is_visible()
        assert page.locator("#fill .masks button").count() == 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_has_labels(browser, app, scheme):
    with opened(browser, app, viewport={"width": 390, "height": 800}, color_scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        fields = page.locator("textarea, select")
        assert fields.count() == 8
        for field in fields.all():
            assert field.evaluate("e => e.labels.length && e.labels[0].textContent.trim().length")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "detect-text"
