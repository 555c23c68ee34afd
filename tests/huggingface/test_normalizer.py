"""Parts of `tokenizers` normalize text as SentencePiece does, composed or not."""

import functools
import io
import json
import lzma
import random
import unicodedata

import pytest
import sentencepiece
from helpers import tiny
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary
from xlme_jax.huggingface.normalizer import normalizer, rules
from xlme_jax.huggingface.tokenizer import differences, tokenizer_files

tokenizers = pytest.importorskip("tokenizers", reason="reads the files")

MONO = tiny.REPOSITORY.parent / "shared" / "data" / "mono"
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
# Vietnamese, Korean, Japanese, Arabic presentation forms with tanwin, Greek, Devanagari, Hebrew.
TEXTS = (
    "Tất cả mọi người sinh ra đều được tự do, quyền lợi và ưỡn",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다",
    "すべての人間は、生まれながらにして自由であり、ｶﾞｷﾞパピ",
    "ﺟﻤﻴﻌﺎً أحرارﺍً متساوين ﻻً ﷲ ﺁ",
    "ἄνθρωποι γεννιοῦνται ἐλεύθεροι ᾧ ΐ",
    "क़ानून ज़मीन ड़ ढ़",
    "שָׁלוֹם עֲלֵיכֶם",
    "Ångström ŠKODA ﬁ ½ Ⅷ ÷ ǖ",
)
MARKS = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) in ("Mn", "Mc", "Me")]
BASES = "aeiouAsuU ﬁ½ﷺﺍﻼｶガ각가각कกำलא▁\u200d\u200b\u0001\t\u00ad🙂"


@functools.cache
def default():
    """Returns `trained()`, and its rules."""
    model = trained()
    return model, rules(charsmap(model))


def trained(**options):
    """Returns a small model trained by SentencePiece's own trainer."""
    output = io.BytesIO()
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXTS, "a quick fox über alles"] * 20),
        model_writer=output,
        **{"vocab_size": 500, "hard_vocab_limit": False, "minloglevel": 2, **ids, **options},
    )
    return output.getvalue()


def charsmap(model):
    return model_pb2.ModelProto.FromString(model).normalizer_spec.precompiled_charsmap


def both(model, exempt=()):
    """Returns SentencePiece's normalization of a model, ours, and its description."""
    theirs = sentencepiece.SentencePieceNormalizer(
        model_proto=model,
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )
    pieces = [piece.piece for piece in model_pb2.ModelProto.FromString(model).pieces]
    ours = normalizer(charsmap(model), pieces, exempt)
    steps = {"type": "Sequence", "normalizers": list(ours.steps)}
    content = {"version": "1.0", "added_tokens": [], "normalizer": steps}
    content["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}
    return theirs.normalize, tokenizers.Tokenizer.from_str(json.dumps(content)).normalizer, ours


@pytest.fixture(scope="module")
def nmt_nfkc():
    return both(default()[0])


@pytest.mark.slow
def test_rules_are_those_of_the_model(nmt_nfkc):
    theirs, _, _ = nmt_nfkc
    _, table = default()
    assert len(table) > 200_000 and {"ﬁ", "u\u031b\u0303", "\u1112\u1161\u11ab"} <= table.keys()
    assert all(theirs(source) == target for source, target in table.items())


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf"])
def test_every_rule_holds_but_those_that_are_listed(rule):
    model = trained(normalization_rule_name=rule)
    _, ours, described = both(model)
    table = rules(charsmap(model))
    wrong = {target for source, target in table.items() if ours.normalize_str(source) != target}
    assert wrong <= set(described.decomposed)
    # Compositions of Unicode 13 and later, and Greek iota subscripts, which case folding expands.
    assert len(described.decomposed) < (60 if rule.endswith("_cf") else 25)


@given(text=st.text(st.sampled_from(MARKS) | st.sampled_from(BASES), max_size=12))
def test_random_strings_with_combining_marks(nmt_nfkc, text):
    theirs, ours, _ = nmt_nfkc
    assert ours.normalize_str(text) == theirs(text)


def test_random_parts_of_rules(nmt_nfkc):
    """Sources of several characters, cut anywhere and put together, meet in every way."""
    theirs, ours, described = nmt_nfkc
    rng = random.Random(0)
    _, table = default()
    sources = [s for s, t in table.items() if len(s) > 1 and t not in described.decomposed]
    for parts in zip(*(rng.sample(sources, 5000) for _ in range(3))):
        text = "".join(part[rng.randrange(len(part)) :] for part in parts)
        assert ours.normalize_str(text) == theirs(text), ascii(text)


def test_rules_of_the_users_own(tmp_path):
    """Rules that no Unicode form has are replaced one by one; what they leave is not composed."""
    path = tmp_path / "rules.tsv"
    lines = ("71 75\t6B 77", "41\t61", "DF\t73 73", "75 308\tFC")  # qu, A, ß, u with diaeresis
    path.write_text("".join(f"{line}\n" for line in lines))
    model = trained(normalization_rule_tsv=str(path), byte_fallback=True)
    theirs, ours, described = both(model)
    assert not described.decomposed
    texts = ["quAß", "qqu\u0301u", "u\u0308qu\u0308", "A\u0301 A\u030a \u212b", "aqu", "qu"]
    rng = random.Random(0)
    texts += ["".join(rng.choices("quAßa\u0308\u0301k \u0958", k=6)) for _ in range(2000)]
    for text in texts:
        assert ours.normalize_str(text) == theirs(text), ascii(text)
    assert ours.normalize_str("qu A\u0301") == "kw a\u0301"


def test_user_defined_symbols_are_no_part_of_a_longer_source():
    model = trained(user_defined_symbols=["ou", "[u"])
    ids = encoder(model)
    vocabulary = Vocabulary(model)
    for text in ("you\u0308r", "o\u0308u", "[u\u031b\u0303 u\u031b\u0303", "ou\u0301ou"):
        assert ids(text) == list(vocabulary.encode(text)), ascii(text)
    pieces = [vocabulary.id_to_piece(i) for i in ids("ou\u0308")]
    assert "ou" in pieces


def encoder(model):
    """Returns a function from a text to the ids of the exported tokenizer, without specials."""
    content = tokenizer_files(Vocabulary(model), None)["tokenizer.json"].decode()
    tokenizer = tokenizers.Tokenizer.from_str(content)
    return lambda text: tokenizer.encode(text).ids[1:-1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True},
        {"normalization_rule_name": "identity", "byte_fallback": True},
        {"split_by_whitespace": False},
    ],
)
def test_ids_of_composed_and_decomposed_text(options):
    model = trained(**options)
    vocabulary, ids = Vocabulary(model), encoder(model)
    for text in (*TEXTS, "a▁", "▁ ▁"):
        for form in FORMS:
            written = unicodedata.normalize(form, text)
            assert ids(written) == list(vocabulary.encode(written)), (form, text)


def test_what_differs_is_listed():
    vocabulary = Vocabulary(trained(byte_fallback=True))
    ids = encoder(vocabulary.model)
    special, noncharacters, decomposed, rounding = differences(vocabulary)
    # The last is of Gurung Khema, a script of Unicode 16.
    for text in ("a<mask>b", "a\ufdd0b", "\U0001611e\U0001611e"):
        assert ids(text) != list(vocabulary.encode(text))
    assert "`<mask>`" in special and "U+FDD0 and U+FDD1" in noncharacters
    assert "U+16121" in decomposed and "rounding" in rounding
    assert len(differences(Vocabulary(trained(normalization_rule_name="identity")))) == 2


@pytest.mark.slow
@pytest.mark.skipif(not MONO.is_dir(), reason="no ../shared/data/mono here")
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_ids_of_many_languages(byte_fallback):
    lines = {}
    for path in sorted(MONO.glob("*.txt.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            heads = [line.strip() for line, _ in zip(file, range(2000))]
        lines[path.name] = random.Random(0).sample([line for line in heads if line], 200)
    texts = [line for part in lines.values() for line in part]
    vocabulary = train_vocabulary(texts, 8000, byte_fallback=byte_fallback)
    ids = encoder(vocabulary.model)
    wrong = [
        text
        for line in texts
        for text in (unicodedata.normalize(form, line) for form in FORMS)
        if ids(text) != list(vocabulary.encode(text))
    ]
    # Segmentations of equal score, of which rounding chooses: less than one line in ten thousand.
    assert len(lines) == 86 and len(wrong) <= len(FORMS) * len(texts) // 10_000, wrong
