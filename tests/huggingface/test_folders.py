import errno
import os

import pytest

from xlme_jax.huggingface.folders import new_folder


@pytest.mark.parametrize("refused", [False, True])
def test_a_folder_appears_when_it_is_complete(tmp_path, monkeypatch, refused):
    if refused:

        def refuse(source, target):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(source))

        monkeypatch.setattr(os, "replace", refuse)
    output = tmp_path / "output"
    output.mkdir()
    with pytest.raises(KeyError), new_folder(output) as partial:
        (partial / "config.json").write_text("{}")
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["output"] and not any(output.iterdir())
    with new_folder(output) as partial:
        (partial / "deep").mkdir()
        (partial / "deep" / "file").write_text("1")
        assert not any(output.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    assert (output / "deep" / "file").read_text() == "1"
