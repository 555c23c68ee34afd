import os

from xlme_jax.storage.caches import trim


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_used_last_is_kept(tmp_path):
    for age, name in enumerate(["a-cache", "b-cache", "c-cache", "d-cache"]):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 500))  # Read at 1000 - age, written at 500.
    os.utime(tmp_path / "d-cache", (1, 2000))  # Written later than it was ever read.
    (tmp_path / "choices").write_bytes(b"x" * 100)
    trim(tmp_path, "*-cache", most_bytes=40)
    assert names(tmp_path) == ["a-cache", "b-cache", "c-cache", "choices", "d-cache"]
    trim(tmp_path, "*-cache", most_bytes=29)
    assert names(tmp_path) == ["a-cache", "choices", "d-cache"]


def test_a_folder_that_cannot_be_trimmed_stops_nothing(tmp_path, caplog, monkeypatch):
    trim(tmp_path / "missing", "*")
    (tmp_path / "a").write_bytes(b"x")

    def refuse(*_, **__):
        raise PermissionError("no")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    trim(tmp_path, "*", most_bytes=0)
    assert "could not be trimmed: no" in caplog.text
    assert (tmp_path / "a").exists()
