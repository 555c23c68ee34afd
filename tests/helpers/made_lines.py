"""Lines of made-up words in three languages, of which two share syllables."""

import random

SYLLABLES = {
    "en": ["the", "cat", "sat", "mat", "ing", "er", "on", "st"],
    "el": ["και", "το", "μου", "ρα", "σεν", "πω", "γρα", "νη"],
    # Shares half of its syllables with English.
    "sw": ["ka", "to", "mi", "ru", "ing", "er", "on", "st"],
}


def lines_of(language, count, seed=0):
    """Returns `count` lines of 8 words of a language; another seed draws other lines."""
    rng = random.Random(language)
    words = ["".join(rng.choices(SYLLABLES[language], k=3)) for _ in range(300)]
    rng = random.Random(f"{language}{seed}")
    return [" ".join(rng.choices(words, k=8)) for _ in range(count)]
