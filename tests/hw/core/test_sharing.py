"""Sessions that share pages in the RTL at `tiny`: two layers, two streams, prefixes by reference count, bit for bit."""

import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import FullPolicy
from compiler.prompt_server import PromptServer
from compiler.runtime import Limits, compile_model
from golden.hybrid import Client, HybridConfig
from golden.store import check
from hw.config import Config
from sim.bench.axi import FixedTiming
from sim.bench.model_run import ModelRun
from tests.compiler.checkpoints import write_random


@pytest.mark.heavy
@pytest.mark.parametrize("cores", [1, 2])
def test_requests_equal_the_golden_machine(cores, tmp_path, rng, seed):
    """Requests of a client with a system prompt: the second and the third one begin with pages of the one before."""
    write_random(tmp_path, "llama", rng)
    limits = Limits(streams=2, tokens=15, step=4)
    machine = compile_model(Checkpoint(tmp_path), Config.preset("tiny"), limits, FullPolicy(), cores=cores)
    run, server = ModelRun(machine), PromptServer(machine)
    client = Client(HybridConfig(block=machine.config.page_tokens), sink_frames=1, window=2, system=[3, 1, 4, 1, 5])
    hits = []
    for frames in ([[1, 2]], [[3, 4], [5, 6]], [[7, 8]]):
        request = client.request(frames, [9])
        server.answer(request, count=2)
        hits.append(request.hit)
        check(machine.memories.store)
    assert hits == [0, 4, 4]
    run.check(seed=seed, timing={side: FixedTiming(latency=12) for side in ("device", "host")})
    run.check(seed=seed + 1, stall=0.3, timing={"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)})
