"""Destinations for decoded frames. Several processes can write to one destination at the same time."""

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

Write = Callable[[int, np.ndarray], None]  # writes a frame into a slot: its number among the frames of the plan


class Target(Protocol):
    """Destination for frames. Each process that writes to it opens it."""

    def open_writer(self) -> AbstractContextManager[Write]: ...


def free_memory_bytes() -> int:
    """Memory in bytes that can be allocated without swapping: `MemAvailable` of Linux."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].removesuffix("kB")) * 1024


class SharedFrames:
    """Shared memory for an array of frames. Other processes write to it through a file path.

    It is an anonymous file (memfd) of Linux. Linux frees it when no process has it open or mapped, even after a crash.
    The kernel does not clear a page that a write fills completely, which saves time compared with a new mapping.

    Other processes can open the path, and `frames` can be called, only inside the `with` block.
    """

    def __init__(self, shape: tuple[int, ...]):
        size = int(np.prod(shape))
        if (free := free_memory_bytes()) < size:
            raise OSError(errno.ENOMEM, f"free memory must be at least {size} bytes for the frames, got {free}")
        self._shape = shape
        self._file = os.memfd_create("frames")
        os.truncate(self._file, size)
        # the file has no name: other processes open it through the descriptor of this process
        self.target = FileTarget(Path(f"/proc/{os.getpid()}/fd/{self._file}"), 0, shape)

    def __enter__(self) -> SharedFrames:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def frames(self) -> np.ndarray:
        """All frames, uint8. The array can still be used after the `with` block."""
        return np.asarray(np.memmap(self.target.path, np.uint8, "r+", 0, self._shape))


@dataclass(frozen=True)
class FileTarget:
    """File whose frames start at byte `offset`, without gaps."""

    path: Path
    offset: int
    shape: tuple[int, ...]

    @contextmanager
    def open_writer(self) -> Iterator[Write]:
        file = os.open(self.path, os.O_WRONLY)

        def write(slot: int, frame: np.ndarray) -> None:
            remaining_bytes = np.ascontiguousarray(frame).data.cast("B")
            position = self.offset + slot * len(remaining_bytes)
            while remaining_bytes:
                written = os.pwrite(file, remaining_bytes, position)
                remaining_bytes, position = remaining_bytes[written:], position + written

        try:
            yield write
            os.fsync(file)
        finally:
            os.close(file)


@dataclass(frozen=True)
class PngTarget:
    """Folder of PNG pictures with the slot in the file name."""

    folder: Path

    @contextmanager
    def open_writer(self) -> Iterator[Write]:
        def write(slot: int, frame: np.ndarray) -> None:
            Image.fromarray(frame).save(self.folder / _png_name(slot), compress_level=1)

        yield write


def _png_name(slot: int) -> str:
    return f"frame-{slot:06d}.png"


def frame_file(plan: Plan, path: Path, header: bool) -> FileTarget:
    """Create a file for all frames of the plan, or replace it: .npy if `header` is True, else raw bytes.

    Raises OSError if the disk has too little space for all frames.
    """
    with path.open("wb") as file:
        if header:
            array_header = {"descr": "|u1", "fortran_order": False, "shape": plan.shape}
            np.lib.format.write_array_header_1_0(file, array_header)
        file.flush()
        offset, size = file.tell(), int(np.prod(plan.shape))
        file.truncate(offset + size)
        _reserve(file.fileno(), offset, size, path)
    return FileTarget(path, offset, plan.shape)


def _reserve(file: int, offset: int, size: int, path: Path) -> None:
    """Reserve the bytes on the disk, so that a full disk is an error before the first frame is decoded.

    Does nothing if the system or the file system cannot reserve space.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file, offset, size)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return
        if error.errno != errno.ENOSPC:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            errno.ENOSPC, f"free disk space must be at least {size} bytes for the frames, got {free}"
        ) from None


def png_folder(plan: Plan, folder: Path) -> PngTarget:
    """Create a folder for PNG pictures and its `frames.json`: file name, frame index and time of each picture.

    Raises FileExistsError if the folder exists.
    """
    folder.mkdir()
    rows = [
        {"file": _png_name(slot), "index": rank, "pts": pts, "time_s": float(pts * plan.time_base)}
        for slot, (rank, pts) in enumerate(zip(plan.ranks, plan.stamps, strict=True))
    ]
    index = {"video": plan.path.name, "width": plan.width, "height": plan.height, "frames": rows}
    (folder / "frames.json").write_text(json.dumps(index, indent=1) + "\n")
    return PngTarget(folder)
