"""Starts a bucket on this machine, and commands that use it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import quote

from xlme_jax.storage.files import copy_file

SERVER = Path(__file__).with_name("bucket_server.py")
# The emulator keeps the objects of gs://bucket in FOLDER/.cloudstorage/bucket.
_OBJECTS = ".cloudstorage"
TRASH = ".trash"  # Deleted objects, in each folder.


def holds(folder):
    """Returns whether a folder is one of an emulated bucket."""
    return _OBJECTS in Path(folder).parts


class Bucket:
    """A bucket gs://bucket on this machine.

    Args:
      folder: where its objects lie.
      port: 0 for any free one.

    Attributes:
      folder: where its objects lie.
      variables: environment variables of processes that use it.
    """

    def __init__(self, folder, port=0):
        self.folder = Path(folder)
        self.process = subprocess.Popen(
            [sys.executable, SERVER, folder, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"
        self.variables = {
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "STORAGE_EMULATOR_HOST": self.url,
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "NO_GCE_CHECK": "true",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def place(self, name=""):
        """Returns the folder with the objects below a name."""
        return self.folder / _OBJECTS / "bucket" / name

    def inject(self, **faults):
        """Sets `bucket_server.Faults`."""
        request = urllib.request.Request(f"{self.url}/faults", json.dumps(faults).encode())
        urllib.request.urlopen(request).read()

    def write(self, name, content):
        """Writes an object."""
        url = (
            f"{self.url}/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(name, safe='')}"
        )
        headers = {"Content-Type": "application/octet-stream"}
        urllib.request.urlopen(urllib.request.Request(url, content, headers)).read()

    def stop(self):
        """Ends the server."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def emulated_bucket():
    """Yields a bucket on this machine that this process and those that it starts use."""
    with tempfile.TemporaryDirectory() as folder:
        bucket = Bucket(folder)
        os.environ.update(bucket.variables)
        try:
            yield bucket
        finally:
            bucket.stop()


def copy_folder(source, target):
    """Copies a folder from a disk to a disk or into a bucket, without what was deleted."""
    for path in source.rglob("*"):
        if path.is_file() and TRASH not in path.parts:
            copy = target / path.relative_to(source).as_posix()
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy_file(path, copy)
