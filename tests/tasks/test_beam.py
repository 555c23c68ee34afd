import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("apache_beam")

from xlme_jax.api import prepare
from xlme_jax.data.prepared import PreparedDataset, writer
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation import beam_parts, tokenizing
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.storage.files import replace_file
from xlme_jax.storage.paths import as_path


@pytest.fixture
def config(raw, tmp_path):
    return PrepareConfig(
        output=str(tmp_path / "out"),
        tasks=("cc100", "bitext"),
        vocabulary=str(raw.vocabulary),
        cc100_dir=str(raw.mono),
        bitext_dir=str(raw.pairs),
        workers=1,
    )


def in_bucket(config, server, name):
    """Returns a configuration with sources and output in the bucket, where they lie now."""
    for option, sub in (("cc100_dir", ""), ("bitext_dir", "news/")):
        for file in as_path(getattr(config, option)).iterdir():
            server.write(f"{name}/{option}/{sub}{file.name}", file.read_bytes())
    return dataclasses.replace(
        config,
        output=f"gs://bucket/{name}/out",
        cc100_dir=f"gs://bucket/{name}/cc100_dir",
        bitext_dir=f"gs://bucket/{name}/bitext_dir",
        runner="DirectRunner",
    )


def files(folder):
    folder = as_path(folder)
    names = [str(path).removeprefix(f"{folder}/") for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if name != ".prepare.lock")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 9))
def test_pieces_are_small_and_within_a_part(sizes, number, part_size):
    ids = np.arange(sum(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_parts, "_BATCH_TOKENS", 12)
        found = list(
            beam_parts._pieces((ids, np.array(sizes), beam_parts._NO_LABELS), number, part_size)
        )
    assert np.concatenate([piece[0] for piece in found]).tolist() == ids.tolist()
    assert np.concatenate([piece[1] for piece in found]).tolist() == sizes
    for ids, sizes, _ in found:
        assert len(ids) == sizes.sum() and (len(ids) <= 12 or len(sizes) == 1)
        assert number // part_size == (number + len(sizes) - 1) // part_size
        number += len(sizes)


@pytest.mark.slow
def test_a_worker_that_dies_in_an_upload_is_run_again(config, server, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizing, "PART_TEXTS", {"monolingual": 3, "bitext": 9})
    prepare(config)
    write, copy = beam_parts._Work.write, writer.copy_file
    died = tmp_path / "died"  # A list would be pickled with the functions.

    def dies(source, target):
        copy(source, target)
        with died.open("a") as file:
            file.write(f"{target}\n")
        raise OSError("the worker dies")

    def write_again(self, keyed):
        key, texts = keyed
        texts = list(texts)
        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            patch.setattr(writer, "copy_file", dies)
            write(self, (key, texts))
        write(self, (key, texts))  # The result of this attempt is lost.
        return write(self, (key, texts))

    monkeypatch.setattr(beam_parts._Work, "write", write_again)
    there = in_bucket(config, server, "dies")
    prepare(there)
    found, expected = map(PreparedDataset.load, (there.output, config.output))
    assert found.digest == expected.digest
    assert files(there.output) == files(config.output)
    found.verify()
    assert len(died.read_text().splitlines()) > 4
    monkeypatch.setattr(beam_parts._Work, "write", None)
    prepare(there)  # Everything is finished.


@pytest.mark.slow
def test_a_damaged_source_is_named_after_the_other_tasks_are_done(config, server, capfd):
    there = in_bucket(config, server, "damaged")
    file = as_path(there.cc100_dir) / "sw.txt.xz"
    whole = file.read_bytes()
    replace_file(file, whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"^gs://.*/sw\.txt\.xz: truncated.*\(`xz -t` checks it\)$"):
        prepare(there)
    replace_file(file, whole)
    prepare(there)
    assert "3 parts, 2 finished before" in capfd.readouterr().err
