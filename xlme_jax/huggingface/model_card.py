"""Writes the README.md of an exported model: usage, training, results and citation."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xlme_jax.checkpoints.saved import FOLDER, RunRecord, checkpoint_of, read_record
from xlme_jax.configuration import loading
from xlme_jax.configuration.train_config import TrainConfig
from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.data.prepared.format import DATA_CARD_FILE
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.evaluation import measures
from xlme_jax.huggingface import sentence_card
from xlme_jax.huggingface.model_index import front_matter, results_of
from xlme_jax.huggingface.sentence_vectors import SentenceVectors
from xlme_jax.huggingface.tokenizer import differences
from xlme_jax.huggingface.weights import WeightLayout, has_form_of_xlmr
from xlme_jax.objectives.finetune import FineTuneConfig
from xlme_jax.objectives.system_config import OneEncoderConfig, Paper
from xlme_jax.storage.paths import as_path
from xlme_jax.studies.reports import verdict

_MAX_RUNS = 100
_XLMR = Paper("Conneau et al.", "Unsupervised Cross-lingual Representation Learning at Scale", 2020)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage in the history of the weights: a training run, or an imported folder.

    Attributes:
      config: the run's configuration; None if the run is missing.
      step: number of updates; None if unknown.
      languages: languages of its data; empty if the data is missing.
      model_dir: name of the run's folder.
      folder: name of the imported Hugging Face folder; None for a training run.
      data_card: card of its data; empty if the data is missing or was changed since.
    """

    config: TrainConfig | None
    step: int | None
    languages: tuple[str, ...] = ()
    model_dir: str = ""
    folder: str | None = None
    data_card: str = ""

    @property
    def name(self) -> str:
        """Name of the objective, such as "XLM" or "FineTune (xnli)"."""
        if self.folder is not None:
            return "XLM-R" if self._is_xlmr else "An exported encoder"
        if self.config is None:
            return f"Missing run (`{self.model_dir}`)"
        objective = self.config.objective
        name = type(objective).__name__.removesuffix("Config")
        return f"{name} ({objective.task})" if isinstance(objective, FineTuneConfig) else name

    @property
    def _is_xlmr(self) -> bool:
        """Whether the imported encoder has XLM-R's form, which exports may have too."""
        return self.config is not None and has_form_of_xlmr(self.config.objective.encoder)

    @property
    def paper(self) -> Paper | None:
        """The publication of the pre-training system; None if unknown."""
        if self.folder is not None:
            return _XLMR if self._is_xlmr else None
        return None if self.config is None else self.config.objective.pretraining.paper


def stages(checkpoint: Path) -> list[Stage]:
    """Returns the stages of a checkpoint's weights, the last one first.

    Each checkpoint records its origin, the checkpoint that its run started from. If the origin is
    missing, the step comes from its name and all else from the newest checkpoint of the same run.
    For checkpoints without a recorded origin, INIT_FROM is used. A missing run ends the list.
    """
    folder = checkpoint_of(checkpoint)
    record, config = _read(folder)
    history: list[Stage] = []
    step = _step(folder)
    while len(history) < _MAX_RUNS:
        origin = as_path(record.origin)
        if _is_imported(record, step, config):
            return [*history, Stage(config, step, folder=origin.name)]
        data_dir = as_path(config.data_dir)
        card = _data_card(data_dir, record.dataset)
        history.append(
            Stage(config, step, _languages(data_dir), _run_of(folder).name, data_card=card)
        )
        candidates = [origin, _run_of(origin)] if origin.name else []
        if config.loop.init_from:
            candidates.append(as_path(config.loop.init_from))
        earlier = _first_readable(candidates)
        if earlier is None:
            if origin.name:
                history.append(Stage(None, _step(origin), model_dir=_run_of(origin).name))
            break
        folder, record, config = earlier
        step = _step(origin if origin.name else folder)
    return history


def _is_imported(record: RunRecord, step: int | None, config: TrainConfig) -> bool:
    """Returns whether a checkpoint was converted from a Hugging Face folder.

    Such a checkpoint has step 0, no data, and one encoder. A checkpoint of step 0 of a system with
    several encoders and without a recorded origin belongs to a run whose record lacks its data.
    """
    if record.dataset or step or config.loop.init_from:
        return False
    return bool(record.origin) or isinstance(config.objective, OneEncoderConfig)


def _read(folder: Path) -> tuple[RunRecord, TrainConfig]:
    """Returns record and configuration of a checkpoint; ValueError if they cannot be read."""
    record = read_record(folder)
    return record, loading.load_text(record.config, "Train", str(folder))


def _first_readable(runs: Sequence[Path]) -> tuple[Path, RunRecord, TrainConfig] | None:
    """Returns checkpoint, record and configuration of the first run that can be read, if any."""
    for run in runs:
        try:
            folder = checkpoint_of(run)
            return folder, *_read(folder)
        except ValueError:
            continue
    return None


def _step(checkpoint: Path) -> int | None:
    """Returns the step that is a checkpoint's name; None if it was renamed."""
    return int(checkpoint.name) if checkpoint.name.isdigit() else None


def _run_of(checkpoint: Path) -> Path:
    """Returns a checkpoint's MODEL_DIR, or the checkpoint itself if it was moved out of one."""
    return checkpoint.parent.parent if checkpoint.parent.name == FOLDER else checkpoint


def _languages(data_dir: Path) -> tuple[str, ...]:
    """Returns the languages of prepared data, sorted; none if the data cannot be read."""
    try:
        tasks = PreparedDataset.load(data_dir).tasks
    except PreparedDataError:
        return ()
    return tuple(sorted({language for task in tasks for language in task.tags}))


def _data_card(data_dir: Path, digest: str) -> str:
    """Returns the card of prepared data; "" unless it names the digest of the run's data."""
    file = data_dir / DATA_CARD_FILE
    card = file.read_text(encoding="utf-8") if file.is_file() else ""
    return card if digest and digest in card else ""


def data_cards(checkpoint: Path) -> dict[str, bytes]:
    """Returns {file that the model card links: card of the data of a stage}."""
    numbered = enumerate(reversed(stages(checkpoint)), 1)
    return {_card_name(n): run.data_card.encode() for n, run in numbered if run.data_card}


def _card_name(number: int) -> str:
    return f"data_card_{number}.md"


def model_card(
    name: str,
    layout: WeightLayout,
    vocabulary: Vocabulary,
    checkpoint: Path,
    parameters: int,
    command: str,
    vectors: SentenceVectors | None = None,
) -> str:
    """Returns the text of the model card.

    Args:
      name: name of the model.
      layout: architecture of the model.
      vocabulary: vocabulary of the model.
      checkpoint: the exported checkpoint.
      parameters: number of parameters.
      command: command line of the export.
      vectors: how sentence-transformers embeds sentences; None for transformers alone.

    Raises:
      ValueError: the checkpoint's evaluation/STEP/results.json cannot be read.
    """
    runs = stages(checkpoint)
    languages = sorted({language for run in runs for language in run.languages})
    layer = None if vectors is None else vectors.options.layer
    parts = [
        _header(layout, languages, front_matter(name, checkpoint, layer), vectors is not None),
        f"# {name}\n\nA cross-lingual encoder of {layout.num_layers} layers, width "
        f"{layout.encoder.hidden_size}, {parameters:,} parameters and a vocabulary of "
        f"{layout.vocab_size:,}, {_how_made(runs)}.",
        _usage_section(name, layout)
        if vectors is None
        else sentence_card.usage(name, layout, vectors),
        tokenizer_section(vocabulary),
        "## Training\n\n" + "\n".join(_training(runs)),
        *(
            [_figures(checkpoint)]
            if vectors is None
            else [
                sentence_card.figures(checkpoint, vectors),
                sentence_card.limits(vectors, languages),
            ]
        ),
        "## Licence\n\nTo be filled in, here and in the metadata at the top of this file.",
        _citation(runs),
        f"---\nWritten by `{command}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(
    layout: WeightLayout, languages: Sequence[str], index: Sequence[str], sentences: bool
) -> str:
    """Returns the YAML header.

    Languages are quoted, because `no` would be parsed as a boolean.

    Args:
      layout: architecture of the model.
      languages: languages of the data.
      index: lines of `model-index`.
      sentences: whether sentence-transformers loads the folder.
    """
    pipeline = "fill-mask" if layout.head == "mlm" else "feature-extraction"
    tags = ["cross-lingual", "multilingual", "xlme_jax"]
    if sentences:
        # The hub's buttons and filters read these names.
        pipeline = "sentence-similarity"
        tags = ["sentence-transformers", pipeline, "feature-extraction", *tags]
    lines = ["---"]
    if languages:
        lines += ["language:", *(f"- {json.dumps(language)}" for language in languages)]
    lines += [
        "license: other  # to be filled in",
        f"library_name: {'sentence-transformers' if sentences else 'transformers'}",
        f"pipeline_tag: {pipeline}",
        "tags:",
        *(f"- {tag}" for tag in tags),
        *index,
        "---",
    ]
    return "\n".join(lines)


def _usage_section(name: str, layout: WeightLayout) -> str:
    """Returns the section on how to load and call the model."""
    trust = ", trust_remote_code=True" if layout.has_own_code else ""
    has_mlm = layout.head == "mlm"
    kind = "AutoModelForMaskedLM" if has_mlm else "AutoModel"
    without_pooler = ", add_pooling_layer=False" if layout.is_xlmr and not has_mlm else ""
    lines = [
        "## How to use it\n",
        "```python",
        f"from transformers import {kind}, AutoTokenizer\n",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}"{trust})',
        f'model = {kind}.from_pretrained("{name}"{trust}{without_pooler})',
        'batch = tokenizer(["A text.", "Ein anderer."], padding=True, return_tensors="pt")',
        "output = model(**batch, output_hidden_states=True)",
        "output.hidden_states  # embeddings, then the output of each layer",
    ]
    if has_mlm:
        lines.append("output.logits  # one per token and vocabulary entry")
    elif layout.head is not None:
        lines.append("output.logits  # one per token, positive for tokens predicted as replaced")
    lines.append("```")
    if has_mlm:
        pooler = ", and `pooler.*` (a layer that it adds and nothing here uses) as MISSING"
        lines.append(
            "\n`AutoModel` loads the encoder alone. Its load report then names `lm_head.*` as "
            f"UNEXPECTED{pooler if layout.is_xlmr else ''}, which is harmless."
        )
    if layout.encoder.absolute_positions:
        lines.append(f"\nTexts may have at most {layout.encoder.max_length} tokens.")
    lines.append("\nPairs of texts are encoded as `<s> a </s> b </s>`.")
    return "\n".join(lines)


def tokenizer_section(vocabulary: Vocabulary) -> str:
    """Returns the section on the ids of `tokenizer.json`."""
    exceptions = "\n".join(f"- {text}." for text in differences(vocabulary))
    return (
        "## Tokenizer\n\n`tokenizer.json` gives the ids of `sentencepiece.bpe.model`, for composed "
        f"and decomposed text. Ids may differ in texts with:\n\n{exceptions}"
    )


def _how_made(runs: Sequence[Stage]) -> str:
    """Returns how the model was made, the end of a sentence; `runs` has the last stage first."""
    if (folder := runs[-1].folder) is None:
        return "pre-trained with xlme_jax"
    name = f"{runs[-1].name} (`{folder}`)" if folder else runs[-1].name
    return f"converted from {name}" if len(runs) == 1 else f"{name} trained further with xlme_jax"


def _training(runs: Sequence[Stage]) -> Iterator[str]:
    """Yields lines that list the stages, the first one first, and the last configuration."""
    for index, run in enumerate(reversed(runs)):
        details = "" if run.step is None else f", {run.step:,} steps"
        if run.folder is not None:
            details = f", weights of `{run.folder}`" if run.folder else ", original weights"
        yield f"{index + 1}. {run.name}{details}."
        if run.languages:
            card = f" ([data card]({_card_name(index + 1)}))" if run.data_card else ""
            yield f"   Data: {', '.join(run.languages)}{card}."
    config = runs[0].config
    if config is None or runs[0].folder is not None:
        return
    yield "\n<details><summary>Configuration</summary>\n\n```"
    yield from _fields("objective", config.objective, "")
    yield from _fields("optimizer", config.optimizer, "")
    yield from _fields("streams", config.streams, "")
    yield f"seed: {config.loop.seed}\n```\n\n</details>"


def _fields(name: str, value: Any, indent: str) -> Iterator[str]:
    """Yields the lines of a value; the fields of dataclasses are on indented lines of their own."""
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
    """Returns the checkpoint's evaluation results: sentences on retrieval, and a table of all."""
    evaluation = results_of(checkpoint)
    if evaluation is None:
        return (
            "## Results\n\nNot measured. What `python -m xlme_jax.evaluate --checkpoint=MODEL_DIR` "
            "measures before an export is shown here."
        )
    tasks = dict.fromkeys(name.split("/")[0] for name in evaluation.headline)
    compared = (
        verdict.of_retrieval(task, evaluation.headline, evaluation.results)
        for task in tasks
        if (measure := measures.of_task(task)) and measure.about.by_readout
    )
    sentences = [f"{figure.sentence}\n" for figure in compared if figure]
    untrained = {
        _without_layer(name): f"{value:.4f}"
        for name, value in evaluation.headline.items()
        if name.endswith(("(untrained)", "(untrained))"))
    }
    rows = [
        f"| {name} | {value:.4f} | {untrained.get(_untrained_name(name), '')} |"
        for name, value in evaluation.headline.items()
        if _without_layer(name) not in untrained
    ]
    head = ["| figure | value | untrained |", "|---|---|---|"]
    note = (
        "\nAccuracy of retrieval without a layer is by cosine, at the middle layer or that of "
        "`--layer`; `forward` is from the first language of a pair to the second, or to English."
    )
    parts = ["## Results\n", *sentences, *head, *rows, *([note] if sentences else [])]
    return "\n".join(parts)


def _without_layer(name: str) -> str:
    """Returns the name of a headline's entry without its layer."""
    return re.sub(r"/layer_\d+", "", name)


def _untrained_name(name: str) -> str:
    """Returns the entry of the untrained encoder beside that of a trained one, without layer."""
    figure, _, encoder = _without_layer(name).partition(" (")
    return (
        f"{figure} ({encoder.removesuffix(')')} (untrained))"
        if encoder
        else f"{figure} (untrained)"
    )


def _citation(runs: Sequence[Stage]) -> str:
    """Returns the section on the publications of all stages; "" if none is known."""
    papers = dict.fromkeys(run.paper for run in runs if run.paper is not None)
    lines = [f'- {paper.authors}, "{paper.title}", {paper.year}.' for paper in papers]
    return "\n".join(["## Citation\n", *lines]) if lines else ""
