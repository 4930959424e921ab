"""The task graph of one step: what runs on which resource, for how long, and what each task waits for.

In every layer of an accelerator the tasks overlap as in the programs of its cores (V-Rex section VI-C). Weights stream
through the on-chip buffers while the matrix engine uses the piece before. The retrieval of the next layer is predicted
from the queries of this layer, after the softmax of the keys, and its KV crosses the link during the rest of the
layer. The core that selects for all holds its values back until its commands fit their queue (`Graph.held`). Scores go
through device memory. A GPU runs one kernel after another; a policy whose GPU software waits for each copy
(`Policy.blocking`) fetches in the layer that needs the KV.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import ceil

from hw.core.isa import ExecUnit
from hw.core.sequencer import QUEUE_DEPTHS
from hw.dre.kvmu.kvmu import WAITING_EXTENTS
from sw_model.assumptions import DECODER_OPS, VISION_OPS
from sw_model.core_ports import (
    WRITTEN_ROWS,
    activations_bytes_per_s,
    index_bytes_per_s,
    keys_bytes_per_s,
    same_word_bytes_per_s,
    values_bytes_per_s,
    vector_bytes_per_s,
    word_bytes,
)
from sw_model.engine import PS_PER_S, Task, Timeline
from sw_model.layer_timing import LayerTiming
from sw_model.policies import Work
from sw_model.policies.base import BF16_BYTES
from sw_model.rates import Rates
from sw_model.systems import System
from sw_model.unit_cycles import (
    attention_bytes,
    attention_passes,
    code_words,
    dpe_cycles,
    hcu_cycles,
    vision_attention_bytes,
    vpe_cycles,
    wtu_reads,
)
from sw_model.workloads import Model, Phase

# bytes of device memory that vector work reads and writes for an element: sums and products in FP32, results in BF16;
# an RMS norm reads its vector twice, a layer norm three times
VECTOR_BYTES = {
    "norm": (4, 2), "layer_norm": (6, 2), "rope": (4, 2), "add": (6, 2), "silu_mul": (8, 2), "gelu": (4, 2),
}  # fmt: skip
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
        self.turns = 1  # streams that are served in turn, while the tasks are those of one
        self.chunks = rates.assume.chunks
        self.projection_bytes = rates.assume.weight_bits / 8  # of a weight of a projection
        self.tasks: list[Task] = []
        self.flops: dict[str, float] = defaultdict(float)
        self.fetched: list[int] = []  # transfers over the link, in order
        self.transfers: list[int] = []  # tasks of the newest piece of a fetch

    @property
    def timing(self) -> LayerTiming:
        """Times of the parts of a layer for the present number of streams."""
        return LayerTiming(self.system, self.model, self.work, self.rates, self.batch, self.turns)

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

    def vector(
        self, stage: str, elements: float, kind: str, deps: Sequence[int], layer: int, tokens: int = 0, row: int = 0
    ) -> int:
        """Element-wise work; on a GPU its time is part of the overhead per operation.

        tokens  a core has whole ones of them; 0: the work is split evenly
        row     elements of a row. The cores read the instructions again for each row, all at the same address
        """
        core = self.system.core
        if not core:
            return self.add(stage, "GPU", 0.0, deps, layer)
        cores = core.config.cores
        longest = ceil(tokens / cores) * cores / tokens if tokens else 1.0
        if moved := VECTOR_BYTES.get(kind):
            rate = vector_bytes_per_s(self.system, *moved) / longest
            deps = [self.dram("activations", round(elements * sum(moved)), deps, layer, rate)]
        last = self.add(stage, "VPE", longest * vpe_cycles(elements, kind, core) / self.timing.hertz, deps, layer)
        code = elements / row * code_words(kind, row, core.config) * word_bytes(core) if row else 0.0
        if not code:
            return last
        read = self.add(stage, "CODE", code / same_word_bytes_per_s(self.system), deps, layer, round(code))
        return self.add(stage, "VPE", 0.0, [last, read], layer)

    def launches(self, stage: str, ops: int, deps: Sequence[int], layer: int) -> int:
        """The overhead of `ops` framework operations on a GPU."""
        gpu = self.system.gpu
        assert gpu is not None
        return self.add(stage, "GPU", ops * gpu.op_overhead_us * 1e-6, deps, layer)

    # -- groups of tasks ---------------------------------------------------------------------------------
    def linear(
        self,
        stage: str,
        vectors: int,
        inputs: int,
        matrices: tuple[int, ...],
        after: int,
        layer: int,
        use: str,
        weight_bytes: float = BF16_BYTES,
    ) -> int:
        """Products with weights that stream from device memory in pieces, from the time when their inputs exist.

        `matrices` : outputs of each ; `weight_bytes` : of a weight in memory

        The operand memory of an accelerator holds 1 MB of the next weights, less than a percent of a layer, so that
        nothing is read ahead. While weights are loaded, the steps of the product whose weights are complete are
        multiplied, so that only the last step of a piece follows its load. Activations are loaded by every core, and
        weights again for each block of vectors (`product_loads`). `stage` counts the transfers of weights, `use` the
        products.
        """
        outputs, rate = sum(matrices), self.rates.dram_stream
        total, done, last = round(weight_bytes * inputs * outputs), 0, after
        results = pieces = 0  # bytes of FP32 that an accelerator writes to device memory, and of activations in pieces
        behind = 1.0  # share of a piece of the product that follows its load
        if self.system.core:
            interleaved = weight_bytes == BF16_BYTES and stage != "vision"  # see `compiler.memory`
            loads, seconds = self.timing.product(vectors, inputs, matrices, weight_bytes, interleaved)
            total, results = round(total * loads.weights), 4 * vectors * outputs
            pieces = loads.activations if loads.piece_rows else 0
            rate = (total + results + pieces) / seconds
            behind = min(1.0, self.chunks / loads.steps)
            if not pieces:
                first = activations_bytes_per_s(self.system, min(vectors, WRITTEN_ROWS), inputs)
                last = self.dram("activations", loads.activations, [after], layer, first)
        load = last
        for i in range(self.chunks):
            size = total * (i + 1) // self.chunks - done
            done += size
            begun = load
            load = self.dram(stage, size, [after, begun], layer, rate)
            if results:
                load = self.dram("activations", (results + pieces) // self.chunks, [load], layer, rate)
            share = 1 / self.chunks
            if behind < 1:
                last = self.matrix(use, vectors, inputs, outputs, [begun, last], layer, share=share * (1 - behind))
            last = self.matrix(use, vectors, inputs, outputs, [load, last], layer, share=share * behind)
        return last

    def predict(self, layer: int, query: int) -> int:
        """The policy's prediction of the KV that `layer` needs, from the queries of task `query`."""
        return self.threshold(layer, [self.scores(layer, query)])

    def scores(self, layer: int, query: int) -> int:
        """Scores of the candidates from the queries of `query`: reads, products, vector work."""
        work, core, last = self.work, self.system.core, query
        index, scores, clusters = None, None, max(1, round(work.threshold_entries))
        if core:
            index = index_bytes_per_s(self.system, clusters)
            scores = vector_bytes_per_s(self.system, 1, 1)
        for nbytes, rate in ((work.predict_read_bytes, index), (work.scratch_bytes, scores)):
            if nbytes:
                last = self.dram("prediction", round(nbytes), [last], layer, rate)
        for m in work.matmuls:
            if m.weights:
                vectors, outputs = ceil(m.vectors), (round(m.outputs),)
                last = self.linear("prediction", vectors, round(m.inputs), outputs, last, layer, "prediction")
            else:
                last = self.matrix("prediction", m.vectors, m.inputs, m.outputs, [query, last], layer, m.times)
        exponentials = min(work.vector_ops, work.exponential_rows * clusters)
        if exponentials:
            last = self.vector("prediction", exponentials, "exponentials", [last], layer, row=clusters)
        if others := work.vector_ops - exponentials:
            last = self.vector("prediction", others, "op", [last], layer)
        if core and work.lone_read_bytes:
            seconds = work.lone_read_bytes * core.config.cores / core.retrieving / self.rates.dram_stream
            last = self.add("prediction", "VPE", seconds, [last], layer)
        return last

    def threshold(self, layer: int, after: Sequence[int]) -> int:
        """The selection of candidates after their scores and other tasks, those of `after`.

        The fetch waits for the rows of the first KV head only (`LayerTiming.selection_s`).
        """
        work, core = self.work, self.system.core
        if not core:
            return self.launches("prediction", round(work.gpu_kernels), after, layer)
        if not work.threshold_rows:
            return max(after)
        if reads := wtu_reads(*self.timing.row()):
            nbytes = round(reads * work.threshold_rows * work.threshold_entries * 2 * BF16_BYTES)
            self.dram("prediction", nbytes, after, layer)
        return self.add("prediction", "WTU", self.timing.selection_s(), after, layer)

    def store(self, layer: int, after: Sequence[int]) -> tuple[int, int]:
        """The assignment of the new tokens to clusters and slots, and the copies of their keys and values.

        One core of an accelerator does it, and then opens the tables of the next layer.
        """
        core = self.system.core
        if not core:
            return max(after), max(after)
        if self.work.hamming_pairs:
            cycles = hcu_cycles(self.work.hamming_pairs, core)
            after = [self.add("prediction", "HCU", cycles / self.timing.hertz, after, layer)]
        placed = self.add("prediction", "KVMU", self.timing.placed_s(), after, layer)
        return placed, self.add("prediction", "KVMU", self.timing.stored_s(), [placed], layer)

    def fetch(self, layer: int, after: int) -> int:
        """Older KV over the link into device memory, in pieces, and the look-up of the selected clusters.

        The fetches of the layers follow each other. Where a drive is behind the link, drive and link transfer a piece
        at the same time, so the slower one sets the pace.
        """
        times = self.timing.times(layer)
        total, done, last = round(self.rates.fetch_bytes * times), 0, after
        select_s = self.timing.select_s(times)
        if not total and not select_s:
            return after
        storage, previous = self.rates.storage, [after, *self.transfers]
        if total and select_s:
            alone = self.timing.lookups_after_s(select_s, total)
            previous = [self.add("fetch", "KVMU", alone, previous, layer)]
            select_s -= alone
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
            previous = self.transfers = transfers
            last = self.dram("fetch", size, transfers, layer)
            self.fetched.append(transfers[0])
        return last

    def held(self) -> list[int]:
        """The piece of the newest fetch that a leading core has to issue before it can go on with its program.

        It issues a SELECT for each KV head, then FETCH. So many of them wait in the command queue of the retrieval
        unit, and one more has issued its last copies. When the SELECT of the first KV head copies for all, all but the
        last pages have been copied before.
        """
        heads, core = self.model.kv_heads, self.system.core
        if not core or core.retrieving > 1:
            return []
        share = max(0, heads - QUEUE_DEPTHS[ExecUnit.RETRIEVAL]) / heads  # of the fetch
        if share and self.work.common_selection and core:
            pages = self.rates.fetch_bytes / self.model.kv_bytes / core.config.page_tokens
            share = max(0.0, 1 - WAITING_EXTENTS / pages) if pages else 0.0
        pieces = ceil(share * self.chunks)
        return self.fetched[-self.chunks :][pieces - 1 : pieces] if pieces else []

    def attention_weights(self, layer: int, query: int, available: tuple[int, int], placed: int) -> tuple[int, int]:
        """Keys and their scores, and the softmax, if a core has all keys of a head before it; else twice `query`.

        Keys are read in pieces after the tasks `available` and `query`. The step's own tokens are attended too. One
        core begins its part of the softmax after the task `placed`.
        """
        model, core = self.model, self.system.core
        if not core or self.batch * model.kv_heads > core.config.cores:
            return query, query
        rows, keys, scores = self.timing.attended(layer)
        passes, moved = attention_passes(rows, core), attention_bytes(keys, core)
        last, nbytes = query, self.work.attend_read_bytes * self.timing.times(layer) / 2 * passes[0]
        written = moved[0] * scores  # while the next keys are read
        rate = self.rates.dram_kv
        if nbytes:
            encoded = self.rates.assume.kv_bits < 16
            rate = min(rate, keys_bytes_per_s(self.system, rows, written / nbytes, encoded=encoded))
        for i in range(self.chunks):
            load = self._piece("kv read", nbytes, i, (*available, query), layer, rate)
            last = self.matrix(
                "attention", rows, model.head_dim, keys, [load, last], layer, model.kv_heads, 1 / self.chunks
            )
            last = self._piece("attention", written, i, [last], layer, rate)
        size, scored = sum(moved[1]), last
        last = self.dram("attention", size * scores, [last, placed], layer, vector_bytes_per_s(self.system, *moved[1]))
        return scored, self.vector("attention", scores, "softmax", [last], layer, row=keys)

    def attention(self, layer: int, query: int, available: tuple[int, int], weights: int, held: Sequence[int]) -> int:
        """The values after `weights`, the result of `attention_weights`, and the tasks `held`.

        If that has added nothing, the whole attention: keys and values are read together in pieces.
        """
        heads, core, d = self.batch * self.model.kv_heads, self.system.core, self.model.head_dim
        rows, keys, scores = self.timing.attended(layer)
        nbytes, moved = self.work.attend_read_bytes * self.timing.times(layer) / 2, [0, 0, 0]
        passes = (1, 1)
        if core:
            sizes = attention_bytes(keys, core)
            passes, moved = attention_passes(rows, core), [n * scores for n in (sizes[0], sum(sizes[1]), sizes[2])]
        last, values = query, self.rates.dram_kv
        if weights != query and self.rates.assume.kv_bits == 16:
            values = min(values, values_bytes_per_s(self.system, passes[1]))
        for i in range(self.chunks):
            if weights != query:
                load = self._piece("kv read", nbytes * passes[1], i, [weights, *held], layer, values)
                load = self._piece("attention", moved[2], i, [load], layer)
                last = self.matrix("attention", rows, keys, d, [load, last], layer, heads, 1 / self.chunks)
                continue
            load = self._piece("kv read", nbytes * sum(passes), i, (*available, query), layer)
            last = self.matrix("attention", rows, d, keys, [load, last], layer, heads, 1 / self.chunks)
            if core:
                last = self._piece("attention", sum(moved), i, [last], layer)
            weight = self.vector("attention", ceil(scores / self.chunks), "softmax", [last], layer, row=keys)
            last = self.matrix("attention", rows, keys, d, [weight], layer, heads, 1 / self.chunks)
        return last

    def _piece(
        self, stage: str, nbytes: float, piece: int, after: Sequence[int], layer: int, rate: float | None = None
    ) -> int:
        """One of the pieces of a transfer of keys and values, or of scores."""
        total = round(nbytes)
        size = total * (piece + 1) // self.chunks - total * piece // self.chunks
        return self.dram(stage, size, after, layer, rate or (self.rates.dram_kv if stage == "kv read" else None))

    def vision(self) -> int:
        """The vision tower on the frames of the step, and its projector; -1 where the step has no frame."""
        tower, batch = self.model.vision, self.phase.frames * self.batch
        if not batch:
            return -1
        patches, last = ceil(tower.patches * self.work.vision_fraction), -1
        vectors = patches * batch
        bias = self.system.core.config.dpe_inputs if self.system.core else 0  # one more input block of a matrix
        last = self.linear("vision", vectors, tower.patch_inputs + bias, (tower.hidden,), last, -1, "vision")
        for _ in range(tower.layers):
            if not self.system.core:
                last = self.launches("overhead", VISION_OPS, [last], -1)
            last = self.vector("vision", vectors * tower.hidden, "layer_norm", [last], -1, row=tower.hidden)
            for _ in range(3):  # queries, keys and values, one after the other
                last = self.linear("vision", vectors, tower.hidden + bias, (tower.hidden,), last, -1, "vision")
            heads, size = tower.heads * batch, tower.hidden // tower.heads
            if self.system.core:
                read, written = vision_attention_bytes(patches, size, self.system.core)
                rate = vector_bytes_per_s(self.system, read, written)
                last = self.dram("vision", round(heads * (read + written)), [last], -1, rate)
            last = self.matrix("vision", patches, size, patches, [last], -1, heads)
            last = self.vector("vision", patches**2 * heads, "softmax", [last], -1, row=patches)
            last = self.matrix("vision", patches, patches, size, [last], -1, heads)
            last = self.linear("vision", vectors, tower.hidden + bias, (tower.hidden,), last, -1, "vision")
            last = self.vector("vision", vectors * tower.hidden, "add", [last], -1, row=tower.hidden)
            last = self.vector("vision", vectors * tower.hidden, "layer_norm", [last], -1, row=tower.hidden)
            last = self.linear("vision", vectors, tower.hidden + bias, (tower.ffn,), last, -1, "vision")
            last = self.vector("vision", vectors * tower.ffn, "gelu", [last], -1, row=tower.ffn)
            last = self.linear("vision", vectors, tower.ffn + bias, (tower.hidden,), last, -1, "vision")
            last = self.vector("vision", vectors * tower.hidden, "add", [last], -1, row=tower.hidden)
        tokens = self.model.tokens_per_frame * batch
        outputs = tower.projector_params // self.model.hidden  # of one matrix that has all weights
        return self.linear("vision", tokens, self.model.hidden, (outputs,), last, -1, "vision")

    def attend(self, layer: int, query: int, x: int, ready: int, following: int | None) -> tuple[int, int]:
        """The attention of a layer with input `x`, from the task `query` on, and the fetch for the layer `following`.

        A fetch starts on a core when the tokens of this layer are stored: then it opens the tables of `following`.
        `ready` : the fetch for this layer; -1: it selects for itself
        Returns the result, and the fetch for `following`; -1: there is none.
        """
        work, overlaps, fetched = self.work, not self.blocking, -1
        if work.schedule == "ahead" and (work.matmuls or work.vector_ops):
            query = self.predict(layer, query)
        if ready < 0 and not (work.schedule == "ahead" and overlaps):
            selects = work.schedule != "ahead" and (layer or self.timing.times(0) == 1)
            ready = self.fetch(layer, self.predict(layer, query) if selects else query)
        following = following if overlaps else None
        placed, stored = self.store(layer, [query, ready])
        if following is not None and work.schedule == "next_layer":
            scored = self.scores(following, query)  # a core does this while the pages of this layer are fetched
            fetched = self.fetch(following, self.threshold(following, [scored, stored]))
            query = scored if self.system.core else query
        if following is not None and work.schedule == "ahead":
            fetched = self.fetch(following, stored if self.system.core else x)
        _, weights = self.attention_weights(layer, query, (ready, x), placed)
        fetches = fetched >= 0 and (self.rates.fetch_bytes or self.timing.select_s())
        held = self.held() if self.system.core and fetches else []
        return self.attention(layer, query, (ready, x), weights, held), fetched

    def attend_in_turn(self, layer: int, query: int, x: int, ready: int, following: int | None) -> tuple[int, int]:
        """As `attend` for the streams of a batch, one after the other, as the programs of the core do.

        `ready` and the result are the fetches for the first stream. While a stream attends, the core stores, selects
        and fetches for the next one.
        """
        result, batch = query, self.batch
        with self.one_stream():
            for left in reversed(range(batch)):
                result, ready = self.attend(layer, result, x, ready, layer if left else following)
        return result, ready

    @contextmanager
    def one_stream(self) -> Iterator[None]:
        """In this context the tasks are those of one stream of the batch."""
        batch, work, rates = self.batch, self.work, self.rates
        self.batch, self.turns, self.work = 1, batch, work.of_stream(batch)
        self.rates = replace(rates, fetch_bytes=rates.fetch_bytes // batch)
        yield
        self.batch, self.turns, self.work, self.rates = batch, 1, work, rates

    def step(self) -> None:
        """The entire step: vision tower, decoder layers with retrieval, output head."""
        model, work, t = self.model, self.work, ceil(self.work.processed_tokens) * self.batch
        width = model.q_heads * model.head_dim
        kv_width, weight_bytes = 2 * model.key_dim, self.projection_bytes
        qkv, o, gate_up, down = self.timing.projections()
        x = self.vision()
        in_turn, ready = self.batch > 1 and self.system.core and self.system.core.retrieving == 1, -1
        if work.schedule == "ahead" and not self.blocking:
            with self.one_stream() if in_turn else nullcontext():
                ready = self.fetch(0, x)
        layers = round(model.layers * work.passes)
        for layer in range(layers):
            if not self.system.core:
                x = self.launches("overhead", DECODER_OPS, [x], layer)
            h = self.vector("vector", t * model.hidden, "norm", [x], layer, t, model.hidden)
            h = self.linear("weights", t, *qkv, h, layer, "weights", weight_bytes)
            query = self.vector("vector", t * (width + kv_width // 2), "rope", [h], layer, row=width)
            following = layer + 1 if layer + 1 < layers else None
            attend = self.attend_in_turn if in_turn else self.attend
            h, ready = attend(layer, query, x, ready, following)
            h = self.linear("weights", t, *o, h, layer, "weights", weight_bytes)
            h = self.vector("vector", t * model.hidden, "add", [h], layer, t, model.hidden)
            h = self.vector("vector", t * model.hidden, "norm", [h], layer, t, model.hidden)
            h = self.linear("weights", t, *gate_up, h, layer, "weights", weight_bytes)
            h = self.vector("vector", t * model.ffn, "silu_mul", [h], layer, row=model.ffn)
            h = self.linear("weights", t, *down, h, layer, "weights", weight_bytes)
            x = self.vector("vector", t * model.hidden, "add", [h], layer, t, model.hidden)
        x = self.vector("vector", t * model.hidden, "norm", [x], layers)
        self.linear("weights", self.batch, model.hidden, (model.vocab,), x, layers, "weights")
