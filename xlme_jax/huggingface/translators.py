"""Writes a translator as a folder of Hugging Face's `EncoderDecoderModel`.

Encoder and decoder are XLM-R's classes, so `AutoModelForSeq2SeqLM` loads the folder without code of
its own. A language is a token `<2fr>` of the decoder, whose embedding is that of `<s>` plus the
language's. A translation begins with this token (`decoder_start_token_id`), which the model never
predicts.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from xlme_jax.data.token_ids import BOS_ID, EOS_ID, PAD_ID
from xlme_jax.data.vocabulary import Vocabulary
from xlme_jax.huggingface.config_json import hf_config
from xlme_jax.huggingface.model_card import tokenizer_section
from xlme_jax.huggingface.model_index import front_matter
from xlme_jax.huggingface.tokenizer import tokenizer_files
from xlme_jax.huggingface.weights import WeightLayout, has_form_of_xlmr, to_tensors
from xlme_jax.objectives.translator import LANGUAGES, Translate
from xlme_jax.runs.trained import LoadedRun

# The bias of tokens that are never predicted.
_NEVER = -1e9


@dataclasses.dataclass(frozen=True)
class Folder:
    """The content of an exported folder.

    Attributes:
      files: {name: content} of all files but the weights.
      tensors: {name: weight}.
    """

    files: Mapping[str, bytes]
    tensors: dict[str, np.ndarray]


def folder(loaded: LoadedRun, name: str, command: str) -> Folder:
    """Returns the content of a translator's folder.

    Args:
      loaded: a checkpoint of `objectives.translator`.
      name: name of the model, for its card.
      command: the command line, for its card.

    Raises:
      ValueError: XLM-R's classes cannot express the encoder.
    """
    objective: Translate = loaded.objective  # type: ignore[assignment]
    config = objective.config
    if not has_form_of_xlmr(config.encoder):
        raise ValueError(
            f"{loaded.folder}: Hugging Face's encoder-decoder has no pre_norm and needs absolute "
            "positions; only such translators can be exported."
        )
    content, tensors = model(objective, loaded.params)
    marks = {f"<2{language}>": token for language, token in content["language_token_ids"].items()}
    files = tokenizer_files(loaded.vocabulary, config.encoder.max_length, marks)
    files["config.json"] = _json(content)
    files["generation_config.json"] = _json(_generation(config.encoder.max_length))
    card = _card(name, loaded.folder, config.languages, loaded.vocabulary, command)
    files["README.md"] = card.encode()
    return Folder(files, tensors)


def model(objective: Translate, params: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the content of config.json and {name: weight}.

    Args:
      objective: the translator.
      params: the translator's parameters.
    """
    config, size = objective.config, objective.vocab_size
    encoder = WeightLayout(config.encoder, size, None, True, "encoder.")
    decoder = WeightLayout(config.decoder, size, "mlm", True, "decoder.roberta.", cross=True)
    tokens = {language: size + n for n, language in enumerate(config.languages)}
    tensors = _tensors(objective, jax.device_get(params), encoder, decoder)
    return _config(encoder, decoder, tokens), tensors


def _tensors(
    objective: Translate, params: Any, encoder: WeightLayout, decoder: WeightLayout
) -> dict[str, np.ndarray]:
    """Returns {name: weight} of encoder and decoder, with rows for the tokens of languages."""
    tensors = to_tensors(encoder.weights(), objective.encoder.params(params))
    weights = objective.decoder_params(params)
    for name, tensor in to_tensors(decoder.weights(), weights).items():
        tensors[name if name.startswith("decoder.") else f"decoder.{name}"] = tensor
    languages = np.asarray(params[LANGUAGES])[1:]
    table = "decoder.roberta.embeddings.word_embeddings.weight"
    tensors[table] = np.concatenate([tensors[table], tensors[table][BOS_ID] + languages])
    bias = np.full(len(languages), _NEVER, np.float32)
    tensors["decoder.lm_head.bias"] = np.concatenate([tensors["decoder.lm_head.bias"], bias])
    # Without this copy, transformers 4 loads the model with a bias of zeros.
    tensors["decoder.lm_head.decoder.bias"] = tensors["decoder.lm_head.bias"]
    return tensors


def _config(
    encoder: WeightLayout, decoder: WeightLayout, tokens: Mapping[str, int]
) -> dict[str, Any]:
    """Returns the content of config.json, where `tokens` has the token id of each language."""
    sides = {"encoder": hf_config(encoder), "decoder": hf_config(decoder)}
    sides["decoder"] |= {
        "architectures": ["XLMRobertaForCausalLM"],
        "vocab_size": decoder.vocab_size + len(tokens),
        "is_decoder": True,
        "add_cross_attention": True,
    }
    return {
        "architectures": ["EncoderDecoderModel"],
        "model_type": "encoder-decoder",
        "is_encoder_decoder": True,
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "language_token_ids": dict(tokens),
        **sides,
    }


def _generation(max_length: int) -> dict[str, Any]:
    """Returns the content of generation_config.json: the defaults of `xlme_jax.translate`."""
    ids = {"bos_token_id": BOS_ID, "pad_token_id": PAD_ID, "eos_token_id": EOS_ID}
    return {**ids, "num_beams": 5, "max_length": max_length}


def _card(
    name: str, checkpoint: Path, languages: Sequence[str], vocabulary: Vocabulary, command: str
) -> str:
    """Returns the text of the model card; `command` is the command line of the export."""
    header = ["language:", *(f"- {json.dumps(language)}" for language in languages)]
    header += ["library_name: transformers", "pipeline_tag: translation"]
    metadata = "\n".join([*header, *front_matter(name, checkpoint)])
    return f"""---
{metadata}
---

# {name}

A translator between {", ".join(languages)}, exported by xlme_jax after {checkpoint.name} steps:
`{command}`. A translation begins with the token of its language:

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("{name}").eval()
tokenizer = AutoTokenizer.from_pretrained("{name}")
start = model.config.language_token_ids["{languages[-1]}"]
inputs = tokenizer(["A sentence."], return_tensors="pt", padding=True)
found = model.generate(**inputs, decoder_start_token_id=start)
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```

{tokenizer_section(vocabulary)}
"""


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
