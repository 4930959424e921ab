"""Decoding: completeness, motion vectors, sampling, and a one-line error for an incomplete video."""

from fractions import Fraction
from itertools import islice, pairwise
from types import SimpleNamespace

import av
import numpy as np
import pytest

from sw_model.media import clip, video
from sw_model.media.video import VideoError


def remux(source, target, container_format=None, options=None, shift=0):
    """Copy the packets of `source` into another container, time stamps moved by `shift` ticks."""
    with (
        av.open(str(source)) as inp,
        av.open(str(target), "w", format=container_format, options=options or {}) as out,
    ):
        stream = out.add_stream_from_template(inp.streams.video[0])
        for packet in inp.demux(video=0):
            if packet.dts is not None:
                packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                packet.stream = stream
                out.mux(packet)
    return target


def consume(path):
    return [(frame.index, frame.kind, len(frame.motion)) for frame in video.decode(path)]


def test_every_frame_once_with_types_and_times(small_video, pictures):
    frames = list(video.decode(small_video))
    assert [f.index for f in frames] == list(range(48))
    assert "".join(f.kind for f in frames) == "".join("I" if i % 16 == 0 else "P" for i in range(48))
    assert [f.time_s for f in frames] == pytest.approx([i / 10 for i in range(48)])
    error = [np.abs(f.rgb().astype(int) - p).mean() for f, p in zip(frames, pictures, strict=True)]
    assert max(error) < 12  # the right picture at the right index: neighbours across a cut differ much more
    assert np.abs(frames[19].rgb().astype(int) - pictures[20]).mean() > 25


def test_probe_tells_the_header(small_video):
    info = video.probe(small_video)
    assert (info.codec, info.width, info.height, info.n_frames) == ("h264", 96, 64, 48)
    assert info.frame_rate == 10
    assert info.duration_s == pytest.approx(4.8)


def test_motion_vectors_show_a_known_motion(tmp_path):
    """A texture moved 3 pixels right per frame: the median vector points 3 pixels back, in quarter pixels."""
    rng = np.random.default_rng(5)
    wide = clip._noise_texture(rng, 64, 256) + 20 * rng.standard_normal((64, 256, 3))
    texture = np.clip(wide, 0, 255).astype(np.uint8)
    frames = [texture[:, 100 - 3 * i : 228 - 3 * i] for i in range(8)]
    path = clip.encode(frames, tmp_path / "pan.mp4", gop=8, options={"preset": "slow", "crf": "10"})
    decoded = list(video.decode(path))
    assert len(decoded[0].motion) == 0
    for frame in decoded[1:]:
        vectors = frame.motion
        assert vectors.dtype == video.MOTION_DTYPE
        assert set(vectors["motion_scale"]) == {4}
        assert np.median(vectors["motion_x"] / vectors["motion_scale"]) == -3
        assert np.median(vectors["motion_y"]) == 0
        assert (vectors["source"] < 0).all()


def test_rgb_resizes_by_area(small_video):
    frame = next(video.decode(small_video))
    small = frame.rgb(24, 16)
    assert small.shape == (16, 24, 3)
    blocks = frame.rgb().reshape(16, 4, 24, 4, 3).mean((1, 3))
    luma = np.array([0.299, 0.587, 0.114])
    assert np.abs((small - blocks) @ luma).mean() < 2  # colour is stored at half the resolution
    with pytest.raises(ValueError, match="width must be at least 1 pixel, got 0"):
        frame.rgb(0, 16)


@pytest.mark.parametrize(
    ("name", "codec"), [("x.mkv", "libx264"), ("x.avi", "mpeg4"), ("x.ts", "libx264"), ("x.webm", "libvpx")]
)
def test_other_containers_and_codecs(tmp_path, pictures, name, codec):
    path = clip.encode(pictures, tmp_path / name, codec=codec, options={} if codec != "libvpx" else {"cpu-used": "8"})
    assert [index for index, _, _ in consume(path)] == list(range(48))


def test_stream_that_does_not_start_at_zero(tmp_path, small_video):
    path = remux(small_video, tmp_path / "late.mkv", shift=12800 * 7)
    frames = list(video.sample(video.decode(path), 5))
    assert [f.index for f in frames] == list(range(0, 48, 2))
    assert frames[0].time_s > 1


def test_frames_come_as_asked_for(small_video):
    stream = video.decode(small_video)
    first = list(islice(stream, 3))
    assert [f.index for f in first] == [0, 1, 2]
    assert next(stream).index == 3
    stream.close()


@pytest.mark.parametrize("fps", [1, 2, 2.5, 3, Fraction(10, 3), 10, 1000, None])
def test_sample_takes_the_first_frame_of_each_period(small_video, fps):
    frames = list(video.decode(small_video))
    got = [f.index for f in video.sample(frames, fps)]
    if fps is None or fps >= 10:
        assert got == list(range(48))
        return
    periods = [int(Fraction(i, 10) * Fraction(fps)) for i in range(48)]
    want = [i for i in range(48) if i == 0 or periods[i] > max(periods[:i])]
    assert got == want
    assert all(b > a for a, b in pairwise(got))


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_sample_rejects_impossible_rates(fps):
    with pytest.raises(ValueError, match="fps must be a positive number or None"):
        video.sample([], fps)


def reject(path, message):
    with pytest.raises(VideoError, match=message) as caught:
        consume(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_missing_file_and_directory(tmp_path):
    reject(tmp_path / "none.mp4", "no such file")
    reject(tmp_path, "is a directory")
    with pytest.raises(VideoError, match="no such file"):  # at the call, not at the first frame
        video.decode(tmp_path / "none.mp4")


@pytest.mark.parametrize(
    "content", [b"", b"just text\n" * 100, bytes(range(256)) * 40], ids=["empty", "text", "binary"]
)
@pytest.mark.parametrize("name", ["x.mp4", "x.avi", "x.mkv"])
def test_not_a_video(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    reject(path, "empty file" if not content else "not a whole video|holds no video stream")


def test_text_file_is_not_terminal_art(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello\n" * 50)
    reject(path, "holds no video stream|not a whole video")


def test_sound_only(tmp_path):
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    reject(path, "holds no video stream")


def test_video_without_frames(tmp_path):
    path = tmp_path / "none.avi"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        out.start_encoding()
    reject(path, "holds no frames|not a whole video")


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["plain.mp4", "faststart.mp4", "fragmented.mp4", "x.mkv", "x.avi"])
def test_truncated_video(tmp_path, pictures, small_video, kind, keep):
    complete = tmp_path / f"complete-{kind}"
    if kind == "x.avi":
        clip.encode(pictures, complete, codec="mpeg4")
    else:
        flags = {"faststart.mp4": "+faststart", "fragmented.mp4": "frag_keyframe+empty_moov"}.get(kind)
        remux(small_video, complete, options={"movflags": flags} if flags else None)
    assert len(consume(complete)) == 48
    truncated = tmp_path / kind
    content = complete.read_bytes()
    truncated.write_bytes(content[: int(len(content) * keep)])
    reject(truncated, "truncated|not a whole video")


def test_damaged_video(tmp_path, small_video, rng):
    """Zeros in the middle of the pictures raise an error."""
    content = bytearray(small_video.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(content)
    reject(path, "truncated or damaged")


def test_a_video_with_sound(tmp_path, pictures):
    """The sound is ignored; a video ends with its last picture."""
    path = tmp_path / "film.mkv"
    with av.open(str(path), "w") as out:
        film, sound = out.add_stream("libx264", rate=10), out.add_stream("pcm_s16le", rate=8000, layout="mono")
        film.width, film.height, film.pix_fmt = 96, 64, "yuv420p"
        for picture in pictures[:10]:
            out.mux(film.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            beat = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
            beat.sample_rate = 8000
            out.mux(sound.encode(beat))
        out.mux(film.encode(None))
        out.mux(sound.encode(None))
    assert [index for index, _, _ in consume(path)] == list(range(10))


def test_a_file_that_may_not_be_read(small_video, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError

    monkeypatch.setattr(video.av, "open", refuse)
    reject(small_video, "not readable .permission denied.")


def test_pictures_without_a_size(small_video, monkeypatch):
    closed = []
    codec = SimpleNamespace(width=0, height=64)
    streams = SimpleNamespace(video=[SimpleNamespace(disposition=av.stream.Disposition(0), codec_context=codec)])
    container = SimpleNamespace(streams=streams, format=SimpleNamespace(name="mp4"), close=lambda: closed.append(1))
    monkeypatch.setattr(video.av, "open", lambda *arguments, **options: container)
    reject(small_video, "has a damaged header: pictures have no size")
    assert closed
