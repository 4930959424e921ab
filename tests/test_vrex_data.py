"""The commands that read videos, traces and streams: what they print and leave."""

import json

import numpy as np
import pytest

import vrex
from sw_model.media import clip, generator, quickcodec, statistics
from sw_model.media.generator import Generator
from sw_model.media.trace import write_trace


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs one command in a folder of its own; gives (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def go(*arguments):
        status = vrex.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return go


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    pictures = clip.synthesise(24, width=96, height=64, scene_frames=10, seed=5)
    return clip.encode(pictures, tmp_path_factory.mktemp("film") / "film.mp4", gop=8)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    config = generator.small(3)
    chunks = Generator(config).chunks(12, text_interval=6, text_tokens=4)
    return write_trace(tmp_path_factory.mktemp("trace") / "t.safetensors", config.geometry, chunks, {"model": "none"})


def test_decode(run, film, tmp_path):
    status, out, err = run("decode", film)
    assert status == 0 and "film: 24 frames of 96 x 64" in out and "frames: 24 of 24" in err
    assert len(list((tmp_path / "build/frames/film").glob("*.png"))) == 24
    status, out, _ = run("decode", film, "--out", "a.npy", "--fps", 2, "--size", "48x32", "--workers", 1, "--json")
    told = json.loads(out)
    assert (told["frames"], told["stream_frames"], told["form"]) == (5, 24, "npy")
    want = quickcodec.decode(film, fps=2, size=(48, 32), workers=1)
    np.testing.assert_array_equal(np.load("a.npy"), want.frames)
    assert told["time_s"] == want.time_s.tolist()
    status, out, _ = run("decode", film, "--out", "b.raw", "--time", 0.5, "--time", 1.2, "--json")
    assert status == 0 and json.loads(out)["time_s"] == [0.5, 1.2]


def test_stats(run, film, trace):
    status, out, _ = run("stats", trace, "--json")
    told = json.loads(out)
    config = generator.small(3)
    want = statistics.measure(Generator(config).chunks(12, text_interval=6, text_tokens=4))
    assert status == 0 and told["source"]["kind"] == "trace" and told["source"]["model"] == "none"
    assert told["layers"] == [vars(layer) for layer in want]
    status, out, err = run("stats", trace)
    assert "correlation of cosine and Hamming distance" in out and "chunks: 14 of 14" in err
    status, out, _ = run("stats", film, "--layers", 2, "--grid", 2, "--frames", 5, "--json")
    told = json.loads(out)
    assert [layer["tokens"] for layer in told["layers"]] == [5 * 5 + 25] * 2
    status, out, _ = run("stats", "generator", "--frames", 3, "--json")
    assert json.loads(out)["layers"][0]["tokens"] == 3 * 10 + 25


def test_a_trace_is_known_by_its_content_and_can_be_cut_short(run, trace, tmp_path):
    (tmp_path / "renamed").write_bytes(trace.read_bytes())
    for frames, tokens in ((6, 64), (7, 74), (12, 128), (99, 128)):
        _, out, _ = run("stats", "renamed", "--frames", frames, "--json")
        assert json.loads(out)["layers"][0]["tokens"] == tokens


def test_quality(run, trace):
    status, out, _ = run("quality", trace, "--policy", "full", "--policy", "resv", "--json")
    rows = json.loads(out)["table"]
    assert status == 0
    assert [(row["policy"], row["stage"], row["steps"]) for row in rows] == [
        ("full", "frame", 11),
        ("full", "text", 2),
        ("resv", "frame", 11),
        ("resv", "text", 2),
    ]
    assert rows[0]["output_error"] == 0 < rows[2]["output_error"]
    status, out, _ = run("quality", trace, "--every", 6)
    assert status == 0 and all(name in out for name in ("oaken", "mosaic", "codecsight"))


def test_capture_without_its_libraries_or_model(run):
    status, _, err = run("capture", "no/model", "--prompt", "x", "--out", "t.safetensors", "--random-weights")
    assert status == 2 and ("capture needs PyTorch" in err or "model 'no/model' cannot be loaded" in err)
