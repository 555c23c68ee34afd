"""Uploads of exported folders; nothing is sent."""

import pytest
from helpers import hf_folders, tiny

from xlme_jax.huggingface import pushing

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.mark.parametrize("name", ["model", "a/b/c", "a/b c", "/b", "a/"])
def test_wrong_repositories_are_refused_first(tmp_path, name):
    with pytest.raises(ValueError, match=f"--push={name}: .*write OWNER/NAME"):
        pushing.check(name, tmp_path)


def test_a_folder_is_uploaded_in_one_commit(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(1234))
    assert pushing.listing(tmp_path, "o/n").split("\n") == [
        "              2  config.json",
        "          1,234  model.safetensors",
        "          1,236  bytes in 2 files for o/n",
    ]
    calls = []

    def create(name, **more):
        calls.append((name, more))
        return f"https://hub/{name}"

    monkeypatch.setattr(huggingface_hub, "create_repo", create)
    monkeypatch.setattr(huggingface_hub, "upload_folder", lambda **more: calls.append(more))
    assert pushing.push(tmp_path, "o/n", True) == "https://hub/o/n"
    assert calls[0] == ("o/n", {"private": True, "exist_ok": True})
    assert (calls[1]["repo_id"], calls[1]["folder_path"]) == ("o/n", tmp_path)


def test_without_a_network_the_export_is_kept(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    # tests/helpers/hf_folders.py has set HF_HUB_OFFLINE.
    with pytest.raises(ValueError, match=f"complete in {tmp_path}; .*`hf upload o/n /"):
        pushing.push(tmp_path, "o/n", False)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.slow
def test_the_command_lists_what_it_would_upload(tmp_path):
    run = hf_folders.write_checkpoint(tmp_path / "run", "xlm")
    outputs = [tmp_path / name for name in ("listed", "none", "unnamed")]
    more = [["--push=o/n", "--dry_run"], ["--dry_run"], ["--push=n"]]
    listed, none, unnamed = tiny.run_each(
        "export", *([f"--checkpoint={run}", f"--output={x}", *y] for x, y in zip(outputs, more))
    )
    assert listed.returncode == 0, listed.stderr
    *lines, total = [line.split() for line in listed.stdout.splitlines()]
    sizes = {path.name: f"{path.stat().st_size:,}" for path in outputs[0].iterdir()}
    assert {name: size for size, name in lines} == sizes and total[-2:] == ["for", "o/n"]
    assert "only with --push=OWNER/NAME" in none.stderr and "write OWNER/NAME" in unnamed.stderr
    assert not outputs[1].exists() and not outputs[2].exists()
