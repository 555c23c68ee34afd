"""The server and the command `demo`."""

import json
import re
import signal
import socket
import urllib.request

import pytest
from helpers import tiny

from xlme_jax.tools.serving.server import serve


def test_a_taken_port_and_an_unknown_layer_are_named(model):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port={port}: Address already in use; choose"):
            serve(model, port)
    with pytest.raises(ValueError, match="--layer = 2, but the encoder has 1 layers"):
        serve(model, 0, layer=2)


@pytest.mark.slow
def test_the_command_answers_until_it_is_interrupted(model):
    checkpoint = f"--checkpoint={model.loaded.folder}"
    process = tiny.start(["-m", "xlme_jax.demo", checkpoint, "--port=0", "--layer=1"])
    said = ""
    while not (found := re.search(r"Open (http://127.0.0.1:\d+/) ", said)):
        line = process.stdout.readline()
        assert line, said
        said += line
    with urllib.request.urlopen(f"{found[1]}api/model") as answer:
        assert json.load(answer)["layer"] == 1
    process.send_signal(signal.SIGINT)
    assert "Ended." in tiny.finish(process)
