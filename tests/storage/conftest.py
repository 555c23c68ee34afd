"""A bucket for tests in this process."""

import pytest

from xlme_jax.storage import paths


@pytest.fixture
def folder(server, request):
    """Returns an empty folder in the bucket."""
    server.inject()
    yield paths.as_path(f"gs://bucket/{request.node.name}")
    server.inject()
