"""The part of an exported folder by which sentence-transformers turns a text into one vector.

`SentenceTransformer(FOLDER)` reads these files beside those of `writing`: the list of modules, the
pooling, a dense layer that subtracts a centre, and prompts. All are modules of the package, so that
the folder needs no code of its own. The files are those of sentence-transformers 2 and later.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from xlme_jax.data.prepared import PreparedDataset
from xlme_jax.data.prepared.format import DATASET_FILE
from xlme_jax.data.text.decompression import DataError, read_blocks
from xlme_jax.data.text.reading import ReadReport, aligned_lines
from xlme_jax.evaluation import encoding, readouts
from xlme_jax.evaluation.encoding import Pooling, Text
from xlme_jax.evaluation.training_text import TEXTS, TrainingText
from xlme_jax.huggingface.packages import safetensors
from xlme_jax.runs.models import LENGTH
from xlme_jax.runs.trained import LoadedRun
from xlme_jax.storage.paths import as_path
from xlme_jax.training import sharded_state as states
from xlme_jax.validation import extras

# {pooling: the switch of it in sentence-transformers, which has no mean without special tokens}.
POOLINGS: Mapping[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
}
Precision = Literal["float32", "int8"]
PRECISIONS = ("float32", "int8")
_ONNX_PACKAGES = ("torch", "transformers", "onnx", "onnxruntime", "onnxscript")
_MODULES = "sentence_transformers.models"


@dataclasses.dataclass(frozen=True)
class SentenceOptions:
    """How a user wants sentences to be embedded.

    Attributes:
      layer: the layer whose states are pooled; those above it are dropped. 0 is the embeddings.
      pooling: a key of `POOLINGS`.
      centre: prepared data, or text files of a language each, whose mean vector is subtracted;
        () for none.
      prompts: {name: text that is put before a sentence}.
      default_prompt: the prompt of calls that name none; None for no prompt.
      onnx: types of the weights of the ONNX programs to add.
    """

    layer: int
    pooling: Pooling = "mean"
    centre: Sequence[str] = ()
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None
    onnx: Sequence[Precision] = ()

    def __post_init__(self) -> None:
        if unknown := [precision for precision in self.onnx if precision not in PRECISIONS]:
            raise ValueError(f"--onnx={unknown[0]}: expected some of {', '.join(PRECISIONS)}")
        for package in _ONNX_PACKAGES if self.onnx else ():
            extras.check_installed("--onnx", package)
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            names = ", ".join(self.prompts) or "there is none"
            raise ValueError(
                f"--default_prompt={self.default_prompt} is not the name of a --prompt ({names})"
            )


@dataclasses.dataclass(frozen=True)
class SentenceVectors:
    """How the exported encoder turns a text into a vector of length 1.

    Attributes:
      options: the layer, the pooling and the prompts.
      max_tokens: most tokens of a text; longer ones are cut.
      centre: float32[D], subtracted from the pooled states; None for nothing.
      centred_on: what the centre is the mean of, for the model card.
    """

    options: SentenceOptions
    max_tokens: int
    centre: np.ndarray | None = None
    centred_on: str = ""


def sentence_vectors(options: SentenceOptions, loaded: LoadedRun) -> SentenceVectors:
    """Returns how a checkpoint's encoder embeds sentences, with the centre that is asked for.

    Raises:
      ValueError: the encoder has no such layer or cannot be cut there, or the text of the centre is
        missing or unreadable.
    """
    config = loaded.objective.encoder.config
    encoding.check_layer(options.layer, config.num_layers, "--layer")
    if config.pre_norm and options.layer < config.num_layers:
        raise ValueError(
            f"--layer={options.layer}: a pre-norm encoder normalises its last layer's output "
            f"alone, so that it cannot be cut; give --layer={config.num_layers}"
        )
    max_tokens = min(LENGTH, config.max_length if config.absolute_positions else LENGTH)
    if not options.centre:
        return SentenceVectors(options, max_tokens)
    samples = _samples(options.centre, loaded, max_tokens)
    centre = _mean_of_means(samples, options, loaded)
    names = ", ".join(samples)
    return SentenceVectors(options, max_tokens, centre, names)


def _samples(paths: Sequence[str], loaded: LoadedRun, length: int) -> dict[str, list[Text]]:
    """Returns {language of prepared data, or name of a file: texts as tokens}.

    Raises:
      ValueError: text is missing, unreadable, or encoded by another vocabulary.
    """
    if len(paths) == 1 and (as_path(paths[0]) / DATASET_FILE).is_file():
        dataset = PreparedDataset.load(paths[0])
        if dataset.vocabulary_digest != loaded.vocabulary.digest:
            raise ValueError(
                f"--centre={paths[0]}: the data have another vocabulary than {loaded.folder}; "
                "prepare them with --vocabulary of that run, or give text files"
            )
        text = TrainingText(dataset)
        samples = {name: text.texts(name, TEXTS, length) for name in sorted(text.languages)}
    else:
        samples = {Path(path).name: _read(path, loaded, length) for path in paths}
    if not samples or not all(samples.values()):
        empty = [name for name, texts in samples.items() if not texts] or paths
        raise DataError(f"--centre: there is no text in {', '.join(empty)}")
    return samples


def _read(path: str, loaded: LoadedRun, length: int) -> list[Text]:
    """Returns the first `TEXTS` lines of a file of text, as tokens."""
    lines = aligned_lines(read_blocks(path), path, ReadReport())
    texts = (line for line in lines if isinstance(line, str) and line.strip())
    first = list(itertools.islice(texts, TEXTS))
    return encoding.texts_of(loaded.vocabulary, first, length, ReadReport())


def _mean_of_means(
    samples: Mapping[str, Sequence[Text]], options: SentenceOptions, loaded: LoadedRun
) -> np.ndarray:
    """Returns the mean vector of the samples, float32[D], in which each sample counts the same."""
    subject = loaded.subject()

    def pooled(params: object, rows: Mapping[str, jax.Array]) -> jax.Array:
        states_of_layer = subject.encode(params, rows)[options.layer]
        return encoding.pool(states_of_layer, rows, options.pooling)

    compiled = jax.jit(pooled)
    with states.sharding_rules(loaded.mesh):
        means = [
            readouts.mean_of_finite(
                encoding.embed(
                    compiled, loaded.params, encoding.batches(texts, subject.row_multiple)
                ),
                np.float64,
            )
            for texts in samples.values()
        ]
    return np.mean(means, axis=0).astype(np.float32)


def files(vectors: SentenceVectors, width: int) -> dict[str, bytes]:
    """Returns {name: content} of the files that sentence-transformers reads.

    Args:
      vectors: how a text becomes a vector.
      width: D, width of the encoder.
    """
    options = vectors.options
    content = {}
    content["sentence_bert_config.json"] = _json(
        {"max_seq_length": vectors.max_tokens, "do_lower_case": False}
    )
    content["config_sentence_transformers.json"] = _json(
        {
            "prompts": dict(options.prompts),
            "default_prompt_name": options.default_prompt,
            "similarity_fn_name": "cosine",
        }
    )
    modules = []
    for index, (name, of_module) in enumerate(_modules(vectors, width)):
        folder = f"{index}_{name}" if index else ""
        kind = f"{_MODULES}.{name}"
        modules.append({"idx": index, "name": str(index), "path": folder, "type": kind})
        content |= {f"{folder}/{file}": data for file, data in of_module.items()}
    content["modules.json"] = _json(modules)
    return content


def _modules(vectors: SentenceVectors, width: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yields the name of each module and the files of its folder."""
    pooling = vectors.options.pooling
    modes = {switch: name == pooling for name, switch in POOLINGS.items()}
    yield "Transformer", {}
    yield "Pooling", {"config.json": _json({"word_embedding_dimension": width, **modes})}
    if vectors.centre is not None:
        # The package has no module that only adds; the identity is exact in any precision.
        dense: dict[str, object] = {"in_features": width, "out_features": width, "bias": True}
        dense["activation_function"] = "torch.nn.modules.linear.Identity"
        tensors = {"linear.weight": np.eye(width, dtype="f4"), "linear.bias": -vectors.centre}
        weights = safetensors.numpy.save(tensors, {"format": "pt"})
        yield "Dense", {"config.json": _json(dense), "model.safetensors": weights}
    # Some versions copy the folder of each module, which must exist.
    yield "Normalize", {"config.json": _json({})}


def _json(content: object) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()
