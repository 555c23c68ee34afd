"""Pieces of new languages for an existing vocabulary."""

import pytest
from helpers import tiny
from helpers.made_lines import lines_of

from xlme_jax.data import vocabulary_extension
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError, train_vocabulary, write_vocabulary
from xlme_jax.vocabularies import extending


@pytest.fixture(scope="module")
def old():
    return train_vocabulary(lines_of("en", 1000), 400, allow_smaller=True)


def test_new_text_needs_fewer_tokens_and_old_text_as_many(old):
    fresh = lines_of("el", 500) + lines_of("sw", 500)
    new = extending.extend(old, fresh, 200, old_text=lines_of("en", 500))
    assert new.size == old.size + 200
    assert vocabulary_extension.parent(new) == (old.digest, old.size)
    english = extending.changes(old, new, lines_of("en", 200, seed=1))
    assert english.changed <= 0.1 * english.lines
    for language in ("el", "sw"):
        found = extending.changes(old, new, lines_of(language, 200))
        assert (found.lines, found.changed) == (200, 200)
        assert found.tokens < 0.7 * found.tokens_before
    assert extending.extend(old, fresh, 200, old_text=lines_of("en", 500)).digest == new.digest


def test_the_bar_counts_new_pieces(old, capsys):
    extending.extend(old, lines_of("el", 500), 100)
    assert "choose pieces (round 1): 100%" in capsys.readouterr().err
    # What a caller does with the scores leaves those of the vocabulary as they are.
    scores = old.scored_pieces()
    old.scored_pieces().clear()
    assert old.scored_pieces() == scores != {}


def test_pieces_that_old_text_uses_are_left_out(old):
    fresh, kept = lines_of("sw", 500), lines_of("en", 500, seed=1)
    free = extending.extend(old, fresh, 100)
    bound = extending.extend(old, fresh, 100, old_text=kept)
    assert extending.changes(old, bound, kept).changed < extending.changes(old, free, kept).changed
    counts, _ = extending.token_counts(bound, kept)
    rates, own = counts / counts.sum(), extending.token_counts(bound, fresh)[0]
    added = slice(old.size - 1, bound.size - 1)
    # With the pieces that are left out gone, others may be used a little more often.
    assert (rates[added] <= 0.2 * (own / own.sum())[added]).all()


def test_characters_come_first(old):
    new = extending.extend(old, lines_of("el", 500), 30)
    characters = {x for line in lines_of("el", 500) for x in line.replace(" ", "")}
    assert characters <= new.scored_pieces().keys()


def test_counts_by_hand(old):
    new = vocabulary_extension.extend(old, {"▁zzz": -5.0})
    found = extending.changes(old, new, ["the cat", "zzz sat"])
    tokens = [len(old.encode("the cat")), len(old.encode("zzz sat")), len(new.encode("zzz sat"))]
    assert (found.lines, found.changed) == (2, 1)
    assert (found.tokens_before, found.tokens) == (tokens[0] + tokens[1], tokens[0] + tokens[2])
    assert extending.summary([("en", found)]).splitlines()[1].split()[:3] == ["en", "2", "50.00%"]


def test_too_little_text_is_an_error(old):
    lines = lines_of("el", 20)
    with pytest.raises(VocabularyError, match=r"supports \d+ new pieces, not 5,000"):
        extending.extend(old, lines, 5000)
    assert old.size < extending.extend(old, lines, 5000, allow_smaller=True).size < old.size + 5000


@pytest.mark.slow
def test_the_command(old, tmp_path):
    for language in ("en", "el"):
        (tmp_path / f"{language}.txt").write_text("\n\n".join(lines_of(language, 400)))
    model, output = tmp_path / "old.model", tmp_path / "new.model"
    write_vocabulary(old, model)
    text = ["--tasks=cc100", f"--cc100_dir={tmp_path}", f"--output={output}"]
    extend = [*text, f"--extend={model}", "--languages=el", "--size=+100"]
    done, *failed = tiny.run_each(
        "train_vocabulary",
        [*extend, "--keep=en"],
        [*text, f"--extend={model}"],
        [*text, "--keep=en"],
        [*extend, "--keep=en,el"],
        [*extend, "--method=vocap"],
    )
    assert done.returncode == 0, done.stderr
    new = Vocabulary.load(output)
    assert new.size == old.size + 100
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["language", "en", "el"]
    assert float(rows[1][2].rstrip("%")) < 10 < float(rows[2][2].rstrip("%"))
    messages = [
        "--extend needs --languages",
        "--keep is a flag of --extend",
        "--keep and --languages both have el",
        "remove --method=vocap",
    ]
    for one, message in zip(failed, messages, strict=True):
        assert one.returncode == 1 and "Traceback" not in one.stderr
        assert message in one.stderr
