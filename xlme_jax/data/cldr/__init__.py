"""Embedded parallel corpus of phrases generated from Unicode CLDR in 94 languages."""

from xlme_jax.data.cldr.corpus import (
    KINDS,
    VERSION,
    CldrConfig,
    Phrase,
    available_kinds,
    documents,
    pairs,
    words,
)
from xlme_jax.data.cldr.phrasing import WITHOUT_CLDR, Message, Speaker

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
