"""Trained models in Python, against the evaluations' encodings and the objectives' own heads."""

import dataclasses
import functools
import json
import random
import shutil

import jax
import numpy as np
import optax
import pytest
from helpers import hf_folders, tiny

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.text.reading import ReadReport
from xlme_jax.evaluation import encoding, readouts
from xlme_jax.evaluation.alignment import _aligner, _rows
from xlme_jax.ops.vocabulary_head import num_chunks
from xlme_jax.runs import evaluating, models, trained
from xlme_jax.training import sharded_state as states
from xlme_jax.training.mesh import MeshConfig, make_mesh, unbox

# Float32 sums in another order: a few units in the last place of values of about 1, after a layer.
TOLERANCE = 1e-5
rng = random.Random(1)
TEXTS = [
    " ".join("".join(rng.choices("abcdefghij", k=rng.randint(1, 5))) for _ in range(words))
    for words in (3, 1, 7, 2, 12, 5, 4, 9, 1, 6, 30)
]
PAIR = "abc de fghi", "jih gf"
MASKED = "abc <mask> de<mask>"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return hf_folders.write_checkpoint(tmp_path_factory.mktemp("xlme") / "run")


@pytest.fixture(scope="module")
def model(model_dir):
    return models.load(str(model_dir), None, MeshConfig())


@pytest.fixture(scope="module")
def xlm(tmp_path_factory):
    folder = hf_folders.write_checkpoint(tmp_path_factory.mktemp("xlm") / "run", "xlm")
    return models.load(str(folder), None, MeshConfig())


@pytest.fixture(scope="module")
def sentence_encoder(tmp_path_factory):
    """Returns a MODEL_DIR of `Contrast` that pools the first token of layer 1 of 4."""
    folder = tmp_path_factory.mktemp("contrast") / "run"
    fields = {"layer": 1, "pooling": "first", "anchor_weight": 0.0, "freeze_tokens": False}
    bindings = {f"Contrast__{name}": value for name, value in fields.items()}
    return hf_folders.write_checkpoint(folder, "contrast", Encoder__num_layers=4, **bindings)


def rows_of(text):
    return encoding.fill_rows([text], 1, len(text) + 3)


def tokens_of(model, text):
    return (0, *model.vocabulary.encode(text), 2)


def test_sentences_are_encoded_as_contrast_trained_them(sentence_encoder):
    """By default; the middle layer of 4 would be the second, and the mean is not what is read."""
    model = models.load(str(sentence_encoder), None, MeshConfig())
    expected = model.encode(TEXTS, layer=1, pooling="first")
    np.testing.assert_array_equal(model.encode(TEXTS), expected)
    assert not np.allclose(model.encode(TEXTS, pooling="mean"), expected)
    np.testing.assert_array_equal(model.encode_layers(TEXTS)[1], expected)
    by_default = model.retrieve(TEXTS[:2], TEXTS[2:], readout="raw")
    as_trained = model.retrieve(TEXTS[:2], TEXTS[2:], readout="raw", layer=1, pooling="first")
    np.testing.assert_array_equal(by_default.scores, as_trained.scores)


def test_another_readout_than_that_of_training_is_said(sentence_encoder, caplog):
    options = evaluating.Options(data="missing")
    subject = trained.load(str(sentence_encoder), None, make_mesh(MeshConfig())).subject()
    assert evaluating._as_trained(options, subject).layer == 1
    assert "are those of layer 1, pooled as 'first'; evaluated are layer 1, 'mean'" in caplog.text
    caplog.clear()
    evaluating._as_trained(dataclasses.replace(options, pooling="first"), subject)
    assert not caplog.text
    other = dataclasses.replace(options, pooling="first", layer=2)
    assert evaluating._as_trained(other, subject).layer == 2 and "layer 2, 'first'" in caplog.text


@pytest.mark.parametrize("pooling", tiny.slow_except(["mean"], encoding.POOLINGS))
def test_texts_are_encoded_as_by_evaluations(model, pooling, caplog):
    subject = model.loaded.subject()
    texts = encoding.texts_of(model.vocabulary, TEXTS, hf_folders.LENGTH, ReadReport())
    assert len(texts[-1]) == hf_folders.LENGTH  # Cut.
    pooled = jax.jit(encoding.pool_all(subject.encode, pooling))
    with states.sharding_rules(model.loaded.mesh):
        expected = encoding.embed(pooled, model.loaded.params, encoding.batches(texts))
    for layer in range(model.num_layers + 1):
        found = model.encode(TEXTS, layer=layer, pooling=pooling)
        np.testing.assert_allclose(found, expected[:, layer], atol=TOLERANCE)
    assert "3 of 11 texts have more than 32 tokens" in caplog.text
    every = model.encode_layers(TEXTS, pooling=pooling)
    np.testing.assert_allclose(every, expected.swapaxes(0, 1), atol=TOLERANCE)
    middle = model.encode(TEXTS, pooling=pooling)
    np.testing.assert_array_equal(middle, model.encode(TEXTS, layer=0, pooling=pooling))


@pytest.mark.slow
def test_the_untrained_model_has_the_initial_weights_of_its_run(model):
    untrained = model.untrained()
    objective, seed = model.loaded.objective, model.loaded.config.loop.seed
    state = jax.jit(lambda: states.init_state(objective, optax.identity(), seed))()
    same = functools.partial(np.testing.assert_allclose, atol=TOLERANCE)
    jax.tree.map(same, untrained.loaded.params, unbox(state.params))
    texts = encoding.texts_of(model.vocabulary, TEXTS[:2], hf_folders.LENGTH, ReadReport())
    pooled = jax.jit(encoding.pool_all(model.loaded.subject().encode, "mean"))
    expected = pooled(unbox(state.params), encoding.fill_rows(texts, 2, hf_folders.LENGTH))
    found, trained = (one.encode(TEXTS[:2], layer=1) for one in (untrained, model))
    same(found, expected[:, 1])
    assert np.abs(found - trained).max() > 0.01


def test_a_text_does_not_depend_on_the_others(model):
    together = model.encode(TEXTS)
    assert len(np.unique(together, axis=0)) == len(TEXTS)
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=TOLERANCE)


def test_few_shapes_are_compiled(model):
    pooled = model._pooled(1, "first")
    before = pooled._cache_size()
    for count in range(1, 9):
        model.encode([TEXTS[0]] * count, layer=1, pooling="first")
    assert pooled._cache_size() == before + 1


def test_detection_is_the_discriminators(model):
    text = TEXTS[3]
    tokens = tokens_of(model, text)
    found = model.detect(text)
    assert [one.token for one in found] == [model.vocabulary.id_to_piece(t) for t in tokens]
    assert (found[0].token, found[-1].token) == ("<s>", "</s>")
    network, params = model.loaded.objective.model, model.loaded.params
    apply = jax.jit(functools.partial(network.apply, method="discriminate"))
    logits = apply({"params": params}, rows_of(tokens))[0]
    expected = 1 / (1 + np.exp(-np.asarray(logits, np.float64)[: len(tokens)]))
    np.testing.assert_allclose([one.probability for one in found], expected, atol=TOLERANCE)
    assert np.ptp(expected) > 0.01


@pytest.mark.parametrize("name", tiny.slow_except(["model"], ["model", "xlm"]))
def test_fillings_have_the_probabilities_of_the_loss(name, request):
    """The streamed vocabulary head of training computes the same without holding all logits."""
    model = request.getfixturevalue(name)
    words, objective = model.vocabulary, model.loaded.objective
    found = model.fill(MASKED, k=4)
    ids = [words.encode(part) for part in ("abc ", " de")]
    tokens = (0, *ids[0], words.mask_id, *ids[1], words.mask_id, 2)
    places = np.flatnonzero(np.array(tokens) == words.mask_id)[None]
    assert len(found) == places.size == 2
    uniforms = np.zeros((1, 2, num_chunks(words.size), 2))
    predict = jax.jit(functools.partial(objective.model.apply, method=objective._predict))
    for rank in range(4):
        targets = np.array([[words.piece_to_id(of_mask[rank].token) for of_mask in found]])
        params = {"params": model.loaded.params}
        prediction = predict(params, rows_of(tokens), places, targets, uniforms)
        shares = [of_mask[rank].probability for of_mask in found]
        np.testing.assert_allclose(shares, np.exp(-prediction.loss[0]), rtol=1e-4)
        if not rank:
            np.testing.assert_array_equal(targets, prediction.argmax)
    every = model.fill(MASKED, k=10_000)[0]
    assert len(every) == words.size
    np.testing.assert_allclose(sum(one.probability for one in every), 1, atol=1e-4)
    assert every[:4] == found[0]


def cosines(one, other):
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other))
    return (one.astype("f8") @ other.T.astype("f8")).astype("f8")


def csls(scores):
    """CSLS by definition, with all neighbours of fewer than ten."""
    own = np.sort(scores, axis=1)[:, -10:].mean(axis=1)
    others = np.sort(scores, axis=0)[-10:].mean(axis=0)
    return 2 * scores - own[:, None] - others


@pytest.mark.parametrize("readout", ["raw", "csls"])
@pytest.mark.parametrize("sizes", [(3, 20), (70, 4), (1, 1)])
def test_scores_of_any_numbers_of_texts(readout, sizes):
    generator = np.random.default_rng(sum(sizes))
    one, other = (generator.normal(0.3, 1, (size, 6)).astype("f4") for size in sizes)
    expected = cosines(one, other)
    expected = csls(expected) if readout == "csls" else expected
    found = readouts.scores(one, other, readout)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_retrieval_finds_the_same_text(model):
    found = model.retrieve(TEXTS[3:5], TEXTS, k=3, layer=1)
    assert found.indices.shape == found.scores.shape == (2, 3)
    assert found.indices[:, 0].tolist() == [3, 4]
    assert (np.diff(found.scores, axis=1) <= 0).all()
    states = model.encode(TEXTS, layer=1)
    expected = csls(cosines(states[3:5], states))
    np.testing.assert_allclose(found.scores[:, 0], expected.max(axis=1), atol=TOLERANCE)
    raw = model.retrieve(TEXTS[:1], TEXTS[:1], readout="raw", k=9)
    assert raw.indices.tolist() == [[0]]
    np.testing.assert_allclose(raw.scores, 1, atol=TOLERANCE)


@pytest.mark.parametrize("layer", tiny.slow_except([1], [0, 1]))
def test_words_are_linked_as_by_the_evaluation(model, layer):
    found = model.align(*PAIR, layer=layer)
    assert (found.source, found.target) == tuple(tuple(side.split()) for side in PAIR)
    none = (frozenset(),)
    corpus = models.AlignedCorpus("", ("", ""), (found.source,), (found.target,), none, none, 0)
    (row,) = _rows(corpus, model.vocabulary)
    subject, params = model.loaded.subject(), model.loaded.params
    links = jax.jit(_aligner(subject, None))(params, rows_of(row.tokens))["transport"]
    assert found.predicted == row.word_links(np.asarray(links)[0, layer])
    assert found.predicted
    assert model.align(*map(str.split, PAIR), layer=layer).predicted == found.predicted


def test_what_a_system_lacks_is_named(xlm):
    with pytest.raises(ValueError, match=r"detect needs a discriminator, which XLM, .*XLM-E or"):
        xlm.detect("abc")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.encode("abc"), "must be a list of at least one text"),
        (lambda m: m.encode([]), "must be a list of at least one text"),
        (lambda m: m.encode(["abc"], layer=2), "layer = 2, but the encoder has 1 layers"),
        (lambda m: m.encode(["abc"], pooling="max"), "pooling = 'max': expected one of 'mean'"),
        (lambda m: m.encode_layers([]), "must be a list of at least one text"),
        (lambda m: m.encode_layers(["abc"], pooling="max"), "pooling = 'max': expected one of"),
        (lambda m: m.retrieve(["a"], ["b"], readout="best"), "readout = 'best': expected one of"),
        (lambda m: m.fill("abc"), "'abc' has no <mask>"),
        (
            lambda m: m.detect(TEXTS[-1]),
            f"and the model reads {hf_folders.LENGTH}; shorten",
        ),
        (
            lambda m: m.fill(f"<mask> {TEXTS[-1]}"),
            f"and the model reads {hf_folders.LENGTH}",
        ),
        (
            lambda m: m.align(TEXTS[-1], "a"),
            f"and the encoder reads {hf_folders.LENGTH}; shorten",
        ),
        (lambda m: m.align("abc", " "), "without words"),
        (lambda m: m.align(["a b"], ["c"]), "'a b' is no word; give a sentence as a string"),
        (lambda m: m.detect(["abc"]), r"text = \['abc'\] must be one text"),
        (lambda m: m.fill(["a <mask>"]), r"must be one text; call this for each of several"),
        (lambda m: m.retrieve(["a"], ["b"], readout="centred"), "the mean vector of each language"),
    ],
)
def test_wrong_arguments_are_named(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


ON_EIGHT = f"""
import json, sys
import jax
from xlme_jax import api
from xlme_jax.training.mesh import MeshConfig

assert jax.device_count() == 8
model = api.load(sys.argv[1], mesh=MeshConfig(data=2, fsdp=2, tensor=2))
kernel = max(jax.tree.leaves(model.loaded.params), key=lambda x: x.size)
assert len({{str(shard.index) for shard in kernel.addressable_shards}}) == 4
found = dict(
    encoded=model.encode({TEXTS!r}).tolist(),
    detected=model.detect({TEXTS[3]!r}),
    filled=model.fill({MASKED!r}),
    matches=model.retrieve({TEXTS[:3]!r}, {TEXTS!r}, k=2).indices.tolist(),
    links=sorted(model.align(*{PAIR!r}).predicted),
    unwanted=[name for name in ("tensorflow", "seqio", "tasks") if name in sys.modules],
)
print("FOUND", json.dumps(found))
"""


@pytest.mark.slow
def test_eight_devices_find_the_same_and_import_no_tensorflow(model_dir, model):
    output = tiny.run(["-c", ON_EIGHT, str(model_dir)], devices=8)
    found = json.loads(output.split("FOUND ")[1].splitlines()[0])
    assert found["unwanted"] == []
    np.testing.assert_allclose(found["encoded"], model.encode(TEXTS), atol=TOLERANCE)
    for one, other in zip(
        [found["detected"], *found["filled"]], [model.detect(TEXTS[3]), *model.fill(MASKED)]
    ):
        assert [token for token, _ in one] == [token for token, _ in other]
        shares = [[share for _, share in side] for side in (one, other)]
        np.testing.assert_allclose(*shares, atol=TOLERANCE)
    assert found["matches"] == model.retrieve(TEXTS[:3], TEXTS, k=2).indices.tolist()
    assert [tuple(link) for link in found["links"]] == sorted(model.align(*PAIR).predicted)


def test_a_moved_run_is_loaded_with_its_own_vocabulary(tmp_path):
    written = hf_folders.write_checkpoint(tmp_path / "written")  # Also its DATA_DIR.
    moved = written.rename(tmp_path / "moved")
    assert models.load(str(moved), None, MeshConfig()).encode(["abc"]).shape[0] == 1
    (moved / "vocabulary.model").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"neither .*moved/voc.* nor .*written/voc.*--vocabulary"):
        models.load(str(moved), None, MeshConfig())


def test_data_that_moved_with_its_run_is_found(tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "moved" / "project"
    (project / "runs" / "first").mkdir(parents=True)
    shutil.copytree(tiny_data, project / "data" / "first")
    digest = PreparedDataset.load(tiny_data).digest
    beside = str(project / "data" / "first")
    for data_dir in ("data/first", "/gone/project/data/first"):
        assert trained.data_dir_of(project / "runs" / "first", data_dir, digest) == beside
    # Other data of the same name is not the run's.
    assert trained.data_dir_of(project / "runs" / "first", "data/first", "x") == "data/first"
    assert trained.data_dir_of(project / "runs" / "first", str(tiny_data), "x") == str(tiny_data)
