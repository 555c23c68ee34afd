"""Exports the modern encoder as transformers' ModernBERT, whose form it has."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID
from xlme_jax.huggingface.weights import Path, Weight, WeightLayout, equal, table
from xlme_jax.model.modern_encoder import ModernEncoderConfig


@dataclasses.dataclass(frozen=True)
class ModernLayout(WeightLayout):
    """Weights of a ModernBertModel. Heads are left out, as those of ModernBERT have no biases.

    Raises:
      ValueError: the encoder has what ModernBERT has not.
    """

    encoder: ModernEncoderConfig

    def __post_init__(self) -> None:
        config = self.encoder
        fields = {
            "norm": (config.norm, "layer"),
            "relative_bias": (config.relative_bias, "none"),
            "absolute_positions": (config.absolute_positions, False),
        }
        for field, (value, expected) in fields.items():
            if value != expected:
                raise ValueError(
                    f"ModernEncoder.{field} = {value!r} has no place in "
                    "transformers' ModernBERT, as which the encoder would be exported; use the run "
                    "by xlme_jax.load, whose encode() gives vectors."
                )

    @property
    def has_own_code(self) -> bool:
        """See `WeightLayout.has_own_code`."""
        return False

    def weights(self) -> list[Weight]:
        """See `WeightLayout.weights`."""
        size = self.encoder.hidden_size
        tokens = "embeddings.tok_embeddings.weight"
        return [
            table(("tokens", "embedding"), tokens, self.vocab_size, size),
            _scale(("encoder", "embedding_norm"), "embeddings.norm", size),
            *(weight for n in range(self.encoder.num_layers) for weight in self._modern_layer(n)),
            _scale(("encoder", "final_norm"), "final_norm", size),
        ]

    def _modern_layer(self, index: int) -> Iterator[Weight]:
        """Yields the weights of a layer; the first does not normalise its input."""
        config, path, prefix = self.encoder, ("encoder", f"layer_{index}"), f"layers.{index}."
        size, ffn, heads = config.hidden_size, config.ffn_size, config.num_heads
        by_head = heads, size // heads
        if index:
            yield _scale((*path, "attention_norm"), f"{prefix}attn_norm", size)
        yield _kernel((*path, "qkv"), f"{prefix}attn.Wqkv", (size,), (3, *by_head))
        yield _kernel((*path, "out"), f"{prefix}attn.Wo", by_head, (size,))
        yield _scale((*path, "ffn_norm"), f"{prefix}mlp_norm", size)
        yield _kernel((*path, "wi"), f"{prefix}mlp.Wi", (size,), (2, ffn))
        yield _kernel((*path, "wo"), f"{prefix}mlp.Wo", (ffn,), (size,))


def modern_config(layout: ModernLayout) -> dict[str, Any]:
    """Returns the content of config.json for a ModernBertModel."""
    config = layout.encoder
    kinds = [
        "sliding_attention" if index % config.global_every else "full_attention"
        for index in range(config.num_layers)
    ]
    thetas = {
        "sliding_attention": config.local_rope_theta,
        "full_attention": config.rope_theta,
    }
    return {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        "vocab_size": layout.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_activation": config.activation,
        "max_position_embeddings": config.max_length,
        "initializer_range": config.init_std,
        "norm_eps": config.layer_norm_eps,
        "attention_dropout": config.attention_dropout,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "layer_types": kinds,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": thetas[kind]} for kind in thetas
        },
        # What transformers before version 5 reads in place of the two above.
        "global_attn_every_n_layers": config.global_every,
        "global_rope_theta": config.rope_theta,
        "local_rope_theta": config.local_rope_theta,
        "local_attention": config.window,
        "bos_token_id": BOS_ID,
        "cls_token_id": BOS_ID,
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "sep_token_id": EOS_ID,
        "torch_dtype": "float32",
    }


def _scale(path: Path, name: str, size: int) -> Weight:
    """Returns the scale of a normalisation without bias."""
    return equal((*path, "scale"), f"{name}.weight", (size,))


def _kernel(path: Path, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Weight:
    """Returns a kernel [*inputs, *outputs], which Hugging Face has as [outputs, inputs]."""
    shape = (*inputs, *outputs)
    flat = int(np.prod(inputs)), int(np.prod(outputs))
    return Weight(
        (*path, "kernel"),
        (f"{name}.weight",),
        (flat[::-1],),
        lambda x: x[0].T.reshape(shape),
        lambda x: (x.reshape(flat).T,),
    )
