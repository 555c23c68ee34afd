"""Lines keep their numbers."""

import pytest

from xlme_jax.data.text.lines import in_one_line, split_lines


def test_lines_keep_their_number():
    assert split_lines("a\r\n\nb\u2028c\n".encode(), "f") == ["a", "", "b\u2028c"]
    assert split_lines(b"a", "f") == ["a"]
    assert split_lines(b"", "f") == []


def test_a_text_of_several_lines_is_written_as_one():
    texts = ["a\r\nb", "c\rd\n", "e\u2028f"]
    written = "".join(f"{in_one_line(text)}\n" for text in texts)
    assert split_lines(written.encode(), "f") == ["a  b", "c d ", "e\u2028f"]


def test_damaged_text_is_refused():
    with pytest.raises(ValueError, match=r"f, line 2 is not UTF-8: .*; convert the file by"):
        split_lines(b"a\n\xff\n", "f")
