"""Decoding of a plan: in this process, in several, or in one plain pass."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

import av
import av.container

from sw_model.media import video
from sw_model.media.quickcodec.plan import Plan, Run
from sw_model.media.quickcodec.target import Target, Write
from sw_model.media.video import VideoError

_DONE, _IRREGULAR = "done", "irregular"  # how a decoding process ends


class _Irregular(Exception):
    """The stream did not yield the frames that its packets announced."""


def write_frames(plan: Plan, target: Target, consumed: bool = False) -> Iterator[int]:
    """Write every requested frame to the target; yields each slot once, when it is written.

    A stream that turns out to be irregular is decoded again in one pass. With `consumed`, the caller uses frames while
    others are decoded: such a stream is a `VideoError` then, and all decoding is done by processes of their own.
    """
    written: set[int] = set()
    if plan.runs:
        try:
            for slot in _parallel(plan, target) if consumed or len(plan.runs) > 1 else _in_process(plan, target):
                written.add(slot)
                yield slot
            return
        except _Irregular:
            if consumed:
                raise VideoError(plan.path, "is irregular: it can only be decoded in one pass") from None
    for slot in _sequential(plan, target):
        if slot not in written:
            yield slot


def _in_process(plan: Plan, target: Target) -> Iterator[int]:
    with target.open_writer() as write:
        yield from _decode_runs(plan.path, plan.runs[0], (plan.width, plan.height), 0, write)


def _sequential(plan: Plan, target: Target) -> Iterator[int]:
    """Decode the stream in one pass; frames are identified by their index, not by their stamps."""
    slots = {rank: slot for slot, rank in enumerate(plan.ranks)}
    count = 0
    with target.open_writer() as write:
        for frame in video.decode(plan.path):
            count += 1
            if frame.index in slots:
                write(slots[frame.index], frame.rgb(plan.width, plan.height))
                yield slots[frame.index]
    if count != plan.frames:
        raise VideoError(plan.path, f"damaged: {plan.frames} frames announced, {count} decoded")


def _decode_runs(path: Path, runs: Sequence[Run], size: tuple[int, int], threads: int, write: Write) -> Iterator[int]:
    """Decode the runs and write their frames; yields the slots. Raises `_Irregular` if a frame is missing."""
    container, stream = video.open_video(path)
    time_base = stream.time_base or Fraction(1)
    try:
        with container:
            stream.codec_context.thread_count = threads
            for run in runs:
                images = _images(container, stream, run.seek)
                for pts, slot in run.wanted:
                    frame_pts, image = next((item for item in images if item[0] >= pts), (None, None))
                    if image is None or frame_pts != pts:
                        raise _Irregular
                    write(slot, video.Frame(0, pts, time_base, "?", image).rgb(*size))
                    yield slot
    except av.FFmpegError:
        raise _Irregular from None


def _images(
    container: av.container.InputContainer, stream: av.VideoStream, seek: tuple[int, ...]
) -> Iterator[tuple[int, av.VideoFrame]]:
    """Stamps and pictures from a keyframe on; raises `_Irregular` unless the stamps ascend."""
    first = seek[0] if seek else -math.inf
    last = -math.inf
    for packet in _packets(container, stream, seek):
        for image in packet.decode():
            assert isinstance(image, av.VideoFrame)
            if image.pts is not None and image.pts < first:
                continue  # a leading picture of an open group, whose references lie before the keyframe
            if image.pts is None or image.pts <= last or image.is_corrupt:
                raise _Irregular
            last = image.pts
            yield image.pts, image


def _packets(
    container: av.container.InputContainer, stream: av.VideoStream, seek: tuple[int, ...]
) -> Iterator[av.Packet]:
    """Packets from the keyframe `seek[0]`, or from one before it; from the start if there is none to seek."""
    if not seek:
        yield from container.demux(stream)
        return
    for target in seek:
        container.seek(target, stream=stream)
        packets = container.demux(stream)
        key = next((packet for packet in packets if packet.is_keyframe and packet.size), None)
        if key is not None and key.pts is not None and key.pts <= seek[0]:
            yield key
            yield from packets
            return
    raise _Irregular


def _parallel(plan: Plan, target: Target) -> Iterator[int]:
    """Decode each entry of the plan's runs in a process; yields slots as they are written and ends all processes."""
    context = get_context("spawn")
    running: dict[connection.Connection, SpawnProcess] = {}
    try:
        for runs in plan.runs:
            parent_end, child_end = context.Pipe(duplex=False)
            job = (plan.path, runs, (plan.width, plan.height), target, child_end)
            running[parent_end] = context.Process(target=_run_worker, args=job, daemon=True)
            running[parent_end].start()
            child_end.close()  # so that the pipe ends when the process does
        while running:
            for ready in connection.wait(list(running)):
                assert isinstance(ready, connection.Connection)
                yield from _receive(ready, running)
    finally:
        for pipe, process in running.items():
            if process.pid is not None:
                process.kill()
                process.join()
            pipe.close()


def _receive(pipe: connection.Connection, running: dict[connection.Connection, SpawnProcess]) -> Iterator[int]:
    try:
        message = pipe.recv()
    except EOFError:
        process = running[pipe]
        process.join()
        raise ChildProcessError(f"decoding process {process.pid} ended early, exit code {process.exitcode}") from None
    if isinstance(message, int):
        yield message
    elif isinstance(message, OSError):
        raise message
    elif message == _IRREGULAR:
        raise _Irregular
    else:
        running.pop(pipe).join()
        pipe.close()


def _run_worker(
    path: Path, runs: tuple[Run, ...], size: tuple[int, int], target: Target, pipe: connection.Connection
) -> None:
    """Entry point of a decoding process: decode the runs and send a message per frame and at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    try:
        with target.open_writer() as write:
            for slot in _decode_runs(path, runs, size, 1, write):
                pipe.send(slot)
        end: object = _DONE
    except (_Irregular, VideoError):
        end = _IRREGULAR
    except BrokenPipeError:
        return  # the parent is gone
    except OSError as error:
        end = OSError(error.errno, str(error))
    with suppress(BrokenPipeError):
        pipe.send(end)
