"""State-space branch: golden model against float64, and sessions on the machine against the golden model."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import HybridPolicy
from compiler.policies.base import LayerWidths
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.bf16 import BF16, FP32
from golden.language_model import greedy
from golden.mamba import MambaParams, MambaState, mamba
from golden.state_space import StateSpaceBranch, StateSpaceShape, StateSpaceWeights, decays, softplus
from hw.config import Config
from tests.compiler.checkpoints import write_random
from tests.compiler.test_runtime import golden_model

TINY = Config.preset("tiny").replace(page_frames=256)


def test_errors_of_the_functions():
    """The bounds of the docstrings, on a dense grid."""
    codes = bf16.encode(np.linspace(-60, 60, 100001), FP32)
    want = np.logaddexp(0, bf16.decode(codes, FP32))
    assert (np.abs(bf16.decode(softplus(codes), FP32) - want) <= 0.008 * want).all()
    codes = bf16.encode(-np.concatenate([[0], np.logspace(-12, 2, 100000)]), FP32)
    error = bf16.decode(decays(codes), FP32) - np.exp(64 * bf16.decode(codes, FP32))
    assert np.abs(error).max() <= 8e-5


def test_branch_is_close_to_float64(rng):
    """Steps of any size with carried state, with the exact values of the rounded parameters."""
    shape = StateSpaceShape(64, 32, 64, 4, 4, 3, 4)
    weights = StateSpaceWeights.of_params(MambaParams.random(rng, 64, 32, 64, 4, 4, 3), shape)
    branch, params = StateSpaceBranch(shape, weights), weights.params(shape)
    state = MambaState.zero(params)
    for tokens in (3, 1, 9, 5, 20):
        u = bf16.encode(rng.standard_normal((tokens, 64)))
        got = bf16.decode(branch.step(u), FP32)
        want, state = mamba(bf16.decode(u, BF16), params, state)
        assert np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) < 0.02
        assert np.abs(bf16.decode(branch.h, FP32).T - state.h).max() < 0.02 * np.abs(state.h).max()


@pytest.mark.parametrize("ssm_input, cores", [("query", 1), ("hidden", 2), ("query", 4)])
def test_session_equals_the_golden_model(ssm_input, cores, tmp_path, rng):
    """Frames, a question and an answer; four cores have different numbers of channels. The session cannot be saved."""
    write_random(tmp_path, "llama", rng)
    checkpoint = Checkpoint(tmp_path)
    text = checkpoint.spec.text
    policy = HybridPolicy(sink=4, recent=8, ssm_input=ssm_input, inner=24, states=4, rank=3)
    machine = compile_model(checkpoint, TINY, Limits(tokens=64, step=9), policy, cores=cores)
    model, widths = golden_model(checkpoint, TINY, policy, 64), LayerWidths(text.hidden, text.q_heads, text.head_dim)
    for number, layer in enumerate(model.layers):
        layer.branch_query = ssm_input == "query"
        layer.branch = StateSpaceBranch(
            policy.branch(TINY, widths).shape, policy.branch_weights(TINY, widths, number)
        )  # fmt: skip
    session, position = machine.session(), 0

    def step(x):
        nonlocal position
        position += len(x)
        return model.step(x, np.arange(position - len(x), position))[0]

    for tokens in (3, 1, 9, 2):
        rows = bf16.encode(rng.standard_normal((tokens, text.hidden)))
        session.features(rows)
        step(rows)
    logits = step(model.embed([1, 2, 3]))
    for token in session.ask([1, 2, 3], count=3):
        assert token == greedy(logits)
        np.testing.assert_array_equal(session.logits, logits)
        logits = step(model.embed([token]))
    with pytest.raises(ValueError, match=r"^policy of a saved session must have no branch, got hybrid$"):
        session.save(tmp_path / "session")


def test_refusals(tmp_path, rng):
    write_random(tmp_path, "llama", rng)
    with pytest.raises(ValueError, match=r"^states must be at most 4 for vpe_rows = 16, got 5$"):
        compile_model(Checkpoint(tmp_path), TINY, Limits(tokens=64), HybridPolicy(sink=4, recent=4, states=5))
    with pytest.raises(ValueError, match=r"^ssm_input must be one of hidden, query, got 'keys'$"):
        HybridPolicy(ssm_input="keys")
