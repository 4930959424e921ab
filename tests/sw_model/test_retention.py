"""Hit rates against a plain model with sets and lists, and against bounds."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from sw_model.assumptions import Assumptions
from sw_model.media.source import Options, open_source
from sw_model.retention import DECAY, RULES, HitRate, Selected, hit_rate
from tests.sw_model.bench_retention import selections


def random_steps(rng, count=40, favoured=0.3):
    """Steps with one to four new tokens; some tokens are favoured, so that selections repeat."""
    steps, past, popular = [], 0, np.zeros(0, bool)
    for _ in range(count):
        new = int(rng.integers(1, 5))
        chosen = rng.random(past) < np.where(popular[:past], 0.6, 0.1)
        steps.append(Selected(past, new, np.flatnonzero(chosen)))
        popular = np.r_[popular, rng.random(new) < favoured]
        past += new
    return steps


def plain(steps, rule, capacity):
    """Hits by the words of the module, token by token."""
    held, written, uses, fetched, hits = set(), {}, {}, {}, 0
    for number, step in enumerate(steps):
        needed = set(step.tokens.tolist())
        hits += len(needed & held)
        for token in range(step.past, step.past + step.new):
            written[token] = fetched[token] = number
            uses[token] = []
        for token in needed:
            uses[token].append(number)
        for token in needed - held:
            fetched[token] = number
        held |= set(range(step.past, step.past + step.new)) | (needed if rule != "age" else set())
        newest = step.past + step.new - capacity // 2
        priority = {
            "age": lambda t: written[t],
            "last_fetch": lambda t: fetched[t],
            "last_use": lambda t: max([written[t], *uses[t]]),
            "frequency": lambda t, now=number, newest=newest: (
                1e9 if t >= newest else sum(DECAY ** (now - use) for use in uses[t])
            ),
        }[rule]
        ranked = sorted(held, key=lambda token: (round(priority(token), 9), token))
        held = set(ranked[len(ranked) - capacity :]) if capacity < len(ranked) else held
    return hits


@pytest.mark.parametrize("rule", ["age", "last_fetch", "last_use", "frequency"])
@pytest.mark.parametrize("capacity", [0, 7, 30])
def test_hits_equal_a_plain_model(rule, capacity, rng):
    steps = random_steps(rng)
    assert hit_rate(steps, rule, capacity).hits == plain(steps, rule, capacity)


def best(steps, capacity):
    """Largest possible number of hits: every set of tokens that a memory can hold is tried."""
    states = {frozenset(): 0}
    for step in steps:
        needed, after = frozenset(step.tokens.tolist()), {}
        for held, hits in states.items():
            candidates = held | needed | frozenset(range(step.past, step.past + step.new))
            for kept in combinations(sorted(candidates), min(capacity, len(candidates))):
                key = frozenset(kept)
                after[key] = max(after.get(key, 0), hits + len(needed & held))
        states = after
    return max(states.values())


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_optimum_has_the_most_hits(capacity, rng):
    for _ in range(5):
        steps = random_steps(rng, count=4)
        assert hit_rate(steps, "optimum", capacity).hits == best(steps, capacity)


def test_no_rule_beats_the_optimum(rng):
    steps = random_steps(rng, count=80)
    for capacity in (5, 20, 60):
        hits = {rule: hit_rate(steps, rule, capacity).hits for rule in RULES}
        assert hits["optimum"] == max(hits.values())


def test_a_memory_for_everything_misses_nothing(rng):
    steps = random_steps(rng)
    for rule in RULES:
        rate = hit_rate(steps, rule, steps[-1].past + steps[-1].new, first=10)
        assert rate.share == 1 and rate.selected == sum(len(step.tokens) for step in steps[10:])
        assert hit_rate(steps, rule, 0).hits == 0


def test_favoured_tokens_stay_by_frequency():
    """One token is selected in every other step, all others once, in the step after they are written."""
    steps = [Selected(0, 1, np.zeros(0, int)), Selected(1, 1, np.array([0]))]
    steps += [Selected(n, 1, np.array([0, n - 1] if n % 2 else [n - 1])) for n in range(2, 60)]
    assert hit_rate(steps, "frequency", 4, first=20).share == 1
    assert hit_rate(steps, "age", 4, first=20).share == pytest.approx(40 / 60)


def test_refusals():
    with pytest.raises(ValueError, match=r"rule must be one of age, .*, optimum, got 'random'"):
        hit_rate([], "random", 1)
    with pytest.raises(ValueError, match="capacity must be at least 0, got -1"):
        hit_rate([], "age", -1)
    with pytest.raises(ValueError, match="past of step 1 must be that of the step before and its new tokens, got 3"):
        hit_rate([Selected(0, 2, np.zeros(0, int)), Selected(3, 1, np.zeros(0, int))], "age", 1)
    with pytest.raises(ValueError, match="tokens"):
        Selected(2, 1, np.array([2]))
    assert HitRate(0, 0).share == 1 and hit_rate([], "age", 3).selected == 0


@pytest.mark.heavy
def test_assumed_hits_are_the_overlap_of_golden_selections():
    """Share of a selection that the frame before selected, too: the last 23 frames of 4,700 tokens, all KV heads."""
    shares = []
    for seed in (0, 1):
        for steps in selections(open_source("generator", Options(frames=460, seed=seed)), "resv"):
            for before, step in pairwise(steps[-24:]):
                shares.append(np.isin(step.tokens, before.tokens).mean())
    assert np.mean(shares) == pytest.approx(Assumptions().retained_hit, abs=0.02)
