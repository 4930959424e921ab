"""Paging and fetch lists compared with a plain table of tokens, and with the bytes of a simulated memory."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import page_table
from golden.page_table import PageAddressMap, PageTable, PagingConfig

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=80)
steps = st.lists(st.lists(st.integers(0, 6), min_size=0, max_size=9), min_size=1, max_size=14)


class PlainTable:
    """The paging rule as a plain list of (cluster, tokens, closed, resident)."""

    def __init__(self, page_tokens, capacity):
        self.page_tokens, self.capacity, self.pages = page_tokens, capacity, []

    def step(self, clusters):
        for token, cluster in enumerate(clusters, start=sum(len(p["tokens"]) for p in self.pages)):
            page = next((p for p in self.pages if p["cluster"] == cluster and not p["closed"]), None)
            if page is None:
                page = {"cluster": cluster, "tokens": [], "closed": False, "resident": True}
                self.pages.append(page)
            page["tokens"].append(token)
            page["closed"] = len(page["tokens"]) == self.page_tokens
        offloaded = []
        for number, page in enumerate(self.pages):
            resident = [p for p in self.pages if p["resident"]]
            if len(resident) < 2 or sum(len(p["tokens"]) for p in resident) <= self.capacity:
                break
            if page["resident"]:
                page["resident"], page["closed"] = False, True
                offloaded.append(number)
        return offloaded


@SETTINGS
@given(steps, st.integers(1, 5), st.integers(1, 20))
def test_pages_and_residency_follow_the_rule(step_list, page_tokens, capacity):
    unit = PageTable(PagingConfig(page_tokens=page_tokens, max_resident_tokens=capacity), kv_heads=2, head_dim=4)
    plain = PlainTable(page_tokens, capacity)
    for clusters in step_list:
        assert unit.append(clusters) == plain.step(clusters)
    assert [(p.cluster, p.tokens, p.frame is not None) for p in unit.pages] == [
        (p["cluster"], p["tokens"], p["resident"]) for p in plain.pages
    ]
    assert list(unit.resident) == [n for n, p in enumerate(plain.pages) if p["resident"]]
    for number, page in enumerate(plain.pages):
        for slot, token in enumerate(page["tokens"]):
            tier, address = unit.locate(token, 1)
            assert tier == ("device" if page["resident"] else "host")
            if not page["resident"]:
                assert address == ((number * 2 + 1) * page_tokens + slot) * 16


@SETTINGS
@given(steps, st.integers(1, 4), st.integers(1, 12), st.data())
def test_selected_bytes_fetched_once_without_alias(step_list, page_tokens, capacity, data):
    """Replays offloads and fetches on a memory image; every slot must contain its own token."""
    heads, dim = 2, 1
    unit = PageTable(PagingConfig(page_tokens=page_tokens, max_resident_tokens=capacity), heads, dim)
    host: dict[int, tuple[int, int]] = {}  # slot address -> (token, head)
    for clusters in step_list:
        for number in unit.append(clusters):
            for head in range(heads):
                for slot, token in enumerate(unit.pages[number].tokens):
                    address = unit.host.address(number, head, slot)
                    assert address not in host
                    host[address] = (token, head)
        places = [unit.locate(t, h) for t in range(unit.tokens) for h in range(heads)]
        assert len(set(places)) == len(places)

    tokens = [
        np.array(sorted(data.draw(st.sets(st.integers(0, unit.tokens - 1)))) if unit.tokens else [], np.int64)
        for _ in range(heads)
    ]
    fetch = unit.fetch(tokens)
    assert (fetch.extents[1:, 0] > fetch.extents[:-1].sum(axis=1)).all()  # ascending and disjoint
    read = [host[a] for start, size in fetch.extents.tolist() for a in range(start, start + size, 4 * dim)]
    assert len(read) == len(set(read)) and fetch.nbytes == 4 * dim * len(read)
    for head in range(heads):
        wanted = set(tokens[head].tolist())
        offloaded = {t for t in wanted if unit.locate(t, head)[0] == "host"}
        got = {t for t, h in read if h == head}
        pages = [p for p in unit.pages if p.frame is None and wanted & set(p.tokens)]
        assert offloaded <= got == {t for p in pages for t in p.tokens}
        assert len(fetch.pages[head]) == len(pages)
        assert fetch.hits[head] == sum(p.frame is not None and bool(wanted & set(p.tokens)) for p in unit.pages)


def test_addresses():
    """A (page, head) unit of 32 slots of 128 values is 16 KiB; a page of 8 heads 128 KiB; a layer follows the last."""
    where = PageAddressMap(kv_heads=8, head_dim=128, page_tokens=32, base=1 << 20, pages=100)
    assert where.slot_bytes == 512
    assert where.address(0, 1, 0) - where.address(0, 0, 0) == 16 << 10
    assert where.address(1, 0, 0) - where.address(0, 0, 0) == 128 << 10
    assert where.address(3, 2, 5) == (1 << 20) + ((3 * 8 + 2) * 32 + 5) * 512
    assert where.address(0, 0, 0, layer=2) == (1 << 20) + 200 * (128 << 10)
    for bad in ({"page": 100}, {"head": 8}, {"slot": 32}, {"layer": -1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            where.address(**{"page": 0, "head": 0, "slot": 0, **bad})
    with pytest.raises(ValueError, match="layer must be between 0 and 0, got 1"):
        PageAddressMap(1, 2, 1).address(0, 0, 0, layer=1)


def test_adjacent_full_head_pages_are_one_read():
    unit = PageTable(PagingConfig(page_tokens=2, max_resident_tokens=1), kv_heads=2, head_dim=8)
    unit.append([0, 0, 1, 1, 2, 3, 3])  # pages 0, 1 full, 2 half full; the last stays resident
    every = np.arange(7)
    # units (page, head) of 64 bytes: four full ones touch, then head 0 of page 2 half full, then head 1 of it
    assert unit.fetch([every, every]).extents.tolist() == [[0, 288], [320, 32]]
    assert unit.fetch([every, every[:0]]).extents.tolist() == [[0, 64], [128, 64], [256, 32]]
    assert unit.fetch([every[:0], every[:0]]).extents.shape == (0, 2)


def test_clustered_layout_gives_longer_reads(rng):
    """Tokens of twelve recurring clusters arrive interleaved; three clusters are fetched in both layouts."""
    clusters = rng.integers(0, 12, 1600)
    selected = np.flatnonzero(np.isin(clusters, [2, 5, 9]))
    reads = {}
    for layout in ("clustered", "arrival"):
        unit = PageTable(PagingConfig(page_tokens=8, max_resident_tokens=200, layout=layout), 1, 64)
        for step in clusters.reshape(-1, 10):
            unit.append(step)
        reads[layout] = unit.fetch([selected])
    arrival, clustered = reads["arrival"].extents, reads["clustered"].extents
    offloaded = selected[selected < 1400]  # by token the newest 200 stay
    assert arrival.tolist() == [[256 * a, 256 * n] for a, n in page_table.runs(offloaded).tolist()]
    assert len(clustered) < len(arrival) / 3


def test_retained_pages_are_newest_and_written_once():
    unit = PageTable(PagingConfig(page_tokens=2, max_resident_tokens=4, retain_fetched=True), 1, 2)
    assert unit.append([0, 0]) == [] and unit.append([1, 1]) == [] and unit.append([2, 2]) == [0]
    first = unit.fetch([np.array([0, 1])])
    assert first.nbytes == 16 and first.hits.tolist() == [0] and list(unit.resident) == [1, 2, 0]
    again = unit.fetch([np.array([0, 1])])
    assert again.nbytes == 0 and again.hits.tolist() == [1]
    assert unit.append([]) == [1]
    assert unit.append([3, 3]) == [2] and list(unit.resident) == [0, 3]
    assert unit.append([4, 4]) == []  # page 0 leaves again; the host still has it
    assert list(unit.resident) == [3, 4] and unit.frames == 3


@SETTINGS
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=24),
    st.integers(1, 4),
    st.lists(st.lists(st.tuples(st.integers(0, 23), st.integers(10, 13)), max_size=8), min_size=1, max_size=6),
)
def test_moved_tokens_have_one_slot(clusters, page_tokens, moves):
    """Copies are replayed on an image of slots; afterwards every slot in the table holds its token."""
    unit = PageTable(PagingConfig(page_tokens=page_tokens, max_resident_tokens=10_000), 1, 1)
    unit.append(clusters)
    image = {(n, s): t for n, page in enumerate(unit.pages) for s, t in enumerate(page.tokens)}
    for move in moves:
        targets = {t % len(clusters): c for t, c in move}
        for page, slot, to_page, to_slot in unit.move(list(targets), list(targets.values())).tolist():
            image[to_page, to_slot] = image[page, slot]
        for token, cluster in targets.items():
            assert unit.pages[_page(unit, token)].cluster == cluster
        live = {(n, s): t for n, page in enumerate(unit.pages) if page for s, t in enumerate(page.tokens) if t >= 0}
        assert sorted(live.values()) == list(range(len(clusters)))
        assert all(image[slot] == token for slot, token in live.items())
        frames = [page.frame for page in unit.pages if page]
        assert len(set(frames)) == len(frames) and max(frames) < unit.frames
        assert unit.resident_tokens == sum(len(page.tokens) for page in unit.pages if page)
        assert sorted(unit.resident) == [n for n, page in enumerate(unit.pages) if page]


def _page(unit, token):
    return next(n for n, page in enumerate(unit.pages) if page and token in page.tokens)


def test_split_frees_empty_pages():
    unit = PageTable(PagingConfig(page_tokens=2, max_resident_tokens=100), 1, 1)
    unit.append([7, 7, 7, 7])  # pages 0 and 1
    assert unit.move([0, 1, 2, 3], [8, 9, 8, 9]).tolist() == [[0, 0, 2, 0], [0, 1, 3, 0], [1, 0, 2, 1], [1, 1, 3, 1]]
    assert [page and page.tokens for page in unit.pages] == [None, None, [0, 2], [1, 3]]
    unit.append([5])
    assert unit.pages[0].tokens == [4] and unit.pages[0].frame == 0
    with pytest.raises(ValueError, match="tokens must be distinct"):
        unit.move([0, 0], [1, 1])
    cold = PageTable(PagingConfig(page_tokens=1, max_resident_tokens=1), 1, 1)
    cold.append([0, 1])
    with pytest.raises(ValueError, match="tokens must be resident, got 0 on page 0"):
        cold.move([0], [5])


@SETTINGS
@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9000)), max_size=8),
    st.integers(1, 5000),
    st.sampled_from([1, 64, 4096]),
)
def test_descriptors_cover_their_extents(extents, max_bytes, boundary):
    if boundary == 1:
        extents = [(a, n % 50) for a, n in extents]
    got = page_table.descriptors(np.array(extents, np.int64).reshape(-1, 2), max_bytes, boundary).tolist()
    for address, size in got:
        assert 0 < size <= max_bytes and address // boundary == (address + size - 1) // boundary
    assert [b for a, n in extents for b in range(a, a + n)] == [b for a, n in got for b in range(a, a + n)]


@SETTINGS
@given(st.sets(st.integers(0, 60)), st.integers(0, 5))
def test_compaction_closes_the_gaps_in_place(resident, first):
    resident = sorted(k + first for k in resident)
    memory = list(range(70))
    for source, target, count in page_table.compaction(np.array(resident, np.int64), first).tolist():
        assert target < source
        for i in range(count):
            memory[target + i] = memory[source + i]
    assert memory[first : first + len(resident)] == resident


@SETTINGS
@given(st.sets(st.integers(0, 80)))
def test_runs(ids):
    ids = sorted(ids)
    got = page_table.runs(np.array(ids, np.int64)).tolist()
    assert [i for first, count in got for i in range(first, first + count)] == ids
    assert all(a + n < b for (a, n), (b, _) in pairwise(got))


def test_bad_input_is_named():
    unit = PageTable(PagingConfig(), 2, 4)
    unit.append([0, 1])
    for call, message in (
        (lambda: unit.append([-1]), "clusters must be at least 0, got -1"),
        (lambda: unit.fetch([np.array([0])]), "tokens must have one list for each of 2 heads, got 1"),
        (lambda: unit.fetch([np.array([2]), np.array([0])]), "tokens must be between 0 and 1, got 2"),
        (lambda: unit.locate(5, 0), "token must be between 0 and 1, got 5"),
        (lambda: unit.locate(0, 2), "head must be between 0 and 1, got 2"),
        (lambda: PagingConfig(layout="random"), "layout must be one of"),
        (lambda: PagingConfig(page_tokens=0), "page_tokens must be at least 1, got 0"),
        (lambda: page_table.compaction(np.array([3, 3])), "kept must be strictly ascending"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="retain_fetched must be True or False, got 1"):
        PagingConfig(retain_fetched=1)
