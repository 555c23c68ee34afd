"""The content of config.json."""

from typing import Any

from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID
from xlme_jax.huggingface.modernbert import ModernLayout, modern_config
from xlme_jax.huggingface.weights import POSITION_OFFSET, WeightLayout

# Tasks for which `modeling_xlme.py` has a model with a fresh head.
_TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")


def hf_config(layout: WeightLayout) -> dict[str, Any]:
    """Returns the content of config.json: of XLM-R's classes, ModernBERT's or `modeling_xlme.py`.

    The class is that with the model's head. `max_position_embeddings` of XLM-R counts the unused
    rows of the position table too.
    """
    if isinstance(layout, ModernLayout):
        return modern_config(layout)
    encoder = layout.encoder
    shape = {
        "vocab_size": layout.vocab_size,
        "hidden_size": encoder.hidden_size,
        "num_hidden_layers": layout.num_layers,
        "num_attention_heads": encoder.num_heads,
        "intermediate_size": encoder.ffn_size,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "layer_norm_eps": encoder.layer_norm_eps,
        "initializer_range": encoder.init_std,
        "bos_token_id": BOS_ID,
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }
    if layout.is_xlmr:
        name = "XLMRobertaForMaskedLM" if layout.head == "mlm" else "XLMRobertaModel"
        return {
            "architectures": [name],
            "model_type": "xlm-roberta",
            "max_position_embeddings": encoder.max_length + POSITION_OFFSET,
            "type_vocab_size": 1,
            "hidden_act": "gelu",
            **shape,
        }
    classes = {
        "AutoConfig": "configuration_xlme.XLMEConfig",
        "AutoModel": "modeling_xlme.XLMEModel",
        **{f"AutoModelFor{task}": f"modeling_xlme.XLMEFor{task}" for task in _TASKS},
    }
    name = "XLMEModel"
    if layout.head == "mlm":
        name = "XLMEForMaskedLM"
        classes["AutoModelForMaskedLM"] = f"modeling_xlme.{name}"
    rtd = layout.head is not None and layout.head.startswith("rtd_")
    return {
        "architectures": [name],
        "model_type": "xlme",
        "auto_map": classes,
        "max_position_embeddings": encoder.max_length,
        "absolute_positions": encoder.absolute_positions,
        "relative_bias": encoder.relative_bias,
        "relative_buckets": encoder.relative_buckets,
        "relative_max_distance": encoder.relative_max_distance,
        "gate_input": encoder.gate_input,
        "pre_norm": encoder.pre_norm,
        "rtd_head": str(layout.head).removeprefix("rtd_") if rtd else None,
        **shape,
    }
