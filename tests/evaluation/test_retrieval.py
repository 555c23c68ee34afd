from types import SimpleNamespace

import jax
import numpy as np
import pytest

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.prepared.writer import BitextWriter, write_dataset
from xlme_jax.evaluation import readouts
from xlme_jax.evaluation.context import Context
from xlme_jax.evaluation.retrieval import RetrievalProbe, shared_tokens, with_untrained
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.objectives.base import EncoderView, Pooled
from xlme_jax.training import mesh as meshes

VOCABULARY_SIZE = 500
BOS, PAD, EOS = 0, 1, 2


def pair(source, target):
    return [BOS, *source, EOS, *target, EOS]


def prepare(directory, tasks, split="validation", train=()):
    """Writes a data set; `tasks` maps names to (languages, pairs of token lists)."""
    rows = []
    for of, part in ((split, tasks), ("train", dict(train))):
        for name, (languages, pairs) in part.items():
            writer = BitextWriter(directory, name, languages, VOCABULARY_SIZE, split=of)
            for source, target in pairs:
                writer.add(pair(source, target))
            rows.append(writer.close())
    model = directory / "source.model"
    model.write_bytes(b"model")
    write_dataset(directory, rows, model, VOCABULARY_SIZE)
    return PreparedDataset.load(directory)


def translations(count, offset=100):
    """Returns texts of 1 to 4 tokens; source token 10 + i translates to 10 + i + offset."""
    sources = [[10 + i] * (1 + i % 4) for i in range(count)]
    return [(source, [token + offset for token in source]) for source in sources]


def table_encoder(params, batch):
    """Returns an encoder of embeddings only: [rows, L] -> one layer [rows, L, D]."""
    return [params[batch["tokens"]]]


def cross_lingual_table(offset=100):
    """Returns a table with equal vectors of tokens and their translations."""
    table = np.random.default_rng(1).normal(size=(VOCABULARY_SIZE, 16)).astype(np.float32)
    table[10 + offset : 10 + 2 * offset] = table[10 : 10 + offset]
    return jax.numpy.asarray(table)


def random_table():
    table = np.random.default_rng(2).normal(size=(VOCABULARY_SIZE, 16)).astype(np.float32)
    return jax.numpy.asarray(table)


def accuracy_at_1(source, target):
    """Returns accuracy@1 by cosine: of sources among targets, and of targets among sources."""
    hits = readouts.search(source[None], target[None], readouts=(readouts.RAW,))[readouts.RAW]
    accuracies = readouts.accuracies(hits)
    return accuracies["forward"][0], accuracies["backward"][0]


def test_accuracy_counts_each_direction_on_its_own():
    source = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert accuracy_at_1(source, source) == (1.0, 1.0)
    assert accuracy_at_1(source, source[::-1]) == (0.0, 0.0)
    # Both sources are nearest to target 0 alone; each target is nearest to its own source.
    source = np.array([[1.0, 0.0], [0.8, 0.6]])
    target = np.array([[1.0, 0.2], [-0.2, 1.0]])
    assert accuracy_at_1(source, target) == (0.5, 1.0)


def test_accuracy_is_by_cosine_not_by_dot_product():
    source = np.array([[1.0, 0.1], [0.1, 1.0]])
    target = np.array([[100.0, 10.0], [0.01, 0.1]])
    assert accuracy_at_1(source, target) == (1.0, 1.0)


def test_agrees_with_a_search_one_by_one():
    rng = np.random.default_rng(0)
    source = rng.normal(size=(40, 8))
    target = source + rng.normal(size=(40, 8))

    def nearest_is_gold(query, candidates, gold):
        cosines = [query @ c / (np.linalg.norm(query) * np.linalg.norm(c)) for c in candidates]
        return int(np.argmax(cosines)) == gold

    forward = np.mean([nearest_is_gold(source[i], target, i) for i in range(40)])
    backward = np.mean([nearest_is_gold(target[i], source, i) for i in range(40)])
    assert accuracy_at_1(source, target) == (forward, backward)
    assert 0.2 < forward < 1


def test_collapsed_encoder_gets_chance_and_a_diverged_one_nothing():
    same = np.ones((4, 3))
    assert accuracy_at_1(same, same) == (0.25, 0.25)
    assert accuracy_at_1(np.zeros((4, 3)), np.zeros((4, 3))) == (0.25, 0.25)
    assert accuracy_at_1(np.full((4, 3), np.nan), same) == (0.0, 0.0)


def test_cross_lingual_encoder_beats_the_untrained_one(tmp_path):
    dataset = prepare(tmp_path, {"cldr.en-ru": (("en", "ru"), translations(50))})
    evaluate = RetrievalProbe(batch_rows=8).build(dataset, table_encoder)
    evaluate = with_untrained(evaluate, random_table())
    metrics = evaluate(cross_lingual_table(), 7)
    untrained = {name: metrics.pop(name) for name in list(metrics) if "untrained" in name}
    assert untrained.keys() == {
        "probe/retrieval_untrained",
        "probe/untrained/raw/layer_0",
        "probe/untrained/csls/layer_0",
    }
    assert max(untrained.values()) < 0.3
    # Without training text nothing is centred.
    assert metrics == {
        "probe/retrieval_accuracy": 1.0,
        "probe/retrieval_layer/raw": 0.0,
        "probe/retrieval_chance": 1 / 50,
        "probe/retrieval_accuracy/en-ru": 1.0,
        "probe/raw/layer_0": 1.0,
        "probe/raw/layer_0/en-ru": 1.0,
        "probe/csls/layer_0": 1.0,
        "probe/csls/layer_0/en-ru": 1.0,
    }


def test_the_weights_of_step_0_are_evaluated_once():
    evaluated = []

    def accuracy(params, step):
        evaluated.append(step)
        return {"probe/retrieval_accuracy": float(params["table"][0])}

    initial, later = {"table": jax.numpy.zeros(1)}, {"table": jax.numpy.ones(1)}
    evaluate = with_untrained(accuracy, initial)
    assert evaluate(initial, 0)["probe/retrieval_accuracy"] == 0
    assert evaluate(later, 0)["probe/retrieval_accuracy"] == 1  # As a warm start does.
    assert evaluated == [0, 0]


def offset_table(offset=100, scale=3.0):
    """Returns a table in which translations differ only by a direction per language."""
    table = np.array(cross_lingual_table(offset))
    directions = np.random.default_rng(3).normal(size=(2, 16))
    table[10 : 10 + offset] += scale * directions[0]
    table[10 + offset : 10 + 2 * offset] += scale * directions[1]
    return jax.numpy.asarray(table)


def test_training_text_shows_what_a_direction_per_language_hides(tmp_path):
    pairs = translations(90)
    dataset = prepare(
        tmp_path,
        {"en-ru": (("en", "ru"), pairs[::2]), "en-el": (("en", "el"), pairs[:20])},
        train={"en-ru": (("en", "ru"), pairs[1::2])},
    )
    probe = RetrievalProbe(batch_rows=8, readouts=("centred", "centred_transductive"))
    metrics = probe.build(dataset, table_encoder)(offset_table(), 0)
    raw, centred = (metrics[f"probe/{name}/layer_0/en-ru"] for name in ("raw", "centred"))
    assert raw < 0.5 and centred > raw + 0.2
    # There is no Greek to train on: no figure, and no mean over other pairs than raw's.
    assert {name for name in metrics if "/centred/" in name} == {"probe/centred/layer_0/en-ru"}
    with pytest.raises(ValueError, match="needs training text of el"):
        RetrievalProbe(readout="centred").build(dataset, table_encoder)
    headline = RetrievalProbe(pairs=("en-ru",), batch_rows=8, readout="centred", readouts=("raw",))
    of_pair = headline.build(dataset, table_encoder)(offset_table(), 0)
    assert of_pair["probe/retrieval_accuracy"] == of_pair["probe/centred/layer_0"] > raw + 0.2
    transductive = [metrics[f"probe/centred_transductive/layer_0/{x}"] for x in ("en-ru", "en-el")]
    assert metrics["probe/centred_transductive/layer_0"] == pytest.approx(np.mean(transductive))


def test_every_layer_and_the_encoders_beside_have_their_figures(tmp_path):
    dataset = prepare(tmp_path, {"en-ru": (("en", "ru"), translations(30))})

    def deep(params, batch):
        (first,) = table_encoder(params, batch)
        return [first, 0 * first]

    evaluate = RetrievalProbe(layer=1, readouts=("raw",)).build(
        dataset, deep, 1, {"generator": table_encoder}
    )
    metrics = with_untrained(evaluate, random_table())(cross_lingual_table(), 5)
    assert metrics["probe/retrieval_accuracy"] == pytest.approx(1 / 30)
    assert metrics["probe/raw/layer_0"] == metrics["probe/generator/raw/layer_0"] == 1
    assert metrics["probe/raw/layer_1"] == metrics["probe/retrieval_accuracy"]
    assert metrics["probe/untrained/generator/raw/layer_0"] < 0.5
    assert not any("generator" in name and name.endswith("en-ru") for name in metrics)
    assert not any("untrained" in name and name.endswith("en-ru") for name in metrics)


@pytest.mark.parametrize(
    "pooled, layer, expected", [(None, None, 1), (Pooled(0, "mean"), None, 0), (None, 2, 2)]
)
def test_the_headline_is_the_layer_that_is_trained(tmp_path, pooled, layer, expected):
    dataset = prepare(tmp_path, {"en-ru": (("en", "ru"), translations(30))})

    def deep(params, batch, dropout_seeds=None):
        (first,) = table_encoder(params, batch)
        return [first, 0 * first, first]

    encoder = EncoderView(EncoderConfig(num_layers=2), deep, lambda params: params, pooled=pooled)
    objective = SimpleNamespace(encoder=encoder, diagnostics=SimpleNamespace(encoders={}))
    mesh = meshes.make_mesh(meshes.MeshConfig(), jax.devices()[:1])
    context = Context(dataset, objective, None, (), mesh)
    evaluate = RetrievalProbe(layer=layer, batch_rows=8).evaluator(context)(random_table())
    assert evaluate(cross_lingual_table(), 5)["probe/retrieval_layer/raw"] == expected


def test_each_side_is_encoded_alone_in_batches_of_one_shape(tmp_path):
    pairs = [([10, 11, 12], [20]), ([13], [21, 22])]
    dataset = prepare(tmp_path, {"t": (("en", "fr"), pairs)})
    shapes, rows = [], []

    def encode(params, batch):
        shapes.append({name: (x.shape, x.dtype.name) for name, x in batch.items()})
        jax.debug.callback(
            lambda *arrays: rows.extend(zip(*map(np.array, arrays))),
            *(batch[name] for name in ("tokens", "segment_ids", "positions")),
        )
        return table_encoder(params, batch)

    RetrievalProbe(batch_rows=3).build(dataset, encode)(random_table(), 0)
    jax.effects_barrier()
    # 4 texts in batches of 3, compiled once.
    assert shapes == [{n: ((3, 8), "int32") for n in ("tokens", "segment_ids", "positions")}]
    assert len(rows) == 6
    seen = {}
    for tokens, segments, positions in rows:
        text = tuple(tokens[segments > 0].tolist())
        assert (tokens[segments == 0] == PAD).all()
        assert positions.tolist() == [*range(len(text)), *[0] * (8 - len(text))]
        seen[text] = True
    assert sorted(seen) == [(0, 10, 11, 12, 2), (0, 13, 2), (0, 20, 2), (0, 21, 22, 2)]


def test_rows_are_rounded_up_to_the_devices_that_share_them(tmp_path):
    dataset = prepare(tmp_path, {"t": (("en", "fr"), translations(5))})
    shapes = []

    def encode(params, batch):
        shapes.append(batch["tokens"].shape)
        return table_encoder(params, batch)

    RetrievalProbe(batch_rows=3).build(dataset, encode, row_multiple=4)(random_table(), 0)
    assert shapes == [(4, 8)]


def test_mean_is_over_tasks_and_names_tell_corpora_apart(tmp_path):
    tasks = {
        "a.en-ru": (("en", "ru"), translations(10)),
        "b.en-ru": (("en", "ru"), translations(20)),
        "b.en-zh": (("en", "zh"), translations(40, offset=200)),
    }
    dataset = prepare(tmp_path, tasks)
    metrics = RetrievalProbe().build(dataset, table_encoder)(cross_lingual_table(), 0)
    per_task = {k: v for k, v in metrics.items() if k.startswith("probe/retrieval_accuracy/")}
    prefix = "probe/retrieval_accuracy/"
    assert set(per_task) == {prefix + name for name in ("a.en-ru", "b.en-ru", "en-zh")}
    assert per_task[prefix + "a.en-ru"] == per_task[prefix + "b.en-ru"] == 1.0
    assert per_task[prefix + "en-zh"] < 0.5
    assert metrics["probe/retrieval_accuracy"] == pytest.approx(np.mean(list(per_task.values())))
    assert metrics["probe/retrieval_chance"] == pytest.approx((1 / 10 + 1 / 20 + 1 / 40) / 3)


def test_ambiguous_pairs_are_skipped(tmp_path):
    pairs = [
        *translations(10),
        ([10], [400]),  # a source that has a translation already
        ([401], [110]),  # a target that has one
        ([402], [402]),  # the same text on both sides
    ]
    dataset = prepare(tmp_path, {"t": (("en", "fr"), pairs)})
    chosen = RetrievalProbe().candidates(dataset)["en-fr"].pairs
    sources, targets = zip(*chosen)
    assert len(set(sources)) == len(set(targets)) == len(chosen)
    assert (0, 402, 2) not in sources
    # The nine others, and of the first text either its first pair or both others.
    assert {source[1] for source in sources} - {401} == set(range(10, 20))


def test_pairs_are_few_and_the_same_each_time_but_not_the_first(tmp_path):
    dataset = prepare(tmp_path, {"t": (("en", "fr"), translations(90))})
    probe = RetrievalProbe(max_pairs=30)
    chosen = probe.candidates(dataset)["en-fr"].pairs
    assert len(chosen) == 30
    assert chosen == probe.candidates(dataset)["en-fr"].pairs
    assert max(source[1] for source, _ in chosen) > 70


def test_long_texts_are_cut_and_stay_texts(tmp_path):
    pairs = [(list(range(10, 30)), [300]), (list(range(40, 60)), [301])]
    dataset = prepare(tmp_path, {"t": (("en", "fr"), pairs)})
    (first, _), (second, _) = sorted(RetrievalProbe(length=5).candidates(dataset)["en-fr"].pairs)
    assert first == (0, 10, 11, 12, 2)
    assert second == (0, 40, 41, 42, 2)


def test_shared_tokens():
    assert shared_tokens((0, 10, 11, 2), (0, 12, 13, 14, 2)) == 0
    assert shared_tokens((0, 10, 10, 11, 2), (0, 11, 13, 14, 2)) == 0.5
    assert shared_tokens((0, 2), (0, 2)) == 0


def test_max_shared_leaves_out_what_tokens_alone_would_find(tmp_path):
    pairs = [*translations(4), ([30, 31], [31, 32]), ([33, 34], [34, 35])]
    dataset = prepare(tmp_path, {"t": (("en", "fr"), pairs)})
    counts = {
        limit: len(RetrievalProbe(max_shared=limit).candidates(dataset)["en-fr"].pairs)
        for limit in (0.0, 0.5, 1.0)
    }
    assert counts == {0.0: 4, 0.5: 6, 1.0: 6}


def test_patterns_choose_tasks(tmp_path):
    tasks = {name: (("en", "ru"), translations(5)) for name in ("a.en-ru", "b.en-ru")}
    dataset = prepare(tmp_path, tasks)
    assert list(RetrievalProbe(pairs=("b.*",)).candidates(dataset)) == ["en-ru"]
    with pytest.raises(ValueError, match=r"pairs = \('c.\*',\).*there are: a.en-ru, b.en-ru"):
        RetrievalProbe(pairs=("c.*",)).build(dataset, table_encoder)


def test_without_held_out_pairs_the_message_says_what_to_do(tmp_path):
    training = prepare(tmp_path / "one", {"t": (("en", "ru"), translations(5))}, split="train")
    with pytest.raises(ValueError, match=r"there are: none.*prepare .* held-out pairs"):
        RetrievalProbe().build(training, table_encoder)
    alone = prepare(tmp_path / "two", {"t": (("en", "ru"), [([5], [6])])})
    with pytest.raises(ValueError, match="no task has two different translations"):
        RetrievalProbe().build(alone, table_encoder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_pairs", 1), ("length", 2), ("batch_rows", 0), ("max_shared", 1.5)],
)
def test_wrong_values_name_the_field(field, value):
    with pytest.raises(ValueError, match=f"RetrievalProbe.{field} = {value} must"):
        RetrievalProbe(**{field: value})
    with pytest.raises(ValueError, match="'procrustes' is fitted on translations"):
        RetrievalProbe(readout="procrustes")


def test_layers_are_counted_as_hidden_states():
    assert RetrievalProbe().layer_of(12) == 6
    assert RetrievalProbe().layer_of(3) == 1
    assert RetrievalProbe(layer=0).layer_of(3) == 0
    assert RetrievalProbe(layer=3).layer_of(3) == 3
    with pytest.raises(ValueError, match="layer = 4, but the encoder has 3 layers"):
        RetrievalProbe(layer=4).layer_of(3)
