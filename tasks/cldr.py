"""Tasks of the embedded corpus: `cldr_<lang>` (documents), `cldr_bitext_<lang>_<lang>` (pairs).

Mixtures: `cldr` (documents) and `cldr_bitext`. Text is generated when it is read.
"""

from __future__ import annotations

import os

from tasks import features, mixtures, registration
from xlme_jax.preparation.cldr_source import find_cldr
from xlme_jax.preparation.prepare_config import CldrCorpus


def register(
    corpus: CldrCorpus,
    vocabulary: str | os.PathLike[str] | features.XlmVocabulary | None = None,
    alpha: float = mixtures.DEFAULT_ALPHA,
) -> list[str]:
    """Registers the tasks and mixtures; generates no text.

    Args:
      corpus: Languages, phrases and sizes.
      vocabulary: See `tasks.features.as_vocabulary`.
      alpha: Exponent of the mixtures' rates.

    Returns:
      Names of the mixtures: "cldr" and, with two languages or more, "cldr_bitext".
    """
    return registration.register(find_cldr(corpus), vocabulary, alpha)
