"""The app: a page, a description of the model, and an address for each of `answers.ANSWERS`.

The app answers on this machine alone. The Host header must name this machine, so that a page of
another site cannot reach the app through a name that this site controls (DNS rebinding). Requests
must be JSON: browsers ask a server before a page of another site sends JSON to it (CORS), and the
app never allows that.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from xlme_jax.data.vocabulary import MASK_PIECE
from xlme_jax.evaluation.encoding import choose_layer
from xlme_jax.runs.models import Model
from xlme_jax.storage.sealed_json import parse
from xlme_jax.studies.reports.visible_text import visible
from xlme_jax.tools.serving import answers, request_fields
from xlme_jax.tools.serving.first_sentences import Examples
from xlme_jax.tools.serving.flask_packages import flask, werkzeug
from xlme_jax.tools.serving.page import page

_HOSTS = ["localhost", "127.0.0.1"]
_WAITING = 8  # Most requests that wait for the running one.
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def create(model: Model, examples: Examples, layer: int | None = None) -> flask.Flask:
    """Returns the Flask app that serves a model's demo page.

    Args:
      model: the model.
      examples: sentences that the page shows first.
      layer: layer that is first selected for retrieval and alignment; None for `default_layer`.

    Raises:
      ValueError: the encoder has no such layer.
    """
    app = flask.Flask(__name__, static_folder=None)
    app.config.update(TRUSTED_HOSTS=_HOSTS, MAX_CONTENT_LENGTH=request_fields.BYTES)
    about = describe(model, examples, layer)
    turns = Turns()
    app.after_request(_harden)
    app.register_error_handler(werkzeug.exceptions.HTTPException, _refuse)

    @app.get("/")
    def show() -> Any:
        html, policy = page()
        return flask.Response(html, headers={"Content-Security-Policy": policy})

    @app.get("/api/model")
    def tell() -> Any:
        return about

    @app.post("/api/<name>")
    def answer(name: str) -> Any:
        if name not in answers.ANSWERS:
            flask.abort(404, f"there is no {name!r}; there are {', '.join(answers.ANSWERS)}")
        content = _content()
        try:
            with turns.take():
                reply = answers.ANSWERS[name](model, content)
        except request_fields.TooLargeError as error:
            flask.abort(413, str(error))
        except ValueError as error:
            flask.abort(400, str(error))
        return _json(reply)

    return app


def describe(model: Model, examples: Examples, layer: int | None = None) -> dict[str, Any]:
    """Returns the description of a model for the page, as JSON.

    The arguments are those of `create`. The description has the system, the checkpoint and its
    layers, what the model cannot do, the limits of requests, and the sentences that the page shows
    first.
    """
    folder = model.loaded.folder
    return {
        "system": type(model.loaded.objective).__name__,
        "checkpoint": visible(str(folder)),
        "layers": model.num_layers,
        "layer": choose_layer(layer, model, "--layer"),
        "unavailable": {name: model.reason_without(name) for name in ("detect", "fill")},
        "mask": MASK_PIECE,
        "limits": {
            "characters": request_fields.CHARACTERS,
            "lines": request_fields.LINES,
            "words": request_fields.WORDS,
            "masks": request_fields.MASKS,
            "bytes": request_fields.BYTES,
        },
        "examples": {
            "origin": visible(examples.origin),
            "languages": list(map(visible, examples.languages)),
            "pairs": [list(map(visible, pair)) for pair in examples.pairs],
            "odd": visible(examples.odd),
            "masked": visible(examples.masked),
        },
    }


class Turns:
    """Lets one computation run at a time, and a few wait for it.

    Args:
      waiting: maximum number of requests that wait.
    """

    def __init__(self, waiting: int = _WAITING):
        self._places = threading.BoundedSemaphore(1 + waiting)
        self._running = threading.Lock()

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Returns a context whose block runs when no other block runs.

        Aborts the request with HTTP 503 if too many requests wait already.
        """
        if not self._places.acquire(blocking=False):
            flask.abort(503, "the model is busy with earlier requests; try again in a moment")
        try:
            with self._running:
                yield
        finally:
            self._places.release()


def _content() -> Any:
    """Returns the JSON of the current request.

    Aborts the request with HTTP 415 if its header does not declare JSON, 413 if it is too large,
    and 400 if its content is no JSON.
    """
    if not flask.request.is_json:
        flask.abort(415, "the request must have the header Content-Type: application/json")
    try:
        return parse(flask.request.get_data())
    except ValueError:
        flask.abort(400, "the request is no JSON")


def _json(reply: answers.Answer) -> Any:
    """Returns an answer as a response; aborts with HTTP 500 if a number is not finite."""
    try:
        text = json.dumps(reply, allow_nan=False, ensure_ascii=False)
    except ValueError:
        flask.abort(500, "the model's output is not finite: its weights have diverged")
    return flask.Response(text, mimetype="application/json")


def _refuse(error: werkzeug.exceptions.HTTPException) -> Any:
    """Returns the response to a request that was aborted: {"error": message} as JSON."""
    # werkzeug itself refuses a body of more than MAX_CONTENT_LENGTH bytes, with its own message,
    # which says neither the limit nor the remedy.
    is_default = error.description == type(error).description
    if isinstance(error, werkzeug.exceptions.RequestEntityTooLarge) and is_default:
        message = f"the request is larger than {request_fields.BYTES >> 20} MiB; send less text"
    else:
        message = error.description or error.name
    response = flask.jsonify(error=visible(message))
    response.status_code = error.code or 500
    return response


def _harden(response: flask.Response) -> flask.Response:
    """Adds the headers of `_HEADERS` to a response and returns it."""
    response.headers.update(_HEADERS)
    return response
