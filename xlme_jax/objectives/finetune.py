"""Fine-tuning: a pre-trained encoder, a head for the task, and the task's loss.

It is an objective like any other, so fine-tuning uses the loop, the checkpoints and the exact
resume of pre-training. The pre-training objective defines the encoder; the table of benchmarks
(`data.benchmarks.catalogue`) defines the task.
"""

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.data.benchmarks.examples import Kind
from xlme_jax.data.benchmarks.labelled_rows import find_benchmark
from xlme_jax.data.token_ids import IGNORED
from xlme_jax.model import flops
from xlme_jax.model.heads import TaskHead
from xlme_jax.objectives.base import (
    Batch,
    Carried,
    Diagnostics,
    EncoderView,
    LossOutputs,
    Metrics,
    Params,
    PlainObjective,
    RunFacts,
    Shapes,
    StreamInput,
    Totals,
    WarmStart,
)
from xlme_jax.objectives.masked_lm import check_lengths
from xlme_jax.objectives.masked_lm_diagnostics import training_flops
from xlme_jax.objectives.system_config import SystemConfig, TunedConfig
from xlme_jax.ops import dropout
from xlme_jax.ops.vocabulary_head import padded_size

STREAM = "labelled"
HEAD = "task_head"


@dataclasses.dataclass(frozen=True)
class FineTuneConfig(TunedConfig):
    """Fine-tuning of a pre-trained encoder on one task.

    Attributes:
      task: name of the benchmark, such as "xnli" (`data.benchmarks.catalogue`).
      pretrained: the objective that the encoder was pre-trained with. If unbound, it is read from
        the checkpoint that INIT_FROM names.
      dropout: probability for the head's inputs and, in the encoder, for embeddings, sub-layers and
        attention. With None, the encoder has its dropout from pre-training, and the head has none.
        The head of question answering never has any, as in XTREME.
      lazy_tokens: update only those rows of the token table whose tokens the batch has
        (`training.row_updates`), which saves most of the update where the table is most of the
        model. False is the papers' Adam.
    """

    task: str
    pretrained: Any
    dropout: float | None = 0.1
    lazy_tokens: bool = False

    def __post_init__(self) -> None:
        benchmark(self.task)
        pretrained = self.pretrained
        if not isinstance(pretrained, SystemConfig) or isinstance(pretrained, FineTuneConfig):
            raise ValueError(
                f"FineTune.pretrained = {pretrained!r} is not a pre-training objective; give "
                "the run to start from: --gin.INIT_FROM=\"'MODEL_DIR'\"."
            )
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"FineTune.dropout = {self.dropout} must lie in [0, 1).")

    def held_out(self) -> None:
        """Returns None: fine-tuned models are measured on their benchmark."""

    def build(self, vocab_size: int, dtype: Any = jnp.float32) -> "FineTune":
        """Returns the objective for a vocabulary of `vocab_size`, computing in `dtype`."""
        return FineTune(self, vocab_size, dtype)


class FineTune(PlainObjective):
    """The objective of `FineTuneConfig`; see `objectives.base.Objective`."""

    inputs = types.MappingProxyType({STREAM: StreamInput("labelled")})
    warm_start = WarmStart(new=(HEAD,))

    def __init__(self, config: FineTuneConfig, vocab_size: int, dtype: Any = jnp.float32):
        self.config, self._dtype = config, dtype
        self.lazy_tokens = config.lazy_tokens
        self.table_rows = padded_size(vocab_size)
        self.benchmark = benchmark(config.task)
        pretrained = config.pretrained
        if config.dropout is not None:
            pretrained = pretrained.with_dropout(config.dropout)
        self.pretraining = pretrained.build(vocab_size, dtype)
        outputs = {"regression": 1, "question_answering": 2}.get(
            self.benchmark.kind, len(self.benchmark.labels)
        )
        self._head = TaskHead(
            self.pretraining.encoder.config,
            outputs,
            per_token=self.benchmark.kind in ("tagging", "question_answering"),
            dropout=0.0 if self.benchmark.kind == "question_answering" else config.dropout or 0.0,
            dtype=dtype,
        )

    def over(self, vocab_size: int) -> "FineTune":
        """Returns the same system for a vocabulary of another size."""
        return FineTune(self.config, vocab_size, self._dtype)

    @property
    def encoder(self) -> EncoderView:
        """The encoder of pre-training, without the task's head."""
        view: EncoderView = self.pretraining.encoder
        return EncoderView(view.config, self.encode, self.encoder_params)

    @property
    def diagnostics(self) -> Diagnostics:
        """FLOPs of the encoder; no alarms, as evaluations show what is wrong."""
        return Diagnostics(self._flops, loss_weights={"loss": 1.0}, is_pretraining=False)

    def init(self, rng: jax.Array) -> Params:
        """Returns randomly initialized weights of encoder and head."""
        encoder_rng, head_rng = jax.random.split(rng)
        params = self.encoder_params(self.pretraining.init(encoder_rng))
        hidden = jnp.zeros((1, 1, self.encoder.config.hidden_size))
        return {**params, HEAD: self._head.init(head_rng, hidden)["params"]}

    def totals(self, batch: Batch) -> Totals:
        """Returns the number of labels in the batch, one per example or tagged word, at least 1."""
        labels = batch[STREAM]["labels"]
        is_labelled = labels[:, :1] != IGNORED
        if self.benchmark.kind == "tagging":
            is_labelled = labels != IGNORED
        return {STREAM: {"labels": jnp.maximum(is_labelled.sum(), 1).astype(jnp.float32)}}

    def loss(
        self, params: Params, carried: Carried, batch: Batch, totals: Totals, rng: jax.Array
    ) -> LossOutputs:
        """Returns this batch's share of the mean loss over labels."""
        rows = batch[STREAM]
        encoder_rng, head_rng = jax.random.split(rng)
        logits = self._logits(
            params,
            rows,
            dropout.seeds(encoder_rng, rows["rows"]),
            dropout.seeds(head_rng, rows["rows"]),
        )
        if self.benchmark.kind == "question_answering":
            logits = mask_padding(logits, rows["segment_ids"])
        losses, correct, weights = label_loss(self.benchmark.kind, logits, rows["labels"])
        summed = (losses * weights).sum()
        count = weights.sum()
        metrics: Metrics = {f"{STREAM}/loss": (summed, count)}
        if correct is not None:
            metrics[f"{STREAM}/accuracy"] = ((correct * weights).sum(), count)
        return LossOutputs({STREAM: summed / totals[STREAM]["labels"]}, metrics)

    def predict(self, params: Params, rows: Mapping[str, jax.Array]) -> jax.Array:
        """Returns float32 logits, whose shape depends on the kind of the benchmark.

        The shape is [B, classes]; [B, 1] for regression; [B, L, tags] for tagging; [B, L, 2], the
        first and the last token of an answer, for question answering.
        """
        return self._logits(params, rows)

    def encode(
        self,
        params: Params,
        rows: Mapping[str, jax.Array],
        dropout_seeds: jax.Array | None = None,
    ) -> list[jax.Array]:
        """Returns the encoder's hidden states: embeddings, then each layer, [B, L, D] each."""
        states: list[jax.Array] = self.pretraining.encoder.encode(
            self.encoder_params(params), rows, dropout_seeds
        )
        return states

    def check(self, run: RunFacts) -> None:
        """Raises ValueError if a row is too long, or has labels of another benchmark.

        It is also raised if the optimizer cannot update rows of the token table alone.
        """
        check_lengths("encoder", self.encoder.config, run.lengths)
        if self.lazy_tokens and not run.updates_by_entry:
            raise ValueError(
                "FineTune.lazy_tokens = True updates rows of the token table alone, but the "
                "Optimizer.update_rule of this run computes an update from whole arrays; set "
                "FineTune.lazy_tokens = False or Optimizer.update_rule = @AdamW()."
            )
        for task in run.tasks.get(STREAM, ()):
            name = find_benchmark(task.removeprefix("tfds_"))
            # The name is None for a task that the user has defined.
            if name is not None and not benchmark(name).labelled_like(self.benchmark):
                raise ValueError(
                    f"FineTune.task = {self.benchmark.name!r}, but DATA_DIR holds the task "
                    f"{task!r}, whose labels are those of {name!r}. Choose the DATA_DIR of "
                    f"{self.benchmark.name!r}, or let the run prepare a new one."
                )

    def _flops(self, shapes: Shapes) -> dict[str, float]:
        """Returns the FLOPs of a train step without the head."""
        per_token = functools.partial(flops.encoder, self.encoder.config)
        return {"encoder": training_flops(shapes, per_token)}

    def encoder_params(self, params: Params) -> Params:
        """Returns the weights that the encoder reads, without the task's head."""
        pretrained = {name: value for name, value in params.items() if name != HEAD}
        return self.pretraining.encoder.params(pretrained)

    def _logits(
        self,
        params: Params,
        rows: Mapping[str, jax.Array],
        encoder_seeds: jax.Array | None = None,
        head_seeds: jax.Array | None = None,
    ) -> jax.Array:
        """Returns logits as `predict` does, with dropout if there are seeds, uint32[B] each."""
        if self._head.per_token:
            hidden = self.encode(params, rows, encoder_seeds)[-1]
        else:
            view: EncoderView = self.pretraining.encoder
            hidden = view.first(self.encoder_params(params), rows, encoder_seeds)
        logits: Any = self._head.apply({"params": params[HEAD]}, hidden, head_seeds)
        return logits


def mask_padding(logits: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Returns `logits` [B, L, 2] of answer bounds, so low at padding that it has no probability.

    Padding is where `segment_ids`, int32[B, L], is 0.
    """
    # Half of the lowest number: a difference from the lowest one itself could overflow.
    lowest = jnp.finfo(logits.dtype).min / 2
    return jnp.where(segment_ids[:, :, None] > 0, logits, lowest)


def label_loss(
    kind: Kind, logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """Returns the losses of labels, whether they are predicted correctly, and which labels count.

    The loss is squared error for regression and cross-entropy for all other kinds. For answers, it
    is the mean over the first and the last token, each a softmax over the tokens of the row.

    Args:
      kind: kind of the task.
      logits: as `FineTune.predict` returns them.
      labels: int32 as in `data.benchmarks.examples.Features`, padded with `IGNORED`.

    Returns:
      Losses; 1 for correct and 0 for wrong predictions (None for regression); and the labels'
      weights, 1 or 0: float32[B] each, or float32[B, L] for tagging.
    """
    if kind == "regression":
        # The label of an example is the bits of its target.
        target = jax.lax.bitcast_convert_type(labels[:, 0], jnp.float32)
        return jnp.square(logits[:, 0] - target), None, jnp.ones_like(target)
    if kind == "question_answering":
        by_bound = jnp.swapaxes(logits, 1, 2)  # [B, 2, L]
        losses = cross_entropy(by_bound, labels).mean(axis=1)
        is_correct = (by_bound.argmax(axis=-1) == labels).all(axis=1)
        return losses, is_correct.astype(jnp.float32), jnp.ones_like(losses)
    if kind in ("classification", "multiple_choice"):
        labels = labels[:, 0]
    is_counted = labels != IGNORED
    labels = jnp.where(is_counted, labels, 0)
    is_correct = logits.argmax(axis=-1) == labels
    losses = cross_entropy(logits, labels)
    return losses, is_correct.astype(jnp.float32), is_counted.astype(jnp.float32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns -log softmax(logits)[labels]: [..., C] and int32[...] -> [...]."""
    logit_of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - logit_of_label
