"""Embedded parallel corpus of phrases generated from Unicode CLDR in 94 languages."""

from xlme_jax.data.cldr.corpus import (
    VERSION,
    Phrase,
    available_kinds,
    documents,
    pairs,
    words,
)
from xlme_jax.data.cldr.phrasing import Message, Speaker
from xlme_jax.data.cldr_config import KINDS, WITHOUT_CLDR, CldrConfig

__all__ = [
    "KINDS",
    "VERSION",
    "WITHOUT_CLDR",
    "CldrConfig",
    "Message",
    "Phrase",
    "Speaker",
    "available_kinds",
    "documents",
    "pairs",
    "words",
]
