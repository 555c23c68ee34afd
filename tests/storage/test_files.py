import errno
import os
import pathlib
import threading

import pytest

from xlme_jax.storage import files
from xlme_jax.storage.files import move_folder, renames_folders, replace_file, sync_folder
from xlme_jax.storage.paths import as_path


def refuse_folders(monkeypatch):
    allowed = os.rename, os.replace

    def refusing(rename):
        def renamed(source, target):
            if os.path.isdir(source) and os.listdir(source):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(source))
            rename(source, target)

        return renamed

    monkeypatch.setattr(os, "rename", refusing(allowed[0]))
    monkeypatch.setattr(os, "replace", refusing(allowed[1]))


def written(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "er" / "weights").write_bytes(b"w")
    return folder


def contents(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_renaming_folders_is_tried_and_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / ".rename-probe" / "left").mkdir(parents=True)
    assert renames_folders(tmp_path)
    refuse_folders(monkeypatch)
    assert not renames_folders(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not renames_folders(as_path("gs://bucket/folder"))


def test_mounts_of_fuse_are_not_tried(tmp_path, monkeypatch):
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = [
        f"1 0 8:1 / / rw - ext4 /dev/x rw\n7 1 {number} / /m rw shared:1 - fuse.gcsfuse b rw\n"
    ]
    monkeypatch.setattr(pathlib.Path, "read_text", lambda self: lines[0])
    assert not renames_folders(tmp_path)
    lines[0] = lines[0].replace("fuse.gcsfuse", "nfs4")
    assert renames_folders(tmp_path)


@pytest.mark.parametrize("refused", [False, True])
def test_folders_are_moved_or_copied(tmp_path, monkeypatch, refused):
    source = written(tmp_path / "source")
    expected = contents(source)
    copied, copy = [], files.copy_file
    monkeypatch.setattr(files, "copy_file", lambda a, b: copied.append(b.name) or copy(a, b))
    if refused:
        refuse_folders(monkeypatch)
    (tmp_path / "target").mkdir()
    move_folder(source, tmp_path / "target")
    assert contents(tmp_path / "target") == expected and not source.exists()
    assert copied == (["weights", "config.json"] if refused else [])
    with pytest.raises(OSError, match="not empty"):
        move_folder(written(source), tmp_path / "target")
    assert contents(source) == expected


def test_of_two_writers_none_shows_parts_of_both(tmp_path):
    file, ended = tmp_path / "deep" / "file", threading.Event()
    texts = [bytes([digit]) * 50_000 for digit in b"01"]
    errors = []

    def write(text):
        try:
            for _ in range(100):
                replace_file(file, text)
        except OSError as error:
            errors.append(error)

    def read():
        while not ended.is_set():
            if file.exists() and file.read_bytes() not in texts:
                errors.append("torn")

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert not errors and file.read_bytes() in texts
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_keeps_its_content(tmp_path, monkeypatch):
    file = tmp_path / "file"
    replace_file(file, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
        sync_folder(tmp_path)
