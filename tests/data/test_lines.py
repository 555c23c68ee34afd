"""Lines keep their numbers."""

import pytest

from xlme_jax.data.text.lines import split_lines


def test_lines_keep_their_number():
    assert split_lines("a\r\n\nb\u2028c\n".encode(), "f") == ["a", "", "b\u2028c"]
    assert split_lines(b"a", "f") == ["a"]
    assert split_lines(b"", "f") == []


def test_damaged_text_is_refused():
    with pytest.raises(ValueError, match="f, line 2 is not UTF-8"):
        split_lines(b"a\n\xff\n", "f")
