"""Encodes texts with a frozen encoder, in batches of few shapes with little padding.

Texts are sorted by length into rows of a few lengths, because every shape is compiled and padding
costs as much as text; all batches have about the same number of tokens. Results are returned in the
order of the texts.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.data.batches.packing import row_length
from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID
from xlme_jax.objectives.base import Pooling
from xlme_jax.validation.fields import check_at_least, check_choices

if TYPE_CHECKING:
    from xlme_jax.data.text.reading import ReadReport
    from xlme_jax.data.vocabulary import Vocabulary

Text = tuple[int, ...]
POOLINGS: dict[Pooling, str] = {
    "mean": "mean over all tokens, <s> and </s> included",
    "mean_without_specials": "mean over the tokens between <s> and </s>",
    "first": "state of <s>",
}
LAYERS = "layers counted as in hidden_states: 0 embeddings, k the output of layer k"
# Tokens per batch: enough to keep a device busy, few compared with a set of texts.
BATCH_TOKENS = 4096

# Batches that are computed before the result of the first is fetched.
_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of one shape, one text each.

    Attributes:
      rows: "tokens", "segment_ids", "positions": int32[R, L] each.
      texts: int[n], n <= R: indices of the texts in the first n rows; the remaining rows repeat
        the last text.
    """

    rows: dict[str, np.ndarray]
    texts: np.ndarray


class Layered(Protocol):
    """An encoder as a reader of its layers sees it: a `Subject`, or a `Model`."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""

    @property
    def default_layer(self) -> int:
        """The layer that is read where none is named."""


def choose_layer(layer: int | None, encoder: Layered, setting: str) -> int:
    """Returns the number of a layer, the encoder's default for None; errors as `check_layer`."""
    chosen = encoder.default_layer if layer is None else layer
    return check_layer(chosen, encoder.num_layers, setting)


def check_layer(layer: int, num_layers: int, setting: str) -> int:
    """Returns the number of a layer: 0 for the embeddings, k for the output of layer k.

    Args:
      layer: the number.
      num_layers: layers of the encoder.
      setting: name of the setting, for the error.

    Raises:
      ValueError: the encoder has no such layer.
    """
    if not 0 <= layer <= num_layers:
        raise ValueError(
            f"{setting} = {layer}, but the encoder has {num_layers} layers; choose 0 "
            f"(embeddings) to {num_layers}."
        )
    return layer


def check(settings: Any) -> None:
    """Checks the fields that evaluations share.

    Args:
      settings: a dataclass with `length` and `batch_tokens`, and fields of choices.

    Raises:
      ValueError: a field is invalid; the message names it.
    """
    name = type(settings).__name__
    check_choices(settings, name)
    check_at_least(settings, name, 3, "length")
    check_at_least(settings, name, 1, "batch_tokens")


def texts_of(
    vocabulary: Vocabulary, sentences: Sequence[str], length: int, report: ReadReport
) -> list[Text]:
    """Returns the token ids of sentences, `<s> x </s>`.

    Args:
      vocabulary: the vocabulary.
      sentences: the sentences.
      length: maximum tokens, specials included; longer texts are cut.
      report: counts the cut texts.
    """
    texts = [(BOS_ID, *tokens, EOS_ID) for tokens in vocabulary.encode_batch(sentences)]
    report.repair("texts cut", sum(len(text) > length for text in texts))
    return [cut(text, length) for text in texts]


def cut(text: Text, length: int) -> Text:
    """Returns the text, truncated to `length` tokens, of which the last one is still `</s>`."""
    return text if len(text) <= length else (*text[: length - 1], EOS_ID)


def fill_rows(texts: Iterable[Text], rows: int, length: int) -> dict[str, np.ndarray]:
    """Returns {"tokens", "segment_ids", "positions": int32[rows, length]}, a text in each row.

    Args:
      texts: 1 to `rows` texts; copies of the last one fill the remaining rows.
      rows: number of rows.
      length: length of the rows; no text may be longer.
    """
    chunk = list(texts)
    # Copies rather than empty rows: attention over nothing but padding may be NaN.
    chunk += [chunk[-1]] * (rows - len(chunk))
    lengths = np.array([[len(text)] for text in chunk])
    real = np.arange(length)[None, :] < lengths
    tokens = np.full((rows, length), PAD_ID, np.int32)
    tokens[real] = np.concatenate([np.array(text, np.int32) for text in chunk])
    return {
        "tokens": tokens,
        "segment_ids": real.astype(np.int32),
        "positions": np.where(real, np.arange(length), 0).astype(np.int32),
    }


def with_columns(batch: Batch, **values: np.ndarray) -> Batch:
    """Returns the batch, with a value of its text for each row, int32[R], under each name.

    Args:
      batch: the batch.
      **values: a value for each of all N texts, int[N].
    """
    rows = len(batch.rows["tokens"])
    texts = np.pad(batch.texts, (0, rows - len(batch.texts)), mode="edge")
    columns = {name: of_texts[texts].astype(np.int32) for name, of_texts in values.items()}
    return Batch({**batch.rows, **columns}, batch.texts)


def batches(
    texts: Sequence[Text], row_multiple: int = 1, batch_tokens: int = BATCH_TOKENS
) -> list[Batch]:
    """Returns texts in batches, the longest first.

    All batches but the last have as many rows as `batch_tokens` allows; the last may have half or a
    quarter of as many.

    Args:
      texts: non-empty texts.
      row_multiple: number of devices that share a batch; the number of rows is a multiple of it.
      batch_tokens: tokens per batch including padding, unless `row_multiple` rows have more.

    Returns:
      Batches that contain each text once. Only the last one has repeated rows.
    """
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    max_rows = round_up(len(texts), row_multiple)
    result: list[Batch] = []
    start = 0
    while start < len(order):
        length = row_length(len(texts[order[start]]))
        remaining = len(order) - start
        rows = max(batch_tokens // length // row_multiple * row_multiple, row_multiple)
        if start and remaining < rows:
            rows = _rows_for(rows, remaining, row_multiple)
        rows = min(rows, max_rows)
        chosen = order[start : start + rows]
        filled = fill_rows((texts[index] for index in chosen), rows, length)
        result.append(Batch(filled, np.array(chosen)))
        start += rows
    return result


def _rows_for(rows: int, texts: int, row_multiple: int) -> int:
    """Returns a quarter, half or all of `rows`, the smallest that holds `texts` texts."""
    sizes = (max(rows // part // row_multiple * row_multiple, row_multiple) for part in (4, 2))
    return next((size for size in sizes if size >= texts), rows)


def run(
    function: Callable[[Any, Mapping[str, Any]], Any], params: Any, batches: Iterable[Batch]
) -> Iterator[tuple[np.ndarray, Any]]:
    """Runs a compiled function on batches, a few batches ahead of the fetched results.

    Args:
      function: (params, rows) -> tree of arrays [R, ...].
      params: first argument of `function`.
      batches: the batches.

    Yields:
      Indices of the texts of a batch, int[n], and the result for these texts on the host: a tree of
      arrays [n, ...].
    """
    unfetched: collections.deque[tuple[np.ndarray, Any]] = collections.deque()

    def fetch() -> tuple[np.ndarray, Any]:
        texts, result = unfetched.popleft()
        return texts, jax.tree.map(lambda array: on_host(array)[: len(texts)], result)

    for batch in batches:
        unfetched.append((batch.texts, function(params, batch.rows)))
        if len(unfetched) > _AHEAD:
            yield fetch()
    while unfetched:
        yield fetch()


def embed(
    function: Callable[[Any, Mapping[str, Any]], Any], params: Any, batches: Sequence[Batch]
) -> np.ndarray:
    """Returns the results of a function in the order of the texts, [texts, ...].

    Args:
      function: (params, rows) -> array [R, ...].
      params: first argument of `function`.
      batches: batches with all texts.

    Raises:
      ValueError: there is no text.
    """
    embeddings = None
    for texts, result in run(function, params, batches):
        if embeddings is None:
            count = sum(len(batch.texts) for batch in batches)
            embeddings = np.empty((count, *result.shape[1:]), result.dtype)
        embeddings[texts] = result
    if embeddings is None:
        raise ValueError("there is no text to encode")
    return embeddings


def pool_all(
    encode: Callable[[Any, Mapping[str, Any]], Sequence[jax.Array]], pooling: Pooling
) -> Callable[[Any, Mapping[str, Any]], jax.Array]:
    """Returns the function (params, rows) -> pooled states, float32[R, layers + 1, D]."""
    return lambda params, rows: jnp.stack(
        [pool(hidden, rows, pooling) for hidden in encode(params, rows)], axis=1
    )


def pool(hidden: jax.Array, rows: Mapping[str, jax.Array], pooling: Pooling = "mean") -> jax.Array:
    """Returns the hidden states [R, L, D] of each row pooled to one vector, float32[R, D].

    Padding is not counted; with "mean_without_specials", `<s>` and `</s>` are not either.
    """
    if pooling == "first":
        return hidden[:, 0].astype(jnp.float32)
    counted = rows["segment_ids"] > 0
    if pooling == "mean_without_specials":
        counted &= (rows["tokens"] != BOS_ID) & (rows["tokens"] != EOS_ID)
    weight = counted.astype(jnp.float32)[:, :, None]
    total = jnp.sum(hidden.astype(jnp.float32) * weight, axis=1)
    return total / jnp.maximum(jnp.sum(weight, axis=1), 1.0)


def on_host(array: jax.Array) -> np.ndarray:
    """Returns a whole array on the host, including rows on other processes' devices."""
    if array.is_fully_addressable:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def round_up(number: int, multiple: int) -> int:
    """Returns the least multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple
