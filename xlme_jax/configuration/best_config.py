"""Configuration of a run's best checkpoints."""

import dataclasses

from xlme_jax.data.benchmarks.catalogue import benchmark
from xlme_jax.training.best import Best


def selection_metric(task: str, language: str) -> str:
    """Returns the logged metric by which models of a benchmark are selected on a development set.

    Args:
      task: name of the benchmark; its first metric is used.
      language: a language's set, or "mean" for the mean over the languages that are evaluated.

    Raises:
      ValueError: there is no such benchmark.
    """
    return f"eval/{task}/{benchmark(task).metrics[0]}/{language}"


@dataclasses.dataclass(frozen=True)
class BestConfig(Best):
    """Which checkpoints of a run are its best, and when the run has stopped improving.

    Attributes:
      task: benchmark whose first metric on the development sets is used if `metrics` is empty.
      languages: development sets, each with a best checkpoint of its own: ("en",) or another
        language; "mean" is the joint set of all languages that are evaluated.
    """

    task: str = ""
    languages: tuple[str, ...] = ("en",)

    def __post_init__(self) -> None:
        if self.task and not self.metrics:
            # An attribute of a frozen instance cannot be assigned in the usual way.
            metrics = tuple(selection_metric(self.task, language) for language in self.languages)
            object.__setattr__(self, "metrics", metrics)
        super().__post_init__()
