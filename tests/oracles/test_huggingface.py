"""Imported models equal XLM-R, and exported ones equal ours.

Transformers writes and reads the folders, with random weights; nothing is downloaded. Differences
are of float32 on values of size 1, or logits of size 1 to 10.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import hf_folders, tiny

from xlme_jax.huggingface.importing import import_folder
from xlme_jax.model.electra import Electra

torch = pytest.importorskip("torch", reason="compares with torch code")
transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's XLM-R")

TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def separate_modules(tmp_path):
    with hf_folders.separate_modules(tmp_path / "modules"):
        yield


def mlm_logits(objective, params, batch):
    def logits(module):
        hidden = module.encode(batch)
        shape = hidden.shape[:2]
        hidden, bias = module.head(hidden.reshape(-1, hidden.shape[-1]))
        scores = (hidden @ module.tables()[0].T + bias)[:, : objective.vocab_size]
        return scores.reshape(*shape, -1)

    return jax.jit(lambda params: objective.model.apply({"params": params}, method=logits))(params)


def rtd_logits(objective, params, batch):
    apply = functools.partial(objective.model.apply, method=Electra.discriminate)
    return jax.jit(apply)({"params": params}, batch)


SHAPES = [
    {},
    {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1},
    {
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-3,
        "max_position_embeddings": 100,
        "num_hidden_layers": 2,
    },
]


@pytest.mark.parametrize(
    ("shape", "scan_layers"),
    tiny.slow_except([(SHAPES[2], False)], itertools.product(SHAPES, (True, False))),
)
def test_imported_states_and_logits(tmp_path, shape, scan_layers):
    model = hf_folders.write_xlmr(tmp_path / "xlmr", **shape)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "xlmr").eval()
    import_folder(tmp_path / "xlmr", tmp_path / "run", scan_layers)
    objective, params = hf_folders.read_checkpoint(tmp_path / "run")
    batch = hf_folders.rows()
    with torch.no_grad():
        expected = model(**hf_folders.torch_inputs(batch), output_hidden_states=True)
    states = jax.jit(objective.encode)(params, batch)
    assert hf_folders.largest_difference(states, expected.hidden_states, batch) < TOLERANCE
    logits = mlm_logits(objective, params, batch)
    assert hf_folders.largest_difference([logits], [expected.logits], batch) < TOLERANCE


@pytest.mark.slow
def test_imported_encoder_without_a_head(tmp_path):
    model = hf_folders.write_xlmr(tmp_path / "xlmr", with_head=False)
    import_folder(tmp_path / "xlmr", tmp_path / "run", True)
    objective, params = hf_folders.read_checkpoint(tmp_path / "run")
    batch = hf_folders.rows()
    with torch.no_grad():
        expected = model(**hf_folders.torch_inputs(batch), output_hidden_states=True)
    states = jax.jit(objective.encode)(params, batch)
    assert hf_folders.largest_difference(states, expected.hidden_states, batch) < TOLERANCE
    assert np.std(params["head"]["dense"]["kernel"]) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize(
    ("sharing", "gate_input", "scan_layers"),
    tiny.slow_except(
        {("gdes", "hidden", False)},
        itertools.product(
            ("none", "tokens", "tokens+positions", "gdes"), ("query", "hidden"), (True, False)
        ),
    ),
)
def test_exported_discriminator(tmp_path, sharing, gate_input, scan_layers):
    run = hf_folders.write_checkpoint(
        tmp_path / "run",
        XLME__embedding_sharing=sharing,
        Encoder__gate_input=gate_input,
        Encoder__scan_layers=scan_layers,
        Encoder__num_layers=2,
        Encoder__relative_buckets=8,
        Encoder__relative_max_distance=11,
    )
    model, objective, params = check_exported(run, tmp_path / "exported", rtd_logits)
    # Segment ids passed as the mask separate the texts of a row and restart positions.
    batch = hf_folders.rows()
    batch["segment_ids"][0, 8:] = 2
    batch["positions"][0, 8:] -= 8
    with torch.no_grad():
        actual = model(**hf_folders.torch_inputs(batch)).logits
    expected = rtd_logits(objective, params, batch)
    assert hf_folders.largest_difference([expected], [actual], batch) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder",
    [
        {"relative_bias": "plain"},
        {"absolute_positions": False},
        {"pre_norm": True},
        {"pre_norm": True, "relative_bias": "none"},
        {"relative_bias": "none", "absolute_positions": False},
    ],
)
def test_other_exported_encoders(tmp_path, encoder):
    bindings = {f"Encoder__{name}": value for name, value in encoder.items()}
    run = hf_folders.write_checkpoint(
        tmp_path / "run", Encoder__num_layers=2, XLME__rtd_head="linear", **bindings
    )
    check_exported(run, tmp_path / "exported", rtd_logits)


def check_exported(run, folder, logits):
    """Checks all states and logits of the exported AutoModel; returns it, and what it equals."""
    hf_folders.export(run, folder)
    model, found = transformers.AutoModel.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    assert not found["missing_keys"] and not found["unexpected_keys"]
    objective, params = hf_folders.read_checkpoint(run)
    batch = hf_folders.rows()
    with torch.no_grad():
        actual = model(**hf_folders.torch_inputs(batch), output_hidden_states=True)
    states = jax.jit(objective.encode)(params, batch)
    assert hf_folders.largest_difference(states, actual.hidden_states, batch) < TOLERANCE
    assert torch.equal(actual.last_hidden_state, actual.hidden_states[-1])
    expected = logits(objective, params, batch)
    assert hf_folders.largest_difference([expected], [actual.logits], batch) < TOLERANCE
    return model, objective, params


@pytest.fixture(scope="module")
def exported_xlm(tmp_path_factory):
    """Returns a function from a relative bias to a run of XLM and the folder of its export."""

    @functools.cache
    def export(bias):
        folder = tmp_path_factory.mktemp(bias)
        run = hf_folders.write_checkpoint(
            folder / "run", "xlm", Encoder__relative_bias=bias, Encoder__num_layers=2
        )
        return run, hf_folders.export(run, folder / "exported")

    return export


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["none", "gated"])
def test_exported_masked_lm(exported_xlm, bias):
    run, folder = exported_xlm(bias)
    model, found = transformers.AutoModelForMaskedLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True
    )
    assert isinstance(model, transformers.XLMRobertaForMaskedLM) == (bias == "none")
    assert not found["missing_keys"] and not found["unexpected_keys"]
    objective, params = hf_folders.read_checkpoint(run)
    batch = hf_folders.rows()
    with torch.no_grad():
        actual = model(**hf_folders.torch_inputs(batch), output_hidden_states=True)
    states = jax.jit(objective.encode)(params, batch)
    assert hf_folders.largest_difference(states, actual.hidden_states, batch) < TOLERANCE
    logits = mlm_logits(objective, params, batch)
    assert hf_folders.largest_difference([logits], [actual.logits], batch) < TOLERANCE


@pytest.fixture
def masked_lm(exported_xlm):
    """Returns an exported masked language model with a relative bias, and labelled rows."""
    _, folder = exported_xlm("gated")
    kind = transformers.AutoModelForMaskedLM
    inputs = hf_folders.torch_inputs(hf_folders.rows())
    chosen = torch.from_numpy(np.random.default_rng(0).random(inputs["input_ids"].shape) < 0.3)
    labels = inputs["input_ids"].where(chosen, -100)
    return kind.from_pretrained(folder, trust_remote_code=True), inputs | {"labels": labels}


@pytest.mark.slow
@pytest.mark.parametrize("more", [5, -7])
def test_exported_masked_lm_with_more_or_fewer_tokens(tmp_path, masked_lm, more):
    model, inputs = masked_lm
    size, common = model.config.vocab_size, model.config.vocab_size + min(more, 0)
    inputs = {
        "input_ids": inputs["input_ids"].clamp(max=common - 1),
        "attention_mask": inputs["attention_mask"],
    }
    with torch.no_grad():
        before, bias = model(**inputs).logits, model.lm_head.bias.clone()
        assert model.resize_token_embeddings(size + more).num_embeddings == size + more
        after = model(**inputs).logits
    assert model.config.vocab_size == after.shape[-1] == size + more
    torch.testing.assert_close(after[..., :common], before[..., :common])
    assert torch.equal(model.lm_head.bias[:common], bias[:common])
    assert not model.lm_head.bias[common:].any() and model.lm_head.bias.requires_grad
    model.save_pretrained(tmp_path / "resized")
    again, found = type(model).from_pretrained(tmp_path / "resized", output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, after)


@pytest.mark.slow
def test_exported_masked_lm_as_a_tuple(masked_lm):
    model, inputs = masked_lm
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True)
        found = model(**inputs, output_hidden_states=True, return_dict=False)
    assert isinstance(found, tuple) and len(found) == 3
    assert torch.equal(found[0], expected.loss) and torch.equal(found[1], expected.logits)


@pytest.mark.slow
def test_losses_of_accumulated_batches_add_up(masked_lm):
    """As in Trainer, each batch's loss is divided by the labels of all batches."""
    model, inputs = masked_lm
    assert model.accepts_loss_kwargs  # Else Trainer divides by the number of batches.
    count = (inputs["labels"] != -100).sum()
    whole = model(**inputs).loss
    for items in (count, int(count)):
        parts = [
            model(**{name: value[rows] for name, value in inputs.items()}, num_items_in_batch=items)
            for rows in (slice(0, 1), slice(1, 4))
        ]
        torch.testing.assert_close(sum(part.loss for part in parts), whole)


@pytest.mark.slow
def test_gradients_of_the_exported_model(tmp_path):
    """All weights have gradients, and those of the table equal ours."""
    run = hf_folders.write_checkpoint(tmp_path / "run", Encoder__num_layers=2)
    hf_folders.export(run, tmp_path / "exported")
    model = transformers.AutoModel.from_pretrained(tmp_path / "exported", trust_remote_code=True)
    objective, params = hf_folders.read_checkpoint(run)
    batch = hf_folders.rows()
    real = batch["segment_ids"] > 0
    (model(**hf_folders.torch_inputs(batch)).logits * torch.from_numpy(real)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    gradient = jax.grad(lambda p: (rtd_logits(objective, p, batch) * jnp.asarray(real)).sum())
    ours = gradient(params)["discriminator"]["encoder"]["relative_bias"]["table"]
    theirs = model.encoder.relative_bias.weight.grad.numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [True, False])
def test_round_trip_of_xlm_is_exact(tmp_path, scan_layers):
    run = hf_folders.write_checkpoint(
        tmp_path / "run", "xlm", Encoder__num_layers=3, Encoder__scan_layers=scan_layers
    )
    hf_folders.export(run, tmp_path / "exported")
    import_folder(tmp_path / "exported", tmp_path / "again", scan_layers)
    _, before = hf_folders.read_checkpoint(run)
    objective, after = hf_folders.read_checkpoint(tmp_path / "again")
    size = objective.vocab_size

    def real(params):
        # Rows that pad the vocabulary are read by nothing and are not handed over.
        table, bias = params["tokens"]["embedding"][:size], params["head"]["bias"][:size]
        return {**params, "tokens": {"embedding": table}, "head": {**params["head"], "bias": bias}}

    assert jax.tree.structure(before) == jax.tree.structure(after)
    for one, other in zip(jax.tree.leaves(real(before)), jax.tree.leaves(real(after))):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_round_trip_of_xlmr(tmp_path):
    model = hf_folders.write_xlmr(tmp_path / "xlmr")
    import_folder(tmp_path / "xlmr", tmp_path / "run", True)
    hf_folders.export(tmp_path / "run", tmp_path / "exported")
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported").eval()
    batch = hf_folders.rows()
    with torch.no_grad():
        one, other = (m(**hf_folders.torch_inputs(batch)).logits for m in (model, again))
    assert hf_folders.largest_difference([one.numpy()], [other], batch) < TOLERANCE
