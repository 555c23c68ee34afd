"""Configuration of an XLM-E encoder, for `transformers`.

Shipped in the folder of an exported model; depends only on transformers.
"""

from transformers import PretrainedConfig


class XLMEConfig(PretrainedConfig):
    """Shape and options of an encoder.

    Attributes:
      vocab_size: V.
      hidden_size: D.
      num_hidden_layers: Transformer layers.
      num_attention_heads: H.
      intermediate_size: F, width of the feed-forward layer.
      max_position_embeddings: rows of the position table, the longest text in tokens.
      absolute_positions: whether there is a position table.
      relative_bias: "gated" (XLM-E), "plain" (T5's) or "none".
      relative_buckets: buckets of the relative bias, both directions together.
      relative_max_distance: distance in tokens beyond which keys share a bucket.
      gate_input: what the gate reads, the head's "query" or its part of the "hidden" states.
      pre_norm: normalise before each sub-layer and once at the end, instead of after each.
      rtd_head: head of replaced token detection, "dense" (dense, GELU, linear) or "linear"; None
        for no head.
      hidden_dropout_prob: dropout of embeddings and sub-layers.
      attention_probs_dropout_prob: dropout of attention weights.
      layer_norm_eps: epsilon of every layer normalisation.
      initializer_range: standard deviation of newly initialized weights.
    """

    model_type = "xlme"

    def __init__(
        self,
        vocab_size=250002,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
        absolute_positions=True,
        relative_bias="gated",
        relative_buckets=32,
        relative_max_distance=128,
        gate_input="query",
        pre_norm=False,
        rtd_head=None,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        layer_norm_eps=1e-5,
        initializer_range=0.02,
        **kwargs,
    ):
        """Sets the fields and passes all other arguments to `PretrainedConfig`."""
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.absolute_positions = absolute_positions
        self.relative_bias = relative_bias
        self.relative_buckets = relative_buckets
        self.relative_max_distance = relative_max_distance
        self.gate_input = gate_input
        self.pre_norm = pre_norm
        self.rtd_head = rtd_head
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        for name, token in (("bos_token_id", 0), ("pad_token_id", 1), ("eos_token_id", 2)):
            kwargs.setdefault(name, token)
        kwargs.setdefault("tie_word_embeddings", True)
        super().__init__(**kwargs)
