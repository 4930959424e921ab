"""The figures of Mosaic and the hybrid cache from the model."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2

from sw_model import workloads
from sw_model.model import run
from sw_model.papers.vrex import Case, InMemory, Value
from sw_model.policies.base import Step, Work
from sw_model.policies.mosaic import TOKENS_PER_CLUSTER, Mosaic
from sw_model.systems import load_system
from sw_model.workloads import LLAMA3_8B, Phase, Workload

# LLaVA-OneVision-7B: parameters with tower, layers, KV bytes of a token (4 heads of 128), bytes of a vector of all 28
# query heads in every layer, tokens of a frame after pooling and before, hidden size
ONEVISION = {
    "params": 8.03e9, "layers": 28, "kv": 28 * 2 * 4 * 128 * 2, "vector": 28 * 28 * 128 * 2, "tokens": 196,
    "patches": 27 * 27, "hidden": 3584,
}  # fmt: skip
PIXELS_BYTES = 3 * 384 * 384 * 2  # in half precision, as in LLaVA's tutorial and in ReKV's code


def onevision_gb(frames: int, cached_tokens: float) -> float:
    """Device memory in 10**9 bytes: weights, pixels and visual features (projected and pooled) of every frame, and the
    KV of `cached_tokens` tokens."""
    m = ONEVISION
    frame = (m["patches"] + m["tokens"]) * m["hidden"] * 2 + PIXELS_BYTES
    return (2 * m["params"] + frames * frame + cached_tokens * m["kv"]) / 1e9


class MosaicInLayer(Mosaic):
    """Mosaic without prefetch across layers."""

    def account(self, step: Step) -> Work:
        return replace(super().account(step), schedule="same_layer")


def mosaic_memory(case: Case) -> Value:
    value = [onevision_gb(n, n * ONEVISION["tokens"]) for n in (32, 64, 128, 256, 512, 1024)]
    return value, None, "weights, KV, pixels and visual features of every frame", "activations of the prefill"


def rekv_gb(frames: int, chunk: int, kv_bytes: float, vector_bytes: float) -> float:
    """Peak device memory of ReKV's public code in 10**9 bytes, without weights.

    The code encodes `chunk` of `frames` frames at once. It holds all frames until its window of 15,000 tokens is full,
    twice, because the window and the tokens to offload are separate tensors. It also has a buffer for 64 retrieved
    frames and a cache of 128 frames. A table holds one vector per offloaded frame; its size doubles from 16.

    kv_bytes      bytes of the KV of one token
    vector_bytes  bytes of the vector of one frame
    """
    tokens, window = ONEVISION["tokens"], 15000
    filling = chunk * (window // (chunk * tokens) + 1)
    table = 16 << max(0, ceil(log2((frames - window // tokens) / 16)))
    return ((2 * filling + 64 + 128) * tokens * kv_bytes + table * vector_bytes) / 1e9


def mosaic_vram(case: Case) -> Value:
    """Device memory of ReKV and of Mosaic in the stack of Table I, with the KV in host memory.

    ReKV follows its public code with 64 frames encoded at once. Mosaic has no public code: it holds the newest tokens,
    as every policy here, the representatives of its clusters, and buffers for two layers, because it prefetches one.
    """
    frames, m = 1024, ONEVISION
    rekv = onevision_gb(frames, 0) + rekv_gb(frames, 64, m["kv"], m["vector"])
    buffer_tokens = 2 / m["layers"] * 64 * m["tokens"] + frames * m["tokens"] / TOKENS_PER_CLUSTER
    mosaic, wide = (onevision_gb(frames, window + buffer_tokens) for window in (case.assume.resident_tokens, 15000))
    comment = f"buffers of ReKV from its public code; with ReKV's window Mosaic saves {1 - wide / rekv:.3f}"
    return [rekv, mosaic, 1 - mosaic / rekv], None, comment


def mosaic_prefetch(case: Case) -> Value:
    system, load = load_system("a100"), workloads.text(20000)
    policies = (Mosaic(LLAMA3_8B), MosaicInLayer(LLAMA3_8B))
    prefetched, in_layer = (run(system, p, load, assume=case.assume, link=case.link).total_s for p in policies)
    value = 1 - prefetched / in_layer
    return value, 0 < value < 0.5, "trend: prefetch across layers makes the answer faster"


def mosaic_batch(case: Case) -> Value:
    def seconds(frames: int) -> float:
        phase = Phase("frame", 10000, frames * LLAMA3_8B.tokens_per_frame, frames)
        return case.run("a100", "mosaic", Workload(f"{frames} frames", LLAMA3_8B, 1, (phase,))).total_s / frames

    value = 1 - seconds(4) / seconds(1)
    return value, value > 0, "trend: a frame takes less time when four are computed at once"


def mosaic_speedup(case: Case) -> Value:
    value = max(
        case.run("a100", "rekv", workloads.text(n)).total_s / case.run("a100", "mosaic", workloads.text(n)).total_s
        for n in (5000, 10000, 20000, 40000)
    )
    return value, value > 1, "trend: faster than ReKV at one context length at least"


def hybrid_growth(case: Case) -> Value:
    before, after = (case.run("a100", "hybrid", workloads.frame(n)).memory_bytes for n in (20000, 20010))
    value = {"growth_MiB_per_frame": [None, (after - before) / 2**20]}
    return value, before == after, "trend: no growth when the blocks are full"


def hybrid_throughput(case: Case) -> Value:
    load = workloads.frame(480)
    standard = run(load_system("a100"), InMemory(LLAMA3_8B), load, assume=case.assume, link=case.link)
    tokens = [10 / r.total_s for r in (case.run("a100", "hybrid", load), standard)]
    return tokens, abs(tokens[0] / tokens[1] - 1) < 0.05, "trend: equal within 5 % at 48 frames"


def hybrid_client(case: Case) -> Value:
    """Ratio of the frames that the requests of a stream of 200 frames read with windows of 100 and of 20 frames.

    A request reads all frames so far, up to the window; nine of ten are computed again.
    """
    seconds_per = [sum(min(frame, window) for frame in range(1, 201)) for window in (20, 100)]
    ratio = seconds_per[1] / seconds_per[0]
    comment = f"trend: {ratio:.1f} times the work with five times the window (456 / 130 = 3.5), filling included"
    return {"ratio": ratio}, abs(ratio / (456.36 / 130.06) - 1) < 0.25, comment


EVALUATORS: dict[str, Callable[[Case], Value]] = {
    "mosaic.t1.memory": mosaic_memory,
    "mosaic.batch": mosaic_batch,
    "mosaic.prefetch": mosaic_prefetch,
    "mosaic.vram": mosaic_vram,
    "mosaic.speedup": mosaic_speedup,
    "hybrid.t3": hybrid_growth,
    "hybrid.fig1": hybrid_throughput,
    "hybrid.client": hybrid_client,
}
