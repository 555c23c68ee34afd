"""Runs that are continued with a vocabulary that was extended or trimmed."""

import dataclasses
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import hf_folders, runs, tiny

from xlme_jax.api import prepare
from xlme_jax.checkpoints.warm_start import warm_start
from xlme_jax.data import vocabulary_extension
from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.vocabulary import Vocabulary, train_vocabulary, write_vocabulary
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.runs import assembly, trained
from xlme_jax.training import mesh as meshes
from xlme_jax.training.sharded_state import sharding_rules
from xlme_jax.vocabularies import extending

pytest.importorskip("seqio", reason="needs the extra data")
pytestmark = pytest.mark.slow

SYLLABLES = {
    "en": ["the", "cat", "sat", "mat", "ing", "er", "on", "st"],
    "fr": ["le", "chat", "mer", "ville", "ant", "é", "ou", "qu"],
    "el": ["και", "το", "μου", "ρα", "σεν", "πω", "γρα", "νη"],
}
ADDED = 150


def lines_of(language, count):
    rng = random.Random(language)
    words = ["".join(rng.choices(SYLLABLES[language], k=2)) for _ in range(60)]
    return [" ".join(rng.choices(words, k=4)) for _ in range(count)]


@dataclasses.dataclass
class Setting:
    """Data of three vocabularies, and random weights with the old one.

    Attributes:
      vocabularies: "old", "new", which extends it, and "trimmed": a part of the old pieces, and the
        new pieces.
      data: {name of the vocabulary: its data}.
      run: the run with the old vocabulary.
    """

    vocabularies: dict[str, Vocabulary]
    data: dict[str, str]
    run: str


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adding")
    (folder / "mono").mkdir()
    (folder / "pairs").mkdir()
    lines = {language: lines_of(language, 200) for language in SYLLABLES}
    for language, text in lines.items():
        (folder / "mono" / f"{language}.txt").write_text("\n\n".join(text))
    for other in ("fr", "el"):
        rows = [f"{one}\t{two}\n" for one, two in zip(lines["en"], lines[other])]
        (folder / "pairs" / f"en-{other}.tsv").write_text("".join(rows))
    old = train_vocabulary(lines["en"] + lines["fr"], 480, allow_smaller=True)
    new = extending.extend(old, lines["el"], ADDED, old_text=lines["en"], allow_smaller=True)
    used = np.zeros(new.size, bool)
    used[np.concatenate(new.encode_batch(lines["en"] + lines["el"]))] = True
    used[old.size - 1 :] = True
    trimmed = vocabulary_extension.trim(new, used, old)
    assert trimmed.size < new.size
    vocabularies = {"old": old, "new": new, "trimmed": trimmed}
    for name, vocabulary in vocabularies.items():
        write_vocabulary(vocabulary, folder / f"{name}.model")
        config = PrepareConfig(
            str(folder / name),
            tasks=("cc100", "bitext"),
            vocabulary=str(folder / f"{name}.model"),
            cc100_dir=str(folder / "mono"),
            bitext_dir=str(folder / "pairs"),
            languages=("en", "fr") if name == "old" else (),
            workers=1,
        )
        prepare(config)
    hf_folders.write_checkpoint(folder / "run", "xlm", old)
    data = {name: str(folder / name) for name in vocabularies}
    return Setting(vocabularies, data, str(folder / "run"))


def outputs(objective, params, ids):
    """Returns the hidden states and the logits of old pieces for a text, of XLM."""
    size = len(ids)
    rows = {
        "tokens": jnp.asarray([ids], jnp.int32),
        "positions": jnp.arange(size)[None],
        "segment_ids": jnp.ones((1, size), jnp.int32),
    }

    @jax.jit
    def compute(params):
        hidden = objective.encoder.encode(params, rows, None)
        scored, bias = objective.model.apply(
            {"params": params}, hidden[-1][0], method=lambda model, x: model.head(x)
        )
        return hidden, scored @ params["tokens"]["embedding"].T + bias

    return compute(params)


def weights(config, source):
    """Returns the run and the weights that it starts from."""
    run = assembly.assemble(config)
    abstract = assembly.states.abstract_state(run.objective, run.optimizer, run.mesh)
    with sharding_rules(run.mesh):
        params = warm_start(
            source,
            abstract.params,
            run.vocabulary_digest,
            counterparts=run.objective.warm_start.counterparts,
            growth=run.growth,
        )
    return run, jax.device_get(params)


@pytest.mark.parametrize("kind", tiny.slow_except(["new"], ["new", "trimmed"]))
def test_old_text_has_the_same_logits(setting, tmp_path, kind):
    source = assembly.as_path(setting.run)
    old_run, before = weights(runs.load(tmp_path, setting.data["old"], objective="xlm"), source)
    data = setting.data[kind]
    config = runs.load(tmp_path, data, objective="xlm", INIT_FROM=setting.run)
    run, after = weights(config, source)
    assert run.growth.tables == {"tokens.embedding", "head.bias"}
    old, new = setting.vocabularies["old"], setting.vocabularies[kind]
    ids_in_old = vocabulary_extension.old_ids(new, old)
    text = lines_of("en", 1)[0]
    ids = old.encode(text)
    assert ids_in_old[new.encode(text)].tolist() == ids
    masked = [0, *ids[:2], old.mask_id, *ids[3:], 2]
    hidden, logits = outputs(old_run.objective, before, masked)
    new_ids = new.encode(text)
    again, grown = outputs(run.objective, after, [0, *new_ids[:2], new.mask_id, *new_ids[3:], 2])
    for a, b in zip(hidden, again, strict=True):
        np.testing.assert_array_equal(a, b)
    rows = np.flatnonzero(ids_in_old >= 0)
    assert new.mask_id in rows
    np.testing.assert_allclose(grown[:, rows], logits[:, ids_in_old[rows]], rtol=1e-6, atol=1e-6)


def test_a_checkpoint_is_read_with_a_trimmed_vocabulary(setting, tmp_path):
    write_vocabulary(setting.vocabularies["trimmed"], tmp_path / "trimmed.model")
    mesh = meshes.make_mesh(meshes.MeshConfig())
    with sharding_rules(mesh):
        before = trained.load(setting.run, None, mesh).params
        after = trained.load(setting.run, str(tmp_path / "trimmed.model"), mesh).params
    ids_in_old = vocabulary_extension.old_ids(
        setting.vocabularies["trimmed"], setting.vocabularies["old"]
    )
    rows = np.flatnonzero(ids_in_old >= 0)
    for name in (("tokens", "embedding"), ("head", "bias")):
        table = before[name[0]][name[1]]
        np.testing.assert_array_equal(after[name[0]][name[1]][rows], table[ids_in_old[rows]])


def test_a_vocabulary_that_derives_needs_the_old_one(setting, tmp_path):
    run = tmp_path / "source"
    shutil.copytree(setting.run, run)
    (run / "vocabulary.model").unlink()
    config = runs.load(tmp_path, setting.data["trimmed"], objective="xlm", INIT_FROM=str(run))
    with pytest.raises(ValueError, match=r"vocabulary\.model, which .* is missing.*Copy the"):
        assembly.assemble(config)


def test_new_pieces_are_means_of_their_parts(setting, tmp_path):
    source = assembly.as_path(setting.run)
    _, before = weights(runs.load(tmp_path, setting.data["old"], objective="xlm"), source)
    config = runs.load(tmp_path, setting.data["new"], objective="xlm", INIT_FROM=setting.run)
    _, after = weights(config, source)
    added = range(setting.vocabularies["old"].size - 1, setting.vocabularies["new"].size - 1)
    piece = next(i for i in added if len(setting.vocabularies["new"].id_to_piece(i)) > 2)
    text = setting.vocabularies["new"].id_to_piece(piece)
    # The old vocabulary has no Greek characters, and spells them in bytes.
    parts = ["▁"] if text.startswith("▁") else []
    parts += [f"<0x{byte:02X}>" for byte in text.removeprefix("▁").encode()]
    ids = [setting.vocabularies["old"].piece_to_id(part) for part in parts]
    assert setting.vocabularies["old"].unk_id not in ids
    for name in (("tokens", "embedding"), ("head", "bias")):
        table = before[name[0]][name[1]]
        mean = np.mean([table[i] for i in ids], axis=0)
        np.testing.assert_allclose(after[name[0]][name[1]][piece], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["new", "trimmed"])
@pytest.mark.parametrize("objective", ["xlm", "xlme", "veco"])
def test_training_goes_on(setting, tmp_path, caplog, objective, kind):
    run = tmp_path / "source"
    if objective == "veco":
        runs.run(run, setting.data["old"], objective="veco", TRAIN_STEPS=5)
    else:
        shutil.copytree(setting.run, run)
    with caplog.at_level("INFO"):
        options = {"objective": objective, "INIT_FROM": str(run), "TRAIN_STEPS": 6}
        data = setting.data[kind]
        runs.run(tmp_path / "run", data, **options)
    assert (
        f"from {setting.vocabularies['old'].size:,} to {setting.vocabularies[kind].size:,} ids"
        in caplog.text
    )
    losses = [line["loss"] for line in tiny.metrics(tmp_path / "run") if "loss" in line]
    assert len(losses) == 6 and np.isfinite(losses).all()
    # It resumes without the run that it started from.
    shutil.rmtree(run)
    state = runs.run(tmp_path / "run", data, **{**options, "TRAIN_STEPS": 7})
    assert int(state.step) == 7


@pytest.mark.slow
def test_tables_that_are_split_over_devices_grow_alike(setting, tmp_path):
    losses = {}
    for devices in (1, 2):
        run = tmp_path / str(devices)
        options = {"objective": "xlm", "INIT_FROM": setting.run, "TRAIN_STEPS": 5}
        flags = tiny.flags(run, setting.data["new"], Mesh__fsdp=devices, **options)
        assert "grown from" in tiny.train(*flags, devices=devices)
        losses[devices] = [line["loss"] for line in tiny.metrics(run) if "loss" in line]
    assert len(losses[1]) == 5
    np.testing.assert_allclose(losses[2], losses[1], rtol=1e-4)


def test_another_vocabulary_is_refused(setting, tmp_path):
    other = tmp_path / "other"
    lines = lines_of("en", 200) + lines_of("el", 200)
    write_vocabulary(train_vocabulary(lines, 500, allow_smaller=True), tmp_path / "other.model")
    prepared = PreparedDataset.load(setting.data["new"])
    assert prepared.vocabulary_size == setting.vocabularies["new"].size
    folder = assembly.as_path(setting.data["new"]).parent
    prepare(
        PrepareConfig(
            str(other),
            tasks=("cc100", "bitext"),
            vocabulary=str(tmp_path / "other.model"),
            cc100_dir=str(folder / "mono"),
            bitext_dir=str(folder / "pairs"),
            workers=1,
        )
    )
    options = {"objective": "xlm", "INIT_FROM": setting.run, "TRAIN_STEPS": 6}
    with pytest.raises(ValueError, match=r"which does not extend it\. .*--extend"):
        runs.run(tmp_path / "run", other, **options)
