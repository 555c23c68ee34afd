import math

import numpy as np
import pytest
from matplotlib import image

from tests.data.test_pair_sampling import names, random_counts
from xlme_jax.studies.reports import pair_densities
from xlme_jax.studies.reports.pair_densities import PairDensity


@pytest.fixture(scope="module")
def counts():
    return random_counts(np.random.default_rng(0), 12, 50, 4)


def test_samplers_give_languages_the_same_shares(counts):
    tempered, corner, entropic = pair_densities.samplers(names(counts), counts, 0.6)
    for sampler in (tempered, corner, entropic):
        np.testing.assert_allclose(sampler.density, sampler.density.T, atol=1e-12)
        assert abs(sampler.density.sum() - 1) < 1e-12 and not sampler.density[counts == 0].any()
    np.testing.assert_allclose(corner.density.sum(axis=0), entropic.density.sum(axis=0), atol=1e-9)
    ratio = tempered.density[counts > 0] / counts[counts > 0] ** 0.6
    np.testing.assert_allclose(ratio, ratio[0])


def test_the_table_counts_pairs_that_are_never_drawn():
    counts = np.array([[0, 4, 4, 0], [4, 0, 4, 2], [4, 4, 0, 0], [0, 2, 0, 0]])
    alike = np.where(counts > 0, 1 / 8, 0.0)
    two = np.zeros((4, 4))
    two[0, 1] = two[1, 0] = two[0, 2] = two[2, 0] = 0.25
    lines = pair_densities.table(
        counts, [PairDensity("alike", alike), PairDensity("two", two)]
    ).split("\n")
    assert lines[0] == "4 pairs of 4 languages, 14 examples"
    assert lines[2].split() == ["alike", "0", "0.0%", "1.386", "4.0", "25.00%", "37.50%"]
    assert lines[3].split() == [
        "two",
        "2",
        "50.0%",
        f"{math.log(2):.3f}",
        "2.0",
        "50.00%",
        "50.00%",
    ]


@pytest.mark.parametrize(
    ("size", "total", "head", "entropy", "largest"),
    [
        (2, 1, "1 pair of 2 languages, 1 example", "0.000", "100.00%"),
        (2, 5000, "1 pair of 2 languages, 5,000 examples", "0.000", "100.00%"),
        (448, 1, "100,128 pairs of 448 languages, 100,128 examples", "11.514", "0.00100%"),
    ],
)
def test_the_table_of_one_pair_and_of_very_many(size, total, head, entropy, largest):
    counts = total * (1.0 - np.eye(size))
    alike = PairDensity("alike", counts / counts.sum())
    first, _, row = pair_densities.table(counts, [alike]).split("\n")
    assert first == head
    assert [row.split()[column] for column in (3, 5)] == [entropy, largest]


def test_the_linear_programme_leaves_out_what_sinkhorn_keeps(counts):
    found = pair_densities.samplers(names(counts), counts, 0.6)
    never = [int(line.split()[-6]) for line in pair_densities.table(counts, found).split("\n")[2:]]
    assert never[0] == never[2] == 0 and never[1] >= 50 - (2 * 12 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("shown", [(), ("l3", "l5", "l0", "l7")])
def test_densities_are_drawn(tmp_path, counts, shown):
    found = pair_densities.samplers(names(counts), counts, 0.6)
    for number, samplers in enumerate((found[1:], found[2:])):
        path = tmp_path / f"{number}.png"
        pair_densities.draw(path, names(counts), counts, samplers, shown)
    pictures = [image.imread(tmp_path / f"{n}.png") for n in (0, 1)]
    assert pictures[0].shape[1] > 1.5 * pictures[1].shape[1]
    # Grey, and only in the picture with the linear programme.
    grey = [(np.ptp(p[..., :3], axis=2) == 0) & (np.abs(p[..., 0] - 0.91) < 0.02) for p in pictures]
    assert grey[0].mean() > 0.05 > 0.005 > grey[1].mean()


def test_languages_without_pairs_cannot_be_drawn(tmp_path, counts):
    found = pair_densities.samplers(names(counts), counts, 0.6)
    with pytest.raises(ValueError, match=r"no pair has the languages \['xx'\]"):
        pair_densities.draw(tmp_path / "x.png", names(counts), counts, found, ["l1", "xx"])
    with pytest.raises(ValueError, match=r"no two of the languages \['l1'\] are a pair"):
        pair_densities.draw(tmp_path / "x.png", names(counts), counts, found, ["l1"])
