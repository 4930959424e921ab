"""One run: a system, a policy and a workload become a task graph, a schedule and a `Result`.

Per layer the accelerator overlaps as V-Rex VI-C describes: weights stream through the on-chip buffers while
the matrix engine uses the previous piece, the next layer's retrieval is predicted as soon as this layer's
queries exist, and its KV crosses the link during attention and feed-forward. A GPU runs one kernel after
another.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from sw_model.demand import Assumptions, Demand, demand
from sw_model.engine import PS_PER_S, Task, Timeline, schedule
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
from sw_model.systems import System
from sw_model.units import dpe_cycles, hcu_cycles, vpe_cycles, wtu_cycles
from sw_model.workloads import Model, Phase, Workload

STAGES = ("vision", "weights", "attention", "kv read", "prediction", "fetch", "vector", "overhead")
LINKS = ("paper", "realistic")
# eager GPU operations of one decoder and one vision layer
DECODER_OPS, VISION_OPS = 30, 16


@dataclass(frozen=True)
class Fact:
    """A number with its origin: `measured from RTL`, `measured on golden`, `computed`, `paper` or
    `assumed`."""

    name: str
    value: float
    unit: str
    origin: str
    source: str


@dataclass(frozen=True)
class StageTime:
    """Seconds on the critical path and seconds of work, hidden or not, over all resources."""

    exposed_s: float
    busy_s: float


@dataclass(frozen=True)
class Result:
    """What one run gives. `stages[...].exposed_s` sum to `total_s`; `bytes_moved` is per resource."""

    system: str
    policy: str
    workload: str
    link: str
    batch: int
    total_s: float
    stages: dict[str, StageTime]
    utilisation: dict[str, float]
    bytes_moved: dict[str, int]
    flops: float
    memory_bytes: int
    fits: bool
    facts: tuple[Fact, ...]
    timelines: tuple[Timeline, ...] = field(repr=False, compare=False, default=())
    counts: tuple[int, ...] = ()

    @property
    def fps(self) -> float:
        return self.batch / self.total_s


def ps(seconds: float) -> int:
    return ceil(seconds * PS_PER_S)


class Graph:
    """Task list under construction for one step of one phase."""

    def __init__(self, system: System, model: Model, phase: Phase, batch: int, need: Demand, rates: "Rates"):
        self.system, self.model, self.phase, self.batch = system, model, phase, batch
        self.need, self.rates = need, rates
        self.chunks = rates.assume.chunks
        self.tasks: list[Task] = []
        self.flops = 0.0
        self.recent_loads: list[int] = []

    # -- single tasks ------------------------------------------------------------------------------------
    def add(self, stage: str, resource: str, seconds: float, deps: Sequence[int], layer: int, nbytes: int = 0) -> int:
        unique = tuple(sorted({d for d in deps if d >= 0}))
        self.tasks.append(Task(stage, resource, ps(seconds), unique, bytes_moved=nbytes, layer=layer))
        return len(self.tasks) - 1

    def dram(self, stage: str, nbytes: int, deps: Sequence[int], layer: int, rate: float | None = None) -> int:
        return self.add(stage, "DRAM", nbytes / (rate or self.rates.dram_stream), deps, layer, nbytes)

    def matrix(
        self,
        stage: str,
        vectors: int,
        inputs: int,
        outputs: int,
        deps: Sequence[int],
        layer: int,
        times: int = 1,
        share: float = 1.0,
    ) -> int:
        """`share` of `times` products (vectors x inputs) x (inputs x outputs)."""
        flops = 2.0 * vectors * inputs * outputs * times * share
        self.flops += flops
        core, gpu = self.system.core, self.system.gpu
        if core:
            seconds = dpe_cycles(vectors, inputs, outputs, core, times) * share / (core.clock_mhz * 1e6)
            return self.add(stage, "LXE", seconds, deps, layer)
        assert gpu is not None
        return self.add(stage, "GPU", flops / (gpu.peak_tflops * 1e12 * gpu.gemm_efficiency), deps, layer)

    def vector(self, stage: str, elements: int, what: str, deps: Sequence[int], layer: int) -> int:
        """On a GPU the element-wise kernels are inside the per-operation overhead."""
        core = self.system.core
        if core:
            return self.add(stage, "VPE", vpe_cycles(elements, what, core) / (core.clock_mhz * 1e6), deps, layer)
        return self.add(stage, "GPU", 0.0, deps, layer)

    def launches(self, stage: str, ops: int, deps: Sequence[int], layer: int) -> int:
        gpu = self.system.gpu
        assert gpu is not None
        return self.add(stage, "GPU", ops * gpu.op_overhead_us * 1e-6, deps, layer)

    # -- compound steps ----------------------------------------------------------------------------------
    def linear(self, stage: str, vectors: int, inputs: int, outputs: int, after: int, layer: int, use: str) -> int:
        """Weights in pieces, at most two ahead of their use (double buffering); a GPU starts loading when
        its kernel starts. Returns the last use."""
        total, done = 2 * inputs * outputs, 0
        last = after
        for i in range(self.chunks):
            size = total * (i + 1) // self.chunks - done
            done += size
            buffer = self.recent_loads[-2:-1] if self.system.core else [after]
            load = self.dram(stage, size, buffer, layer)
            last = self.matrix(use, vectors, inputs, outputs, [load, last], layer, share=1 / self.chunks)
            self.recent_loads.append(last)
        return last

    def predict(self, layer: int, query: int) -> int:
        """Which KV `layer` needs, from the query at task `query`. Returns the last task."""
        need, batch, core = self.need, self.batch, self.system.core
        table = self.dram("prediction", need.table_bytes * batch, [query], layer)
        score = self.matrix("prediction", *need.score_shape, [table, query], layer, need.score_times * batch)
        if not core:
            return self.launches("prediction", need.gpu_ops, [score], layer)
        scores = self.vector("prediction", need.exp_elements * batch, "exp", [score], layer)
        seconds = wtu_cycles(need.select_rows, need.select_entries, need.select_passes, core) / (core.clock_mhz * 1e6)
        return self.add("prediction", "WTU", seconds * batch, [scores], layer)

    def cluster(self, layer: int, keys: int) -> int:
        """Hash bits of the new keys and their clusters; nothing in this step waits for it."""
        need, core = self.need, self.system.core
        if not need.cluster_pairs or not core:
            return keys
        t, bits = self.phase.new_tokens, self.rates.assume.hash_bits
        hashed = self.matrix("prediction", t * self.batch, need.hash_inputs, bits, [keys], layer)
        cycles = hcu_cycles(t, ceil(need.cluster_pairs / t), bits, core) * self.batch
        return self.add("prediction", "HCU", cycles / (core.clock_mhz * 1e6), [hashed], layer)

    def fetch(self, layer: int, after: int) -> int:
        """Older KV over the link into device memory, in pieces. Returns the last write."""
        total, done, last = self.need.fetch_bytes * self.batch, 0, after
        if not total:
            return after
        piece_before = -1
        for i in range(self.chunks):
            size = total * (i + 1) // self.chunks - done
            done += size
            deps = [after, piece_before]
            if self.rates.storage:
                deps = [self.add("fetch", "SSD", size / self.rates.storage, deps, layer, size)]
            piece_before = self.add("fetch", "PCIe", size / self.rates.link, deps, layer, size)
            last = self.dram("fetch", size, [piece_before], layer)
        return last

    def attention(self, layer: int, query: int, present: tuple[int, int]) -> int:
        """Read the attended KV in pieces once it is `present`, then scores, softmax and weighted values over
        past and new tokens."""
        need, model, batch, t = self.need, self.model, self.batch, self.phase.new_tokens
        group, d = model.q_heads // model.kv_heads, model.head_dim
        past, last = need.attended_tokens, query
        nbytes, done = ceil(past * need.kv_bytes_per_token) * batch, 0
        keys = past + t
        for i in range(self.chunks):
            size = nbytes * (i + 1) // self.chunks - done
            done += size
            after = present if self.system.core else (*present, query)
            load = self.dram("kv read", size, after, layer, self.rates.dram_kv)
            times = batch * model.kv_heads
            score = self.matrix("attention", t * group, d, keys, [load, last], layer, times, 1 / self.chunks)
            weight = self.vector(
                "attention", ceil(t * model.q_heads * keys * batch / self.chunks), "softmax", [score], layer
            )
            last = self.matrix("attention", t * group, keys, d, [weight], layer, times, 1 / self.chunks)
        return last

    def vision(self) -> int:
        tower, batch = self.model.vision, self.phase.frames * self.batch
        if not batch:
            return -1
        vectors, last = tower.patches * batch, -1
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
        """The whole step."""
        model, need, t = self.model, self.need, self.phase.new_tokens * self.batch
        width = model.q_heads * model.head_dim
        kv_width = 2 * model.kv_heads * model.head_dim
        x = self.vision()
        ready = self.fetch(0, x) if need.schedule == "ahead" else -1
        for layer in range(model.layers):
            if not self.system.core:
                x = self.launches("overhead", DECODER_OPS, [x], layer)
            h = self.vector("vector", t * model.hidden, "norm", [x], layer)
            h = self.linear("weights", t, model.hidden, width + kv_width, h, layer, "weights")
            query = self.vector("vector", t * (width + kv_width // 2), "rope", [h], layer)
            self.cluster(layer, query)
            following = -1
            if need.schedule == "in_layer" or (need.schedule == "next_layer" and layer == 0):
                ready = self.fetch(layer, self.predict(layer, query))
            if layer + 1 < model.layers:
                if need.schedule == "next_layer":
                    following = self.fetch(layer + 1, self.predict(layer + 1, query))
                elif need.schedule == "ahead":
                    following = self.fetch(layer + 1, x)
            h = self.attention(layer, query, (ready, x))
            h = self.linear("weights", t, width, model.hidden, h, layer, "weights")
            h = self.vector("vector", t * model.hidden, "add", [h], layer)
            h = self.vector("vector", t * model.hidden, "norm", [h], layer)
            h = self.linear("weights", t, model.hidden, 2 * model.ffn, h, layer, "weights")
            h = self.vector("vector", t * model.ffn, "silu_mul", [h], layer)
            h = self.linear("weights", t, model.ffn, model.hidden, h, layer, "weights")
            x = self.vector("vector", t * model.hidden, "add", [h], layer)
            ready = following
        x = self.vector("vector", t * model.hidden, "norm", [x], model.layers)
        self.linear("weights", self.batch, model.hidden, model.vocab, x, model.layers, "weights")


@dataclass(frozen=True)
class Rates:
    """Bytes per second of the memory system in one run; `storage` is None where the link is what limits."""

    assume: Assumptions
    dram_stream: float
    dram_kv: float
    link: float
    storage: float | None


def rates_of(system: System, link: str, need: Demand, assume: Assumptions) -> Rates:
    """`paper` takes Table I's nominal link; `realistic` the packet model behind which an SSD or host memory
    sits."""
    if link not in LINKS:
        raise ValueError(f"unknown link preset {link!r}: one of {', '.join(LINKS)}")
    memory = load_memory(system.memory)
    stream = system.device_memory.peak_gbps * 1e9 * memory.stream_share
    if link == "paper":
        return Rates(assume, stream, stream, system.link.nominal_gbps * 1e9, None)
    pcie = PcieLink(system.link.generation, system.link.lanes)
    unit = max(64, min(need.fetch_unit_bytes, 1 << 20))
    return Rates(assume, stream, stream, pcie.fetch_gbps(unit) * 1e9, None)


@dataclass(frozen=True)
class Step:
    """One phase, built and scheduled."""

    phase: Phase
    need: Demand
    rates: Rates
    flops: float
    line: Timeline


def build(
    system: System, policy: str, workload: Workload, link: str, assume: Assumptions, ratio: float | None
) -> list[Step]:
    """The schedule of every phase of a workload."""
    steps = []
    for phase in workload.phases:
        need = demand(policy, workload.model, phase, assume, ratio)
        rates = rates_of(system, link, need, assume)
        graph = Graph(system, workload.model, phase, workload.batch, need, rates)
        graph.step()
        steps.append(Step(phase, need, rates, graph.flops, schedule(graph.tasks)))
    return steps


def run(
    system: System,
    policy: str,
    workload: Workload,
    *,
    link: str = "paper",
    assume: Assumptions | None = None,
    ratio: float | None = None,
) -> Result:
    """Latency, stages, bytes and use of every resource of one run.

    `ratio` replaces the published retrieval ratio of the policy. Raises ValueError for an unknown policy or
    preset.
    """
    assume = assume or Assumptions()
    exposed: dict[str, int] = defaultdict(int)
    busy: dict[str, int] = defaultdict(int)
    resource: dict[str, int] = defaultdict(int)
    moved: dict[str, int] = defaultdict(int)
    total, flops, peak_bytes = 0, 0.0, 0
    steps = build(system, policy, workload, link, assume, ratio)
    for step in steps:
        n, line, need = step.phase.count, step.line, step.need
        total += n * line.makespan_ps
        flops += n * step.flops
        for stage, t in line.exposed_ps().items():
            exposed[stage] += n * t
        for (stage, name), t in line.busy_ps().items():
            busy[stage] += n * t
            resource[name] += n * t
        for (_, name), b in line.bytes_moved().items():
            moved[name] += n * b
        held = need.resident_tokens * need.kv_bytes_per_token * workload.model.layers + need.fetch_bytes * 2
        peak_bytes = max(peak_bytes, ceil(held * workload.batch))
    model = workload.model
    memory_bytes = 2 * (model.params + model.vision.params) + peak_bytes
    stages = {s: StageTime(exposed[s] / PS_PER_S, busy[s] / PS_PER_S) for s in STAGES if busy[s] or exposed[s]}
    return Result(
        system=system.name,
        policy=policy,
        workload=workload.name,
        link=link,
        batch=workload.batch,
        total_s=total / PS_PER_S,
        stages=stages,
        utilisation={name: t / total for name, t in sorted(resource.items())},
        bytes_moved=dict(sorted(moved.items())),
        flops=flops,
        memory_bytes=memory_bytes,
        fits=memory_bytes <= system.device_memory.capacity_gb * 1e9,
        facts=facts(system, steps[-1].need, steps[-1].rates, ratio),
        timelines=tuple(s.line for s in steps),
        counts=tuple(s.phase.count for s in steps),
    )


def facts(system: System, need: Demand, rates: Rates, ratio: float | None) -> tuple[Fact, ...]:
    """The numbers behind the last phase of a run, each with its origin."""
    out = [
        Fact("retrieval ratio", need.ratio, "", "paper" if ratio is None else "given", "V-Rex Table II"),
        Fact("device memory stream", rates.dram_stream / 1e9, "GB/s", "computed", "peak less refresh"),
        Fact("host link", rates.link / 1e9, "GB/s", "computed", "Table I's nominal rate, or the packet model"),
        Fact(
            "KV over the link, one layer and stream",
            need.fetch_bytes,
            "B",
            "computed",
            "ratio, context, residency",
        ),
        Fact("resident tokens", rates.assume.resident_tokens, "", "assumed", "not given in the paper"),
        Fact(
            "resident hits among older pages",
            rates.assume.retained_hit,
            "",
            "assumed",
            "not given in the paper",
        ),
    ]
    core = system.core
    if core and need.select_rows:
        wtu = wtu_cycles(need.select_rows, need.select_entries, need.select_passes, core)
        out.append(Fact("WTU per layer", wtu, "cycles", "measured from RTL", "the unit's cycle formula"))
        out.append(Fact("WTU sweeps per row", need.select_passes, "", "measured on golden", "synthetic stream"))
    if core and need.cluster_pairs:
        cycles = need.cluster_pairs * ceil(rates.assume.hash_bits / core.hcu_lanes) // core.cores
        out.append(Fact("HCU per layer", cycles, "cycles", "measured from RTL", "the unit's cycle formula"))
    if system.gpu:
        where = system.sources.get("gpu.op_overhead_us", "")
        out.append(Fact("overhead per GPU operation", system.gpu.op_overhead_us, "us", "paper", where))
    return tuple(out)
