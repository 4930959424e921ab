"""Sampling of tokens: probabilities by definition, limits, reproducible answers."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.runtime import Limits, compile_model
from compiler.sampling import Sampler, Sampling
from golden.bf16 import FP32, decode
from hw.config import Config
from tests.compiler.checkpoints import write_random

LOGITS = np.log([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    "sampling, expected",
    [
        (Sampling(), [0.4, 0.3, 0.2, 0.1]),
        (Sampling(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),  # squares
        (Sampling(temperature=1e-3), [1, 0, 0, 0]),
        (Sampling(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(top_k=9), [0.4, 0.3, 0.2, 0.1]),
        (Sampling(top_p=0.35), [1, 0, 0, 0]),
        (Sampling(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0]),
        (Sampling(top_k=3, top_p=0.6), [4 / 7, 3 / 7, 0, 0]),
    ],
)
def test_probabilities(sampling, expected):
    np.testing.assert_allclose(sampling.probabilities(LOGITS + 700), expected, atol=1e-12)


def test_equal_tokens_stay_together():
    np.testing.assert_allclose(Sampling(top_k=1).probabilities(np.array([1.0, 3, 3, -np.inf])), [0, 0.5, 0.5, 0])


def test_tokens_are_drawn_by_their_probabilities(seed):
    """20,000 draws; the bounds are five standard deviations."""
    sampler, count = Sampler(Sampling(seed=seed)), 20_000
    shares = np.bincount([sampler.draw(LOGITS) for _ in range(count)], minlength=4) / count
    expected = np.exp(LOGITS)
    assert (np.abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / count)).all()


def test_answers_of_a_session(tmp_path, rng):
    """One seed gives one answer, from the logits of the machine; its own choice is that of a temperature near 0."""
    write_random(tmp_path, "llama", rng)
    machine = compile_model(Checkpoint(tmp_path), Config.preset("tiny"), Limits(streams=6, tokens=64))

    def answer(sampling):
        session, tokens = machine.session(), []
        for token in session.ask([3, 4, 5], count=12, sampling=sampling):
            assert sampling is None or sampling.probabilities(decode(session.logits, FP32))[token] > 0
            tokens.append(token)
        return tokens

    assert answer(None) == answer(Sampling(temperature=1e-6)) == answer(Sampling(top_k=1))
    drawn = answer(Sampling(temperature=50.0, seed=7))
    assert drawn == answer(Sampling(temperature=50.0, seed=7)) != answer(Sampling(temperature=50.0, seed=8))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"top_k": -1}, "top_k must be at least 0, got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Sampling(**values)
