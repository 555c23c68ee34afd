"""README.md of an exported model: what it is, how to load it, how it was made, how good it is."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlme_jax import config as configs
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.evaluation import results
from xlme_jax.huggingface.weights import Layout
from xlme_jax.objectives.finetune import FineTuneConfig
from xlme_jax.train_config import TrainConfig
from xlme_jax.training.checkpoints import latest_checkpoint, read_config

_MAX_RUNS = 100
# By objective, in lower case.
_PAPERS = {
    "xlme": ("Chi et al.", "XLM-E: Cross-lingual Language Model Pre-training via ELECTRA", 2022),
    "xlm": ("Conneau and Lample", "Cross-lingual Language Model Pretraining", 2019),
    "infoxlm": (
        "Chi et al.",
        "InfoXLM: An Information-Theoretic Framework for Cross-Lingual Language Model Pre-Training",
        2021,
    ),
    "veco": (
        "Luo et al.",
        "VECO: Variable and Flexible Cross-lingual Pre-training for Language Understanding and "
        "Generation",
        2021,
    ),
}


@dataclasses.dataclass(frozen=True)
class Stage:
    """A run that the weights have been through.

    Attributes:
      config: of the run.
      step: updates; None if the checkpoint does not say.
      languages: of its data; empty if the data is not there.
    """

    config: TrainConfig
    step: int | None
    languages: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the objective: "XLME", or "FineTune (xnli)"."""
        objective = self.config.objective
        name = type(objective).__name__.removesuffix("Config")
        return f"{name} ({objective.task})" if isinstance(objective, FineTuneConfig) else name


def stages(checkpoint: Path) -> list[Stage]:
    """The runs that a checkpoint's weights have been through, the last one first.

    Runs that are not there any more end the list.
    """
    found: list[Stage] = []
    source: str | None = str(checkpoint)
    while source and len(found) < _MAX_RUNS:
        try:
            folder = latest_checkpoint(Path(source))
            config = configs.load_text(read_config(folder), "Train", str(folder))
        except ValueError:
            if not found:
                raise
            break
        step = int(folder.name) if folder.name.isdigit() else None
        found.append(Stage(config, step, _languages(Path(config.data_dir))))
        source = config.loop.init_from
    return found


def _languages(data: Path) -> tuple[str, ...]:
    try:
        tasks = PreparedDataset.load(data).tasks
    except PreparedDataError:
        return ()
    return tuple(sorted({language for task in tasks for language in task.languages}))


def model_card(name: str, layout: Layout, checkpoint: Path, parameters: int, command: str) -> str:
    """The text.

    Args:
      name: of the model.
      layout: what it has.
      checkpoint: that it was made of.
      parameters: how many.
      command: that made it.

    Raises:
      ValueError: the checkpoint's figures (evaluation/STEP/results.json) cannot be read.
    """
    runs = stages(checkpoint)
    parts = [
        _header(layout, sorted({language for run in runs for language in run.languages})),
        f"# {name}\n\nA cross-lingual encoder of {layout.encoder.num_layers} layers, width "
        f"{layout.encoder.hidden_size}, {parameters:,} parameters and a vocabulary of "
        f"{layout.vocab_size:,}, pre-trained with xlme_jax.",
        _use(name, layout),
        "## Training\n\n" + "\n".join(_training(runs)),
        _figures(checkpoint),
        "## Licence\n\nTo be filled in, here and in the first lines of this file.",
        _citation(runs),
        f"---\nWritten by `{command}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(layout: Layout, languages: Sequence[str]) -> str:
    """YAML. Strings are quoted: `no` would be a truth value."""
    lines = ["---"]
    if languages:
        lines += ["language:", *(f"- {json.dumps(language)}" for language in languages)]
    lines += [
        "license: other  # to be filled in",
        "library_name: transformers",
        f"pipeline_tag: {'fill-mask' if layout.head == 'mlm' else 'feature-extraction'}",
        "tags:",
        *(f"- {tag}" for tag in ("cross-lingual", "multilingual", "xlme_jax")),
        "---",
    ]
    return "\n".join(lines)


def _use(name: str, layout: Layout) -> str:
    trust = "" if layout.is_xlmr else ", trust_remote_code=True"
    kind = "AutoModelForMaskedLM" if layout.head == "mlm" else "AutoModel"
    lines = [
        "## How to use it\n",
        "```python",
        f"from transformers import {kind}, AutoTokenizer\n",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}"{trust})',
        f'model = {kind}.from_pretrained("{name}"{trust})',
        'batch = tokenizer(["A text.", "Ein anderer."], padding=True, return_tensors="pt")',
        "output = model(**batch, output_hidden_states=True)",
        "output.hidden_states  # embeddings, then the output of each layer",
    ]
    if layout.head == "mlm":
        lines.append("output.logits  # of every token of the vocabulary")
    elif layout.head is not None:
        lines.append("output.logits  # of each token, positive where it looks replaced")
    lines.append("```")
    if layout.encoder.absolute_positions:
        lines.append(f"\nTexts have {layout.encoder.max_length} tokens at most.")
    lines.append("\nPairs of texts are read as `<s> a </s> b </s>`.")
    return "\n".join(lines)


def _training(runs: Sequence[Stage]) -> Iterator[str]:
    for index, run in enumerate(reversed(runs)):
        steps = "" if run.step is None else f", {run.step:,} steps"
        if not run.step and not run.config.loop.init_from and run.languages == ():
            steps = ", weights as they were taken over"
        yield f"{index + 1}. {run.name}{steps}."
        if run.languages:
            yield f"   Data: {', '.join(run.languages)}."
    yield "\n<details><summary>Configuration</summary>\n\n```"
    config = runs[0].config
    for field in ("objective", "optimizer", "streams"):
        yield from _fields(field, getattr(config, field), "")
    yield f"seed: {config.loop.seed}\n```\n\n</details>"


def _fields(name: str, value: Any, indent: str) -> Iterator[str]:
    """A dataclass as indented lines."""
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for item in value:
            yield from _fields(name, item, indent)
    elif dataclasses.is_dataclass(value):
        yield f"{indent}{name}: {type(value).__name__}"
        for field in dataclasses.fields(value):
            yield from _fields(field.name, getattr(value, field.name), indent + "  ")
    else:
        yield f"{indent}{name}: {value!r}"


def _figures(checkpoint: Path) -> str:
    """The figures of the checkpoint's evaluation, empty if there was none."""
    file = checkpoint.parent.parent / "evaluation" / checkpoint.name / results.RESULTS_FILE
    if not file.is_file():
        return ""
    found = results.read(file)
    rows = [f"| {name} | {value:.4f} |" for name, value in found.headline.items()]
    return "\n".join(["## Results\n", "| figure | value |", "|---|---|", *rows])


def _citation(runs: Sequence[Stage]) -> str:
    names: Mapping[str, None] = dict.fromkeys(_systems(runs))
    lines = [
        f'- {authors}, "{title}", {year}.'
        for name in names
        if name in _PAPERS
        for authors, title, year in [_PAPERS[name]]
    ]
    return "\n".join(["## Citation\n", *lines]) if lines else ""


def _systems(runs: Sequence[Stage]) -> Iterator[str]:
    for run in runs:
        objective = getattr(run.config.objective, "pretrained", run.config.objective)
        yield type(objective).__name__.removesuffix("Config").lower()
