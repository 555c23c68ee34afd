"""From pre-training to translations, with the commands."""

import pytest
import tiny

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


def test_one_direction_is_trained_and_scored(tmp_path):
    data = tiny.write_tiny_data(tmp_path / "data")
    directions = {"DIRECTIONS": ("fr-en", "en-sw"), "TRAIN_STEPS": 6, "Loop.evaluate_every": 6}
    flags = tiny.flags(tmp_path / "run", data, "translate")
    tiny.train(*flags, *gin(**directions), "--gin.Train.evaluators=(@HeldOut(),)")
    lines = tiny.metrics(tmp_path / "run")
    losses = [line["bitext/loss"] for line in lines if "bitext/loss" in line]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert lines[-1]["held_out/bitext/loss"] < 7


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
            "bitext/Stream.rows": 4,
            "bitext/Stream.length": 64,
            "TRAIN_STEPS": 4,
            "Translate.decoder_layers": 1,
            "Optimizer.warmup_steps": 2,
            "HeldOutTranslation.max_pairs": 5,
            "Loop.log_every": 2,
            "Loop.evaluate_every": 4,
        },
    )
    output = tiny.train(*flags)
    assert f"Warm start: weights from {veco}/checkpoints/3\n" in output  # Nothing is missing there.
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
