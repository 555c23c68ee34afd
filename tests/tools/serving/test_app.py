"""The demo's app, in this process: its answers are the model's, and only for this machine."""

import threading

import numpy as np
import pytest
from helpers import hf_folders
from werkzeug.exceptions import ServiceUnavailable

from xlme_jax.runs import models
from xlme_jax.tools.serving.app import Turns, create
from xlme_jax.training.mesh import MeshConfig

TEXT = "abc de fghi"
# A rough parse is enough: what would load or send anything elsewhere.
ELSEWHERE = ("http://", "https://", "//cdn", "@import", "url(", "innerHTML", "document.write")


def ask(client, name, **content):
    response = client.post(f"/api/{name}", json=content)
    assert response.status_code == 200, response.json
    return response.json


def test_words_have_the_highest_probability_of_their_tokens(client, model):
    found = ask(client, "detect", text=f"  {TEXT} ")
    assert [word["text"] for word in found["words"]] == TEXT.split()
    tokens = [token for word in found["words"] for token in word["tokens"]]
    expected = model.detect(f"  {TEXT} ")[1:-1]
    assert [one["token"] for one in tokens] == [one.token for one in expected]
    np.testing.assert_allclose(
        [one["probability"] for one in tokens], [one.probability for one in expected]
    )
    for word in found["words"]:
        assert word["probability"] == max(one["probability"] for one in word["tokens"])


def test_scripts_without_spaces_are_judged_token_by_token(client):
    found = ask(client, "detect", text="ab 中文 שלום")
    assert [word["text"] for word in found["words"]] == ["ab", "中", "文", "שלום"]
    assert ask(client, "detect", text="שלום ab")["direction"] == "rtl"


def test_masks_are_filled(client, model):
    found = ask(client, "fill", text="abc <mask> de<mask>", k=3)
    assert found["parts"] == ["abc ", " de", ""]
    expected = model.fill("abc <mask> de<mask>", k=3)
    assert [[one["token"] for one in of] for of in found["predictions"]] == [
        [one.token for one in of] for of in expected
    ]


def test_translations_are_retrieved_and_aligned(client, model):
    queries, candidates = ["abc", "de fg"], ["hi", "abc", "jkl m", "de fg"]
    found = ask(client, "retrieve", queries=queries, candidates=candidates, layer=1)
    expected = model.retrieve(queries, candidates, k=3, layer=1)
    assert [[m["candidate"] for m in of] for of in found["matches"]] == expected.indices.tolist()
    assert [of[0]["candidate"] for of in found["matches"]] == [1, 3]
    found = ask(client, "align", source=TEXT, target="jih gf", layer=None)
    expected = model.align(TEXT, "jih gf")
    assert {tuple(link) for link in found["links"]} == expected.predicted
    np.testing.assert_allclose(found["matrix"], expected.matrix, atol=1e-4)


def test_the_page_loads_nothing_and_says_what_the_model_is(client, model):
    page = client.get("/")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert "Content-Security-Policy" not in page.text
    assert not [bad for bad in ELSEWHERE if bad in page.text]
    about = client.get("/api/model").json
    assert (about["system"], about["layers"], about["layer"]) == ("XLME", 1, 1)
    assert about["unavailable"] == {"detect": "", "fill": ""}
    assert "Access-Control-Allow-Origin" not in page.headers


def test_a_system_without_discriminator_says_so(tmp_path, examples):
    folder = hf_folders.write_checkpoint(tmp_path / "run", "xlm")
    model = models.load(str(folder), None, MeshConfig())
    client = create(model, examples).test_client()
    reason = client.get("/api/model").json["unavailable"]["detect"]
    assert "needs a discriminator, which XLM, the system of" in reason
    refused = client.post("/api/detect", json={"text": "abc"})
    assert (refused.status_code, refused.json["error"]) == (400, reason)
    assert ask(client, "fill", text="<mask>")["predictions"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "localhost:8000", "127.0.0.1:1")),
        *((host, 400) for host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io")),
        *((host, 400) for host in ("192.168.0.1:8000", "[::1]:8000", "", "localhost@evil.example")),
    ],
)
def test_only_names_of_this_machine_are_answered(client, host, status):
    for answer in (
        client.get("/", headers={"Host": host}),
        client.post("/api/detect", json={"text": "abc"}, headers={"Host": host}),
    ):
        assert answer.status_code == status
        assert "<" not in answer.text or status == 200


def test_other_sites_cannot_send_requests(client):
    """Without a preflight, they can send forms and plain text alone; a preflight is not granted."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.post("/api/detect", data='{"text": "abc"}', content_type=kind)
        assert answer.status_code == 415
    asked = client.options("/api/detect", headers={"Origin": "https://evil.example"})
    assert not [name for name in asked.headers.keys() if name.startswith("Access-Control")]  # noqa: SIM118


def test_one_computation_runs_and_few_wait():
    turns, entered, order = Turns(waiting=1), threading.Event(), []

    def wait():
        with turns.take():
            order.append("second")

    with turns.take():
        second = threading.Thread(target=wait)
        second.start()
        while turns._places._value:  # Until it waits.
            entered.wait(0.001)
        with pytest.raises(ServiceUnavailable, match="busy"), turns.take():
            raise AssertionError("a third one")
        order.append("first")
    second.join()
    assert order == ["first", "second"]
    with turns.take():
        pass
