"""Steps of several streams in the RTL at `tiny`: three layers, frames and questions side by side, bit for bit.

`ModelRun.check` compares every output and the store with the golden machine, whose streams get the same results as
alone (tests/compiler/test_batch.py).
"""

import numpy as np
import pytest

from compiler.batch import Frame, Text, serve
from compiler.checkpoint import Checkpoint
from compiler.policies import FullPolicy, OakenPolicy, ResvPolicy, WindowPolicy
from compiler.runtime import Limits, compile_model
from hw.config import Config
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from sw_model.cycles.session import SessionModel
from tests.compiler.checkpoints import write_random
from tests.hw.core.model_checks import check, timing

HEAVY = pytest.mark.heavy
POLICIES = {  # policy, streams, tokens in device memory; the page frames of the core are enough for two windows
    "resv": (ResvPolicy(ratio=0.5, hamming_threshold=3), 3, 4),
    "resv, next layer": (ResvPolicy(ratio=0.5, hamming_threshold=3, prefetch="next_layer"), 2, 6),
    "full": (FullPolicy(), 3, 4),  # the waits of the program keep FETCH from page lists in use
    "oaken, next layer": (OakenPolicy(prefetch="next_layer"), 3, 4),
    "window": (WindowPolicy(sink=0, recent=4), 2, 0),
}
QUICK = (("resv, next layer", 2), ("full", 1))
CASES = [
    *QUICK,
    *[pytest.param(name, cores, marks=HEAVY) for name in POLICIES for cores in (1, 2) if (name, cores) not in QUICK],
]


@pytest.mark.parametrize("name, cores", CASES)
def test_streams_in_one_step_equal_the_golden_machine(name, cores, tmp_path, rng, seed):
    """Under a fixed latency, and with random pauses of all streams on memories of another latency.

    With the fixed latency, the cycles are those that the cycle model predicts, within its error.
    """
    write_random(tmp_path, "llava", rng)
    checkpoint, (policy, streams, resident) = Checkpoint(tmp_path), POLICIES[name]
    pooled = 1 if policy.name == "window" else 2  # a frame has one token, or four
    step = max(4, streams * pooled**2)
    limits = Limits(streams=streams, batch=streams, tokens=40, step=step, resident=resident, pooled=pooled)
    machine = compile_model(checkpoint, policy.core(Config.preset("tiny")), limits, policy, cores=cores)
    run, model = ModelRun(machine), SessionModel(machine, timing(), BASES)
    sessions = [machine.session() for _ in range(streams)]
    first, second, *others = sessions

    def picture():
        return [rng.integers(256, size=(20, 28, 3), dtype=np.uint8)]

    def question(count):
        return rng.integers(checkpoint.spec.text.vocabulary, size=count).tolist()

    serve(machine, [Text(session, question(2)) for session in sessions[:2]])
    for _ in range(2):
        serve(machine, [Frame(session, picture()) for session in sessions])
    token, _ = serve(machine, [Text(first, question(3), answer=True), Frame(second, picture())])
    requests = [Text(first, [token], answer=True), Text(second, question(2), answer=True)]
    choices = serve(machine, [*requests, *(Text(session, question(1), answer=True) for session in others)])
    assert None not in choices
    moved = [step.retrieved for session in sessions for step in session.steps]
    assert any(sum(step.fetched) for step in moved) == bool(resident)
    assert any(sum(step.released) for step in moved) == (policy.name == "window")
    check(run, model, seed)
