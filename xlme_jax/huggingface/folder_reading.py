"""Reads a Hugging Face folder of XLM-R's vocabulary, or of an export.

Folders have config.json, safetensors and a SentencePiece model. Multilingual MiniLM and E5 have
BERT's form: positions that count from 0, two token types, and rows of tokens that no piece has.

All checks but that of duplicate tensors use the files' headers, before any tensor is read. Error
messages name the file, the field and the remedy.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.huggingface.packages import safetensors
from xlme_jax.huggingface.weights import POSITION_OFFSET, Head, WeightLayout
from xlme_jax.model.encoder import EncoderConfig
from xlme_jax.storage.sealed_json import parse

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILE = "sentencepiece.bpe.model"
_MAX_JSON = 1 << 26
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "tf_model.h5")
_OTHER_MODELS = {
    "roberta": "its vocabulary is byte-level BPE, not SentencePiece",
    "camembert": "its vocabulary has other special ids",
    "xlm-roberta-xl": "it is a pre-norm model",
    "xmod": "it has an adapter for each language",
    "xlm": "it has another encoder and language embeddings",
    "bert": "its vocabulary is WordPiece, as there is no sentencepiece.bpe.model",
    "electra": "its vocabulary is WordPiece",
    "deberta-v2": "its attention has terms between contents and positions, which the encoder lacks",
    "t5": "it is an encoder-decoder without biases",
    "mt5": "it is an encoder-decoder without biases",
}
# {model_type: the classes without task heads; the one with an MLM head comes first}.
_ARCHITECTURES = {
    "xlm-roberta": ("XLMRobertaForMaskedLM", "XLMRobertaModel"),
    "xlme": ("XLMEForMaskedLM", "XLMEModel"),
    # With XLM-R's vocabulary; their MLM heads were not published.
    "bert": ("", "BertModel"),
}
_PREFIXES = {"xlm-roberta": "roberta.", "xlme": "xlme.", "bert": "bert."}
# Fields of BERT's configuration that say nothing of XLM-R's vocabulary.
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_TOKENS = "embeddings.word_embeddings.weight"
# Field -> the only value that the encoder supports, which is also XLMRobertaConfig's default.
_FIXED: dict[str, Any] = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "pad_token_id": PAD_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
# Unused tensors: a buffer of old versions, the pooler, which MLM does not train, and the head of
# replaced token detection, which fine-tuning does not read.
_UNUSED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")
_RTD_HEAD = "rtd_head."
# Fields of exports alone, named as in `EncoderConfig`, and their types.
_OF_EXPORTS = {
    "absolute_positions": bool,
    "relative_bias": str,
    "relative_buckets": int,
    "relative_max_distance": int,
    "gate_input": str,
    "pre_norm": bool,
}
# Duplicates of other tensors that some versions write: {duplicate: original}.
_COPIES = {"lm_head.decoder.bias": "lm_head.bias"}
_DTYPES = {"F64", "F32", "F16", "BF16"}


class FolderError(ValueError):
    """A folder cannot be converted; the message names the file or field and the remedy."""


class HuggingFaceFolder:
    """A checked folder of XLM-R, or of an encoder that this project exported.

    Attributes:
      folder: path of the folder.
      encoder: encoder configuration.
      vocabulary: vocabulary of the folder's SentencePiece model.
      has_head: whether the model has an MLM head.
      weights: the model's weights.
      notes: messages for the user about ignored tensors and newly initialized weights.

    Raises:
      FolderError: the folder cannot be converted; no tensors have been read, except duplicates.
    """

    def __init__(self, folder: Path, scan_layers: bool):
        self.folder = folder
        self.notes: list[str] = []
        if not folder.is_dir():
            raise FolderError(
                f"{folder} is not a folder; pass one with {CONFIG_FILE}, {WEIGHTS_FILE} and "
                f"{TOKENIZER_FILE}, as published for XLM-R."
            )
        config = _read_config(folder / CONFIG_FILE)
        self._tensors = _Tensors(folder)
        self.encoder = _encoder_config(folder / CONFIG_FILE, config, scan_layers)
        kind = config["model_type"]
        self._token_rows = config["vocab_size"]
        self.vocabulary = self._vocabulary(kind)
        names = self._tensors.names()
        prefix = _PREFIXES[kind]
        self._prefix = prefix if any(name.startswith(prefix) for name in names) else ""
        self.has_head = any(name.startswith("lm_head.") for name in names) or (
            _ARCHITECTURES[kind][0] in (config.get("architectures") or ())
        )
        head: Head | None = "mlm" if self.has_head else None
        layout = WeightLayout(
            self.encoder,
            self.vocabulary.size,
            head,
            kind != "xlme",
            self._prefix,
            position_offset=0 if kind == "bert" else POSITION_OFFSET,
        )
        self.weights = layout.weights()
        self._check(config["type_vocab_size"], _ARCHITECTURES[kind])

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32, the token table without rows that no piece has.

        Raises:
          FolderError: the tensor has values that are not finite.
        """
        array = self._tensors.read(name).astype(np.float32)
        if name == self._prefix + _TOKENS:
            array = array[: self.vocabulary.size]
        if not np.isfinite(array).all():
            raise FolderError(
                f"{self._tensors.header(name)[0]}: the tensor {name} has non-finite values; the "
                "file is damaged, download it again."
            )
        return array

    def _vocabulary(self, kind: str) -> Vocabulary:
        """Returns the folder's vocabulary; FolderError if it is missing or has another size.

        A table in BERT's form may have more rows than the vocabulary has pieces.
        """
        size = self._token_rows
        file = self.folder / TOKENIZER_FILE
        if not file.is_file():
            raise FolderError(
                f"{file} is missing: token ids come from this SentencePiece model (tokenizer.json "
                "is not enough). Copy it from the model that this one was trained from, such as "
                "FacebookAI/xlm-roberta-base."
            )
        vocabulary = Vocabulary.load(file)
        if kind == "bert" and vocabulary.size < size:
            self.notes.append(
                f"left out the last {size - vocabulary.size} of {size} token embeddings, which "
                f"{TOKENIZER_FILE} has no pieces for"
            )
        elif vocabulary.size != size:
            raise FolderError(
                f"{file} has {vocabulary.size} ids (including <pad> and <mask>), but {CONFIG_FILE} "
                f"has vocab_size = {size}. Replace it by the SentencePiece model that the model "
                "was trained with; models with added tokens cannot be converted."
            )
        return vocabulary

    def _check(self, types: int, architectures: tuple[str, ...]) -> None:
        """Checks the folder's tensors, and adds notes on what is not converted.

        Args:
          types: number of token types.
          architectures: classes that can be converted.

        Raises:
          FolderError: a tensor is missing, unexpected, or of wrong shape or type, or a duplicate
            differs from its original.
        """
        remaining = self._tensors.names()
        for weight in self.weights:
            for name, shape in zip(weight.names, weight.shapes):
                if name.endswith("token_type_embeddings.weight"):
                    shape = (types, *shape[1:])
                if name == self._prefix + _TOKENS:
                    shape = (self._token_rows, *shape[1:])
                self._check_tensor(name, shape)
                remaining.discard(name)
        unused = {
            name
            for name in remaining
            if name.removeprefix(self._prefix) in _UNUSED
            or (name.startswith(_RTD_HEAD) and "XLMEModel" in architectures)
        }
        if skipped := sorted(name for name in unused if not name.endswith("position_ids")):
            self.notes.append(f"skipped unused tensors: {', '.join(skipped)}")
        if types > 1:
            self.notes.append(f"kept only the first of {types} token types, the default of text")
        remaining -= unused
        copies = {
            **_COPIES,
            "lm_head.decoder.weight": self._prefix + _TOKENS,
        }
        for name, original in copies.items():
            if name in remaining:
                self._check_copy(name, original)
                remaining.discard(name)
        if remaining:
            name = min(remaining)
            raise FolderError(
                f"{self._tensors.header(name)[0]}: unexpected tensor {name}; only "
                f"{_listed(architectures)} can be converted, without task heads."
            )
        if not self.has_head:
            self.notes.append("initialized a new MLM head, as the model has none (lm_head.*)")

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises FolderError if a tensor is missing, or of another shape or an unknown type."""
        if name not in self._tensors.names():
            raise FolderError(
                f"{self.folder}: no safetensors file has the tensor {name}; the download is "
                "incomplete, or config.json belongs to another model."
            )
        file, actual, dtype = self._tensors.header(name)
        if actual != shape:
            raise FolderError(
                f"{file}: the tensor {name} has shape {actual}, but config.json implies {shape}. "
                "Use the files of one model."
            )
        if dtype not in _DTYPES:
            raise FolderError(
                f"{file}: the tensor {name} has type {dtype}; save the model in float32, float16 "
                "or bfloat16 (quantized models cannot be converted)."
            )

    def _check_copy(self, name: str, original: str) -> None:
        """Raises FolderError unless a duplicate equals its original in shape, type and values."""
        (file, *copied), (_, *expected) = map(self._tensors.header, (name, original))
        read = self._tensors.read
        if copied != expected or not np.array_equal(read(name), read(original)):
            raise FolderError(
                f"{file}: {name} differs from {original}; an untied MLM head cannot be converted. "
                "To start with a new head, save only the encoder: "
                "XLMRobertaModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)."
            )


class _Tensors:
    """Tensors of a folder's safetensors files; the constructor reads only their headers."""

    def __init__(self, folder: Path):
        self._headers: dict[str, tuple[Path, tuple[int, ...], str]] = {}
        for file in _weight_files(folder):
            with _opened(file) as opened:
                for name in opened.keys():  # noqa: SIM118  (not a mapping)
                    part = opened.get_slice(name)
                    self._headers[name] = file, tuple(part.get_shape()), part.get_dtype()

    def names(self) -> set[str]:
        """Returns the names of all tensors."""
        return set(self._headers)

    def header(self, name: str) -> tuple[Path, tuple[int, ...], str]:
        """Returns file, shape and type ("F32", ...) of a tensor."""
        return self._headers[name]

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor in the dtype of the file; bfloat16 is ml_dtypes' type."""
        with _opened(self._headers[name][0]) as opened:
            array: np.ndarray = opened.get_tensor(name)
        return array


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Yields an open safetensors file; FolderError if the file is damaged."""
    try:
        with safetensors.safe_open(file, framework="np") as opened:
            yield opened
    except safetensors.SafetensorError as error:
        raise FolderError(
            f"{file} is not a valid safetensors file ({error}); download it again."
        ) from error


def _weight_files(folder: Path) -> list[Path]:
    """Returns the single safetensors file, or the files that the index lists.

    Raises:
      FolderError: there is neither, the index is damaged, or a listed file is missing.
    """
    whole, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
    if whole.is_file():
        return [whole]
    if not index.is_file():
        pickled = [name for name in _PICKLED if (folder / name).exists()]
        note = f" {pickled[0]} is not read, since pickles can run code." if pickled else ""
        raise FolderError(
            f"{whole} is missing.{note} Download the model's safetensors file, or write it with "
            "transformers: XLMRobertaForMaskedLM.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise FolderError(
            f"{index}: weight_map must map each tensor to a file name; download it again."
        )
    files = []
    for name in sorted(set(names.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise FolderError(f"{index}: the file {name!r} is not in {folder}; download it too.")
        files.append(folder / name)
    return files


def _read_json(file: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; FolderError if it is missing, too large or no object."""
    if not file.is_file():
        raise FolderError(f"{file} is missing; download it from the model's repository.")
    try:
        if file.stat().st_size > _MAX_JSON:
            raise ValueError("it is too large")
        content = parse(file.read_bytes())
    except ValueError as error:
        raise FolderError(f"{file} is not JSON ({error}); download it again.") from error
    if not isinstance(content, dict):
        raise FolderError(f"{file} must contain a JSON object; download it again.")
    return content


def _read_config(file: Path) -> dict[str, Any]:
    """Returns the fields of config.json, with defaults for missing ones that are checked here.

    Raises:
      FolderError: the file is invalid, or the model is neither an XLM-R that the encoder supports
        nor an export.
    """
    config = {"type_vocab_size": 1, "layer_norm_eps": 1e-12, **_FIXED} | _read_json(file)
    kind = config.get("model_type")
    is_wordpiece = kind == "bert" and not (file.parent / TOKENIZER_FILE).is_file()
    if not isinstance(kind, str) or kind not in _ARCHITECTURES or is_wordpiece:
        reason = _OTHER_MODELS.get(str(kind))
        raise FolderError(
            f"{file}: model_type is {kind!r}"
            + (f" ({reason})" if reason else "")
            + "; only 'xlm-roberta', 'xlme', this project's exports, and 'bert' with XLM-R's "
            "vocabulary can be converted. Use XLM-R or a model with its layout."
        )
    supported = _ARCHITECTURES[kind]
    if unsupported := [name for name in config.get("architectures") or [] if name not in supported]:
        raise FolderError(
            f"{file}: architectures has {unsupported[0]!r}; only {_listed(supported)} can be "
            "converted. Save the model without its task head: "
            f"{supported[1]}.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)."
        )
    for name, value in _FIXED.items():
        if config[name] != value and not (kind == "bert" and name in _IDS):
            raise FolderError(
                f"{file}: {name} is {config[name]!r}, but the encoder only supports {value!r}; "
                "this model cannot be converted."
            )
    return config


def _listed(classes: tuple[str, ...]) -> str:
    return " and ".join(filter(None, classes))


def _encoder_config(file: Path, config: Mapping[str, Any], scan_layers: bool) -> EncoderConfig:
    """Returns the encoder of a configuration; FolderError if a field is missing or invalid."""
    for name in _SIZES:
        value = config.get(name)
        minimum = 3 if name == "max_position_embeddings" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise FolderError(
                f"{file}: {name} is {value!r}, but must be an integer of at least {minimum}; "
                "download the file again."
            )
    rates: dict[str, Any] = {}
    for ours, hf_name in (
        ("dropout", "hidden_dropout_prob"),
        ("attention_dropout", "attention_probs_dropout_prob"),
        ("init_std", "initializer_range"),
        ("layer_norm_eps", "layer_norm_eps"),
    ):
        value = config.get(hf_name, getattr(EncoderConfig, ours))
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise FolderError(f"{file}: {hf_name} is {value!r}, but must be a number.")
        rates[ours] = float(value)
    exported = config["model_type"] == "xlme"
    offset = POSITION_OFFSET if config["model_type"] == "xlm-roberta" else 0
    for name, kind in _OF_EXPORTS.items() if exported else ():
        value = config.get(name)
        if type(value) is not kind:
            raise FolderError(
                f"{file}: {name} is {value!r}, but must be of type {kind.__name__}; export the "
                "checkpoint again."
            )
        rates[name] = value
    try:
        return EncoderConfig(
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            ffn_size=config["intermediate_size"],
            max_length=config["max_position_embeddings"] - offset,
            scan_layers=scan_layers,
            **{"relative_bias": "none", **rates},
        )
    except ValueError as error:
        raise FolderError(f"{file}: {error}") from error
