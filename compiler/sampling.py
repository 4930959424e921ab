"""Sampling of answer tokens on the host, from the logits that the machine computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from util import checks


@dataclass(frozen=True)
class Sampling:
    """Parameters of sampling, with the meaning that they have in transformers.

    temperature  divisor of the logits, above 0
    top_k        only the `top_k` most probable tokens; 0: all. Tokens as probable as the last of them stay, too
    top_p        only the most probable tokens whose sum of probabilities reaches `top_p`, above 0 to 1; 1: all
    seed         of the random numbers; equal seeds and logits give equal tokens
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not checks.real("temperature", self.temperature) > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        checks.integer("top_k", self.top_k, 0)
        if not 0 < checks.real("top_p", self.top_p) <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        checks.integer("seed", self.seed, 0)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probability of each token, float64 (V,), for logits (V,) that are not NaN."""
        scaled = np.asarray(logits, np.float64) / self.temperature
        if 0 < self.top_k < len(scaled):
            scaled = np.where(scaled < np.partition(scaled, -self.top_k)[-self.top_k], -np.inf, scaled)
        weights = np.exp(scaled - scaled.max())
        probabilities = weights / weights.sum()
        if self.top_p < 1:
            order = np.argsort(-probabilities, kind="stable")
            before = np.cumsum(probabilities[order]) - probabilities[order]
            probabilities[order[before >= self.top_p]] = 0
            probabilities /= probabilities.sum()
        return probabilities


class Sampler:
    """Draws tokens with its own sequence of random numbers."""

    def __init__(self, sampling: Sampling):
        self.sampling, self._rng = sampling, np.random.default_rng(sampling.seed)

    def draw(self, logits: np.ndarray) -> int:
        """A token ID for logits (V,)."""
        return int(self._rng.choice(len(logits), p=self.sampling.probabilities(logits)))
