"""BLEU, chrF and the paired bootstrap are those that sacreBLEU's command prints."""

import collections
import math
import os
import random
import re
import subprocess
import sys

import pytest
from helpers import tiny

from xlme_jax.evaluation.translation_scores import (
    bleu,
    compare,
    multi_bleu,
    score,
    tokenizer_of,
)

sacrebleu = pytest.importorskip("sacrebleu")
WORDS = [
    "the",
    "house",
    "tree",
    "green",
    "of",
    "and",
    "to",
    "see",
    "it",
    ",",
    ".",
    "'s",
    "good-looking",
]


@pytest.fixture
def files(tmp_path):
    """Writes references, and three systems: each changes more words than the one before."""
    rng = random.Random(0)
    lines = [rng.choices(WORDS, k=rng.randrange(4, 15)) for _ in range(60)]
    paths = []
    for name, share in (("ref", 0.0), ("a", 0.3), ("b", 0.32), ("c", 0.6)):
        changed = [[rng.choice(WORDS) if rng.random() < share else w for w in x] for x in lines]
        paths.append(tmp_path / f"{name}.txt")
        paths[-1].write_text("".join(f"{' '.join(x)}\n" for x in changed))
    return paths


def test_scores_and_p_values_are_those_of_sacrebleu(files):
    command = [sys.executable, "-m", "sacrebleu", files[0], "-i", *files[1:], "-m", "bleu", "chrf"]
    printed = subprocess.run(
        [*command, "--paired-bs", "-f", "text", "-w", "4"],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "SACREBLEU_SEED": "12345"},
    ).stdout
    theirs = re.findall(r"([\d.]+) \([\d.]+ ± ([\d.]+)\)", printed)
    p_values = re.findall(r"\(p = ([\d.]+)\)", printed)
    texts = {path.name: path.read_text().splitlines() for path in files}
    found = compare(texts.pop("ref.txt"), texts)
    ours = [one for system in zip(*found.scores.values()) for one in system]
    assert [(f"{one.score:.4f}", f"{one.margin:.4f}") for one in ours] == theirs
    assert [f"{one.p_value:.4f}" for one in ours[2:]] == p_values
    assert len(found.scores["BLEU"]) == 3 and found.scores["BLEU"][0].p_value is None
    assert found.scores["BLEU"][2].p_value < 0.01 < found.scores["BLEU"][1].p_value
    assert "tok:13a|smooth:exp" in found.signatures["BLEU"]


@pytest.mark.slow
def test_the_command_prints_a_table(files, tmp_path):
    names = ",".join(map(str, files))
    one, many, wrong = tiny.run_each(
        "report",
        [f"--translations={files[0]},{files[1]}"],
        [f"--translations={names}", f"--output={tmp_path / 'out'}", "--tokenize=none"],
        [f"--translations={files[0]}"],
    )
    assert (one.returncode, many.returncode, wrong.returncode) == (0, 0, 1), (one, many)
    assert "p=" not in one.stdout and "BLEU: nrefs:1" in one.stdout
    rows = many.stdout.splitlines()
    assert [row.split()[0] for row in rows[1:4]] == [str(path) for path in files[1:]]
    assert rows[3].count("*") == 2 and "tok:none" in rows[4]
    assert (tmp_path / "out" / "translations.txt").read_text() == many.stdout
    assert "needs references and a system" in wrong.stderr


TOKENIZERS_OF = {
    "zh": "zh zh-Hans zho_Hans zh_CN zh-CN cmn zh_TW zh-TW zho_Hant zh-Hant yue yue_Hant wuu lzh",
    "ja-mecab": "ja jpn jpn_Jpan ja_JP",
    "ko-mecab": "ko kor_Hang kor ko-KR",
    "char": "th tha_Thai lo lao_Laoo km khm_Khmr my mya_Mymr my_zaw shn_Mymr bo bod_Tibt dz khb ii "
    "dzo_Tibt jv-Java jav_Java ban-Bali",
    "13a": "en de fr ru ar hi vi jv jav_Latn am ka ja_Latn zh_Latn sr-Latn kk",
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS_OF)
def test_the_language_chooses_the_tokenizer_in_any_spelling(tokenizer):
    codes = TOKENIZERS_OF[tokenizer].split()
    assert {code: tokenizer_of(code) for code in codes} == dict.fromkeys(codes, tokenizer)


# Translations of "The cat sleeps on the mat today." and one like it, without spaces between words.
SENTENCES = {
    "zh": ("zh", "猫今天睡在垫子上。", "狗今天睡在垫子上。"),
    "zh_TW": ("zh", "貓今天睡在墊子上。", "狗今天睡在墊子上。"),
    "th": ("char", "วันนี้แมวนอนบนเสื่อ", "วันนี้หมานอนบนเสื่อ"),
    "lo": ("char", "ມື້ນີ້ແມວນອນຢູ່ເທິງເສື່ອ", "ມື້ນີ້ໝານອນຢູ່ເທິງເສື່ອ"),
    "km": ("char", "ថ្ងៃនេះឆ្មាដេកលើកន្ទេល", "ថ្ងៃនេះឆ្កែដេកលើកន្ទេល"),
    "my": ("char", "ယနေ့ကြောင်သည်ဖျာပေါ်တွင်အိပ်သည်", "ယနေ့ခွေးသည်ဖျာပေါ်တွင်အိပ်သည်"),
    "bo": ("char", "དེ་རིང་ཞི་མི་གདན་སྟེང་ཉལ།", "དེ་རིང་ཁྱི་གདན་སྟེང་ཉལ།"),
    "en": ("13a", "The cat sleeps on the mat today.", "The dog sleeps on the mat today."),
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_wrong_word_does_not_make_bleu_zero(language):
    """One word of a sentence is wrong; BLEU is that of sacreBLEU with the tokenizer."""
    tokenizer, reference, line = SENTENCES[language]
    bleu = sacrebleu.corpus_bleu([line], [[reference]], tokenize=tokenizer)
    theirs = [bleu.score, sacrebleu.corpus_chrf([line], [[reference]]).score]
    found = compare([reference], {"a": [line]}, language=language)
    ours = [found.scores[name][0].score for name in ("BLEU", "chrF")]
    assert ours == pytest.approx(theirs, abs=1e-5) and 25 < ours[0] < 95
    assert f"|tok:{tokenizer}|" in found.signatures["BLEU"]
    scores = score([line], [reference], language)
    assert [scores["bleu"], scores["chrf"]] == pytest.approx(ours)
    # Without a language, and with one of another script, the letters decide.
    assert score([line], [reference]) == score([line], [reference], "de") == scores


def test_letters_choose_the_tokenizer_of_a_text_without_a_language():
    japanese, korean = "今日は猫がマットの上で寝ています。", "오늘 고양이가 매트 위에서 잔다"
    assert tokenizer_of("", [japanese]) == "ja-mecab" and tokenizer_of("", [korean]) == "ko-mecab"
    chinese = SENTENCES["zh"][1]
    # Names in kana, hangul or Latin letters in a Chinese text, and Chinese ones in an English one.
    for other in ("の", "오", "JAX"):
        assert tokenizer_of("", [chinese, chinese, other]) == "zh"
    assert tokenizer_of("", ["The city of 北京 has many inhabitants."]) == "13a"
    assert tokenizer_of("", []) == tokenizer_of("", ["", "123 !"]) == "13a"
    assert tokenizer_of("no language", [chinese]) == "zh"


def test_mecab_splits_japanese_and_korean_as_sacrebleu_has_it():
    pytest.importorskip("MeCab", reason="pip install 'sacrebleu[ja,ko]'")
    pytest.importorskip("mecab_ko", reason="pip install 'sacrebleu[ja,ko]'")
    package = pytest.importorskip("sacrebleu")
    for code, reference, line in (
        ("ja", "今日は猫がマットの上で寝ています。", "今日は犬がマットの上で寝ています。"),
        ("ko", "오늘 고양이가 매트 위에서 잔다", "오늘 강아지가 매트 위에서 잔다"),
    ):
        expected = package.BLEU(trg_lang=code).corpus_score([line], [[reference]]).score
        assert score([line], [reference], code)["bleu"] == pytest.approx(expected) and expected > 25


def test_a_missing_tokenizer_is_said_with_the_remedy(monkeypatch):
    ja = pytest.importorskip("sacrebleu.tokenizers.tokenizer_ja_mecab")
    monkeypatch.setattr(ja, "MeCab", None)
    remedy = r"ja-mecab cannot be used .*pip install 'sacrebleu\[ja\]', or .*--tokenize=char"
    with pytest.raises(ValueError, match=remedy):
        bleu("ja-mecab")
    for code in ("ja", "jpn_Jpan"):
        with pytest.raises(ValueError, match=remedy):
            compare(["x"], {"a": ["x"]}, language=code)
    assert "tok:char" in compare(["x"], {"a": ["x"]}, "char", "ja").signatures["BLEU"]


@pytest.mark.slow
def test_report_takes_the_language_of_translations(tmp_path):
    _, reference, line = SENTENCES["th"]
    (tmp_path / "ref").write_text(f"{reference}\n")
    (tmp_path / "sys").write_text(f"{line}\n")
    flag = f"--translations={tmp_path / 'ref'},{tmp_path / 'sys'}"
    none, thai, named, wrong = tiny.run_each(
        "report",
        [flag],
        [flag, "--target=tha_Thai"],
        [flag, "--tokenize=13a"],
        [flag, "--target=engl"],
    )
    assert none.stdout == thai.stdout and "tok:char" in thai.stdout, thai
    assert "tok:13a" in named.stdout and "  0.00 +-" in named.stdout
    assert wrong.returncode == 1 and "'engl' is not a language" in wrong.stderr


def counted_as_multi_bleu(lines, references):
    """BLEU as multi-bleu.perl -lc computes it, from Papineni et al. 2002."""
    matches, totals, lengths = [0] * 4, [0] * 4, [0, 0]
    for both in zip(lines, references):
        ours, theirs = (text.lower().split() for text in both)
        lengths[0] += len(ours)
        lengths[1] += len(theirs)
        for n in range(1, 5):
            found, there = (
                collections.Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1))
                for x in (ours, theirs)
            )
            matches[n - 1] += (found & there).total()
            totals[n - 1] += found.total()
    if not all(matches):
        return 0.0
    mean = sum(math.log(a / b) for a, b in zip(matches, totals)) / 4
    return 100 * math.exp(mean + min(0, 1 - lengths[1] / lengths[0]))


def test_multi_bleu_counts_tokens_of_the_command_without_case(files):
    references, found = (path.read_text().splitlines() for path in files[:2])
    # Hyphens and apostrophes are tokens of their own.
    split = [[re.sub("([-'])", r" \1 ", x) for x in side] for side in (found, references)]
    expected = counted_as_multi_bleu(*split)
    shouted = [x.upper() for x in references]
    ours = multi_bleu(found, shouted, """sed -E "s/([-'])/ \\1 /g" """)
    assert ours == pytest.approx(expected) and 20 < ours < 99
    assert abs(ours - counted_as_multi_bleu(found, references)) > 0.1
    short = [" ".join(x.split()[:-1]) for x in found]  # The penalty of brevity.
    expected = counted_as_multi_bleu(short, references)
    assert multi_bleu(short, references, "cat") == pytest.approx(expected) and expected > 1
    assert multi_bleu(["a b c"], ["a b c"], "cat") == counted_as_multi_bleu(["a b c"], ["a b c"])


TOKENIZERS = [
    ("head -n 1", "made 1 lines of 2; it must write a line"),
    ("no_such_tokenizer -l de", "'no_such_tokenizer -l de' failed"),
    ("cat no_such_file", "failed: .* non-zero exit status 1.* No such file"),
    ("", "the tokenizer '' failed"),
]


@pytest.mark.parametrize(("command", "message"), TOKENIZERS)
def test_tokenizers_that_fail_are_named(command, message):
    with pytest.raises(ValueError, match=message):
        multi_bleu(["a", "b"], ["a", "b"], command)


ERRORS = [
    ({"references": ["a"], "systems": {"x.txt": ["a", "b"]}}, "x.txt has 2 lines, .* 1 references"),
    ({"references": ["a"], "systems": {"x": ["a"]}, "tokenize": "perl"}, "sacreBLEU has .*13a"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=["lines", "tokenizer"])
def test_errors_name_their_cause(arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(**arguments)
