"""Floating-point operations of the models: matrix products only, a multiply-add counts as two."""

from xlme_jax.model.encoder import EncoderConfig

FORMULA = """\
forward, per token:  layers * (8 D^2 + 4 D F + 4 L D)     Q, K, V, O; feed-forward; scores and mix
                     (full bidirectional attention over the row of L tokens; in layers with a
                     window, 3 W / 2 keys if these are fewer; 6 D F with gated feed-forward layers)
decoder:             the same, masked scores included, and of cross-attention over rows of S tokens
                     layers * (4 D^2 + 4 D^2 S / L + 4 S D)     Q, O; K, V; scores and mix
MLM head:            M * (2 D E + 2 E V)                  M masked slots a row, in rows of L
RTD head:            2 D^2 + 2 D a token ("dense"), 2 D ("linear")
training step:       3 x forward (backward counts twice; recomputation is not counted)"""


def encoder(config: EncoderConfig, length: int, embedding_size: int | None = None) -> float:
    """Returns the forward FLOPs per token of an encoder on rows of `length` tokens.

    If `embedding_size` differs from the encoder's width, the projection of embeddings is counted;
    None stands for the encoder's width.
    """
    hidden, ffn = config.hidden_size, config.ffn_size
    keys = config.scored_keys(length)
    layer = 8 * hidden**2 + 2 * config.ffn_products * hidden * ffn + 4 * keys * hidden
    width = embedding_size or hidden
    projection = 2 * width * hidden if width != hidden else 0
    return config.num_layers * layer + projection


def decoder(config: EncoderConfig, length: int, source_length: int) -> float:
    """Returns the forward FLOPs per token of a decoder on rows of `length` tokens.

    Its cross-attention reads rows of `source_length` tokens.
    """
    hidden = config.hidden_size
    cross = 4 * hidden**2 * (1 + source_length / length) + 4 * source_length * hidden
    return encoder(config, length) + config.num_layers * cross


def mlm_head(hidden_size: int, embedding_size: int, vocab_size: int) -> float:
    """Returns the forward FLOPs of the MLM head per masked slot."""
    return 2 * hidden_size * embedding_size + 2 * embedding_size * vocab_size


def rtd_head(hidden_size: int, kind: str) -> float:
    """Returns the forward FLOPs of the RTD head, "dense" or "linear", per token."""
    dense = 2 * hidden_size**2 if kind == "dense" else 0
    return 2 * hidden_size + dense
