"""The core at the paper's sizes: a ReSV attention step of one layer over a real video's keys."""

from functools import partial
from itertools import islice

import numpy as np
import pytest

from cli.rtl import timings
from compiler.layer import LayerSizes
from golden import bf16
from golden.decoder_layer import pair_order
from golden.kvmu import Op
from sim.bench.core_run import BASES
from sim.bench.layer_run import LayerRun
from sim.bench.timeline import busy, column, concurrency, spans
from sw_model.cycles.core import CoreModel
from sw_model.cycles.step_data import record_steps
from sw_model.media.clip import find_clip
from sw_model.media.source import Options, open_source
from sw_model.systems import load_system

FRAMES = 103  # of ten tokens each, before the step


@pytest.mark.heavy
def test_attention_over_a_thousand_tokens(tmp_path, seed):
    """Keys, values and queries of a video, frame by frame; the last frame attends to all before it: equal to golden.

    About 1.1 million cycles; `run.log` in `build/sim/runs/core-*` tells how far they are.
    """
    clip = find_clip(tmp_path)
    chunks = list(islice(open_source(clip.path, Options(frames=FRAMES + 1)).chunks, FRAMES + 1))
    layer = LayerRun(
        "paper", np.random.default_rng(seed), sizes=LayerSizes(hidden=64, ffn=64, tokens=10, keys=1088, q_heads=32),
        hamming_threshold=7, max_resident_tokens=960, staging_head_pages=512, host_pages=256, device_bytes=128 << 20,
        limit=2_000_000,
    )  # fmt: skip
    order = pair_order(128, 64)
    for chunk in chunks[:-1]:
        layer.attend(chunk.k[0][:, :, order].view(np.uint16), chunk.v[0].view(np.uint16))
    last = [(x[0] if name == "v" else x[0][:, :, order]).view(np.uint16)
            for name, x in (("k", chunks[-1].k), ("v", chunks[-1].v), ("q", chunks[-1].q))]  # fmt: skip
    (data,) = record_steps(layer.golden.table, partial(layer.attend, *last))
    past, trace = layer.position - len(last[0]), layer.traces[-1]
    assert past >= 1000

    system = load_system("vrex8")
    record = layer.check(timing=timings(system, layer.storage_at), ports=["stat_trace"], seed=seed)
    step = layer.steps[-1]
    step_spans = [span for span in spans(record.ports["stat_trace"], layer.commands()) if span.program == step]
    first, end = min(span.start for span in step_spans), max(span.end for span in step_spans)
    part, cycles = record.ports["stat_trace"][first:end], layer.outcomes[step].cycles
    model = CoreModel(layer.config, timings(system, layer.storage_at), BASES, layer.instructions)
    predicted = model.run(layer.program_addresses[step], layer.commands()[step], [data])
    fetched = [reply for reply in trace.replies if reply.op == Op.FETCH and reply.transit]
    attended = np.mean([len(tokens) for tokens in trace.attended])
    print(f"{clip.name}: {past} past tokens in {data.clusters} clusters, a head attends to {attended:.0f} of them")
    nbytes = sum(piece.nbytes for piece in data.fetched)
    print(f"{len(fetched)} units fetched, {nbytes} bytes; {cycles} cycles, {predicted} predicted")
    filled = [layer.outcomes[n].cycles for n in layer.steps[:-1]]
    print(f"a frame without queries: {np.mean(filled):.0f} cycles on average, {max(filled)} at most")
    for unit, count in busy(step_spans).items():
        print(f"{unit.name:8} {count:8} {count / (end - first):6.1%}")
    for name in ("matrix", "vector", "device_read", "device_write", "host_read", "host_write"):
        print(f"{name:13} {column(part, name).mean():6.1%} of cycles with a beat")
    print("cycles with 0, 1, .. units at work:", concurrency(step_spans).tolist())


@pytest.mark.heavy
def test_step_of_a_llama_layer(seed, monkeypatch):
    """A token goes through a whole layer of Llama-3-8B's sizes, with 1,000 past tokens: equal to golden.

    About 4.4 million cycles, because the weights are 436 MB; with `-s` the progress is printed.
    """
    monkeypatch.setenv("VREX_PROGRESS", "1")
    rng = np.random.default_rng(seed)
    sizes = LayerSizes(hidden=4096, ffn=14336, tokens=1, keys=1088, q_heads=32)
    layer = LayerRun(
        "paper", rng, sizes=sizes, hamming_threshold=7, max_resident_tokens=600, staging_head_pages=1024,
        host_pages=1024, device_bytes=1 << 30, limit=8_000_000,
    )  # fmt: skip
    direction = rng.standard_normal((20, 8, 128))
    keys = direction[rng.integers(20, size=1000)] + 0.1 * rng.standard_normal((1000, 8, 128))
    layer.preload(bf16.encode(keys), bf16.encode(rng.standard_normal(keys.shape)))
    trace = layer.step(bf16.encode(rng.standard_normal((1, 4096))))
    attended = [len(tokens) for tokens in trace.attended]
    print(f"{len(layer.golden.table.clusters)} clusters, attended tokens of each KV head: {attended}")
    layer.check(timing=timings(load_system("vrex8"), layer.storage_at), seed=seed)
    print(f"{layer.outcomes[layer.steps[-1]].cycles} cycles")
