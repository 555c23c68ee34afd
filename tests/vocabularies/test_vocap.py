import dataclasses
import math
import random
import subprocess
import sys

import pytest
import sentencepiece
from helpers import tiny
from sentencepiece import sentencepiece_model_pb2

from xlme_jax import api
from xlme_jax.data.vocabulary import Vocabulary, VocabularyError, train_vocabulary
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.storage.paths import as_path
from xlme_jax.vocabularies import candidates, merging, vocap
from xlme_jax.vocabularies.vocap import VocapConfig

SYLLABLES = {
    "en": ["the", "cat", "sat", "mat", "ing", "er", "on", "st"],
    "ru": ["ди", "во", "на", "ско", "те", "кот", "си", "лы"],
    "sw": ["ka", "to", "mi", "ru", "sen", "po", "gra", "ni"],
}


def lines_of(language, count, words=300):
    rng = random.Random(language)
    made_up = ["".join(rng.choices(SYLLABLES[language], k=3)) for _ in range(words)]
    return [" ".join(rng.choices(made_up, k=8)) for _ in range(count)]


@pytest.fixture(scope="module")
def mono(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mono")
    for language, count in (("en", 1200), ("ru", 400), ("sw", 100)):
        lines = "\n\n".join(lines_of(language, count))
        (folder / f"{language}.txt").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def texts(mono):
    return api.find_text(PrepareConfig(".", tasks=("cc100",), cc100_dir=str(mono)))


@pytest.fixture
def config(tmp_path):
    return VocapConfig(
        size=400,
        folder=str(tmp_path / "candidates"),
        sizes=(50, 100, 200, 300),
        sample_bytes=100_000,
        byte_fallback=False,
        workers=1,
    )


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocap")
    config = VocapConfig(
        400, str(folder), (50, 100, 200, 300), sample_bytes=100_000, byte_fallback=False, workers=1
    )
    return vocap.train(texts, config)


def test_the_vocabulary_holds_the_chosen_candidates(trained):
    vocabulary = trained.vocabulary
    assert vocabulary.size == 400
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    assert [processor.id_to_piece(i) for i in range(3)] == ["<unk>", "<s>", "</s>"]
    assert vocabulary.mask_id == 399
    pieces = vocabulary.scored_pieces()
    assert pieces.keys() == trained.allocation.pieces.keys()
    assert set(trained.chosen) == {"en", "ru", "sw"}
    for candidate in trained.chosen.values():
        assert candidate.read().keys() <= pieces.keys()
    for language in SYLLABLES:
        assert vocabulary.unk_id not in vocabulary.encode(lines_of(language, 1)[0])


def test_it_continues_and_repeats_exactly(texts, config, trained, monkeypatch):
    first = vocap.train(texts, config)
    assert first.vocabulary.model == trained.vocabulary.model
    asked = []
    train_one = candidates._train_one
    monkeypatch.setattr(
        candidates,
        "_train_one",
        lambda request, *rest: (asked.append(request), train_one(request, *rest))[1],
    )
    assert vocap.train(texts, config).vocabulary.model == trained.vocabulary.model
    assert asked == []
    # One is half-written, one damaged: these two alone are trained again.
    one, two = (first.chosen[language].request for language in ("en", "ru"))
    one.file(".json").unlink()
    two.file(".model").write_bytes(b"damaged")
    assert vocap.train(texts, config).vocabulary.model == trained.vocabulary.model
    assert sorted(asked, key=lambda request: request.name) == [one, two]
    # Another vocabulary from the same candidates, and one more size, with which all smaller change.
    asked.clear()
    vocap.train(texts, dataclasses.replace(config, size=350, beta=1.0))
    assert asked == []
    vocap.train(texts, dataclasses.replace(config, sizes=(50, 100, 150, 200, 300)))
    assert [request.size for request in asked] == [150, 100, 50] * 3


@pytest.mark.slow
def test_smaller_candidates_fit_like_those_trained_alone(texts, trained):
    """Selecting pieces from a larger candidate costs little of the log-probability."""
    for language, chosen in trained.chosen.items():
        sample = chosen.request.sample
        chain = candidates.requests(sample, (50, 100, 200, 300), 0.9995)
        for request in chain[1:]:
            found = candidates.find(request)
            candidates.train([dataclasses.replace(request, larger=())])
            alone = candidates.find(dataclasses.replace(request, larger=()))
            print(language, request.size, found.alp, alone.alp)
            assert found.pieces == alone.pieces
            assert found.alp > alone.alp - 0.02 * abs(alone.alp)


def test_a_damaged_sample_is_named(texts, config):
    trained = vocap.train(texts, config)
    sample = trained.chosen["sw"].request.sample
    sample.file.write_bytes(b"")
    trained.chosen["sw"].request.file(".json").unlink()
    with pytest.raises(VocabularyError, match=r"sw-\w+\.txt\.zst"):
        vocap.train(texts, config)


@pytest.mark.slow
@pytest.mark.parametrize("where", [{"workers": 2}, {"runner": "DirectRunner"}])
def test_it_does_not_depend_on_who_works(where, texts, config, trained):
    if "runner" in where:
        pytest.importorskip("apache_beam")
    other = dataclasses.replace(config, **where)
    assert vocap.train(texts, other).vocabulary.model == trained.vocabulary.model


@pytest.mark.slow
def test_candidates_may_be_in_a_bucket(server, texts, config, trained):
    there = dataclasses.replace(config, folder="gs://bucket/candidates")
    assert vocap.train(texts, there).vocabulary.model == trained.vocabulary.model
    assert vocap.train(texts, there).vocabulary.model == trained.vocabulary.model
    names = [path.name for path in as_path(there.folder).iterdir()]
    assert sorted({name.split(".", 1)[1] for name in names}) == ["json", "model", "txt.zst"]


@pytest.mark.slow
def test_bytes_have_their_ids(texts, config):
    trained = vocap.train(texts, dataclasses.replace(config, size=600, byte_fallback=True))
    ids = trained.vocabulary.encode("ქართული 🦊")
    assert trained.vocabulary.size == 600
    assert trained.vocabulary.unk_id not in ids
    assert trained.vocabulary.decode(ids) == "ქართული 🦊"


def test_more_ids_than_pieces_are_an_error(texts, config):
    large = dataclasses.replace(config, size=3000)
    with pytest.raises(VocabularyError, match=r"enough for --size=(\d+), not 3000") as error:
        vocap.train(texts, large)
    possible = int(str(error.value).split("--size=")[1].split(",")[0])
    smaller = vocap.train(texts, dataclasses.replace(large, allow_smaller=True))
    assert smaller.vocabulary.size == possible
    exact = vocap.train(texts, dataclasses.replace(config, size=possible))
    assert exact.vocabulary.model == smaller.vocabulary.model


def test_sizes_below_the_characters_are_left_out(texts, config):
    trained = vocap.train(texts, dataclasses.replace(config, size=250, sizes=(8, 50, 100)))
    sizes = {candidate.request.size for candidate in trained.chosen.values()}
    assert 8 not in sizes
    with pytest.raises(VocabularyError, match=r"'en' has more characters .* \(8\)"):
        vocap.train(texts, dataclasses.replace(config, sizes=(8,)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sizes": ()}, "--candidate_sizes="),
        ({"sizes": (4, 50)}, "each 8 or more"),
        ({"sizes": (500,)}, "--size=400 is smaller than the smallest of --candidate_sizes, 500"),
        ({"size": 200, "byte_fallback": True}, "--nobyte_fallback"),
        ({"beta": 1.5}, "--beta=1.5"),
        ({"runner": "DataflowRunner"}, "gs://BUCKET"),
    ],
)
def test_senseless_settings_are_refused_before_work(config, change, said):
    if "runner" in change:
        pytest.importorskip("apache_beam")
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(config, **change)


def test_a_file_instead_of_the_folder_is_refused(texts, config, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--candidates="):
        vocap.train(texts, dataclasses.replace(config, folder=str(tmp_path / "file")))


# --- Merging ---


def test_pieces_that_do_not_occur_are_kept():
    lines = lines_of("en", 200)
    known = train_vocabulary(lines, 80, byte_fallback=False).scored_pieces()
    pieces = {piece: 1.0 / len(known) for piece in known} | {"▁zebra": 1e-9, "ж": 1e-9}
    first, second = (merging.merge(pieces, iter(lines), 10_000, False) for _ in range(2))
    assert first.model == second.model
    assert first.scored_pieces().keys() == pieces.keys()
    assert first.size == len(pieces) + merging.SPECIALS
    # They are used where they match, and nothing of the machine is in the file.
    assert first.encode("zebra") == [first.piece_to_id("▁zebra")]
    assert b"seeds.tsv" not in first.model
    spec = sentencepiece_model_pb2.ModelProto.FromString(first.model).trainer_spec
    assert spec.vocab_size == first.size - 2


def log_probability(vocabulary, scores, lines):
    pieces = [vocabulary.id_to_piece(token) for line in lines for token in vocabulary.encode(line)]
    return sum(scores[piece] for piece in pieces) / len(lines)


def test_scores_are_as_likely_as_those_of_the_trainer():
    """EM from equal scores arrives where SentencePiece itself had with the same pieces."""
    rng = random.Random(0)
    words = ["".join(rng.choices(SYLLABLES["sw"], k=rng.randint(1, 4))) for _ in range(8000)]
    lines = [" ".join(words[n : n + 8]) for n in range(0, len(words), 8)]
    trained = train_vocabulary(lines, 200, byte_fallback=False)
    equal = dict.fromkeys(trained.scored_pieces(), 1.0 / 195)
    merged = merging.merge(equal, iter(lines), sum(map(len, lines)), False)
    ours = log_probability(merged, merged.scored_pieces(), lines)
    theirs = log_probability(trained, trained.scored_pieces(), lines)
    at_start = log_probability(merged, {p: math.log(equal[p]) for p in equal}, lines)
    print(f"nats per sentence: {ours:.2f}, SentencePiece {theirs:.2f}, equal {at_start:.2f}")
    assert ours > max(theirs - 0.01 * abs(theirs), at_start)


# --- The command ---


@pytest.mark.slow
def test_the_command_compares_with_temperature_sampling(mono, tmp_path):
    def command(*arguments):
        words = [sys.executable, "-m", "xlme_jax.train_vocabulary", "--tasks=cc100"]
        words += [f"--cc100_dir={mono}", "--size=400", "--nobyte_fallback", *arguments]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)

    done = command("--output=temperature.model")
    assert done.returncode == 0, done.stderr
    done = command(
        "--method=vocap",
        "--candidate_sizes=50,100,200",
        "--workers=1",
        "--output=vocap.model",
        "--report=report",
        "--against=temperature.model",
    )
    assert done.returncode == 0, done.stderr
    assert Vocabulary.load(tmp_path / "vocap.model").size == 400
    rows = [
        line.split("\t") for line in (tmp_path / "report/languages.tsv").read_text().splitlines()
    ]
    assert [row[0] for row in rows] == ["language", "en", "ru", "sw"]
    assert rows[0][1:3] == ["allocated", "vocap.model:sentences"]
    assert (tmp_path / "report/languages.png").read_bytes().startswith(b"\x89PNG")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "vocabulary",
        "vocap.model",
        "temperature.model",
    ]


REFUSED = {
    "--beta is a flag of --method=vocap": ["--beta=0.5"],
    "--candidate_sizes=50,many: give whole numbers": [
        "--method=vocap",
        "--candidate_sizes=50,many",
    ],
    "--report=file is not a folder": ["--report=file"],
    "--against needs --report": ["--against=temperature.model"],
    "No vocabulary at missing.model": ["--report=report", "--against=missing.model"],
}


def test_flags_are_checked_before_text_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    flags = ["--tasks=cc100", "--cc100_dir=mono", "--size=400"]
    done = tiny.run_each("train_vocabulary", *([*flags, *more] for more in REFUSED.values()))
    for message, one in zip(REFUSED, done, strict=True):
        assert one.returncode == 1
        said = one.stderr.splitlines()[-1]
        assert said.partition(": ")[2].startswith(message), one.stderr
