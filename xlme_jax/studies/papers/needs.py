"""The results that a paper's table needs, and the commands that measure them.

Commands are for a shell with the variables of `VARIABLES`. Each command trains in separate folders,
named by the run that it starts from and by the paper's settings: a command that found the folder of
another system or of other settings would take the results in it for its own.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from xlme_jax.evaluation import measures
from xlme_jax.studies.papers.entries import (
    CONTINUED,
    FIRST,
    MODEL,
    TRANSLATE_TRAIN,
    Entry,
)
from xlme_jax.studies.papers.fine_tuned import GLUE

Variant = Literal["", "translate-train", "[CLS]", "continued"]
VARIABLES = {
    "RUN": "the MODEL_DIR of a pre-training run",
    "LARGE": "that of a run of the Large size",
    "CONTINUED": "that of a run of continued training",
    "XLMR": "the folder of XLM-R Base: Hugging Face's, or a run of xlme_jax.import_hf",
    "XLMR_LARGE": "likewise of XLM-R Large",
    "XNLI": "a run that the sweep of XNLI, translate-train, selected (its sweep.md)",
    "SQUAD": "likewise of SQuAD, translate-train",
    "DATA": "the folder of the data (docs/lab/paper_tables.md)",
}
"""{variable of the commands: what it stands for}."""

_GLUE = tuple(dict.fromkeys(task for pairs in GLUE.values() for task, _ in pairs))
# {benchmark without training data: the data that models of it are trained on}
_TRAINED_ON = {"xquad": "squad", "mlqa": "squad", "americasnli": "xnli", "mnli_mismatched": "mnli"}
# {task: the gin file that configures it, which other tasks share}
_SHARED = {
    **{task: "glue" for task in _GLUE if task != "squad2"},
    "chemprot_types": "chemprot",
}
# {training data: the benchmarks that one evaluation of the trained model scores}
_TOGETHER = {
    "squad": "xquad,mlqa",
    "xnli": "xnli,americasnli",
    "mnli": "mnli,mnli_mismatched",
}
_WMT = "wmt14_en_"


@dataclasses.dataclass(frozen=True)
class Need:
    """Results of a benchmark that a table needs.

    Attributes:
      task: the benchmark.
      variant: "translate-train" if the training data are translated, "[CLS]" for the state of
        `<s>` in place of the mean over tokens, "continued" after continued training.
    """

    task: str
    variant: Variant = ""

    @property
    def name(self) -> str:
        """Name of the benchmark, followed by the variant if there is one."""
        return f"{self.task} {self.variant}".strip()

    @property
    def trained(self) -> str:
        """Name of the training data, with the suffix "_translate_train" if it is translated."""
        name = _TRAINED_ON.get(self.task, self.task)
        return f"{name}_translate_train" if self.variant == TRANSLATE_TRAIN else name

    def met_by(self, entry: Entry) -> bool:
        """Returns whether one of our systems is of this variant and has results of this task."""
        if FIRST in entry.group:
            variant = FIRST
        elif entry.is_translate_train:
            variant = TRANSLATE_TRAIN
        elif entry.is_continued:
            variant = CONTINUED
        else:
            variant = ""
        return variant == self.variant and any(
            (row.task, row.system) == (self.task, MODEL)
            for run in entry.runs
            for row in run.results
        )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A paper's settings of fine-tuning.

    Attributes:
      name: first part of the names of the folders; "" for XLM-E's settings, which the gin files of
        the tasks have.
      files: {training data: file of gin_configs/finetune that replaces the task's file}.
      large: {training data: file that replaces the file of `files` for the Large size}.
      more: further file if the training data are not translated; "" for none.
      translated: further file if the training data are translated; "" for none.
      added: {training data: further files}.
      flags: {training data: further flags}.
      large_flags: {training data: further flags for the Large size, after `flags`}.
      starts: {training data: shell variable of the run to start from}; other training data start
        from a pre-trained run.
      scored: {training data: benchmarks to score, separated by commas}; for other training data,
        `_TOGETHER` says what to score.
      apart: {benchmark: its file} of benchmarks that are fine-tuned in runs of their own, although
        another benchmark has the same training data.
    """

    name: str = ""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    large: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more: str = ""
    translated: str = ""
    added: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    large_flags: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    starts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    apart: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def paths(self, need: Need, is_large: bool) -> list[str]:
        """Returns the paths of the gin files that fine-tune for a need.

        Args:
          need: results of a benchmark.
          is_large: whether the settings are those of the Large size.
        """
        trained = _TRAINED_ON.get(need.task, need.task)
        is_translated = need.variant == TRANSLATE_TRAIN
        of_paper = {**self.files, **(self.large if is_large else {})}
        first = _SHARED.get(trained) or of_paper.get(trained, trained)
        first = self.apart.get(need.task, first)
        more = self.translated if is_translated else self.more
        names = (first, more, *self.added.get(trained, ()))
        return [f"gin_configs/finetune/{name}.gin" for name in names if name]


def command(need: Need, recipe: Recipe | None = None, is_large: bool = False) -> str:
    """Returns the shell command that measures a need.

    Args:
      need: results of a benchmark.
      recipe: the paper's settings; None for XLM-E's.
      is_large: whether the settings are those of the Large size.
    """
    if need.variant == CONTINUED:
        run_variable = "CONTINUED"
    elif is_large:
        run_variable = "LARGE"
    else:
        run_variable = "RUN"
    if need.task.startswith(_WMT):
        folder = _folder_beside(run_variable, need.task)
        return translation(need.task, folder, f"--gin.INIT_FROM=\"'${run_variable}'\"")
    if is_pretrained(need.task):
        return _evaluation_command(need, run_variable)
    return _sweep_command(need, recipe or Recipe(), run_variable, is_large)


def _folder_beside(run_variable: str, name: str) -> str:
    """Returns a folder beside that of a run, in shell syntax: "${RUN}_xnli" for RUN and "xnli"."""
    return "${" + run_variable + "}_" + name


def is_pretrained(task: str) -> bool:
    """Returns whether a task needs no fine-tuning."""
    measure = measures.of_task(task)
    return measure is not None and measure.about.is_of_pretrained


def _evaluation_command(need: Need, run_variable: str) -> str:
    """Returns the command that evaluates an encoder without fine-tuning it for the benchmark.

    Args:
      need: results of a benchmark.
      run_variable: shell variable that holds the MODEL_DIR of the run, such as "RUN".
    """
    run = "$XNLI" if need.variant == TRANSLATE_TRAIN else f"${run_variable}"
    flags = measures.by_task()[need.task].about.flags
    end = f" {flags}" if flags else ""
    if need.variant == FIRST:
        end += f" --pooling=first --output={run}/evaluation/cls"
    tasks = f"--checkpoint={run} --tasks={need.task}"
    return f"python -m xlme_jax.evaluate {tasks} --data=$DATA/eval{end}"


def _sweep_command(need: Need, recipe: Recipe, run_variable: str, is_large: bool) -> str:
    """Returns the command that fine-tunes and scores: a sweep in a folder beside that of a run.

    Args:
      need: results of a benchmark.
      recipe: the paper's settings.
      run_variable: shell variable that holds the MODEL_DIR of the run, such as "RUN".
      is_large: whether the settings are those of the Large size.
    """
    size = "large" if is_large else ""
    name = "_".join(filter(None, (recipe.name, size, recipe.apart.get(need.task, need.trained))))
    folder = _folder_beside(run_variable, name)
    start = recipe.starts.get(need.trained, run_variable)
    flags = [f"--gin_file={path}" for path in recipe.paths(need, is_large)]
    flags += recipe.flags.get(need.trained, ())
    flags += recipe.large_flags.get(need.trained, ()) if is_large else ()
    if need.trained in _SHARED:
        flags.append(f"--gin.TASK=\"'{need.trained}'\"")
    flags += [f"--gin.INIT_FROM=\"'${start}'\"", "--gin.EVAL_DIR=\"'$DATA/eval'\""]
    if need.variant == TRANSLATE_TRAIN:
        flags.append(f"--gin.TRAIN_TASKS=\"('{need.trained}',)\"")
    # Another run may have another vocabulary, so that its data cannot be shared.
    flags.append(f"--gin.DATA_DIR=\"'{folder}/data'\"")
    evaluate = f"python -m xlme_jax.evaluate --checkpoint={{model_dir}}{_scored(need, recipe)}"
    return (
        f"python -m xlme_jax.sweep {' '.join(flags)} --output={folder} "
        f'--evaluate="{evaluate} --data=$DATA/eval"'
    )


def _scored(need: Need, recipe: Recipe) -> str:
    """Returns the flags that say which benchmarks and which split an evaluation scores.

    Returns "" for the default, the test set of the benchmark that the model was trained on.
    """
    if need.task in recipe.apart:
        return f" --tasks={need.task}"
    trained = _TRAINED_ON.get(need.task, need.task)
    together = {**_TOGETHER, **recipe.scored}
    tasks = together.get(trained, "") if need.task in _TRAINED_ON or trained == "mnli" else ""
    flags = f" --tasks={tasks}" if tasks else ""
    return flags + (" --split=validation" if need.task in _GLUE else "")


def translation(test_set: str, run: str, flags: str) -> str:
    """Returns the command that fine-tunes on WMT14, averages and translates as VECO does.

    Args:
      test_set: "wmt14_en_de" or "wmt14_en_fr".
      run: MODEL_DIR of the fine-tuning.
      flags: overrides of the gin file of the test set, such as the run to start from.
    """
    language = test_set.removeprefix(_WMT)
    test = f"$DATA/eval/wmt14/newstest2014-{language}en"
    return " && ".join(
        (
            f"python -m xlme_jax.train --gin_file=gin_configs/finetune/veco_{test_set}.gin "
            f"--gin.MODEL_DIR=\"'{run}'\" {flags}",
            f"python -m xlme_jax.average --checkpoint={run} --last=10 --output={run}_mean",
            f"python -m xlme_jax.translate --checkpoint={run}_mean --target={language} "
            f"--source={test}-src.en.sgm --references={test}-ref.{language}.sgm "
            f"--output={run}.txt --test_set={test_set} --multi_bleu='tokenizer.perl -l {language}'",
        )
    )


# ---- What is scored and what selects -----------------------------------------------------------

_NO_TEST = (
    "The labels of GLUE's and SQuAD 2.0's test sets are not public: the development sets are "
    "scored, as in the paper, and select too, which flatters."
)


def notes(of_table: Sequence[Need], recipe: Recipe | None = None) -> tuple[str, ...]:
    """Returns sentences on which sets a table scores, and which sets select its models.

    Args:
      of_table: the needs of a table.
      recipe: the paper's settings; None for XLM-E's.
    """
    tasks = {need.task for need in of_table}
    translated = {need.task for need in of_table if need.variant == TRANSLATE_TRAIN}
    sentences = []
    if "tydiqa" in tasks:
        sentences.append(
            "TyDiQA-GoldP has no test set: its development set is scored, as in XTREME, and a "
            "tenth of its training passages, which is held out of training, selects."
        )
    if "tydiqa" in translated:
        sentences.append(
            "TyDiQA, translate-train: starts from the best run of SQuAD; selected in the languages "
            "other than English, because translations of the English passages that are held out "
            "are trained on."
        )
    if "xquad" in tasks:
        on_mlqa = "mlqa_dev" in (recipe or Recipe()).added.get("squad", ())
        sentences.append(
            "XQuAD has no development set: MLQA's selects."
            if on_mlqa
            else "XQuAD has no development set: SQuAD's selects, of which XQuAD's English "
            "questions are a part, as in XTREME."
        )
    if tasks & set(_GLUE):
        sentences.append(_NO_TEST)
    sentences += [cls.about.note for cls in measures.of_tasks(tasks) if cls.about.note]
    if any(map(is_pretrained, translated)):
        sentences.append(
            "Translate-train of BUCC and Tatoeba: the encoder that was fine-tuned on XNLI, "
            "translate-train."
        )
    return tuple(sentences)
