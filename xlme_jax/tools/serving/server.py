"""Serves a model's page to this machine until it is interrupted."""

import contextlib
import logging
import socket
from collections.abc import Iterator

from xlme_jax.runs.models import Model
from xlme_jax.storage.paths import as_path
from xlme_jax.tools.serving.app import create
from xlme_jax.tools.serving.first_sentences import find
from xlme_jax.tools.serving.flask_packages import werkzeug

_log = logging.getLogger(__name__)
_HOST = "127.0.0.1"


def serve(model: Model, port: int, layer: int | None = None) -> None:
    """Serves the demo page of a model until Ctrl-C.

    Args:
      model: the model.
      port: port of 127.0.0.1; 0 for any free port.
      layer: the `layer` of `app.create`.

    Raises:
      ValueError: the port is in use or not allowed, or the encoder has no such layer.
    """
    loaded = model.loaded
    examples = find(as_path(loaded.config.data_dir), loaded.vocabulary)
    app = create(model, examples, layer)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # A line for each request.
    with _listening(port) as listener:
        server = werkzeug.serving.make_server(
            _HOST, listener.getsockname()[1], app, threaded=True, fd=listener.fileno()
        )
        _log.info("Open http://%s:%d/ (Ctrl-C ends)", _HOST, server.port)
        server.serve_forever()
        _log.info("Ended.")


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """Yields a socket that listens on a port of 127.0.0.1, and closes it at the end.

    Raises:
      ValueError: the port is in use or not allowed.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
        except OSError as error:
            raise ValueError(
                f"--port={port}: {error.strerror}; choose another, or 0 for any that is free"
            ) from error
        listener.listen()
        yield listener
