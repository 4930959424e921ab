"""One run: a system, a policy and a workload become a task graph, a schedule and a `Result`.

Per layer the accelerator overlaps as V-Rex VI-C describes: weights stream through the on-chip buffers while
the matrix engine uses the previous piece, the next layer's retrieval is predicted as soon as this layer's
queries exist, and its KV crosses the link during attention and feed-forward. A GPU runs one kernel after
another, and V-Rex's baselines on it wait for each layer's copy.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil

from sw_model.engine import PS_PER_S, Task, Timeline, schedule
from sw_model.memory.dram import pattern, replay
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
from sw_model.memory.ssd import load_ssd, read
from sw_model.policies import ModelShape, Policy, Work, load
from sw_model.policies import Step as PolicyStep
from sw_model.systems import System
from sw_model.unit_cycles import dpe_cycles, hcu_cycles, vpe_cycles, wtu_cycles
from sw_model.workloads import Model, Phase, Workload
from util import checks

STAGES = ("vision", "weights", "attention", "kv read", "prediction", "fetch", "vector", "overhead")
LINKS = ("paper", "realistic")
# eager GPU operations of one decoder and one vision layer
DECODER_OPS, VISION_OPS = 30, 16

HASH_BITS = 32


@dataclass(frozen=True)
class Assumptions:
    """The free choices of the model, shared by every figure.

    resident_tokens: newest tokens of a stream whose KV stays in device memory (V-Rex calls it the recent region and
        gives no size; 4096 is the capacity of the hardware's page table here).
    retained_hit: share of the selected older KV that the step before left in device memory. 0.31 is the mean overlap
        of what ReSV selects in consecutive frames on the synthetic stream (golden model, 46 frames of two seeds
        between 4.5K and 10K tokens; 0.17 to 0.43); 0 forgets every fetch at the end of its step.
    requests_in_flight: reads of `request_bytes` that one core has outstanding, 16 of 256 B as an AXI4 master with
        four-bit identifiers has. With `memory_latency_ns` from request to data this bounds the core's bandwidth: 82 %
        of LPDDR5 with eight cores, 56 % of HBM2e with 48.
    memory_latency_ns: on-chip network, controller, device and back; 190 ns lies between the 120 of a system on chip
        and the 400 of a data-centre GPU.
    idle_share: what a unit draws while it waits, of what it draws while it works: the clock, which nothing gates. That
        of the mapped MAC tree of 16 inputs here, 1.81 mW idle and 7.08 under random operands.
    chunks: pieces per transfer and matrix in the event model; finer changes totals by a percent or two.
    """

    resident_tokens: int = 4096
    retained_hit: float = 0.31
    requests_in_flight: int = 16
    request_bytes: int = 256
    memory_latency_ns: float = 190.0
    idle_share: float = 0.255
    chunks: int = 4

    def __post_init__(self) -> None:
        try:
            for name in ("retained_hit", "idle_share"):
                checks.number(name, getattr(self, name), 0, 1)
            checks.whole("resident_tokens", self.resident_tokens, 0)
            for name in ("requests_in_flight", "request_bytes", "chunks"):
                checks.whole(name, getattr(self, name), 1)
            checks.number("memory_latency_ns", self.memory_latency_ns, 1)
        except TypeError as error:
            raise ValueError(str(error)) from None


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
    """What one run gives. `stages[...].exposed_s` sum to `total_s`; `bytes_moved` is per resource, `stage_flops` per
    stage."""

    system: str
    policy: str
    workload: str
    link: str
    batch: int
    total_s: float
    stages: dict[str, StageTime]
    utilisation: dict[str, float]
    bytes_moved: dict[str, int]
    stage_flops: dict[str, float]
    energy_j: dict[str, float]
    memory_bytes: int
    fits: bool
    facts: tuple[Fact, ...]
    timelines: tuple[Timeline, ...] = field(repr=False, compare=False, default=())
    counts: tuple[int, ...] = ()

    @property
    def fps(self) -> float:
        return self.batch / self.total_s

    @property
    def flops(self) -> float:
        """Two for a multiply-accumulate."""
        return sum(self.stage_flops.values())

    @property
    def total_j(self) -> float:
        return sum(self.energy_j.values())


def ps(seconds: float) -> int:
    return ceil(seconds * PS_PER_S)


class Graph:
    """Task list under construction for one step of one phase."""

    def __init__(
        self, system: System, model: Model, phase: Phase, batch: int, work: Work, rates: "Rates", waits: bool = False
    ):
        self.system, self.model, self.phase, self.batch = system, model, phase, batch
        self.work, self.rates, self.waits = work, rates, waits
        self.chunks = rates.assume.chunks
        self.tasks: list[Task] = []
        self.flops: dict[str, float] = defaultdict(float)
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
        vectors: float,
        inputs: float,
        outputs: float,
        deps: Sequence[int],
        layer: int,
        times: float = 1,
        share: float = 1.0,
    ) -> int:
        """`share` of `times` products (vectors x inputs) x (inputs x outputs)."""
        flops = 2.0 * vectors * inputs * outputs * times * share
        self.flops[stage] += flops
        core, gpu = self.system.core, self.system.gpu
        if core:
            seconds = dpe_cycles(vectors, inputs, outputs, core, times) * share / (core.clock_mhz * 1e6)
            return self.add(stage, "LXE", seconds, deps, layer)
        assert gpu is not None
        return self.add(stage, "GPU", flops / (gpu.peak_tflops * 1e12 * gpu.gemm_efficiency), deps, layer)

    def vector(self, stage: str, elements: float, what: str, deps: Sequence[int], layer: int) -> int:
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
        """What the policy does to know which KV `layer` needs, from the query at task `query`: reads, products, vector
        work, threshold. Clustering of the new keys runs beside it; nothing in this step waits for it."""
        work, core = self.work, self.system.core
        last = query
        if work.predict_read_bytes:
            last = self.dram("prediction", round(work.predict_read_bytes), [query], layer)
        for m in work.matmuls:
            last = self.matrix("prediction", m.vectors, m.inputs, m.outputs, [query, last], layer, m.times)
            if core and work.hamming_pairs and m is work.matmuls[0]:
                seconds = hcu_cycles(work.hamming_pairs, HASH_BITS, core) / (core.clock_mhz * 1e6)
                self.add("prediction", "HCU", seconds, [last], layer)
        if work.vector_ops:
            last = self.vector("prediction", work.vector_ops, "op", [last], layer)
        if not core:
            return self.launches("prediction", round(work.gpu_kernels), [last], layer)
        if work.threshold_rows:
            cycles = wtu_cycles(work.threshold_rows, work.threshold_entries, work.threshold_passes, core)
            last = self.add("prediction", "WTU", cycles / (core.clock_mhz * 1e6), [last], layer)
        return last

    def fetch(self, layer: int, after: int) -> int:
        """Older KV over the link into device memory, in pieces, cut through a drive where there is one: drive and
        link work at the same time, at the pace of the slower. Returns the last write."""
        total, done, last = self.rates.fetch_bytes, 0, after
        if not total:
            return after
        storage, before = self.rates.storage, [after]
        for i in range(self.chunks):
            size = total * (i + 1) // self.chunks - done
            done += size
            arrived = [self.add("fetch", "PCIe", size / self.rates.link, before, layer, size)]
            if storage:
                arrived.append(self.add("fetch", "SSD", size / storage, before, layer, size))
            before = arrived
            last = self.dram("fetch", size, arrived, layer)
        return last

    def attention(self, layer: int, query: int, present: tuple[int, int]) -> int:
        """Read the attended KV in pieces once it is `present`, then scores, softmax and weighted values over
        past and new tokens."""
        model, batch, t = self.model, self.batch, ceil(self.work.processed_tokens)
        group, d = model.q_heads // model.kv_heads, model.head_dim
        nbytes, done, last = round(self.work.attend_read_bytes), 0, query
        keys = ceil(self.work.attended_tokens) + t
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
        """The whole step."""
        model, work, t = self.model, self.work, ceil(self.work.processed_tokens) * self.batch
        width = model.q_heads * model.head_dim
        kv_width = 2 * model.kv_heads * model.head_dim
        x = self.vision()
        overlaps = not self.waits
        ready = self.fetch(0, x) if work.schedule == "ahead" and overlaps else -1
        for layer in range(model.layers):
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
                ready = self.fetch(layer, self.predict(layer, query))
            if overlaps and layer + 1 < model.layers:
                if work.schedule == "next_layer":
                    following = self.fetch(layer + 1, self.predict(layer + 1, query))
                elif work.schedule == "ahead":
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
    """Bytes per second of the memory system in one run, and the bytes one layer fetches; `storage` is None where
    nothing behind the link is slower than it."""

    assume: Assumptions
    dram_stream: float
    dram_kv: float
    link: float
    storage: float | None
    fetch_bytes: int


@lru_cache(maxsize=256)
def ssd_bytes_per_s(extent: int) -> float:
    """Useful rate of a drive's flash reading extents of this size, 64 outstanding, in whole blocks of 4 KiB. The link
    in front of it is the system's, not the one that the drive was measured with."""
    drive, whole = load_ssd("bg6-like"), ceil(extent / 4096) * 4096
    drive = replace(drive, link_gbps=drive.channels * drive.channel_gbps)
    return read(drive, whole, 400, 64, random=True).bandwidth_gbps * 1e9 * extent / whole


@lru_cache(maxsize=256)
def dram_share(memory: str, unit: int, nbytes: int) -> float:
    """Share of the peak of `nbytes` read in scattered pieces of `unit`, 256 outstanding, replayed bank by bank; of more
    than 64 MiB the first, for the share is steady long before."""
    spec = load_memory(memory)
    nbytes = min(nbytes, 1 << 26)
    unit = max(spec.burst_bytes, unit // spec.burst_bytes * spec.burst_bytes)
    return replay(spec, pattern(spec, "rand", unit, max(1, nbytes // unit), outstanding=256)).share


def rates_of(
    system: System, link: str, work: Work, assume: Assumptions, batch: int, retained: float, memory_detail: bool
) -> Rates:
    """The link of the accelerator is Table I's nominal one in the preset `paper` and the packet model, behind which an
    SSD or host memory sits, in `realistic`. GPUs are real machines: they have the packet model in both."""
    if link not in LINKS:
        raise ValueError(f"unknown link preset {link!r}: one of {', '.join(LINKS)}")
    memory = load_memory(system.memory)
    peak = system.device_memory.peak_gbps * 1e9
    stream = peak * memory.stream_share
    if system.core:
        in_flight = system.core.cores * assume.requests_in_flight * assume.request_bytes
        stream = min(stream, in_flight / (assume.memory_latency_ns * 1e-9))
    kv = stream
    extent = max(64, round(work.extent_bytes))
    if memory_detail and work.attend_read_bytes:
        kv = min(stream, peak * dram_share(system.memory, min(extent, 1 << 17), round(work.attend_read_bytes / batch)))
    fetch = round(work.fetch_bytes * (1 - retained))
    if (link == "paper" and system.core) or not fetch:
        return Rates(assume, stream, kv, system.link.nominal_gbps * 1e9, None, fetch)
    pcie = PcieLink(system.link.generation, system.link.lanes)
    if system.link.behind == "ssd":  # the drive writes what was asked for into the device's memory
        return Rates(assume, stream, kv, pcie.write_gbps(4096) * 1e9, ssd_bytes_per_s(min(extent, 1 << 19)), fetch)
    return Rates(assume, stream, kv, pcie.fetch_gbps(min(extent, 1 << 20)) * 1e9, None, fetch)


@dataclass(frozen=True)
class Step:
    """One phase, built and scheduled."""

    phase: Phase
    work: Work
    rates: Rates
    line: Timeline


def shape_of(model: Model) -> ModelShape:
    return ModelShape(model.layers, model.hidden, model.q_heads, model.kv_heads, model.head_dim)


def work_of(
    policy: Policy, system: System, model: Model, phase: Phase, batch: int, assume: Assumptions, ratio: float | None
) -> Work:
    """What a policy asks of one layer in one phase."""
    resident = 0 if system.kind in policy.offloads_all else assume.resident_tokens
    step = PolicyStep(phase.new_tokens, phase.kv_tokens, phase.stage, shape_of(model), batch, ratio, resident)
    return policy.account(step)


def energy(system: System, steps: Sequence[Step], idle_share: float) -> dict[str, float]:
    """Joules by part. The accelerator's units draw Table III's power while they work and a share of it while they wait,
    the drive its power while it transfers, the memory per bit; a link that a step uses stays up, and draws its power,
    for all of the step. A GPU draws its board power throughout."""
    power, core = system.power, system.core
    out: dict[str, float] = defaultdict(float)
    for step in steps:
        n = step.phase.count
        total_s = n * step.line.makespan_ps / PS_PER_S
        busy = {k: t / PS_PER_S * n for k, t in step.line.resource_busy_ps().items()}
        link_s = max(busy.get("PCIe", 0.0), busy.get("SSD", 0.0))
        if core:
            bits = 8 * n * sum(b for (_, name), b in step.line.bytes_moved().items() if name == "DRAM")
            units = (
                ("LXE", power.dpe_mw + power.lxe_memory_mw, busy.get("LXE", 0.0)),
                ("VPE", power.vpe_mw, busy.get("VPE", 0.0)),
                ("DRE", power.hcu_mw, busy.get("HCU", 0.0)),
                ("DRE", power.wtu_mw, busy.get("WTU", 0.0)),
                ("DRE", power.kvmu_mw, link_s),
            )
            for part, milliwatts, busy_s in units:
                drawn_s = busy_s + idle_share * (total_s - busy_s)
                out[part] += milliwatts * 1e-3 * core.cores * drawn_s
            out["DRAM"] += power.dram_pj_per_bit * 1e-12 * bits
            out["PCIe"] += power.pcie_w_per_lane * system.link.lanes * (total_s if busy.get("PCIe") else 0.0)
        else:
            out["board"] += power.board_w * total_s
        out["storage"] += power.storage_w * link_s
    return {k: v for k, v in out.items() if v}


def run(
    system: System,
    policy: str | Policy,
    workload: Workload,
    *,
    link: str = "paper",
    assume: Assumptions | None = None,
    ratio: float | None = None,
    memory_detail: bool = False,
) -> Result:
    """Latency, stages, bytes, energy and use of every resource of one run.

    `policy` is a name, the path of a Python file that defines one, or a policy that has measured something. `ratio`
    replaces its published or measured retrieval ratio. With `memory_detail` the reads of one layer's KV are replayed
    bank by bank. Raises ValueError for an unknown policy or preset.
    """
    assume = assume or Assumptions()
    model = workload.model
    if isinstance(policy, str):
        chosen = load(policy).for_stream(shape_of(model), tokens_per_frame=model.tokens_per_frame)
    else:
        chosen = policy
    exposed: dict[str, int] = defaultdict(int)
    busy: dict[str, int] = defaultdict(int)
    resource: dict[str, int] = defaultdict(int)
    moved: dict[str, int] = defaultdict(int)
    flops: dict[str, float] = defaultdict(float)
    total, held = 0, 0.0
    steps = []
    for phase in workload.phases:
        work = work_of(chosen, system, model, phase, workload.batch, assume, ratio)
        forgets = work.schedule == "ahead" or system.kind in chosen.offloads_all
        retained = 0.0 if forgets else assume.retained_hit
        rates = rates_of(system, link, work, assume, workload.batch, retained, memory_detail)
        waits = system.kind in chosen.blocking
        graph = Graph(system, model, phase, workload.batch, work, rates, waits)
        graph.step()
        n, line = phase.count, schedule(graph.tasks)
        steps.append(Step(phase, work, rates, line))
        total += n * line.makespan_ps
        for stage, count in graph.flops.items():
            flops[stage] += n * count
        for stage, t in line.exposed_ps().items():
            exposed[stage] += n * t
        for (stage, name), t in line.busy_ps().items():
            busy[stage] += n * t
            resource[name] += n * t
        for (_, name), b in line.bytes_moved().items():
            moved[name] += n * b
        # what is attended and not fetched stays for every layer; the fetched passes through two layers' buffers
        kept = max(0.0, work.attend_read_bytes - work.fetch_bytes)
        held = max(held, kept * model.layers + 2 * work.fetch_bytes)
    memory_bytes = ceil(2 * (model.params + model.vision.params) + held)
    return Result(
        system=system.name,
        policy=chosen.name,
        workload=workload.name,
        link=link,
        batch=workload.batch,
        total_s=total / PS_PER_S,
        stages={s: StageTime(exposed[s] / PS_PER_S, busy[s] / PS_PER_S) for s in STAGES if busy[s] or exposed[s]},
        utilisation={name: t / total for name, t in sorted(resource.items())},
        bytes_moved=dict(sorted(moved.items())),
        stage_flops=dict(flops),
        energy_j=energy(system, steps, assume.idle_share),
        memory_bytes=memory_bytes,
        fits=memory_bytes <= system.device_memory.capacity_gb * 1e9,
        facts=facts(system, steps[-1], ratio),
        timelines=tuple(s.line for s in steps),
        counts=tuple(s.phase.count for s in steps),
    )


def facts(system: System, step: Step, ratio: float | None) -> tuple[Fact, ...]:
    """The numbers behind the last phase of a run, each with its origin."""
    work, rates, core = step.work, step.rates, system.core
    share = work.attended_tokens / max(1, step.phase.kv_tokens)
    given = "given" if ratio is not None else "paper"
    link = "Table I's nominal rate" if rates.link == system.link.nominal_gbps * 1e9 else "packet model"
    out = [
        Fact("attended share of the context", share, "", given, "published ratio unless given or measured"),
        Fact("device memory stream", rates.dram_stream / 1e9, "GB/s", "computed", "peak less refresh"),
        Fact("host link", rates.link / 1e9, "GB/s", "computed", link),
        Fact("KV over the link per layer", rates.fetch_bytes, "B", "computed", "ratio, context, residency"),
        Fact("resident tokens", rates.assume.resident_tokens, "", "assumed", "no size in the paper"),
        Fact("resident hits among older KV", rates.assume.retained_hit, "", "measured on golden", "not in the paper"),
    ]
    if core and work.threshold_rows:
        cycles = wtu_cycles(work.threshold_rows, work.threshold_entries, work.threshold_passes, core)
        out.append(Fact("WTU per layer", cycles, "cycles", "measured from RTL", "the unit's cycle formula"))
        out.append(Fact("WTU sweeps per row", work.threshold_passes, "", "measured on golden", "synthetic stream"))
    if core and work.hamming_pairs:
        cycles = hcu_cycles(work.hamming_pairs, HASH_BITS, core)
        out.append(Fact("HCU per layer", cycles, "cycles", "measured from RTL", "the unit's cycle formula"))
    if system.gpu:
        source = system.sources.get("gpu.op_overhead_us", "")
        out.append(Fact("overhead per GPU operation", system.gpu.op_overhead_us, "us", "paper", source))
    return tuple(out)
