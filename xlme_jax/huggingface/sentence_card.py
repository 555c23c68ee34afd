"""The parts of a model card that are about sentence vectors: usage, results by language, limits."""

from collections.abc import Callable, Iterator
from pathlib import Path

from xlme_jax.evaluation import measures
from xlme_jax.evaluation.encoding import POOLINGS
from xlme_jax.evaluation.outcome import Result
from xlme_jax.evaluation.readouts import RAW
from xlme_jax.huggingface.model_index import results_of
from xlme_jax.huggingface.sentence_vectors import SentenceVectors
from xlme_jax.huggingface.weights import WeightLayout


def usage(name: str, layout: WeightLayout, vectors: SentenceVectors) -> str:
    """Returns the section on how to load the folder, and on what its vectors are."""
    options = vectors.options
    trust = ", trust_remote_code=True" if layout.has_own_code else ""
    chosen = next((prompt for prompt in options.prompts if prompt != options.default_prompt), None)
    prompt = f", prompt_name={chosen!r}".replace("'", '"') if chosen else ""
    lines = [
        "## How to use it\n",
        "`pip install sentence-transformers`\n",
        "```python",
        "from sentence_transformers import SentenceTransformer\n",
        f'model = SentenceTransformer("{name}"{trust})',
        'queries = model.encode(["The weather is lovely."])',
        f'texts = model.encode(["Das Wetter ist herrlich.", "Er fuhr zum Stadion."]{prompt})',
        "model.similarity(queries, texts)  # cosines, the first one the larger",
        "```\n",
        f"A vector has {layout.encoder.hidden_size} numbers and length 1. It is pooled from layer "
        f"{options.layer}: {POOLINGS[options.pooling]}"
        + (
            f", less the mean vector of text in {vectors.centred_on}, each counting the same."
            if vectors.centre is not None
            else "."
        ),
    ]
    if options.prompts:
        texts = ", ".join(f"`{name}`: {text!r}" for name, text in options.prompts.items())
        default = options.default_prompt
        without = f"the prompt `{default}` is used" if default else "no prompt is used"
        lines.append(
            f"\nPrompts, chosen by `prompt_name`, are put before a text: {texts}. Without a name, "
            f"{without}."
        )
    return "\n".join(lines)


def figures(checkpoint: Path, vectors: SentenceVectors) -> str:
    """Returns tables of the results at the exported layer by language; "" if there are none.

    Raises:
      ValueError: the checkpoint's results cannot be read.
    """
    evaluation = results_of(checkpoint)
    rows = [] if evaluation is None else list(filter(_is_of(vectors), evaluation.results))
    if not rows:
        return ""
    centred = " and before the centre was subtracted" if vectors.centre is not None else ""
    lines = [
        "## Results\n",
        f"Vectors of layer {vectors.options.layer}, by cosine{centred}, without a prompt.",
    ]
    for task in dict.fromkeys(row.task for row in rows):
        lines += _table(task, [row for row in rows if row.task == task])
    return "\n".join(lines)


def _is_of(vectors: SentenceVectors) -> Callable[[Result], bool]:
    """Returns the test of a result: is it of the exported layer and pooling, without centring."""
    descriptions = [text for name, text in POOLINGS.items() if name != vectors.options.pooling]
    of_layer = ("model", RAW, vectors.options.layer)

    def is_of(row: Result) -> bool:
        measure = measures.of_task(row.task)
        tables = () if measure is None else measure.about.tables
        metrics = {column.metric for table in tables for column in table.columns}
        return (
            (row.system, row.readout, row.layer) == of_layer
            and row.metric in metrics
            and not row.setting.startswith(tuple(descriptions))
        )

    return is_of


def _table(task: str, rows: list[Result]) -> Iterator[str]:
    """Yields the lines of a table of a task: a row for each language, a column for each metric."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    values = {(row.language, row.metric): f"{row.value:.3f}" for row in rows}
    yield f"\n| {task} | {' | '.join(metrics)} |"
    yield "|---" * (len(metrics) + 1) + "|"
    for language in dict.fromkeys(row.language for row in rows):
        cells = (values.get((language, metric), "") for metric in metrics)
        yield f"| {language} | {' | '.join(cells)} |"


def limits(vectors: SentenceVectors, languages: list[str]) -> str:
    """Returns the section on what the vectors are not good for."""
    trained = (
        f"- Training text of this run was in {', '.join(languages)}."
        if languages
        else "- The languages of the training text are not recorded."
    )
    return "\n".join(
        [
            "## Limits\n",
            f"- A text is cut after {vectors.max_tokens} tokens, `<s>` and `</s>` included.",
            trained + " A language without a row above was not measured.",
            "- Cosines rank texts; their size differs by language and by length, so that one "
            "threshold does not fit all languages.",
        ]
    )
