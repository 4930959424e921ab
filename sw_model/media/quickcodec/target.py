"""Targets of decoded frames: shared memory, files and folders that several processes write at once."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from sw_model.media.quickcodec.plan import Plan

Write = Callable[[int, np.ndarray], None]  # slot, frame


class Target(Protocol):
    """A target of frames. Each process that writes frames opens it."""

    def opened(self) -> AbstractContextManager[Write]: ...


def free_memory_bytes() -> int:
    """Memory that is available without swapping, as Linux reports it."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].removesuffix("kB")) * 1024


class SharedFrames:
    """Memory for frames of shape `shape` that other processes write like a file.

    It has no name, so the system frees it when the last process that has it open ends. Writing to it costs half of
    writing to a new mapping, whose pages are cleared first.
    """

    def __init__(self, shape: tuple[int, ...]):
        size = int(np.prod(shape))
        if (free := free_memory_bytes()) < size:
            raise OSError(errno.ENOMEM, f"the frames need {size} bytes of memory, {free} are free")
        self._shape = shape
        self._file = os.memfd_create("frames")
        os.truncate(self._file, size)
        self.target = FileTarget(Path(f"/proc/{os.getpid()}/fd/{self._file}"), 0, shape)

    def __enter__(self) -> SharedFrames:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def frames(self) -> np.ndarray:
        """All frames, uint8; the array stays valid when the context has ended."""
        return np.asarray(np.memmap(self.target.path, np.uint8, "r+", 0, self._shape))


@dataclass(frozen=True)
class FileTarget:
    """A file of raw frames from `offset` on."""

    path: Path
    offset: int
    shape: tuple[int, ...]

    @contextmanager
    def opened(self) -> Iterator[Write]:
        file = os.open(self.path, os.O_WRONLY)

        def write(slot: int, frame: np.ndarray) -> None:
            remaining_bytes = np.ascontiguousarray(frame).data.cast("B")
            at = self.offset + slot * len(remaining_bytes)
            while remaining_bytes:
                written = os.pwrite(file, remaining_bytes, at)
                remaining_bytes, at = remaining_bytes[written:], at + written

        try:
            yield write
            os.fsync(file)
        finally:
            os.close(file)


@dataclass(frozen=True)
class PngTarget:
    """A folder of numbered pictures."""

    folder: Path

    @contextmanager
    def opened(self) -> Iterator[Write]:
        def write(slot: int, frame: np.ndarray) -> None:
            Image.fromarray(frame).save(self.folder / _png_name(slot), compress_level=1)

        yield write


def _png_name(slot: int) -> str:
    return f"frame-{slot:06d}.png"


def frame_file(plan: Plan, path: Path, header: bool) -> FileTarget:
    """A new file for raw frames, behind a NumPy header or bare. OSError if the disk has no room for all of them."""
    with path.open("wb") as file:
        if header:
            form = {"descr": "|u1", "fortran_order": False, "shape": plan.shape}
            np.lib.format.write_array_header_1_0(file, form)
        file.flush()
        offset, size = file.tell(), int(np.prod(plan.shape))
        file.truncate(offset + size)
        if hasattr(os, "posix_fallocate"):  # a mapping that finds the disk full would kill its process
            try:
                os.posix_fallocate(file.fileno(), offset, size)
            except OSError as error:
                free = shutil.disk_usage(path.parent).free
                raise OSError(error.errno, f"the frames need {size} bytes of disk, {free} are free") from None
    return FileTarget(path, offset, plan.shape)


def png_folder(plan: Plan, folder: Path) -> PngTarget:
    """A new folder for pictures, with a list of their frames."""
    folder.mkdir()
    rows = [
        {"file": _png_name(slot), "index": rank, "pts": pts, "time_s": float(pts * plan.time_base)}
        for slot, (rank, pts) in enumerate(zip(plan.ranks, plan.stamps, strict=True))
    ]
    array_header = {"video": plan.path.name, "width": plan.width, "height": plan.height, "frames": rows}
    (folder / "frames.json").write_text(json.dumps(array_header, indent=1) + "\n")
    return PngTarget(folder)
