"""Mining of negatives: which targets are chosen, what is refused, and runs on them."""

import logging

import numpy as np
import pytest
from helpers import hf_folders, tiny
from helpers.drawn_vocabulary import DrawnVocabulary
from helpers.runs import Interrupted, _Gin, assert_same_bits, run, same_metrics

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.prepared.writer import BitextWriter
from xlme_jax.runs import mining
from xlme_jax.training import starting

TRIPLETS = {
    "objective": "contrast",
    "Contrast__hard_negatives": True,
    "bitext/PairStream__layout": _Gin("@Triplets()"),
    "bitext/Triplets__pairs_per_row": 2,
    "bitext/PairStream__length": 48,
    "Encoder__max_length": 48,
    "Loop__keep_checkpoints": 9,
}


def chosen(sources, targets, vectors, **settings):
    """Returns what is mined of single-token texts with vectors of two numbers."""
    return mining.choose(
        [(text,) for text in sources],
        [(text,) for text in targets],
        lambda texts: np.array([vectors[text] for (text,) in texts], np.float32),
        mining.Mining(**settings),
    )


def at(*cosines):
    """Returns unit vectors with these cosines with (1, 0)."""
    return [(c, np.sqrt(1 - c**2)) for c in cosines]


def test_the_nearest_target_that_no_rule_leaves_out():
    """Source 0 at (1, 0) has the pair 10 at .8; 11 to 14 are at .9, .78, .7 and .2."""
    vectors = dict(zip((0, 10, 11, 12, 13, 14), [(1.0, 0.0), *at(0.8, 0.9, 0.78, 0.7, 0.2)]))
    vectors |= dict(zip((1, 2, 3, 4), [(0.0, -1.0)] * 4))
    sources, targets = [0, 1, 2, 3, 4], [10, 11, 12, 13, 14]

    def negative(**settings):
        return int(chosen(sources, targets, vectors, **settings).pairs[0])

    assert negative(relative_margin=0.0) == 2
    assert negative(relative_margin=0.05) == 3  # .78 is above .8 * .95 = .76.
    assert negative(relative_margin=0.0, max_score=0.75) == 3
    assert negative(relative_margin=0.5) == 4
    assert negative(relative_margin=0.9) == -1
    # Only the pair and .9 are looked at.
    assert negative(relative_margin=0.0, range_max=2) == -1
    counts = chosen(sources, targets, vectors, max_score=0.5).counts
    assert counts["compared"] == 25 and counts["translations"] == 5


def test_translations_and_copies_are_no_negatives():
    """Source 0 has two translations; 20 is a target and a source, and its own text no negative."""
    vectors = dict(zip((0, 10, 11, 12), [(1.0, 0.0), *at(0.9, 0.3, 0.1)]))
    vectors |= {20: (0.6, 0.8), 21: (0.0, 1.0)}
    negatives = chosen([0, 0, 20, 21], [10, 11, 12, 20], vectors, relative_margin=0.0)
    # The farther translation, .3, counts: 20 at .6 is left out, 12 at .1 is not.
    assert negatives.pairs[:2].tolist() == [2, 2]
    # Source 20 is at .97, .93 and .9 of the targets 10, 11 and 12; 20 is its copy.
    assert negatives.pairs[2] == -1


def test_vectors_that_are_not_finite_have_no_negative():
    """Nor have those whose translation is not finite, as there is nothing to compare with."""
    vectors = {0: (1.0, 0.0), 1: (np.nan, 0.0), 2: (0.0, 1.0)}
    vectors |= {10: (1.0, 0.1), 11: (0.5, 0.9), 12: (np.nan, 0.0)}
    negatives = chosen([0, 1, 2], [10, 11, 12], vectors, relative_margin=0.0)
    assert negatives.pairs.tolist() == [1, -1, -1] and negatives.counts["not finite"] > 0


@pytest.fixture(scope="module")
def start(tmp_path_factory, tiny_data):
    """Returns a MODEL_DIR with random weights."""
    folder = tmp_path_factory.mktemp("start") / "run"
    sizes = {"Train__vocab_size": None, "Encoder__max_length": 48}
    return hf_folders.write_checkpoint(folder, "contrast", DrawnVocabulary(tiny_data), **sizes)


@pytest.fixture(scope="module")
def mined(tmp_path_factory, tiny_data, start, words):
    output = tmp_path_factory.mktemp("mined") / "data"
    mining.mine(str(start), str(tiny_data), str(output), mining.Mining(0.0), "the command")
    return output


@pytest.fixture(scope="module")
def words(tiny_data):
    """Makes checkpoints load with the digest of the drawn tokens' vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        vocabulary = DrawnVocabulary(tiny_data)
        patch.setattr(mining.trained.Vocabulary, "load", lambda file: vocabulary)
        yield


def texts(dataset, task):
    """Returns the texts of each record, without <s>."""
    records = dataset.read_records(task, np.arange(task.examples))
    return [
        [part.tolist() for part in np.split(r[1:], np.flatnonzero(r[1:] == 2) + 1)[:-1]]
        for r in records
    ]


def test_the_data_set_has_the_pairs_with_a_third_side(tiny_data, mined):
    before, after = PreparedDataset.load(tiny_data), PreparedDataset.load(mined)
    after.verify()
    assert after.command == "the command"
    for task in before.tasks:
        task_after = after.task(task.name, task.split)
        if (task.kind, task.split) != ("bitext", "train"):
            assert (task_after.kind, task_after.tokens) == (task.kind, task.tokens)
            continue
        assert (task_after.kind, task_after.examples) == ("triplet", task.examples)
        pairs, triplets = texts(before, task), texts(after, task_after)
        assert [triplet[:2] for triplet in triplets] == pairs
        targets = [target for _, target in pairs]
        negatives = [(n, triplet[2]) for n, triplet in enumerate(triplets) if triplet[2] != [2]]
        assert negatives
        for number, negative in negatives:
            assert negative in targets and negative != targets[number]


def test_what_is_left_out_is_counted(tmp_path, tiny_data, start, words, caplog):
    with caplog.at_level(logging.INFO):
        mining.mine(str(start), str(tiny_data), str(tmp_path / "data"), mining.Mining(0.0))
    [line] = [m for m in caplog.messages if m.startswith("en-fr: ") and "Targets" in m]
    assert "of 150 pairs have a negative. Mean cosine: pairs" in line
    assert "compared" in line and "translations" in line and "near translations" in line


def data_of(folder, examples, split="train"):
    writer = BitextWriter(folder, "en-fr", ("en", "fr"), tiny.VOCABULARY, split=split)
    for ids in examples:
        writer.add(ids)
    return tiny.finish_dataset(folder, [writer.close()], tiny.VOCABULARY)


PAIR = [0, 5, 2, 6, 2]


@pytest.mark.parametrize(
    ("examples", "split", "message"),
    [
        (
            [PAIR] * 2,
            "validation",
            r"no bitext task in split 'train' .* \(it has bitext/validation",
        ),
        ([PAIR], "train", "task en-fr has 1 pair, and the negative is the target of another"),
        ([PAIR] * 5, "train", "no pair of task en-fr has a negative .*lower --relative_margin"),
    ],
)
def test_data_without_negatives_are_refused(tmp_path, start, words, examples, split, message):
    data = data_of(tmp_path / "data", examples, split)
    with pytest.raises(ValueError, match=message):
        mining.mine(str(start), str(data), str(tmp_path / "mined"), mining.Mining())
    assert not (tmp_path / "mined" / "dataset.json").exists()


def test_folders_with_data_are_refused(tiny_data, start):
    with pytest.raises(ValueError, match="has a data set; delete it, or choose another --output"):
        mining.mine(str(start), str(tiny_data), str(tiny_data), mining.Mining())


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"relative_margin": -0.1}, "relative_margin = -0.1"), ({"range_max": 1}, "range_max = 1")],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        mining.Mining(**settings)


@pytest.mark.slow
@pytest.mark.parametrize("one_task", [False, True])
def test_a_run_on_triplets_resumes_bitwise(tmp_path, mined, interrupt, one_task):
    bindings = {**TRIPLETS, "TRAIN_STEPS": 8, "CHECKPOINT_EVERY": 4}
    bindings |= {"bitext/PairStream__one_task": one_task}
    expected = run(tmp_path / "whole", mined, **bindings)
    restore = interrupt(7)
    with pytest.raises(Interrupted):
        run(tmp_path / "resumed", mined, **bindings)
    restore()
    assert_same_bits(run(tmp_path / "resumed", mined, **bindings), expected)
    same_metrics(tmp_path / "resumed", tmp_path / "whole")


@pytest.mark.slow
def test_held_out_pairs_have_no_negatives(tmp_path, mined):
    bindings = {
        **TRIPLETS,
        # As above, so that the step is not traced again.
        "TRAIN_STEPS": 8,
        "bitext/PairStream__one_task": True,
        "Loop__evaluate_every": 8,
        "Train__evaluators": _Gin("(@HeldOut(),)"),
    }
    run(tmp_path, mined, **bindings)
    last = [line for line in tiny.metrics(tmp_path) if "held_out/bitext/candidates" in line][-1]
    assert np.isfinite(last["held_out/bitext/contrast_loss"])


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (
            {"bitext/PairStream__layout": _Gin("@Sides()"), "bitext/Sides__pairs_per_row": 2},
            "has the layout 'sides', and the objective reads 'triplets'; set "
            r"bitext/PairStream.layout = @Triplets\(\)",
        ),
        (
            {"Contrast__hard_negatives": False},
            r"reads 'sides'; set bitext/PairStream.layout = @Sides\(\)",
        ),
        ({"DATA_DIR": None}, "has no triplet task in split 'train'"),
    ],
)
def test_runs_without_a_third_side_are_refused_before_compilation(
    tmp_path, tiny_data, mined, monkeypatch, bindings, message
):
    monkeypatch.setattr(starting, "fresh_state", None)
    data = tiny_data if bindings.pop("DATA_DIR", mined) is None else mined
    with pytest.raises(ValueError, match=message):
        run(tmp_path, data, **{**TRIPLETS, **bindings})


@pytest.mark.slow
def test_the_losses_do_not_depend_on_devices(tmp_path, mined):
    """Tolerance and reasons are those of tests/e2e/test_devices.py."""

    def losses(name, devices, **bindings):
        values = {**TRIPLETS, "TRAIN_STEPS": 6, **bindings}
        tiny.train(*tiny.flags(tmp_path / name, mined, **values), devices=devices)
        return np.array([line["loss"] for line in tiny.metrics(tmp_path / name) if line["step"]])

    mesh = {"Mesh__data": 2, "Mesh__fsdp": 2, "Mesh__tensor": 2}
    np.testing.assert_allclose(losses("eight", 8, **mesh), losses("one", 1), rtol=2e-6)
