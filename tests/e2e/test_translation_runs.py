"""From pre-training to translations, with the commands."""

import json

import jax
import numpy as np
import pytest
from helpers import finetuning, hf_folders, runs, tiny

from xlme_jax.checkpoints.saved import read_best
from xlme_jax.data import cldr
from xlme_jax.data.prepared.writer import BitextWriter, write_dataset
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.objectives.base import Diagnostics
from xlme_jax.runs import averaging
from xlme_jax.runs.translating import score, translate
from xlme_jax.studies.reports.run_page import write_report

SMALL = {
    "Encoder.hidden_size": 32,
    "Encoder.ffn_size": 64,
    "Encoder.num_layers": 2,
    "CldrCorpus.documents": 200,
    "CldrCorpus.pairs": 800,
    "TRAIN_STEPS": 3,
    "Loop.evaluate_every": 3,
}


def gin(**bindings):
    return [f"--gin.{name}={value!r}" for name, value in bindings.items()]


@pytest.mark.slow
def test_one_direction_is_trained_and_scored(tmp_path):
    data = tiny.write_tiny_data(tmp_path / "data")
    directions = {"DIRECTIONS": ("fr-en", "en-sw"), "TRAIN_STEPS": 6, "Loop.evaluate_every": 6}
    flags = tiny.flags(tmp_path / "run", data, "translate")
    finetuning.run([*flags, *gin(**directions), "--gin.Train.evaluators=(@HeldOut(),)"])
    lines = tiny.metrics(tmp_path / "run")
    losses = [line["bitext/loss"] for line in lines if "bitext/loss" in line]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert lines[-1]["held_out/bitext/loss"] < 7


def write_phrases(folder):
    """Writes a vocabulary, and a data set of phrases in English and Russian; returns its folder."""
    vocabulary = Vocabulary.load(finetuning.write_vocabulary(folder))
    data, rows = folder / "phrases", []
    for split, count in (("train", 300), ("validation", 12)):
        writer = BitextWriter(data, "en-ru", ["en", "ru"], vocabulary.size, split=split)
        for source, target in cldr.pairs(finetuning.CORPUS.config, "en", "ru", split, count):
            writer.add([0, *vocabulary.encode(source), 2, *vocabulary.encode(target), 2])
        rows.append(writer.close())
    write_dataset(data, rows, vocabulary.path, vocabulary.size)
    return data


@pytest.mark.slow
def test_the_best_and_the_mean_checkpoint_translate(tmp_path):
    data, run, mean = write_phrases(tmp_path), tmp_path / "run", tmp_path / "mean"
    sizes = {"Encoder__max_length": 64, "bitext/PairStream__length": 64}
    steps = {"TRAIN_STEPS": 30, "CHECKPOINT_EVERY": 10, "Loop__evaluate_every": 10}
    steps["Loop__keep_checkpoints"] = 3
    flags = tiny.flags(run, data, "translate", LANGUAGES=("en", "ru"), **sizes, **steps)
    evaluators = "(@HeldOut(), @HeldOutTranslation())"
    finetuning.run([*flags, f"--gin.Train.evaluators={evaluators}", "--gin.Train.best=@Best()"])

    lines = [line for line in tiny.metrics(run) if "translation/bleu/mean" in line and line["step"]]
    bleu = {line["step"]: line["translation/bleu/mean"] for line in lines}
    assert list(bleu) == [10, 20, 30]
    assert {line["translation/dictionary_exact_match/en-ru"] for line in lines} != {0.0}
    ((metric, (step, value)),) = read_best(run).items()
    assert (metric, step, value) == ("translation/bleu/mean", max(bleu, key=bleu.get), bleu[step])
    samples = json.loads((run / "translations.json").read_text())
    assert samples["step"] == 30 and set(samples["directions"]) == {"en-ru", "ru-en"}
    page = write_report(run, Diagnostics(lambda shapes: {})).read_text()
    assert "Held-out translations at step 30" in page and "a word-by-word dictionary: " in page

    averaging.average(averaging.last_checkpoints(run, 3), mean)
    texts = ["Greek and French", "English"]
    search = BeamSearch(2)
    best = list(translate(str(run), texts, "ru", search))
    assert best == list(translate(str(run / "checkpoints" / str(step)), texts, "ru", search))
    assert all(one and one[0].text for one in translate(str(mean), texts, "ru", search))
    given = [best[0][0].text, best[1][0].text]
    totals = [
        [one.total for one in score(str(folder), texts, given, "ru")]
        for folder in (mean, *(run / "checkpoints" / str(n) for n in bleu))
    ]
    # The mean is another model than any of the three.
    assert all(abs(a - b) > 1e-4 for other in totals[1:] for a, b in zip(totals[0], other))


# Translates and scores lines with a checkpoint on all devices of the process.
_ON_DEVICES = """
import json, sys

from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.random_translations import Sampling
from xlme_jax.runs.translating import score, translate

run, output = sys.argv[1:]
lines = ["abc def", "p", "mnop aa bc", "", "ghi", "k lmn o", "ab ba", "e f g", "hij", "nn oo"]
found = {}
for how in (BeamSearch(3), Sampling(3, seed=4), Sampling(2, 0.7, top_k=20, top_p=0.9)):
    best = translate(run, lines, "fr", how, n_best=how.hypotheses)
    found[str(how)] = [[(one.text, one.score) for one in line] for line in best]
found["scores"] = [[(str(x.tokens), x.total)] for x in score(run, lines, lines[::-1], "fr")]
with open(output, "w") as file:
    json.dump(found, file)
"""


@pytest.mark.slow
def test_eight_devices_find_the_tokens_of_one(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run", "translate", Encoder__num_layers=2)
    found = []
    for devices in (1, 8):
        tiny.run(["-c", _ON_DEVICES, str(run), str(tmp_path / "found.json")], devices)
        found.append(json.loads((tmp_path / "found.json").read_text()))
    assert list(found[0]) == list(found[1])
    for how in found[0]:
        one, eight = ([[text for text, _ in line] for line in each[how]] for each in found)
        assert one == eight and len({text for line in one for text in line}) > 2, how
        values = [[value for line in each[how] for _, value in line] for each in found]
        np.testing.assert_allclose(*values, rtol=1e-5)


@pytest.mark.slow
def test_a_translator_goes_on_with_all_its_weights(tmp_path, tiny_data):
    short = {"objective": "translate", "TRAIN_STEPS": 2, "Optimizer__warmup_steps": 1}
    first = runs.run(tmp_path / "first", tiny_data, **short)
    start = {"INIT_FROM": str(tmp_path / "first"), "Optimizer__learning_rate": 1e-30}
    second = runs.run(tmp_path / "second", tiny_data, **short, **start)
    assert np.abs(first.params["languages"]).max() > 0
    for before, after in zip(*(jax.tree.leaves(state.params) for state in (first, second))):
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-20)
    with pytest.raises(ValueError, match="Warm starts need the same objective, model sizes"):
        runs.run(tmp_path / "other", tiny_data, **short, **start, Encoder__num_layers=2)


@pytest.mark.slow
def test_a_pretrained_checkpoint_becomes_a_translator(tmp_path):
    data, veco, run = (str(tmp_path / name) for name in ("data", "veco", "run"))
    tiny.train(
        "--gin_file=gin_configs/runs/veco_quickstart.gin",
        *gin(MODEL_DIR=veco, DATA_DIR=data, **SMALL),
    )
    flags = ["--gin_file=gin_configs/models/translate.gin"]
    flags += gin(
        MODEL_DIR=run,
        DATA_DIR=data,
        INIT_FROM=veco,
        LANGUAGES=("en", "ru", "el"),
        **{
            "bitext/PairStream.rows": 4,
            "bitext/PairStream.length": 64,
            "TRAIN_STEPS": 4,
            "Translate.decoder_layers": 1,
            "Optimizer.warmup_steps": 2,
            "HeldOutTranslation.max_pairs": 5,
            "Loop.log_every": 2,
            "Loop.evaluate_every": 4,
        },
    )
    output = tiny.train(*flags)
    assert f"Weights from {veco}/checkpoints/3\n" in output  # Nothing is missing there.
    last = tiny.metrics(run)[-1]
    assert {"held_out/bitext/loss", "translation/bleu/en-ru", "translation/chrf/el-en"} <= set(last)

    source = tmp_path / "source.txt"
    source.write_text("Greek and French\n\nEnglish\n")

    def translate(*flags):
        command = ["-m", "xlme_jax.translate", f"--checkpoint={run}", f"--source={source}"]
        return tiny.run([*command, "--target=ru", "--beams=3", *flags])

    translate(f"--output={tmp_path / 'best.txt'}")
    best = (tmp_path / "best.txt").read_text().split("\n")
    assert len(best) == 4 and best[1] == best[3] == ""
    translate(f"--output={tmp_path / 'three.tsv'}", "--n_best=3")
    rows = [line.split("\t") for line in (tmp_path / "three.tsv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3 + ["3"] * 3
    assert [rows[0][2], rows[3][2]] == [best[0], best[2]]
    scores = [float(row[1]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)

    reference = tmp_path / "reference.txt"
    reference.write_text((tmp_path / "best.txt").read_text())
    output = translate(f"--output={tmp_path / 'again.txt'}", f"--references={reference}")
    assert "100.00 +-" in output and "BLEU: nrefs:1" in output

    # Those translations scored, and drawn ones.
    given = tmp_path / "given.txt"
    given.write_text((tmp_path / "best.txt").read_text())
    command = ["-m", "xlme_jax.translate", f"--checkpoint={run}", f"--source={source}"]
    tiny.run([*command, "--target=ru", f"--score={given}", f"--output={tmp_path / 'scores.tsv'}"])
    found = [line.split("\t") for line in (tmp_path / "scores.tsv").read_text().splitlines()]
    assert len(found) == 3
    assert all(float(total) <= float(mean) <= 0 for total, mean in found)
    for name in ("one", "two"):
        drawn = f"--output={tmp_path / name}.tsv"
        tiny.run([*command, "--target=ru", "--sample", "--n_best=4", "--seed=3", drawn])
    texts = [(tmp_path / f"{name}.tsv").read_text() for name in ("one", "two")]
    assert texts[0] == texts[1] and len(set(texts[0].splitlines())) > 2
