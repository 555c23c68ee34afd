"""The page of a translator's run."""

import json

from xlme_jax.objectives.base import Diagnostics
from xlme_jax.studies.reports import run_page
from xlme_jax.studies.reports.curves import plots

PLAIN = Diagnostics(lambda shapes: {})
SAMPLE = {"source": "<b>&", "reference": "العربية واليونانية", "translation": "العربية <script>"}


def write_run(folder, directions):
    values = {"loss": 1.0}
    for number, name in enumerate([*directions, "mean"]):
        values[f"translation/bleu/{name}"] = 40.0 + number
        values[f"translation/dictionary_bleu/{name}"] = 20.0
        values[f"translation/exact_match/{name}"] = 0.5
        values[f"translation/dictionary_exact_match/{name}"] = 0.25
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, **values}) + "\n")


def page(folder, monkeypatch):
    monkeypatch.setattr(run_page, "draw", lambda *args, title: b"a picture")
    return run_page.write_report(folder, PLAIN).read_text()


def test_samples_are_escaped_and_have_their_own_direction(tmp_path, monkeypatch):
    write_run(tmp_path, ["en-ar"])
    assert "Held-out translations" not in page(tmp_path, monkeypatch)
    content = {"step": 1500, "directions": {"en-ar": [SAMPLE, SAMPLE], "ar-en": [SAMPLE]}}
    (tmp_path / "translations.json").write_text(json.dumps(content, ensure_ascii=False))
    found = page(tmp_path, monkeypatch)
    assert "Held-out translations at step 1,500" in found
    assert found.index("<h3>en-ar</h3>") < found.index("<h3>ar-en</h3>")
    row = "<td>&lt;b&gt;&amp;</td><td>العربية واليونانية</td><td>العربية &lt;script&gt;</td>"
    assert found.count(row) == 3 and "العربية <script>" not in found
    assert found.count('<table class="texts">') == 2
    content["tokenizers"] = {"en-ar": "13a"}
    (tmp_path / "translations.json").write_text(json.dumps(content, ensure_ascii=False))
    how = "BLEU with sacreBLEU&#x27;s tokenizer 13a"
    assert f"<h3>en-ar ({how})</h3>" in page(tmp_path, monkeypatch)
    assert "table.texts td { text-align: start; }" in found


def test_scores_stand_beside_the_dictionarys(tmp_path, monkeypatch):
    write_run(tmp_path, ["en-ru", "ru-en"])
    found = page(tmp_path, monkeypatch)
    for direction, bleu in (("mean", 42), ("en-ru", 40), ("ru-en", 41)):
        assert (
            f"<td>held-out translation, BLEU: {direction}</td><td>{bleu}</td>"
            f"<td>a word-by-word dictionary: 20</td><td>{bleu / 20:.2f}×</td>"
        ) in found
    # As a figure, and as the name in words of a metric in the table of all.
    assert found.count("held-out translation, exact match: ") == 2 * 3
    assert found.index("BLEU: mean") < found.index("BLEU: en-ru")


def test_directions_are_drawn_if_they_are_few():
    def lines(*directions):
        names = [f"translation/bleu/{name}" for name in (*directions, "mean")]
        curves = {n: [(1, 2.0)] for n in (*names, "translation/dictionary_bleu/mean")}
        (plot,) = [one for one in plots(curves, PLAIN) if one.title == "Held-out translation"]
        return [(line.metric, line.style) for line in plot.lines]

    mean = [("translation/bleu/mean", "-"), ("translation/dictionary_bleu/mean", "--")]
    assert lines("en-ru") == mean
    both = [("translation/bleu/en-ru", "-"), ("translation/bleu/ru-en", "-")]
    assert lines("ru-en", "en-ru") == [mean[0], *both, mean[1]]
    assert lines(*(f"a-{n}" for n in range(7))) == mean
