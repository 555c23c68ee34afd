"""Maps weights to tensors of a Hugging Face model and back.

Export and import share one table, so exported weights can be imported again bit for bit. Tensors
that XLM-R has too are named as in `transformers`' XLMRobertaModel.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.ops.vocabulary_head import padded_size

# XLM-R's position table has two rows before the first token's, because its positions start after
# the id of <pad>, 1.
POSITION_OFFSET = 2

Path = tuple[str, ...]
Arrays = tuple[np.ndarray, ...]
Head = Literal["mlm", "rtd_dense", "rtd_linear"]


def has_form_of_xlmr(encoder: EncoderConfig) -> bool:
    """Returns whether XLM-R's classes can express an encoder."""
    return encoder.relative_bias == "none" and encoder.absolute_positions and not encoder.pre_norm


@dataclasses.dataclass(frozen=True)
class Weight:
    """One weight of our parameter tree and the corresponding Hugging Face tensors.

    Attributes:
      path: keys of the weight in our parameter tree with unstacked layers ("layer_0", ...).
      names: names of the tensors.
      shapes: shapes of the tensors, in the order of `names`.
      to_ours: converts the tensors to the weight.
      to_theirs: converts the weight to the tensors.
    """

    path: Path
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    to_ours: Callable[[Arrays], np.ndarray]
    to_theirs: Callable[[np.ndarray], Arrays]


@dataclasses.dataclass(frozen=True)
class WeightLayout:
    """Architecture of a model, which determines its weights.

    Attributes:
      encoder: encoder configuration.
      vocab_size: V, without padding rows.
      head: "mlm", "rtd_dense" or "rtd_linear"; None for a model without head.
      is_xlmr: whether the tensors have XLM-R's names and shapes, else those of `modeling_xlme.py`.
      prefix: prefix of the names of the encoder's tensors.
      cross: whether the layers have cross-attention, as those of a decoder have.
      position_offset: rows of XLM-R's position table before the first token's; BERT has none.
      layers: number of the first layers that the model has, 0 for its embeddings alone; None for
        all.
    """

    encoder: EncoderConfig
    vocab_size: int
    head: Head | None
    is_xlmr: bool
    prefix: str = ""
    cross: bool = False
    position_offset: int = POSITION_OFFSET
    layers: int | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self.encoder.num_layers if self.layers is None else self.layers

    @property
    def has_own_code(self) -> bool:
        """Whether the folder brings the model's code, `modeling_xlme.py`."""
        return not self.is_xlmr

    def weights(self) -> list[Weight]:
        """Returns each weight of the model with its tensors: embeddings, encoder, then head."""
        return [*self._embeddings(), *self._encoder(), *self._head()]

    def _embeddings(self) -> Iterator[Weight]:
        """Yields the weights of the embedding tables and their normalisation."""
        config = self.encoder
        prefix = f"{self.prefix}embeddings."
        size = config.hidden_size
        yield table(
            ("tokens", "embedding"), f"{prefix}word_embeddings.weight", self.vocab_size, size
        )
        if config.absolute_positions:
            name = f"{prefix}position_embeddings.weight"
            path = ("positions", "embedding")
            shape = (config.max_length, size)
            if self.is_xlmr:
                types = f"{prefix}token_type_embeddings.weight"
                yield _xlmr_positions(path, name, types, shape, self.position_offset)
            else:
                yield equal(path, name, shape)
        yield from _norm(("encoder", "embedding_norm"), f"{prefix}LayerNorm", size)

    def _encoder(self) -> Iterator[Weight]:
        """Yields the weights of all layers, and those that layers share."""
        config = self.encoder
        prefix = f"{self.prefix}encoder."
        for index in range(self.num_layers):
            yield from self._layer(("encoder", f"layer_{index}"), f"{prefix}layer.{index}.")
        if config.relative_bias != "none":
            shape = (config.relative_buckets, config.num_heads)
            yield equal(
                ("encoder", "relative_bias", "table"), f"{prefix}relative_bias.weight", shape
            )
        if config.pre_norm:
            yield from _norm(("encoder", "final_norm"), f"{prefix}final_norm", config.hidden_size)

    def _layer(self, path: Path, prefix: str) -> Iterator[Weight]:
        """Yields the weights of the layer at `path`, whose tensors begin with `prefix`."""
        config = self.encoder
        size, heads = config.hidden_size, config.num_heads
        attention = (*path, "attention")
        parts = ("query", "key", "value")
        yield from _projections((*attention, "qkv"), f"{prefix}attention.self.", parts, size, heads)
        if config.relative_bias == "gated":
            width = size // heads
            for name, length in (("u", width), ("v", width), ("w", heads)):
                where = (*attention, "gate", name)
                yield equal(where, f"{prefix}attention.gate.{name}", (length,))
        yield from _attention_out(
            (*attention, "out"), f"{prefix}attention.output.dense", size, heads
        )
        yield from _norm((*path, "attention_norm"), f"{prefix}attention.output.LayerNorm", size)
        if self.cross:
            yield from self._cross(("cross", path[-1]), f"{prefix}crossattention.")
        yield from _dense(
            (*path, "ffn", "wi"), f"{prefix}intermediate.dense", size, config.ffn_size
        )
        yield from _dense((*path, "ffn", "wo"), f"{prefix}output.dense", config.ffn_size, size)
        yield from _norm((*path, "ffn_norm"), f"{prefix}output.LayerNorm", size)

    def _cross(self, path: Path, prefix: str) -> Iterator[Weight]:
        """Yields the weights of the cross-attention of a layer; see `_layer`."""
        size, heads = self.encoder.hidden_size, self.encoder.num_heads
        yield from _projections((*path, "q"), f"{prefix}self.", ("query",), size, heads)
        yield from _projections((*path, "kv"), f"{prefix}self.", ("key", "value"), size, heads)
        yield from _attention_out((*path, "out"), f"{prefix}output.dense", size, heads)
        yield from _norm((*path, "norm"), f"{prefix}output.LayerNorm", size)

    def _head(self) -> Iterator[Weight]:
        """Yields the weights of the head; none without a head."""
        size = self.encoder.hidden_size
        if self.head == "mlm":
            yield from _dense(("head", "dense"), "lm_head.dense", size, size)
            yield from _norm(("head", "norm"), "lm_head.layer_norm", size)
            yield table(("head", "bias"), "lm_head.bias", self.vocab_size)
        elif self.head is not None:
            if self.head == "rtd_dense":
                yield from _dense(("head", "dense"), "rtd_head.dense", size, size)
            yield _reshaped(("head", "kernel"), "rtd_head.out.weight", (size,), (1, size))
            yield _reshaped(("head", "bias"), "rtd_head.out.bias", (), (1,))


def equal(path: Path, name: str, shape: tuple[int, ...]) -> Weight:
    """Returns a weight that equals its tensor."""
    return _reshaped(path, name, shape, shape)


def _reshaped(
    path: Path, name: str, our_shape: tuple[int, ...], hf_shape: tuple[int, ...]
) -> Weight:
    """Returns a weight of `our_shape` whose tensor has the same entries in `hf_shape`."""
    return Weight(
        path,
        (name,),
        (hf_shape,),
        lambda x: x[0].reshape(our_shape),
        lambda x: (x.reshape(hf_shape),),
    )


def _norm(path: Path, name: str, size: int) -> Iterator[Weight]:
    """Yields scale and bias of a layer normalisation, which Hugging Face names weight and bias."""
    yield equal((*path, "scale"), f"{name}.weight", (size,))
    yield equal((*path, "bias"), f"{name}.bias", (size,))


def _dense(path: Path, name: str, inputs: int, outputs: int) -> Iterator[Weight]:
    """Yields kernel [inputs, outputs] and bias; Hugging Face's kernel is [outputs, inputs]."""
    yield Weight(
        (*path, "kernel"),
        (f"{name}.weight",),
        ((outputs, inputs),),
        lambda x: x[0].T,
        lambda x: (x.T,),
    )
    yield equal((*path, "bias"), f"{name}.bias", (outputs,))


def _projections(
    path: Path, at: str, parts: Sequence[str], size: int, heads: int
) -> Iterator[Weight]:
    """Yields the kernel and the bias of n projections to all heads.

    Ours are a kernel [D, n, H, K] and a bias [n, H, K], without the axis n if n is 1; Hugging
    Face's are n kernels [D, D] and n biases [D].

    Args:
      path: keys of the projections in our tree.
      at: prefix of the tensors' names.
      parts: names of the n projections in the tensors' names.
      size: D, width of the states.
      heads: H, number of heads; K is D / H.
    """
    count = len(parts)
    ours = (*((count,) if count > 1 else ()), heads, size // heads)
    yield Weight(
        (*path, "kernel"),
        tuple(f"{at}{part}.weight" for part in parts),
        ((size, size),) * count,
        lambda x: np.stack([part.T for part in x], axis=1).reshape(size, *ours),
        lambda x: tuple(x.reshape(size, count, size)[:, index].T for index in range(count)),
    )
    yield Weight(
        (*path, "bias"),
        tuple(f"{at}{part}.bias" for part in parts),
        ((size,),) * count,
        lambda x: np.stack(x).reshape(ours),
        lambda x: tuple(x.reshape(count, size)),
    )


def _attention_out(path: Path, name: str, size: int, heads: int) -> Iterator[Weight]:
    """Yields the kernel and the bias of the projection from all heads back to the states.

    Our kernel is [H, K, D], Hugging Face's [D, D]; the bias is [D] in both.
    """
    shape = (heads, size // heads, size)
    yield Weight(
        (*path, "kernel"),
        (f"{name}.weight",),
        ((size, size),),
        lambda x: x[0].T.reshape(shape),
        lambda x: (x.reshape(size, size).T,),
    )
    yield equal((*path, "bias"), f"{name}.bias", (size,))


def table(path: Path, name: str, rows: int, *size: int) -> Weight:
    """Returns a weight with one row per vocabulary entry.

    Our weight has rows of zeros behind the vocabulary, up to `padded_size`; the tensor has none.

    Args:
      path: keys of the weight.
      name: name of the tensor.
      rows: V, entries of the vocabulary.
      *size: shape of a row.
    """
    missing = padded_size(rows) - rows
    return Weight(
        path,
        (name,),
        ((rows, *size),),
        lambda x: np.pad(x[0], [(0, missing)] + [(0, 0)] * len(size)),
        lambda x: (x[:rows],),
    )


def _xlmr_positions(
    path: Path, name: str, types: str, shape: tuple[int, int], offset: int
) -> Weight:
    """Returns position embeddings, to which the embedding of the first token type is added.

    Our encoder has no token types, and an export writes zeros as their embedding.

    Args:
      path: keys of the weight.
      name: name of the tensor of positions.
      types: name of the tensor of token types.
      shape: shape of our weight.
      offset: rows at the begin of the tensor of positions, which no token uses.
    """

    def fold(x: Arrays) -> np.ndarray:
        table = x[0][offset:]
        # Adding zeros would change -0.0 to 0.0, and round trips must be exact.
        return table + x[1][0] if x[1][0].any() else table

    def unfold(x: np.ndarray) -> Arrays:
        return np.pad(x, [(offset, 0), (0, 0)]), np.zeros((1, shape[1]), x.dtype)

    shapes = ((shape[0] + offset, shape[1]), (1, shape[1]))
    return Weight(path, (name, types), shapes, fold, unfold)


def to_tree(
    weights: Sequence[Weight], read: Callable[[str], np.ndarray], scan_layers: bool
) -> dict[str, Any]:
    """Returns our parameter tree, converted from tensors.

    Args:
      weights: all weights of the tree.
      read: function that returns the tensor of a name, in the shape that the weight gives.
      scan_layers: whether to stack the weights of the layers as "layers", in place of "layer_0"
        and so on.
    """
    tree: dict[str, Any] = {}
    for weight in weights:
        node = tree
        for key in weight.path[:-1]:
            node = node.setdefault(key, {})
        array = weight.to_ours(tuple(read(name) for name in weight.names))
        node[weight.path[-1]] = np.asarray(array, order="C")
    if scan_layers:
        encoder = tree["encoder"]
        names = sorted((name for name in encoder if name.startswith("layer_")), key=_number)
        encoder["layers"] = _stacked([encoder.pop(name) for name in names])
    return tree


def to_tensors(weights: Sequence[Weight], tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns {name: tensor}, converted from our parameter tree.

    Args:
      weights: all weights of the tree.
      tree: parameters as arrays on the host, with stacked or unstacked layers.

    Raises:
      ValueError: a weight is missing, unexpected, or has the wrong shape.
    """
    flat = dict(_flat(_with_separate_layers(tree)))
    tensors: dict[str, np.ndarray] = {}
    for weight in weights:
        if weight.path not in flat:
            raise ValueError(f"The checkpoint has no weight {'.'.join(weight.path)}.")
        arrays = weight.to_theirs(flat.pop(weight.path))
        for name, array, shape in zip(weight.names, arrays, weight.shapes):
            if array.shape != shape:
                raise ValueError(
                    f"The weight {'.'.join(weight.path)} gives {name} the shape {array.shape}, "
                    f"but the configuration implies {shape}."
                )
            tensors[name] = np.asarray(array, order="C")
    if flat:
        name = ".".join(sorted(flat)[0])
        raise ValueError(f"The checkpoint's weight {name} does not belong to the exported model.")
    return tensors


def first_layers(tree: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Returns a parameter tree with the first `count` layers of its encoder, unstacked."""
    encoder = _with_separate_layers(tree)["encoder"]
    dropped = {name for name in encoder if name.startswith("layer_") and _number(name) >= count}
    return {**tree, "encoder": {k: v for k, v in encoder.items() if k not in dropped}}


def _number(name: str) -> int:
    """Returns n of "layer_n"."""
    return int(name.removeprefix("layer_"))


def _stacked(trees: Sequence[Any]) -> Any:
    """Returns a tree whose arrays stack those of trees of one structure, along a new first axis."""
    if isinstance(trees[0], Mapping):
        return {key: _stacked([tree[key] for tree in trees]) for key in trees[0]}
    return np.stack(trees)


def _with_separate_layers(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameter tree with "layer_0", ... in place of stacked "layers"."""
    return {name: _unstacked(part) if "layers" in part else part for name, part in tree.items()}


def _unstacked(part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of the tree with each of its stacked layers by itself."""
    unstacked = {name: value for name, value in part.items() if name != "layers"}
    count = len(next(array for _, array in _flat(part["layers"])))
    return unstacked | {f"layer_{index}": _at(part["layers"], index) for index in range(count)}


def _at(tree: Any, index: int) -> Any:
    """Returns the tree with entry `index` of each array."""
    if isinstance(tree, Mapping):
        return {key: _at(value, index) for key, value in tree.items()}
    return tree[index]


def _flat(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, np.ndarray]]:
    """Yields (keys, array) of all arrays of a tree; the keys begin with `path`."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), np.asarray(value)
