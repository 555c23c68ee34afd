"""Growing the tables of a vocabulary in a warm start, against means by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlme_jax.checkpoints.checkpoints import Checkpoints
from xlme_jax.checkpoints.growth import Growth
from xlme_jax.checkpoints.saved import RunRecord
from xlme_jax.checkpoints.state import TrainState
from xlme_jax.checkpoints.warm_start import check_warm_start, warm_start

OLD, NEW, PADDED, LARGER = 5, 8, 6, 10
# Ids 0 to 3 stay, three new pieces follow, and <mask>, 4, becomes 7.
PARTS = [[0], [1], [2], [3], [1, 2], [3, 3, 0], [2], [4]]
TABLES = frozenset({"encoder.tokens.embedding", "encoder.head.bias"})


@pytest.fixture
def growth():
    rows = np.repeat(np.arange(NEW), [len(parts) for parts in PARTS]).astype(np.int32)
    return Growth("old", OLD, PADDED, TABLES, rows, np.concatenate(PARTS).astype(np.int32))


def params_of(rows):
    rng = np.random.default_rng(rows)
    return {
        "encoder": {
            "tokens": {"embedding": jnp.asarray(rng.normal(size=(rows, 3)), jnp.float32)},
            "head": {"bias": jnp.asarray(rng.normal(size=rows), jnp.float32)},
            # As long as the old table, but no table.
            "positions": {"embedding": jnp.asarray(rng.normal(size=(PADDED, 3)), jnp.float32)},
        }
    }


def abstract(params):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), params)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    checkpoints = Checkpoints(folder, keep=1)
    state = TrainState(jnp.int32(3), params_of(PADDED), {}, ())
    checkpoints.save(3, state, RunRecord({}, "data", "", vocabulary="old"))
    checkpoints.close()
    return folder


def expected(table):
    """Returns the grown table, row by row."""
    table = np.asarray(table)
    rows = [np.mean([table[part] for part in parts], axis=0) for parts in PARTS]
    return np.stack([*rows, *[np.zeros_like(rows[0])] * (LARGER - NEW)])


def test_rows_are_means_and_old_rows_stay(run, growth, caplog):
    wanted = abstract(params_of(LARGER))
    wanted["encoder"]["positions"] = abstract(params_of(PADDED))["encoder"]["positions"]
    assert check_warm_start(run, wanted, "new", growth=growth).keys() == {"encoder"}
    with caplog.at_level("INFO"):
        found = warm_start(run, wanted, "new", growth=growth)["encoder"]
    old = params_of(PADDED)["encoder"]
    for part, name in (("tokens", "embedding"), ("head", "bias")):
        table = found[part][name]
        np.testing.assert_allclose(table, expected(old[part][name]), rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(table[: OLD - 1], old[part][name][: OLD - 1])
        np.testing.assert_array_equal(table[NEW - 1], old[part][name][OLD - 1])
    np.testing.assert_array_equal(found["positions"]["embedding"], old["positions"]["embedding"])
    assert "grown from 5 to 8 ids: the rows of 3 new pieces" in caplog.text


def test_growth_within_the_padding_moves_the_mask(run, growth):
    # Six rows hold six ids: the shapes are as before.
    parts = [[0], [1], [2], [3], [1, 3], [4]]
    rows = np.repeat(np.arange(6), [len(part) for part in parts]).astype(np.int32)
    one = Growth("old", OLD, PADDED, TABLES, rows, np.concatenate(parts).astype(np.int32))
    found = warm_start(run, abstract(params_of(PADDED)), "new", growth=one)["encoder"]
    old = params_of(PADDED)["encoder"]["tokens"]["embedding"]
    np.testing.assert_allclose(found["tokens"]["embedding"][4], (old[1] + old[3]) / 2, rtol=1e-6)
    np.testing.assert_array_equal(found["tokens"]["embedding"][5], old[4])


def test_a_smaller_vocabulary_takes_the_rows_of_its_pieces(run, caplog):
    # Piece 3 is left out, and <mask>, 4, becomes 3; one row of padding is left.
    sources = np.asarray([0, 1, 2, 4], np.int32)
    growth = Growth("old", OLD, PADDED, TABLES, np.arange(4, dtype=np.int32), sources)
    assert growth.new_pieces == 0
    model = abstract(params_of(5))
    model["encoder"]["positions"] = abstract(params_of(PADDED))["encoder"]["positions"]
    with caplog.at_level("INFO"):
        loaded = warm_start(run, model, "new", growth=growth)["encoder"]
    old = params_of(PADDED)["encoder"]
    for part, name in (("tokens", "embedding"), ("head", "bias")):
        np.testing.assert_array_equal(loaded[part][name][:4], old[part][name][sources])
        assert not np.asarray(loaded[part][name][4:]).any()
    np.testing.assert_array_equal(loaded["positions"]["embedding"], old["positions"]["embedding"])
    assert "shrunk from 5 to 4 ids: the rows of 1 old pieces in" in caplog.text


def test_two_encoders_grow_from_one(run, growth):
    one = abstract(params_of(LARGER))["encoder"]
    one["positions"] = abstract(params_of(PADDED))["encoder"]["positions"]
    names = {"one": "encoder", "two": "encoder"}
    tables = {f"{x}.{table}" for x in names for table in ("tokens.embedding", "head.bias")}
    both = Growth("old", OLD, PADDED, frozenset(tables), growth.rows, growth.sources)
    found = warm_start(run, {"one": one, "two": one}, "new", (), names, both)
    old = params_of(PADDED)["encoder"]
    for encoder in found.values():
        table = encoder["tokens"]["embedding"]
        np.testing.assert_allclose(table, expected(old["tokens"]["embedding"]), atol=1e-7)
        np.testing.assert_allclose(encoder["head"]["bias"], expected(old["head"]["bias"]), 1e-6)
        np.testing.assert_array_equal(
            encoder["positions"]["embedding"], old["positions"]["embedding"]
        )
    # The train step donates each of them.
    leaves = jax.tree.leaves(found)
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
    # A table of another model that does not grow must fit.
    with pytest.raises(ValueError, match=r"one\.head\.bias has shape \(6,\)"):
        check_warm_start(run, {"one": one, "two": one}, "new", (), names, growth)


def test_another_vocabulary_is_refused(run, growth):
    other = Growth("other", OLD, PADDED, TABLES, growth.rows, growth.sources)
    for one in (None, other):
        with pytest.raises(ValueError, match=r"does not extend it.*--extend"):
            check_warm_start(run, abstract(params_of(LARGER)), "new", growth=one)


def test_the_same_vocabulary_does_not_grow(run, growth):
    other = Growth("other", OLD, PADDED, TABLES, growth.rows, growth.sources)
    found = warm_start(run, abstract(params_of(PADDED)), "old", growth=other)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params_of(PADDED)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_width_that_differs_is_refused(run, growth):
    wide = {"encoder": {"tokens": {"embedding": jax.ShapeDtypeStruct((LARGER, 4), jnp.float32)}}}
    with pytest.raises(ValueError, match=r"has shape \(10, 3\), this model needs \(10, 4\)"):
        check_warm_start(run, wide, "new", ("encoder.head",), growth=growth)
