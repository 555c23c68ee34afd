"""Vocabularies without the pieces that text does not use."""

from collections import Counter

import numpy as np
import pytest
from helpers import tiny
from helpers.made_lines import SYLLABLES, lines_of

from xlme_jax.data import vocabulary_extension
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError, train_vocabulary, write_vocabulary
from xlme_jax.preparation.source_types import LanguageText
from xlme_jax.vocabularies import extending, trimming


def text_of(language, lines):
    return LanguageText(language, sum(len(line.encode()) for line in lines), lambda: iter(lines))


@pytest.fixture(scope="module", params=[True, False], ids=["bytes", "unknown"])
def old(request):
    lines = [line for language in SYLLABLES for line in lines_of(language, 400)]
    return train_vocabulary(lines, 900, byte_fallback=request.param, allow_smaller=True)


def used_by(vocabulary, lines):
    counts = trimming.piece_counts(vocabulary, [text_of("en", lines)])
    return counts["en"] > 0


def in_old(old, new, lines):
    """Returns the ids in `old` of the tokens of lines by `new`."""
    ids = vocabulary_extension.old_ids(new, old)
    return [ids[tokens].tolist() for tokens in new.encode_batch(lines)]


def test_text_of_remaining_pieces_is_segmented_as_before(old):
    lines = lines_of("en", 40)
    used = used_by(old, lines)
    new = vocabulary_extension.trim(old, used)
    assert new.size < 0.8 * old.size
    assert in_old(old, new, lines) == old.encode_batch(lines)
    # Other text is segmented alike exactly if its pieces all remain, also in other languages.
    others = [line for language in SYLLABLES for line in lines_of(language, 100, seed=1)]
    others += [word for line in others for word in line.split()[:2]]
    retained = set(vocabulary_extension.old_ids(new, old).tolist())
    expected = [set(tokens) <= retained for tokens in old.encode_batch(others)]
    pairs = zip(in_old(old, new, others), old.encode_batch(others), strict=True)
    assert [a == b for a, b in pairs] == expected
    assert 0.1 < np.mean(expected) < 0.9
    # No character is lost, and unknown ones score as before.
    assert all(new.decode(new.encode(line)) == line for line in others)
    for line in ("the ψψ☂☂cat", "☂ Ω"):
        tokens = old.encode(line)
        if set(tokens) <= retained:
            assert in_old(old, new, [line]) == [tokens]
    scores, old_scores = new.scored_pieces(), old.scored_pieces()
    assert min(scores.values()) == min(old_scores.values())
    assert {piece for piece in old_scores if len(piece) == 1} <= scores.keys()
    assert vocabulary_extension.trim(old, used).digest == new.digest


def test_unused_characters_may_be_left_out(old):
    lines = lines_of("en", 40)
    used = used_by(old, lines)
    new = vocabulary_extension.trim(old, used, all_characters=False)
    assert in_old(old, new, lines) == old.encode_batch(lines)
    assert "μ" in old.scored_pieces().keys() - new.scored_pieces().keys()


def test_a_trimmed_vocabulary_that_was_extended_derives_from_the_first(old):
    english, greek = lines_of("en", 40), lines_of("el", 300, seed=2)
    extended = extending.extend(old, greek, 20, allow_smaller=True)
    used = used_by(extended, english)
    used[old.size - 1 :] = True
    new = vocabulary_extension.trim(extended, used, old)
    assert vocabulary_extension.parent(new) is None
    # Its tokens are those of the extended one.
    assert in_old(extended, new, english) == extended.encode_batch(english)
    for vocabulary in (new, extended, vocabulary_extension.trim(old, used_by(old, english))):
        assert vocabulary_extension.derives_from(vocabulary, old)
    # New pieces are means over parts that may have been left out.
    rows, sources = vocabulary_extension.row_sources(new, old)
    by_extended, parts = vocabulary_extension.row_sources(extended, old)
    row = new.piece_to_id(piece := extended.id_to_piece(old.size - 1))
    expected = parts[by_extended == extended.piece_to_id(piece)]
    np.testing.assert_array_equal(sources[rows == row], expected)
    assert sources[rows == new.mask_id] == old.mask_id
    other = train_vocabulary(english + greek, 400, allow_smaller=True)
    assert not vocabulary_extension.derives_from(other, old)


def test_use_by_hand(old):
    lines = {"en": ["the cat", "the cat"], "sw": lines_of("sw", 1)}
    counts = trimming.piece_counts(old, [text_of(*item) for item in lines.items()])
    uses = trimming.uses_of(old, counts)
    tokens = {
        language: [i for line in text for i in old.encode(line)] for language, text in lines.items()
    }
    for language, use in uses.items():
        assert (use.tokens, use.pieces) == (len(tokens[language]), len(set(tokens[language])))
    total = Counter(tokens["en"] + tokens["sw"])
    once = [i for i in tokens["sw"] if total[i] == 1 and len(old.id_to_piece(i)) > 1]
    assert uses["en"].once == 0 and uses["sw"].once == len(once) > 0
    share = len(once) / len(tokens["sw"])
    assert trimming.summary(uses).splitlines()[2].split()[-1] == f"{share:.3%}"


def test_a_language_without_text_is_an_error(old):
    empty = LanguageText("sw", 10, lambda: iter(["", "  "]))
    with pytest.raises(VocabularyError, match="Language 'sw' has no text"):
        trimming.piece_counts(old, [text_of("en", ["the cat"]), empty])


@pytest.mark.slow
def test_the_command(old, tmp_path):
    for language in SYLLABLES:
        (tmp_path / f"{language}.txt").write_text("\n\n".join(lines_of(language, 100)))
    model, output = tmp_path / "old.model", tmp_path / "new.model"
    write_vocabulary(old, model)
    text = ["--tasks=cc100", f"--cc100_dir={tmp_path}", f"--output={output}"]
    trim = [*text, f"--trim={model}", "--languages=en"]
    both, done, *failed = tiny.run_each(
        "train_vocabulary",
        [*trim, "--keep=sw", "--size=+5", "--allow_smaller", f"--output={tmp_path / 'both.model'}"],
        trim,
        [*text, f"--trim={model}"],
        [*trim, "--keep=sw"],
        [*trim, f"--extend={model}"],
        [*trim, "--languages=de"],
        [*text, "--languages=en", f"--trim={tmp_path / 'en.txt'}"],
        [*text, "--nounused_characters"],
    )
    assert done.returncode == both.returncode == 0, (done.stderr, both.stderr)
    new = Vocabulary.load(output)
    assert f"{old.size:,} ids become {new.size:,}" in done.stdout and new.size < old.size
    assert done.stdout.splitlines()[-1].split()[:3] == ["en", "100", "0.00%"]
    lines = lines_of("en", 100)
    assert in_old(old, new, lines) == old.encode_batch(lines)
    assert both.stdout.splitlines()[-2].split()[:3] == ["sw", "100", "0.00%"]
    messages = [
        "--trim needs --languages",
        "--keep with --trim is for languages that get no new pieces",
        "remove --extend",
        "'de'",
        "en.txt is not a SentencePiece model",
        "--nounused_characters is a flag of --trim",
    ]
    for process, message in zip(failed, messages, strict=True):
        assert process.returncode == 1 and "Traceback" not in process.stderr
        assert message in process.stderr
