"""XLM-E encoder in PyTorch: gated relative position bias, RTD and MLM heads.

This file is copied into the folder of an exported model. It needs only torch, NumPy and
transformers:

    AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

Chi et al., "XLM-E: Cross-lingual Language Model Pre-training via ELECTRA" (2022), Sec. 3.3.
"""

import dataclasses
import functools
import math

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput, ModelOutput

from .configuration_xlme import XLMEConfig


@dataclasses.dataclass
class XLMEOutput(ModelOutput):
    """Outputs of the encoder.

    Attributes:
      last_hidden_state: [B, L, D], output of the last layer.
      logits: float32[B, L], logits of replaced token detection, positive for "replaced"; None
        without that head.
      hidden_states: embeddings and the output of each layer, [B, L, D] each; None unless requested.
    """

    last_hidden_state: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None


@functools.lru_cache(maxsize=8)
def distance_buckets(length, num_buckets, max_distance):
    """Returns T5's bidirectional buckets of distances key - query from 1 - L to L - 1.

    Args:
      length: L.
      num_buckets: number of buckets for both directions together.
      max_distance: distance from which on the last bucket is used.

    Returns:
      int64[2L - 1].
    """
    distance = np.arange(1 - length, length)
    half = num_buckets // 2
    exact = half // 2
    size = np.abs(distance)
    # In NumPy's float32 as in training, since other rounding would move bucket boundaries.
    ratio = np.log(np.maximum(size, 1).astype(np.float32) / exact) / math.log(max_distance / exact)
    far = exact + (ratio.astype(np.float32) * (half - exact)).astype(np.int64)
    bucket = np.where(size < exact, size, np.minimum(far, half - 1))
    return bucket + np.where(distance > 0, half, 0)


class RelativeBias(nn.Module):
    """Learned bias per distance bucket and head, shared by all layers."""

    def __init__(self, config):
        super().__init__()
        self.buckets, self.max_distance = config.relative_buckets, config.relative_max_distance
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.num_attention_heads))

    def forward(self, length):
        """Returns [H, L, L]; entry (i, j) is the bias of key j for query i."""
        buckets = distance_buckets(length, self.buckets, self.max_distance)
        by_distance = self.weight[torch.from_numpy(buckets).to(self.weight.device)]
        place = torch.arange(length, device=self.weight.device)
        return by_distance[place[None, :] - place[:, None] + length - 1].permute(2, 0, 1)


class Gate(nn.Module):
    """Factor of each query for its biases: 1 + update + (1 - update) * w * reset."""

    def __init__(self, config):
        super().__init__()
        heads = config.num_attention_heads
        self.u = nn.Parameter(torch.empty(config.hidden_size // heads))
        self.v = nn.Parameter(torch.empty(config.hidden_size // heads))
        self.w = nn.Parameter(torch.empty(heads))

    def forward(self, x):
        """[B, H, L, K] -> float32[B, H, L, 1]."""
        update = torch.sigmoid((x @ self.u).float())
        reset = torch.sigmoid((x @ self.v).float())
        w = self.w[:, None].float()
        return (1.0 + update + (1.0 - update) * w * reset)[..., None]


class SelfAttention(nn.Module):
    """Query, key and value projections of all heads."""

    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))


class DenseAndNorm(nn.Module):
    """Output projection, dropout and layer norm of a sub-layer."""

    def __init__(self, config, inputs):
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)


class Dense(nn.Module):
    """Dense layer with XLM-R's parameter name, `dense`."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)


class Attention(nn.Module):
    """Self-attention within segments, with gated relative bias."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.self = SelfAttention(config)
        self.output = DenseAndNorm(config, config.hidden_size)
        if config.relative_bias == "gated":
            self.gate = Gate(config)

    def forward(self, x, same, bias):
        """Returns [B, L, D].

        Args:
          x: [B, L, D], inputs.
          same: bool[B, 1, L, L], whether query and key are in the same segment.
          bias: [H, L, L], relative position bias; None without.
        """
        config, own = self.config, self.self
        q, k, v = (self._split(part(x)) for part in (own.query, own.key, own.value))
        if bias is None:
            added = torch.zeros(same.shape, dtype=q.dtype, device=q.device)
        else:
            added = bias.float()
            if config.relative_bias == "gated":
                added = added * self.gate(q if config.gate_input == "query" else self._split(x))
        added = added.masked_fill(~same, torch.finfo(q.dtype).min).to(q.dtype)
        rate = config.attention_probs_dropout_prob if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, added, dropout_p=rate)
        return self.output.dropout(self.output.dense(mixed.transpose(1, 2).flatten(2)))

    def _split(self, x):
        return x.unflatten(-1, (self.self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Transformer layer."""

    def __init__(self, config):
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = Attention(config)
        self.intermediate = Dense(config.hidden_size, config.intermediate_size)
        self.output = DenseAndNorm(config, config.intermediate_size)

    def forward(self, x, same, bias):
        """[B, L, D] -> [B, L, D]."""
        norm = self.attention.output.LayerNorm
        if self.pre_norm:
            x = x + self.attention(norm(x), same, bias)
            return x + self._feed(self.output.LayerNorm(x))
        x = norm(x + self.attention(x, same, bias))
        return self.output.LayerNorm(x + self._feed(x))

    def _feed(self, x):
        x = nn.functional.gelu(self.intermediate.dense(x))
        return self.output.dropout(self.output.dense(x))


class Embeddings(nn.Module):
    """Sum of token and position embeddings with layer norm."""

    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.position_embeddings = None
        if config.absolute_positions:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, embedded, position_ids):
        """[B, L, D] and int[B, L] -> [B, L, D]."""
        if (table := self.position_embeddings) is not None:
            most = table.num_embeddings
            if position_ids.shape[-1] > most and int(position_ids.max()) >= most:
                raise ValueError(
                    f"A text has more than {most} tokens; truncate it with truncation=True."
                )
            embedded = embedded + table(position_ids)
        return self.dropout(self.LayerNorm(embedded))


class Encoder(nn.Module):
    """Transformer layers, shared relative bias and final norm."""

    def __init__(self, config):
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.relative_bias = RelativeBias(config) if config.relative_bias != "none" else None
        self.final_norm = None
        if config.pre_norm:
            self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x, same):
        """Returns the embeddings `x` and the output of each layer, [B, L, D] each."""
        bias = None if self.relative_bias is None else self.relative_bias(x.shape[1])
        states = [x]
        for layer in self.layer:
            states.append(layer(states[-1], same, bias))
        if self.final_norm is not None:
            states[-1] = self.final_norm(states[-1])
        return states


class RTDHead(nn.Module):
    """Head of replaced token detection (RTD): one logit per token."""

    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.dense = nn.Linear(size, size) if config.rtd_head == "dense" else None
        self.out = nn.Linear(size, 1)

    def forward(self, x):
        """[B, L, D] -> float32[B, L]."""
        if self.dense is not None:
            x = nn.functional.gelu(self.dense(x))
        return self.out(x).squeeze(-1).float()


class MLMHead(nn.Module):
    """MLM head: dense layer, GELU, layer norm, and the product with the token table."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))

    def forward(self, x, table):
        """[B, L, D] and [V, D] -> [B, L, V]."""
        x = self.layer_norm(nn.functional.gelu(self.dense(x)))
        return nn.functional.linear(x, table, self.bias)


class XLMEPreTrainedModel(PreTrainedModel):
    """Base class with the initialization and the settings of `transformers`."""

    config_class = XLMEConfig
    base_model_prefix = "xlme"

    def _init_weights(self, module):
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm | MLMHead):
            nn.init.zeros_(module.bias)
        if isinstance(module, RelativeBias):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, Gate):
            nn.init.normal_(module.u, std=std)
            nn.init.normal_(module.v, std=std)
            nn.init.ones_(module.w)


class XLMEModel(XLMEPreTrainedModel):
    """Encoder with an RTD head if configured."""

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.rtd_head = RTDHead(config) if config.rtd_head else None
        self.post_init()

    def get_input_embeddings(self):
        """Returns the token embedding."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value):
        """Replaces the token embedding."""
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        inputs_embeds=None,
        output_hidden_states=None,
        return_dict=None,
        **kwargs,
    ):
        """Encodes rows.

        Args:
          input_ids: int[B, L], token ids.
          attention_mask: int[B, L], 0 for padding. Other values are segment ids: a token attends to
            tokens of the same segment, so a row may contain several texts. Defaults to 0 for
            padding tokens and 1 for others.
          position_ids: int[B, L]; defaults to positions within segments.
          inputs_embeds: [B, L, D], token embeddings instead of `input_ids`.
          output_hidden_states: whether to return the output of every layer too.
          return_dict: False to return a tuple.
          **kwargs: ignored, such as the tokenizer's `token_type_ids`.

        Returns:
          `XLMEOutput`, or a tuple of its values that are not None.

        Raises:
          ValueError: not exactly one of `input_ids` and `inputs_embeds` is given, or a text is
            longer than the position table.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Pass either input_ids or inputs_embeds, not both.")
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        if attention_mask is None:
            if input_ids is None:
                attention_mask = torch.ones(inputs_embeds.shape[:2], device=inputs_embeds.device)
            else:
                attention_mask = input_ids != self.config.pad_token_id
        segments = attention_mask.long()
        same = segments[:, :, None] == segments[:, None, :]
        if position_ids is None:
            # Number of preceding tokens in the same segment; 0 for padding.
            position_ids = (same.tril().sum(-1) - 1) * (segments > 0)
        states = self.encoder(self.embeddings(inputs_embeds, position_ids), same[:, None])
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        output = XLMEOutput(
            last_hidden_state=states[-1],
            logits=None if self.rtd_head is None else self.rtd_head(states[-1]),
            hidden_states=tuple(states) if output_hidden_states else None,
        )
        return output.to_tuple() if return_dict is False else output


class XLMEForMaskedLM(XLMEPreTrainedModel):
    """Encoder with an MLM head that is tied to the token table."""

    # Makes `Trainer` pass `num_items_in_batch` and leave the division by it to the model.
    accepts_loss_kwargs = True

    def __init__(self, config):
        super().__init__(config)
        self.xlme = XLMEModel(config)
        self.lm_head = MLMHead(config)
        self.post_init()

    def get_output_embeddings(self):
        """Returns None, as the head uses the token table and has no matrix of its own."""
        return None

    def resize_token_embeddings(self, *args, **kwargs):
        """Resizes the token table as `transformers` does; new tokens get an output bias of 0."""
        table = super().resize_token_embeddings(*args, **kwargs)
        bias = self.lm_head.bias
        resized = nn.functional.pad(bias.detach(), (0, table.num_embeddings - len(bias)))
        self.lm_head.bias = nn.Parameter(resized, requires_grad=bias.requires_grad)
        return table

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        labels=None,
        num_items_in_batch=None,
        return_dict=None,
        **kwargs,
    ):
        """Computes logits, and the loss if there are labels.

        Args:
          input_ids: int[B, L], token ids.
          attention_mask: int[B, L], see `XLMEModel`.
          labels: int[B, L], token ids to predict; -100 for positions without loss.
          num_items_in_batch: divisor of the summed loss; defaults to the number of labels.
            `Trainer` passes the number of labels in all batches of one update.
          return_dict: False to return a tuple.
          **kwargs: passed to `XLMEModel`.

        Returns:
          `MaskedLMOutput` with logits [B, L, V], or a tuple of its values that are not None.
        """
        output = self.xlme(input_ids, attention_mask, **kwargs)
        table = self.xlme.embeddings.word_embeddings.weight
        logits = self.lm_head(output.last_hidden_state, table)
        loss = None
        if labels is not None:
            scores, labels = logits.flatten(0, 1).float(), labels.flatten()
            if num_items_in_batch is None:
                loss = nn.functional.cross_entropy(scores, labels)
            else:
                loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
                loss = loss / torch.as_tensor(num_items_in_batch, device=loss.device)
        result = MaskedLMOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)
        return result.to_tuple() if return_dict is False else result
