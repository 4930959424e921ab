"""One-pass video decoding through FFmpeg, with the motion vectors of the codec.

`decode` yields every frame in presentation order, one at a time; `sample` reduces such a stream to a frame rate. Pixels
are converted only when `Frame.rgb` is called, vectors only when `Frame.motion` is called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Protocol, TypeVar

import av
import av.container
import av.video.stream
import numpy as np

# AVMotionVector of libavutil; `dst` is the block's centre, the displacement is motion / motion_scale pixels
MOTION_DTYPE = np.dtype(
    [("source", "<i4"), ("w", "u1"), ("h", "u1")]
    + [(name, "<i2") for name in ("src_x", "src_y", "dst_x", "dst_y")]
    + [("flags", "<u8"), ("motion_x", "<i4"), ("motion_y", "<i4"), ("motion_scale", "<u2")],
    align=True,
)
EXPORT_MVS = 1 << 28  # AV_CODEC_FLAG2_EXPORT_MVS
KINDS = {1: "I", 2: "P", 3: "B"}


class VideoError(ValueError):
    """Video that cannot be used completely. The message is one line and names the file."""

    def __init__(self, path: Path | str, problem: str):
        super().__init__(f"video {str(path)!r}: {problem}")


@dataclass(frozen=True)
class VideoInfo:
    """Header of a video file, read without decoding.

    `frame_rate` is the average in frames per second; `n_frames` and `duration_s` are None if the container does not
    state them.
    """

    path: Path
    container: str
    codec: str
    width: int
    height: int
    frame_rate: Fraction
    time_base: Fraction
    n_frames: int | None
    duration_s: float | None


@dataclass(frozen=True)
class Frame:
    """One decoded frame: index, time stamp and, on request, pixels and motion vectors.

    index  number in presentation order, from 0
    pts    presentation time stamp in units of `time_base`
    kind   "I", "P" or "B" ("?" for other picture types)
    """

    index: int
    pts: int
    time_base: Fraction
    kind: str
    image: av.VideoFrame

    @property
    def time_s(self) -> float:
        """Presentation time in seconds, as the file counts it (a stream need not start at 0)."""
        return float(self.pts * self.time_base)

    @property
    def motion(self) -> np.ndarray:
        """Motion vectors as FFmpeg exports them, dtype `MOTION_DTYPE`; empty for intra frames."""
        vectors = self.image.side_data.get("MOTION_VECTORS")
        if vectors is None:
            return np.empty(0, MOTION_DTYPE)
        return vectors.to_ndarray().astype(MOTION_DTYPE)

    def rgb(self, width: int | None = None, height: int | None = None) -> np.ndarray:
        """Pixels as `uint8 (height, width, 3)`, area-averaged to the given size (default: coded size).

        The array is a view of FFmpeg's picture: its rows can be padded.
        """
        for name, value in (("width", width), ("height", height)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 pixel, got {value}")
        image = self.image.reformat(width=width, height=height, format="rgb24", interpolation="AREA")
        plane = image.planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
        return rows[:, : 3 * plane.width].reshape(plane.height, plane.width, 3)


def open_video(path: Path) -> tuple[av.container.InputContainer, av.video.stream.VideoStream]:
    """Container and its first video stream, ready to decode. Raises `VideoError` if there is none."""
    if path.is_dir():
        raise VideoError(path, "is a directory, not a video file")
    try:
        container = av.open(str(path), metadata_errors="replace")  # a title need not be UTF-8
    except FileNotFoundError:
        raise VideoError(path, "no such file") from None
    except PermissionError:
        raise VideoError(path, "not readable (permission denied)") from None
    except (av.FFmpegError, OSError) as error:
        reason = "empty file" if path.is_file() and path.stat().st_size == 0 else _reason(error)
        raise VideoError(path, f"not a whole video that FFmpeg can read ({reason})") from None
    # FFmpeg reads any *.txt as terminal art; cover pictures in sound files are video streams to it
    streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
    if container.format.name == "tty" or not streams:
        container.close()
        raise VideoError(path, "holds no video stream")
    stream = streams[0]
    if stream.codec_context is None:
        container.close()
        raise VideoError(path, "holds video in a codec that FFmpeg cannot decode")
    if stream.codec_context.width < 1 or stream.codec_context.height < 1:
        container.close()
        raise VideoError(path, "has a damaged header: pictures have no size")
    return container, stream


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _rate(stream: av.video.stream.VideoStream) -> Fraction:
    return stream.average_rate or stream.guessed_rate or Fraction(25)


def _declared_s(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return None if container.duration is None else container.duration / av.time_base


def probe(path: Path | str) -> VideoInfo:
    """Header of a video. Raises `VideoError` when the file cannot be opened or holds no video."""
    path = Path(path)
    container, stream = open_video(path)
    with container:
        context = stream.codec_context
        return VideoInfo(
            path,
            container.format.name,
            context.name,
            context.width,
            context.height,
            _rate(stream),
            stream.time_base or 1 / _rate(stream),
            stream.frames or None,
            _declared_s(container, stream),
        )


def decode(path: Path | str) -> Iterator[Frame]:
    """Yield every frame of a video in presentation order, decoded in one pass; one frame is in memory at a time.

    Raises `VideoError` at once if the file cannot be opened, and from the iterator if the video is damaged, ends before
    its declared end, or has no frame. (An MPEG transport stream declares no end; only damage is detected there.)
    """
    path = Path(path)
    container, stream = open_video(path)
    return _frames(path, container, stream)


def _frames(path: Path, container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> Iterator[Frame]:
    time_base = stream.time_base or 1 / _rate(stream)
    stream.codec_context.flags2 |= EXPORT_MVS
    length = Length(path, container, stream)
    index = 0
    with container:
        try:
            for packet in container.demux():
                length.add(packet)
                if packet.stream is not stream:
                    continue
                for image in packet.decode():
                    assert isinstance(image, av.VideoFrame)
                    if image.is_corrupt:
                        raise VideoError(path, f"truncated or damaged in frame {index}")
                    pts = image.pts if image.pts is not None else round(index / _rate(stream) / time_base)
                    yield Frame(index, pts, time_base, KINDS.get(int(image.pict_type), "?"), image)
                    index += 1
        except (av.FFmpegError, OSError) as error:
            raise VideoError(path, f"truncated or damaged after frame {index - 1} ({_reason(error)})") from None
        length.check(index)


class Length:
    """Compares the length of a video by its packets with the length that the header declares."""

    def __init__(self, path: Path, container: av.container.InputContainer, stream: av.video.stream.VideoStream):
        self._path, self._container, self._stream = path, container, stream
        self._declared_s = _declared_s(container, stream)
        self._packets = 0
        self._start_s, self._end_s = math.inf, -math.inf

    def add(self, packet: av.Packet) -> None:
        """Count a packet of any stream. Raises `VideoError` for a damaged packet of the video."""
        stamp = packet.pts if packet.pts is not None else packet.dts
        is_video_packet = packet.stream is self._stream
        if packet.size and stamp is not None and (is_video_packet or self._stream.duration is None):
            base = float(packet.time_base)
            self._start_s = min(self._start_s, stamp * base)
            self._end_s = max(self._end_s, (stamp + (packet.duration or 0)) * base)
        if is_video_packet:
            self._packets += packet.size > 0
            if packet.is_corrupt:
                raise VideoError(self._path, f"truncated or damaged in packet {self._packets - 1}")

    def check(self, frames: int) -> None:
        """Raise `VideoError` unless the counted packets, which hold `frames` frames, are the whole video."""
        stream, declared_s = self._stream, self._declared_s
        slack_s = 2 / float(_rate(stream))
        # a stream's duration counts from its first frame, a Matroska segment's from time zero
        length_s = self._end_s - (self._start_s if stream.duration is not None else min(self._start_s, 0))
        short = declared_s is not None and frames > 0 and length_s < declared_s - slack_s
        # an MP4 edit list may leave out packets on purpose; elsewhere the header's count must be there
        if short or ("mov" not in self._container.format.name and self._packets < stream.frames):
            expected_length = f"{stream.frames} frames" if stream.frames else f"{declared_s:.2f} s"
            raise VideoError(self._path, f"truncated: ends after {frames} frames, header declares {expected_length}")
        if frames == 0:
            raise VideoError(self._path, "holds no frames")


class Stamped(Protocol):
    """Frame attributes that `sample` needs."""

    @property
    def pts(self) -> int: ...

    @property
    def time_base(self) -> Fraction: ...


S = TypeVar("S", bound=Stamped)


def sample(frames: Iterable[S], fps: float | Fraction | None) -> Iterator[S]:
    """Reduce a stream to `fps` frames per second: the first frame of each period of 1/fps since the start.

    `None` passes every frame. Exact in rational arithmetic. A rate above that of the video passes every frame.
    """
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise ValueError(f"fps must be a positive number or None, got {fps}")
    return _sample(frames, fps)


def _sample(frames: Iterable[S], fps: float | Fraction | None) -> Iterator[S]:
    rate = None if fps is None else Fraction(fps).limit_denominator(1_000_000)
    first: int | None = None
    next_time = 0
    for frame in frames:
        if rate is None:
            yield frame
            continue
        first = frame.pts if first is None else first
        slot = math.floor((frame.pts - first) * frame.time_base * rate)
        if slot >= next_time:
            next_time = slot + 1
            yield frame
