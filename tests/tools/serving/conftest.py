"""Apps of tiny models with random weights."""

import pytest
from helpers import hf_folders

pytest.importorskip("flask", reason="needs the extra demo")

from xlme_jax.runs import models
from xlme_jax.tools.serving.app import create
from xlme_jax.tools.serving.first_sentences import Examples
from xlme_jax.training.mesh import MeshConfig


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    """Returns an XLM-E."""
    folder = hf_folders.write_checkpoint(tmp_path_factory.mktemp("xlme") / "run")
    return models.load(str(folder), None, MeshConfig())


@pytest.fixture(scope="package")
def examples():
    """Returns sentences that are short enough for the models."""
    return Examples("tests", ("en", "xx"), (("abc de fghi", "jih gf"), ("de fg hi", "abc b")))


@pytest.fixture(scope="package")
def app(model, examples):
    """Returns its app."""
    return create(model, examples, layer=1)


@pytest.fixture
def client(app):
    """Returns a client of the app, in this process."""
    return app.test_client()
