"""A Transformer encoder of 2024's form: rotary positions, gated feed-forward layers, windows.

The shape is ModernBERT's (Warner et al. 2024, "Smarter, Better, Faster, Longer", arXiv:2412.13663,
Sec. 2.1), which mmBERT has too; with `norm = "rms"`, `activation = "silu"` and `global_every = 1`
that of EuroBERT, but for the normalised embeddings. It stands in for `model.encoder.Encoder` in
XLM, XLM-E, XY-LENT and `Contrast`, with their heads, which have biases.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.model.encoder import (
    HIDDEN_AXES,
    QUERY_AXES,
    EncoderConfig,
    Memory,
    Projection,
    dense,
    kept_when_recomputing,
    relative_bias,
    weight_init,
)
from xlme_jax.model.parameters import ONES
from xlme_jax.model.relative_bias import Gate
from xlme_jax.ops.activations import gelu
from xlme_jax.ops.attention import attention, take_positions
from xlme_jax.ops.dropout import dropout, fold_in
from xlme_jax.ops.window_attention import scored_keys, window_attention
from xlme_jax.validation.fields import check_at_least


@dataclasses.dataclass(frozen=True)
class ModernEncoderConfig(EncoderConfig):
    """Shape and options of a modern encoder. The defaults are ModernBERT's Base (Table 4).

    Fields of `Encoder` mean the same. Layers normalise their inputs (`pre_norm`), have no biases
    and cannot be scanned. `relative_bias` is added in layers without a window, beside the rotation.

    Attributes:
      rope_theta: base of the rotations in layers without a window (Su et al. 2021, RoPE).
      local_rope_theta: base of the rotations in layers with a window.
      global_every: each layer whose index this number divides attends to the whole segment; 1 for
        all layers.
      window: tokens of the window of the other layers, half of them on either side.
      activation: of the gate of feed-forward layers (Shazeer 2020, GeGLU and SwiGLU).
      norm: "layer" normalises mean and variance, "rms" the root mean square.
    """

    ffn_products = 3

    num_layers: int = 22
    ffn_size: int = 1152
    max_length: int = 1024
    absolute_positions: bool = False
    relative_bias: Literal["gated", "plain", "none"] = "none"
    pre_norm: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    global_every: int = 3
    window: int = 128
    activation: Literal["gelu", "silu"] = "gelu"
    norm: Literal["layer", "rms"] = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, "ModernEncoder", 1, "global_every", "window")
        check_at_least(self, "ModernEncoder", 2, "rope_theta", "local_rope_theta")
        if self.scan_layers:
            raise ValueError("ModernEncoder.scan_layers must be False.")
        if not self.pre_norm:
            raise ValueError("ModernEncoder.pre_norm must be True.")
        if self.hidden_size // self.num_heads % 2:
            raise ValueError(
                f"ModernEncoder: heads of width {self.hidden_size // self.num_heads} cannot be "
                "rotated in pairs; choose hidden_size / num_heads even."
            )

    def scored_keys(self, length: int) -> float:
        """See `EncoderConfig.scored_keys`."""
        all_layers = range(self.num_layers)
        local = scored_keys(length, self.window)
        keys = [local if self.is_local(index) else length for index in all_layers]
        return sum(keys) / len(keys)

    def is_local(self, layer: int) -> bool:
        """Returns whether a layer, counted from 0, attends to a window."""
        return layer % self.global_every > 0

    def module(self, dtype: jnp.dtype) -> nn.Module:
        """See `EncoderConfig.module`."""
        return ModernEncoder(self, dtype)


def rotations(length: int, width: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of the angles by which a row's queries and keys are turned.

    Angles are those of columns: only their differences within a segment matter.

    Args:
      length: L, tokens of the row.
      width: K, width of a head.
      theta: base of the frequencies theta^(-2i / K).

    Returns:
      float32[L, K / 2] each.
    """
    frequencies = theta ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(x: jax.Array, cosines: np.ndarray, sines: np.ndarray) -> jax.Array:
    """Turns pairs of features i and i + K / 2 by the angles of their columns: [B, L, H, K]."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    first, second = jnp.split(wide, 2, axis=-1)
    cos, sin = cosines[:, None], sines[:, None]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def _norm(config: ModernEncoderConfig, dtype: jnp.dtype, name: str) -> nn.Module:
    """Returns a normalisation without bias: float32 statistics, result in the compute type."""
    scale = nn.with_logical_partitioning(ONES, ("norm",))
    options: dict[str, Any] = {"epsilon": config.layer_norm_eps, "dtype": dtype, "name": name}
    if config.norm == "rms":
        return nn.RMSNorm(scale_init=scale, **options)
    return nn.LayerNorm(scale_init=scale, use_bias=False, **options)


class ModernLayer(nn.Module):
    """A layer: attention to the segment or to a window of it, and a gated feed-forward layer.

    Attributes:
      config: the encoder.
      index: number of the layer, from 0, whose input is normalised already.
      dtype: compute type.
    """

    config: ModernEncoderConfig
    index: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        dropout_seeds: jax.Array | None,
        segment_ids: jax.Array,
        distance_bias: jax.Array | None,
        at: jax.Array | None = None,
    ) -> jax.Array:
        """Runs the layer.

        Args:
          x: [B, L, D].
          dropout_seeds: uint32[B], seeds of this layer; None for no dropout.
          segment_ids: int32[B, L], 0 = padding.
          distance_bias: [H, 2L], the relative bias of layers without a window; None for none.
          at: int32[B, M], the positions whose output is computed; None for all.

        Returns:
          [B, L, D], or [B, M, D] with `at`.
        """
        config = self.config
        heads = config.num_heads  # Attention uses salts 0 to heads - 1, as in `Layer`.
        h = _norm(config, self.dtype, "attention_norm")(x) if self.index else x
        h = self._attend(h, dropout_seeds, segment_ids, distance_bias, at)
        x = take_positions(x, at) + dropout(h, config.dropout, dropout_seeds, salt=heads)
        x = nn.with_logical_constraint(x, HIDDEN_AXES)
        h = self._feed_forward(_norm(config, self.dtype, "ffn_norm")(x))
        x = x + dropout(h, config.dropout, dropout_seeds, salt=heads + 1)
        return nn.with_logical_constraint(x, HIDDEN_AXES)

    def _attend(
        self,
        x: jax.Array,
        dropout_seeds: jax.Array | None,
        segment_ids: jax.Array,
        distance_bias: jax.Array | None,
        at: jax.Array | None,
    ) -> jax.Array:
        """Returns the output of attention; the arguments are those of `__call__`."""
        config, length = self.config, x.shape[1]
        shape = (config.num_heads, config.hidden_size // config.num_heads)
        qkv_axes = ("embed", "qkv", "heads", "kv")
        qkv = Projection(config, "rd,dnhk->rnhk", qkv_axes, self.dtype, use_bias=False, name="qkv")(
            x, (config.hidden_size, 3, *shape), (3, *shape)
        )
        qkv = nn.with_logical_constraint(qkv, ("batch", "length", "qkv", "heads", "kv"))
        is_local = config.is_local(self.index)
        theta = config.local_rope_theta if is_local else config.rope_theta
        turns = rotations(length, shape[1], theta)
        queries = take_positions(rotated(qkv[:, :, 0], *turns), at)
        keys, values = rotated(qkv[:, :, 1], *turns), qkv[:, :, 2]
        if is_local:
            mixed = window_attention(
                queries,
                keys,
                values,
                segment_ids,
                config.window,
                at=at,
                dropout_rate=config.attention_dropout,
                dropout_seeds=dropout_seeds,
            )
        else:
            gate = None
            if config.relative_bias == "gated":
                gate = Gate(weight_init(config), name="gate")(take_positions(qkv[:, :, 0], at))
            mixed = attention(
                queries,
                keys,
                values,
                segment_ids,
                distance_bias,
                gate,
                at=at,
                dropout_rate=config.attention_dropout,
                dropout_seeds=dropout_seeds,
                implementation=config.attention,
                partition=nn.logical_to_mesh_axes(QUERY_AXES),
            )
        axes = ("heads", "kv", "embed")
        return Projection(config, "rhk,hkd->rd", axes, self.dtype, use_bias=False, name="out")(
            mixed, (*shape, config.hidden_size), (config.hidden_size,)
        )

    def _feed_forward(self, x: jax.Array) -> jax.Array:
        """Applies the gated feed-forward layer: [B, L, D] -> [B, L, D]."""
        config = self.config
        width, inner = config.hidden_size, config.ffn_size
        both = Projection(
            config, "rd,dnf->rnf", ("embed", "qkv", "mlp"), self.dtype, use_bias=False, name="wi"
        )(x, (width, 2, inner), (2, inner))
        both = nn.with_logical_constraint(both, ("batch", "length", "qkv", "mlp"))
        act = gelu if config.activation == "gelu" else nn.silu
        x = act(both[:, :, 0]) * both[:, :, 1]
        return dense(config, x, width, ("mlp", "embed"), self.dtype, "wo", use_bias=False)


class ModernEncoder(nn.Module):
    """Maps embeddings to contextual hidden states; called as `model.encoder.Encoder` is."""

    config: ModernEncoderConfig
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        embedded: jax.Array,
        segment_ids: jax.Array,
        *,
        dropout_seeds: jax.Array | None = None,
        all_layers: bool = False,
        at: jax.Array | None = None,
        source: Memory | None = None,
    ) -> jax.Array | list[jax.Array]:
        """Encodes packed rows; see `Encoder.__call__` for arguments and result.

        Raises:
          ValueError: `source` is given, as this encoder does not decode, or `at` with `all_layers`.
        """
        if source is not None:
            raise ValueError("ModernEncoder does not decode: VECO and translators need Encoder.")
        if at is not None and all_layers:
            raise ValueError("ModernEncoder(at=...) goes without all_layers=.")
        config = self.config
        x = _norm(config, self.dtype, "embedding_norm")(embedded.astype(self.dtype))
        x = dropout(x, config.dropout, dropout_seeds)
        if embedded.shape[-1] != config.hidden_size:
            axes = ("table_embed", "embed")
            x = dense(config, x, config.hidden_size, axes, self.dtype, "projection", use_bias=False)
        x = nn.with_logical_constraint(x, HIDDEN_AXES)
        distance_bias = relative_bias(config, x.shape[1])
        layer = ModernLayer
        if config.remat:
            layer = nn.remat(ModernLayer, policy=kept_when_recomputing(config))
        states = [x]
        for index in range(config.num_layers):
            seeds = None if dropout_seeds is None else fold_in(dropout_seeds, index + 1)
            module = layer(config, index, self.dtype, name=f"layer_{index}")
            positions = at if index == config.num_layers - 1 else None
            states.append(module(states[-1], seeds, segment_ids, distance_bias, positions))
        states[-1] = _norm(config, self.dtype, "final_norm")(states[-1])
        return states if all_layers else states[-1]
