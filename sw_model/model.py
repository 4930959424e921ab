"""One run: a system, a policy and a workload become a task graph, a schedule and a `Result`."""

from collections import defaultdict
from math import ceil, floor

from sw_model.assumptions import Assumptions
from sw_model.energy import energy_j
from sw_model.engine import PS_PER_S, schedule
from sw_model.graph import STAGES, Graph, ScheduledPhase
from sw_model.policies import Policy, Step, Work, load
from sw_model.rates import rates_of
from sw_model.result import Result, StageTime, facts_of
from sw_model.systems import System
from sw_model.workloads import BF16_BYTES, Model, Phase, Workload


def policy_for(name: str, model: Model) -> Policy:
    """The policy of a name, or of the path of a Python file, for one stream of a model.

    Raises ValueError for an unknown policy.
    """
    return load(name).for_stream(model, tokens_per_frame=model.tokens_per_frame)


def work_of(
    policy: Policy, system: System, model: Model, phase: Phase, batch: int, assume: Assumptions, ratio: float | None
) -> Work:
    """The work of one layer in one phase; `ratio` replaces the policy's retrieval ratio."""
    resident = resident_tokens(policy, system, model, phase, batch, assume, ratio)
    step = Step(
        phase.new_tokens, phase.kv_tokens, phase.stage, model, batch, ratio, resident, assume.kv_bits, system.kind
    )
    return policy.account(step)


def resident_tokens(
    policy: Policy, system: System, model: Model, phase: Phase, batch: int, assume: Assumptions, ratio: float | None
) -> int:
    """Tokens of each sequence that device memory can hold in a phase, counted in BF16 (`Assumptions.residency`)."""
    if system.kind in policy.offloads_all:
        return 0
    if assume.residency == "recent":
        return assume.resident_tokens
    step = Step(phase.new_tokens, phase.kv_tokens, phase.stage, model, batch, ratio, 0, assume.kv_bits, system.kind)
    work = policy.account(step)
    always = work.weight_bytes + work.predict_read_bytes + max(0.0, work.attend_read_bytes - work.fetch_bytes)
    used = weight_bytes(model, assume) + model.layers * always + 2 * work.fetch_bytes
    free = system.device_memory.capacity_gb * 1e9 - used
    if system.core:  # bytes of the pages in all page frames
        config = system.core.config
        page_elements = 2 * config.kv_heads * config.head_dim * config.page_tokens
        free = min(free, config.page_frames * page_elements * assume.kv_bits / 8)
    return max(0, floor(free / (batch * model.kv_bytes_per_token)))


def weight_bytes(model: Model, assume: Assumptions) -> int:
    """Bytes of the weights of the language model and of its vision tower in device memory."""
    projections = model.layers * (model.attn_params + model.ffn_params)
    others = model.params + model.vision.params - projections
    return ceil(projections * assume.weight_bits / 8) + BF16_BYTES * others


def scheduled_phase(
    policy: Policy,
    system: System,
    workload: Workload,
    phase: Phase,
    assume: Assumptions,
    ratio: float | None,
    link: str,
    memory_detail: bool,
) -> ScheduledPhase:
    """One step of a phase as a schedule."""
    model, batch = workload.model, workload.batch
    work = work_of(policy, system, model, phase, batch, assume, ratio)
    return scheduled_work(policy, system, model, phase, batch, work, assume, link, memory_detail)


def retained_share(policy: Policy, system: System, work: Work, assume: Assumptions) -> float:
    """Share of the fetched KV of a step that stays in device memory for the next step."""
    drops_fetched = work.schedule == "ahead" or system.kind in policy.offloads_all
    return 0.0 if drops_fetched else assume.retained_hit


def scheduled_work(
    policy: Policy,
    system: System,
    model: Model,
    phase: Phase,
    batch: int,
    work: Work,
    assume: Assumptions,
    link: str,
    memory_detail: bool,
) -> ScheduledPhase:
    """One step of a phase, of which a layer has the work `work`, as a schedule."""
    retained = retained_share(policy, system, work, assume)
    rates = rates_of(system, link, work, assume, batch, retained, memory_detail)
    graph = Graph(system, model, phase, batch, work, rates, blocking=system.kind in policy.blocking)
    graph.step()
    return ScheduledPhase(phase, work, rates, schedule(graph.tasks), dict(graph.flops))


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
    """Latency, stages, bytes, energy and utilisation of one run.

    policy         a name, the path of a Python file that defines a policy, or a policy that has measured something
    link           `paper` or `realistic` (`sw_model.rates.rates_of`)
    assume         None: those of the system
    ratio          share of the past that the policy retrieves, 0 to 1; None: measured or published
    memory_detail  the reads of one layer's KV are replayed bank by bank

    Raises ValueError for an unknown policy or link preset, and for an invalid ratio.
    """
    assume = assume or system.assumptions
    model = workload.model
    chosen = policy_for(policy, model) if isinstance(policy, str) else policy
    exposed: dict[str, int] = defaultdict(int)
    busy: dict[str, int] = defaultdict(int)
    resource: dict[str, int] = defaultdict(int)
    moved: dict[str, int] = defaultdict(int)
    flops: dict[str, float] = defaultdict(float)
    total, cache_bytes = 0, 0.0
    phases = []
    for phase in workload.phases:
        scheduled = scheduled_phase(chosen, system, workload, phase, assume, ratio, link, memory_detail)
        phases.append(scheduled)
        n, timeline, work = phase.count, scheduled.timeline, scheduled.work
        total += n * timeline.makespan_ps
        for stage, count in scheduled.flops.items():
            flops[stage] += n * count
        for stage, t in timeline.exposed_ps().items():
            exposed[stage] += n * t
        for (stage, name), t in timeline.busy_ps().items():
            busy[stage] += n * t
            resource[name] += n * t
        for (_, name), b in timeline.bytes_moved().items():
            moved[name] += n * b
        # attended KV that is not fetched is resident for every layer; fetched KV takes the buffers of two layers
        resident_bytes = max(0.0, work.attend_read_bytes - work.fetch_bytes)
        cache_bytes = max(cache_bytes, resident_bytes * model.layers + 2 * work.fetch_bytes)
    memory_bytes = ceil(weight_bytes(model, assume) + cache_bytes)
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
        energy_j=energy_j(system, phases, assume.idle_share),
        memory_bytes=memory_bytes,
        fits=memory_bytes <= system.device_memory.capacity_gb * 1e9,
        facts=facts_of(
            system,
            phases[-1],
            ratio,
            resident_tokens(chosen, system, model, workload.phases[-1], workload.batch, assume, ratio),
        ),
        timelines=tuple(p.timeline for p in phases),
        counts=tuple(p.phase.count for p in phases),
    )
