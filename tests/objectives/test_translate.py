"""Translation: its loss, its weights, and decoding token by token."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax.core import meta
from helpers.random_weights import random_weights
from helpers.tiny import slow_except
from jax.extend.core import jaxprs_in_params

from tests.ops.test_attention_kernel import abstract_mesh
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.random_translations import Sampling
from xlme_jax.evaluation.translation import Translator
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.model.veco_network import EncoderDecoderLM
from xlme_jax.objectives.translator import TranslateConfig
from xlme_jax.objectives.veco import VecoConfig
from xlme_jax.objectives.xlme import XLMConfig, XLMEConfig
from xlme_jax.tools.planning.counting import matmul_flops

VOCAB, LENGTH = 40, 24
BOS, PAD, EOS = 0, 1, 2
ENCODER = EncoderConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    ffn_size=20,
    max_length=LENGTH,
    relative_bias="none",
)
# For what does not depend on layers: compiles in half the time.
ONE_LAYER = {"num_layers": 1}
LANGUAGES = ("en", "fr", "ru")


def config(pretrained=None, encoder=None, **changes):
    encoder = dataclasses.replace(ENCODER, **encoder or {})
    return TranslateConfig(pretrained or VecoConfig(encoder), LANGUAGES, **changes)


def sentence(rng, words):
    return [BOS, *rng.integers(4, VOCAB - 1, words), EOS]


def pairs(rng, *sizes):
    """Returns a row for each tuple of (words, words): segments 1 and 2, 3 and 4, ..."""
    names = ("tokens", "segment_ids", "positions", "languages")
    rows = {name: np.zeros((len(sizes), LENGTH), np.int32) for name in names}
    rows["tokens"][:] = PAD
    for row, found in enumerate(sizes):
        start = 0
        for segment, words in enumerate((n for pair in found for n in pair), 1):
            part = slice(start, start + words + 2)
            rows["tokens"][row, part] = sentence(rng, words)
            rows["segment_ids"][row, part] = segment
            rows["positions"][row, part] = range(words + 2)
            rows["languages"][row, part] = 1 + (segment + row) % 3
            start += words + 2
    return {**rows, "rows": np.arange(len(sizes), dtype=np.int32)}


def as_float64(tree):
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x, np.float64)), tree)


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def weights(objective, seed=0):
    return random_weights(objective.init, jax.random.key(0), seed=seed)


def logits_of(objective, params, rows):
    """Returns the logits [B, L, V] of rows that are decoded as a whole."""
    hidden = objective.decode(params, rows, objective.encode(params, rows))
    config = objective.config.decoder
    model = EncoderDecoderLM(config, VOCAB, config.hidden_size, jnp.float64)
    weights = {"params": objective.decoder_params(params)}
    return model.apply(weights, hidden, method=EncoderDecoderLM.logits)


LAYERS = [("first", [0, 1]), ("last", [1, 2])]
CASES = {
    "all layers": {},
    "first layer": {"decoder_layers": 1, "decoder_from": "first"},
    "shared": {"decoder_layers": 2, "share_layers": True},
    "stacked, pre-norm": {"decoder_layers": 1, "encoder": {"scan_layers": True, "pre_norm": True}},
    "no positions": {"encoder": {"absolute_positions": False}},
}


@pytest.mark.parametrize("case", slow_except({"stacked, pre-norm"}, CASES))
def test_cached_decoding_equals_the_full_pass(case, double):
    objective = config(**CASES[case]).held_out().build(VOCAB, jnp.float64)
    params = as_float64(weights(objective))
    rows = pairs(np.random.default_rng(0), [(5, 7), (2, 1)], [(8, 4)])

    full = jax.jit(functools.partial(logits_of, objective))(params, rows)
    # Segment 2 of each row given segment 1, one sentence a row, and two hypotheses that agree.
    source, target = (rows["segment_ids"] == segment for segment in (1, 2))
    width = int(source.sum(axis=1).max())
    alone = {name: rows[name][:, :width] * source[:, :width] for name in rows if name != "rows"}
    alone["tokens"] = np.where(source[:, :width], rows["tokens"][:, :width], PAD)
    languages = np.array([row[on][0] for row, on in zip(rows["languages"], target)])
    places = range(int(target.sum(axis=1).max()))
    columns = [
        [min(np.flatnonzero(on)[0] + place, LENGTH - 1) for on in target] for place in places
    ]

    @jax.jit
    def decoded(params, tokens):
        decoder = objective.decoder(params, alone, languages)

        def step(caches, tokens):
            logits, caches = decoder.step(tokens, caches)
            return caches, logits

        return jax.lax.scan(step, decoder.cache(2, 12), tokens)[1]

    tokens = rows["tokens"][[0, 1], columns]
    stepwise = decoded(params, np.stack([tokens, tokens], axis=-1))
    for place in places:
        for row, column in enumerate(columns[place]):
            if target[row, column]:
                expected = np.broadcast_to(full[row, column], (2, VOCAB))
                np.testing.assert_allclose(stepwise[place, row], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("smoothing", slow_except({0.2}, [0.0, 0.1, 0.2]))
def test_loss_and_gradient_are_those_of_torch(smoothing, double):
    plain = {"encoder": ONE_LAYER, **dict.fromkeys(("dropout", "attention_dropout"), 0.0)}
    objective = config(label_smoothing=smoothing, **plain).build(VOCAB, jnp.float64)
    params = as_float64(weights(objective))
    params["tokens"]["embedding"] = params["tokens"]["embedding"].at[VOCAB:].set(9.0)  # Unused.
    batch = {"bitext": pairs(np.random.default_rng(1), [(5, 7), (2, 1)], [(8, 4)])}
    rows, totals = batch["bitext"], objective.totals(batch)

    def loss(params):
        outputs = objective.loss(params, {}, batch, totals, jax.random.key(0))
        return outputs.loss(), outputs.metrics

    (value, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    follows = [
        (row, column)
        for row, column in zip(*np.nonzero(rows["segment_ids"][:, :-1]))
        if rows["segment_ids"][row, column + 1] == rows["segment_ids"][row, column]
    ]
    row, column = np.array(follows).T

    @jax.jit
    def predicted(params, factors):
        scores, backward = jax.vjp(lambda p: logits_of(objective, p, rows)[row, column], params)
        return scores, backward(factors)[0]

    scores, _ = predicted(params, jnp.zeros((len(row), VOCAB)))
    dense = torch.tensor(np.asarray(scores), requires_grad=True)
    targets = torch.tensor(rows["tokens"][row, column + 1], dtype=torch.long)
    expected = torch.nn.functional.cross_entropy(dense, targets, label_smoothing=smoothing)
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-12)
    _, expected_gradient = predicted(params, dense.grad.numpy())
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient)):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10 * max(1, np.abs(theirs).max()))
    # The logged loss has no smoothing, so that it is comparable with held-out losses.
    plain_loss = torch.nn.functional.cross_entropy(dense, targets).item()
    top, bottom = metrics["bitext/loss"]
    assert bottom == len(follows) == totals["bitext"]["tokens"]
    np.testing.assert_allclose(top / bottom, plain_loss, rtol=1e-6)


def in_halves(rows):
    """Returns the rows with sources in the first half of columns, translations in the second."""
    halves = []
    for side in (1, 0):
        own = rows["segment_ids"] % 2 == side
        order = np.argsort(~own, axis=1, kind="stable")
        found = {k: np.take_along_axis(v, order, 1) for k, v in rows.items() if k != "rows"}
        kept = np.take_along_axis(own & (rows["segment_ids"] > 0), order, 1)
        blank = {"tokens": PAD}
        halves.append({k: np.where(kept, v, blank.get(k, 0)) for k, v in found.items()})
    names = halves[0]
    return {"rows": rows["rows"], **{n: np.concatenate([h[n] for h in halves], 1) for n in names}}


@pytest.mark.slow
def test_one_direction_is_its_part_of_both(double):
    plain = dict.fromkeys(("dropout", "attention_dropout", "label_smoothing"), 0.0)
    plain["encoder"] = ONE_LAYER
    both, one = (
        config(directions=found, **plain).build(VOCAB, jnp.float64) for found in ((), ("en-fr",))
    )
    params = as_float64(weights(both))
    rows = in_halves(pairs(np.random.default_rng(1), [(5, 7), (2, 1)], [(8, 4)]))
    batch = {"bitext": rows}
    translated = np.arange(2 * LENGTH) >= LENGTH

    def restricted(params):
        """Returns the loss of the targets in second halves, from logits of both directions."""
        logits = logits_of(both, params, rows)
        row, column = np.nonzero((rows["segment_ids"] > 0) & translated & (rows["tokens"] != EOS))
        log_p = jax.nn.log_softmax(logits)[row, column, rows["tokens"][row, column + 1]]
        return -log_p.mean()

    def loss(params):
        return one.loss(params, {}, batch, one.totals(batch), jax.random.key(0)).loss()

    expected, gradient = jax.jit(jax.value_and_grad(restricted))(params)
    found, ours = jax.jit(jax.value_and_grad(loss))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert one.totals(batch)["bitext"]["tokens"] == 8 + 2 + 5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), ours, gradient)


@pytest.mark.slow
def test_one_direction_costs_half():
    both, one = (
        config(encoder={"max_length": 64, **ONE_LAYER}, directions=found).build(VOCAB)
        for found in ((), ("en-fr",))
    )
    shapes = {"bitext": (4, 64)}
    assert one.diagnostics.flops(shapes) == both.diagnostics.flops({"bitext": (4, 32)})
    params = weights(both)
    names = ("tokens", "segment_ids", "positions", "languages")
    rows = {name: jnp.ones((4, 64), jnp.int32) for name in names} | {"rows": jnp.arange(4)}

    def counted(objective):
        def loss(params):
            batch = {"bitext": rows}
            totals = objective.totals(batch)
            return objective.loss(params, {}, batch, totals, jax.random.key(0)).loss()

        return matmul_flops(jax.make_jaxpr(jax.grad(loss))(params))

    assert 0.35 < counted(one) / counted(both) < 0.55


def float_shapes(jaxpr):
    """Yields the shapes of all arrays of real numbers, those inside of kernels included."""
    for equation in jaxpr.eqns:
        for value in equation.outvars:
            aval = value.aval
            if jnp.issubdtype(getattr(aval, "dtype", bool), jnp.floating):
                yield aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from float_shapes(inner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "directions"),
    itertools.product(("kernel", "xla"), ((), ("en-fr",))),
)
def test_with_the_kernel_a_train_step_has_no_scores_of_rows(attention, directions):
    long, rows = 1024, 2
    length = long * (1 + bool(directions))
    encoder = {"max_length": long, "attention": attention, **ONE_LAYER}
    objective = config(encoder=encoder, directions=directions).build(VOCAB)
    names = ("tokens", "segment_ids", "positions", "languages")
    batch = dict.fromkeys(names, jax.ShapeDtypeStruct((rows, length), jnp.int32))
    batch = {"bitext": {**batch, "rows": jax.ShapeDtypeStruct((rows,), jnp.int32)}}

    def step(params, batch):
        totals, key = objective.totals(batch), jax.random.key(1)
        return jax.grad(lambda p: objective.loss(p, {}, batch, totals, key).loss())(params)

    with jax.sharding.use_abstract_mesh(abstract_mesh("tpu", 1)):
        params = jax.eval_shape(lambda: meta.unbox(objective.init(jax.random.key(0))))
        traced = jax.make_jaxpr(step)(params, batch)
    squares = [shape for shape in float_shapes(traced.jaxpr) if sum(n >= long for n in shape) > 1]
    assert bool(squares) == (attention == "xla")
    # Forward and backward passes of an encoder layer, and of two attentions in a decoder layer.
    assert str(traced).count("name=attention_forward") == 3 * (attention == "kernel")
    assert str(traced).count("name=attention_backward") == 3 * (attention == "kernel")


def test_directions_limit_the_languages_of_translations():
    objective = config(directions=("en-fr",)).held_out().build(VOCAB)
    with pytest.raises(ValueError, match="translates into fr, not 'en'"):
        Translator(objective, BeamSearch())({}, [(BOS, 5, EOS)], "en")
    assert objective.config.translates("en", "fr") and not objective.config.translates("fr", "en")
    assert objective.config.translates("eng_Latn", "fra")


@pytest.mark.slow
def test_a_translation_reads_its_own_source_and_language_only():
    objective = config().held_out().build(VOCAB)
    params = weights(objective)
    rows = pairs(np.random.default_rng(2), [(5, 3), (2, 1)])

    @jax.jit
    def decoded(rows):
        return objective.decode(params, rows, objective.encode(params, rows))[0]

    before, segments = decoded(rows), rows["segment_ids"][0]
    changed = {**rows, "tokens": rows["tokens"].copy()}
    changed["tokens"][0, 2] = 4 + (rows["tokens"][0, 2] + 1) % 30  # In the first sentence.
    moved = np.abs(decoded(changed) - before).max(axis=1) > 1e-6
    assert moved[segments == 2].all() and not moved[segments > 2].any()
    # A token changes its own segment from there on, and the other one through the encoder.
    np.testing.assert_array_equal(moved[segments == 1], np.arange(7) >= 2)
    other = {**rows, "languages": np.where(rows["segment_ids"] == 4, 3, rows["languages"])}
    assert rows["languages"][0][segments == 4][0] != 3
    moved = np.abs(decoded(other) - before).max(axis=1) > 1e-6
    np.testing.assert_array_equal(moved, segments == 4)


@pytest.mark.parametrize(
    ("origin", "kept", "scan"),
    slow_except(
        [("last", [1, 2], True)],
        [(*layers, scan) for layers in LAYERS for scan in (False, True)],
    ),
)
def test_weights_come_from_the_layers_of_the_encoder(origin, kept, scan):
    encoder = {"scan_layers": scan, "num_layers": 3}
    changes = {"decoder_layers": 2, "decoder_from": origin, "encoder": encoder}
    objective = config(**changes).build(VOCAB)
    pretrained = VecoConfig(dataclasses.replace(ENCODER, **encoder)).build(VOCAB)
    theirs = random_weights(pretrained.init, jax.random.key(0))
    ours = jax.jit(objective.warm_start.derive)(theirs)
    for mine, its in (("decoder", "encoder"), ("cross", "cross")):
        for number, layer in enumerate(kept):
            if scan:
                own = jax.tree.map(lambda x, i=number: np.asarray(x)[i], ours[mine]["layers"])
                expected = jax.tree.map(lambda x, i=layer: np.asarray(x)[i], theirs[its]["layers"])
            else:
                own, expected = ours[mine][f"layer_{number}"], theirs[its][f"layer_{layer}"]
            jax.tree.map(np.testing.assert_array_equal, own, expected)
    shapes = jax.tree.map(jnp.shape, meta.unbox(jax.eval_shape(objective.init, jax.random.key(0))))
    assert jax.tree.map(jnp.shape, ours) == {k: v for k, v in shapes.items() if k != "languages"}
    # All that VECO has arrives, but the cross-attention of unused layers.
    jax.tree.map(np.testing.assert_array_equal, ours["encoder"], theirs["encoder"])


@pytest.mark.slow
def test_translations_do_not_depend_on_the_batch():
    objective = config(encoder=ONE_LAYER).held_out().build(VOCAB)
    params, rng = weights(objective), np.random.default_rng(3)
    texts = [tuple(sentence(rng, words)) for words in (3, 9, 1, 9, 6, 2, 14)]
    many, few = (Translator(objective, BeamSearch(4), batch_tokens=n) for n in (256, 16))
    found = many(params, texts, "ru")
    alone = [few(params, [text], "ru")[0] for text in texts]
    assert [[one.tokens for one in best] for best in found] == [
        [one.tokens for one in best] for best in alone
    ]
    scores = [[[one.score for one in best] for best in result] for result in (found, alone)]
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)
    assert all(np.all(np.diff([one.score for one in best]) <= 0) for best in found)
    assert found != many(params, texts, "fr")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [BeamSearch(1), BeamSearch(3), BeamSearch(3, 2.0, "never"), Sampling(3, 1.5, seed=2)],
    ids=lambda how: f"{type(how).__name__}-{how.hypotheses}",
)
def test_the_longest_line_sets_no_limit_for_the_others(how):
    """The position table has room for all; the limit of a line is twice its own row."""
    objective = config(encoder={**ONE_LAYER, "max_length": 128}).held_out().build(VOCAB)
    params = weights(objective)
    texts = [(BOS, 5, 9, EOS), (BOS, *[6, 5, 4] * 6, EOS)]
    translator = Translator(objective, how)
    assert [translator.limit(text) for text in texts] == [2 * 8, 2 * 24]
    assert translator.limit((BOS, *[5] * 68, EOS)) == 128  # Of the position table, not 2 * 80.
    alone = [dict(translator.each(params, [text], "fr", [n]))[0] for n, text in enumerate(texts)]
    for order in ((0, 1), (1, 0)):
        found = dict(translator.each(params, [texts[n] for n in order], "fr", order))
        for place, number in enumerate(order):
            together = [one.tokens for one in found[place]]
            assert together == [one.tokens for one in alone[number]]
    for best, text in zip(alone, texts):
        for one in best:
            ends = translator.limit(text) - 1  # `<s>` is not among the tokens.
            assert len(one.tokens) == ends if one.is_cut else len(one.tokens) <= ends - 1
    assert any(one.is_cut for best in alone for one in best)


@pytest.mark.slow
def test_scores_are_those_of_search():
    objective = config(encoder={"num_layers": 3}).held_out().build(VOCAB)
    params, rng = weights(objective), np.random.default_rng(3)
    texts = [tuple(sentence(rng, words)) for words in (3, 9, 1, 6)]
    translator = Translator(objective, BeamSearch(3), batch_tokens=64)
    pairs, expected = [], []
    for text, best in zip(texts, translator(params, texts, "ru")):
        for one in best:
            if len(one.tokens) < 2 * 8 - 2:  # Ended by itself, not by the length limit.
                pairs.append((text, (BOS, *one.tokens, EOS)))
                expected.append(one.score)
    found = dict(translator.score(params, pairs, "ru"))
    assert len(pairs) > 3
    np.testing.assert_allclose(
        [found[n].mean for n in range(len(pairs))], expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_samples_depend_on_the_seed_and_not_on_the_batch():
    objective = config(encoder=ONE_LAYER).held_out().build(VOCAB)
    params, rng = weights(objective), np.random.default_rng(3)
    texts = [tuple(sentence(rng, words)) for words in (3, 6, 1, 4, 6, 2, 5)]
    draw = Sampling(3, seed=5)
    many, few = (Translator(objective, draw, batch_tokens=n) for n in (256, 16))
    found = [[one.tokens for one in best] for best in many(params, texts, "ru")]
    assert found == [[one.tokens for one in best] for best in few(params, texts, "ru")]
    assert len({tokens for best in found for tokens in best}) > 15
    other = Translator(objective, dataclasses.replace(draw, seed=6), batch_tokens=256)
    assert found != [[one.tokens for one in best] for best in other(params, texts, "ru")]
    # The model's own probabilities, whatever the draws exclude.
    cut = Translator(objective, Sampling(2, 0.7, top_k=9, top_p=0.9), batch_tokens=256)
    for best, text in zip(cut(params, texts, "ru"), texts):
        ended = [one for one in best if len(one.tokens) < 14]
        pairs = [(text, (BOS, *one.tokens, EOS)) for one in ended]
        scores = dict(cut.score(params, pairs, "ru")) if pairs else {}
        for number, one in enumerate(ended):
            np.testing.assert_allclose(one.score, scores[number].mean, rtol=1e-4)


@pytest.mark.slow
def test_the_most_probable_token_alone_is_greedy_search():
    objective = config(encoder=ONE_LAYER).held_out().build(VOCAB)
    params, rng = weights(objective), np.random.default_rng(3)
    texts = [tuple(sentence(rng, words)) for words in (3, 6, 1, 6)]
    found = [
        [
            (one.tokens, round(one.score, 4))
            for best in Translator(objective, how)(params, texts, "fr")
            for one in best
        ]
        for how in (BeamSearch(1), Sampling(top_k=1), Sampling(top_p=1e-6))
    ]
    assert found[0] == found[1] == found[2]


ERRORS = [
    ({"pretrained": XLMEConfig()}, "XLMEConfig: its encoder has no head that predicts tokens"),
    ({"pretrained": XLMConfig(EncoderConfig())}, "relative_bias = 'gated', which decoding"),
    ({"decoder_layers": 3}, "decoder_layers = 3 must be from 1 to Encoder.num_layers = 2"),
    ({"label_smoothing": 1.0}, "Translate.label_smoothing = 1.0 must lie in"),
    ({"directions": ("en-de",)}, "Translate: directions=.*'en-de' must be SOURCE-TARGET, two of"),
    ({"decoder_from": "middle"}, "Translate.decoder_from"),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS, ids=lambda value: str(value)[:30])
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_unknown_languages_are_refused():
    objective = config().held_out().build(VOCAB)
    with pytest.raises(ValueError, match="translates into en, fr, ru, not 'de'"):
        Translator(objective, BeamSearch())({}, [(BOS, 5, EOS)], "de")
