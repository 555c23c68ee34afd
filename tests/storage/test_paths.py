import pathlib
import pickle
import types

import pytest
from helpers import tiny

from xlme_jax.data.prepared import PreparedDataError, PreparedDataset
from xlme_jax.storage.bucket_paths import BucketPath
from xlme_jax.storage.buckets import file_system, keep_listings
from xlme_jax.storage.files import copy_file, local_folder, remove_folder, replace_file
from xlme_jax.storage.mirrors import Mirror
from xlme_jax.storage.paths import as_path, is_bucket


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_local_paths_stay_as_they_are():
    assert type(as_path("runs/a")) is type(pathlib.Path("runs/a"))
    assert as_path("a:b/c") == pathlib.Path("a:b/c")
    assert not is_bucket("runs/gs:/a")


@pytest.mark.parametrize("text", ["s3://b/x", "gs:/b/x", "gs:///x", "hdfs://b/x", "file:/x"])
def test_other_schemes_are_refused(text):
    with pytest.raises(ValueError, match=f"^{text}: only local paths and gs://BUCKET"):
        as_path(text)


def test_paths_keep_their_kind():
    path = as_path("gs://bucket/a/b.txt")
    assert str(path) == "gs://bucket/a/b.txt" == str(as_path(path).absolute())
    for other in (path / "c", path.parent, path.with_name("c"), pickle.loads(pickle.dumps(path))):
        assert isinstance(other, BucketPath) and str(other).startswith("gs://bucket/a")
    assert (path.name, path.suffix) == ("b.txt", ".txt")


def test_objects_are_written_read_listed_moved_and_deleted(folder):
    replace_file(folder / "a" / "one", b"1")
    (folder / "a" / "two.txt").write_text("zwei: ü")
    assert (folder / "a" / "two.txt").read_text() == "zwei: ü"
    assert (folder / "a" / "one").read_bytes() == b"1"
    assert (folder / "a").is_dir() and not (folder / "a").is_file()
    assert (folder / "a" / "one").is_file() and not (folder / "a" / "one").is_dir()
    assert not (folder / "b").exists() and not (folder / "a" / "on").exists()
    assert sorted(path.name for path in (folder / "a").iterdir()) == ["one", "two.txt"]
    assert [path.name for path in (folder / "a").glob("*.txt")] == ["two.txt"]
    assert (folder / "a" / "two.txt").stat().st_size == 8
    (folder / "a" / "one").replace(folder / "a" / "three")
    (folder / "a").rename(folder / "b")
    assert names(folder) == ["b/three", "b/two.txt"]
    (folder / "b" / "three").unlink()
    (folder / "b" / "three").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (folder / "b" / "three").unlink()
    remove_folder(folder)
    remove_folder(folder)
    assert names(folder) == []


@pytest.mark.parametrize("content", [b"x\r", b"x\n", b"x\r\n", b"\r", b"\n", b""])
def test_the_last_bytes_of_an_object_arrive(folder, content):
    (folder / "one").write_bytes(content)
    assert (folder / "one").read_bytes() == content


def test_a_change_by_somebody_else_is_seen(folder, server):
    (folder / "x").write_text("1")
    assert names(folder) == ["x"]
    place = server.place(folder.name)
    (folder / "y").write_text("2")
    assert names(folder) == ["x", "y"] and (place / "y").read_text() == "2"


def test_a_kept_listing_answers_all_questions_until_the_end_of_the_block(
    folder, server, monkeypatch
):
    for name in "abc":
        (folder / name).write_text(name)
    fs, requests = file_system(), []
    ask = type(fs)._request
    monkeypatch.setattr(
        type(fs), "_request", lambda *args, **k: requests.append(0) or ask(*args, **k)
    )
    with keep_listings():
        paths = sorted(folder.iterdir())
        with keep_listings():
            assert [path.is_file() for path in paths] == [True] * 3
        assert [path.stat().st_size for path in paths] == [1] * 3
        assert not [path for path in paths if path.is_dir() or path.is_symlink()]
        assert len(requests) == 1
        server.write(f"{folder.name}/d", b"d")
        assert len(list(folder.iterdir())) == 3
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize(
    ("faults", "kind", "message"),
    [
        ({"deny": {"secret": 401}}, PermissionError, "credentials"),
        ({"deny": {"secret": 403}}, PermissionError, "permission denied"),
        ({"deny": {"secret": 404}}, FileNotFoundError, "no such object or bucket"),
    ],
)
def test_errors_name_the_object(folder, server, faults, kind, message):
    (folder / "secret").write_text("x")
    server.inject(**faults)
    for act in (BucketPath.read_bytes, lambda path: path.write_bytes(b"y"), BucketPath.unlink):
        with pytest.raises(kind, match=message) as found:
            act(folder / "secret")
        assert found.value.filename == str(folder / "secret")


def test_a_refused_request_does_not_look_like_a_missing_object(folder, server):
    (folder / "secret").write_text("x")
    server.inject(deny={"secret": 403})
    with pytest.raises(PermissionError):
        (folder / "secret").exists()


def test_busy_servers_and_resets_are_retried(folder, server, monkeypatch):
    retry, waits = pytest.importorskip("gcsfs.retry"), []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(retry, "asyncio", types.SimpleNamespace(sleep=sleep))
    server.inject(busy=0.1, resets=0.1, seed=3)
    for number in range(10):
        (folder / f"{number}").write_text(str(number))
    server.inject()
    assert names(folder) == [str(number) for number in range(10)]
    assert waits and min(waits) >= 1


def test_a_missing_bucket_is_named():
    with pytest.raises(FileNotFoundError, match="no such object or bucket") as found:
        as_path("gs://nowhere/x").write_text("x")
    assert found.value.filename == "gs://nowhere/x"


def test_files_are_copied_to_and_fro(folder, tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    copy_file(tmp_path / "a", folder / "b")
    copy_file(folder / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"12"


def test_a_folder_is_uploaded_when_it_is_complete(folder):
    with local_folder(folder) as local:
        (local / "sub").mkdir()
        (local / "sub" / "x").write_text("1")
        assert names(folder) == []
    assert names(folder) == ["sub/x"]
    with pytest.raises(RuntimeError), local_folder(folder) as local:
        (local / "y").write_text("2")
        raise RuntimeError
    assert names(folder) == ["sub/x"]


def test_a_growing_file_is_uploaded_when_it_grew(folder):
    now = [0.0]
    mirror = Mirror(folder, clock=lambda: now[0])
    log = mirror.local / "log"
    log.write_text("1\n")
    mirror.upload()
    log.write_text("1\n2\n")
    mirror.upload_sometimes()
    assert (folder / "log").read_text() == "1\n"
    now[0] = 31.0
    mirror.upload_sometimes()
    mirror.upload()
    assert (folder / "log").read_text() == "1\n2\n"
    log.write_text("1\n2\n3\n")
    mirror.close()
    assert (folder / "log").read_text() == "1\n2\n3\n" and not mirror.local.exists()
    again = Mirror(folder)
    again.fetch("log")
    assert (again.local / "log").read_text() == "1\n2\n3\n"
    again.close()


def test_a_local_folder_is_its_own_mirror(tmp_path):
    mirror = Mirror(tmp_path / "run")
    assert mirror.local == tmp_path / "run"
    mirror.close()
    assert mirror.local.is_dir()


def test_one_listing_has_the_sizes_of_all_objects(folder):
    (folder / "a" / "one").write_bytes(b"1")
    (folder / "a" / "b" / "three").write_bytes(b"123")
    (folder / "empty").write_bytes(b"")
    assert folder.sizes() == {"a/one": 1, "a/b/three": 3, "empty": 0}
    assert (folder / "missing").sizes() == {}


@pytest.mark.slow
def test_a_data_set_in_a_bucket_is_checked(folder):
    tiny.write_tiny_data(folder)
    dataset = PreparedDataset.load(folder)
    assert dataset.verify() == sum(file.bytes for file in dataset.files())
    shard = folder / dataset.task("en").shards[0].file
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"x")
    with pytest.raises(PreparedDataError, match=r"en/.*SHA-256 differs"):
        dataset.verify()
    shard.write_bytes(content[:-1])
    with pytest.raises(PreparedDataError, match="it was truncated"):
        PreparedDataset.load(folder)
    shard.unlink()
    with pytest.raises(PreparedDataError, match="there is no such object"):
        PreparedDataset.load(folder)
