import hashlib
import os

import pytest

from xlme_jax.data.prepared.format import FileInfo, PreparedDataError
from xlme_jax.data.prepared.local_copies import LocalCopies


@pytest.fixture
def files(tmp_path):
    """Returns three files of 1,000 bytes in tmp_path/source."""
    (tmp_path / "source").mkdir()
    found = []
    for number in range(3):
        content = bytes([number]) * 1000
        (tmp_path / "source" / f"{number}").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        found.append(FileInfo(f"{number}", 1, 1, 1000, digest))
    return found


def copies(tmp_path, count=10):
    return LocalCopies(tmp_path / "source", str(tmp_path / "cache"), count * 1000 / 1e9)


def test_files_are_copied_once(tmp_path, files):
    assert copies(tmp_path).find(files[0]) == tmp_path / "source" / "0"
    assert copies(tmp_path).copy(files) == files
    for file in files:
        (tmp_path / "source" / file.file).unlink()
    again = copies(tmp_path)
    assert again.copy(files) == files
    assert [again.find(f).read_bytes()[0] for f in files] == [0, 1, 2]


def test_a_damaged_copy_is_replaced(tmp_path, files):
    copies(tmp_path).copy(files)
    place = copies(tmp_path).find(files[1])
    place.write_bytes(b"\1" * 999 + b"\0")
    copies(tmp_path).copy(files, verify=False)
    assert place.read_bytes()[-1] == 0
    copies(tmp_path).copy(files)
    assert place.read_bytes() == b"\1" * 1000


def test_a_damaged_source_is_named(tmp_path, files):
    (tmp_path / "source" / "1").write_bytes(b"\1" * 999 + b"\0")
    with pytest.raises(PreparedDataError, match=r"source/1 is damaged \(SHA-256 differs\)"):
        copies(tmp_path).copy(files)
    assert not list((tmp_path / "cache").glob("*partial"))


def test_the_size_is_bounded(tmp_path, files, caplog):
    limited = copies(tmp_path, count=2)
    assert limited.copy(files) == files[:2]
    assert "the rest is read from the bucket" in caplog.text
    assert limited.find(files[2]) == tmp_path / "source" / "2"
    assert copies(tmp_path, count=0).copy(files) == []


def test_unused_copies_make_room(tmp_path, files):
    copies(tmp_path).copy(files)
    os.utime(copies(tmp_path).find(files[0]), (0, 0))
    content = b"x" * 1000
    (tmp_path / "source" / "new").write_bytes(content)
    new = FileInfo("new", 1, 1, 1000, hashlib.sha256(content).hexdigest())
    limited = copies(tmp_path, count=3)
    assert limited.copy([new]) == [new]
    kept = [limited.find(file).parent.name for file in [*files, new]]
    assert kept == ["source", "cache", "cache", "cache"]
