"""An exported translator has our logits, and `generate` finds our translations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import hf_folders, tiny

from xlme_jax.data.token_ids import BOS_ID, EOS_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation.beam_search import BeamSearch
from xlme_jax.evaluation.encoding import fill_rows, row_length
from xlme_jax.evaluation.translation import Translator
from xlme_jax.huggingface import writing

torch = pytest.importorskip("torch", reason="reads what is exported")
transformers = pytest.importorskip("transformers", reason="reads what is exported")

TEXTS = ["abc defg h", "p", "mnop aa bc ddd efg hij k lmn"]
# The attention whose weights can be read.
EAGER = {"attn_implementation": "eager"}
CASES = {
    "copied": {"Translate.decoder_layers": 1, "Encoder.num_layers": 2},
    "shared, stacked": {"Translate.share_layers": True, "Encoder.scan_layers": True},
}


@pytest.fixture(params=tiny.slow_except({"copied"}, CASES), scope="module")
def exported(request, tmp_path_factory):
    """Returns a translator, and a folder of it."""
    tmp_path = tmp_path_factory.mktemp("exported")
    run = hf_folders.write_checkpoint(
        tmp_path / "run",
        "translate",
        **{name.replace(".", "__"): value for name, value in CASES[request.param].items()},
    )
    writing.export(str(run), None, tmp_path / "folder", "a command")
    objective, params = hf_folders.read_checkpoint(run)
    return objective, params, tmp_path / "folder"


def check_attention(objective, params, texts, target, language, model, inputs):
    """Compares cross-attention, the mean over heads and layers, with that of the model."""
    start = model.config.language_token_ids[language]
    given = torch.from_numpy(np.concatenate([target[:, :1] * 0 + start, target[:, 1:]], 1))
    with torch.no_grad():
        found = model(**inputs, decoder_input_ids=given, output_attentions=True).cross_attentions
    assert len(found) == objective.config.decoder.num_layers
    theirs = torch.stack(found).mean(dim=(0, 2)).numpy()
    translator = Translator(objective, BeamSearch(), batch_tokens=len(texts) * 32)
    pairs = [(text, (*tokens, EOS_ID)) for text, tokens in zip(texts, target.tolist())]
    ours = dict(translator.attention(params, pairs, language))
    assert sorted(ours) == list(range(len(texts)))
    for number, text in enumerate(texts):
        assert ours[number].shape == (target.shape[1], len(text))
        expected = theirs[number, :, : len(text)]
        np.testing.assert_allclose(ours[number], expected, rtol=0, atol=2e-6)
        np.testing.assert_allclose(ours[number].sum(axis=1), 1, atol=1e-5)
        assert np.ptp(ours[number], axis=1).max() > 2e-4  # Weights are small.


@pytest.mark.slow
def test_logits_and_translations(exported):
    objective, params, folder = exported
    words = Vocabulary.load(folder / hf_folders.TOKENIZER)
    texts = [(BOS_ID, *words.encode(text), EOS_ID) for text in TEXTS]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, **EAGER).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    real = inputs["attention_mask"].bool().numpy()
    for ids, mask, text in zip(inputs["input_ids"].numpy(), real, texts):
        assert tuple(ids[mask]) == text
    number = 2
    language = objective.config.languages[number - 1]
    start = model.config.language_token_ids[language]
    assert tokenizer.convert_tokens_to_ids(f"<2{language}>") == start

    rows = fill_rows(texts, len(texts), real.shape[1])
    decoder = objective.decoder(params, rows, jnp.full(len(texts), number))
    target = np.random.default_rng(0).integers(4, words.size - 1, (len(texts), 6))
    target[:, 0] = BOS_ID
    caches, step, ours = decoder.cache(1, 6), jax.jit(decoder.step), []
    for place in range(6):
        logits, caches = step(jnp.asarray(target[:, place : place + 1]), caches)
        ours.append(logits[:, 0])
    given = target.copy()
    given[:, 0] = start
    with torch.no_grad():
        theirs = model(**inputs, decoder_input_ids=torch.from_numpy(given)).logits.numpy()
    assert theirs[..., words.size :].max() < -1e8  # Languages are never predicted.
    theirs = theirs[..., : words.size]
    np.testing.assert_allclose(np.stack(ours, 1), theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())

    check_attention(objective, params, texts, target, language, model, inputs)

    translator = Translator(objective, BeamSearch(3), batch_tokens=len(texts) * 32)
    found = translator(params, texts, language)
    for text, best in zip(texts, found):
        result = model.generate(
            torch.tensor([text]),
            decoder_start_token_id=start,
            num_beams=3,
            num_return_sequences=3,
            max_length=min(2 * row_length(len(text)), hf_folders.LENGTH),
            return_dict_in_generate=True,
            output_scores=True,
        )
        generated = [
            tuple(t for t in row.tolist()[1:] if t not in (EOS_ID, 1)) for row in result.sequences
        ]
        assert generated == [tuple(t for t in one.tokens if t != 1) for one in best]
        np.testing.assert_allclose(
            [one.score for one in best], result.sequences_scores.numpy(), rtol=1e-4
        )


def test_scores_of_given_translations(exported):
    """They are the model's teacher-forced log-probabilities in Hugging Face."""
    objective, params, folder = exported
    words = Vocabulary.load(folder / hf_folders.TOKENIZER)
    sources = [(BOS_ID, *words.encode(text), EOS_ID) for text in TEXTS]
    targets = [(BOS_ID, *words.encode(text), EOS_ID) for text in ("c dd e", "mn p a bb cc", "o")]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    language = objective.config.languages[1]
    start = model.config.language_token_ids[language]
    translator = Translator(objective, BeamSearch(), batch_tokens=64)
    found = dict(translator.score(params, list(zip(sources, targets)), language))
    assert len(found) == 3
    for number, (source, target) in enumerate(zip(sources, targets)):
        given = torch.tensor([[start, *target[1:-1]]])
        with torch.no_grad():
            logits = model(torch.tensor([source]), decoder_input_ids=given).logits[0]
        log_p = logits.log_softmax(-1)[range(len(target) - 1), target[1:]]
        assert found[number].tokens == len(target) - 1
        np.testing.assert_allclose(found[number].total, log_p.sum().item(), rtol=1e-4)
        np.testing.assert_allclose(found[number].mean, log_p.mean().item(), rtol=1e-4)


def test_the_card_has_working_code(exported):
    _, _, folder = exported
    card = (folder / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace('"folder"', repr(str(folder)))
    exec(compile(code, "card", "exec"), {})
