"""The files that make `AutoTokenizer` give our token ids.

transformers' own class for XLM-R rebuilds a tokenizer from the pieces and drops byte fallback,
which vocabularies trained here have. So `tokenizer.json` holds the whole tokenizer, in the format
of the `tokenizers` package, under the class that takes such a file as it is.
"""

import base64
import json
from typing import Any

import sentencepiece

from xlme_jax.data.vocabulary import MASK_PIECE, SPECIAL_PIECES, Vocabulary
from xlme_jax.token_ids import UNK_ID

_SPECIAL = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": MASK_PIECE,
}
# Fields of SentencePiece's ModelProto, TrainerSpec and NormalizerSpec.
_TRAINER, _NORMALIZER = 2, 3
_MODEL_TYPE, _UNIGRAM = 3, 1
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE = 2, 3, 4, 5


def tokenizer_files(vocabulary: Vocabulary, max_length: int | None) -> dict[str, bytes]:
    """The files by name, the SentencePiece model among them.

    Args:
      vocabulary: whose ids they are to give.
      max_length: of a text in tokens; None without limit.

    Raises:
      ValueError: the SentencePiece model cannot be expressed.
    """
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **_SPECIAL,
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    return {
        "sentencepiece.bpe.model": vocabulary.model,
        "tokenizer.json": _json(_tokenizer(vocabulary)),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(_SPECIAL),
    }


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def _tokenizer(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of tokenizer.json."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    charsmap = _charsmap(vocabulary)
    # Our id is SentencePiece's + 1 from the fourth piece on.
    pieces = [(piece, 0.0) for piece in SPECIAL_PIECES]
    pieces += [
        (processor.id_to_piece(i), processor.get_score(i))
        for i in range(len(SPECIAL_PIECES) - 1, processor.get_piece_size())
    ]
    pieces += [(MASK_PIECE, 0.0)]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    decoders = [{"type": "ByteFallback"}, metaspace]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _special(vocabulary.piece_to_id(piece), piece)
            for piece in (*SPECIAL_PIECES, MASK_PIECE)
        ],
        "normalizer": charsmap and {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
        },
        "post_processor": _template(vocabulary),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "Unigram",
            "unk_id": UNK_ID,
            "vocab": pieces,
            "byte_fallback": any(processor.is_byte(i) for i in range(processor.get_piece_size())),
        },
    }


def _special(token: int, piece: str) -> dict[str, Any]:
    return {
        "id": token,
        "content": piece,
        "single_word": False,
        # The space before a mask belongs to the word that it hides.
        "lstrip": piece == MASK_PIECE,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _template(vocabulary: Vocabulary) -> dict[str, Any]:
    """`<s> a </s>`, and for pairs `<s> a </s> b </s>`, as rows are laid out in training."""
    begin, end = ({"SpecialToken": {"id": piece, "type_id": 0}} for piece in ("<s>", "</s>"))
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [begin, first, end],
        "pair": [begin, first, end, second, end],
        "special_tokens": {
            piece: {"id": piece, "ids": [vocabulary.piece_to_id(piece)], "tokens": [piece]}
            for piece in ("<s>", "</s>")
        },
    }


def _charsmap(vocabulary: Vocabulary) -> str | None:
    """How characters are normalised, in base64; ValueError if the model is unlike XLM-R's."""
    model = _fields(vocabulary.model)
    normalizer = _fields(model.get(_NORMALIZER, b""))
    kind = _fields(model.get(_TRAINER, b"")).get(_MODEL_TYPE, _UNIGRAM)
    spaces = [normalizer.get(field, 1) for field in (_DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE)]
    if kind != _UNIGRAM or spaces != [1, 1, 1]:
        raise ValueError(
            f"{vocabulary.path or 'The vocabulary'}: only unigram models with a space put before "
            "the text and runs of spaces made one can be exported, as XLM-R's and those of "
            "`python -m xlme_jax.train_vocabulary` are."
        )
    charsmap = normalizer.get(_CHARSMAP, b"")
    return base64.b64encode(charsmap).decode() if charsmap else None


def _fields(message: bytes) -> dict[int, Any]:
    """Fields of a protobuf message by number, of repeated ones the last."""
    found: dict[int, Any] = {}
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            found[number] = varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        found[number] = message[place : place + size]
        place += size
    return found
