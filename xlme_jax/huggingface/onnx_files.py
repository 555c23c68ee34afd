"""Adds ONNX programs to an exported folder of sentence vectors.

PyTorch's exporter writes the program, ONNX Runtime's quantiser turns its weights to int8, and both
are run here, on texts of other lengths than the traced ones, before they count as written. (The
older exporter, by `torch.jit.trace`, fixes masks to the traced rows without an error.)
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from onnxruntime import quantization

from xlme_jax.huggingface import modeling_xlme
from xlme_jax.huggingface.sentence_vectors import Precision, SentenceVectors

PROGRAMS: dict[Precision, str] = {"float32": "model.onnx", "int8": "model_int8.onnx"}
FOLDER = "onnx"
INPUTS, OUTPUTS = ("input_ids", "attention_mask"), ("last_hidden_state", "sentence_embedding")
# Of a vector of length 1: some hundred times what float32 rounds off in 24 layers.
_TOLERANCE = 1e-4
# A protobuf file must be smaller than 2 GB.
_MOST_BYTES = 1_800_000_000
_log = logging.getLogger(__name__)


class _SentenceEncoder(torch.nn.Module):
    """The encoder with the pooling, centring and normalisation of `SentenceVectors`."""

    def __init__(self, encoder: torch.nn.Module, vectors: SentenceVectors):
        super().__init__()
        self.encoder = encoder
        self.pooling = vectors.options.pooling
        width: Any = encoder.config.hidden_size  # type: ignore[union-attr]
        centre = np.zeros(width, "f4") if vectors.centre is None else vectors.centre
        self.register_buffer("centre", torch.from_numpy(centre))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        """Returns the last layer's states [B, L, D] and the vectors [B, D] of rows [B, L]."""
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        hidden = output.last_hidden_state
        if self.pooling == "first":
            pooled = hidden[:, 0]
        else:
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weight).sum(1) / weight.sum(1)
        return hidden, torch.nn.functional.normalize(pooled - self.centre, dim=-1)


def add(folder: Path, vectors: SentenceVectors) -> None:
    """Writes the programs of an exported folder into its folder "onnx".

    The inputs are `input_ids` and `attention_mask`, int64[B, L]; the outputs `last_hidden_state`,
    float32[B, L, D], and `sentence_embedding`, float32[B, D].

    Args:
      folder: the exported folder, complete but for the programs.
      vectors: how its states become a vector, and the types of the programs' weights.

    Raises:
      ValueError: a program does not give the vectors of PyTorch.
    """
    # The code in a folder of XLM-E is a copy of ours, so that none needs to be trusted.
    has_code = (folder / "modeling_xlme.py").is_file()
    kind: Any = modeling_xlme.XLMEModel if has_code else transformers.AutoModel
    # The exporter breaks PyTorch's fused attention where a bias needs a gradient, as XLM-E's does.
    encoder = kind.from_pretrained(folder, attn_implementation="eager")
    model = _SentenceEncoder(encoder, vectors).train(False)
    size = sum(parameter.nbytes for parameter in model.parameters())
    (folder / FOLDER).mkdir()
    program = folder / FOLDER / PROGRAMS["float32"]
    axes = {0: "batch", 1: "tokens"}
    torch.onnx.export(
        model,
        _rows(encoder.config.vocab_size, (7, 5)),
        program,
        input_names=INPUTS,
        output_names=OUTPUTS,
        dynamic_shapes=dict.fromkeys(INPUTS, axes),
        dynamo=True,
        external_data=size > _MOST_BYTES,
        verbose=False,
    )
    rows = _rows(encoder.config.vocab_size, (3, 12, 8))
    with torch.no_grad():
        expected = model(*rows)[1].numpy()
    difference = np.abs(_run(program, rows) - expected).max()
    if not difference < _TOLERANCE:
        raise ValueError(
            f"--onnx: {program.name} differs from PyTorch's vectors by {difference:.2g}: torch "
            f"{torch.__version__} does not export this encoder; try another release"
        )
    _log.info("%s: differs from PyTorch's vectors by %.1g at most", program.name, difference)
    if "int8" in vectors.options.onnx:
        quantised = folder / FOLDER / PROGRAMS["int8"]
        logging.disable(logging.INFO)  # The quantiser logs every tensor it leaves.
        try:
            int8 = quantization.QuantType.QInt8
            quantization.quantize_dynamic(program, quantised, weight_type=int8)
        finally:
            logging.disable(logging.NOTSET)
        cosines = (_run(quantised, rows) * expected).sum(axis=1)
        _log.info("%s: least cosine with PyTorch's vectors %.3f", quantised.name, cosines.min())
    if "float32" not in vectors.options.onnx:
        for file in (folder / FOLDER).glob(f"{program.name}*"):
            file.unlink()


def _rows(vocab_size: int, lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of random tokens of these lengths, and their mask, int64[B, L] each."""
    rng = np.random.default_rng(0)
    shape = len(lengths), max(lengths)
    mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int64)
    tokens = np.where(mask, rng.integers(4, vocab_size - 1, shape), 1)
    return torch.from_numpy(tokens), torch.from_numpy(mask)


def _run(program: Path, rows: tuple[torch.Tensor, torch.Tensor]) -> np.ndarray:
    """Returns the vectors of rows, float32[B, D]."""
    session = onnxruntime.InferenceSession(program, providers=["CPUExecutionProvider"])
    feed = {name: tensor.numpy() for name, tensor in zip(INPUTS, rows)}
    vectors: np.ndarray = session.run(["sentence_embedding"], feed)[0]
    return vectors
