"""XLM-E encoder in PyTorch: gated relative position bias, RTD, MLM and task heads.

This file is copied into the folder of an exported model. It needs only torch, NumPy and
transformers:

    AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

Chi et al., "XLM-E: Cross-lingual Language Model Pre-training via ELECTRA" (2022), Sec. 3.3.
"""

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import (
    MaskedLMOutput,
    ModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from .configuration_xlme import XLMEConfig


@dataclasses.dataclass
class XLMEOutput(ModelOutput):
    """Outputs of the encoder.

    Attributes:
      last_hidden_state: [B, L, D], output of the last layer.
      logits: float32[B, L], logits of replaced token detection, positive for "replaced"; None
        if the model has no such head.
      hidden_states: embeddings and the output of each layer, [B, L, D] each; None unless requested.
      attentions: attention weights of each layer, [B, H, L, L] each; None unless requested.
    """

    last_hidden_state: torch.FloatTensor | None = None
    logits: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None
    attentions: tuple[torch.FloatTensor, ...] | None = None


@functools.lru_cache(maxsize=8)
def far_buckets(num_buckets, max_distance):
    """Returns the distances at which T5's logarithmic buckets begin, for one direction.

    Nearer distances have a bucket each.

    Args:
      num_buckets: number of buckets for both directions together.
      max_distance: distance from which on the last bucket is used.

    Returns:
      A tuple of integers; a distance that occurs n times begins n buckets at once.
    """
    half = num_buckets // 2
    exact = half // 2
    size = np.arange(exact, max_distance + 1)
    # In NumPy's float32 as in training, since other rounding would move bucket boundaries.
    ratio = np.log(size.astype(np.float32) / exact) / math.log(max_distance / exact)
    far = (ratio.astype(np.float32) * (half - exact)).astype(np.int64)
    first = exact + np.searchsorted(far, np.arange(1, half - exact))
    return tuple(first.tolist())


class RelativeBias(nn.Module):
    """Learned bias per distance bucket and head, shared by all layers."""

    def __init__(self, config):
        super().__init__()
        self.buckets, self.max_distance = config.relative_buckets, config.relative_max_distance
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.num_attention_heads))

    def forward(self, length):
        """Returns [H, L, L]; entry (i, j) is the bias of key j for query i.

        The length may be symbolic, as in `torch.export` and `torch.jit.trace`.
        """
        device = self.weight.device
        half = self.buckets // 2
        distance = torch.arange(1 - length, length, device=device)  # key - query
        size = distance.abs()
        starts = torch.tensor(far_buckets(self.buckets, self.max_distance), device=device)
        far = half // 2 + torch.bucketize(size, starts, right=True)
        bucket = torch.where(size < half // 2, size, far) + (distance > 0) * half
        position = torch.arange(length, device=device)
        by_distance = self.weight[bucket]
        return by_distance[position[None, :] - position[:, None] + length - 1].permute(2, 0, 1)


class Gate(nn.Module):
    """Factor of each query for its biases: 1 + update + (1 - update) * w * reset."""

    def __init__(self, config):
        super().__init__()
        heads = config.num_attention_heads
        self.u = nn.Parameter(torch.empty(config.hidden_size // heads))
        self.v = nn.Parameter(torch.empty(config.hidden_size // heads))
        self.w = nn.Parameter(torch.empty(heads))

    def forward(self, x):
        """Returns the factors float32[B, H, L, 1] for queries or states [B, H, L, K]."""
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

    def forward(self, x, allowed, bias, output_attentions):
        """Returns the output [B, L, D], and the weights [B, H, L, L] if they are requested.

        Args:
          x: [B, L, D], inputs.
          allowed: bool[B, 1, L, L], whether a query may attend to a key.
          bias: [H, L, L], relative position bias; None for no bias.
          output_attentions: whether to return the weights; None is returned in their place if not.
        """
        config, projections = self.config, self.self
        q, k, v = (
            self._split(part(x)) for part in (projections.query, projections.key, projections.value)
        )
        # At least float32.
        exact = torch.promote_types(q.dtype, torch.float32)
        if bias is None:
            added = torch.zeros(allowed.shape, dtype=exact, device=q.device)
        else:
            added = bias.to(exact)
            if config.relative_bias == "gated":
                added = added * self.gate(q if config.gate_input == "query" else self._split(x))
        # Half of the range: its sum with a negative score must not be -inf, because a query that
        # may attend to nothing would get NaN.
        hidden = max(torch.finfo(q.dtype).min, torch.finfo(torch.float32).min) / 2
        added = added.masked_fill(~allowed, hidden).to(q.dtype)
        rate = config.attention_probs_dropout_prob if self.training else 0.0
        weights = None
        # scaled_dot_product_attention has no weights to return.
        if output_attentions or config._attn_implementation == "eager":
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + added
            probabilities = scores.softmax(-1, dtype=exact).to(q.dtype)
            mixed = nn.functional.dropout(probabilities, rate, self.training) @ v
            weights = probabilities if output_attentions else None
        else:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, added, dropout_p=rate)
        return self.output.dropout(self.output.dense(mixed.transpose(1, 2).flatten(2))), weights

    def _split(self, x):
        """Returns the parts of the heads, [B, L, D] -> [B, H, L, K]."""
        return x.unflatten(-1, (self.self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Transformer layer."""

    def __init__(self, config):
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = Attention(config)
        self.intermediate = Dense(config.hidden_size, config.intermediate_size)
        self.output = DenseAndNorm(config, config.intermediate_size)

    def forward(self, x, allowed, bias, output_attentions):
        """Returns the output [B, L, D], and the attention weights if they are requested."""
        norm = self.attention.output.LayerNorm
        inputs = norm(x) if self.pre_norm else x
        attended, weights = self.attention(inputs, allowed, bias, output_attentions)
        if self.pre_norm:
            x = x + attended
            return x + self._feed(self.output.LayerNorm(x)), weights
        x = norm(x + attended)
        return self.output.LayerNorm(x + self._feed(x)), weights

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
        """Adds positions, if the model has them, normalises and drops: [B, L, D] -> [B, L, D]."""
        if (table := self.position_embeddings) is not None:
            max_length = table.num_embeddings
            # Values are unknown while the model is traced, exported or compiled.
            is_eager = not (torch.jit.is_tracing() or torch.compiler.is_compiling())
            if (
                is_eager
                and position_ids.shape[-1] > max_length
                and int(position_ids.max()) >= max_length
            ):
                raise ValueError(
                    f"A text has more than {max_length} tokens; truncate it with truncation=True."
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

        # Set by transformers' gradient_checkpointing_enable, with a function to call layers by.
        self.gradient_checkpointing = False

    def forward(self, x, allowed, output_attentions):
        """Returns a list of `x` and each layer's output, [B, L, D] each, and one of their weights.

        The second list has the attention weights of each layer, None each unless requested.
        """
        bias = None if self.relative_bias is None else self.relative_bias(x.shape[1])
        states = [x]
        attentions = []
        for layer in self.layer:
            inputs = (states[-1], allowed, bias, output_attentions)
            if self.gradient_checkpointing and self.training:
                function = self._gradient_checkpointing_func
                state, weights = function(layer.__call__, *inputs)  # type: ignore[operator]
            else:
                state, weights = layer(*inputs)
            states.append(state)
            attentions.append(weights)
        if self.final_norm is not None:
            states[-1] = self.final_norm(states[-1])
        return states, attentions


class RTDHead(nn.Module):
    """Head of replaced token detection (RTD): one logit per token."""

    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.dense = nn.Linear(size, size) if config.rtd_head == "dense" else None
        self.out = nn.Linear(size, 1)

    def forward(self, x):
        """Returns the logits float32[B, L] of states [B, L, D]."""
        if self.dense is not None:
            x = nn.functional.gelu(self.dense(x))
        return self.out(x).squeeze(-1).float()


class MLMHead(nn.Module):
    """MLM head: dense layer, GELU, layer norm, and the product with the token table."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))

    def forward(self, x):
        """Returns the logits [B, L, V] of states [B, L, D]."""
        return self.decoder(self.layer_norm(nn.functional.gelu(self.dense(x)))) + self.bias


class XLMEPreTrainedModel(PreTrainedModel):
    """Base class with the initialization and the settings of `transformers`."""

    config_class = XLMEConfig
    base_model_prefix = "xlme"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    # A layer's residual sums must stay on one device.
    _no_split_modules = ("Layer", "Embeddings")  # type: ignore[assignment]

    @classmethod
    def _can_set_attn_implementation(cls):
        """Returns True: each call reads the configuration."""
        return True

    def _returns_tuple(self, return_dict):
        """Returns whether outputs are to be tuples, as they must be in a trace."""
        if return_dict is None:
            return torch.jit.is_tracing() or not self.config.return_dict
        return not return_dict

    def _result(self, kind, output, return_dict, **values):
        """Returns a head's output of class `kind`, or a tuple of its values that are not None.

        It has `values`, and the hidden states and attentions of `output`, the encoder's output.
        """
        states = {"hidden_states": output.hidden_states, "attentions": output.attentions}
        result = kind(**values, **states)
        return result.to_tuple() if self._returns_tuple(return_dict) else result

    def _init_weights(self, module):
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm | MLMHead) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, RelativeBias):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, Gate):
            nn.init.normal_(module.u, std=std)
            nn.init.normal_(module.v, std=std)
            nn.init.ones_(module.w)


class XLMEModel(XLMEPreTrainedModel):
    """Encoder with an RTD head if configured."""

    def __init__(self, config, add_rtd_head=True):
        """Creates the encoder, without the RTD head if a model with another head asks for that."""
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.rtd_head = RTDHead(config) if config.rtd_head and add_rtd_head else None
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
        output_attentions=None,
        return_dict=None,
        **kwargs,
    ):
        """Encodes rows.

        Args:
          input_ids: int[B, L], token ids.
          attention_mask: int[B, L], 0 for padding. Other values are segment ids: a token attends to
            tokens of the same segment, so a row may contain several texts. Defaults to 0 for
            padding tokens and 1 for others. Or [B, L, L], 1 where a query (second axis) may attend
            to a key; or [B, 1 or H, L, L], True where a query (third axis) may attend to a key, or
            in floating point 0 where it may and negative elsewhere.
          position_ids: int[B, L]; defaults to positions within segments, or within rows if the mask
            has none.
          inputs_embeds: [B, L, D], token embeddings instead of `input_ids`.
          output_hidden_states: whether to return the output of every layer too.
          output_attentions: whether to return the attention weights of every layer too.
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
        allowed, positions = _read_mask(attention_mask)
        if position_ids is None:
            position_ids = positions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        embedded = self.embeddings(inputs_embeds, position_ids)
        states, attentions = self.encoder(embedded, allowed, output_attentions)
        output = XLMEOutput(
            last_hidden_state=states[-1],
            logits=None if self.rtd_head is None else self.rtd_head(states[-1]),
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )
        return output.to_tuple() if self._returns_tuple(return_dict) else output


def _read_mask(mask):
    """Returns which keys a query may attend to, bool[B, 1 or H, L, L], and positions, int[B, L]."""
    if mask.dim() == 2:
        segments = mask.long()
        same_segment = segments[:, :, None] == segments[:, None, :]
        # Number of preceding tokens in the same segment; 0 for padding.
        return same_segment[:, None], (same_segment.tril().sum(-1) - 1) * (segments > 0)
    positions = torch.arange(mask.shape[-1], device=mask.device).expand(mask.shape[0], -1)
    if mask.dim() == 3:
        return mask.bool()[:, None], positions
    return (mask == 0 if mask.is_floating_point() else mask.bool()), positions


class XLMEForMaskedLM(XLMEPreTrainedModel):
    """Encoder with an MLM head that is tied to the token table."""

    # Makes `Trainer` pass `num_items_in_batch` and leave the division by it to the model.
    accepts_loss_kwargs = True
    _keys_to_ignore_on_load_unexpected = (r"rtd_head\.",)  # type: ignore[assignment]
    # transformers 4 reads the keys alone.
    _tied_weights_keys: ClassVar = {  # type: ignore[misc]
        "lm_head.decoder.weight": "xlme.embeddings.word_embeddings.weight"
    }

    def __init__(self, config):
        super().__init__(config)
        self.xlme = XLMEModel(config, add_rtd_head=False)
        self.lm_head = MLMHead(config)
        self.post_init()

    def get_output_embeddings(self):
        """Returns the head's output layer, whose matrix is the token table."""
        return self.lm_head.decoder

    def set_output_embeddings(self, value):
        """Replaces the head's output layer."""
        self.lm_head.decoder = value

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
        output = self.xlme(input_ids, attention_mask, return_dict=True, **kwargs)
        logits = self.lm_head(output.last_hidden_state)
        loss = None
        if labels is not None:
            scores = logits.flatten(0, 1).float()
            labels = labels.flatten()
            if num_items_in_batch is None:
                loss = nn.functional.cross_entropy(scores, labels)
            else:
                loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
                loss = loss / torch.as_tensor(num_items_in_batch, device=loss.device)
        return self._result(MaskedLMOutput, output, return_dict, loss=loss, logits=logits)


class XLMEForTask(XLMEPreTrainedModel):
    """Encoder with a fresh linear layer, `head`; the base of the models below."""

    _keys_to_ignore_on_load_unexpected = (  # type: ignore[assignment]
        r"rtd_head\.",
        r"lm_head\.",
    )

    def __init__(self, config):
        super().__init__(config)
        self.xlme = XLMEModel(config, add_rtd_head=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.head = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class XLMEForSequenceClassification(XLMEForTask):
    """Classification of, or regression on, the state of the first token, `<s>`."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, return_dict=None, **kwargs):
        """Computes logits, and the loss if there are labels.

        Args:
          input_ids: int[B, L], token ids.
          attention_mask: see `XLMEModel`.
          labels: int[B], classes; float[B] or float[B, 1], values, if `num_labels` is 1; float[B,
            `num_labels`], 0 or 1, for several labels at once. `config.problem_type` decides, and
            is set by the first labels if it is None.
          return_dict: False to return a tuple.
          **kwargs: passed to `XLMEModel`.

        Returns:
          `SequenceClassifierOutput` with logits [B, `num_labels`], or a tuple of its values that
          are not None.
        """
        output = self.xlme(input_ids, attention_mask, return_dict=True, **kwargs)
        logits = self.head(self.dropout(output.last_hidden_state[:, 0]))
        loss = None if labels is None else self._loss(logits.float(), labels)
        return self._result(SequenceClassifierOutput, output, return_dict, loss=loss, logits=logits)

    def _loss(self, logits, labels):
        config = self.config
        if config.problem_type is None:
            several = "multi" if labels.is_floating_point() else "single"
            kind = (
                "regression" if self.head.out_features == 1 else f"{several}_label_classification"
            )
            config.problem_type = kind  # type: ignore[assignment]
        if config.problem_type == "regression":
            return nn.functional.mse_loss(logits.flatten(), labels.flatten().float())
        if config.problem_type == "single_label_classification":
            return nn.functional.cross_entropy(logits, labels.flatten())
        return nn.functional.binary_cross_entropy_with_logits(logits, labels.float())


class XLMEForTokenClassification(XLMEForTask):
    """A class for each token."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, return_dict=None, **kwargs):
        """Computes logits, and the loss if there are labels.

        Args:
          input_ids: int[B, L], token ids.
          attention_mask: see `XLMEModel`.
          labels: int[B, L], classes; -100 for tokens without loss.
          return_dict: False to return a tuple.
          **kwargs: passed to `XLMEModel`.

        Returns:
          `TokenClassifierOutput` with logits [B, L, `num_labels`], or a tuple of its values that
          are not None.
        """
        output = self.xlme(input_ids, attention_mask, return_dict=True, **kwargs)
        logits = self.head(self.dropout(output.last_hidden_state))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return self._result(TokenClassifierOutput, output, return_dict, loss=loss, logits=logits)


class XLMEForQuestionAnswering(XLMEForTask):
    """Predicts the first and the last token of the answer to a question."""

    def __init__(self, config):
        """Creates the model; `config.num_labels` becomes 2, for the first and the last token."""
        config.num_labels = 2
        super().__init__(config)

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        start_positions=None,
        end_positions=None,
        return_dict=None,
        **kwargs,
    ):
        """Computes logits, and the loss if there are positions.

        Args:
          input_ids: int[B, L], token ids.
          attention_mask: see `XLMEModel`.
          start_positions: int[B], first tokens of the answers; those outside the row are ignored.
          end_positions: int[B], last tokens of the answers.
          return_dict: False to return a tuple.
          **kwargs: passed to `XLMEModel`.

        Returns:
          `QuestionAnsweringModelOutput` with logits [B, L] of both positions, or a tuple of its
          values that are not None.
        """
        output = self.xlme(input_ids, attention_mask, return_dict=True, **kwargs)
        start, end = self.head(self.dropout(output.last_hidden_state)).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = []
            for logits, position in ((start, start_positions), (end, end_positions)):
                position = position.flatten()
                inside = (position >= 0) & (position < logits.shape[1])
                target = position.where(inside, -100)
                losses.append(nn.functional.cross_entropy(logits.float(), target))
            loss = (losses[0] + losses[1]) / 2
        values = {"loss": loss, "start_logits": start, "end_logits": end}
        return self._result(QuestionAnsweringModelOutput, output, return_dict, **values)
