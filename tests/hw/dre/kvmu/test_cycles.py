"""Commands of the KVMU take the cycles of its formulas."""

import numpy as np
import pytest

from golden.kvmu import Op
from golden.store import NONE
from tests.hw.dre.kvmu.kvmu_bench import KvmuBench


@pytest.mark.parametrize("word, lines", [(64, 64), (1024, 16)])
def test_cycle_formulas(word, lines, rng):
    """Commands take exactly the cycles of their formulas; every filled and logged line adds its own."""
    bench = KvmuBench(
        contexts=(0,), word=word, cache_lines=lines, max_resident_tokens=64, page_frames=16, staging_head_pages=32
    )
    bench.do(Op.OPEN, context=0)
    want = [None]
    for _ in range(400):
        cycles = _timed(bench, rng)
        want += cycles if isinstance(cycles, tuple) else [cycles]
    bits = ("rst", "i__valid", "i__ready", "read_job__valid", "read_words__valid")
    record = bench.check_run(memory_latency=(3, 3), record_ports=[*bits, "stat_fills", "stat_logged"])
    ports = {name: values[record.ports["rst"][:, 0] == 0] for name, values in record.ports.items()}
    bit = {name: ports[name][:, 0] == 1 for name in bits}
    accepted = np.flatnonzero(bit["i__valid"] & bit["i__ready"])
    counters = {
        name: np.packbits(ports[f"stat_{name}"], axis=1, bitorder="little").view("<u4")[:, 0]
        for name in ("fills", "logged")
    }
    job = np.flatnonzero(bit["read_job__valid"])[0]
    latency = int(np.flatnonzero(bit["read_words__valid"])[0] - job)
    timing, met = bench.unit.cycles, set()
    for n, expected in enumerate(want[:-1]):
        if expected is not None:
            start, end = accepted[n : n + 2]
            fills, logs = (int(counters[name][end] - counters[name][start]) for name in ("fills", "logged"))
            extra = fills * timing.fill(latency) + logs * timing.log()
            assert end - start == expected + extra, (bench.commands[n], end - start, expected, fills, logs)
            met.add(Op(bench.commands[n].op).name)
    assert met == {"APPEND", "LOOKUP", "FIND", "SEAL", "HOLD", "MARK", "SELECT", "FETCH", "FREE"}


def _timed(bench, rng):
    """Execute a random command; returns its cycles without those of lines, or None if no formula holds."""
    tables, timing = bench.kvmu.tables, bench.unit.cycles
    header, store = tables.header, bench.store.header
    clusters, free = int(header["clusters"]), (int(header["free_count"]) > 0, int(store["free_count"]) > 0)
    pages = [page for page in range(16) if tables.context.in_use(page)]
    name = str(rng.choice(["APPEND"] * 4 + ["LOOKUP", "FIND", "SEAL", "HOLD", "SELECT", "MARK", "FREE", "STEP"]))
    cluster, heads = int(rng.integers(max(1, clusters))), int(rng.integers(4))
    if name == "APPEND" or not pages:
        cluster = int(rng.integers(min(6, clusters + 1)))
        opened = cluster == clusters
        chain = [] if opened else tables.context.chain(cluster)
        opens = opened or tables.open_page(cluster) == NONE
        only = int(store["newest"]) == NONE
        if bench.append(cluster)[-1].fault:
            return None
        reused = {"page_reused": free[0], "frame_reused": free[1]} if opens else {}
        return timing.append(opens=opens, opened=opened, first=not chain, only_frame=only, **reused)
    page = int(rng.choice(pages))
    if name in ("SELECT", "MARK"):
        marked = tables.context.chain(cluster) if name == "SELECT" else [page]
        past = [tables.past(number) > 0 for number in marked]
        retain = int(all(map(tables.is_resident, marked)) and rng.random() < 0.5)
        frames = [int(tables.pages[number]["frame"]) for number, met in zip(marked, past, strict=True) if met]
        renewed = _renewals(bench, frames) if retain and heads else 0
        bench.do(Op[name], cluster=cluster, page=page, heads=heads, retain=retain)
        bench.do(Op.FETCH)
        count = heads.bit_count()
        reported = sum(timing.mark(count if met else 0) - timing.mark(0) for met in past)
        first = timing.mark(0) if name == "MARK" else timing.select(len(past) if heads else 0, 0)
        return first + reported + renewed, timing.fetch()
    replies = bench.do(Op[name], page=page, cluster=cluster, index=int(rng.integers(8)))
    if name == "STEP" or (replies[-1].fault and name != "FREE"):
        return None
    if name == "FREE":
        return timing.seal() if replies[-1].count else None
    if name == "FIND":
        return timing.find(tables.context.chain(cluster).index(replies[-1].page) + 1)
    return getattr(timing, name.lower())()


def _renewals(bench, frames):
    """Cycles in which these page frames become the newest one, one after the other."""
    records, order = bench.store.frames, [int(bench.store.header["oldest"])]
    while (newer := int(records["newer"][order[-1]])) != NONE:
        order.append(newer)
    cycles = 0
    for frame in frames:
        cycles += bench.unit.cycles.renew(oldest=frame == order[0], newest=frame == order[-1])
        order.remove(frame)
        order.append(frame)
    return cycles
