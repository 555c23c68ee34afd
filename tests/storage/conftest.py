"""A bucket for tests in this process."""

import buckets
import pytest

from xlme_jax.storage import paths


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Returns a `buckets.Bucket` that this process uses."""
    pytest.importorskip("gcsfs", reason="needs the extra gcs")
    pytest.importorskip("gcp_storage_emulator", reason="needs the extra test")
    server = buckets.Bucket(tmp_path_factory.mktemp("bucket"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables.items():
            patch.setenv(name, value)
        import gcsfs

        gcsfs.GCSFileSystem.clear_instance_cache()
        paths.file_system.cache_clear()
        yield server
        paths.file_system.cache_clear()
    server.stop()


@pytest.fixture
def folder(server, request):
    """Returns an empty folder in the bucket."""
    server.inject()
    yield paths.as_path(f"gs://bucket/{request.node.name}")
    server.inject()
