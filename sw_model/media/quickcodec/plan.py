"""Which frames of a video to decode, and which process decodes them."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from golden import quickvideo
from sw_model.media import video
from sw_model.media.video import VideoError

INTERVALS_PER_WORKER = 4  # to even out easy and hard scenes; each costs a seek and the pictures a decoder holds back


@dataclass(frozen=True)
class Run:
    """Frames of one pass: decode from the first keyframe of `seek` until the last of `wanted`.

    `seek` is empty for the start of the file; the keyframes behind its first one are tried when a container's index
    leads past it.
    """

    seek: tuple[int, ...]
    wanted: tuple[tuple[int, int], ...]  # time stamp and slot, ascending


@dataclass(frozen=True)
class _Stamp:
    pts: int
    time_base: Fraction


@dataclass(frozen=True)
class Plan:
    """What to decode: `stamps` of the wanted frames, `ranks` of them in the stream, and the runs of each worker."""

    path: Path
    time_base: Fraction
    width: int
    height: int
    stamps: tuple[int, ...]
    ranks: tuple[int, ...]
    frames: int  # in the stream
    runs: tuple[tuple[Run, ...], ...]  # empty when the stream cannot be cut

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.stamps), self.height, self.width, 3)

    @classmethod
    def make(
        cls,
        path: Path,
        fps: float | Fraction | None,
        times_s: Sequence[float] | None,
        size: tuple[int, int] | None,
        workers: int | None,
        intervals: int | None,
        per_worker: int = INTERVALS_PER_WORKER,
    ) -> Plan:
        if fps is not None and times_s is not None:
            raise ValueError(f"fps and times_s exclude each other, got fps {fps} and {len(times_s)} times")
        for name, value in (("workers", workers), ("intervals", intervals)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"size must be (width, height), both at least 1, got {size}")
        workers = workers or _cores()
        intervals = intervals or (per_worker * workers if workers > 1 else 1)
        info, stamps, stream = _scan(path)
        frames_wanted = _select(stamps, info.time_base, fps, times_s)
        ranks = {pts: rank for rank, pts in enumerate(stamps)}
        chosen = tuple(pts for pts, _ in frames_wanted)
        runs = _assign(stream, frames_wanted, workers, intervals) if stream else ()
        width, height = size or (info.width, info.height)
        return cls(path, info.time_base, width, height, chosen, tuple(ranks[pts] for pts in chosen), len(stamps), runs)


def _scan(path: Path) -> tuple[video.VideoInfo, Sequence[int], quickvideo.Scan | None]:
    """Header, stamps of all frames in presentation order, and the scan (None if the stream cannot be cut)."""
    info = video.probe(path)
    container, stream = video.open_video(path)
    packets: list[tuple[int | None, bool]] = []
    length = video.Length(path, container, stream)
    with container:
        try:
            for packet in container.demux():
                length.add(packet)
                if packet.stream is stream and packet.size and not packet.is_discard:
                    packets.append((packet.pts, packet.is_keyframe))
        except (av.FFmpegError, OSError) as error:
            raise VideoError(path, f"truncated or damaged after packet {len(packets) - 1} ({error})") from None
        length.check(len(packets))
    # frames before the first keyframe may not decode, so only decoding shows which frames exist
    if packets[0][1] and all(pts is not None for pts, _ in packets):
        try:
            scan = quickvideo.scan(packets)
            return info, scan.stamps, scan
        except ValueError:
            pass  # repeated stamps
    return info, [frame.pts for frame in video.decode(path)], None


def _select(
    stamps: Sequence[int],
    time_base: Fraction,
    fps: float | Fraction | None,
    times_s: Sequence[float] | None,
) -> list[tuple[int, int]]:
    """Wanted stamps with their slots, ascending."""
    if times_s is None:
        sampled_stamps = [s.pts for s in video.sample((_Stamp(pts, time_base) for pts in stamps), fps)]
    else:
        times = np.asarray(times_s, np.float64)
        if times.ndim != 1 or len(times) == 0 or not np.isfinite(times).all():
            raise ValueError(f"times_s must be a list of finite seconds, at least one, got {times_s}")
        starts = np.array([float(pts * time_base) for pts in stamps])
        frame_index = np.searchsorted(starts, times, side="right") - 1
        sampled_stamps = [stamps[i] for i in np.unique(np.maximum(frame_index, 0))]
    return [(pts, slot) for slot, pts in enumerate(sampled_stamps)]


def _assign(
    stream: quickvideo.Scan, frames_wanted: list[tuple[int, int]], workers: int, intervals: int
) -> tuple[tuple[Run, ...], ...]:
    """Cut the wanted frames at keyframe intervals; each goes to the worker that has the fewest frames so far.

    The published scheduler deals the intervals in turn, which is the same when all are equally long.
    """
    slots = dict(frames_wanted)
    cut = quickvideo.intervals(stream, min(intervals, len(stream.stamps)))
    workers = min(workers, len(cut))
    runs_by_worker: list[list[Run]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for interval in range(len(cut)):
        interval_frames = [(pts, slots[pts]) for pts in quickvideo.members(stream, cut, interval) if pts in slots]
        if interval_frames:
            least_loaded = loads.index(min(loads))
            runs_by_worker[least_loaded] += _runs(stream, interval_frames)
            loads[least_loaded] += len(interval_frames)
    return tuple(tuple(runs) for runs in runs_by_worker if runs)


def _runs(stream: quickvideo.Scan, frames_wanted: list[tuple[int, int]]) -> list[Run]:
    """Split an interval's frames where no frame of a group of pictures between two of them is requested."""
    order = {pts: i for i, pts in enumerate(stream.keyframes)}
    runs: list[list[tuple[int, int]]] = []
    previous_key = None
    for pts, slot in frames_wanted:
        group = order[quickvideo.seek_target(stream, pts)]
        if previous_key is None or group > previous_key + 1:
            runs.append([])
        runs[-1].append((pts, slot))
        previous_key = group
    return [Run(_seeks(stream, run[0][0]), tuple(run)) for run in runs]


def _seeks(stream: quickvideo.Scan, pts: int) -> tuple[int, ...]:
    """Keyframes to seek to for the frame stamped `pts`: the last one up to it and two before; none for the start."""
    keyframe_index = bisect_right(stream.keyframes, pts)
    return stream.keyframes[max(0, keyframe_index - 3) : keyframe_index][::-1] if keyframe_index > 1 else ()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
