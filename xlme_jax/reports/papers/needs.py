"""What a table needs that an evaluation measures, and the commands that measure it."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from xlme_jax.reports.papers.entries import (
    CONTINUED,
    FIRST,
    MODEL,
    TRANSLATE_TRAIN,
    Entry,
)
from xlme_jax.reports.papers.fine_tuned import GLUE

Variant = Literal["", "translate-train", "[CLS]", "continued"]
FROZEN = ("tatoeba", "wordalign", "bucc")
_GLUE = tuple(dict.fromkeys(task for pairs in GLUE.values() for task, _ in pairs))
# Benchmarks that are no training data themselves, and the file of what is.
_FILES = {"xquad": "squad", "mlqa": "squad", "americasnli": "xnli", "mnli_mismatched": "mnli"}
_WMT = "wmt14_en_"
# Tasks in the file of another one, besides GLUE's.
_SHARED = {"chemprot_types": "chemprot"}


@dataclasses.dataclass(frozen=True)
class Need:
    """Results of a benchmark.

    Attributes:
      task: the benchmark.
      variant: "translate-train" if the training data are translated, "[CLS]" for the state of
        `<s>` in place of the mean over tokens, "continued" after continued training.
    """

    task: str
    variant: Variant = ""

    @property
    def name(self) -> str:
        """Benchmark and variant."""
        return f"{self.task} {self.variant}".strip()

    def met_by(self, entry: Entry) -> bool:
        """Returns whether a system of ours has results of it."""
        variant = FIRST if FIRST in entry.group else TRANSLATE_TRAIN * entry.is_translate_train
        if self.task in FROZEN and variant == TRANSLATE_TRAIN:
            variant = ""
        if not variant and entry.is_continued:
            variant = CONTINUED
        return variant == self.variant and any(
            (row.task, row.system) == (self.task, MODEL)
            for run in entry.runs
            for row in run.results
        )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A paper's own settings of fine-tuning.

    Attributes:
      files: {training data: file of gin_configs/finetune in place of its own}.
      more: file to add, "" for none.
      translated: likewise with translated training data.
      flags: {training data: flags to add}.
    """

    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more: str = ""
    translated: str = ""
    flags: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def needs(*tasks: str, variant: Variant = "") -> tuple[Need, ...]:
    """Returns a need for each benchmark."""
    return tuple(Need(task, variant) for task in tasks)


def command(need: Need, recipe: Recipe | None = None) -> str:
    """Returns the shell command that measures a need, by default as XLM-E is fine-tuned."""
    recipe = recipe or Recipe()
    if need.task.startswith(_WMT):
        return _translation(need.task)
    if need.task in FROZEN:
        evaluate = f"python -m xlme_jax.evaluate --checkpoint=$RUN --tasks={need.task}"
        end = " --split=test" if need.task == "bucc" else ""
        if need.variant:
            end += " --pooling=first --output=$RUN/evaluation/cls"
        return f"{evaluate} --data=$DATA/eval{end}"
    trained = _FILES.get(need.task, need.task)
    translated = need.variant == TRANSLATE_TRAIN
    shared = "glue" if need.task in _GLUE and trained != "squad2" else _SHARED.get(trained, "")
    own = shared or recipe.files.get(need.task, trained)
    names = filter(None, (own, recipe.translated if translated else recipe.more))
    flags = [f"--gin_file=gin_configs/finetune/{name}.gin" for name in names]
    flags += recipe.flags.get(trained, ())
    if shared:
        flags.append(f"--gin.TASK=\"'{trained}'\"")
    flags += ["--gin.INIT_FROM=\"'$RUN'\"", "--gin.EVAL_DIR=\"'$DATA/eval'\""]
    name = trained
    if translated:
        name += "_translate_train"
        flags.append(f"--gin.TRAIN_TASKS=\"('{name}',)\"")
    if shared or translated:  # Not the data that the file names, which have another task's.
        flags.append(f"--gin.DATA_DIR=\"'data/{name}'\"")
    name += "_continued" * (need.variant == CONTINUED)
    return (
        f"python -m xlme_jax.sweep {' '.join(flags)} --output=runs/{name} "
        f'--evaluate="python -m xlme_jax.evaluate --checkpoint={{model_dir}}{_of(need)} '
        '--data=$DATA/eval"'
    )


def _translation(task: str) -> str:
    """Returns the command that fine-tunes on WMT14, averages and translates as VECO does."""
    language, run = task.removeprefix(_WMT), f"runs/veco_{task}"
    test = f"newstest2014-{language}en"
    return " && ".join(
        (
            f"python -m xlme_jax.train --gin_file=gin_configs/finetune/veco_{task}.gin "
            "--gin.INIT_FROM=\"'$RUN'\"",
            f"python -m xlme_jax.average --checkpoint={run} --last=10 --output={run}_mean",
            f"python -m xlme_jax.translate --checkpoint={run}_mean --target={language} "
            f"--source={test}-src.en.sgm --references={test}-ref.{language}.sgm "
            f"--output={run}.txt --test_set={task} --multi_bleu='tokenizer.perl -l {language}'",
        )
    )


def _of(need: Need) -> str:
    """Returns the flags of an evaluation on something else than the test set of the task."""
    together = {
        "squad": "xquad,mlqa",
        "xnli": "xnli,americasnli",
        "mnli": "mnli,mnli_mismatched",
    }
    trained = _FILES.get(need.task, need.task)
    tasks = together.get(trained, "") if need.task in _FILES or trained == "mnli" else ""
    flags = f" --tasks={tasks}" if tasks else ""
    return flags + (" --split=validation" if need.task in _GLUE else "")
