"""Writes tokenizer files with which `AutoTokenizer` returns our token ids.

transformers' own class for XLM-R rebuilds a tokenizer from the pieces and drops byte fallback,
which vocabularies trained here have. So `tokenizer.json` holds the whole tokenizer in the format of
the `tokenizers` package, and the tokenizer class is one that loads this file unchanged.
"""

import json
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from xlme_jax.data.token_ids import UNK_ID
from xlme_jax.data.vocabulary import MASK_PIECE, SPECIAL_PIECES, Vocabulary
from xlme_jax.huggingface.normalizer import Normalizer, normalizer

_SPECIAL = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": MASK_PIECE,
}
# Writes a space as "▁", and begins every word with one.
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
_pb2: Any = sentencepiece_model_pb2  # Its classes are made when it is imported.
_PIECE = _pb2.ModelProto.SentencePiece
# Characters at which `tokenizers` splits words.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
_WHITE_SPACE += "\u2028\u2029\u202f\u205f\u3000"


def tokenizer_files(
    vocabulary: Vocabulary,
    max_length: int | None,
    marks: Mapping[str, int] = types.MappingProxyType({}),
) -> dict[str, bytes]:
    """Returns {name: content} of the tokenizer's files, with the SentencePiece model.

    Args:
      vocabulary: the vocabulary whose ids the tokenizer must return.
      max_length: maximum tokens of a text; None for no limit.
      marks: further special tokens, {token: id}; their ids follow those of the vocabulary.

    Raises:
      ValueError: the SentencePiece model cannot be expressed as a `tokenizers` file.
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
        "tokenizer.json": _json(_tokenizer(vocabulary, marks)),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(_SPECIAL),
    }


def differences(vocabulary: Vocabulary) -> list[str]:
    """Returns descriptions of all texts for which `tokenizer.json` and SentencePiece may differ."""
    normalization = _normalization(vocabulary)
    special = ", ".join(f"`{piece}`" for piece in (*SPECIAL_PIECES, MASK_PIECE))
    texts = [f"the special tokens, {special}: SentencePiece reads them as any other text"]
    if normalization.removed:
        points = " and ".join(map(_point, normalization.removed))
        texts.append(f"{points}, which are no characters: `tokenizer.json` removes them")
    if normalization.decomposed:
        points = ", ".join(map(_point, normalization.decomposed))
        texts.append(
            f"decomposed forms of {len(normalization.decomposed)} characters that "
            f"`tokenizer.json` does not compose: {points}"
        )
    texts.append(
        "words with several best segmentations, whose scores are equal up to rounding: "
        "SentencePiece adds scores in single precision, `tokenizer.json` in double"
    )
    return texts


def _point(character: str) -> str:
    """Returns the Unicode notation of a character, such as U+00E9."""
    return f"U+{ord(character):04X}"


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def _tokenizer(vocabulary: Vocabulary, marks: Mapping[str, int]) -> dict[str, Any]:
    """Returns the content of tokenizer.json; see `tokenizer_files`."""
    proto = _proto(vocabulary)
    pieces = list(_pieces(vocabulary, proto))
    specials = {x: vocabulary.piece_to_id(x) for x in (*SPECIAL_PIECES, MASK_PIECE)} | dict(marks)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(token, piece) for piece, token in specials.items()],
        **_words(vocabulary, pieces),
        "post_processor": _template(vocabulary),
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, _METASPACE]},
        "model": {
            "type": "Unigram",
            "unk_id": UNK_ID,
            "vocab": pieces,
            "byte_fallback": any(piece.type == _PIECE.BYTE for piece in proto.pieces),
        },
    }


def _words(vocabulary: Vocabulary, pieces: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Returns how a text becomes words: the "normalizer" and the "pre_tokenizer" of tokenizer.json.

    Args:
      vocabulary: the vocabulary.
      pieces: its (piece, score).
    """
    steps = list(_normalization(vocabulary).steps)
    splitter: dict[str, Any] | None = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, _METASPACE],
    }
    if not _splits_at_white_space(vocabulary, pieces):
        # The whole text is one word, so that the normalizer has to treat its spaces. SentencePiece
        # also takes a "▁" at the end of a text for a space.
        steps += [_replace(r"\A +|[ ▁]+\z", ""), _replace(" +", "▁")]
        steps.append({"type": "Prepend", "prepend": "▁"})
        splitter = None
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": splitter,
    }


def _pieces(vocabulary: Vocabulary, proto: Any) -> Iterator[tuple[str, float]]:
    """Yields (piece, score) in the order of our ids.

    Raises:
      ValueError: a piece cannot be expressed in `tokenizer.json`.
    """
    whole = _whole_normalizer(vocabulary)
    yield from ((piece, 0.0) for piece in SPECIAL_PIECES)
    # Our id is SentencePiece's + 1 from the fourth piece on.
    for entry in proto.pieces[len(SPECIAL_PIECES) - 1 :]:
        piece, score = entry.piece, entry.score
        if entry.type in (_PIECE.CONTROL, _PIECE.UNUSED):
            # SentencePiece never produces these pieces. A piece with a space never matches, since
            # all spaces become "▁". The lowest score sets that of <unk>, and must not be this one.
            piece = f" {piece}"
            score = 0.0
        elif entry.type == _PIECE.USER_DEFINED and whole.normalize(piece) != f"▁{piece}":
            raise ValueError(
                f"{_name(vocabulary)}: user_defined_symbols has {piece!r}, which only "
                "SentencePiece exempts from normalization. Use a vocabulary without this symbol."
            )
        yield piece, score
    yield MASK_PIECE, 0.0


def _special(token: int, piece: str) -> dict[str, Any]:
    """Returns the entry of a special token in `added_tokens`."""
    return {
        "id": token,
        "content": piece,
        "single_word": False,
        # The space before a mask belongs to the masked word.
        "lstrip": piece == MASK_PIECE,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _template(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the template `<s> a </s>`, for pairs `<s> a </s> b </s>`, as in training rows."""
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


def _splits_at_white_space(vocabulary: Vocabulary, pieces: Iterable[tuple[str, float]]) -> bool:
    """Returns whether all white space splits words and no piece spans two words, as in XLM-R.

    It is False for models that were trained with `split_by_whitespace=False`, and where
    normalization keeps other white space than spaces, such as tabs.
    """
    # Pieces with two spaces in a row never match a text.
    if any("▁" in piece[1:] and "▁▁" not in piece for piece, _ in pieces):
        return False
    whole = _whole_normalizer(vocabulary)
    return all(whole.normalize(f"a{space}b") == "▁a▁b" for space in _WHITE_SPACE)


def _whole_normalizer(vocabulary: Vocabulary) -> sentencepiece.SentencePieceNormalizer:
    """Returns SentencePiece's own normalization, that of spaces included."""
    return sentencepiece.SentencePieceNormalizer(
        model_proto=vocabulary.model,
        add_dummy_prefix=True,
        escape_whitespaces=True,
        remove_extra_whitespaces=True,
    )


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _name(vocabulary: Vocabulary) -> str:
    return vocabulary.path or "The vocabulary"


def _normalization(vocabulary: Vocabulary) -> Normalizer:
    """Returns the character normalization; ValueError if the model is unlike XLM-R's."""
    charsmap = _charsmap(vocabulary)
    if not charsmap:
        return Normalizer((), "", ())
    entries = _proto(vocabulary).pieces
    exempt = [entry.piece for entry in entries if entry.type == _PIECE.USER_DEFINED]
    return normalizer(charsmap, [entry.piece for entry in entries], exempt)


def _proto(vocabulary: Vocabulary) -> Any:
    return _pb2.ModelProto.FromString(vocabulary.model)


def _charsmap(vocabulary: Vocabulary) -> bytes:
    """Returns the precompiled character normalization, empty if there is none.

    Raises:
      ValueError: the model is unlike XLM-R's.
    """
    proto = _proto(vocabulary)
    trainer, specified = proto.trainer_spec, proto.normalizer_spec
    spaces = (
        specified.add_dummy_prefix,
        specified.remove_extra_whitespaces,
        specified.escape_whitespaces,
    )
    if trainer.model_type != _pb2.TrainerSpec.UNIGRAM or not all(spaces):
        raise ValueError(
            f"{_name(vocabulary)}: only unigram models that prepend a space to the text and "
            "collapse runs of spaces can be exported, such as XLM-R's and those of `python -m "
            "xlme_jax.train_vocabulary`."
        )
    if trainer.treat_whitespace_as_suffix:
        raise ValueError(
            f"{_name(vocabulary)}: treat_whitespace_as_suffix is set, which Hugging Face's "
            "tokenizers do not support. Use a vocabulary without it, such as those of "
            "`python -m xlme_jax.train_vocabulary`."
        )
    charsmap: bytes = specified.precompiled_charsmap
    return charsmap
