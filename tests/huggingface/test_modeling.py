"""The shipped model file behaves as transformers expects of every model."""

import math
import os
import shutil

# Before transformers is imported: no test asks the network.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
from helpers import hf_folders, tiny

from xlme_jax.huggingface.config_json import hf_config
from xlme_jax.huggingface.weights import WeightLayout
from xlme_jax.huggingface.writing import MODEL_FILES
from xlme_jax.model.encoder import EncoderConfig

torch = pytest.importorskip("torch", reason="runs the model")
transformers = pytest.importorskip("transformers", reason="runs the model")

from xlme_jax.huggingface import modeling_xlme as modeling  # noqa: E402
from xlme_jax.huggingface.configuration_xlme import XLMEConfig  # noqa: E402

SHAPE = {
    "vocab_size": 99,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "relative_buckets": 8,
    "relative_max_distance": 12,
    "initializer_range": 0.2,
}
KINDS = {
    "gated": {"rtd_head": "dense"},
    "hidden_gate": {"gate_input": "hidden"},
    "plain": {"relative_bias": "plain", "rtd_head": "linear"},
    "none": {"relative_bias": "none", "absolute_positions": False, "pre_norm": True},
}
MODELS = (
    modeling.XLMEModel,
    modeling.XLMEForMaskedLM,
    modeling.XLMEForSequenceClassification,
    modeling.XLMEForTokenClassification,
    modeling.XLMEForQuestionAnswering,
)
LABELS = {
    modeling.XLMEForMaskedLM: {"labels": torch.arange(60).reshape(3, 20)},
    modeling.XLMEForSequenceClassification: {"labels": torch.tensor([0, 1, 1])},
    modeling.XLMEForTokenClassification: {"labels": torch.arange(60).reshape(3, 20) % 2},
    modeling.XLMEForQuestionAnswering: {
        "start_positions": torch.tensor([1, 2, 0]),
        "end_positions": torch.tensor([3, 2, 4]),
    },
}
# Float32 on values of size 1.
close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def separate_modules(tmp_path):
    with hf_folders.separate_modules(tmp_path / "modules"):
        yield


def config(kind="gated", **changes):
    return XLMEConfig(**{**SHAPE, **KINDS[kind], **changes})


def model_of(cls, kind="gated", **changes):
    torch.manual_seed(0)
    return cls(config(kind, **changes)).eval()


def inputs(rows=3, length=20):
    """Returns padded rows; the second is half as long, the third holds five tokens."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, SHAPE["vocab_size"], (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    mask[2, 5:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (320, 800), (8, 3), (4, 2)])
def test_buckets_are_those_of_training(buckets, distance):
    """T5's formula in NumPy's float32, for all distances of a long row."""
    length = 2 * distance + 30
    offset = np.arange(length)[None] - np.arange(length)[:, None]
    half, exact, size = buckets // 2, buckets // 4, np.abs(offset)
    ratio = np.log(np.maximum(size, 1).astype("f4") / exact) / math.log(distance / exact)
    far = exact + (ratio.astype("f4") * (half - exact)).astype(int)
    expected = np.where(size < exact, size, np.minimum(far, half - 1)) + half * (offset > 0)
    bias = modeling.RelativeBias(
        config(relative_buckets=buckets, relative_max_distance=distance, num_attention_heads=1)
    )
    bias.weight.data = torch.arange(buckets).float()[:, None]
    np.testing.assert_array_equal(bias(length)[0].detach().numpy(), expected)


@pytest.mark.parametrize("cls", tiny.slow_except(MODELS[1:2], MODELS))
@pytest.mark.parametrize("kind", tiny.slow_except({"gated"}, KINDS))
def test_traced_model_takes_other_shapes(cls, kind):
    model, example = model_of(cls, kind), inputs()
    with torch.no_grad():
        traced = torch.jit.trace(model, (example["input_ids"], example["attention_mask"]))
        for rows, length in ((3, 20), (4, 31), (3, 7), (5, 64)):
            batch = inputs(rows, length)
            expected = model(**batch, return_dict=False)
            for ours, theirs in zip(traced(*batch.values()), expected, strict=True):
                close(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exported_program_takes_other_shapes(kind):
    model = model_of(modeling.XLMEForMaskedLM, kind)
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length", max=64)}
    with torch.no_grad():
        shapes = {"input_ids": axes, "attention_mask": axes}
        program = torch.export.export(model, (), inputs(), dynamic_shapes=shapes).module()
        for rows, length in ((3, 20), (4, 31), (3, 7), (5, 64)):
            batch = inputs(rows, length)
            close(program(**batch)["logits"], model(**batch).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_implementations_agree(tmp_path, kind):
    model_of(modeling.XLMEModel, kind).save_pretrained(tmp_path)
    load = modeling.XLMEModel.from_pretrained
    eager, sdpa = (load(tmp_path, attn_implementation=x) for x in ("eager", "sdpa"))
    assert eager.config._attn_implementation == "eager"
    assert load(tmp_path).config._attn_implementation == "sdpa"
    batch = inputs()
    batch["attention_mask"][0, 9:] = 2  # Two texts in the first row.
    ours = eager.eval()(**batch, output_hidden_states=True)
    theirs = sdpa.eval()(**batch, output_hidden_states=True)
    assert len(ours.hidden_states) == 3
    for one, other in zip(ours.hidden_states, theirs.hidden_states):
        close(one, other)


def test_attention_weights():
    model, batch = model_of(modeling.XLMEModel), inputs()
    plain, output = model(**batch), model(**batch, output_attentions=True)
    assert plain.attentions is None and len(output.attentions) == 2
    close(output.last_hidden_state, plain.last_hidden_state)
    mask = batch["attention_mask"]
    apart = (mask[:, :, None] != mask[:, None, :])[:, None].expand(3, 3, 20, 20)
    for weights in output.attentions:
        close(weights.sum(-1), torch.ones(3, 3, 20))
        assert not weights[apart].any()
    # The first layer's, from its definition.
    layer, x = (
        model.encoder.layer[0].attention,
        model.embeddings(
            model.get_input_embeddings()(batch["input_ids"][:1]), torch.arange(20)[None]
        ),
    )
    q, k = (
        part(x).reshape(20, 3, 8).transpose(0, 1) for part in (layer.self.query, layer.self.key)
    )
    update, reset = ((q @ part).sigmoid() for part in (layer.gate.u, layer.gate.v))
    gate = 1 + update + (1 - update) * layer.gate.w[:, None] * reset
    scores = q @ k.mT / math.sqrt(8) + gate[:, :, None] * model.encoder.relative_bias(20)
    close(output.attentions[0][0], scores.softmax(-1))


def test_gradients_reach_states_and_weights():
    model = model_of(modeling.XLMEModel).train()
    output = model(**inputs(), output_hidden_states=True, output_attentions=True)
    for tensors in (output.hidden_states, output.attentions):
        for tensor in tensors:
            tensor.retain_grad()
    output.last_hidden_state.square().sum().backward()
    assert all(x.grad.any() for x in (*output.hidden_states, *output.attentions))


@pytest.mark.parametrize("use_reentrant", tiny.slow_except({False}, [True, False]))
@pytest.mark.parametrize("kind", tiny.slow_except({"gated"}, KINDS))
def test_gradient_checkpointing_changes_no_gradient(kind, use_reentrant):
    model = model_of(modeling.XLMEForTokenClassification, kind).train()
    gradients, calls = [], []
    model.xlme.encoder.layer[0].register_forward_pre_hook(lambda *_: calls.append(0))
    for _ in range(2):
        torch.manual_seed(3)  # Dropout is on.
        model.zero_grad()
        model(**inputs(), **LABELS[type(model)]).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert len(calls) == 3  # Once, then forward and again in the backward pass.
    for one, other in zip(*gradients):
        close(one, other)


@pytest.mark.parametrize("cls", MODELS[1:])
def test_every_weight_is_trained(cls):
    model = model_of(cls).train()
    model(**inputs(), **LABELS[cls]).loss.backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_three_and_four_axes(kind):
    model, batch = model_of(modeling.XLMEModel, kind), inputs()
    mask = batch["attention_mask"]
    allowed = mask[:, :, None] == mask[:, None, :]
    lowest = torch.zeros(3, 1, 20, 20).masked_fill(~allowed[:, None], torch.finfo().min)
    positions = (mask.cumsum(1) - 1) * mask
    # Positions among padding are another matter, which real tokens do not see.
    real = mask.bool()
    expected = model(**batch).last_hidden_state[real]
    for given in (allowed.long(), allowed, allowed[:, None], lowest):
        output = model(batch["input_ids"], given, positions)
        close(output.last_hidden_state[real], expected)
        close(model(batch["input_ids"], given).last_hidden_state[real], expected)
    causal = torch.ones(20, 20).tril().expand(3, 20, 20)
    changed = batch["input_ids"].clone()
    changed[:, 10:] = 7
    one, other = (model(ids, causal).last_hidden_state for ids in (changed, batch["input_ids"]))
    close(one[:, :10], other[:, :10])
    assert not torch.equal(one[:, 10:], other[:, 10:])


@pytest.mark.parametrize("cls", MODELS)
def test_embeddings_in_place_of_ids_and_tuples(cls):
    model, batch = model_of(cls), inputs()
    embedded = model.get_input_embeddings()(batch["input_ids"])
    options = {"output_hidden_states": True, "output_attentions": True}
    expected = model(**batch, **options)
    output = model(
        inputs_embeds=embedded, attention_mask=batch["attention_mask"], return_dict=False, **options
    )
    assert isinstance(output, tuple)
    for one, other in zip(output, expected.to_tuple(), strict=True):
        close(one, other)
    model.config.return_dict = False
    assert isinstance(model(**batch), tuple)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_half_precision(tmp_path, dtype, attention):
    model = model_of(modeling.XLMEForMaskedLM)
    model.save_pretrained(tmp_path)
    half = modeling.XLMEForMaskedLM.from_pretrained(
        tmp_path, torch_dtype=dtype, attn_implementation=attention
    )
    logits = half.eval()(**inputs()).logits
    assert logits.dtype == dtype and {p.dtype for p in half.parameters()} == {dtype}
    expected = model(**inputs()).logits
    # Roundings of a dozen operations in a row; logits have a size of up to 5.
    close(logits.float(), expected, atol=32 * torch.finfo(dtype).eps, rtol=0.05)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_masks_in_every_precision(dtype, attention):
    """Also for a query that may attend to nothing, and whose scores are all negative."""
    model = model_of(modeling.XLMEModel)
    for layer in model.encoder.layer:
        layer.attention.self.query.bias.data.fill_(4)
        layer.attention.self.key.bias.data.fill_(-4)
    batch = inputs()
    batch["attention_mask"] = torch.ones(3, 20, 20, dtype=torch.long).tril()
    expected = model(**batch)[0]
    batch["attention_mask"][:, 19] = 0
    model.set_attn_implementation(attention)
    states = model.to(dtype)(**batch)[0]
    assert states.dtype == dtype and torch.isfinite(states).all()
    if dtype == torch.float64:
        close(states[:, :19].float(), expected[:, :19])


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}, {"": "disk"}])
def test_device_map(tmp_path, device_map):
    pytest.importorskip("accelerate", reason="places the weights")
    model = model_of(modeling.XLMEForMaskedLM)
    model.save_pretrained(tmp_path / "saved")
    placed = modeling.XLMEForMaskedLM.from_pretrained(
        tmp_path / "saved", device_map=device_map, offload_folder=tmp_path / "offloaded"
    )
    close(placed(**inputs()).logits, model(**inputs()).logits)


@pytest.mark.parametrize("cls", MODELS)
def test_fresh_weights_and_more_tokens(cls):
    model = model_of(cls, initializer_range=1e-9)
    means = {name: parameter.mean().item() for name, parameter in model.named_parameters()}
    assert all(min(abs(mean), abs(mean - 1)) < 1e-6 for mean in means.values()), means
    assert model.resize_token_embeddings(105).num_embeddings == model.config.vocab_size == 105
    assert torch.isfinite(model(torch.full((2, 9), 104))[0]).all()


@pytest.mark.parametrize("head", tiny.slow_except({"rtd_dense"}, ["rtd_dense", "mlm", None]))
def test_fresh_heads_on_an_export(tmp_path, head):
    """AutoModelFor... makes a head on the exported encoder, and reads it back after training."""
    encoder = EncoderConfig(24, 2, 3, 40, 64, relative_bias="gated")
    content = hf_config(WeightLayout(encoder, 99, head, is_xlmr=False))
    cls = modeling.XLMEForMaskedLM if head == "mlm" else modeling.XLMEModel
    torch.manual_seed(0)
    exported = cls(XLMEConfig(**content))
    exported.save_pretrained(tmp_path / "exported")
    for name in MODEL_FILES:
        shutil.copy(tiny.REPOSITORY / "xlme_jax" / "huggingface" / name, tmp_path / "exported")
    for task, labels in (("SequenceClassification", 3), ("TokenClassification", 5)):
        auto = getattr(transformers, f"AutoModelFor{task}")
        model, info = auto.from_pretrained(
            tmp_path / "exported",
            trust_remote_code=True,
            output_loading_info=True,
            num_labels=labels,
        )
        assert set(info["missing_keys"]) == {"head.weight", "head.bias"}
        assert not info["unexpected_keys"] and model.head.out_features == labels
        assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.3)
        table = model.get_input_embeddings().weight
        assert torch.equal(table, exported.get_input_embeddings().weight)
        model.save_pretrained(tmp_path / task)
        again, info = type(model).from_pretrained(tmp_path / task, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        close(again.eval()(**inputs()).logits, model.eval()(**inputs()).logits)


def test_losses():
    """Cross-entropy, squared error and several labels at once, from their definitions."""
    model = model_of(modeling.XLMEForSequenceClassification, num_labels=3)
    logits = model(**inputs()).logits
    loss = model(**inputs(), labels=torch.tensor([2, 0, 1])).loss
    close(loss, -logits.log_softmax(-1)[range(3), [2, 0, 1]].mean())
    assert model.config.problem_type == "single_label_classification"
    model = model_of(modeling.XLMEForSequenceClassification, num_labels=3)
    several = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 0]])
    chances = torch.where(several > 0, logits.sigmoid(), 1 - logits.sigmoid())
    close(model(**inputs(), labels=several).loss, -chances.log().mean())
    model = model_of(modeling.XLMEForSequenceClassification, num_labels=1)
    target = torch.tensor([0.5, -1.0, 3.0])
    expected = (model(**inputs()).logits[:, 0] - target).square().mean()
    close(model(**inputs(), labels=target).loss, expected)
    model = model_of(modeling.XLMEForQuestionAnswering)
    output = model(**inputs())
    positions = {
        "start_positions": torch.tensor([1, 2, 3]),
        "end_positions": torch.tensor([4, 5, 99]),
    }
    start = -output.start_logits.log_softmax(-1)[range(3), [1, 2, 3]].mean()
    end = -output.end_logits.log_softmax(-1)[range(2), [4, 5]].mean()  # 99 is outside the row.
    close(model(**inputs(), **positions).loss, (start + end) / 2)


def test_too_long_texts_are_named():
    with pytest.raises(ValueError, match=r"more than 64 tokens; truncate"):
        model_of(modeling.XLMEModel)(torch.full((1, 65), 7))


def test_head_and_table_are_tied(tmp_path):
    model = model_of(modeling.XLMEForMaskedLM)
    model.save_pretrained(tmp_path)
    again, info = modeling.XLMEForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    for tied in (model, again):
        table = tied.get_input_embeddings().weight
        assert tied.get_output_embeddings().weight is table
        names = {name for name, _ in tied.named_parameters()}
        assert "lm_head.bias" in names and "lm_head.decoder.weight" not in names
    again.resize_token_embeddings(105)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert again(**inputs()).logits.shape == (3, 20, 105)
    close(again.eval()(**inputs()).logits[..., :99], model(**inputs()).logits)
