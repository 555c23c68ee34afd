"""Pages in a browser: zoom, smoothing, sorting, sizes, and text that tries to execute."""

import contextlib
import itertools
import json
import shutil

import pytest
from helpers import made_batches

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.xlme import XLMEConfig
from xlme_jax.studies.reports import run_page, samples

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Glyph")]
playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra test")
pytest.importorskip("bokeh")

ENCODER = EncoderConfig(num_layers=1, hidden_size=4, num_heads=1, ffn_size=4)
XLME = XLMEConfig(ENCODER, ENCODER).build(10).diagnostics
# Sets `hacked` however it is used: as an element, in an attribute, in a script, as a formula.
ATTACK = "</script><script>hacked=1</script><img src=x onerror=hacked=1>\x00\u202e'\"$$x$$"
NAME = ATTACK.replace("/", "").replace("\x00", "")  # Of a folder.


@pytest.fixture(scope="module")
def chromium():
    """Returns a browser."""
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as driver:
        # It runs as root in containers, where its sandbox cannot.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def write_run(folder):
    """Writes a run whose stream, samples, translations and configuration are attacks."""
    folder.mkdir()
    lines = [
        {
            "step": step,
            "loss": 2.0 * (9 - step / 30 + step % 2),
            "learning_rate": 1e-3,
            f"{ATTACK}/mlm_loss": 2.0 * step,
            f"{ATTACK}/rtd_loss": 1.0,
            f"{ATTACK}/rtd_precision": 0.5,
            f"{ATTACK}/rtd_recall": 0.25,
        }
        for step in range(1, 101)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pieces = list(made_batches.PIECES)
    pieces[4] = ATTACK
    found = [samples.to_json(one) for one in samples.sentences(made_batches.stream(pieces))]
    line = {"step": 0, "sentences": found}
    (folder / "samples.jsonl").write_text(json.dumps(line) + "\n")
    texts = dict.fromkeys(("source", "reference", "translation"), ATTACK)
    content = {"step": 1, "directions": {ATTACK: [texts]}}
    (folder / "translations.json").write_text(json.dumps(content))
    (folder / "config.gin").write_text(f"# {ATTACK}{'x' * 1_000_000}\n")
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Returns the page of a run."""
    root = tmp_path_factory.mktemp("pages")
    # By a name of its own, because the folder's would have to be quoted in the address.
    shutil.copy(run_page.write_report(write_run(root / NAME), XLME), root / "report.html")
    return root / "report.html"


@pytest.fixture
def opened(chromium, report):
    """Returns a function that opens the page; checks that it loaded nothing and raised nothing."""
    said, stack = [], contextlib.ExitStack()

    def open_page(**options):
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        stack.callback(context.close)
        page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append("dialog"))
        page.on("request", lambda request: said.append(request.url))
        page.goto(report.as_uri())
        if options.get("java_script_enabled", True):
            page.locator("html[data-curves=ready]").wait_for(state="attached")
        return page

    yield open_page
    stack.close()
    assert {x for x in said if not x.startswith("data:")} <= {report.as_uri()}


def until(page, expression):
    """Waits until it holds; the page's policy forbids what `wait_for_function` evaluates in it."""
    for _ in range(300):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(expression)


MODEL = "Bokeh.documents[0].roots()[0]"


def test_dragging_zooms_and_a_double_click_shows_all(opened):
    page = opened()
    whole = page.evaluate(f"[{MODEL}.x_range.start, {MODEL}.x_range.end]")
    page.locator("#plot-0").scroll_into_view_if_needed()
    box = page.locator("#plot-0").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 180, steps=5)
    page.mouse.up()
    until(page, f"{MODEL}.x_range.end - {MODEL}.x_range.start < 40")
    start, end = page.evaluate(f"[{MODEL}.x_range.start, {MODEL}.x_range.end]")
    assert whole[0] < 30 < start < end < 75 < whole[1]
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 120)
    until(page, f"{MODEL}.x_range.end - {MODEL}.x_range.start > 90")


def test_the_legend_shows_values_under_the_pointer(opened):
    page = opened()
    page.locator("#plot-0").scroll_into_view_if_needed()
    box = page.locator("#plot-0").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 120)
    page.mouse.move(box["x"] + 0.5 * box["width"] + 2, box["y"] + 120)
    figure = page.locator("figure").first
    said = figure.locator("figcaption output")
    playwright.expect(said).to_contain_text("step ")
    step = int(said.text_content().removeprefix("step "))
    assert 30 < step < 70
    value = float(figure.locator(".keys output").first.text_content())
    assert abs(value - 2.0 * (9 - step / 30 + step % 2)) < 0.01
    page.mouse.move(box["x"], box["y"] - 20)
    playwright.expect(said).to_have_text("")


def test_smoothing_moves_the_line_and_not_its_points(opened):
    page = opened()
    source = f"{MODEL}.renderers[0].data_source.data"

    def jumps(column):
        values = page.evaluate(f"Array.from({source}.{column})")[50:]
        return max(abs(b - a) for a, b in itertools.pairwise(values))

    raw = jumps("raw")
    assert raw > 1 and jumps("y") < 0.7 * raw  # Of 100 points, so it is smoothed at first.
    page.locator("#smoothing").fill("0.95")
    assert jumps("y") < 0.1 * raw and jumps("raw") == raw
    assert page.locator("#bar output").text_content() == "0.95"
    page.locator("#smoothing").fill("0")
    assert jumps("y") == raw
    rate = page.evaluate("Bokeh.documents.map(d => d.roots()[0].renderers.map(r => r.tags.length))")
    assert any(sum(tags) == 0 for tags in rate)  # The learning rate is as it is.


def test_legends_hide_lines(opened):
    page = opened()
    key = page.locator("#plot-3 + .keys button").first
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    model = MODEL.replace("[0]", "[3]", 1)
    visible = page.evaluate(f"{model}.renderers.map(r => r.visible)")
    assert visible == [False, False, True, True]


def test_tables_are_sorted_by_numbers_and_by_text(opened):
    page = opened()
    page.locator("details", has_text="Every logged metric").locator("summary").first.click()
    table = page.locator("details table").first

    def column(number):
        return table.locator(f"tbody td:nth-child({number})").all_text_contents()

    def values():
        return [float(x.replace(",", "")) for x in column(4)]

    heading = table.get_by_role("button", name="last", exact=True)
    heading.click()
    assert values() == sorted(values()) and len(set(values())) > 2
    heading.click()
    assert values() == sorted(values(), reverse=True)
    assert table.locator("th[aria-sort=descending]").count() == 1
    table.get_by_role("button", name="metric").click()
    assert column(1)[-2:] == ["learning_rate", "loss"]


def test_attacks_are_text(opened):
    page = opened()
    for plot in page.locator(".plot").all():  # What appears on hovering is of data too.
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        for share in (0.4, 0.6):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + 150)
            page.wait_for_timeout(150)
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0  # Pictures are for readers without scripts.
    shown = page.locator("body").text_content()
    assert "<script>hacked=1<" in shown and "⟨U+202E⟩" in shown
    assert "\u202e" not in page.content() and "\x00" not in page.content()


def test_the_policy_stops_what_is_not_escaped(chromium, report):
    broken = report.with_name("broken.html")
    text = report.read_text(encoding="utf-8")
    broken.write_text(
        text.replace("<h1>", "<script>hacked=1</script><img src=x onerror=hacked=1><h1>", 1)
    )
    page = chromium.new_page()
    page.goto(broken.as_uri())
    page.locator("html[data-curves=ready]").wait_for(state="attached")
    assert page.evaluate("typeof hacked") == "undefined"
    page.close()


def test_pages_fit_a_phone_and_follow_the_theme(opened):
    size = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = opened(color_scheme="dark", **size)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    color = "getComputedStyle(document.body).backgroundColor"
    label = f"{MODEL}.below[0].major_label_text_color"
    dark = page.evaluate(f"[{color}, {label}]")
    assert page.evaluate(f"{MODEL}.toolbar.active_drag") is None
    page.emulate_media(color_scheme="light")
    until(page, f"{label} !== '{dark[1]}'")
    assert dark[0] == "rgb(23, 25, 28)" and page.evaluate(color) == "rgb(255, 255, 255)"


def test_text_from_right_to_left_begins_at_the_right(opened):
    page = opened()
    found = page.locator("span[dir=rtl]").first
    found.scroll_into_view_if_needed()
    first, last = (found.locator("bdi").nth(n).bounding_box() for n in (0, 2))
    assert first["x"] > last["x"]  # <s> is right of </s>.


def test_pages_read_without_scripts(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("noscript img").count() == 1
    assert page.locator("table").count() > 3 and not page.locator("#bar").is_visible()
