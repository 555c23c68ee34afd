"""The Transformer encoder of every model; VECO also runs it as a decoder."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta

from xlme_jax.model.parameters import ONES, ZEROS, Initializer, parameter
from xlme_jax.model.relative_bias import Gate, RelativeBiasTable
from xlme_jax.ops.activations import gelu
from xlme_jax.ops.attention import attention, take_positions
from xlme_jax.ops.dropout import dropout, fold_in
from xlme_jax.ops.implementations import KEPT, Implementation
from xlme_jax.ops.products import product
from xlme_jax.validation.fields import check_at_least, check_below_one, check_choices

if TYPE_CHECKING:
    from xlme_jax.model.decoding_cache import Cache

HIDDEN_AXES = ("batch", "length", "activation_embed")
QUERY_AXES = ("batch", "length", "heads", "kv")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Shape and options of an encoder. The defaults are XLM-E's Base discriminator (Table 9).

    Attributes:
      hidden_size: D.
      num_layers: Transformer layers.
      num_heads: H; the head width is D / H.
      ffn_size: F, width of the feed-forward layer.
      max_length: rows of the absolute position table, the longest segment in tokens.
      absolute_positions: add learned absolute positions to the embeddings. The papers' parameter
        counts include them as well as the relative bias.
      relative_bias: "gated" is XLM-E's, "plain" T5's without the gate, "none" leaves it out.
      relative_buckets: buckets of the relative bias, for both directions together.
      relative_max_distance: distance in tokens beyond which keys share a bucket.
      gate_input: what the gate reads: the projected query of the head ("query", the paper) or the
        layer's input split into heads ("hidden", WavLM).
      pre_norm: normalise before each sub-layer and once at the end, instead of after each.
      dropout: probability for embeddings and sub-layer outputs.
      attention_dropout: probability for attention weights.
      layer_norm_eps: epsilon of every layer normalisation.
      init_std: standard deviation of the normal initialisation of weights.
      scan_layers: compile one layer and loop it over stacked weights: compile time does not grow
        with depth, and a step takes nearly as long. Checkpoints of either setting load in the
        other.
      remat: what the backward pass recomputes. True: each layer, so that only its input is kept.
        "products": only what lies between matrix products and attention, whose results are kept;
        it costs next to no FLOPs, and memory for ten arrays of the layer's width.
        False: nothing; about 17 arrays are kept. Only with True does an MLM head over a large
        vocabulary recompute its logits; else it keeps predicted tokens x vocabulary numbers.
      attention: "xla" materialises all scores of a layer; "kernel" does not, and needs a TPU or
        GPU ("kernel_64": with blocks of 64); "cudnn" is for NVIDIA GPUs, bfloat16, no relative bias
        and no attention dropout. "auto": a training run on TPUs or GPUs measures which of them is
        the fastest (`runs.attention_choice`), one on CPUs uses "xla"; elsewhere, as in evaluation,
        the kernel is used for long rows where the device supports it.
    """

    ffn_products: ClassVar[int] = 2  # Products with a matrix in a feed-forward layer.

    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    ffn_size: int = 3072
    max_length: int = 512
    absolute_positions: bool = True
    relative_bias: Literal["gated", "plain", "none"] = "gated"
    relative_buckets: int = 32
    relative_max_distance: int = 128
    gate_input: Literal["query", "hidden"] = "query"
    pre_norm: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-5
    init_std: float = 0.02
    scan_layers: bool = False
    remat: Literal[False, True, "products"] = False
    attention: Implementation = "auto"

    def __post_init__(self) -> None:
        name = type(self).__name__.removesuffix("Config")
        check_choices(self, name)
        sizes = ("hidden_size", "num_layers", "num_heads", "ffn_size", "max_length")
        check_at_least(self, name, 1, *sizes)
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"{name}.hidden_size = {self.hidden_size} is not divisible by "
                f"{name}.num_heads = {self.num_heads}; choose a multiple."
            )
        if self.relative_buckets < 4 or self.relative_buckets % 4:
            raise ValueError(
                f"{name}.relative_buckets = {self.relative_buckets} must be a multiple of 4."
            )
        if self.relative_max_distance <= self.relative_buckets // 4:
            raise ValueError(
                f"{name}.relative_max_distance = {self.relative_max_distance} must exceed "
                f"relative_buckets / 4 = {self.relative_buckets // 4}, the exact distances."
            )
        for field in ("layer_norm_eps", "init_std"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{name}.{field} = {getattr(self, field)} must be positive.")
        check_below_one(self, name, "dropout", "attention_dropout")

    def scored_keys(self, length: int) -> float:
        """Returns the keys scored for a query in rows of `length` tokens, the mean over layers."""
        return length

    def module(self, dtype: jnp.dtype) -> nn.Module:
        """Returns the encoder, with the compute type `dtype`."""
        return Encoder(self, dtype)


def weight_init(config: EncoderConfig) -> Initializer:
    """Returns the initializer of weights and embeddings: normal, std BERT's .02."""
    return nn.initializers.normal(config.init_std)


def layer_norm(config: EncoderConfig, dtype: jnp.dtype, name: str | None = None) -> nn.LayerNorm:
    """Returns a layer normalization module: float32 statistics, result in the compute type."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_eps,
        dtype=dtype,
        scale_init=nn.with_logical_partitioning(ONES, ("norm",)),
        bias_init=nn.with_logical_partitioning(ZEROS, ("norm",)),
        name=name,
    )


class Memory(NamedTuple):
    """The other text that a decoder attends to, with the decoder's cross-attention weights.

    Attributes:
      weights: the cross-attention weights of each layer, from `init_cross_attention`. They are not
        part of the encoder, which runs without cross-attention.
      states: [B, S, D], hidden states of the other text.
      segment_ids: int32[B, S]; the tokens of a segment read the states with the same segment id.
    """

    weights: Any
    states: jax.Array
    segment_ids: jax.Array


class SelfAttention(nn.Module):
    """Multi-head self-attention with the gated relative position bias."""

    config: EncoderConfig
    dtype: jnp.dtype = jnp.float32
    causal: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        segment_ids: jax.Array,
        distance_bias: jax.Array | None,
        dropout_seeds: jax.Array | None = None,
        cache: "Cache | None" = None,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, "Cache | None"]:
        """Attends inside each segment.

        Args:
          x: [B, L, D]; with a cache [B, W, D], the next token of each hypothesis.
          segment_ids: int32[B, L], 0 = padding; unused with a cache.
          distance_bias: [H, 2L], the encoder's table (`RelativeBiasTable`); None if there is none.
          dropout_seeds: uint32[B], a seed per row; None for no dropout.
          cache: the earlier tokens of each hypothesis, which alone are read besides the next one.
          at: int32[B, M], the only positions that attend; None for all.

        Returns:
          [B, L, D]; [B, W, D] with a cache; [B, M, D] with `at`. And the cache with the next
          token, or None.
        """
        config = self.config
        shape = (config.num_heads, config.hidden_size // config.num_heads)
        qkv_axes = ("embed", "qkv", "heads", "kv")
        qkv = Projection(config, "rd,dnhk->rnhk", qkv_axes, self.dtype, name="qkv")(
            x, (config.hidden_size, 3, *shape), (3, *shape)
        )
        qkv = nn.with_logical_constraint(qkv, ("batch", "length", "qkv", "heads", "kv"))
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        q = take_positions(q, at)
        gate = None
        if config.relative_bias == "gated":
            by_head = x.reshape(*x.shape[:2], *shape)
            gate_input = q if config.gate_input == "query" else take_positions(by_head, at)
            gate = Gate(weight_init(config), name="gate")(gate_input)
        if cache is not None:
            cache = cache.append(k, v)
            mixed = cache.attend(q)
        else:
            mixed = attention(
                q,
                k,
                v,
                segment_ids,
                distance_bias,
                gate,
                causal=self.causal,
                at=at,
                dropout_rate=config.attention_dropout,
                dropout_seeds=dropout_seeds,
                implementation=config.attention,
                partition=nn.logical_to_mesh_axes(QUERY_AXES),
            )
        axes = ("heads", "kv", "embed")
        out = Projection(config, "rhk,hkd->rd", axes, self.dtype, name="out")(
            mixed, (*shape, config.hidden_size), (config.hidden_size,)
        )
        return out, cache


class CrossAttention(nn.Module):
    """Multi-head attention to the states of another text, with normalisation (VECO Eq. 2)."""

    config: EncoderConfig
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        segment_ids: jax.Array,
        source: jax.Array,
        source_segment_ids: jax.Array,
        dropout_seeds: jax.Array | None = None,
    ) -> jax.Array:
        """Returns [B, L, D], the sum of `x` and what it reads of the source, normalised if post-LN.

        Args:
          x: [B, L, D], states of the decoder.
          segment_ids: int32[B, L]; a token reads the states of the source with its segment id.
          source: states [B, S, D], or in decoding the keys and values [B, S, 2, H, K] that
            `project_source` makes of states.
          source_segment_ids: int32[B, S].
          dropout_seeds: uint32[B], a seed per row; None for no dropout.
        """
        config = self.config
        shape = (config.num_heads, config.hidden_size // config.num_heads)
        width = config.hidden_size
        norm = layer_norm(config, self.dtype, "norm")
        q = Projection(config, "rd,dhk->rhk", ("embed", "heads", "kv"), self.dtype, name="q")(
            norm(x) if config.pre_norm else x, (width, *shape), shape
        )
        is_decoding = source.ndim != 3
        kv = source if is_decoding else project_source(config, self.dtype, source)
        q = nn.with_logical_constraint(q, QUERY_AXES)
        kv = nn.with_logical_constraint(kv, ("batch", "length", "qkv", "heads", "kv"))
        mixed = attention(
            q,
            kv[:, :, 0],
            kv[:, :, 1],
            segment_ids,
            key_segment_ids=source_segment_ids,
            dropout_rate=config.attention_dropout,
            dropout_seeds=dropout_seeds,
            # Decoding has a query per hypothesis, not rows of them.
            implementation="xla" if is_decoding else config.attention,
            partition=nn.logical_to_mesh_axes(QUERY_AXES),
        )
        axes = ("heads", "kv", "embed")
        h = Projection(config, "rhk,hkd->rd", axes, self.dtype, name="out")(
            mixed, (*shape, width), (width,)
        )
        h = dropout(h, config.dropout, dropout_seeds, salt=config.num_heads)  # As in Layer.
        return add_residual(config, norm, x, h)


def add_residual(
    config: EncoderConfig, norm: nn.LayerNorm, x: jax.Array, output: jax.Array
) -> jax.Array:
    """Returns `x`, the input of a sub-layer, plus its output, [B, L, D]; normalised if post-LN."""
    x = x + output if config.pre_norm else norm(x + output)
    return nn.with_logical_constraint(x, HIDDEN_AXES)


def project_source(
    config: EncoderConfig, dtype: jnp.dtype, states: jax.Array, weights: Any = None
) -> jax.Array:
    """Returns the keys and values that cross-attention reads, [B, S, 2, H, K].

    Args:
      config: the encoder.
      dtype: compute type.
      states: [B, S, D], hidden states of the source.
      weights: cross-attention weights of one layer; None inside `CrossAttention`, whose submodule
        "kv" then has the weights.
    """
    shape = (config.num_heads, config.hidden_size // config.num_heads)
    sizes = (config.hidden_size, 2, *shape), (2, *shape)
    arguments = (config, "rd,dnhk->rnhk", ("embed", "qkv", "heads", "kv"), dtype)
    if weights is None:
        return Projection(*arguments, name="kv")(states, *sizes)
    kv: Any = Projection(*arguments, parent=None).apply({"params": weights["kv"]}, states, *sizes)
    return kv


def init_cross_attention(config: EncoderConfig, rng: jax.Array) -> Any:
    """Returns random cross-attention weights of every layer, boxed with logical axis names.

    As in the encoder, the weights of all layers are one stack, "layers", with `scan_layers`, and
    "layer_0", "layer_1" and so on without it.
    """
    config = dataclasses.replace(config, attention="xla")  # No kernels for a single token.
    states = jnp.zeros((1, 1, config.hidden_size))
    ids = jnp.ones((1, 1), jnp.int32)

    def init(key: jax.Array) -> Any:
        return CrossAttention(config).init(key, states, ids, states, ids)["params"]

    keys = jax.random.split(rng, config.num_layers)
    if config.scan_layers:
        stack = jax.vmap(init)(keys)
        return {"layers": meta.add_axis(stack, 0, {nn.PARTITION_NAME: "layers"})}
    return {f"layer_{index}": init(key) for index, key in enumerate(keys)}


def some_layers(weights: Any, config: EncoderConfig, first: int, end: int) -> Any:
    """Returns weights of an encoder, or of its cross-attention, with layers `first` to `end` - 1.

    These layers are renumbered from 0; weights outside of layers stay as they are.
    """
    if config.scan_layers:
        return {**weights, "layers": jax.tree.map(lambda x: x[first:end], weights["layers"])}
    other_weights = {
        name: value for name, value in weights.items() if not name.startswith("layer_")
    }
    return other_weights | {f"layer_{i}": weights[f"layer_{first + i}"] for i in range(end - first)}


class Projection(nn.Module):
    """A dense layer over rows of features, whose kernel may have an axis of heads.

    It replaces linen's DenseGeneral, which initialises a flattened kernel, to which logical axes do
    not apply. The leading axes of the input are flattened to one, because XLA on CPUs is slow to
    sum gradients over two axes.

    Attributes:
      config: the encoder, which sets the initialisation.
      equation: einsum of rows (r) and kernel, as for `ops.products.product`.
      axes: logical axes of the kernel; the axes of the bias are the last of these.
      dtype: compute type.
      use_bias: whether a bias is added.
    """

    config: EncoderConfig
    equation: str
    axes: tuple[str, ...]
    dtype: jnp.dtype
    use_bias: bool = True

    @nn.compact
    def __call__(
        self, x: jax.Array, kernel_shape: tuple[int, ...], bias_shape: tuple[int, ...]
    ) -> jax.Array:
        """Applies the layer: [..., *inputs] -> [..., *bias_shape].

        Args:
          x: [..., *inputs].
          kernel_shape: (*inputs, *bias_shape).
          bias_shape: shape of the result's last axes, and of the bias.
        """
        kernel = parameter(self, "kernel", weight_init(self.config), kernel_shape, self.axes)
        inputs = kernel_shape[: len(kernel_shape) - len(bias_shape)]
        batch = x.shape[: x.ndim - len(inputs)]
        rows = x.reshape(-1, *inputs).astype(self.dtype)
        y = product(self.equation, rows, kernel.astype(self.dtype))
        if self.use_bias:
            # Biases that are added to the residual stream are replicated.
            axes = self.axes[-len(bias_shape) :]
            bias_axes = tuple("norm" if axis == "embed" else axis for axis in axes)
            bias = parameter(self, "bias", ZEROS, bias_shape, bias_axes)
            y = y + bias.astype(self.dtype)
        return y.reshape(*batch, *bias_shape)


class FeedForward(nn.Module):
    """Dense, erf GELU, dense."""

    config: EncoderConfig
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the feed-forward layer: [B, L, D] -> [B, L, D]."""
        x = dense(self.config, x, self.config.ffn_size, ("embed", "mlp"), self.dtype, "wi")
        x = gelu(nn.with_logical_constraint(x, ("batch", "length", "mlp")))
        return dense(self.config, x, self.config.hidden_size, ("mlp", "embed"), self.dtype, "wo")


def dense(
    config: EncoderConfig,
    x: jax.Array,
    size: int,
    axes: tuple[str, str],
    dtype: jnp.dtype,
    name: str,
    use_bias: bool = True,
) -> jax.Array:
    """Applies a dense layer to `x` [..., inputs] -> [..., size], sharded along logical `axes`."""
    layer = Projection(config, "ri,io->ro", axes, dtype, use_bias, name=name)
    return layer(x, (x.shape[-1], size), (size,))


def relative_bias(config: EncoderConfig, length: int) -> jax.Array | None:
    """Returns the relative bias of each distance in rows of `length`, [H, 2L]; None without one."""
    if config.relative_bias == "none":
        return None
    table = RelativeBiasTable(
        config.num_heads,
        config.relative_buckets,
        config.relative_max_distance,
        weight_init(config),
        name="relative_bias",
    )
    biases: jax.Array = table(length)
    return biases


class Layer(nn.Module):
    """One Transformer layer, post-LN by default.

    Attributes:
      config: the encoder.
      dtype: compute type.
      keep_output: whether a scan over layers collects the output of each layer.
    """

    config: EncoderConfig
    dtype: jnp.dtype = jnp.float32
    keep_output: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        dropout_seeds: jax.Array | None,
        segment_ids: jax.Array,
        distance_bias: jax.Array | None,
        cross_weights: Any = None,
        source: jax.Array | None = None,
        source_segment_ids: jax.Array | None = None,
        cache: "Cache | None" = None,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """Runs an encoder layer, or a decoder layer if there are cross-attention weights.

        Args:
          x: [B, L, D]; with a cache [B, W, D], the next token of each hypothesis.
          dropout_seeds: uint32[B], seeds of this layer; None for no dropout.
          segment_ids: int32[B, L], 0 = padding.
          distance_bias: [H, 2L], the encoder's table (`RelativeBiasTable`); None if there is none.
          cross_weights: this layer's part of `Memory.weights`; None for an encoder layer.
          source: `Memory.states`, or keys and values of `project_source`.
          source_segment_ids: `Memory.segment_ids`.
          cache: this layer's cache in decoding token by token.
          at: int32[B, M], the positions whose output is computed; None for all.

        Returns:
          The output, [B, L, D], or [B, M, D] with `at`: the carry of a scan over layers. And, as
          what a scan collects, the output once more with `keep_output`, or else None. With a
          cache, the second result is the new cache.
        """
        config, is_decoder = self.config, cross_weights is not None
        heads = config.num_heads  # Attention uses salts 0 to heads - 1; the others come after.
        norm = layer_norm(config, self.dtype, "attention_norm")
        attend = SelfAttention(config, self.dtype, is_decoder, name="attention")
        h = norm(x) if config.pre_norm else x
        h, new_cache = attend(h, segment_ids, distance_bias, dropout_seeds, cache, at)
        h = dropout(h, config.dropout, dropout_seeds, salt=heads)
        x = add_residual(config, norm, take_positions(x, at), h)
        if is_decoder:
            # Not a submodule, because the weights of cross-attention are passed in.
            module = CrossAttention(config, self.dtype, parent=None)
            seeds = None if dropout_seeds is None else fold_in(dropout_seeds, heads + 2)
            arguments = x, segment_ids, source, source_segment_ids, seeds
            with_source: Any = module.apply({"params": cross_weights}, *arguments)
            x = with_source
        norm = layer_norm(config, self.dtype, "ffn_norm")
        h = FeedForward(config, self.dtype, name="ffn")(norm(x) if config.pre_norm else x)
        h = dropout(h, config.dropout, dropout_seeds, salt=heads + 1)
        x = add_residual(config, norm, x, h)
        if cache is not None:
            return x, new_cache
        return x, x if self.keep_output else None


def kept_when_recomputing(config: EncoderConfig) -> Any:
    """Returns the checkpoint policy of `config.remat`; None if only a layer's input is kept."""
    if config.remat is True:
        return None
    policies = jax.checkpoint_policies
    return policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(KEPT)
    )


class Encoder(nn.Module):
    """Maps embeddings to contextual hidden states.

    It takes embeddings rather than token ids, because generator and discriminator may share the
    table (see `objectives.xlme`).
    """

    config: EncoderConfig
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
        """Encodes packed rows, or decodes them: the same weights serve both.

        Args:
          embedded: [B, L, E] sum of token and position embeddings.
          segment_ids: int32[B, L], 0 = padding.
          dropout_seeds: uint32[B], a seed per row (`ops.dropout.seeds`); None for no dropout.
          all_layers: return the states of every layer.
          at: int32[B, M], the positions whose output is computed by the last layer, where dropout
            draws the numbers of positions 0 to M - 1; None for all positions. Not with
            `all_layers`, nor with `source`.
          source: the other text that a decoder reads; None for an encoder. With a source,
            self-attention is causal, and cross-attention comes between self-attention and the
            feed-forward layer (VECO Eq. 6).

        Returns:
          The output of the last layer, [B, L, D], or [B, M, D] with `at`; or a list of
          num_layers + 1 arrays, the embeddings (index 0) and the output of each layer.

        Raises:
          ValueError: `at` is given with `all_layers` or `source`.
        """
        if at is not None and (all_layers or source is not None):
            raise ValueError("Encoder(at=...) goes without all_layers= and without source=.")
        config = self.config
        x = layer_norm(config, self.dtype, "embedding_norm")(embedded.astype(self.dtype))
        x = dropout(x, config.dropout, dropout_seeds)
        if embedded.shape[-1] != config.hidden_size:
            axes = ("table_embed", "embed")
            x = dense(config, x, config.hidden_size, axes, self.dtype, "projection")
        x = nn.with_logical_constraint(x, HIDDEN_AXES)
        distance_bias = relative_bias(config, x.shape[1])
        inputs = x, segment_ids, distance_bias, dropout_seeds
        if not config.scan_layers:
            states = self._separate_layers(*inputs, at, source)
        elif at is None or self.is_initializing():
            states = self._stacked_layers(*inputs, all_layers, at, source)
        else:
            states = [self._stack_at(*inputs, at)]
        if config.pre_norm:
            states[-1] = layer_norm(config, self.dtype, "final_norm")(states[-1])
        return states if all_layers else states[-1]

    def _separate_layers(
        self,
        x: jax.Array,
        segment_ids: jax.Array,
        distance_bias: jax.Array | None,
        dropout_seeds: jax.Array | None,
        at: jax.Array | None,
        source: Memory | None,
    ) -> list[jax.Array]:
        """Runs separate layers one after the other; returns `x` and the output of each layer.

        Args:
          x: [B, L, D], input of the first layer.
          segment_ids: int32[B, L].
          distance_bias: [H, 2L], or None.
          dropout_seeds: uint32[B], or None.
          at: positions of the last output, or None.
          source: what a decoder reads, or None.
        """
        config, layer = self.config, self._layer_class()
        seeds = self._seeds(dropout_seeds)
        weights, *source_arrays = source or (None, None, None)
        states = [x]
        for index in range(config.num_layers):
            module = layer(config, self.dtype, name=f"layer_{index}")
            layer_seeds = None if seeds is None else seeds[index]
            cross = None if weights is None else weights[f"layer_{index}"]
            arguments = segment_ids, distance_bias, cross, *source_arrays
            options: dict[str, Any] = {}
            if index == config.num_layers - 1:
                options["at"] = at
            states.append(module(states[-1], layer_seeds, *arguments, **options)[0])
        return states

    def _stacked_layers(
        self,
        x: jax.Array,
        segment_ids: jax.Array,
        distance_bias: jax.Array | None,
        dropout_seeds: jax.Array | None,
        keep_outputs: bool,
        at: jax.Array | None,
        source: Memory | None,
    ) -> list[jax.Array]:
        """Runs stacked layers as a scan.

        The arguments are those of `_separate_layers`; `at` is for the initialization of weights
        alone, because `_stack_at` runs stacked layers with `at`.

        Returns:
          `x`, and the last output; with `keep_outputs`, `x` and the output of each layer.
        """
        config = self.config
        weights, *source_arrays = source or (None, None, None)
        stack = nn.scan(
            self._layer_class(),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, 0, nn.broadcast, nn.broadcast),
            length=config.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(config, self.dtype, keep_outputs, name="layers")
        seeds = self._seeds(dropout_seeds)
        cross = None if weights is None else weights["layers"]
        last, outputs = stack(x, seeds, segment_ids, distance_bias, cross, *source_arrays)
        last = take_positions(last, at)
        return [x, last] if outputs is None else [x, *outputs[:-1], last]

    def _stack_at(
        self,
        x: jax.Array,
        segment_ids: jax.Array,
        distance_bias: jax.Array | None,
        dropout_seeds: jax.Array | None,
        at: jax.Array,
    ) -> jax.Array:
        """Runs stacked layers, the last one for positions `at`, int32[B, M], alone.

        Args:
          x: [B, L, D], input of the first layer.
          segment_ids: int32[B, L].
          distance_bias: [H, 2L], or None.
          dropout_seeds: uint32[B], or None.
          at: int32[B, M].

        Returns:
          [B, M, D], the output of the last layer.
        """
        config = self.config
        # As functions of slices of the stack, because linen's scan covers a stack as a whole.
        weights = meta.unbox(self.variables["params"]["layers"])
        seeds = self._seeds(dropout_seeds)

        def run(x: jax.Array, slices: Any, at: jax.Array | None = None) -> tuple[jax.Array, None]:
            layer_weights, layer_seeds = slices
            layer = Layer(config, self.dtype, parent=None)
            arguments = x, layer_seeds, segment_ids, distance_bias
            layer_outputs: Any = layer.apply({"params": layer_weights}, *arguments, at=at)
            return layer_outputs[0], None

        body = run
        if config.remat:
            policy = kept_when_recomputing(config)
            body = jax.checkpoint(run, prevent_cse=False, policy=policy)
        x, _ = jax.lax.scan(body, x, jax.tree.map(lambda each: each[:-1], (weights, seeds)))
        last = jax.tree.map(lambda each: each[-1], (weights, seeds))
        return run(x, last, at)[0]

    def _layer_class(self) -> Any:
        """Returns `Layer`, whose activations are recomputed in the backward pass with `remat`."""
        config = self.config
        if not config.remat:
            return Layer
        policy = kept_when_recomputing(config)
        return nn.remat(Layer, prevent_cse=not config.scan_layers, policy=policy)

    def _seeds(self, dropout_seeds: jax.Array | None) -> jax.Array | None:
        """Returns the seeds of each layer, uint32[layers, B]; None without dropout seeds."""
        if dropout_seeds is None:
            return None
        return fold_in(dropout_seeds, jnp.arange(1, self.config.num_layers + 1)[:, None])
