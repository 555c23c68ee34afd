"""The ids every part of the project agrees on: XLM-R's (fairseq's) layout."""

BOS_ID = 0
PAD_ID = 1
EOS_ID = 2
UNK_ID = 3


def mask_id(vocab_size: int) -> int:
    """Id of `<mask>`: the last one."""
    return vocab_size - 1
