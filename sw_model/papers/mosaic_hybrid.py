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

# LLaVA-OneVision-7B: parameters with tower, layers, KV bytes a token (4 heads of 128), bytes of a vector of all 28
# query heads in every layer, tokens a frame after pooling and before, hidden size
ONEVISION = {
    "params": 8.03e9, "layers": 28, "kv": 28 * 2 * 4 * 128 * 2, "vector": 28 * 28 * 128 * 2, "tokens": 196,
    "patches": 27 * 27, "hidden": 3584,
}  # fmt: skip
PIXELS_BYTES = 3 * 384 * 384 * 2  # in half precision, as LLaVA's tutorial and ReKV's code bring them to the device


def onevision_gb(frames: int, cached_tokens: float) -> float:
    """Weights; every frame's pixels and visual features, as projected and as pooled; the KV of so many tokens."""
    m = ONEVISION
    frame = (m["patches"] + m["tokens"]) * m["hidden"] * 2 + PIXELS_BYTES
    return (2 * m["params"] + frames * frame + cached_tokens * m["kv"]) / 1e9


class MosaicInLayer(Mosaic):
    """Mosaic without its cross-layer prefetch."""

    def account(self, step: Step) -> Work:
        return replace(super().account(step), schedule="same_layer")


def mosaic_memory(case: Case) -> Value:
    value = [onevision_gb(n, n * ONEVISION["tokens"]) for n in (32, 64, 128, 256, 512, 1024)]
    return value, None, "weights, KV, pixels and visual features of every frame", "activations of the prefill"


def rekv_gb(frames: int, chunk: int, kv_bytes: float, vector_bytes: float) -> float:
    """What ReKV's public code holds on the device at its peak, when it encodes `chunk` of `frames` frames at once. Of a
    token's KV, `kv_bytes`: every frame until its window of 15,000 tokens is full, twice, for the window and for what is
    to be offloaded are tensors of their own; a buffer for 64 retrieved frames, and a cache of 128. Of an offloaded
    frame the vector that stands for it, `vector_bytes`, in a table that doubles from 16."""
    tokens, window = ONEVISION["tokens"], 15000
    filling = chunk * (window // (chunk * tokens) + 1)
    table = 16 << max(0, ceil(log2((frames - window // tokens) / 16)))
    return ((2 * filling + 64 + 128) * tokens * kv_bytes + table * vector_bytes) / 1e9


def mosaic_vram(case: Case) -> Value:
    """Both in the stack of Table I, the only one that the paper measures, with the KV in host memory. On the device
    ReKV keeps what its code keeps, 64 frames encoded at once; Mosaic, of which no code is public, the newest tokens
    that every policy keeps here, its clusters' representatives, and buffers for two layers, for it fetches one
    ahead."""
    frames, m = 1024, ONEVISION
    rekv = onevision_gb(frames, 0) + rekv_gb(frames, 64, m["kv"], m["vector"])
    held = 2 / m["layers"] * 64 * m["tokens"] + frames * m["tokens"] / TOKENS_PER_CLUSTER
    mosaic, wide = (onevision_gb(frames, window + held) for window in (case.assume.resident_tokens, 15000))
    says = f"ReKV's buffers by its public code; with ReKV's window in Mosaic, too, {1 - wide / rekv:.3f}"
    return [rekv, mosaic, 1 - mosaic / rekv], None, says


def mosaic_prefetch(case: Case) -> Value:
    system, load = load_system("a100"), workloads.text(20000)
    early, late = (run(system, p(LLAMA3_8B), load, assume=case.assume, link=case.link) for p in (Mosaic, MosaicInLayer))
    value = 1 - early.total_s / late.total_s
    return value, 0 < value < 0.5, "trend: prefetching across layers shortens the answer"


def mosaic_batch(case: Case) -> Value:
    def seconds(frames: int) -> float:
        phase = Phase("frame", 10000, frames * LLAMA3_8B.tokens_per_frame, frames)
        return case.run("a100", "mosaic", Workload(f"{frames} frames", LLAMA3_8B, 1, (phase,))).total_s / frames

    value = 1 - seconds(4) / seconds(1)
    return value, value > 0, "trend: four frames at once take less time each"


def mosaic_speedup(case: Case) -> Value:
    value = max(
        case.run("a100", "rekv", workloads.text(n)).total_s / case.run("a100", "mosaic", workloads.text(n)).total_s
        for n in (5000, 10000, 20000, 40000)
    )
    return value, value > 1, "trend: faster than ReKV somewhere"


def hybrid_growth(case: Case) -> Value:
    held = [case.run("a100", "hybrid", workloads.frame(n)).memory_bytes for n in (20000, 20010)]
    value = {"growth_MiB_per_frame": [None, (held[1] - held[0]) / 2**20]}
    return value, held[0] == held[1], "trend: no growth once the blocks are full"


def hybrid_throughput(case: Case) -> Value:
    load = workloads.frame(480)
    standard = run(load_system("a100"), InMemory(LLAMA3_8B), load, assume=case.assume, link=case.link)
    tokens = [10 / r.total_s for r in (case.run("a100", "hybrid", load), standard)]
    return tokens, abs(tokens[0] / tokens[1] - 1) < 0.05, "trend: the same within 5 % at 48 frames"


def hybrid_client(case: Case) -> Value:
    """Frames that the requests of a stream read, of which nine in ten are computed anew: each request all that has been
    seen, up to the window. Both windows at 20 and 100 frames of the same 200."""
    seconds_per = [sum(min(frame, window) for frame in range(1, 201)) for window in (20, 100)]
    ratio = seconds_per[1] / seconds_per[0]
    says = f"trend: {ratio:.1f} times the work for five times the window (456 / 130 = 3.5), for filling it counts"
    return {"ratio": ratio}, abs(ratio / (456.36 / 130.06) - 1) < 0.25, says


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
