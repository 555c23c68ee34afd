"""The buckets of signed distances equal those of Hugging Face's T5 and WavLM.

Sign: both count a distance as key minus query, so that keys after the query have the upper half of
the buckets. `distance_buckets` stores the distance t at index t mod 2L.
"""

import numpy as np
import pytest

from xlme_jax.model.relative_bias import distance_buckets

torch = pytest.importorskip("torch", reason="compares with torch code")
t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="compares with T5")
wavlm = pytest.importorskip(
    "transformers.models.wavlm.modeling_wavlm", reason="compares with WavLM"
)

SHAPES = [(32, 128), (320, 800), (320, 1280), (16, 64), (8, 20), (4, 3), (64, 512), (128, 128)]


def by_distance(length):
    """Returns signed distances in the order of `distance_buckets`, and which indices are used."""
    index = np.arange(2 * length)
    distance = np.where(index < length, index, index - 2 * length)
    return distance, index != length  # -L occurs in no row of L tokens


@pytest.mark.parametrize("num_buckets, max_distance", SHAPES)
@pytest.mark.parametrize("length", [1, 2, 7, 64, 128, 129, 512, 600])
def test_equals_t5(length, num_buckets, max_distance):
    distance, real = by_distance(length)
    expected = t5.T5Attention._relative_position_bucket(
        torch.from_numpy(distance), True, num_buckets, max_distance
    ).numpy()
    buckets = distance_buckets(length, num_buckets, max_distance)
    assert buckets.shape == (2 * length,) and buckets.dtype == np.int32
    np.testing.assert_array_equal(buckets[real], expected[real])


@pytest.mark.parametrize("num_buckets, max_distance", [(320, 800), (32, 128)])
def test_equals_wavlm(num_buckets, max_distance):
    module = wavlm.WavLMAttention(8, 2, num_buckets=num_buckets, max_distance=max_distance)
    distance, real = by_distance(600)
    expected = module._relative_positions_bucket(torch.from_numpy(distance)).numpy()
    buckets = distance_buckets(600, num_buckets, max_distance)
    np.testing.assert_array_equal(buckets[real], expected[real])


def test_keys_after_the_query_have_the_upper_half():
    buckets = distance_buckets(200, 32, 128)
    assert buckets[0] == 0
    assert (buckets[1:200] > 16).all() and (buckets[201:] < 16).all()
    np.testing.assert_array_equal(buckets[1:200], buckets[:200:-1] + 16)
    assert buckets[128:200].tolist() == [31] * 72  # max_distance and beyond share a bucket
    assert (np.diff(buckets[1:200]) >= 0).all()


def test_does_not_depend_on_the_length_of_the_row():
    short, long = distance_buckets(40, 32, 128), distance_buckets(600, 32, 128)
    np.testing.assert_array_equal(short[:40], long[:40])
    np.testing.assert_array_equal(short[41:], long[-39:])
