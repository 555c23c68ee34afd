"""Mined negatives are those of sentence-transformers' `mine_hard_negatives`, for given vectors."""

import collections
import importlib
import sys
import types

import numpy as np
import pytest

from xlme_jax.runs import mining

util = pytest.importorskip("sentence_transformers.util")


class Table(dict):
    """What `mine_hard_negatives` asks of a `datasets.Dataset`, which need not be installed."""

    column_names = property(list)
    from_dict = classmethod(lambda cls, columns: cls(columns))

    def __len__(self):
        return len(next(iter(self.values())))

    def to_pandas(self):
        """Returns what counts the rows of each value by `groupby(column).count().to_dict()`."""

        def groupby(column):
            counts = {name: collections.Counter(self[column]) for name in self}
            return types.SimpleNamespace(count=lambda: types.SimpleNamespace(to_dict=counts.copy))

        return types.SimpleNamespace(groupby=groupby)


class Vectors:
    """What `mine_hard_negatives` asks of a model, with a vector for each text."""

    device = "cpu"

    def __init__(self, vectors):
        self._vectors = vectors

    def encode_document(self, texts, **options):
        return np.stack([self._vectors[text] for text in texts])

    encode_query = encode_document
    similarity = staticmethod(util.cos_sim)
    similarity_pairwise = staticmethod(util.pairwise_cos_sim)


@pytest.mark.parametrize(
    ("relative_margin", "max_score"), [(0.05, None), (0.3, None), (0.0, 0.5), (0.1, 0.4)]
)
def test_negatives_are_those_of_sentence_transformers(monkeypatch, relative_margin, max_score):
    """With sources that occur twice, with other translations, and targets that do."""
    module = importlib.import_module(util.mine_hard_negatives.__module__)
    monkeypatch.setattr(module, "is_datasets_available", lambda: True)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(Dataset=Table))
    rng = np.random.default_rng(0)
    sources = [f"{n % 50:03}" for n in range(60)]
    targets = [f"t{n % 55:03}" for n in range(60)]
    meanings = rng.normal(size=(60, 6))
    vectors = {
        text: (meanings[int(text[-3:]) % 50] + 0.7 * rng.normal(size=6)).astype(np.float32)
        for text in [*sources, *targets]
    }
    mined = util.mine_hard_negatives(
        Table(anchor=sources, positive=targets),
        Vectors(vectors),
        relative_margin=relative_margin,
        max_score=max_score,
        range_max=55,
        num_negatives=1,
        verbose=False,
    )
    expected = dict(zip(zip(mined["anchor"], mined["positive"]), mined["negative"]))
    as_text = {tuple(map(ord, text)): text for text in vectors}
    chosen = mining.choose(
        [tuple(map(ord, text)) for text in sources],
        [tuple(map(ord, text)) for text in targets],
        lambda texts: np.stack([vectors[as_text[text]] for text in texts]),
        mining.Mining(relative_margin, max_score, range_max=55),
    )
    negatives_of = {
        (sources[n], targets[n]): targets[negative]
        for n, negative in enumerate(chosen.pairs)
        if negative >= 0
    }
    assert negatives_of == expected
    assert 10 < len(negatives_of) <= 60


def test_margins_are_those_of_a_loop():
    """The ratio margin takes the place of the cosine in the choice and in the limit."""
    rng = np.random.default_rng(0)
    meanings = rng.normal(size=(30, 5)).astype("f4")
    sources = [(n,) for n in range(30)]
    targets = [(100 + n,) for n in range(30)]
    # The targets crowd around one direction, so that some are near to all sources.
    noise = rng.normal(size=(30, 5)).astype("f4") + 3 * (np.arange(30) % 3 == 0)[:, None]
    vectors = dict(zip([*sources, *targets], [*meanings, *(meanings + noise)]))

    def choose(score):
        return mining.choose(
            sources,
            targets,
            lambda texts: np.stack([vectors[text] for text in texts]),
            mining.Mining(0.1, range_max=30, score=score),
        )

    x, y = (
        np.array([vectors[text] / np.linalg.norm(vectors[text]) for text in side], float)
        for side in (sources, targets)
    )
    cosines = x @ y.T
    expected = []
    for i in range(30):
        scores = []
        for j in range(30):
            means = np.sort(cosines[i])[-4:].mean(), np.sort(cosines[:, j])[-4:].mean()
            scores.append(cosines[i, j] / (sum(means) / 2))
        limit = scores[i] - 0.1 * abs(scores[i])
        allowed = [j for j in range(30) if j != i and scores[j] <= limit]
        expected.append(max(allowed, key=lambda j: scores[j], default=-1))
    assert choose("margin").pairs.tolist() == expected
    assert choose("cosine").pairs.tolist() != expected
