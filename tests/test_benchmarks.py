"""Benchmarks run at a small size and compare equal work."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import tiny

from xlme_jax.configuration import loading
from xlme_jax.data.prepared.writer import BitextWriter, write_dataset
from xlme_jax.data.vocabulary import train_vocabulary, write_vocabulary

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def run(name, tmp_path, *arguments):
    output = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", f"--output={output}", *arguments],
        env=tiny.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    return json.loads(output.read_text()), done.stdout


@pytest.mark.slow
def test_input(tmp_path):
    sizes = ("--tasks=12", "--pairs=5", "--rows=2", "--batches=3", "--warm_up=1", "--repeats=2")
    found, said = run("input", tmp_path, *sizes)
    assert found["data"]["bitext tasks"] == 12 and found["data"]["text tasks"] == 100
    assert set(found["results"]) == {"opening", "bitext,text", "bitext", "text"}
    for streams in ("bitext,text", "bitext", "text"):
        results = found["results"][streams]
        for name in ("tokens a second", "tokens a second, ArrayRecord alone"):
            assert results[name]["wall"]["count"] == 2 and results[name]["wall"]["min"] > 0
            assert name in said
        assert 0.5 < results["filled"] <= 1
    assert found["cores"] >= 1 and found["versions"]["array_record"]


@pytest.mark.slow
def test_train_step(tmp_path):
    peer = tmp_path / "peer.py"
    # 32 is the width of "tiny".
    peer.write_text(
        "import sys\n"
        "assert sys.argv[1] == '32'\n"
        "speed = (4 if 'bfloat16' in sys.argv else 1) * (2 if 'compile' in sys.argv else 1)\n"
        "print(f'median step {16 / speed}s')\n"
    )
    options = (f"--peer={peer}", "--bfloat16", "--shapes=tiny", "--rounds=1", "--steps=1")
    found, said = run("train_step", tmp_path, *options)
    table = found["shapes"]["tiny"]["table"]
    for name, seconds in (("peer", 16), ("compiled peer", 8), ("compiled bfloat16 peer", 2)):
        assert table[name]["median"] == seconds and name in said
    for name in ("ours", "gated", "gated, mixed", "modern"):
        row = table[name]
        assert row["speed_over_peer"] == pytest.approx(8 / row["median"])
        assert row["speed_over_bfloat16"] == pytest.approx(2 / row["median"])
        assert f"{row['speed_over_bfloat16']:.2f}x" in said


@pytest.mark.parametrize(
    ("shape", "file"), [("quickstart", "quickstart"), ("laptop", "laptop_xlme")]
)
def test_small_shapes_of_the_train_step_are_those_of_runs(shape, file, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import train_step

    config = loading.load([f"gin_configs/runs/{file}.gin"], [], "Train")
    system, streams = config.objective, config.streams
    hidden, deep, shallow, vocabulary, rows, length = train_step.SHAPES[shape]
    assert {system.generator.hidden_size, system.discriminator.hidden_size} == {hidden}
    assert (system.discriminator.num_layers, system.generator.num_layers) == (deep, shallow)
    assert sum(stream.rows for stream in streams) == rows
    assert {stream.length for stream in streams} == {length}
    if shape == "quickstart":
        assert config.prepare.vocabulary_size == vocabulary


@pytest.mark.slow
def test_robust_sampling(tmp_path):
    sizes = ("--pairs=300", "--languages=40", "--repeats=2")
    steps = ("--shape=tiny", "--rounds=2", "--steps=1")
    found, said = run("robust_sampling", tmp_path, *sizes, *steps)
    solvers = found["solvers"]
    assert (solvers["pairs"], solvers["languages"]) == (300, 40)
    for name in ("Sinkhorn sampler", "best response", "schedule of a phase"):
        assert solvers[name]["wall"]["count"] == solvers[name]["cpu"]["count"] == 2
        assert name in said
    assert [found["step"]["seconds"][kind]["count"] for kind in ("off", "on")] == [2, 2]
    assert found["step"]["ratio"] > 0 and "with tracking" in said


@pytest.mark.slow
def test_prepare(tmp_path):
    pytest.importorskip("seqio")
    text = tmp_path / "text"
    text.mkdir()
    for language, word in (("en", "house"), ("sw", "nyumba")):
        lines = (f"{word} {number} {number * 7}" for number in range(500))
        (text / f"{language}.txt").write_text("\n".join(lines))
    options = (f"--text_dir={text}", "--size=300", "--repeats=1", "--workers=1,2", "--beam")
    found, said = run("prepare", tmp_path, *options)
    assert (found["files"], found["lines"]) == (2, 1000)
    assert found["bytes"] == sum(file.stat().st_size + 1 for file in text.iterdir())
    ways = {"encode", "encode to arrays", "read and encode", "prepare", "prepare on Beam"}
    assert [(run["workers"], set(run["seconds"])) for run in found["runs"]] == [
        (1, ways),
        (2, ways),
    ]
    assert set(found["speed_up"]) == ways
    assert "prepare / read and encode, by cpu time" in said


@pytest.mark.slow
def test_train_vocabulary(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for language, word in (("en", "house"), ("sw", "nyumba")):
        lines = (f"{word} {number} {number * 7}" for number in range(500))
        (text / f"{language}.txt").write_text("\n".join(lines))
    options = (f"--text_dir={text}", "--size=400", "--sample_bytes=9000", "--repeats=1")
    found, said = run("train_vocabulary", tmp_path, *options)
    assert found["languages"] == 2 and 0 < found["sentences"] < 1000
    assert set(found["seconds"]) == {"spm_train", "train_vocabulary"}
    assert "spm_train / train_vocabulary, by cpu time" in said


@pytest.mark.slow
def test_translate_step(tmp_path):
    pytest.importorskip("transformers")
    found, said = run("translate_step", tmp_path, "--shapes=tiny", "--rounds=1", "--steps=1")
    table = found["shapes"]["tiny"]["table"]
    assert set(table) == {"full", "mixed", "decode"}
    for name, row in table.items():
        assert row["seconds"]["ours"]["min"] > 0 and name in said
    assert table["full"]["target_tokens"] == 2 * 15 >= table["mixed"]["target_tokens"] > 0
    assert table["decode"]["equal"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("system", ["xlm", "xlme"])
def test_encode(tmp_path, system):
    pytest.importorskip("transformers")
    words = [f"word{number * 7919 % 601}" for number in range(600)]
    texts = tmp_path / "text.txt"
    texts.write_text("\n".join(" ".join(words[i : i + i % 9]) for i in range(40)))
    options = (f"--file={texts}", "--shapes=tiny", f"--systems={system}", "--rounds=1")
    found, said = run("encode", tmp_path, *options)
    (encoder,) = found["encoders"]
    assert found["texts"] == 35  # Without the empty ones.
    assert encoder["tokens"] >= sum(2 + i % 9 for i in range(40)) - 2 * 5
    # Float32 sums in another order, of values of about 1.
    assert encoder["largest_difference"] < 1e-4
    for name in ("ours", "as given", "sorted"):
        assert (
            min(encoder["seconds"][name][clock]["min"] for clock in ("wall", "cpu")) > 0
            and f"{name:10}" in said
        )


def write_multiway(folder, units, shift):
    """Writes units of five words; those of language b are shifted words of a, in another order."""
    rng = np.random.default_rng(units)
    folder.mkdir(parents=True)
    ids, a, b = [], [], []
    for unit in range(units):
        numbers = rng.integers(0, 60, 5)
        ids.append(f"unit {unit}")
        a.append(" ".join(f"a{n:03}" for n in numbers))
        b.append(" ".join(f"b{(n + shift) % 60:03}" for n in rng.permutation(numbers)))
    b[7] = ""  # A unit that one language lacks.
    for name, lines in (("ids", ids), ("en", a), ("fr", b), ("de", a)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_dictionary(tmp_path):
    """The languages share no words, so only counts identify translations."""
    write_multiway(tmp_path / "multiway" / "one", 400, shift=7)
    write_multiway(tmp_path / "multiway" / "two", 200, shift=7)
    tatoeba, gold = tmp_path / "tatoeba", tmp_path / "en-fr"
    for folder in (tatoeba, gold):
        folder.mkdir()
    numbers = np.random.default_rng(1).integers(0, 60, (50, 4))
    english = [" ".join(f"a{n:03}" for n in row) for row in numbers]
    french = [" ".join(f"b{(n + 7) % 60:03}" for n in reversed(row)) for row in numbers]
    (tatoeba / "tatoeba.fra-eng.eng").write_text("\n".join(english))
    (tatoeba / "tatoeba.fra-eng.fra").write_text("\n".join(french))
    (gold / "src.txt").write_text("\n".join(english))
    (gold / "tgt.txt").write_text("\n".join(french))
    (gold / "gold.txt").write_text("0-3 1-2 2-1 3-0\n" * 50)
    found, said = run(
        "dictionary",
        tmp_path,
        f"--multiway={tmp_path / 'multiway'}",
        "--languages=fr",
        f"--tatoeba={tatoeba}",
        f"--wordalign={gold}",
    )
    pair = found["pairs"]["en-fr"]
    # Of 600 units two are not in both languages, 30 are held out.
    assert (pair["train"], pair["held out"]["pairs"]) == (568, 30)
    for name, count in (("held out", 30), ("tatoeba", 50)):
        figures = pair[name]
        assert figures["pairs"] == count and figures["chance"] == 1 / count
        assert figures["shared words"] == pytest.approx(1 / count)  # All tie.
        assert figures["dictionary"] > 0.9
        assert f"{figures['dictionary']:.3f}" in said
    assert pair["AER"]["en-fr"] < 0.1
    assert found["cores"] >= 1 and found["versions"]["scipy"]


@pytest.mark.slow
def test_dictionary_of_a_prepared_data_set(tmp_path):
    """The decoded texts equal those of the files, so the results are equal."""
    write_multiway(tmp_path / "multiway" / "one", 400, shift=7)
    raw, _ = run("dictionary", tmp_path, f"--multiway={tmp_path / 'multiway'}", "--languages=fr")
    texts = [
        (tmp_path / "multiway" / "one" / f"{language}.txt").read_text().splitlines()
        for language in ("en", "fr")
    ]
    vocabulary = train_vocabulary(texts[0] + texts[1], 400, allow_smaller=True)
    folder, rows = tmp_path / "data", []
    write_vocabulary(vocabulary, tmp_path / "v.model")
    for split in ("train", "validation"):
        size = len(vocabulary)
        writer = BitextWriter(folder, "en-fr", ("en", "fr"), size, split=split)
        for unit, (english, french) in enumerate(zip(*texts)):
            if french and (unit % 20 == 19) == (split == "validation"):
                sides = vocabulary.encode(english), vocabulary.encode(french)
                writer.add([0, *sides[0], 2, *sides[1], 2])
        rows.append(writer.close())
    write_dataset(folder, rows, tmp_path / "v.model", len(vocabulary))
    found, _ = run("dictionary", tmp_path, f"--data_dir={folder}", "--languages=fr")
    assert found["pairs"] == raw["pairs"]
    assert found["pairs"]["en-fr"]["held out"]["pairs"] == 20
