"""Test sets: WMT's SGM files, and the text files that sacreBLEU makes of them."""

import gzip
import html

import pytest

from xlme_jax.data.text.bitext_files import discover_bitext
from xlme_jax.data.text.decompression import DataError
from xlme_jax.data.text.held_out import Corpora, HeldOutText
from xlme_jax.data.text.lines import read_lines
from xlme_jax.data.text.pair_kinds import read_bitext
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.data.text.sgm import segments
from xlme_jax.preparation import file_sources

TEXTS = {
    "de": [["Guten Tag & <Willkommen>", 'Er sagte "ja"'], ["Das ist\u00a0gut.", "Ende"]],
    "en": [["Good day & <welcome>", 'He said "yes"'], ["This is good.", "End"]],
}
FLAT = {code: [" ".join(x.split()) for doc in docs for x in doc] for code, docs in TEXTS.items()}


def sgm(language, tag="srcset", order=(0, 1)):
    """Returns a file as WMT writes it."""
    lines = [f'<{tag} setid="newstest2014" srclang="any">']
    for number in order:
        lines.append(f'<doc sysid="ref" docid="paper {number}" genre="news" origlang="de">\n<p>')
        for n, text in enumerate(TEXTS[language][number], 1):
            lines.append(f'<seg id="{n}">{html.escape(text)}</seg>')
        lines.append("</p>\n</doc>")
    return "\n".join([*lines, f"</{tag}>", ""])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "newstest2014-deen-src.de.sgm").write_text(sgm("de"))
    # In another order, and compressed.
    reference = sgm("en", "refset", (1, 0)).encode()
    (tmp_path / "newstest2014-deen-ref.en.sgm.gz").write_bytes(gzip.compress(reference))
    return tmp_path


def test_segments_are_decoded_and_paired_by_their_ids(folder):
    (source,) = discover_bitext(folder)
    assert (source.kind, source.pair) == ("sgm", "de-en")
    assert list(read_bitext(source)) == list(zip(FLAT["de"], FLAT["en"]))
    assert read_lines(str(folder / "newstest2014-deen-src.de.sgm")) == FLAT["de"]


def test_sides_are_in_the_order_of_the_languages_whichever_is_the_source(tmp_path):
    (tmp_path / "newstest2013-src.en.sgm").write_text(sgm("en"))
    (tmp_path / "newstest2013-ref.de.sgm").write_text(sgm("de"))
    (source,) = discover_bitext(tmp_path)
    assert list(read_bitext(source)) == list(zip(FLAT["de"], FLAT["en"]))


@pytest.mark.parametrize("direction", ["de-en", "en-de"])
def test_text_files_of_sacrebleu_are_read(tmp_path, direction):
    source, target = direction.split("-")
    for suffix, language in (("src", source), ("ref", target)):
        content = "\n".join([*FLAT[language], ""])
        (tmp_path / f"wmt14.{direction}.{suffix}").write_text(content)
    (tmp_path / f"wmt14.{direction}.origlang").write_text("de\n" * 4)
    (found,) = discover_bitext(tmp_path)
    assert (found.kind, found.pair) == ("moses", "de-en")
    assert list(read_bitext(found)) == list(zip(FLAT["de"], FLAT["en"]))
    (tmp_path / f"wmt14.{direction}.ref").unlink()
    with pytest.raises(DataError, match=rf"wmt14.{direction}.ref: missing; add it, or remove its"):
        discover_bitext(tmp_path)


def test_what_sacrebleu_makes_of_a_test_set_is_read(tmp_path, monkeypatch):
    """SacreBLEU itself writes the text files from SGM files, which are those of the fixture."""
    sacrebleu = pytest.importorskip("sacrebleu")
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    pairs = {"en-de": ["a-src.en.sgm", "a-ref.de.sgm"]}
    data = FakeSGMLDataset("tiny", data=[], description="", md5=[], langpairs=pairs)
    data._outdir, data._rawdir = str(tmp_path / "tiny"), str(tmp_path / "raw")
    for name in ("tiny", "raw"):
        (tmp_path / name).mkdir()
    (tmp_path / "raw" / "a-src.en.sgm").write_text(sgm("en"))
    (tmp_path / "raw" / "a-ref.de.sgm").write_text(sgm("de"))
    data.process_to_text("en-de")
    (found,) = discover_bitext(tmp_path / "tiny")
    assert sacrebleu.__version__ and found.pair == "de-en"
    (ours,) = discover_bitext(tmp_path / "raw")
    # Entities are decoded in ours alone.
    assert [tuple(map(html.unescape, pair)) for pair in read_bitext(found)] == list(
        read_bitext(ours)
    )


def test_held_out_units_of_sgm_are_kept_from_training(folder):
    sources = tuple(discover_bitext(folder))
    held = HeldOutText("every:2", corpora=Corpora(sources=sources))
    (task,) = file_sources.pair_tasks("bitext", sources, False, held)
    texts = {
        split: [pair for shard in shards for pair in shard.read(ReadReport())]
        for split, shards in task.splits.items()
    }
    everything = list(zip(FLAT["de"], FLAT["en"]))
    assert sorted(texts["train"] + texts["validation"]) == sorted(everything)
    assert len(texts["validation"]) == 2


DAMAGED = [
    (lambda text: text.replace(' id="2"', "", 1), r"line 5 has a segment without an id; write"),
    (lambda text: text.replace('id="2"', 'id="1"', 1), "line 5 repeats segment 1 of document"),
    (lambda text: text.replace("</seg>", "", 1), "4 segments begin and 0 end with </seg>"),
    (lambda text: text[: text.rindex("</seg>")], "4 segments begin and 3 end with </seg>"),
    (lambda text: "no tags", "no <seg> with text"),
    (lambda text: text.replace("gut", "g\udcfct"), "not UTF-8"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED, ids=[m[:20] for _, m in DAMAGED])
def test_damaged_files_are_refused(tmp_path, change, message):
    path = tmp_path / "a-src.de.sgm"
    path.write_bytes(change(sgm("de")).encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message) as error:
        segments(path)
    assert str(path) in str(error.value)


def test_files_of_different_sets_are_refused(folder):
    path = folder / "newstest2014-deen-src.de.sgm"
    path.write_text(sgm("de").replace('<seg id="2">Ende</seg>', ""))
    (source,) = discover_bitext(folder)
    with pytest.raises(
        DataError,
        match=r"src.de.sgm has 3 segments, .*ref.en.sgm.gz has 4, and .* "
        "lacks 1 of the second, such as segment 2 of document 'paper 1'",
    ):
        list(read_bitext(source))
    path.unlink()
    with pytest.raises(DataError, match=r"2014-deen-src.LANGUAGE.sgm: missing; add it, or remove"):
        discover_bitext(folder)
