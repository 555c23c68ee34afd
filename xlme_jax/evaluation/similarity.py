"""How similar the states of two languages are: linear CKA, and cosines after centring."""

import numpy as np

METRICS = ("cka", "centred_similarity")
DESCRIPTION = (
    "cka: linear centred kernel alignment of translations; centred_similarity: mean cosine of "
    "translations, each side minus its mean over these sentences"
)


def measures(source: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Returns {metric: value at every layer, float64[K]} for each of `METRICS`.

    Args:
      source: [K, N, D], embeddings of N sentences at K layers.
      target: [K, N, D], embeddings of their translations.
    """
    sides = [(side - side.mean(axis=1, keepdims=True)) for side in (source, target)]
    values = (linear_cka(*sides), _mean_cosine(*sides))
    return dict(zip(METRICS, values))


def linear_cka(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns linear CKA (Kornblith et al. 2019, Eq. 3 with a linear kernel) at every layer.

    It is |Y'X|^2 / (|X'X| |Y'Y|) in Frobenius norms for centred X and Y: 1 if one side is the other
    rotated and scaled, 0 if all features are uncorrelated.

    Args:
      source: [K, N, D], centred over N.
      target: [K, N, E], centred over N.

    Returns:
      float64[K], in [0, 1]; NaN for a layer where a side is constant or not finite.
    """
    similarities = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for x, y in zip(source, target):
            # Scaled to norm 1, so that fourth powers of the entries stay in float32's range.
            x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
            cross, x_norm, y_norm = (np.linalg.norm(a.T @ b) for a, b in ((y, x), (x, x), (y, y)))
            similarities.append(float(cross) ** 2 / (float(x_norm) * float(y_norm)))
    return np.array(similarities)


def _mean_cosine(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the mean cosine of translations at every layer, float64[K]."""
    norms = np.linalg.norm(source, axis=2) * np.linalg.norm(target, axis=2)
    cosines = np.einsum("knd,knd->kn", source, target) / np.maximum(norms, 1e-30)
    return cosines.mean(axis=1, dtype=np.float64)
