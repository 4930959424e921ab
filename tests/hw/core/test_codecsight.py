"""CodecSight in the RTL at `tiny`: masked frames of a real video, windows and a question, bit for bit.

`ModelRun.check` compares visual tokens, hidden states and logits of every program with the golden machine, which has no
time. The hidden states of a step follow from all keys and values of its window.
"""

import numpy as np
import pytest

from compiler.policies import CodecSightPolicy
from compiler.runtime import Limits, compile_model
from compiler.window_session import WindowSession
from hw.config import Config
from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from tests.compiler.codec_streams import FAMILIES, GOP, checkpoint_of, masked_frames


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.heavy
def test_windows_equal_the_golden_machine(family, cores, tmp_path, seed):
    """Under a fixed latency, and with random pauses of all streams on memories of another latency."""
    policy = CodecSightPolicy(window=3, stride=1, gop=GOP)
    checkpoint, size = checkpoint_of(tmp_path, family, np.random.default_rng(0))
    machine = compile_model(checkpoint, Config.preset("tiny"), Limits(tokens=64, step=9, **size), policy, cores=cores)
    run, session = ModelRun(machine), machine.session(kind=WindowSession)
    session.prompt([3, 5])
    height, width = FAMILIES[family][1]
    timed = family == "qwen2.5-vl"
    kept_all = []
    frames = masked_frames(tmp_path, policy, machine.vision.shape.group, 4, (width, height))
    for number, (_, picture, kept) in enumerate(frames):
        session.frame(picture, seconds=number / 2 if timed else None, kept=kept)
        kept_all.append(bool(kept.all()))
    assert list(session.ask([7, 11], count=2)) and session.index == 1 and {True, False} == set(kept_all)
    run.check(seed=seed, timing={side: FixedTiming(latency=12) for side in BASES})
    print(f"{len(run.cycles)} programs, {sum(run.cycles)} cycles")
    run.check(seed=seed + 1, stall=0.3, timing={"device": FixedTiming(latency=5), "host": FixedTiming(latency=40)})
