"""A phase of a run, with data or an objective of its own (`Train.phases`)."""

import dataclasses
from typing import Any

from xlme_jax.data.batches.streams import Stream
from xlme_jax.validation.fields import check_at_least


@dataclasses.dataclass(frozen=True)
class PhaseConfig:
    """A part of a run, from a step on, until the next phase or the end of the run.

    What a phase leaves out is as in `Train`, whatever earlier phases have. Weights, optimizer,
    schedule of the learning rate, evaluations and the log go on. Each task goes on with the
    examples that come after those drawn before, but for rows of running text of another length,
    which are cut anew. mmBERT (Marone et al. 2025) has three phases, with other mask rates,
    temperatures and languages.

    Attributes:
      name: for the log and the manifest.
      start_fraction: share of the run's steps after which the phase begins.
      start_step: number of these steps; takes precedence.
      objective: the objective of the phase, with the same weights; None for `Train.objective`.
      streams: streams in place of those of the same name in `Train.streams`.
    """

    name: str
    start_fraction: float | None = None
    start_step: int | None = None
    objective: Any = None
    streams: tuple[Stream, ...] = ()

    def __post_init__(self) -> None:
        where = f"phase {self.name!r}"
        check_at_least(self, where, 1, "start_step")
        if self.start_step is None and self.start_fraction is None:
            raise ValueError(f"{where} does not say when it begins; bind Phase.start_fraction.")
        if self.start_fraction is not None and not 0 < self.start_fraction < 1:
            raise ValueError(
                f"{where}: start_fraction = {self.start_fraction} must lie strictly between 0 and 1"
            )
        if self.objective is None and not self.streams:
            raise ValueError(f"{where} changes nothing; give it an objective, or streams.")

    def start(self, train_steps: int) -> int:
        """Returns the number of steps after which the phase begins, in a run of `train_steps`."""
        if self.start_step is not None:
            return self.start_step
        assert self.start_fraction is not None
        return round(self.start_fraction * train_steps)
