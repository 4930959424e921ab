"""Verilog of the KVMU compared with the golden KVMU on a store in memory."""

import itertools

import numpy as np
import pytest

from golden.kvmu import Command, Fault, Op, TransferKind
from golden.store import NONE
from golden.store.layout import CONTEXT_MAGIC
from hw.config import PRESETS, Config
from hw.dre.kvmu.command import Fault as HwFault
from hw.dre.kvmu.command import Op as HwOp
from hw.dre.kvmu.kvmu import KVMU
from hw.emit import to_rtlil
from sim.bench.run import InTurns, simulate
from tests.hw.dre.kvmu.kvmu_bench import FAULTS, LARGE, SMALL, KvmuBench, columns

RTL_ONLY = ("REGION", "STRAY", "TRANSFER", "LOG")  # causes that the golden KVMU does not have


def test_codes_equal_golden():
    assert {op.name: op.value for op in HwOp} == {op.name: op.value for op in Op}
    shared = {cause.name: cause.value for cause in HwFault if cause.name not in RTL_ONLY}
    assert shared == {cause.name: cause.value for cause in Fault if cause.name not in RTL_ONLY}


# sides that pause, as in the functional bins
PAUSES = {"none": 0.0, "source": {"i": 0.5}, "sink": {"o": 0.5}, "both": 0.5}
# name -> pauses, latency of memory, arguments of the bench
VARIANTS = {
    "narrow memory": (InTurns(0.4), (1, 20), {}),
    "wide memory": (
        0.0,
        (3, 3),
        {"word": 1024, "cache_lines": 16, "max_resident_tokens": 30, "largest": {"page_frames": 16}},
    ),
    "storage": (
        InTurns(0.6),
        (1, 60),
        {
            "word": 256,
            "cache_lines": 2,
            "offload_to_storage": True,
            "max_resident_tokens": 5,
            "max_descriptor_bytes": 4096,
        },
    ),
    "odd bursts": (
        0.2,
        (1, 5),
        {"max_descriptor_bytes": 7, "max_resident_tokens": 3, "staging_head_pages": 5, "window_tokens": 0},
    ),
    "lines of two blocks": (0.1, (1, 9), {"word": 512, "cache_lines": 3, "window_tokens": 4}),
}


LATER = ("odd bursts", "lines of two blocks")  # each variant is another build


@pytest.mark.parametrize("variant", [pytest.param(v, marks=[pytest.mark.heavy] * (v in LATER)) for v in VARIANTS])
def test_random_commands(variant, rng, seed):
    """Replies, descriptors, candidates and the memory after each commit; recovery at random moments."""
    stall, latency, settings = VARIANTS[variant]
    bench = KvmuBench(rng, **settings)
    bench.random(rng, 700)
    bench.check()
    record = bench.check_run(stall=stall, memory_latency=latency, seed=seed)
    bench.check_recovery(record, rng, 150)


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_twenty_thousand_commands(stall, rng, seed):
    bench = KvmuBench(rng, max_pages=64, page_frames=32, max_clusters=16, max_resident_tokens=70, log_entries=8192)
    bench.random(rng, 20_000)
    record = bench.check_run(stall=stall, memory_latency=(1, 30), seed=seed)
    bench.check_recovery(record, rng, 500)


def test_large_numbers(rng, seed):
    """Numbers of tokens and steps use all 32 bits; windows and steps span carries into the highest one."""
    bench = KvmuBench(rng, max_resident_tokens=20, window_tokens=100)
    for number, tokens in zip(bench.contexts, (0x7FFFFFC0, 0xA5C2FFE0, 0xFFFF0000), strict=True):
        bench.store.context(number).header["tokens"] = tokens
    bench.store.header["step"] = 0x7FFFFFE0
    bench.initial = bench.memory.copy()
    bench.committed = [bench.initial]
    bench.random(rng, 500)
    record = bench.check_run(stall=0.1, memory_latency=(1, 9), seed=seed)
    bench.check_recovery(record, rng, 50)


def test_reset_in_mid_flight(rng, seed):
    """After a reset the unit starts again with the content that memory has then."""
    bench = KvmuBench(rng)
    bench.random(rng, 150)
    bench.check_run(stall=0.2, memory_latency=(1, 9), seed=seed, reset_after=900)


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_counters(stall, rng, seed):
    bench = KvmuBench(rng, max_resident_tokens=9)
    bench.random(rng, 300)
    recorded = ("rst", "i__ready", "o_dma__valid", "o_dma__ready")
    record = bench.check_run(stall=stall, memory_latency=(1, 9), seed=seed, record_ports=recorded)
    status, replies, descriptors = record.status, bench.replies, bench.kvmu.descriptors
    done = [reply.op for reply in replies if reply.last and not reply.fault]
    units = [reply for reply in replies if reply.op in (Op.SELECT, Op.MARK) and not reply.last]
    pages = sum(context.in_use(page) for context in map(bench.store.context, bench.contexts) for page in range(16))
    for name, count in (
        ("appended", done.count(Op.APPEND)),
        ("moved", done.count(Op.MOVE)),
        ("offloaded", sum(reply.op == Op.STEP and not reply.last for reply in replies)),
        ("hits", sum(not reply.transit for reply in units)),
        ("fetched", sum(reply.transit for reply in units)),
        ("extents", len(bench.kvmu.extents)),
        ("descriptors", len(descriptors)),
        ("bytes", sum(d.bytes for d in descriptors)),
        ("resident", bench.kvmu.resident_tokens),
    ):
        assert status[f"stat_{name}"] == count, name
    assert status["stat_opened"] - status["stat_freed"] == pages
    ports = {name: values[record.ports["rst"][:, 0] == 0, 0] for name, values in record.ports.items()}
    assert status["stat_blocked_dma"] == (ports["o_dma__valid"] & ~ports["o_dma__ready"] & 1).sum()
    # the last two cycles come too late to be read
    assert status["stat_busy"] == (ports["i__ready"][:-2] == 0).sum()
    assert status["stat_fills"] and status["stat_accesses"] > status["stat_fills"]
    assert len(record.memory["acknowledged"]) == status["stat_writebacks"] + status["stat_logged"]


def test_counters_can_be_held_at_zero(rng, seed):
    """`stat_clear` holds all counters at zero while the unit works."""
    bench = KvmuBench(rng)
    bench.random(rng, 100)
    record = bench.run(config={"stat_clear": 1}, seed=seed)
    assert record.outputs["o"]["fault"].tolist() == [FAULTS[reply.fault] for reply in bench.replies]
    assert any(reply.fault for reply in bench.replies)
    counters = {name: value for name, value in record.status.items() if name.startswith("stat_")}
    assert counters.pop("stat_resident") == bench.kvmu.resident_tokens
    assert not any(counters.values())


# scripts: each starts with an open context without clusters and with free page frames


def full_tables(bench):
    """Use every page frame, then every page; cause each refusal twice; then continue."""
    for token in range(8):
        page = bench.append(token % 6)[-1].page
        bench.do(Op.SEAL, page=page)
    for cluster in (0, 5):
        assert bench.append(cluster)[-1].fault == Fault.NO_PAGE_FRAME
        assert bench.do(Op.MOVE, page=cluster, slot=0, cluster=1)[-1].fault == Fault.NO_PAGE_FRAME
    for _ in range(8):
        bench.do(Op.STEP)
        bench.do(Op.SEAL, page=bench.append(3)[-1].page)
    bench.do(Op.STEP)
    assert bench.append(2)[-1].fault == Fault.NO_PAGE
    assert bench.append(2)[-1].fault == Fault.NO_PAGE
    assert bench.append(6)[-1].fault == Fault.CLUSTER
    answers = [bench.do(Op.SELECT, cluster=cluster, heads=3)[-1].fault for cluster in range(6)]
    assert Fault.STAGING in answers and answers[-1] == Fault.STAGING
    assert bench.do(Op.FETCH)[-1].fault == Fault.STAGING
    assert bench.do(Op.FETCH)[-1].count == 0
    marked = [bench.do(Op.MARK, page=page, heads=3)[-1].fault for page in range(16)]
    assert Fault.STAGING in marked and bench.do(Op.FETCH)[-1].fault == Fault.STAGING
    answers = [bench.do(Op.SELECT, cluster=cluster, heads=3, retain=1)[-1].fault for cluster in range(6)]
    assert answers[-1] == Fault.NO_PAGE_FRAME
    assert bench.do(Op.FETCH)[-1].fault == Fault.NO_PAGE_FRAME
    bench.do(Op.STEP)
    for page in range(16):
        bench.do(Op.FREE, page=page)
        assert bench.do(Op.FREE, page=page)[-1].fault == Fault.ADDRESS
    for token in range(9):
        assert not bench.append(token % 6)[-1].fault


def selections_of_nothing(bench):
    bench.do(Op.FETCH)
    bench.do(Op.STEP)
    assert bench.do(Op.SELECT, cluster=1, heads=3)[-1].fault == Fault.CLUSTER
    bench.append(0)
    bench.append(1)
    assert len(bench.do(Op.SELECT, cluster=1, heads=3)) == 1  # the token is of this step
    bench.do(Op.FETCH)
    bench.do(Op.STEP)
    for retain in (0, 1):
        assert len(bench.do(Op.SELECT, cluster=1, heads=0, retain=retain)) == 1
        assert len(bench.do(Op.FETCH)) == 1
    bench.do(Op.EVICT, cluster=1)
    assert bench.do(Op.SELECT, cluster=1, heads=3)[-1].count == 0
    assert len(bench.do(Op.FETCH)) == 1


def a_selection_is_fetched(bench):
    before = len(bench.kvmu.descriptors)
    for cluster in (0, 0, 0, 0, 0, 1, 2):
        bench.append(cluster)
    bench.do(Op.STEP)
    replies = [reply for heads in (1, 2) for reply in bench.do(Op.SELECT, cluster=0, heads=heads)[:-1]]
    assert [(r.page, r.head, r.transit) for r in replies] == [(0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)]
    assert [r.count for r in replies] == [4, 1, 4, 1]
    assert bench.do(Op.FETCH)[-1].count == 4
    moved = sum(d.bytes for d in bench.kvmu.descriptors[before:] if d.kind == TransferKind.FETCH)
    assert moved == 2 * 32 * (4 + 1)
    assert [(r.page, r.head) for r in bench.do(Op.MARK, page=0, heads=2)[:-1]] == [(0, 1)]
    assert bench.do(Op.FETCH)[-1].count == 1
    assert len(bench.do(Op.FETCH)) == 1


def only_a_fetch_continues_a_fetch(bench):
    bench.append(0)
    bench.do(Op.STEP)
    bench.do(Op.SELECT, cluster=0, heads=3)
    for op in set(Op) - {Op.SELECT, Op.MARK, Op.FETCH}:
        assert bench.do(op, cluster=0, page=0)[-1].fault == Fault.FETCHING
    bench.do(Op.FETCH)


def a_page_with_references_stays(bench):
    for _ in range(6):
        bench.append(0)
    first, second = bench.store.context(bench.kvmu.context).chain(0)
    assert [bench.do(Op.HOLD, page=first)[-1].count for _ in range(3)] == [2, 3, 4]
    assert bench.do(Op.HOLD, page=first)[-1].fault == Fault.HELD
    assert bench.do(Op.MOVE, page=first, slot=1, cluster=0)[-1].fault == Fault.HELD
    assert [r.page for r in bench.do(Op.EVICT, cluster=0)[:-1]] == [first, second]
    assert bench.do(Op.SELECT, cluster=0, heads=3)[-1].count == 0
    bench.do(Op.FETCH)
    assert bench.do(Op.LOOKUP, page=second)[-1].fault == Fault.ADDRESS
    bench.append(0)  # the second page again: a chain of its own
    assert [bench.do(Op.FREE, page=first)[-1].count for _ in range(3)] == [2, 1, 0]
    assert bench.do(Op.FREE, page=first)[-1].fault == Fault.ADDRESS


def every_token_of_a_long_chain_is_found(bench):
    bench.append(0)
    bench.append(1)
    for token in range(52):
        bench.append(1)
        if token % 4 == 3:
            bench.do(Op.STEP)
    for token in range(56):
        assert (bench.do(Op.FIND, cluster=1, index=token, head=token % 2)[-1].fault == Fault.NONE) == (token < 53)


def a_page_empties_in_any_order(bench):
    bench.append(0)
    bench.append(1)
    for *first, second, last in itertools.permutations(range(4)):
        bench.do(Op.EVICT, cluster=0)
        bench.do(Op.EVICT, cluster=1)
        page = [bench.append(0) for _ in range(4)][-1][-1].page
        for slot in (*first, second):
            bench.do(Op.MOVE, page=page, slot=slot, cluster=1)
        assert bench.do(Op.LOOKUP, page=page, slot=last)[-1].fault == Fault.NONE
        bench.do(Op.MOVE, page=page, slot=last, cluster=1)
        assert bench.do(Op.LOOKUP, page=page, slot=last)[-1].fault == Fault.ADDRESS


def many_pages_leave_as_one(bench):
    before = len(bench.kvmu.extents)
    for cluster in [0] * 24 + [1]:
        bench.append(cluster)
    bench.do(Op.STEP)
    assert [extent.nbytes for extent in bench.kvmu.extents[before:]] == [6 * 256]
    bench.do(Op.SELECT, cluster=0, heads=3)
    bench.do(Op.FETCH)


def moves_inside_a_cluster_and_into_a_new_one(bench):
    for _ in range(3):
        page = bench.append(0)[-1].page
    assert not bench.do(Op.MOVE, page=page, slot=0, cluster=0)[-1].fault
    assert bench.do(Op.MOVE, page=page, slot=1, cluster=1, opened=1, hash=0x1234)[-1].slot == 0
    assert bench.do(Op.MOVE, page=page, slot=2, cluster=1)[-1].slot == 1
    assert bench.do(Op.LOOKUP, page=page)[-1].fault == Fault.ADDRESS


def refusals(bench):
    """Clusters and pages that do not exist, a page with too many references, selections of resident pages."""
    for op in (Op.APPEND, Op.SELECT, Op.FIND, Op.MOVE, Op.EVICT):
        assert bench.do(op, cluster=6)[-1].fault == Fault.CLUSTER
    assert bench.do(Op.APPEND, cluster=1, opened=1)[-1].fault == Fault.CLUSTER
    page = bench.append(0)[-1].page
    for op in (Op.LOOKUP, Op.MOVE, Op.SEAL, Op.FREE, Op.MIGRATE, Op.HOLD, Op.MARK):
        assert bench.do(op, page=15, tier=1)[-1].fault == Fault.ADDRESS
    assert bench.do(Op.OPEN, context=0)[-1].fault == Fault.UNCOMMITTED
    bench.do(Op.STEP)
    assert [reply.transit for reply in bench.do(Op.SELECT, cluster=0, heads=3)] == [0, 0, 0]
    bench.do(Op.FETCH)
    for _ in range(4):
        answer = bench.do(Op.HOLD, page=page)
    assert answer[-1].fault == Fault.HELD
    for _ in range(4):
        bench.do(Op.FREE, page=page)


DIRECTED = (
    many_pages_leave_as_one,
    every_token_of_a_long_chain_is_found,
    full_tables,
    refusals,
    only_a_fetch_continues_a_fetch,
    selections_of_nothing,
    a_selection_is_fetched,
    a_page_with_references_stays,
    a_page_empties_in_any_order,
    moves_inside_a_cluster_and_into_a_new_one,
)
SLOW = {  # slow side, longest burst
    "nobody": (0.0, 96),
    "replies and completions": ({"o": 0.9, "o_complete": 0.97}, 421),
    "replies and transfers": ({"o": 0.9, "i_done": 0.9}, 4096),
}


def run_scripts(bench, scripts):
    """Run each script in a context of its own; then free all pages of the context."""
    for context, script in zip(bench.contexts, scripts, strict=True):
        bench.do(Op.OPEN, context=context)
        script(bench)
        for cluster in range(int(bench.kvmu.tables.header["clusters"])):
            bench.do(Op.EVICT, cluster=cluster)
        bench.do(Op.STEP)


@pytest.mark.parametrize("who", SLOW)
def test_boundaries(who, seed):
    """Several scripts, each in an empty context, in one simulation."""
    stall, max_descriptor_bytes = SLOW[who]
    bench = KvmuBench(contexts=range(len(DIRECTED)), max_resident_tokens=0, max_descriptor_bytes=max_descriptor_bytes)
    run_scripts(bench, DIRECTED)
    bench.check_run(stall=stall, seed=seed, memory_latency=(1, 4))


def test_refusals_under_pauses(seed):
    scripts = [refusals] * 12 + [full_tables] * 4
    bench = KvmuBench(contexts=range(len(scripts)), max_resident_tokens=0)
    run_scripts(bench, scripts)
    bench.check_run(stall=InTurns(0.5, 32), seed=seed)


def test_extents_longer_than_the_boundary(seed):
    """The pages of a cluster leave as one extent, which only the boundary splits."""
    bench = KvmuBench(
        contexts=(0,), max_pages=64, page_frames=64, max_resident_tokens=0, max_descriptor_bytes=4096, largest=LARGE
    )
    bench.do(Op.OPEN, context=0)
    for _ in range(32 * 4):
        bench.append(0)
    bench.append(1)  # one page stays
    bench.do(Op.STEP)
    assert [extent.nbytes for extent in bench.kvmu.extents] == [8192]
    bench.check_run(seed=seed)


def test_many_descriptors_in_flight(seed):
    bench = KvmuBench(contexts=(0,), max_resident_tokens=0, max_descriptor_bytes=1)
    bench.do(Op.OPEN, context=0)
    for _ in range(2):
        for token in range(24):
            bench.append(token % 2)
        bench.do(Op.STEP)
        for cluster in (0, 1):
            bench.do(Op.SELECT, cluster=cluster, heads=2 - cluster)
        bench.do(Op.FETCH)
    record = bench.check_run(stall={"i_done": 0.6}, seed=seed, timeout_cycles=100_000)
    sent, done = record.cycles["o_dma"], record.cycles["i_done"]
    assert (np.searchsorted(sent, done) - np.arange(len(done))).max() > 512


def test_commit_follows_the_transfers_of_the_step(seed):
    """No commit begins before all descriptors of its step are complete."""
    bench = KvmuBench(contexts=(0,), max_resident_tokens=0)
    bench.do(Op.OPEN, context=0)
    for _ in range(3):
        for token in range(9):
            bench.append(token % 3)
        bench.do(Op.STEP)
    record = bench.check_run(stall={"i_done": 0.9}, seed=seed, memory_latency=(1, 3))
    step_word = (bench.BASE + 124) * 8 // bench.unit.sizes.word
    commits = [when for address, _, when in record.memory["written"].tolist() if address == step_word]
    ends = [n for n, d in enumerate(bench.kvmu.descriptors) if d.last]
    assert len(commits) == 3
    for commit, end in zip(commits, ends, strict=True):
        assert commit > record.cycles["i_done"][end]


def test_stray_and_failed_completions_are_reported():
    """Completions without a descriptor or with an error are reported, and the unit continues."""
    wrong = [1, 0, 1, 1, 1, 1, 0, 0]  # tags in turn, twice
    bench = KvmuBench(contexts=(0,), max_resident_tokens=0, max_pages=64, largest=LARGE)
    bench.do(Op.OPEN, context=0)
    bench.append(0)
    bench.append(1)
    for _ in wrong:
        for _ in range(4):
            bench.append(1)
        bench.do(Op.STEP)
    sent = bench.kvmu.descriptors
    tags = [d.tag for d in sent if d.last]
    assert tags == [n % bench.unit.tags for n in range(len(wrong))]
    # one after the other, far more than there are descriptors: early and late ones are strays
    answers = {"tag": np.repeat(tags, 500), "error": np.repeat(wrong, 500)}
    inputs = {"i": columns(bench.commands, Command), "i_done": answers}
    outputs = {"o": len(bench.replies), "o_candidates": 1, "o_dma": len(sent), "o_complete": len(wrong)}
    record = simulate(
        bench.unit,
        "kvmu",
        inputs,
        outputs,
        config=bench.settings,
        stall={"i_done": 0.8},
        memory=bench.initial,
        timeout_cycles=100_000,
    )
    assert record.status["stat_faults"] == 1 << HwFault.STRAY.value | 1 << HwFault.TRANSFER.value
    assert record.outputs["o_complete"]["error"].tolist() == wrong
    assert record.outputs["o"]["fault"].tolist() == [reply.fault for reply in bench.replies]


BAD_HEADERS = {
    "store magic": ("store", "magic", 1, HwFault.CONTEXT),
    "store version": ("store", "version", 2, HwFault.CONTEXT),
    "too many page frames": ("store", "page_frames", 9, HwFault.CONTEXT),
    "number of contexts": ("store", "contexts", 1, HwFault.CONTEXT),
    "context magic": ("context", "magic", CONTEXT_MAGIC + 1, HwFault.CONTEXT),
    "context version": ("context", "version", 0, HwFault.CONTEXT),
    "absent context": ("context", "state", 0, HwFault.CONTEXT),
    "too many clusters": ("context", "max_clusters", 17, HwFault.CONTEXT),
    "too many pages": ("context", "max_pages", 17, HwFault.CONTEXT),
    "host region": ("context", "host_pages_base", 1 << 12, HwFault.REGION),
    "storage region": ("context", "storage_pages_base", NONE, HwFault.REGION),
}


@pytest.mark.parametrize("pauses", PAUSES)
@pytest.mark.parametrize("name", BAD_HEADERS)
def test_bad_headers_are_refused(name, pauses, seed):
    """OPEN is refused, then no context is open; a repaired header is accepted."""
    place, field, value, cause = BAD_HEADERS[name]
    bench = KvmuBench(contexts=(0, 1))
    header = bench.store.header if place == "store" else bench.store.context(1).header
    header[field] = value
    commands = [Command(int(Op.OPEN), context=1), Command(int(Op.SYNC)), Command(int(Op.STEP))]
    outputs = {"o": 3, "o_candidates": 0, "o_dma": 0, "o_complete": 0}
    record = simulate(
        bench.unit,
        "kvmu",
        {"i": columns(commands, Command)},
        outputs,
        config=bench.settings,
        echo={"i_done": "o_dma"},
        memory=bench.memory,
        stall=PAUSES[pauses],
        seed=seed,
        timeout_cycles=10_000,
    )
    assert record.outputs["o"]["fault"].tolist() == [cause.value, 0, HwFault.CONTEXT.value]
    assert not len(record.memory["written"])


@pytest.mark.parametrize("pauses", PAUSES)
def test_regions_that_do_not_fit(pauses, seed):
    """Page frames and staging area must end inside the address space."""
    bench = KvmuBench(contexts=(0,))
    for name, value in (("cfg_page_frames_base", (1 << 24) - 2047), ("cfg_staging_base", (1 << 24) - 64)):
        outputs = {"o": 1, "o_candidates": 0, "o_dma": 0, "o_complete": 0}
        record = simulate(
            bench.unit,
            "kvmu",
            {"i": columns([Command(int(Op.OPEN))], Command)},
            outputs,
            config={**bench.settings, name: value},
            echo={"i_done": "o_dma"},
            memory=bench.memory,
            stall=PAUSES[pauses],
            seed=seed,
            timeout_cycles=10_000,
        )
        assert record.outputs["o"]["fault"].tolist() == [HwFault.REGION.value]


@pytest.mark.parametrize("pauses", PAUSES)
def test_full_undo_log_refuses_the_commit(pauses, rng, seed):
    """The step is not committed, every later command is refused, and recovery restores the start of the step."""
    bench = KvmuBench(rng, contexts=(0,), log_entries=14)
    bench.do(Op.OPEN, context=0)
    bench.append(0)
    bench.do(Op.STEP)
    for token in range(12):
        bench.append(token % 4)
    bench.do(Op.STEP)
    bench.do(Op.SYNC)
    bench.do(Op.OPEN, context=0)
    bench.candidates = bench.candidates[:1]
    record = bench.run(stall=PAUSES[pauses], seed=seed)
    faults = record.outputs["o"]["fault"].tolist()
    full = faults.index(HwFault.LOG.value)
    assert full > 3 and set(faults[:full]) == {0} and set(faults[full:]) == {HwFault.LOG.value}
    assert record.status["stat_faults"] == 1 << HwFault.LOG.value
    bench.committed = bench.committed[:2]
    bench.check_recovery(record, rng, 100)


def test_sync_writes_changed_lines(seed):
    """After SYNC the counts in memory are those of the step in progress, which is not committed."""
    bench = KvmuBench(contexts=(0,))
    bench.do(Op.OPEN, context=0)
    for cluster in (0, 1, 0, 0, 1):
        bench.append(cluster)
    bench.do(Op.SYNC)
    record = bench.check_run(seed=seed)
    start, _ = bench.tables()["counts of context 0"]
    assert record.memory["image"][start : start + 4].view("<u2").tolist() == [3, 2]
    assert bench.difference(record.memory["image"], bench.initial)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    unit = KVMU.from_config(Config.preset(preset))
    assert to_rtlil(unit, "kvmu") and unit.memory_bits["lines"] > 0


def test_memory_at_paper_fits_the_budget():
    """On-chip memories of the KVMU at `paper` have at most 13 kbit."""
    assert sum(KVMU.from_config(Config.preset("paper")).memory_bits.values()) <= 13 * 1024


def test_invalid_sizes_raise_value_error():
    for name, value in (
        ("max_pages", 12),
        ("page_frames", 1),
        ("page_tokens", 0),
        ("page_tokens", 64),
        ("max_clusters", 1),
        ("max_contexts", 0),
        ("cache_lines", 1),
        ("kv_heads", 0),
        ("reference_bits", 0),
        ("tags", 3),
    ):
        with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
            to_rtlil(KVMU(**{**SMALL, name: value}), "kvmu")
    with pytest.raises(ValueError, match=r"address_bits must be at least \d+, got 11"):
        KVMU(**{**SMALL, "address_bits": 11})
