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
from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from sw_model.cycles.session import SessionModel
from tests.compiler.checkpoints import write_random

HEAVY = pytest.mark.heavy
POLICIES = {  # policy, tokens in device memory; all page frames of the core are enough for windows of one page
    "resv": (ResvPolicy(ratio=0.5, hamming_threshold=3), 6),
    "resv, next layer": (ResvPolicy(ratio=0.5, hamming_threshold=3, prefetch="next_layer"), 6),
    "full": (FullPolicy(), 6),
    "oaken, next layer": (OakenPolicy(prefetch="next_layer"), 6),
    "window": (WindowPolicy(sink=0, recent=4), 0),
}
QUICK = (("resv, next layer", 2), ("window", 1))
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
    checkpoint, (policy, resident) = Checkpoint(tmp_path), POLICIES[name]
    pooled = 1 if policy.name == "window" else 2  # a frame has one token, or four
    limits = Limits(streams=2, batch=2, tokens=40, step=4 * pooled, resident=resident, pooled=pooled)
    machine = compile_model(checkpoint, policy.core(Config.preset("tiny")), limits, policy, cores=cores)
    timing = {side: FixedTiming(latency=12) for side in BASES}
    run, model = ModelRun(machine), SessionModel(machine, timing, BASES)
    first, second = machine.session(), machine.session()

    def picture():
        return [rng.integers(256, size=(20, 28, 3), dtype=np.uint8)]

    def question(count):
        return rng.integers(checkpoint.spec.text.vocabulary, size=count).tolist()

    serve(machine, [Text(first, question(2)), Text(second, question(2))])
    for _ in range(2):
        serve(machine, [Frame(first, picture()), Frame(second, picture())])
    token, _ = serve(machine, [Text(first, question(3), answer=True), Frame(second, picture())])
    choices = serve(machine, [Text(first, [token], answer=True), Text(second, question(2), answer=True)])
    assert None not in choices
    moved = [step.retrieved for session in (first, second) for step in session.steps]
    assert any(sum(step.fetched) for step in moved) == bool(resident)
    assert any(sum(step.released) for step in moved) == (policy.name == "window")
    run.check(seed=seed, timing={side: FixedTiming(latency=12) for side in BASES})
    errors = np.array(model.cycles) / run.cycles - 1
    assert abs(sum(model.cycles) / sum(run.cycles) - 1) < 0.02 and np.abs(errors).max() < 0.05, errors
    print(f"{len(run.cycles)} programs, {sum(run.cycles)} cycles, largest error {np.abs(errors).max():.2%}")
    run.check(seed=seed + 1, stall=0.3, timing={"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)})
