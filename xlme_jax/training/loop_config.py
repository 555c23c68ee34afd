"""The settings of the train loop."""

import dataclasses
from typing import Literal

from xlme_jax.validation.fields import check_at_least, check_choices


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """How long to train, what to keep and what to log.

    Attributes:
      train_steps: updates in all.
      checkpoint_every: steps between checkpoints; the last step is always saved.
      keep_checkpoints: number of newest checkpoints to keep.
      keep_every: checkpoints of steps that this number divides are kept as well; None for none.
      log_every: steps that a line of metrics averages over.
      evaluate_every: steps between evaluations, also at step 0 and at the end. The state is saved
        before it is evaluated, so that a failing evaluation loses nothing.
      samples_every: steps between samples: what the model predicts of a few fixed sentences, in the
        log, `samples.jsonl`, trackers and the report, also at step 0 and at the end. None or 0 for
        none.
      micro_batches: parts in which a batch is processed; the gradient stays the same.
      seed: seed of initialisation, masking, sampling and dropout.
      init_from: MODEL_DIR or checkpoint to take the weights from, if the run is new.
      init_optimizer: take the moments and their count of updates from `init_from` too
        (`checkpoints.warm_optimizer`); False starts with a fresh optimizer. The schedule of the
        learning rate starts at step 0 either way.
      head_steps: number of first steps that train a new MLM head alone (`training.head_first`);
        None is a third of all, at most 1,000, for a head that an import made; 0 trains all at once.
      branch_from: MODEL_DIR or checkpoint of the same system and data that the run goes on from, if
        it is new: with its weights, optimizer, step and position in the data (`runs.branching`).
      max_skipped: number of consecutive updates skipped, because loss or gradient was not finite,
        after which `on_divergence` applies.
      on_divergence: "stop" ends the run; "roll_back" restores the newest checkpoint and continues
        with the data after the bad batches.
      profile_steps: first and last step, from 1, to trace with JAX's profiler; the trace goes to
        `MODEL_DIR/tensorboard`.
      alarms_after: step from which alarms are reported; an untrained model triggers them all.
      compiler_options: options of XLA for the train step, such as "xla_some_option=1".
    """

    train_steps: int
    checkpoint_every: int = 1000
    keep_checkpoints: int = 3
    keep_every: int | None = None
    log_every: int = 50
    evaluate_every: int = 1000
    samples_every: int | None = None
    micro_batches: int = 1
    seed: int = 0
    init_from: str | None = None
    init_optimizer: bool = False
    head_steps: int | None = None
    branch_from: str | None = None
    max_skipped: int = 10
    on_divergence: Literal["stop", "roll_back"] = "stop"
    profile_steps: tuple[int, int] | None = None
    alarms_after: int = 1000
    compiler_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choices(self, "Loop")
        fields = dataclasses.fields(self)
        counts = [f.name for f in fields if f.type in (int, "int") and f.name != "seed"]
        check_at_least(self, "Loop", 1, *counts, "keep_every")
        check_at_least(self, "Loop", 0, "samples_every", "head_steps")
        if malformed := [option for option in self.compiler_options if "=" not in option]:
            raise ValueError(
                f"Loop.compiler_options has {malformed[0]!r}: write options as 'name=value'."
            )
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"Loop.keep_every = {self.keep_every} must be a multiple of Loop.checkpoint_every "
                f"= {self.checkpoint_every}."
            )
        if self.init_optimizer and self.init_from is None:
            raise ValueError(
                "Loop.init_optimizer = True takes the optimizer of the checkpoint that INIT_FROM "
                "names, which is None: set INIT_FROM, or Loop.init_optimizer = False."
            )
        if (
            self.profile_steps is not None
            and not 1 <= self.profile_steps[0] <= self.profile_steps[1]
        ):
            raise ValueError(
                f"Loop.profile_steps = {self.profile_steps}: give the first and the last step, "
                "counted from 1, such as (11, 15)."
            )

    def xla_options(self) -> dict[str, str | bool]:
        """Returns {option of XLA: value} of `compiler_options`, with true and false as bool."""
        parts = (option.partition("=") for option in self.compiler_options)
        truths = {"true": True, "false": False}
        return {name: truths.get(value, value) for name, _, value in parts}
