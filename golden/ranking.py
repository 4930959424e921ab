"""Order of real scores in which the lowest index wins ties, on every machine.

Scores come from matrix products, whose order of addition depends on the library, the processor and the place of a row
in the matrix. Equal vectors can therefore have scores that differ in the last bits. Two scores are equal here if they
are neighbours in the sorted order and their distance is at most `TIE` times their scale. A rounding error is smaller
than that, and the distance of scores that really differ is larger, except for a negligible share of them.
"""

import numpy as np

from util import checks

TIE = 1e-12  # largest distance of equal scores, as a share of their scale


def order(scores: np.ndarray, scale: np.ndarray | float | None = None) -> np.ndarray:
    """Indices along the last axis in descending order of score; of equal scores the lowest index comes first.

    scores  (..., N), finite
    scale   bound of |score|, broadcast against `scores`: for a dot product, the product of the lengths of the vectors;
            None: |score|, for scores without cancellation such as norms

    Equality is transitive: a run of scores, each equal to the next one, has one rank. Returns int64 (..., N).
    """
    values = checks.reals("scores", scores)
    if not values.ndim:
        raise ValueError("scores must have at least one axis, got a scalar")
    bound = np.abs(values) if scale is None else checks.reals("scale", scale)
    try:
        bound = np.broadcast_to(bound, values.shape)
    except ValueError:
        raise ValueError(f"scale must broadcast to shape {values.shape}, got {bound.shape}") from None
    indices = np.argsort(-values, axis=-1, kind="stable")
    ranked, bounds = (np.take_along_axis(x, indices, axis=-1) for x in (values, bound))
    distance = ranked[..., :-1] - ranked[..., 1:]
    equal = distance <= TIE * np.maximum(bounds[..., :-1], bounds[..., 1:])
    if not (equal & (distance > 0)).any():
        return indices  # identical scores are in the order of their indices already
    ranks = np.zeros(values.shape, np.int64)
    np.cumsum(~equal, axis=-1, out=ranks[..., 1:])
    reordered = np.argsort(ranks * values.shape[-1] + indices, axis=-1)
    return np.take_along_axis(indices, reordered, axis=-1)


def largest(scores: np.ndarray, k: int, scale: np.ndarray | float | None = None) -> np.ndarray:
    """The first `k` indices of `order`, or all if there are fewer."""
    return order(scores, scale)[..., : checks.integer("k", k, 0)]
