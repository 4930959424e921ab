"""A stream that is saved and resumed in another store continues with equal results; invalid files change nothing."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from compiler.context_file import (
    HEADER,
    SECTION,
    ContextAddress,
    Machine,
    export_stream,
    import_stream,
)
from golden import bf16
from golden.clustering import ClusterRule
from golden.decoder_layer import DecoderLayer, LayerShape
from golden.kvmu import KvmuConfig, Op, Tier
from golden.kvpu import Kvpu
from golden.selection import RESV
from golden.store import ContextSizes, StoreSizes, create_context, create_store
from golden.store.layout import RESIDENT, SAVED
from tests.golden.store_bench import StoreBench

SOURCE = {
    "contexts": (0, 2, 3),
    "sizes": StoreSizes(5, page_frames=50, page_tokens=4, key_bytes=32, log_entries=64),
    "context_sizes": ContextSizes(max_clusters=10, max_pages=90),
    "max_resident_tokens": 30,
    "max_cluster_tokens": 65535,
    "staging_head_pages": 100,
}
TARGET = {
    **SOURCE,
    "contexts": (1, 2),
    "sizes": StoreSizes(9, page_frames=80, page_tokens=4, key_bytes=32, log_entries=8, line_bytes=128),
    "max_resident_tokens": 44,
}
ROOM = ContextSizes(max_clusters=14, max_pages=120)  # capacity of the resumed contexts


def machine(bench):
    tiers = bench.tiers
    return Machine(bench.store, bench.config.page_frames_base, 2, tiers[Tier.HOST], tiers[Tier.STORAGE])


def step(bench, context, appends, selected=()):
    """One step; returns the tokens that `selected` clusters report for KV head 1, and their keys and values."""
    assert not bench.do(Op.OPEN, context=context)[-1].fault
    beats = []
    for cluster in appends:
        opened = cluster == int(bench.kvmu.tables.header["clusters"])
        assert not bench.do(Op.APPEND, cluster=cluster, opened=opened, hash=7 * cluster)[-1].fault
    for cluster in selected:
        beats += bench.do(Op.SELECT, cluster=cluster, heads=2)
    assert not bench.do(Op.FETCH)[-1].fault
    tokens, data = [], []
    for beat in beats:
        if not beat.last:
            tokens += bench.kvmu.tables.context.lists[beat.page, : beat.count].tolist()
            data.append(bench.memory[beat.address : beat.address + 32 * beat.count])
    data = np.concatenate([np.zeros(0, np.uint8), *data])
    assert not bench.do(Op.STEP)[-1].fault
    return tokens, data


def random_appends(rng, clusters):
    """Clusters of up to eight tokens, and the number of clusters afterwards."""
    out = []
    for _ in range(int(rng.integers(1, 9))):
        cluster = min(int(rng.integers(clusters + 2)), clusters, 9)
        clusters = max(clusters, cluster + 1)
        out.append(cluster)
    return out, clusters


def resident_pages(bench, contexts):
    """Pages of some contexts in device memory."""
    frames = bench.store.frames[: int(bench.store.header["never_used"])]
    return sum(int(frame["context"]) in contexts for frame in frames)


def source_bench(rng, steps=24):
    """A bench after random steps of three contexts, and the clusters of each context.

    Contexts 0 and 3 have more than three pages in device memory.
    """
    bench, clusters = StoreBench(rng=rng, **SOURCE), {0: 0, 2: 0, 3: 0}
    order = [0, 2, 3, *rng.choice([0, 2, 3], steps).tolist()]
    while order or resident_pages(bench, (0, 3)) <= 3:
        context = order.pop(0) if order else 3
        appends, clusters[context] = random_appends(rng, clusters[context])
        step(bench, context, appends)
    for number in (0, 3):
        bench.store.context(number).mean_keys[:] = rng.integers(0, 1 << 16, (10, 16))
    bench.do(Op.OPEN, context=3)
    bench.do(Op.MIGRATE, page=0, tier=Tier.STORAGE)
    bench.do(Op.STEP)
    bench.check()
    return bench, clusters


def target_bench(rng, steps=6):
    """Another machine, with streams of its own."""
    bench = StoreBench(rng=rng, spare=0x4800, **TARGET)
    for context in [1, 2, *rng.choice([1, 2], steps).tolist()]:
        clusters = int(bench.store.contexts[context]["clusters"])
        step(bench, context, random_appends(rng, clusters)[0])
    return bench


def addresses(bench):
    """Two contexts in the spare bytes of a machine."""
    return [
        ContextAddress(7, bench.spare + 0x2400, host_base=0x10000, storage_base=0x18000, sizes=ROOM),
        ContextAddress(4, bench.spare, host_base=0x14000, storage_base=0x1C000, sizes=ROOM),
    ]


@pytest.mark.parametrize("most", [None, 7, 0])
def test_resumed_stream_continues_with_equal_results(most, rng, tmp_path):
    """The newest pages with at most that many used slots stay resident."""
    source, clusters = source_bench(rng)
    target, path = target_bench(rng), tmp_path / "stream.vrex"
    export_stream(machine(source), [0, 3], path)
    assert list(tmp_path.iterdir()) == [path]
    resident = resident_pages(source, (0, 3))
    before = [int(target.store.header[f"resident_{name}"]) for name in ("pages", "tokens")]
    import_stream(machine(target), path, addresses(target), most)
    pages, slots = (
        int(target.store.header[f"resident_{name}"]) - b for name, b in zip(("pages", "tokens"), before, strict=True)
    )
    assert (pages == resident) if most is None else (most - target.store.page_tokens < slots <= most)
    target.contexts, target.labels = (1, 2, 4, 7), {7: 0, 4: 3}
    target.check()
    for old, new in ((0, 7), (3, 4)):
        means = [bench.store.context(n).mean_keys[: clusters[old]] for bench, n in ((source, old), (target, new))]
        assert (means[0] == means[1]).all() and means[0].any()
    for _ in range(20):
        old, new = ((0, 7), (3, 4))[int(rng.integers(2))]
        appends, clusters[old] = random_appends(rng, clusters[old])
        selected = np.flatnonzero(rng.random(clusters[old]) < 0.4).tolist()
        first, second = step(source, old, appends, selected), step(target, new, appends, selected)
        assert first[0] == second[0] and (first[1] == second[1]).all()
        for other in (source, 2), (target, 1):
            step(*other, [0])
        source.check()
        target.check()


def test_file_does_not_depend_on_the_position_in_the_store(rng, tmp_path):
    """Exported again after the import, the file has the same bytes."""
    source, _ = source_bench(rng)
    target = target_bench(rng)
    export_stream(machine(source), [0, 3], tmp_path / "first")
    at = [replace(address, sizes=None) for address in addresses(target)]
    import_stream(machine(target), tmp_path / "first", at)
    export_stream(machine(target), [7, 4], tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    flags = [int(page["flags"]) for page in target.store.context(7).pages[:3]]
    assert all(not flag & RESIDENT or not flag & SAVED for flag in flags)


def test_invalid_files_change_nothing(rng, tmp_path):
    source, _ = source_bench(rng)
    target, path = target_bench(rng), tmp_path / "stream.vrex"
    export_stream(machine(source), [0, 3], path)
    data = path.read_bytes()
    images = [target.memory, *(target.tiers[tier] for tier in (Tier.HOST, Tier.STORAGE))]
    before = [image.copy() for image in images]

    def refused(content, message, at=None):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            import_stream(machine(target), path, addresses(target) if at is None else at)
        assert "\n" not in str(error.value)
        assert all((image == old).all() for image, old in zip(images, before, strict=True))

    start = HEADER.itemsize + 3 * SECTION.itemsize
    for size in (0, 10, 55):
        refused(data[:size], f"stream.vrex: file must have at least 56 bytes, got {size}")
    for size in (HEADER.itemsize, start, start + 32, len(data) - 1, *rng.integers(56, len(data), 20).tolist()):
        refused(data[:size], f"stream.vrex: bytes must be {size}, got {len(data)}")
    refused(data + b"x", f"stream.vrex: bytes must be {len(data) + 1}, got {len(data)}")
    refused(b"\x7fELF" + data[4:], "magic must be b'VREXSTRM', got")
    refused(data[:8] + b"\x01" + data[9:], "version must be 2, got 1")
    refused(data[:12] + b"\x04" + data[13:], "kv_heads must be 2, got 4")
    refused(data[:20] + b"\x08" + data[21:], "page_tokens must be 4, got 8")
    for at in [start - 1, start, start + 32, len(data) - 1, *rng.integers(HEADER.itemsize, len(data), 40).tolist()]:
        changed = bytearray(data)
        changed[at] ^= 1 << int(rng.integers(8))
        refused(bytes(changed), r"SHA-256 of the (header|section \d) must be [0-9a-f]{16}\.\.\., got")
    many = bytearray(data[:24] + np.array([1 << 20], "<u4").tobytes() + data[28:])
    refused(bytes(many), "file must have at least")
    video = np.frombuffer(data[: HEADER.itemsize], HEADER).copy()
    video["video"] = 3
    refused(assembled(video.tobytes() + data[HEADER.itemsize :], sections(data)), "video must be")
    video["video"], video["seconds"] = 0, -1
    refused(assembled(video.tobytes() + data[HEADER.itemsize :], sections(data)), "seconds must be at least 0, got -1")
    short = sections(data)
    short[2] = short[2][:-1]
    refused(assembled(data, short), "section 2 must have")


def sections(data):
    """Contents of the sections of a file."""
    count = 1 + int(np.frombuffer(data[: HEADER.itemsize], HEADER)[0]["contexts"])
    table = np.frombuffer(data[HEADER.itemsize :][: count * SECTION.itemsize], SECTION)
    ends = HEADER.itemsize + table.nbytes + 32 + np.cumsum(table["bytes"])
    return [data[end - size : end] for end, size in zip(ends.tolist(), table["bytes"].tolist(), strict=True)]


def assembled(data, contents):
    """The file `data` with other contents of its sections, and valid hashes."""
    header = np.frombuffer(data[: HEADER.itemsize], HEADER).copy()
    table = np.zeros(len(contents), SECTION)
    for entry, content in zip(table, contents, strict=True):
        entry["bytes"], entry["sha256"] = len(content), np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
    body = b"".join(contents)
    header["bytes"] = HEADER.itemsize + table.nbytes + 32 + len(body)
    start = header.tobytes() + table.tobytes()
    return start + hashlib.sha256(start).digest() + body


def test_contexts_that_do_not_fit_change_nothing(rng, tmp_path):
    source, _ = source_bench(rng)
    target, path = target_bench(rng), tmp_path / "stream.vrex"
    export_stream(machine(source), [0, 3], path)
    before = target.memory.copy()
    first, second = addresses(target)

    def moved(**fields):
        return [first, replace(second, **fields)]

    for at, message in (
        ([first], "addresses must have 2 entries, got 1"),
        (moved(base=first.base + 128), "addresses of contexts must not overlap"),
        (moved(number=7), "numbers of contexts must be distinct"),
        (moved(number=1), "context must be absent, got 1"),
        (moved(number=9), "context must be between 0 and 8, got 9"),
        (moved(base=0x400), "context 4 must not overlap the store header"),
        (moved(host_base=1 << 20), "host must have at least"),
        (moved(storage_base=1 << 20), "storage must have at least"),
        (moved(sizes=ContextSizes(1, 120)), "max_clusters of context 4 must be at least"),
        (moved(sizes=ContextSizes(14, 2)), "max_pages of context 4 must be at least"),
    ):
        with pytest.raises(ValueError, match=message):
            import_stream(machine(target), path, at)
        assert (target.memory == before).all()


def test_step_in_progress_is_refused(rng, tmp_path):
    source, _ = source_bench(rng, steps=4)
    source.store.log[0, 1].view("<u4")[1] = int(source.store.header["step"]) + 1
    for call in (
        lambda: export_stream(machine(source), [0, 3], tmp_path / "stream"),
        lambda: import_stream(machine(source), tmp_path / "stream", []),
    ):
        with pytest.raises(ValueError, match="store must have no step in progress"):
            call()
    assert not list(tmp_path.iterdir())


def test_failed_export_leaves_the_old_file(rng, tmp_path, monkeypatch):
    source, _ = source_bench(rng, steps=4)
    path = tmp_path / "stream.vrex"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="context must be present in the store, got 1"):
        export_stream(machine(source), [0, 1], path)

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        export_stream(machine(source), [0, 3], path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def layer_unit(contexts, max_resident_tokens):
    """A KV prediction unit with empty contexts of these numbers, and its machine. Its transfers are not performed."""
    sizes = StoreSizes(8, page_frames=60, page_tokens=4, key_bytes=32, log_entries=8)
    room = ContextSizes(max_clusters=60, max_pages=100)
    frames = sizes.nbytes + 8 * room.nbytes(sizes)
    memory = np.zeros(frames + 60 * 256, np.uint8)
    store = create_store(memory, 0, sizes)
    for n in contexts:
        create_context(store, n, room, sizes.nbytes + n * room.nbytes(sizes), host_base=n << 16)
    config = KvmuConfig(
        2, 8, 4, page_frames_base=frames, staging_head_pages=200, max_resident_tokens=max_resident_tokens
    )
    unit = Kvpu(ClusterRule(hamming_threshold=5, window_tokens=20), config, memory, 0, RESV, 30000)
    return unit, Machine(store, frames, 2, np.zeros(1 << 19, np.uint8), np.zeros(1 << 10, np.uint8))


def test_resumed_decoder_layers_give_equal_outputs(rng, tmp_path):
    """Two layers of a stream move to another machine after a random step."""
    shape = LayerShape(hidden=8, ffn=16, q_heads=4, kv_heads=2, head_dim=8, hash_bits=16, inputs=4)
    parameters = []
    for _ in range(2):
        weights = {name: bf16.encode(rng.standard_normal(size) / 3) for name, size in shape.weights().items()}
        parameters.append((weights, (bf16.encode(1 + rng.standard_normal(8) / 8),) * 2))
    source, source_machine = layer_unit([2, 5], max_resident_tokens=24)
    target, target_machine = layer_unit([0], max_resident_tokens=40)
    old = [DecoderLayer(shape, *values, source, context) for values, context in zip(parameters, (2, 5), strict=True)]
    other, new = DecoderLayer(shape, *parameters[0], target, 0), None
    position, moved_after = 0, int(rng.integers(4, 10))
    for number in range(14):
        if number == moved_after:
            export_stream(source_machine, [2, 5], tmp_path / "stream")
            size = ContextSizes(60, 100).nbytes(target_machine.store)
            first_table = target_machine.page_frames_base - 8 * size
            at = [ContextAddress(n, first_table + n * size, host_base=n << 16) for n in (6, 3)]
            import_stream(target_machine, tmp_path / "stream", at)
            new = [
                DecoderLayer(shape, *values, target, context, layer.keys.copy(), layer.values.copy())
                for values, context, layer in zip(parameters, (6, 3), old, strict=True)
            ]
        tokens = int(rng.integers(1, 5))
        x = y = bf16.encode(rng.standard_normal((tokens, 8)))
        other.step(x, range(tokens))
        for layer in range(2):
            first = old[layer].step(x, range(position, position + tokens))
            if new is not None:
                second = new[layer].step(y, range(position, position + tokens))
                assert first.attended == second.attended and (first.output == second.output).all()
                y = second.output
            x = first.output
        position += tokens
