"""Sampling weights that respond to losses: the best response in a chi-square ball (XY-LENT)."""

import numpy as np


def best_response(
    losses: np.ndarray, weights: np.ndarray, rho: float, floor: float = 0.0
) -> np.ndarray:
    """Returns the weights with the largest mean loss near the sampling weights.

    It is the inner problem of XY-LENT's Eq. 3 (Zhou et al. 2021): maximize sum_i p_i losses_i over
    distributions p with D(p, q) = 1/2 sum_i q_i (p_i / q_i - 1)^2 <= rho and p_i >= floor q_i,
    where q are the sampling weights. Papers define the chi-square divergence with and without the
    1/2; rho here is that of Zhou et al., whose code has rho = .05 and floor = .2.

    The solution is p_i = q_i (floor + a max(0, losses_i - eta)). While no weight is at its floor,
    p_i = q_i (1 + sqrt(2 rho) z_i), with z the losses standardized under q. In general, let A be
    the losses above eta, with probability Q, mean m and variance v under q. The two constraints
    give (m - eta)^2 = v / (c Q - 1) and a = (1 - floor) / (Q (m - eta)), where c = 1 + 2 rho / (1 -
    floor)^2. D decreases with eta, so A is found among the sorted losses.

    Args:
      losses: float[N], finite; a baseline's losses may have been subtracted.
      weights: float[N], q, 0 or more, with sum 1. Weights of 0 remain 0.
      rho: radius of the ball, 0 or more; 0 returns the weights.
      floor: smallest p_i / q_i, from 0 to below 1.

    Returns:
      float64[N], with sum 1; the weights themselves if all losses are equal.

    Raises:
      ValueError: an argument is out of range; the message names it.
    """
    losses, weights = _checked(losses, weights, rho, floor)
    drawn = weights > 0
    low, high = losses[drawn].min(), losses[drawn].max()
    if rho == 0 or low == high:
        return weights / weights.sum()
    # In units of the range below the largest loss, so that neither a common offset nor the unit of
    # the losses costs digits.
    ratios = np.zeros_like(weights)
    ratios[drawn] = _ratios((losses[drawn] - high) / (high - low), weights[drawn], rho, floor)
    response = weights * ratios
    return response / response.sum()


def _ratios(losses: np.ndarray, weights: np.ndarray, rho: float, floor: float) -> np.ndarray:
    """Returns p / q of each task (see `best_response`), float64[N].

    Args:
      losses: float64[N], from -1 to 0, not all equal.
      weights: float64[N], q, positive; normalized here.
      rho: radius of the ball, positive.
      floor: smallest p / q.
    """
    levels, groups = np.unique(-losses, return_inverse=True)
    levels = -levels  # Decreasing.
    # Of each distinct loss its probability; of it and all larger losses the probability Q, the mean
    # m and the variance v. The variance is a sum of what each loss adds to those above it (Chan,
    # Golub and LeVeque 1983): the mean square less the squared mean would lose its digits where
    # one task has most of the probability.
    masses = np.bincount(groups, weights) / weights.sum()
    mass = np.cumsum(masses)
    mass[-1] = 1
    mean = np.cumsum(masses * levels) / mass
    added = masses[1:] * mass[:-1] / mass[1:] * (levels[1:] - mean[:-1]) ** 2
    variance = np.concatenate([[0], np.cumsum(added)]) / mass
    # c mass - 1, without the cancellation of a small rho.
    excess = mass - 1 + 2 * rho / (1 - floor) ** 2 * mass
    # Whether D is within the ball if eta is the next lower loss.
    distance = (mean[:-1] - levels[1:]) ** 2
    above = np.flatnonzero(variance[:-1] <= excess[:-1] * distance)
    last = int(above[0]) if len(above) else len(levels) - 1
    if last == 0:  # Everything beyond the floor goes to the largest loss.
        return np.where(groups == 0, floor + (1 - floor) / mass[0], floor)
    # Of the losses above eta again, in two passes: their differences from the mean may be small.
    differences = levels - mean[last]
    differences -= masses[: last + 1] @ differences[: last + 1] / mass[last]
    square = masses[: last + 1] @ differences[: last + 1] ** 2
    excesses = np.maximum(0, differences + np.sqrt(square / (mass[last] * excess[last])))
    # The sum of the response gives a, so that rounding takes no weight below its floor.
    return floor + ((1 - floor) * excesses / (masses @ excesses))[groups]


def clamped_response(
    losses: np.ndarray, weights: np.ndarray, rho: float, floor: float
) -> np.ndarray:
    """Returns weights near the sampling weights as the code of Zhou et al. (2021) computes them.

    It is `update_mw` in fairseq/criterions/chi_square_resample.py of violet-zct/fairseq-dro-mnmt,
    with the flags of exps/1_baseline_t1_chi_square_0.05_ted.sh. p is proportional to
    q max(0, losses - eta); p / q is raised to `floor` and p normalized again, so that p / q may end
    below it; eta is such that D(p, q) = rho. Last, p is raised to the smallest q and normalized.

    Args:
      losses: float[N], finite.
      weights: float[N], q, 0 or more, with sum 1. Weights of 0 remain 0.
      rho: radius of the ball, 0 or more; 0 returns the weights.
      floor: smallest p / q before the normalization, from 0 to below 1.

    Returns:
      float64[N], with sum 1; the weights themselves if all losses are equal.

    Raises:
      ValueError: an argument is out of range; the message names it.
    """
    losses, weights = _checked(losses, weights, rho, floor)
    drawn = weights > 0
    q = weights[drawn] / weights.sum()
    high = losses[drawn].max()
    spread = high - losses[drawn].min()
    if rho == 0 or spread == 0:
        return weights / weights.sum()
    below = (losses[drawn] - high) / spread  # From -1 to 0.

    def response(eta: float) -> np.ndarray:
        excess = np.maximum(0, below - eta)
        ratios = np.maximum(floor, excess / (q @ excess))
        return q * ratios / (q @ ratios)

    def distance(eta: float) -> float:
        return 0.5 * float(q @ (response(eta) / q - 1) ** 2)

    # D falls to 0 as eta falls. A ball beyond the largest D keeps eta just below the largest loss.
    low, top = -2.0, -1e-9
    while distance(low) > rho:
        low *= 2
    for _ in range(100):
        middle = 0.5 * (low + top)
        low, top = (low, middle) if distance(middle) > rho else (middle, top)
    result = np.zeros_like(weights)
    result[drawn] = np.maximum(response(low), q.min())
    return result / result.sum()


def _checked(
    losses: np.ndarray, weights: np.ndarray, rho: float, floor: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns losses and weights as float64.

    Raises:
      ValueError: an argument of `best_response` is out of range; the message names it.
    """
    losses, weights = np.asarray(losses, np.float64), np.asarray(weights, np.float64)
    if losses.ndim != 1 or losses.shape != weights.shape:
        raise ValueError(
            f"losses have shape {losses.shape} and weights {weights.shape}; both must be [N], with "
            "an entry for each task"
        )
    if not np.all(np.isfinite(losses)):
        bad = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise ValueError(f"losses[{bad}] is {losses[bad]}: every task needs a finite loss")
    if not (np.all(weights >= 0) and np.isclose(weights.sum(), 1)):
        raise ValueError("weights must be 0 or more with sum 1")
    if not (np.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho={rho} must be 0 or more (Zhou et al. use 0.05)")
    if not 0 <= floor < 1:
        raise ValueError(f"floor={floor} must be at least 0 and below 1 (Zhou et al. use 0.2)")
    return losses, weights
