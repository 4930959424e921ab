"""Which tokens stay in a device memory that does not hold the whole cache: hit rate of a rule on selections.

The memory holds `capacity` tokens of one KV head. A step needs the tokens that a policy selected. Those that are not in
the memory cross the link and are hits of nobody. After the step the memory keeps `capacity` of the tokens that it held,
that were fetched, and that are new: those with the highest priority.

==========  ====================================================================================================
rule        priority of a token
==========  ====================================================================================================
age         the newest; fetched tokens do not stay. V-Rex's recent region
last_fetch  the last step that fetched or wrote it
last_use    the last step that selected or wrote it. The KVMU with `retain`
frequency   half of the memory: the newest tokens; the rest: number of selections, each weighted with `DECAY` for every
            step since
optimum     the next step that selects it comes first, and it is known. No rule has fewer misses for tokens of equal
            size (Belady 1966)
==========  ====================================================================================================

ReSV fetches pages, which are tokens of one cluster that are selected together, so a token stands for its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from util import checks

RULES = ("age", "last_fetch", "last_use", "frequency", "optimum")
DECAY = 0.98  # of the weight of a selection, per step: half after 34 steps


@dataclass(frozen=True)
class Selected:
    """Selection of one step and KV head: `tokens`, int64 ascending, of `past` tokens, before `new` tokens are added."""

    past: int
    new: int
    tokens: np.ndarray

    def __post_init__(self) -> None:
        checks.integer("past", self.past, 0)
        checks.integer("new", self.new, 0)
        checks.integers("tokens", self.tokens, None, low=0, high=max(0, self.past - 1))


@dataclass(frozen=True)
class HitRate:
    """Tokens that the steps selected, and how many of them the memory held."""

    selected: int
    hits: int

    @property
    def share(self) -> float:
        """Hits as a share of the selected tokens, 0 to 1; 1 if none was selected."""
        return self.hits / self.selected if self.selected else 1.0


def hit_rate(steps: Sequence[Selected], rule: str, capacity: int, first: int = 0) -> HitRate:
    """Hits of a rule in all steps from number `first` on; earlier steps fill the memory.

    steps     consecutive steps of one KV head; the past of a step is the past of the step before and its new tokens
    capacity  tokens in device memory

    Raises ValueError for an unknown rule, for a negative capacity, and for steps that do not follow each other.
    """
    checks.one_of("rule", rule, RULES)
    checks.integer("capacity", capacity, 0)
    total = steps[-1].past + steps[-1].new if steps else 0
    held, priority, weight = np.zeros(total, bool), np.zeros(total), np.zeros(total)
    next_uses = _next_uses(steps, total) if rule == "optimum" else None
    if steps:
        held[: steps[0].past] = True
    selected = hits = 0
    for number, step in enumerate(steps):
        if number and step.past != steps[number - 1].past + steps[number - 1].new:
            raise ValueError(
                f"past of step {number} must be that of the step before and its new tokens, got {step.past}"
            )
        if number >= first:
            selected += len(step.tokens)
            hits += int(held[step.tokens].sum())
        new = slice(step.past, step.past + step.new)
        if rule == "age":
            priority[new] = number + 1
        elif rule == "last_fetch":
            priority[step.tokens[~held[step.tokens]]] = priority[new] = number + 1
        elif rule == "last_use":
            priority[step.tokens] = priority[new] = number + 1
        elif rule == "frequency":
            weight[step.tokens] += DECAY**-number  # growing weights instead of decaying counts
            priority = weight.copy()
            priority[max(0, new.stop - capacity // 2) : new.stop] = np.inf
        elif next_uses is not None:
            priority = -next_uses[number]
        held[step.tokens] |= rule != "age"
        held[new] = True
        _evict(held, priority, capacity)
    return HitRate(selected, hits)


def _evict(held: np.ndarray, priority: np.ndarray, capacity: int) -> None:
    """Drop the held tokens with the lowest priority, of equal ones the oldest, until `capacity` remain."""
    tokens = np.flatnonzero(held)
    if excess := max(0, len(tokens) - capacity):
        order = np.argsort(priority[tokens], kind="stable")
        held[tokens[order[:excess]]] = False


def _next_uses(steps: Sequence[Selected], total: int) -> np.ndarray:
    """For each step, the number of the next step that selects each token; the number of steps if there is none."""
    following = np.full(total, float(len(steps)))
    result = np.empty((len(steps), total), np.float32)
    for number in reversed(range(len(steps))):
        result[number] = following
        following[steps[number].tokens] = number
    return result
