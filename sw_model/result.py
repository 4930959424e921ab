"""The result of a run, and the numbers behind it with their origins."""

from dataclasses import dataclass, field

from sw_model.engine import Timeline
from sw_model.graph import ScheduledPhase
from sw_model.systems import System
from sw_model.unit_cycles import hcu_cycles, wtu_cycles


@dataclass(frozen=True)
class Fact:
    """A number with its origin: `measured from RTL`, `measured on golden`, `computed`, `paper`, `assumed` or
    `given`."""

    name: str
    value: float
    unit: str
    origin: str
    source: str


@dataclass(frozen=True)
class StageTime:
    """Time of one stage: `exposed_s` on the critical path, `busy_s` of work on all resources, hidden or not."""

    exposed_s: float
    busy_s: float


@dataclass(frozen=True)
class Result:
    """The result of one run.

    stages        time by stage; the values of `exposed_s` sum to `total_s`
    utilisation   busy share of each resource, 0 to 1
    bytes_moved   bytes by resource
    stage_flops   operations by stage, two for a multiply-accumulate
    energy_j      joules by consumer
    memory_bytes  device memory that weights and KV cache need; `fits` says whether it is there
    facts         the numbers behind the last phase
    timelines     schedule of each phase; `counts` is how often each phase is repeated
    """

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
        """Steps per second, summed over the batch."""
        return self.batch / self.total_s

    @property
    def flops(self) -> float:
        """Operations of all stages, two for a multiply-accumulate."""
        return sum(self.stage_flops.values())

    @property
    def total_j(self) -> float:
        """Energy of the run in joules."""
        return sum(self.energy_j.values())


def facts_of(system: System, scheduled: ScheduledPhase, ratio: float | None, resident: int) -> tuple[Fact, ...]:
    """The numbers behind one phase of a run; `ratio` is the retrieval ratio that the user set, `resident` the tokens
    of a stream that device memory can hold."""
    work, rates, core = scheduled.work, scheduled.rates, system.core
    share = work.attended_tokens / max(1, scheduled.phase.kv_tokens)
    share_origin = "given" if ratio is not None else "paper"
    link = "nominal rate of V-Rex Table I" if rates.link == system.link.nominal_gbps * 1e9 else "packet model"
    assume = rates.assume
    resident_origin = {
        "recent": ("assumed", "the paper gives no size"), "whole": ("computed", "device memory without the weights"),
    }[assume.residency]  # fmt: skip
    facts = [
        Fact("attended share of the context", share, "", share_origin, "published ratio unless set or measured"),
        Fact("device memory stream", rates.dram_stream / 1e9, "GB/s", "computed", "peak less refresh"),
        Fact("host link", rates.link / 1e9, "GB/s", "computed", link),
        Fact("KV over the link per layer", rates.fetch_bytes, "B", "computed", "ratio, context, residency"),
        Fact("resident tokens", resident, "", *resident_origin),
        Fact("bits of a KV element", assume.kv_bits, "", "assumed", "16: BF16"),
        Fact("bits of a weight", assume.weight_bits, "", "assumed", "projections of the decoder layers; 16: BF16"),
        Fact("resident hits among older KV", assume.retained_hit, "", "measured on golden", "not in the paper"),
    ]
    if core and work.threshold_rows:
        cycles = wtu_cycles(
            work.threshold_rows, work.threshold_entries, work.threshold_passes, core, work.threshold_levels
        )  # fmt: skip
        facts.append(Fact("WTU per layer", cycles, "cycles", "measured from RTL", "the unit's cycle formula"))
        facts.append(Fact("WTU sweeps per row", work.threshold_passes, "", "measured on golden", "synthetic stream"))
    if core and work.hamming_pairs:
        cycles = hcu_cycles(work.hamming_pairs, core)
        facts.append(Fact("HCU per layer", cycles, "cycles", "measured from RTL", "the unit's cycle formula"))
    if system.gpu:
        source = system.sources.get("gpu.op_overhead_us", "")
        facts.append(Fact("overhead per GPU operation", system.gpu.op_overhead_us, "us", "paper", source))
    return tuple(facts)
