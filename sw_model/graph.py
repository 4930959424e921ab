"""The task graph of one step: what runs on which resource, for how long, and what each task waits for.

In every layer of an accelerator the tasks overlap as in the programs of its cores (V-Rex section VI-C). Weights stream
through the on-chip buffers while the matrix engine uses the piece before. The retrieval of the next layer is predicted
from the queries of this layer, after the softmax of the keys, and its KV crosses the link during the rest of the
layer. The core that selects for all holds its values back until its commands fit their queue (`Graph.held`). Scores go
through device memory. A GPU runs one kernel after another; a policy whose GPU software waits for each copy
(`Policy.blocking`) fetches in the layer that needs the KV.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from hw.core.dma import BURST
from hw.core.isa import ExecUnit
from hw.core.sequencer import QUEUE_DEPTHS
from sw_model.assumptions import DECODER_OPS, VISION_OPS
from sw_model.engine import PS_PER_S, Task, Timeline
from sw_model.policies import Work
from sw_model.policies.base import BF16_BYTES
from sw_model.rates import Rates, read_latency_s
from sw_model.systems import System
from sw_model.unit_cycles import (
    attention_bytes,
    attention_passes,
    dpe_cycles,
    hcu_cycles,
    product_steps,
    select_cycles,
    vpe_cycles,
    wtu_cycles,
    wtu_read_cycles,
    wtu_reads,
)
from sw_model.workloads import Model, Phase

PAGES = 2  # pages whose copies wait at the end of a fetch: one in the joiner of the KVMU, one in its queue
STAGES = ("vision", "weights", "activations", "attention", "kv read", "prediction", "fetch", "vector", "overhead")


@dataclass(frozen=True)
class ScheduledPhase:
    """One phase of a workload with its work, rates, the schedule of one step, and operations by stage."""

    phase: Phase
    work: Work
    rates: Rates
    timeline: Timeline
    flops: dict[str, float]


class Graph:
    """Task list under construction for one step of one phase.

    Methods return the index of the last task that they add; tasks that depend on it name it in `deps`. Index -1 is no
    task. `flops` counts operations by stage, two for a multiply-accumulate. `blocking`: the KV of a layer is fetched
    in that layer, not ahead of it.
    """

    def __init__(
        self, system: System, model: Model, phase: Phase, batch: int, work: Work, rates: Rates, blocking: bool = False
    ):
        self.system, self.model, self.phase, self.batch = system, model, phase, batch
        self.work, self.rates, self.blocking = work, rates, blocking
        self.first = work.first_layer
        self.hertz = system.core.clock_mhz * 1e6 if system.core else 0.0
        self.chunks = rates.assume.chunks
        self.tasks: list[Task] = []
        self.flops: dict[str, float] = defaultdict(float)
        self.fetched: list[int] = []  # transfers over the link, in order

    # -- single tasks ------------------------------------------------------------------------------------
    def add(self, stage: str, resource: str, seconds: float, deps: Sequence[int], layer: int, nbytes: int = 0) -> int:
        """A task on one resource after the tasks `deps`."""
        unique = tuple(sorted({d for d in deps if d >= 0}))
        self.tasks.append(Task(stage, resource, ceil(seconds * PS_PER_S), unique, bytes_moved=nbytes, layer=layer))
        return len(self.tasks) - 1

    def dram(self, stage: str, nbytes: int, deps: Sequence[int], layer: int, rate: float | None = None) -> int:
        """A transfer of `nbytes` in device memory at `rate` bytes per second; None: the rate of long reads."""
        return self.add(stage, "DRAM", nbytes / (rate or self.rates.dram_stream), deps, layer, nbytes)

    def matrix(
        self,
        stage: str,
        vectors: float,
        inputs: float,
        outputs: float,
        deps: Sequence[int],
        layer: int,
        times: float = 1,
        share: float = 1.0,
    ) -> int:
        """The share `share` of `times` matrix products (vectors x inputs) by (inputs x outputs)."""
        flops = 2.0 * vectors * inputs * outputs * times * share
        self.flops[stage] += flops
        core, gpu = self.system.core, self.system.gpu
        if core:
            seconds = dpe_cycles(vectors, inputs, outputs, core, times) * share / (core.clock_mhz * 1e6)
            return self.add(stage, "LXE", seconds, deps, layer)
        assert gpu is not None
        return self.add(stage, "GPU", flops / (gpu.peak_tflops * 1e12 * gpu.gemm_efficiency), deps, layer)

    def vector(self, stage: str, elements: float, kind: str, deps: Sequence[int], layer: int) -> int:
        """Element-wise work; on a GPU its time is part of the overhead per operation."""
        core = self.system.core
        if core:
            return self.add(stage, "VPE", vpe_cycles(elements, kind, core) / (core.clock_mhz * 1e6), deps, layer)
        return self.add(stage, "GPU", 0.0, deps, layer)

    def launches(self, stage: str, ops: int, deps: Sequence[int], layer: int) -> int:
        """The overhead of `ops` framework operations on a GPU."""
        gpu = self.system.gpu
        assert gpu is not None
        return self.add(stage, "GPU", ops * gpu.op_overhead_us * 1e-6, deps, layer)

    # -- groups of tasks ---------------------------------------------------------------------------------
    def linear(self, stage: str, vectors: int, inputs: int, outputs: int, after: int, layer: int, use: str) -> int:
        """A product with weights that stream from device memory in pieces, from the time when its inputs exist.

        The operand memory of an accelerator holds 1 MB of the next weights, less than a percent of a layer, so that
        nothing is read ahead. While weights are loaded, the steps of the product whose weights are complete are
        multiplied, so that only the last step of a piece follows its load. Activations are loaded by every core
        (`product_steps`). `stage` counts the transfers of weights, `use` the products.
        """
        total, done, last = 2 * inputs * outputs, 0, after
        behind = 1.0  # share of a piece of the product that follows its load
        if self.system.core:
            steps, activations = product_steps(vectors, inputs, outputs, self.system.core)
            last, behind = self.dram("activations", activations, [after], layer), min(1.0, self.chunks / steps)
        load = last
        for i in range(self.chunks):
            size = total * (i + 1) // self.chunks - done
            done += size
            begun = load
            load = self.dram(stage, size, [after, begun], layer)
            share = 1 / self.chunks
            if behind < 1:
                last = self.matrix(use, vectors, inputs, outputs, [begun, last], layer, share=share * (1 - behind))
            last = self.matrix(use, vectors, inputs, outputs, [load, last], layer, share=share * behind)
        return last

    def predict(self, layer: int, query: int) -> int:
        """The policy's prediction of the KV that `layer` needs, from the queries of task `query`.

        Reads, products, vector work and threshold follow each other. The clustering of the new keys runs in parallel;
        no task of this step waits for it.
        """
        work, core = self.work, self.system.core
        last = query
        if work.predict_read_bytes:
            last = self.dram("prediction", round(work.predict_read_bytes), [query], layer)
        for m in work.matmuls:
            last = self.matrix("prediction", m.vectors, m.inputs, m.outputs, [query, last], layer, m.times)
            if core and work.hamming_pairs and m is work.matmuls[0]:
                seconds = hcu_cycles(work.hamming_pairs, core) / (core.clock_mhz * 1e6)
                self.add("prediction", "HCU", seconds, [last], layer)
        if work.vector_ops:
            last = self.vector("prediction", work.vector_ops, "op", [last], layer)
        if core and work.lone_read_bytes:
            seconds = work.lone_read_bytes * core.config.cores / self.rates.dram_stream
            last = self.add("prediction", "VPE", seconds, [last], layer)
        if not core:
            return self.launches("prediction", round(work.gpu_kernels), [last], layer)
        if work.threshold_rows:
            row = work.threshold_entries, work.threshold_passes, core, work.threshold_levels
            cycles = wtu_cycles(work.threshold_rows, *row, alone=work.lone_threshold)
            selected = self.add("prediction", "WTU", cycles / self.hertz, [last], layer)
            if work.lone_threshold and (reads := work.threshold_rows * wtu_reads(*row)):  # they take longer
                burst_s = read_latency_s(self.system.memory, 2 * BURST * core.config.dpe_inputs)
                seconds = reads * wtu_read_cycles(work.threshold_entries, burst_s * self.hertz, core) / self.hertz
                nbytes = round(reads * work.threshold_entries * 2 * BF16_BYTES)
                return self.add("prediction", "DRAM", seconds, [last], layer, nbytes)
            return selected
        return last

    def fetch(self, layer: int, after: int) -> int:
        """Older KV over the link into device memory, in pieces, and the look-up of the selected clusters.

        Where a drive is behind the link, drive and link transfer a piece at the same time, so the slower one sets the
        pace.
        """
        times = self.first if layer == 0 else 1.0
        total, done, last = round(self.rates.fetch_bytes * times), 0, after
        select_s = self.select_s(times)
        if not total and not select_s:
            return after
        storage, previous = self.rates.storage, [after]
        for i in range(self.chunks):
            size = total * (i + 1) // self.chunks - done
            done += size
            transfers = list[int]()
            if select_s:
                transfers.append(self.add("fetch", "KVMU", select_s / self.chunks, previous, layer))
            if total:
                transfers.append(self.add("fetch", "PCIe", size / self.rates.link, previous, layer, size))
            if storage and total:
                transfers.append(self.add("fetch", "SSD", size / storage, previous, layer, size))
            previous = transfers
            last = self.dram("fetch", size, transfers, layer)
            self.fetched.append(transfers[0])
        return last

    def select_s(self, times: float = 1.0) -> float:
        """Seconds in which the KVMU looks up the selected clusters of a layer, `times` those of the work."""
        work, core = self.work, self.system.core
        if not core or not work.selects:
            return 0.0
        word_bytes = 2 * core.config.dpe_inputs
        # a read waits for a burst of operands on the port, which has the core's share of the memory
        burst_s = BURST * word_bytes * core.config.cores / self.rates.dram_stream
        latency = (read_latency_s(self.system.memory, word_bytes) + burst_s) * self.hertz
        cycles = select_cycles(work.selects * times, work.clusters, latency, core)
        return self.model.kv_heads * self.batch * cycles / self.hertz

    def held(self) -> list[int]:
        """The piece of the newest fetch that a leading core has to issue before it can go on with its program.

        It issues a SELECT for each KV head, then FETCH. So many of them wait in the command queue of the retrieval
        unit, and one more has issued its last copies. When the SELECT of the first KV head copies for all, all but the
        last pages have been copied before.
        """
        heads, core = self.model.kv_heads, self.system.core
        share = max(0, heads - QUEUE_DEPTHS[ExecUnit.RETRIEVAL]) / heads  # of the fetch
        if share and self.work.common_selection and core:
            pages = self.rates.fetch_bytes / self.model.kv_bytes / core.config.page_tokens
            share = max(0.0, 1 - PAGES / pages) if pages else 0.0
        pieces = ceil(share * self.chunks)
        return self.fetched[-self.chunks :][pieces - 1 : pieces] if pieces else []

    def attention_weights(self, layer: int, query: int, available: tuple[int, int]) -> int:
        """Keys, their scores and the softmax, if a core has all keys of a head before the softmax; else `query`.

        Keys are read in pieces after the tasks `available` and `query`. The step's own tokens are attended too.
        """
        model, core = self.model, self.system.core
        if not core or self.batch * model.kv_heads > core.config.cores:
            return query
        rows, keys, scores = self._attended(layer)
        passes, moved = attention_passes(rows, core), attention_bytes(keys, core)
        last, nbytes = query, self.work.attend_read_bytes * self.times(layer) / 2 * passes[0]
        for i in range(self.chunks):
            load = self._piece("kv read", nbytes, i, (*available, query), layer)
            last = self.matrix(
                "attention", rows, model.head_dim, keys, [load, last], layer, model.kv_heads, 1 / self.chunks
            )
            last = self._piece("attention", moved[0] * scores, i, [last], layer)
        last = self.dram("attention", moved[1] * scores, [last], layer)
        return self.vector("attention", scores, "softmax", [last], layer)

    def attention(self, layer: int, query: int, available: tuple[int, int], weights: int, held: Sequence[int]) -> int:
        """The values after `weights`, the result of `attention_weights`, and the tasks `held`.

        If that has added nothing, the whole attention: keys and values are read together in pieces.
        """
        heads, core, d = self.batch * self.model.kv_heads, self.system.core, self.model.head_dim
        rows, keys, scores = self._attended(layer)
        nbytes, moved = self.work.attend_read_bytes * self.times(layer) / 2, [0, 0, 0]
        passes = (1, 1)
        if core:
            passes, moved = attention_passes(rows, core), [size * scores for size in attention_bytes(keys, core)]
        last = query
        for i in range(self.chunks):
            if weights != query:
                load = self._piece("kv read", nbytes * passes[1], i, [weights, *held], layer)
                load = self._piece("attention", moved[2], i, [load], layer)
                last = self.matrix("attention", rows, keys, d, [load, last], layer, heads, 1 / self.chunks)
                continue
            load = self._piece("kv read", nbytes * sum(passes), i, (*available, query), layer)
            last = self.matrix("attention", rows, d, keys, [load, last], layer, heads, 1 / self.chunks)
            if core:
                last = self._piece("attention", sum(moved), i, [last], layer)
            weight = self.vector("attention", ceil(scores / self.chunks), "softmax", [last], layer)
            last = self.matrix("attention", rows, keys, d, [weight], layer, heads, 1 / self.chunks)
        return last

    def times(self, layer: int) -> float:
        """Attended past tokens of a layer as a multiple of those of `work`."""
        return self.first if layer == 0 else 1.0

    def _attended(self, layer: int) -> tuple[int, int, int]:
        """Query rows of a KV head, keys of a row, and scores of a layer."""
        t = ceil(self.work.processed_tokens)
        keys = ceil(self.work.attended_tokens * self.times(layer)) + t
        return t * self.model.group, keys, t * self.model.q_heads * keys * self.batch

    def _piece(self, stage: str, nbytes: float, piece: int, after: Sequence[int], layer: int) -> int:
        """One of the pieces of a transfer of keys and values, or of scores."""
        total = round(nbytes)
        size = total * (piece + 1) // self.chunks - total * piece // self.chunks
        return self.dram(stage, size, after, layer, self.rates.dram_kv if stage == "kv read" else None)

    def vision(self) -> int:
        """The vision tower on the frames of the step, and its projector; -1 where the step has no frame."""
        tower, batch = self.model.vision, self.phase.frames * self.batch
        if not batch:
            return -1
        vectors, last = ceil(tower.patches * batch * self.work.vision_fraction), -1
        last = self.linear("vision", vectors, tower.patch_inputs, tower.hidden, last, -1, "vision")
        for _ in range(tower.layers):
            if not self.system.core:
                last = self.launches("overhead", VISION_OPS, [last], -1)
            last = self.vector("vision", vectors * tower.hidden, "norm", [last], -1)
            last = self.linear("vision", vectors, tower.hidden, 3 * tower.hidden, last, -1, "vision")
            heads = tower.heads * batch
            size = tower.hidden // tower.heads
            last = self.matrix("vision", tower.patches, size, tower.patches, [last], -1, heads)
            last = self.vector("vision", tower.patches**2 * heads, "softmax", [last], -1)
            last = self.matrix("vision", tower.patches, tower.patches, size, [last], -1, heads)
            last = self.linear("vision", vectors, tower.hidden, tower.hidden, last, -1, "vision")
            last = self.vector("vision", vectors * tower.hidden, "norm", [last], -1)
            last = self.linear("vision", vectors, tower.hidden, tower.ffn, last, -1, "vision")
            last = self.vector("vision", vectors * tower.ffn, "gelu", [last], -1)
            last = self.linear("vision", vectors, tower.ffn, tower.hidden, last, -1, "vision")
        tokens = self.model.tokens_per_frame * batch
        return self.linear("vision", tokens, 1, tower.projector_params, last, -1, "vision")

    def step(self) -> None:
        """The entire step: vision tower, decoder layers with retrieval, output head."""
        model, work, t = self.model, self.work, ceil(self.work.processed_tokens) * self.batch
        width = model.q_heads * model.head_dim
        kv_width = 2 * model.key_dim
        x = self.vision()
        overlaps = not self.blocking
        ready = self.fetch(0, x) if work.schedule == "ahead" and overlaps else -1
        layers = round(model.layers * work.passes)
        for layer in range(layers):
            if not self.system.core:
                x = self.launches("overhead", DECODER_OPS, [x], layer)
            h = self.vector("vector", t * model.hidden, "norm", [x], layer)
            h = self.linear("weights", t, model.hidden, width + kv_width, h, layer, "weights")
            query = self.vector("vector", t * (width + kv_width // 2), "rope", [h], layer)
            following = -1
            if work.schedule == "ahead" and (work.matmuls or work.vector_ops):
                query = self.predict(layer, query)
            if not overlaps and work.schedule == "ahead":
                ready = self.fetch(layer, query)
            elif work.schedule == "same_layer" or (work.schedule == "next_layer" and (layer == 0 or not overlaps)):
                predicted = query if layer == 0 and self.first != 1 else self.predict(layer, query)
                ready = self.fetch(layer, predicted)
            weights = self.attention_weights(layer, query, (ready, x))
            if overlaps and layer + 1 < layers:
                if work.schedule == "next_layer":
                    following = self.fetch(layer + 1, self.predict(layer + 1, weights))
                elif work.schedule == "ahead":
                    following = self.fetch(layer + 1, x)
            fetches = following >= 0 and (self.rates.fetch_bytes or self.select_s())
            held = self.held() if self.system.core and fetches else []
            h = self.attention(layer, query, (ready, x), weights, held)
            h = self.linear("weights", t, width, model.hidden, h, layer, "weights")
            h = self.vector("vector", t * model.hidden, "add", [h], layer)
            h = self.vector("vector", t * model.hidden, "norm", [h], layer)
            h = self.linear("weights", t, model.hidden, 2 * model.ffn, h, layer, "weights")
            h = self.vector("vector", t * model.ffn, "silu_mul", [h], layer)
            h = self.linear("weights", t, model.ffn, model.hidden, h, layer, "weights")
            x = self.vector("vector", t * model.hidden, "add", [h], layer)
            ready = following
        x = self.vector("vector", t * model.hidden, "norm", [x], layers)
        self.linear("weights", self.batch, model.hidden, model.vocab, x, layers, "weights")
