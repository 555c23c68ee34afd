"""The lengths of rows that hold one text each.

There are few lengths, because every shape is compiled. Neighbouring lengths are close, because
padding costs as much as text.
"""

# Training does not shorten rows of labelled examples further: a compilation would cost more than it
# saves.
SHORTEST_LABELLED = 32


def row_length(tokens: int, shortest: int = 8) -> int:
    """Returns the length of a row for a text, at least `shortest` tokens.

    Lengths are multiples of 8 up to 64, and then four per doubling (80, 96, 112, 128, 160, ...): 20
    up to 512 tokens.
    """
    tokens = max(tokens, shortest)
    step = max(8, 1 << max((tokens - 1).bit_length() - 3, 0))
    return -(-tokens // step) * step
