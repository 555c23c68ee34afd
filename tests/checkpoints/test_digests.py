import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny
from hypothesis import strategies as st

from xlme_jax.checkpoints import digests
from xlme_jax.checkpoints.digests import Damaged

DTYPES = ["float32", "bfloat16", "float16", "int32", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_changed_bit_changes_the_digest(dtype):
    array = np.asarray(jnp.arange(24).reshape(2, 3, 4) % 2, dtype=jnp.dtype(dtype))
    expected = digests.tree_digests(array)
    raw = array.tobytes()
    bits = [0] if dtype == "bool" else range(8)
    for place in range(len(raw)):
        for bit in bits:
            changed = bytearray(raw)
            changed[place] ^= 1 << bit
            found = np.frombuffer(bytes(changed), array.dtype).reshape(array.shape)
            assert digests.tree_digests(found) != expected, (place, bit)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=30, deadline=None, derandomize=True)
def test_exchanged_elements_change_the_digest(data):
    array = np.arange(60, dtype=np.float32).reshape(6, 10)
    a, b = data.draw(st.lists(st.integers(0, 59), min_size=2, max_size=2, unique=True))
    changed = array.copy().ravel()
    changed[[a, b]] = changed[[b, a]]
    assert digests.tree_digests(changed.reshape(6, 10)) != digests.tree_digests(array)


def test_names_and_equal_arrays():
    tree = {"params": {"w": jnp.ones((2, 3))}, "opt": (jnp.int32(4), jnp.ones((2, 3)))}
    found = digests.tree_digests(tree)
    assert set(found) == {"params.w", "opt.0", "opt.1"}
    assert found["params.w"] == found["opt.1"] != found["opt.0"]
    assert all(len(value) == 16 for value in found.values())


def test_the_digest_does_not_depend_on_the_sharding():
    script = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P, NamedSharding
from xlme_jax.checkpoints import digests
x = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
expected = digests.tree_digests(x)
mesh = jax.make_mesh((2, 4), ("a", "b"))
for spec in (P(), P("a"), P(None, "b"), P("b", "a"), P(("a", "b"))):
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    assert len(placed.sharding.device_set) == 8
    assert digests.tree_digests(placed) == expected, spec
print(expected[""])
"""
    output = tiny.run(["-c", script], devices=8, modules=("xlme_jax.checkpoints.digests",))
    x = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
    assert output.split()[-1] == digests.tree_digests(x)[""]


def test_the_digest_asks_for_no_memory_of_the_size_of_the_array():
    compiled = digests._array_digest.lower(jax.ShapeDtypeStruct((1024, 1024), "float32")).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 64 * 1024


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "deep" / "er" / "b").write_bytes(bytes(range(64)))
    (tmp_path / "empty").touch()
    digests.seal_files(tmp_path)
    return tmp_path


def test_untouched_files_are_good(folder):
    digests.verify_files(folder)
    assert digests.is_sealed(folder)
    (folder / "note of a person.txt").write_text("harmless")
    digests.verify_files(folder)


@pytest.mark.parametrize("name", ["a", "deep/er/b", "files.json"])
def test_every_changed_byte_is_noticed(folder, name):
    raw = (folder / name).read_bytes()
    for place in range(len(raw)):
        (folder / name).write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(
            Damaged,
            match=f"{name} (is not what was written|was changed|is not JSON|has no checksum)",
        ):
            digests.verify_files(folder)


def test_missing_and_truncated_files_are_named(folder):
    (folder / "a").write_bytes(b"tex")
    with pytest.raises(Damaged, match="a has 3 bytes, 4 were written"):
        digests.verify_files(folder)
    (folder / "a").unlink()
    with pytest.raises(Damaged, match="a is missing"):
        digests.verify_files(folder)
