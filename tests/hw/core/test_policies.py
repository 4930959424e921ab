"""Policies of the runtime in the RTL at `tiny`: two layers, frames, a question and an answer, bit for bit.

`ModelRun.check` compares every output and the store with the golden machine. The golden machine has no time, so a
session that is equal under several timings does not depend on latency, pauses or the number of cores.
"""

import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import (
    FullPolicy,
    InfiniGenPolicy,
    InfiniGenPPolicy,
    OakenPolicy,
    RekvPolicy,
    ResvPolicy,
    WindowPolicy,
)
from compiler.runtime import Limits, compile_model
from golden import bf16
from hw.config import Config
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from sw_model.cycles.session import SessionModel
from tests.compiler.checkpoints import write_random
from tests.hw.core.model_checks import check, timing

HEAVY = pytest.mark.heavy
POLICIES = {  # policy, tokens in device memory; a name can end with the bits of stored keys and values
    "full": (FullPolicy(), 6),
    "full, next layer": (FullPolicy(prefetch="next_layer"), 6),
    "window": (WindowPolicy(sink=4, recent=8), 0),
    "window, next layer": (WindowPolicy(sink=4, recent=4, prefetch="next_layer"), 0),
    "rekv": (RekvPolicy(frames=2), 6),
    "rekv, selected frames stay": (RekvPolicy(frames=2), 24),
    "rekv, next layer": (RekvPolicy(frames=2, prefetch="next_layer"), 6),
    "infinigen": (InfiniGenPolicy(budget=4, column_share=0.5), 6),
    "infinigenp": (InfiniGenPPolicy(budget=5, column_share=0.5), 6),
    "oaken": (OakenPolicy(), 6),
    "oaken, next layer": (OakenPolicy(prefetch="next_layer"), 6),
    "resv, 4 bits": (ResvPolicy(ratio=0.5, hamming_threshold=3), 6),
    "window, 4 bits": (WindowPolicy(sink=4, recent=8), 0),
    "rekv, 4 bits": (RekvPolicy(frames=2), 6),
    "full, 8 bits": (FullPolicy(), 6),
    "resv, 8 bits": (ResvPolicy(ratio=0.5, hamming_threshold=3), 6),
    "window, 8 bits": (WindowPolicy(sink=4, recent=8), 0),
}
LARGE = Config.preset("tiny").replace(page_frames=256, max_candidates=64)
QUICK = (("full", 1), ("window, next layer", 1), ("rekv", 2))
CASES = [
    *QUICK,
    *[pytest.param(name, cores, marks=HEAVY) for name in POLICIES for cores in (1, 2) if (name, cores) not in QUICK],
]


@pytest.mark.parametrize("name, cores", CASES)
def test_session_equals_the_golden_machine(name, cores, tmp_path, rng, seed):
    """Under a fixed latency, and with random pauses of all streams on memories of another latency.

    With the fixed latency, the cycles are those that the cycle model predicts, within its error.
    """
    write_random(tmp_path, "llama", rng)
    checkpoint, (policy, resident) = Checkpoint(tmp_path), POLICIES[name]
    limits = Limits(tokens=64, step=4, resident=resident)
    config = policy.core(Config.preset("tiny"))
    if name.endswith("stay"):
        config = LARGE
    if name.endswith("bits"):
        config = config.replace(kv_bits=int(name.split()[-2]))
    machine = compile_model(checkpoint, config, limits, policy, cores=cores)
    assert machine.plan.retains == name.endswith("stay")
    run, model, session = ModelRun(machine), SessionModel(machine, timing(), BASES), machine.session()
    session.prompt([1, 2])
    for _ in range(5):
        session.features(bf16.encode(rng.standard_normal((4, checkpoint.spec.text.hidden))))
    answer = list(session.ask(rng.integers(checkpoint.spec.text.vocabulary, size=3).tolist(), count=3))
    assert answer and session.position > 24
    moved = [step.retrieved for step in session.steps]
    assert any(sum(step.fetched) for step in moved) == bool(resident)
    assert any(sum(step.released) for step in moved) == (policy.name == "window")
    check(run, model, seed)


@pytest.mark.heavy
def test_the_undo_log_of_a_long_step(tmp_path, rng, seed):
    """A step of 220 tokens changes more lines than 512 entries of a log hold."""
    write_random(tmp_path, "llama", rng, changes={"num_hidden_layers": 1})
    machine = compile_model(Checkpoint(tmp_path), LARGE, Limits(tokens=224, step=220), FullPolicy())
    run, session = ModelRun(machine), machine.session()
    session.prompt(rng.integers(machine.spec.text.vocabulary, size=220).tolist())
    run.check(seed=seed)
