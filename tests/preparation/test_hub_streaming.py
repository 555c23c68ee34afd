"""Under a limit, a data set of the hub is read where it is, by the hub's own client."""

import dataclasses
import http.server
import json
import threading
import types
from pathlib import Path

import pytest
from raw_text import write_raw

from xlme_jax.api import prepare
from xlme_jax.data.text.reading import DataError
from xlme_jax.preparation.prepare_config import PrepareConfig
from xlme_jax.storage import hub_paths
from xlme_jax.storage.hub_paths import HubPath

huggingface_hub = pytest.importorskip("huggingface_hub")
httpx = pytest.importorskip("httpx")

COMMIT, NAME = "0123456789" * 4, "owner/name"
PADDING = "nyumba " * 8_000  # So that a file is read in more than one request.
FILES = {
    f"data/{language}/train/{number}_0.jsonl": "".join(
        json.dumps({"text": f"Nyumba {number} {i}. {PADDING}"}) + "\n" for i in range(150)
    ).encode()
    for language in ("swh_Latn", "zul_Latn")
    for number in (9, 10)
}


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests that reading needs; `requests` has the path and bytes of each file's."""

    requests: list

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith(f"/api/datasets/{NAME}/tree/"):
            self.answer(json.dumps(self.tree()).encode())
        elif path.startswith(f"/api/datasets/{NAME}"):
            self.answer(json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        elif (start := f"/datasets/{NAME}/resolve/{COMMIT}/") and path.startswith(start):
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            if (content := FILES[path.removeprefix(start)]) is None:
                return self.answer(b'{"error": "Forbidden"}', 403)
            content = content[first : last + 1]
            self.requests.append((path.removeprefix(start), len(content)))
            self.answer(content, 206)
        else:
            self.answer(b'{"error": "Repository not found"}', 404)

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        asked = json.loads(self.rfile.read(size))["paths"]
        entries = [entry for entry in self.tree() if entry["path"] in asked]
        self.answer(json.dumps(entries).encode())

    def tree(self):
        """Returns all folders and files."""
        folders = {name.rsplit("/", depth)[0] for name in FILES for depth in (1, 2, 3)}
        return [
            *({"type": "directory", "path": folder, "oid": "0"} for folder in sorted(folders)),
            *(
                {"type": "file", "path": name, "size": len(content or b"?"), "oid": "0"}
                for name, content in FILES.items()
            ),
        ]

    def answer(self, content, status=200):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def requests(monkeypatch):
    """Serves the hub; returns its list of requests for files."""
    monkeypatch.setattr(Hub, "requests", [], raising=False)
    # Other tests of this process have set HF_HUB_OFFLINE.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    server = http.server.ThreadingHTTPServer(("localhost", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://localhost:{server.server_port}"
    system = huggingface_hub.HfFileSystem(endpoint=endpoint, block_size=1 << 16)
    monkeypatch.setattr(hub_paths, "file_system", lambda: system)
    yield Hub.requests
    server.shutdown()


@pytest.fixture
def config(tmp_path):
    write_raw(tmp_path, {}, ["Nyumba 0123456789."], 60)
    return PrepareConfig(
        str(tmp_path / "out"),
        ("table",),
        vocabulary=str(tmp_path / "v.model"),
        workers=1,
        options={"hf_dataset": NAME, "max_documents": 2},
    )


def test_only_what_is_needed_is_requested(config, requests, capsys):
    table = prepare(config)
    assert [(row.name, row.examples) for row in table] == [("table_sw", 2), ("table_zu", 2)]
    # A file of each language, and the head of the first by name, which tells the distribution.
    assert sum(size for _, size in requests) < sum(map(len, FILES.values())) / 3
    content = json.loads((Path(config.output) / "dataset.json").read_bytes())
    assert [entry["bytes"] for entry in content["dropped"]] == [
        len(FILES[entry["file"].removeprefix(f"hf://datasets/{NAME}@{COMMIT}/")])
        for entry in content["dropped"]
    ]
    requests.clear()
    capsys.readouterr()
    prepare(config)
    assert "2 parts, 2 finished before" in capsys.readouterr().err
    assert all("/10_0." in name for name, _ in requests)  # Of which the heads tell what they are.


def test_a_refused_file_is_an_error_that_names_it(config, requests, monkeypatch):
    monkeypatch.setitem(FILES, "data/swh_Latn/train/9_0.jsonl", None)
    monkeypatch.setitem(FILES, "data/swh_Latn/train/10_0.jsonl", None)
    with pytest.raises(
        DataError, match=r"swh_Latn/train/\d+_0.jsonl.*the hub cannot be read \(.*403"
    ):
        prepare(config)


@pytest.mark.parametrize("list_folder", [HubPath.list_all, lambda path: [*path.iterdir()]])
def test_a_listing_that_fails_is_an_error_that_names_the_folder(list_folder, monkeypatch):
    def refuse(*_, **__):
        raise httpx.ConnectError("reset by peer")

    system = types.SimpleNamespace(find=refuse, ls=refuse)
    monkeypatch.setattr(hub_paths, "file_system", lambda: system)
    path = HubPath("hf://datasets/owner/name/data")
    with pytest.raises(OSError, match=r"reset by peer.*run the same.*'hf://.*/name/data'"):
        list_folder(path)


@pytest.mark.parametrize("mode", ["r", "w", "ab"])
def test_files_of_the_hub_are_only_opened_to_read_bytes(mode):
    with pytest.raises(ValueError, match=f"name/a.txt: mode '{mode}' must be 'rb'"):
        HubPath("hf://datasets/owner/name/a.txt").open(mode)


def test_a_missing_data_set_is_an_error_with_a_way_on(config, requests):
    other = {**dict(config.options), "hf_dataset": "owner/other"}
    with pytest.raises(DataError, match=r"owner/other cannot be downloaded .*; fix the name, log"):
        prepare(dataclasses.replace(config, options=other))
