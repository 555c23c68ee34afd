"""The special token ids, in the layout of XLM-R (fairseq)."""

BOS_ID = 0
PAD_ID = 1
EOS_ID = 2
UNK_ID = 3
# Not an id: the label of tokens for which nothing is predicted.
IGNORED = -100


def mask_id(vocab_size: int) -> int:
    """Returns the id of `<mask>`, the last one."""
    return vocab_size - 1
