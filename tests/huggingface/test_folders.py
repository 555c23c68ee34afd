import errno
import os
import subprocess
import sys

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


def test_a_second_writer_is_refused(tmp_path):
    output = tmp_path / "output"
    with new_folder(output) as partial:
        (partial / "file").write_text("first")
        refused = pytest.raises(ValueError, match=r"output: another process is writing it")
        with refused, new_folder(output):
            pass
        assert (partial / "file").read_text() == "first"
    with pytest.raises(ValueError, match=r"output already exists"), new_folder(output):
        pass
    assert (output / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_remains_of_a_killed_writer_are_removed(tmp_path):
    code = (
        "import os, pathlib; from xlme_jax.huggingface.folders import new_folder\n"
        f"with new_folder(pathlib.Path({str(tmp_path / 'output')!r})) as partial:\n"
        "    (partial / 'deep').mkdir(); (partial / 'deep' / 'old').touch(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert (tmp_path / ".output.partial" / "deep" / "old").exists()
    with new_folder(tmp_path / "output") as partial:
        (partial / "new").touch()
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["new"]
