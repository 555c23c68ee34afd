"""Digests of a checkpoint's arrays and files, to verify that the checkpoint is what was saved.

The digest of an array is computed on the devices, by sums over its elements that do not depend on
the order of addition. So neither sharding nor the number of processes matters, and a checkpoint
saved on one mesh can be verified on another. Files have digests of their bytes on disk, by which a
damaged file is distinguished from other causes of an error in reading it.
"""

import concurrent.futures
import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlme_jax.storage.files import replace_file
from xlme_jax.storage.sealed_json import seal, unseal

FILE = "files.json"
_THREADS = 8  # Hashing releases the GIL.


class Damaged(ValueError):
    """Error for a file or an array on disk that is not what was written; the message names it."""


def tree_digests(tree: Any) -> dict[str, str]:
    """Computes a digest of each array of a tree, which does not depend on the sharding.

    Args:
      tree: tree of arrays, which may be distributed over processes.

    Returns:
      {dotted path: 16 hexadecimal digits}. One changed element always changes its array's digest;
      several changed elements leave it unchanged with probability 2^-64.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = {leaf_name(path): _array_digest(leaf) for path, leaf in leaves}
    return {name: f"{a:08x}{b:08x}" for name, (a, b) in jax.device_get(named).items()}


def leaf_name(path: tuple[Any, ...]) -> str:
    """Returns the dotted name of a leaf, as in "params.discriminator.layer_0.attention.query"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


@jax.jit
def _array_digest(x: jax.Array) -> jax.Array:
    """Returns the digest of an array of any shape, uint32[2]: two sums over its elements."""
    words = _words(x)
    # The row-major index of each element, modulo 2**32.
    positions = jnp.zeros(words.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(words.ndim)):
        index = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        positions += index * np.uint32(stride % 2**32)
        stride *= words.shape[axis]
    # A bijection of each word that depends on its position, so that equal words elsewhere differ.
    mixed = _mix(words + _mix(positions))
    # One reduction for both sums: with two, XLA would keep `mixed`, an array as large as `x`.
    zero = np.uint32(0)
    sums = jax.lax.reduce(
        (mixed, mixed * (positions | 1)),
        (zero, zero),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        tuple(range(words.ndim)),
    )
    return jnp.stack(sums)


def _words(x: jax.Array) -> jax.Array:
    """Returns the bits of an array as uint32.

    Elements of fewer bits are padded with zeros; elements of more bits are split, which adds an
    axis.
    """
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
    """Applies the finalizer of MurmurHash3, a bijection on 32 bits with full avalanche."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def seal_files(folder: Path) -> None:
    """Writes `files.json` with the size and SHA-256 of every file below a folder."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest}
        for name, digest in _file_digests(folder, _files(folder)).items()
    }
    replace_file(folder / FILE, seal({"files": files}))


def is_sealed(folder: Path) -> bool:
    """Returns whether a folder has `files.json`, which is missing if sealing was interrupted."""
    return (folder / FILE).exists()


def verify_files(folder: Path) -> None:
    """Verifies the files of a sealed folder.

    Raises:
      Damaged: a file is missing or is not what was written; the message names the first such file.
    """
    try:
        files = unseal((folder / FILE).read_bytes())["files"]
    except ValueError as error:
        raise Damaged(f"{FILE} {error}") from error
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{name} is missing")
        if (size := path.stat().st_size) != entry["bytes"]:
            raise Damaged(f"{name} has {size} bytes, {entry['bytes']} were written")
    for name, digest in _file_digests(folder, files).items():
        if digest != files[name]["sha256"]:
            raise Damaged(f"{name} is not what was written (SHA-256 differs)")


def _files(folder: Path) -> list[str]:
    """Returns the relative paths of all files below a folder, except `files.json`, sorted."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != FILE
    )


def _file_digests(folder: Path, names: Any) -> dict[str, str]:
    """Returns {name: SHA-256} of files, hashed in parallel."""

    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    names = list(names)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(digest, names)))
