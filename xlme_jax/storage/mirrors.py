"""Local copies of files that grow, such as logs, for folders in buckets.

Objects of a bucket cannot be appended to. A growing file of a run therefore lies on a local disk
and is uploaded whole: before each checkpoint, so that a resumed run finds all lines up to the
checkpoint, and in between at most every `UPLOAD_SECONDS`, so that users can watch the run.
"""

from __future__ import annotations

import logging
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable

from xlme_jax.storage.files import copy_file, replace_file
from xlme_jax.storage.paths import is_bucket

_log = logging.getLogger(__name__)
UPLOAD_SECONDS = 30.0


class Mirror:
    """A local folder whose files are uploaded to a folder in a bucket.

    If the files belong in a local folder, they are written there and nothing is uploaded.

    Args:
      folder: folder in which the files belong; created if it is local.
      clock: function that returns seconds and never goes back.

    Attributes:
      local: local folder to write the files to.
    """

    def __init__(self, folder: pathlib.Path, clock: Callable[[], float] = time.monotonic):
        self._folder, self._clock, self._uploads = folder, clock, is_bucket(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.local = pathlib.Path(tempfile.mkdtemp(prefix="xlme_jax-")) if self._uploads else folder
        self._sizes: dict[str, int] = {}
        self._last = clock()
        self._thread: threading.Thread | None = None

    def fetch(self, name: str) -> None:
        """Downloads a file from the bucket if it is there; raises OSError, naming the object."""
        if self._uploads and (self._folder / name).is_file():
            copy_file(self._folder / name, self.local / name)

    def upload(self) -> None:
        """Uploads the files whose sizes have changed, after an upload in the background has ended.

        Raises:
          OSError: a file cannot be uploaded; the error names the object.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._upload()

    def upload_sometimes(self) -> None:
        """Uploads in the background if the last upload began `UPLOAD_SECONDS` ago or earlier.

        Errors are logged.
        """
        if not self._uploads or self._clock() - self._last < UPLOAD_SECONDS:
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._try_upload, daemon=True)
            self._thread.start()

    def _try_upload(self) -> None:
        """Uploads the files that have changed, and logs errors."""
        try:
            self._upload()
        except OSError as error:
            _log.warning("%s: %s; trying again later.", error.filename, error.strerror)

    def _upload(self) -> None:
        """Uploads the files whose sizes have changed since their last upload."""
        if not self._uploads:
            return
        self._last = self._clock()
        for path in sorted(self.local.rglob("*")):
            name = path.relative_to(self.local).as_posix()
            if path.is_file() and self._sizes.get(name) != path.stat().st_size:
                content = path.read_bytes()  # The file may grow during the upload.
                replace_file(self._folder / name, content)
                self._sizes[name] = len(content)

    def close(self) -> None:
        """Uploads the files and deletes their local copies, even if the upload fails.

        Raises:
          OSError: a file cannot be uploaded; the error names the object.
        """
        try:
            self.upload()
        finally:
            if self._uploads:
                shutil.rmtree(self.local, ignore_errors=True)
