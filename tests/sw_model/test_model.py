"""Runs: conservation, bounds, monotony, determinism, invalid arguments."""

from dataclasses import replace
from math import ceil

import pytest

from sw_model import workloads
from sw_model.assumptions import Assumptions
from sw_model.model import run, work_of
from sw_model.papers.figures import fig13_frames
from sw_model.policies import POLICIES
from sw_model.policies.resv import ReSV
from sw_model.systems import load_system
from sw_model.workloads import LLAMA3_8B

CASES = [
    (system, policy, workload)
    for system in ("vrex8", "vrex48", "agx-orin", "a100")
    for policy in POLICIES
    for workload in (workloads.frame(1000), workloads.frame(20000, batch=4), workloads.text(20000))
]


@pytest.mark.parametrize(("system", "policy", "workload"), CASES, ids=lambda x: getattr(x, "name", x))
def test_time_bytes_and_energy_are_conserved(system, policy, workload):
    machine = load_system(system)
    r = run(machine, policy, workload)
    line, phase, model = r.timelines[0], workload.phases[0], workload.model
    work = work_of(POLICIES[policy](model), machine, model, phase, workload.batch, Assumptions(), None)
    # the breakdown sums to the total, exactly in picoseconds
    assert sum(line.exposed_ps().values()) == line.makespan_ps
    assert sum(s.exposed_s for s in r.stages.values()) == pytest.approx(r.total_s, rel=1e-12)
    assert max(r.utilisation.values()) <= 1
    # bytes: the fetched bytes of the policy cross the link and are written to device memory
    moved = line.bytes_moved()
    forgets = work.schedule == "ahead" or machine.kind in POLICIES[policy].offloads_all
    new = 1 if forgets else 1 - Assumptions().retained_hit
    layers = [work.first_layer] + [1] * (round(model.layers * work.passes) - 1)  # of the passes through all layers
    fetched = sum(round(round(work.fetch_bytes * new) * times) for times in layers)
    assert moved.get(("fetch", "PCIe"), 0) == moved.get(("fetch", "DRAM"), 0) == fetched
    weights = 2 * (len(layers) * (model.attn_params + model.ffn_params) + model.vocab * model.hidden)
    assert moved["weights", "DRAM"] == weights >= model.streamed_weight_bytes
    # a core reads keys for 64 query rows of a KV head at a time, values for 32, and its scores go through memory
    rows, tokens = ceil(work.processed_tokens) * model.group, ceil(work.processed_tokens)
    passes = (ceil(rows / 64) + ceil(rows / 32)) / 2 if machine.core else 1
    read = work.attend_read_bytes * passes * sum(layers)
    assert moved.get(("kv read", "DRAM"), 0) == pytest.approx(read, abs=2 * len(layers))
    keys = [ceil(work.attended_tokens * times) + tokens for times in layers]
    words = sum(n * (22 if n > 4096 else 12) for n in keys) if machine.core else 0
    scores = rows * model.kv_heads * workload.batch * words
    assert moved.get(("attention", "DRAM"), 0) == pytest.approx(scores, abs=3 * len(layers))
    assert sum(r.energy_j.values()) == pytest.approx(r.total_j)
    most = machine.power.board_w + machine.power.storage_w if machine.gpu else None
    assert most is None or r.total_j <= most * r.total_s * (1 + 1e-9)
    # no resource is faster than physics
    peak = machine.device_memory.peak_gbps * 1e9
    assert r.bytes_moved["DRAM"] / r.total_s <= peak
    assert fetched / r.total_s <= machine.link.nominal_gbps * 1e9
    assert moved.get(("fetch", "SSD"), fetched) == fetched
    assert r.flops / r.total_s <= machine.peak_tflops * 1e12


def test_weight_streaming_bounds_a_token():
    """TPOT at a short context slightly exceeds the time to stream 15.0 GB at the refresh limit of the memory."""
    token = run(load_system("vrex8"), "resv", workloads.text(1000))
    floor = LLAMA3_8B.streamed_weight_bytes / (204.8e9 * (1 - (8 + 15 + 224 + 15) / 3125))
    assert floor < token.total_s < 1.06 * floor


def test_weights_in_four_bits():
    """A token reads fewer bytes of its projections; the output head and everything else are unchanged."""
    system, load = load_system("vrex8"), workloads.text(1000)
    plain, packed = (run(system, "resv", load, assume=Assumptions(weight_bits=bits)) for bits in (16, 4.5))
    projections = 32 * (LLAMA3_8B.attn_params + LLAMA3_8B.ffn_params)
    saved = projections * (16 - 4.5) / 8
    assert plain.bytes_moved["DRAM"] - packed.bytes_moved["DRAM"] == pytest.approx(saved, rel=1e-3)
    assert plain.memory_bytes - packed.memory_bytes == pytest.approx(saved, rel=1e-3)
    assert plain.total_s - packed.total_s == pytest.approx(saved / 204.8e9, rel=0.2)
    with pytest.raises(ValueError, match="weight_bits must be finite and between 1 and 16, got 0"):
        Assumptions(weight_bits=0)


def test_link_bounds_flexgen():
    """In each layer the link only waits until the keys of the layer are multiplied."""
    system, link_s = load_system("vrex8"), 40000 * 131072 / 4e9
    r = run(system, "full", workloads.frame(40000))
    kept = run(system.replace(link={"nominal_gbps": 200.0}), "full", workloads.frame(40000))
    assert link_s < r.total_s < link_s + kept.total_s / 2
    assert max(r.stages, key=lambda s: r.stages[s].exposed_s) == "fetch"


def test_latency_grows_with_context_and_falls_with_hits():
    system = load_system("vrex8")
    times = [run(system, "resv", workloads.frame(n)).total_s for n in (1000, 5000, 10000, 20000, 40000)]
    assert times == sorted(times)
    full = run(system, "resv", workloads.frame(40000), assume=Assumptions(retained_hit=1.0))
    link_s = run(system, "resv", workloads.frame(40000)).bytes_moved["PCIe"] / 4e9
    assert full.bytes_moved.get("PCIe", 0) == 0 and full.total_s < link_s < times[-1]


def test_cost_is_linear_in_context():
    """The task list of a step does not grow with the context."""
    short, long = (run(load_system("vrex8"), "resv", workloads.frame(n)) for n in (100_000, 1_000_000))
    assert len(short.timelines[0].tasks) == len(long.timelines[0].tasks)


def test_number_of_pieces_changes_little():
    system, load = load_system("vrex8"), workloads.frame(20000)
    coarse, fine = (run(system, "resv", load, assume=Assumptions(chunks=c)).total_s for c in (4, 16))
    assert fine == pytest.approx(coarse, rel=0.03)


def test_time_of_a_session_is_the_sum_of_its_steps():
    system = load_system("vrex48")
    r = run(system, "resv", workloads.coin_session(5000))
    assert r.total_s == pytest.approx(sum(n * t.makespan_ps for n, t in zip(r.counts, r.timelines, strict=True)) / 1e12)
    assert sum(r.counts) == 26 + 1 + 39


def test_runs_are_deterministic():
    first, second = (run(load_system("a100"), "rekv", workloads.frame(20000)) for _ in range(2))
    assert first == second and first.timelines[0].start_ps == second.timelines[0].start_ps


def test_energy_of_units_memory_link_and_drive():
    """A token of a short context: units by their busy time and a share of the idle time, memory by its bits, no energy
    of an unused link."""
    r = run(load_system("vrex8"), "resv", workloads.text(1000))
    busy = {name: share * r.total_s for name, share in r.utilisation.items()}
    drawn_s = busy["LXE"] + 0.255 * (r.total_s - busy["LXE"])
    assert r.energy_j["LXE"] == pytest.approx((2.31139 + 0.11894) * 8 * drawn_s)
    gated = run(load_system("vrex8"), "resv", workloads.text(1000), assume=Assumptions(idle_share=0))
    assert gated.energy_j["LXE"] == pytest.approx((2.31139 + 0.11894) * 8 * busy["LXE"])
    assert r.energy_j["DRAM"] == pytest.approx(5e-12 * 8 * r.bytes_moved["DRAM"])
    assert "PCIe" not in r.energy_j and "storage" not in r.energy_j
    used = run(load_system("vrex8"), "resv", workloads.text(40000))
    assert used.energy_j["PCIe"] == pytest.approx(12 * used.total_s)
    assert used.energy_j["storage"] == pytest.approx(4.1 * used.utilisation["PCIe"] * used.total_s)
    gpu = run(load_system("agx-orin"), "full", workloads.frame(1000))
    assert gpu.energy_j["board"] == pytest.approx(40 * gpu.total_s)


def test_gpus_fetch_without_overlap():
    """A GPU baseline waits for its copies: the time of a step is at least computation plus transfer."""
    r = run(load_system("agx-orin"), "full", workloads.frame(20000))
    alone = run(load_system("agx-orin"), "full", workloads.frame(0))
    fetch = r.stages["fetch"].exposed_s
    assert fetch == pytest.approx(20000 * 131072 / 3.2e9, rel=0.05)
    assert r.total_s > alone.total_s + fetch


def test_realistic_link_is_slower():
    system = load_system("vrex8")
    paper, real = (run(system, "full", workloads.text(40000), link=k).total_s for k in ("paper", "realistic"))
    # 4 GB/s nominal against the drive behind 3.2 GB/s; in each layer the link waits for the scores of the keys
    assert 1.15 < real / paper < 1.25


def resident(result):
    """Tokens of a stream that device memory can hold, of a run."""
    return next(fact.value for fact in result.facts if fact.name == "resident tokens")


def test_whole_memory_holds_what_fits():
    """QuickPrefill has no index: half of the past (rho), in two layers, is staged; the rest of the memory is tokens."""
    system, whole, past = load_system("vrex8"), Assumptions(residency="whole"), 40000
    weights = 2 * (LLAMA3_8B.params + LLAMA3_8B.vision.params)
    for batch, most in ((1, 115422), (8, 13334)):
        r = run(system, "quickprefill", workloads.frame(past, batch=batch), assume=whole)
        staged = batch * 2 * past // 2 * 4096
        assert resident(r) == int((32e9 - weights - staged) / (batch * 32 * 4096)) == most
        assert ("PCIe" in r.bytes_moved) == (past // 2 > most)


@pytest.mark.parametrize("frames", [1 << 18, 1 << 20])
def test_whole_memory_holds_at_most_the_page_frames(frames):
    """Formats of 4.5 bits: without a limit of page frames, 27 GB hold 700,000 tokens of 32 layers."""
    system = load_system("vrex8-plus")
    machine = replace(system, core=system.core.replace({"page_frames": frames}, "core"))
    r = run(machine, "resv", workloads.frame(699_990))
    tokens = frames * 32 // 32  # 32 tokens in a page, 32 layers
    assert (resident(r) * 16 / 4.5 > tokens - 4) == (tokens < 699_990)
    assert resident(r) * 16 / 4.5 <= tokens


def test_a_gpu_that_offloads_everything_holds_nothing():
    gpu, load = load_system("agx-orin"), workloads.frame(20000)
    whole, recent = (run(gpu, "rekv", load, assume=Assumptions(residency=r)) for r in ("whole", "recent"))
    assert resident(whole) == resident(recent) == 0 and whole.total_s == recent.total_s


def test_invalid_arguments_raise_value_error():
    system, load = load_system("vrex8"), workloads.frame(1000)
    with pytest.raises(ValueError, match=r"policy must be one of .*resv.*got 'magic'"):
        run(system, "magic", load)
    with pytest.raises(ValueError, match="link must be one of paper, realistic, got 'dream'"):
        run(system, "resv", load, link="dream")
    with pytest.raises(ValueError, match="ratio"):
        run(system, "resv", load, ratio=1.2)
    with pytest.raises(ValueError, match="retained_hit"):
        Assumptions(retained_hit=-0.1)
    with pytest.raises(ValueError, match="chunks"):
        Assumptions(chunks=0)
    with pytest.raises(ValueError, match="kv_bits must be finite and between 1 and 16, got 17"):
        Assumptions(kv_bits=17)
    with pytest.raises(ValueError, match="residency must be one of recent, whole, got 'all'"):
        Assumptions(residency="all")


def test_facts_have_an_origin():
    r = run(load_system("vrex8"), "resv", workloads.frame(40000))
    origins = {"measured from RTL", "measured on golden", "computed", "paper", "assumed", "given"}
    assert {f.origin for f in r.facts} <= origins
    assert {f.name for f in r.facts} >= {"WTU per layer", "HCU per layer", "host link"}


def test_fig13_table_has_the_published_values():
    rows = fig13_frames()
    assert [r.kv_tokens for r in rows[:5]] == [1000, 5000, 10000, 20000, 40000]
    assert rows[0].paper_ms == 121 and rows[4].paper_ms == 254 and rows[9].paper_ms == 48
    assert rows[6].paper_ms is None and rows[6].residual is None


def test_fast_wtu_takes_less_time():
    slow, fast = (
        run(load_system("vrex8").replace(core={"wtu_design": design}), "resv", workloads.frame(40000))
        for design in ("sweep", "histogram")
    )
    cycles = [next(f.value for f in result.facts if f.name == "WTU per layer") for result in (slow, fast)]
    busy = [
        result.utilisation["WTU"] * result.total_s * load_system("vrex8").core.clock_mhz * 1e6 / LLAMA3_8B.layers
        for result in (slow, fast)
    ]
    assert busy[0] == pytest.approx(cycles[0]) and cycles[1] < cycles[0] / 4
    assert cycles[1] < busy[1] < busy[0]  # reads of the rows bound the fast one
    with pytest.raises(ValueError, match=r"core\.wtu_design must be one of sweep, histogram, got 'magic'"):
        load_system("vrex8").replace(core={"wtu_design": "magic"})


@pytest.mark.parametrize("policy", ["resv", "full"])
def test_streams_in_turn(policy):
    """In programs the streams of a batch attend in turn: the same bytes, and less overlap."""
    together, apart = load_system("vrex8").replace(core={"retrieval": "all"}), load_system("vrex8")
    apart = apart.replace(core={"retrieval": "one"})
    for tokens in (1000, 10_000, 40_000):
        for load in (workloads.text(tokens, 4), workloads.frame(tokens, 4)):
            first, second = (run(system, policy, load) for system in (together, apart))
            moved = [each.bytes_moved.get("PCIe", 0) for each in (first, second)]
            assert moved[1] == pytest.approx(moved[0], rel=1e-6)
            assert second.bytes_moved["DRAM"] == pytest.approx(first.bytes_moved["DRAM"], rel=0.05)
            link_s = moved[1] / apart.link.nominal_gbps / 1e9
            assert second.total_s > 0.99 * max(link_s, first.total_s)
            one = run(apart, policy, replace(load, batch=1))
            assert one.total_s < second.total_s < 4 * one.total_s


def test_work_of_one_stream():
    """The works of equal streams sum to that of the batch; numbers of a sequence stay."""
    phase, system = workloads.frame(40_000).phases[0], load_system("vrex8")
    for policy in ("resv", "full", "infinigenp"):
        four, one = (
            work_of(POLICIES[policy](LLAMA3_8B), system, LLAMA3_8B, phase, n, Assumptions(), None) for n in (4, 1)
        )
        got = four.of_stream(4)
        for name, value in vars(one).items():
            if name == "matmuls":
                assert [m.flops for m in got.matmuls] == pytest.approx([m.flops for m in value])
            elif name == "gpu_kernels":
                assert got.gpu_kernels == four.gpu_kernels / 4  # equally many for any batch
            else:
                assert getattr(got, name) == (value if name == "schedule" else pytest.approx(value)), name


def test_scattered_reads_of_the_cache_take_longer():
    machine, load = load_system("agx-orin"), workloads.frame(5000)
    plain, detail = (run(machine, "infinigenp", load, memory_detail=flag).total_s for flag in (False, True))
    assert plain < detail < 1.1 * plain


def test_policy_without_vector_work_uses_the_vpe_less(monkeypatch):
    machine, load, account = load_system("vrex8"), workloads.frame(1000), ReSV.account
    reference = run(machine, "resv", load)
    monkeypatch.setattr(ReSV, "account", lambda policy, step: replace(account(policy, step), vector_ops=0.0))
    without = run(machine, "resv", load)
    assert without.utilisation["VPE"] * without.total_s < reference.utilisation["VPE"] * reference.total_s
