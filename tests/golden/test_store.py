"""Layout, creation, refusals, invariants and recovery of the store."""

import re
from pathlib import Path

import numpy as np
import pytest

from golden.kvmu import Command, Kvmu, KvmuConfig, Op
from golden.store import (
    NONE,
    ContextSizes,
    Store,
    StoreError,
    StoreSizes,
    check,
    create_context,
    create_store,
    delete_context,
    interrupted,
    layout,
    log_entries,
    recover,
    share_pages,
    store_bytes,
)
from golden.store.create import regions
from golden.store.layout import CLUSTER, CONTEXT_HEADER, FRAME, PAGE, RESIDENT, STORE_HEADER
from tests.golden.store_bench import CONTEXT_SIZES, SIZES, StoreBench

STORE_WORDS = [
    "magic",
    "version",
    "contexts",
    "contexts_base",
    "frames_base",
    "log_base",
    "log_entries",
    "page_frames",
    "never_used",
    "free_first",
    "free_last",
    "free_count",
    "oldest",
    "newest",
    "resident_pages",
    "resident_tokens",
    "page_tokens",
    "key_bytes",
    "line_bytes",
]
CONTEXT_WORDS = [
    "magic",
    "version",
    "state",
    "max_clusters",
    "max_pages",
    "clusters_base",
    "counts_base",
    "pages_base",
    "lists_base",
    "mean_keys_base",
    "host_pages_base",
    "storage_pages_base",
    "tokens",
    "clusters",
    "first_candidate",
    "never_used",
    "free_first",
    "free_last",
    "free_count",
]


def filled(rng, rounds=3, **settings):
    """A bench whose contexts have all received tokens; no page was released."""
    bench = StoreBench(rng=rng, **settings)
    mix = {"APPEND": 6, "SELECT": 1, "FETCH": 1, "HOLD": 0.2}
    for context in bench.contexts * rounds:
        assert bench.do(Op.OPEN, context=context)[-1].fault == 0
        for _ in range(15):
            bench.execute(bench.random_command(rng, mix, wild=0))
        bench.do(Op.FETCH)
        bench.do(Op.STEP)
    bench.check()
    return bench


def test_fields_have_documented_offsets():
    for kind, words in ((STORE_HEADER, STORE_WORDS), (CONTEXT_HEADER, CONTEXT_WORDS)):
        assert [kind.fields[name][1] for name in words] == [4 * n for n in range(len(words))]
        assert kind.itemsize == 128
    assert STORE_HEADER.fields["step"][1] == 124
    names = ["hash", "first_token", "count", "pages", "first_page", "last_page"]
    assert [CLUSTER.fields[name][1] for name in names] == [0, 4, 8, 12, 16, 20] and CLUSTER.itemsize == 32
    names = ["cluster", "next", "previous", "frame", "live", "used", "references", "flags", "step", "past"]
    assert [PAGE.fields[name][1] for name in names] == [0, 4, 8, 12, 16, 20, 21, 22, 24, 28] and PAGE.itemsize == 32
    assert [FRAME.fields[name][1] for name in ("context", "page", "older", "newer")] == [0, 4, 8, 12]


def test_documented_tables_equal_the_records():
    """The page docs/STORE.md has every field with its offset, and every flag."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "STORE.md").read_text()
    kinds = {
        "Store header": STORE_HEADER,
        "Context header": CONTEXT_HEADER,
        "Cluster": CLUSTER,
        "Page": PAGE,
        "Page frame": FRAME,
    }
    for title, kind in kinds.items():
        section = text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
        rows = {name: int(offset) for offset, name in re.findall(r"^\| (\d+) \| `([a-z_]+)` \|", section, re.M)}
        assert rows == {name: kind.fields[name][1] for name in kind.names if name != "reserved"}, title
    flags = {name: 1 << int(bit) for bit, name in re.findall(r"^\| (\d) \| `([A-Z]+)` \|", text, re.M)}
    assert flags == {name: getattr(layout, name) for name in ("CHAINED", "OPEN", "RESIDENT", "STORAGE", "SAVED")}


def test_size_of_a_store():
    sizes = StoreSizes(contexts=5120, page_frames=1000, page_tokens=32, key_bytes=2048, log_entries=100, line_bytes=128)
    assert sizes.nbytes == 128 + 5120 * 128 + 16000 + 100 * 256
    context = ContextSizes(max_clusters=32768, max_pages=40000)
    tables = 32768 * (32 + 2 + 2048) + 40000 * (32 + 128)
    assert context.nbytes(sizes) == tables
    assert store_bytes(sizes, [context] * 3) == sizes.nbytes + 3 * tables


def test_creation_writes_only_the_bytes_of_the_store(rng):
    start = rng.integers(0, 256, 0x4000).astype(np.uint8)
    memory = start.copy()
    store = create_store(memory, 0x1080, SIZES, origin=0x1000)
    end = 0x80 + SIZES.nbytes
    assert (memory[:0x80] == start[:0x80]).all() and (memory[end:] == start[end:]).all()
    create_context(store, 2, CONTEXT_SIZES, 0x1000 + end)
    assert (memory[end + CONTEXT_SIZES.nbytes(store) :] == start[end + CONTEXT_SIZES.nbytes(store) :]).all()
    again = Store(memory, 0x1080, origin=0x1000)
    assert again.header == store.header and again.present(2) and not again.present(1) and not again.present(5)
    check(again)
    assert recover(memory, 0x1080, origin=0x1000) == 0


def test_contexts_of_many_streams():
    """80 layers of 64 streams in one store."""
    sizes, context = StoreSizes(5120, 16, 4, 32, 16), ContextSizes(max_clusters=2, max_pages=2)
    memory = np.zeros(store_bytes(sizes, [context] * 5120), np.uint8)
    store, stride = create_store(memory, 0, sizes), context.nbytes(sizes)
    for number in range(5120):
        create_context(store, number, context, sizes.nbytes + number * stride)
    config = KvmuConfig(2, 8, 4, max_resident_tokens=20)
    unit = Kvmu(config, memory, 0)
    for number in (5119, 0, 2560):
        for command in (Command(Op.OPEN, context=number), Command(Op.APPEND, opened=1), Command(Op.STEP)):
            assert unit.execute(command)[-1].fault == 0
    check(store)


def test_invalid_arguments_raise():
    memory = np.zeros(0x8000, np.uint8)
    store = create_store(memory, 0x400, SIZES)
    tables = 0x400 + SIZES.nbytes
    create_context(store, 0, CONTEXT_SIZES, tables)
    for call, message in (
        (lambda: StoreSizes(1, 1, 33, 32, 1), "page_tokens must be between 1 and 32, got 33"),
        (lambda: StoreSizes(1, 1, 32, 33, 1), "key_bytes must be even, got 33"),
        (lambda: StoreSizes(1, 1, 32, 32, 1, 48), "line_bytes must be a power of two, got 48"),
        (lambda: create_store(memory, 0x410, SIZES), "base must be a multiple of 128 with"),
        (lambda: create_store(memory, 0x7F80, SIZES), "base must be a multiple of 128 with"),
        (lambda: create_context(store, 0, CONTEXT_SIZES, 0x4000), "context must be absent, got 0"),
        (lambda: create_context(store, 5, CONTEXT_SIZES, 0x4000), "context must be between 0 and 4, got 5"),
        (lambda: create_context(store, 1, CONTEXT_SIZES, 0x4010), "base must be a multiple of 128 below"),
        (
            lambda: create_context(store, 1, CONTEXT_SIZES, 0x4000, host_base=128),
            "host_base must be a multiple of 4096",
        ),
        (lambda: create_context(store, 1, CONTEXT_SIZES, 0x7F80), "context 1 must lie inside the memory"),
        (lambda: create_context(store, 1, CONTEXT_SIZES, tables), "context 1 must not overlap clusters of context 0"),
        (lambda: create_context(store, 1, CONTEXT_SIZES, 0), "context 1 must not overlap the store header"),
        (lambda: delete_context(store, 1), "context must be present in the store, got 1"),
        (lambda: Store(memory.view(np.uint16), 0x400), "memory must be a uint8 array of one axis"),
        (lambda: Store(memory, 0x410), "base must be a multiple of 128 inside the memory, got 0x410"),
        (lambda: Store(memory, 0x480), "magic of the store header must be 0x53585256"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    check(store)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", 1, "magic of the store header must be 0x53585256, got 0x1"),
        ("version", 2, "version of the store header must be 0x1, got 0x2"),
        ("page_tokens", 33, "page_tokens of the store header must be between 1 and 32, got 33"),
        ("key_bytes", 7, "key_bytes of the store header must be even and positive, got 7"),
        ("line_bytes", 96, "line_bytes of the store header must be a power of two from 32, got 96"),
        ("frames_base", 0x10000, "frames must lie inside the memory"),
        ("contexts", 1 << 20, "contexts must lie inside the memory"),
    ],
)
def test_invalid_header_raises(field, value, message):
    bench = StoreBench()
    bench.store.header[field] = value
    with pytest.raises(StoreError, match=message):
        Store(bench.memory, bench.BASE)


def test_deleted_context_releases_its_page_frames(rng):
    bench = filled(rng)
    tokens = int(bench.store.header["resident_tokens"])
    for number in bench.contexts:
        assert bench.store.context(number).in_use(0)
        delete_context(bench.store, number)
        check(bench.store, max_cluster_tokens=bench.config.max_cluster_tokens)
        assert int(bench.store.header["resident_tokens"]) <= tokens
    assert int(bench.store.header["resident_pages"]) == int(bench.store.header["resident_tokens"]) == 0
    assert int(bench.store.header["oldest"]) == int(bench.store.header["newest"]) == NONE


def shared_store():
    """A store whose context 0 has 9 tokens of one cluster; context 1 has the first 8 of them."""
    bench = StoreBench(max_resident_tokens=1000, max_cluster_tokens=65535)
    bench.do(Op.OPEN, context=0)
    for token in range(9):
        bench.do(Op.APPEND, cluster=0, opened=token == 0, hash=5)
    bench.do(Op.STEP)
    share_pages(bench.store, 0, 1, 2)
    check(bench.store)
    return bench


def addresses(bench, context):
    """Page addresses of KV head 0 that a selection of cluster 0 of a context gives."""
    bench.do(Op.OPEN, context=context)
    replies = bench.do(Op.SELECT, cluster=0, heads=1)
    bench.do(Op.FETCH)
    bench.do(Op.STEP)
    return [reply.address for reply in replies if not reply.last]


def test_shared_pages_have_one_page_frame():
    """Both contexts select the same pages; new tokens of each get pages of its own."""
    bench = shared_store()
    header, (first, second) = bench.store.header, (bench.store.context(number) for number in (0, 1))
    assert (int(header["resident_pages"]), int(header["resident_tokens"])) == (3, 9)
    assert first.pages["references"][:3].tolist() == [1, 1, 0] and second.pages["references"][:3].tolist() == [1, 1, 0]
    assert addresses(bench, 1) == addresses(bench, 0)[:2]
    bench.do(Op.OPEN, context=1)
    for _ in range(5):
        assert not bench.do(Op.APPEND, cluster=0)[-1].fault
    bench.do(Op.STEP)
    check(bench.store)
    assert int(header["resident_pages"]) == 5 and second.tokens(2) == [8, 9, 10, 11]
    share_pages(bench.store, 1, 3, 1)
    check(bench.store)
    assert [int(bench.store.context(n).pages[0]["references"]) for n in (0, 1, 3)] == [2, 2, 2]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_context_releases_shared_pages(order):
    bench = shared_store()
    delete_context(bench.store, order[0])
    check(bench.store)
    (frames, left) = int(bench.store.header["resident_pages"]), bench.store.context(order[1])
    assert frames == (2 if order[0] == 0 else 3) and not left.pages["references"].any()
    assert len(addresses(bench, order[1])) == frames
    delete_context(bench.store, order[1])
    check(bench.store)
    assert int(bench.store.header["resident_pages"]) == int(bench.store.header["resident_tokens"]) == 0


def test_a_shared_page_that_left_its_chain():
    """EVICT keeps the page frame. The page is released when no other context shares it."""
    bench = shared_store()
    bench.do(Op.OPEN, context=1)
    assert bench.do(Op.EVICT, cluster=0, index=0, page=1)[-1].count == 1
    bench.do(Op.STEP)
    check(bench.store, complete=False)
    assert len(addresses(bench, 0)) == 3 and len(addresses(bench, 1)) == 1
    delete_context(bench.store, 0)
    check(bench.store, complete=False)
    assert int(bench.store.header["resident_pages"]) == 1 and int(bench.store.context(1).header["free_count"]) == 1


def test_pages_that_cannot_be_shared():
    bench = shared_store()
    other = bench.store.context(1)
    for arguments, message in (
        ((0, 1, 1), "context 1 must be empty, got 8 tokens"),
        ((3, 4, 1), "context must be present in the store, got 4"),
        ((1, 3, 3), "pages of context 1 must have the first 12 tokens"),
        ((0, 3, 17), "pages must be at most 16 of context 3, got 17"),
    ):
        with pytest.raises(StoreError, match=f"^{message}$"):
            share_pages(bench.store, *arguments)
    for field, value, message in (
        ("flags", 1, "page 0 of context 0 must be complete and in device memory"),
        ("references", 2, "references of page 0 of context 0 must be those of contexts that share it, .*, got 2"),
    ):
        record = bench.store.context(0).pages[0]
        before = int(record[field])
        record[field] = value
        with pytest.raises(StoreError, match=f"^{message}$"):
            share_pages(bench.store, 0, 3, 1)
        record[field] = before
    other.pages[0]["references"] = 0
    with pytest.raises(StoreError, match=r"^context 1: page 0: must own or share page frame 0, got \(0, 0, "):
        check(bench.store)
    bench.do(Op.OPEN, context=0)
    bench.do(Op.APPEND, cluster=1, opened=1)
    bench.do(Op.STEP)
    with pytest.raises(StoreError, match=r"^context 0 must have one cluster, got 2$"):
        share_pages(bench.store, 0, 3, 1)


def test_check_detects_every_changed_field(rng):
    """A changed field of any record in use is an error, except contents that no invariant defines.

    Every context has a page in device memory: one without such a page can be absent, so its header may change.
    """
    benches = (filled(rng, max_cluster_tokens=65535) for _ in range(20))
    bench = next(b for b in benches if {int(frame["context"]) for frame in b.store.frames} >= set(b.contexts))
    store = bench.store
    free = {"hash", "first_token", "reserved", "storage_pages_base", "host_pages_base", "max_clusters", "max_pages"}
    undefined = free | {"line_bytes", "log_entries", "first_candidate", "mean_keys_base", "lists_base"}
    records = [("store", store.header, {"contexts", "page_frames", "key_bytes", "step"} | undefined)]
    frame = next(n for n in range(8) if int(store.frames[n]["context"]) != NONE)
    records.append(("frame", store.frames[frame], set()))
    for number in bench.contexts:
        context = store.context(number)
        pages = [n for n in range(16) if context.in_use(n)]
        records.append(("header", context.header, undefined))
        records.append(("cluster", context.clusters[0], undefined))
        for page in pages[:3]:
            record = context.pages[page]
            hidden = set() if int(record["flags"]) & RESIDENT else {"used"}  # slots of moved tokens are not listed
            records.append(("page", record, {"step", "past", "flags", "references"} | hidden))
    image = bench.memory.copy()
    for name, record, ignored in records:
        for field in record.dtype.names:
            if field in ignored:
                continue
            for change in (1, 0x55):
                record[field] = int(record[field]) ^ change
                with pytest.raises(StoreError):
                    check(Store(bench.memory, bench.BASE))
                    pytest.fail(f"{name}: {field} changed by {change:#x} is not detected")
                bench.memory[:] = image
    store.context(0).counts[0] += 1
    with pytest.raises(StoreError, match="context 0: cluster 0: entry of counts must be"):
        check(store)
    bench.memory[:] = image
    store.context(1).lists[0, 0] = 1 << 20
    with pytest.raises(StoreError, match="context 1: tokens must be below"):
        check(store)


class LineWriter:
    """Memory writes of hardware with a cache of lines and an undo log, in a random legal order.

    The headers stay in registers until the commit. Other lines are logged when they become dirty, and may be written
    back at any time after that. The lines of a mean key are logged when its cluster gets a token; the mean keys change
    in memory before the commit.
    """

    def __init__(self, bench, rng, evicted=0.3):
        self.bench, self.rng, self.line = bench, rng, bench.store.line_bytes
        self.evicted = evicted  # share of the dirty lines that are written back after a command
        self.memory = bench.memory.copy()  # content of memory, without the lines in the cache
        self.image = self.memory.copy()  # content that the core sees
        self.dirty, self.writes, self.entries = {}, [], 0
        self.step = int(bench.store.header["step"]) + 1
        self.log_base = int(bench.store.header["log_base"]) * 128
        tables = regions(bench.store)
        del tables["log"]
        lines = {a // self.line for start, end in tables.values() for a in range(start, end, 32)}
        headers = [*range(*tables["the store header"], self.line), *range(*tables["contexts"], self.line)]
        self.headers = [a // self.line for a in headers]
        self.tables = sorted(lines - set(self.headers))
        self.clusters, self.opened = set(), set()  # clusters with tokens of the step, new clusters

    def after_command(self, command=None):
        """Lines that the command changed become dirty; some dirty lines are written back."""
        if command is not None and command.op == Op.APPEND:
            self.log_mean(command)
        self.dirty_lines(self.tables)
        for line in [line for line in self.dirty if self.rng.random() < self.evicted]:
            self.write_back(line)

    def mean(self, cluster):
        """Address and number of bytes of a mean key of the open context."""
        key_bytes = int(self.bench.store.header["key_bytes"])
        return int(self.bench.kvmu.tables.header["mean_keys_base"]) * 128 + cluster * key_bytes, key_bytes

    def log_mean(self, command):
        """Log the mean key of a cluster that has got a token."""
        self.clusters.add(command.cluster)
        if command.opened:
            self.opened.add(command.cluster)
        else:
            address, size = self.mean(command.cluster)
            for line in range(address // self.line, (address + size - 1) // self.line + 1):
                self.log(line)

    def change_means(self):
        """Change the mean keys of all clusters with tokens of the step, in random pieces."""
        for cluster in self.clusters:
            address, size = self.mean(cluster)
            data = self.rng.integers(0, 256, size).astype(np.uint8)
            self.bench.memory[address : address + size] = self.image[address : address + size] = data
            for start in range(0, size, 8):
                self.put(address + start, data[start : start + 8].tobytes())

    def log(self, line):
        """Write an entry of the undo log: the content of a line in memory, then its tag."""
        entry, at = self.log_base + 2 * self.line * self.entries, slice(line * self.line, (line + 1) * self.line)
        self.put(entry, self.memory[at].tobytes())
        tag = np.array([line * self.line // 32, self.step, 0, 0, 0, 0, 0, 0], "<u4").tobytes()
        self.put(entry + self.line, tag)
        self.entries += 1

    def commit(self):
        """Write back everything, the line with `step` last."""
        self.dirty_lines(self.tables)
        for line in self.rng.permutation(sorted(self.dirty)).tolist():
            self.write_back(line)
        step_line = (self.bench.BASE + 124) // self.line
        self.dirty_lines([line for line in self.headers if line != step_line])
        for line in [line for line in self.headers if line in self.dirty]:
            self.write_back(line)
        self.dirty_lines([step_line])
        self.write_back(step_line)

    def dirty_lines(self, lines):
        for line in lines:
            at = slice(line * self.line, (line + 1) * self.line)
            if (self.bench.memory[at] != self.image[at]).any():
                if line not in self.dirty:
                    self.log(line)
                self.dirty[line] = self.bench.memory[at].tobytes()
                self.image[at] = self.bench.memory[at]

    def write_back(self, line):
        self.put(line * self.line, self.dirty.pop(line))

    def put(self, address, data):
        self.writes.append((address, data))
        self.memory[address : address + len(data)] = np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("line_bytes", [32, 128])
def test_recovery_after_any_number_of_writes(line_bytes, rng):
    """Stopped after any write, the store is as before or as after the step, and the next step works."""
    sizes = StoreSizes(5, page_frames=8, page_tokens=4, key_bytes=32, log_entries=600, line_bytes=line_bytes)
    bench = StoreBench(rng=rng, sizes=sizes)
    undone = 0
    for _ in range(12):
        while bench.kvmu.fetching or bench.kvmu.uncommitted or bench.kvmu.context is None:
            bench.execute(bench.random_command(rng, {"FETCH": 1, "STEP": 1, "OPEN": 1}, wild=0))
        bench.do(Op.OPEN, context=int(rng.choice(bench.contexts)))
        before = bench.memory.copy()
        writer = LineWriter(bench, rng)
        for _ in range(int(rng.integers(1, 14))):
            mix = {"APPEND": 9, "MOVE": 2, "FREE": 0.5, "SEAL": 0.3, "EVICT": 0.3}
            command = bench.random_command(rng, mix)
            refused = bench.execute(command)[-1].fault
            writer.after_command(None if refused else command)
        writer.change_means()
        bench.do(Op.STEP)
        writer.commit()
        assert writer.entries <= sizes.log_entries
        for stop in range(len(writer.writes) + 1):
            memory = before.copy()
            for address, data in writer.writes[:stop]:
                memory[address : address + len(data)] = np.frombuffer(data, np.uint8)
            restored = recover(memory, bench.BASE)
            undone += restored > 0
            store = Store(memory, bench.BASE)
            done = stop == len(writer.writes)
            assert int(store.header["step"]) == writer.step - (stop < 2) if not done else restored == 0
            store.header["step"] = writer.step
            expected = (bench.memory if done else before).copy()
            Store(expected, bench.BASE).header["step"] = writer.step
            for start, size in map(writer.mean, writer.opened):  # no cluster has them after the recovery
                if not done:
                    expected[start : start + size] = memory[start : start + size]
            for start, end in (span for name, span in regions(store).items() if name != "log"):
                assert (memory[start:end] == expected[start:end]).all(), (stop, hex(start))
            assert recover(memory, bench.BASE) == 0
        bench.check()
    assert undone > 100


def test_log_entries_suffice_without_a_cache(rng):
    """Every changed line is written back after each command: the log has no more entries than `log_entries`."""
    sizes = StoreSizes(5, page_frames=8, page_tokens=4, key_bytes=32, log_entries=400)
    bench, largest = StoreBench(rng=rng, sizes=sizes), 0.0
    for _ in range(40):
        bench.do(Op.OPEN, context=int(rng.choice(bench.contexts)))
        writer = LineWriter(bench, rng, evicted=1.0)
        for _ in range(tokens := int(rng.integers(1, 8))):
            clusters = int(bench.kvmu.tables.header["clusters"])
            cluster = min(int(rng.integers(6)), clusters)
            command = Command(int(Op.APPEND), cluster=cluster, opened=int(cluster == clusters))
            bench.execute(command)
            writer.after_command(command)
        writer.change_means()
        pages = len(bench.do(Op.STEP)) - 1
        writer.commit()
        limit = log_entries(tokens, pages, key_bytes=sizes.key_bytes, line_bytes=sizes.line_bytes)
        assert writer.entries <= limit
        largest = max(largest, writer.entries / limit)
    assert largest > 0.5


def test_log_entries_suffice_for_fetches_moves_and_releases(rng):
    """As above, with pages that are fetched and stay, tokens that move, and pages that are released."""
    sizes = StoreSizes(5, page_frames=24, page_tokens=4, key_bytes=32, log_entries=4000)
    bench = StoreBench(rng=rng, sizes=sizes, max_resident_tokens=12)
    met, largest = dict.fromkeys(("moved", "freed", "newest", "fetched"), 0), 0.0
    for _ in range(60):
        bench.do(Op.OPEN, context=int(rng.choice(bench.contexts)))
        writer, tables, table = LineWriter(bench, rng, evicted=1.0), bench.kvmu.tables, bench.kvmu.tables.context
        counts = dict.fromkeys((*met, "tokens", "pages"), 0)

        def do(op, writer=writer, **fields):
            command = Command(int(op), **fields)
            replies = bench.execute(command)
            writer.after_command(command)
            return replies

        for kind in rng.choice(["append", "select", "move", "evict"], 8, p=[0.5, 0.3, 0.15, 0.05]):
            clusters = int(tables.header["clusters"])
            cluster = min(int(rng.integers(6)), clusters)
            slots = [(page, slot) for page in range(16) if tables.is_resident(page) for slot in range(4)]
            live = [(page, slot) for page, slot in slots if tables.is_live(page, slot)]
            if kind == "append" and cluster < 6:
                do(Op.APPEND, cluster=cluster, opened=int(cluster == clusters))
                counts["tokens"] += 1  # also if there is no page for it: the mean key is logged before
            elif kind == "select" and cluster < clusters:
                for heads in (1, 2):
                    replies = do(Op.SELECT, cluster=cluster, heads=heads, retain=1)[:-1]
                    counts["newest"] += len({reply.page for reply in replies})
                    counts["fetched"] += sum(reply.transit for reply in replies)
                do(Op.FETCH)
            elif kind == "move" and live and clusters > 1:
                page, slot = live[int(rng.integers(len(live)))]
                target = (int(table.pages[page]["cluster"]) + 1) % clusters
                moved = not do(Op.MOVE, page=page, slot=slot, cluster=target)[-1].fault
                counts["moved"] += moved
                counts["freed"] += int(moved and not table.in_use(page))
            elif kind == "evict" and cluster < clusters:
                counts["freed"] += len(do(Op.EVICT, cluster=cluster, index=1, page=1)) - 1
        writer.change_means()
        counts["pages"] = counts["newest"] + len(bench.do(Op.STEP)) - 1
        writer.commit()
        limit = log_entries(
            counts["tokens"], counts["pages"], moved=counts["moved"], freed=counts["freed"],
            key_bytes=sizes.key_bytes, line_bytes=sizes.line_bytes,
        )  # fmt: skip
        assert writer.entries <= limit
        largest = max(largest, writer.entries / limit)
        met = {name: number + counts[name] for name, number in met.items()}
    assert largest > 0.5 and all(met.values())


def test_interrupted_step_is_visible():
    bench = StoreBench()
    assert not interrupted(bench.store)
    bench.store.log[0, 1].view("<u4")[:2] = (bench.BASE // 32, 1)
    bench.store.log[0, 0] = bench.memory[bench.BASE : bench.BASE + 32]
    assert interrupted(bench.store) and recover(bench.memory, bench.BASE) == 1 and not interrupted(bench.store)


def test_log_entry_outside_the_memory_raises():
    bench = StoreBench()
    bench.store.log[0, 1].view("<u4")[:2] = (1 << 30, 1)
    with pytest.raises(StoreError, match="address of a log entry must be inside the memory, got 0x800000000"):
        recover(bench.memory, bench.BASE)
