"""Traces: a file reads back as written, in constant memory; a damaged file raises one error that names it."""

import json
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sw_model.media import generator, statistics
from sw_model.media.generator import Generator
from sw_model.media.stream import BF16, Chunk, Geometry
from sw_model.media.trace import Trace, TraceError, TraceWriter, write_trace

SMALL = generator.small().geometry


@pytest.fixture
def trace(tmp_path, seed):
    stream = Generator(generator.small(seed)).chunks(12, text_interval=5, text_tokens=3)
    return write_trace(tmp_path / "run" / "t.safetensors", SMALL, stream, {"generator": "small", "seed": seed})


def test_round_trip(trace, seed):
    read = Trace(trace)
    assert (read.geometry, len(read), read.tokens) == (SMALL, 14, 126)
    assert read.source == {"generator": "small", "seed": seed}
    original = Generator(generator.small(seed)).chunks(12, text_interval=5, text_tokens=3)
    for got, want in zip(read.chunks(), original, strict=True):
        assert got.stage == want.stage
        for name in ("positions", "q", "k", "v"):
            assert np.array_equal(getattr(got, name), getattr(want, name))
            assert getattr(got, name).dtype == getattr(want, name).dtype
    assert [p.name for p in trace.parent.iterdir()] == ["t.safetensors"]


def test_the_library_reads_the_whole_file(trace):
    """The trace writer encodes the header itself; the loader of safetensors reads the same tensors."""
    tensors = load_file(trace)
    assert len(tensors) == 14 * 4
    assert tensors["00000000.q"].shape == (1, 10, 4, 64)
    assert np.array_equal(tensors["00000001.k"], list(Trace(trace).chunks())[1].k)


def test_statistics_are_the_same_from_disk(trace, seed):
    stream = Generator(generator.small(seed)).chunks(12, text_interval=5, text_tokens=3)
    assert statistics.measure(Trace(trace).chunks()) == statistics.measure(stream)


def test_memory_stays_flat(tmp_path):
    """Writing and reading 16 times as much takes the memory of a few chunks, not of the trace."""
    geometry = Geometry(layers=2, q_heads=8, kv_heads=8, head_dim=128)
    size = 3 * 2 * 50 * 8 * 128 * 2
    q = np.ones((2, 50, 8, 128), BF16)

    def stream(count):
        return (Chunk("frame", 50 * n + np.arange(50), q, q, q) for n in range(count))

    peaks = []
    for count in (8, 128):
        tracemalloc.start()
        path = write_trace(tmp_path / f"{count}.safetensors", geometry, stream(count), {})
        total = sum(chunk.tokens for chunk in Trace(path).chunks())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert total == 50 * count
        assert path.stat().st_size > count * size
    assert peaks[1] < peaks[0] + 2 * size


def test_an_error_leaves_nothing_and_an_old_trace_stays(trace, seed):
    before = trace.read_bytes()

    def broken():
        yield from Generator(generator.small(seed)).chunks(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(trace, SMALL, broken(), {})
    with pytest.raises(ValueError, match="a trace must have at least one chunk"):
        write_trace(trace, SMALL, [], {})
    assert [p.name for p in trace.parent.iterdir()] == [trace.name]
    assert trace.read_bytes() == before


def test_writer_rejects(tmp_path, seed):
    first, second = Generator(generator.small(seed)).chunks(2)
    with pytest.raises(ValueError, match=r"q must have shape \(2, 10, 4, 64\), got \(1, 10, 4, 64\)"):
        write_trace(tmp_path / "t", Geometry(layers=2, q_heads=4, kv_heads=2, head_dim=64), [first], {})
    with pytest.raises(ValueError, match="positions must ascend from 20 on, got"):
        write_trace(tmp_path / "t", SMALL, [first, second, second], {})
    bad = second.k.copy()
    bad[0, 3] = np.nan
    with pytest.raises(ValueError, match="k of chunk 1 must be finite"):
        write_trace(tmp_path / "t", SMALL, [first, Chunk("frame", second.positions, second.q, bad, second.v)], {})
    assert not list(tmp_path.iterdir())


def reject(path, message):
    with pytest.raises(TraceError, match=message) as caught:
        list(Trace(path).chunks())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_directory(tmp_path):
    reject(tmp_path / "none.safetensors", "no such file")
    reject(tmp_path, "is a directory")


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, 0.999])
def test_truncated(trace, keep):
    content = trace.read_bytes()
    trace.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    reject(trace, "truncated or no safetensors file")


def test_text_file(tmp_path):
    path = tmp_path / "t.safetensors"
    path.write_text("hello, I am no trace\n" * 20)
    reject(path, "truncated or no safetensors file")


def test_another_safetensors_file(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"w": np.ones(3, np.float32)}, path)
    reject(path, "no vrex-trace of version 1")


def test_damaged_content(trace):
    """Files that are safetensors but whose tensors or metadata do not fit together."""
    tensors = load_file(trace)
    header = {
        "format": "vrex-trace",
        "version": "1",
        "geometry": json.dumps(SMALL.as_dict()),
        "stages": json.dumps(Trace(trace).stages),
        "source": "{}",
    }

    def save(change=None, **metadata):
        save_file({**tensors, **(change or {})}, trace, metadata=header | metadata)
        return trace

    assert len(list(Trace(save()).chunks())) == 14
    reject(save(geometry="{not json"), "has damaged metadata")
    reject(save(geometry='{"layers": 0}'), "has damaged metadata .*layers must be between 1 and 65536, got 0")
    reject(save(stages='["frame", "sound"]'), "must mark every chunk as one of frame, text")
    reject(save(stages='["frame"]'), "must hold q, k, v, positions of 1 chunks")
    reject(save({"extra": np.ones(2, np.float32)}), "got other tensors")
    reject(save({"00000002.k": tensors["00000002.k"][:, :9]}), r"00000002.k must be BF16 \(1, 10, 2, 64\), got BF16")
    reject(save({"00000002.v": tensors["00000002.v"].astype(np.float32)}), "got F32")
    infinite = tensors["00000003.q"].copy()
    infinite[0, 0, 0, 0] = np.inf
    reject(save({"00000003.q": infinite}), "00000003.q holds a NaN or an infinity")
    reject(save({"00000001.positions": tensors["00000000.positions"]}), "00000001.positions does not ascend")


def test_writer_on_a_full_disk(tmp_path, monkeypatch, seed):
    writer = TraceWriter(tmp_path / "t.safetensors", SMALL, {})
    with pytest.raises(OSError, match="No space left"), writer:
        plain = writer._data

        class Full:
            def write(self, content):
                raise OSError(28, "No space left on device")

            def close(self):
                plain.close()

        monkeypatch.setattr(writer, "_data", Full())
        writer.append(Generator(generator.small(seed)).frame())
    assert not list(tmp_path.iterdir())
