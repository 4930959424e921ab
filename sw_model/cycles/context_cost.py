"""Cost of contexts: cycles of layers with a different context each, compared with the same layers on one context.

The layers have the shapes of Llama-3-8B and run on one core of the preset `paper`, with frames of the generator of
`sw_model.media`. Both programs execute the same steps: step n of the one context finds the same clusters, pages and
scores as the only step of context n. They differ in the addresses, in OPEN, and in the lines that the cache still has.
All pages are resident, because transfers would make a layer longer and the share of contexts smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.layer import Context, LayerCompiler, LayerSizes, model_step
from compiler.memory import Region
from golden import bf16
from golden import vector_kernels as kernels
from golden.bf16 import FP32
from golden.clustering import ClusterRule
from golden.hashing import hash_codes, hyperplanes
from golden.kvmu import KvmuConfig
from golden.kvpu import HeadScores, Kvpu
from golden.selection import RESV
from golden.store import ContextSizes, StoreSizes, create_context, create_store, store_bytes
from golden.store.layout import TABLE_UNIT
from hw.config import Config
from hw.core.isa import ExecUnit
from sw_model.cycles.core import CoreModel
from sw_model.cycles.step_data import StepData, recording
from sw_model.media.generator import Generator, coin
from sw_model.media.stream import Chunk
from util.progress import Progress, no_progress
from util.timing import MemoryTiming

FRAME = 10  # tokens of a frame
LAYERS = 3  # the first one brings caches and queues to their steady state and is not counted
HIDDEN, FFN, Q_HEADS = 4096, 14336, 32  # Llama-3-8B
SELECTION_TARGET = round(0.3 * 65536)
MAX_CLUSTERS = 8192
LOG_ENTRIES = 512
CORES = 8  # of V-Rex8, which share a layer
BASES = {"device": 0, "host": 1 << 47}


@dataclass(frozen=True)
class Cost:
    """Cycles of a layer at a number of past tokens. Pairs are those of one context and of different contexts.

    clusters, candidates : of the context ; attended : past tokens that a KV head attends to, mean
    cycles : of a layer ; open : of its OPEN command ; cluster : of its CLUSTER command
    fills, writebacks, logged : lines that the KVMU reads, writes back and logs in a layer
    """

    past: int
    clusters: int
    candidates: int
    attended: float
    cycles: tuple[float, float]
    open: tuple[float, float]
    cluster: tuple[float, float]
    fills: tuple[float, float]
    writebacks: tuple[float, float]
    logged: tuple[float, float]

    @property
    def difference(self) -> float:
        """Further cycles with different contexts, as a share."""
        return self.cycles[1] / self.cycles[0] - 1


def shared_cycles(peak_gbps: float, clock_mhz: float) -> float:
    """Cycles in which a memory of `peak_gbps` GB/s reads the weights of a layer."""
    config = Config.preset("paper")
    q, kv = Q_HEADS * config.head_dim, config.kv_heads * config.head_dim
    elements = HIDDEN * (2 * q + 2 * kv + 3 * FFN)
    return 2 * elements / peak_gbps * clock_mhz / 1000


class Stream:
    """Contexts with a common history: context n has n frames more than the first one, the last one is the one context.

    Attributes
    ----------
    different, same : data of the steps of both programs
    """

    def __init__(self, config: Config, past: int, layers: int, progress: Progress):
        self.config = config
        c, pages = config, max(64, 1 << (past // 4).bit_length())
        shared = StoreSizes(
            contexts=layers + 1,
            page_frames=(layers + 1) * pages,
            page_tokens=c.page_tokens,
            key_bytes=2 * c.head_dim * c.kv_heads,
            log_entries=LOG_ENTRIES,
            line_bytes=max(32, 2 * c.dpe_inputs),
        )
        sizes = ContextSizes(max_clusters=MAX_CLUSTERS, max_pages=pages)
        self.nbytes = store_bytes(shared, [sizes] * (layers + 1))
        memory = np.zeros(self.nbytes, np.uint8)
        self.store = create_store(memory, 0, shared)
        for n in range(layers + 1):
            create_context(self.store, n, sizes, shared.nbytes + n * sizes.nbytes(shared))
        kvmu = KvmuConfig(
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            page_tokens=c.page_tokens,
            lanes=c.dpe_inputs,
            kv_bits=c.kv_bits,
            page_frames_base=self.nbytes,
            max_resident_tokens=(layers + 1) * pages * c.page_tokens,
        )
        self.page_bytes = kvmu.page_bytes * (layers + 1) * pages
        rule = ClusterRule(max_candidates=c.max_candidates, max_clusters=MAX_CLUSTERS)
        self.table = Kvpu(rule, kvmu, memory, 0, RESV, SELECTION_TARGET)
        generator, planes = Generator(coin()), hyperplanes(c.kv_heads * c.head_dim, c.hash_bits)
        self.sums = np.zeros((MAX_CLUSTERS, c.kv_heads * c.head_dim), np.float32)
        history = past // FRAME
        codes, scores, self.same = list[np.ndarray](), list[list[HeadScores]](), list[StepData]()
        for n in range(history + layers):
            progress(f"history of {past} tokens", n, history + layers)
            chunk = generator.frame()
            keys = np.asarray(chunk.k[0], np.float32).reshape(FRAME, -1)
            codes.append(hash_codes(keys, planes))
            self.table.open(layers)
            if n < history:
                self._append(codes[n], keys)
                self.table.fetch([])
                continue
            with recording(self.table) as steps:
                self.table.open(layers)
                self._append(codes[n], keys)
                scores.append(self._scores(chunk))
                self.table.fetch(scores[-1])
            self.same += steps
        self.different: list[StepData] = []
        for context in range(layers):
            progress(f"contexts of {past} tokens", context, layers)
            self.table.open(context)
            for n in range(history + context):
                self.table.cluster(codes[n])
                self.table.fetch([])
        self.table.open(layers)
        for context in range(layers):
            with recording(self.table) as steps:
                self.table.open(context)
                self.table.cluster(codes[history + context])
                self.table.fetch(scores[context])
            self.different += steps

    def _append(self, codes: np.ndarray, keys: np.ndarray) -> None:
        assigned, _ = self.table.cluster(codes)
        np.add.at(self.sums, assigned.cluster, keys)

    def _scores(self, chunk: Chunk) -> list[HeadScores]:
        """Scores of all clusters for the queries of a frame."""
        c, counts = self.config, self.table.clusters.counts
        means = (self.sums[: len(counts)] / counts[:, None]).reshape(len(counts), c.kv_heads, c.head_dim)
        queries = np.asarray(chunk.q[0], np.float32).reshape(FRAME, c.kv_heads, -1, c.head_dim)
        return [
            HeadScores(
                head,
                np.stack(
                    [
                        kernels.exponentials(bf16.encode(row, FP32), c.head_dim)
                        for row in queries[:, head].reshape(-1, c.head_dim) @ means[:, head].T
                    ]
                ),
            )
            for head in range(c.kv_heads)
        ]


def measure(
    past: int, device: Callable[[], MemoryTiming], *, layers: int = LAYERS, progress: Progress = no_progress
) -> Cost:
    """Cost of contexts after `past` tokens; `device` makes the timing model of the device memory."""
    config = Config.preset("paper")
    stream = Stream(config, past, layers, progress)
    word = 2 * config.dpe_inputs
    contexts = [
        Context(n, stream.store.count_byte(n) // word, int(header["mean_keys_base"]) * TABLE_UNIT // word)
        for n, header in enumerate(stream.store.contexts)
    ]
    region = Region(1 << 31, (stream.nbytes + stream.page_bytes) // word)
    sizes = LayerSizes(HIDDEN, FFN, FRAME, past + (layers + 1) * FRAME, q_heads=Q_HEADS)
    compiler = LayerCompiler(config, sizes, region, contexts[0])
    results = [
        _run(compiler, order, steps, device, progress)
        for order, steps in (([contexts[-1]] * layers, stream.same), (contexts[:layers], stream.different))
    ]
    last = stream.same[-1]
    first, end = last.searched[-1]
    attended = float(np.mean([last.past(head) for head in range(config.kv_heads)]))
    pairs = {name: (results[0][name], results[1][name]) for name in results[0]}
    return Cost(past, last.clusters_after, end - first, attended, **pairs)


def _run(
    compiler: LayerCompiler,
    contexts: Sequence[Context],
    steps: Sequence[StepData],
    device: Callable[[], MemoryTiming],
    progress: Progress,
) -> dict[str, float]:
    """Mean figures of all layers but the first one."""
    program = model_step([compiler.for_context(context) for context in contexts], FRAME)
    model = CoreModel(compiler.config, {side: device() for side in BASES}, BASES, compiler.vectors.instructions)
    progress("cycle model", 0, 0)
    model.run(compiler.region.next, program, steps)
    layers = len(contexts)
    spans = {name: [(a, b) for _, kind, a, b in model.spans if kind == name] for name in ("OPEN", "CLUSTER")}
    vectors = [end for unit, _, _, end in model.spans if unit is ExecUnit.VECTOR]
    ends = [vectors[len(vectors) * (n + 1) // layers - 1] for n in range(layers)]
    counts = model.commits
    means = {name: float(np.mean([b - a for a, b in spans[name.upper()][1:]])) for name in ("open", "cluster")}
    means |= {
        name: (getattr(counts[-1], name) - getattr(counts[0], name)) / (layers - 1)
        for name in ("fills", "writebacks", "logged")
    }
    means["cycles"] = (ends[-1] - ends[0]) / (layers - 1)
    return means
