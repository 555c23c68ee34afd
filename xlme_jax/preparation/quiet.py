"""Imports TensorFlow for SeqIO only: without log messages and without an accelerator."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def tensorflow() -> Iterator[None]:
    """Returns a context to import TensorFlow in, without its messages; hides GPUs from it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    logging.getLogger("absl").setLevel(logging.WARNING)
    with _muted():
        import tensorflow as tf

        yield
    # RuntimeError: the caller has already used TensorFlow, so its choice of devices remains.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Buffers stderr, C++ output included, and writes it only if the block raises."""
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            captured.seek(0)
            os.write(stderr_copy, captured.read())
            raise
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
