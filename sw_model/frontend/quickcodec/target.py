"""Places for decoded frames, which several processes write to at once."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from sw_model.frontend.quickcodec.plan import Plan

_SHARED = Path("/dev/shm")  # where Linux shows shared memory as files
Write = Callable[[int, np.ndarray], None]  # slot, frame


class Target(Protocol):
    """A place for frames, opened by each process that writes to it."""

    def opened(self) -> AbstractContextManager[Write]: ...


class SharedFrames:
    """Shared memory for frames of the given shape; gone, whatever happens, when its context ends."""

    def __init__(self, shape: tuple[int, ...]):
        size = int(np.prod(shape))
        if _SHARED.exists() and (free := shutil.disk_usage(_SHARED).free) < size:
            raise OSError(errno.ENOSPC, f"the frames need {size} bytes of shared memory, {free} are free")
        self._shape = shape
        self._memory = shared_memory.SharedMemory(create=True, size=size)
        self.target = SharedTarget(self._memory.name, shape)

    def __enter__(self) -> SharedFrames:
        return self

    def __exit__(self, *error: object) -> None:
        self._memory.close()
        self._memory.unlink()

    def copy(self, start: int, stop: int) -> np.ndarray:
        """A copy of some frames. (A view would keep the memory from being closed.)"""
        return np.ndarray(self._shape, np.uint8, self._memory.buf)[start:stop].copy()

    def keep(self) -> np.ndarray:
        """All frames, in memory that goes when the array goes: the shared pages themselves where that can be."""
        path = _SHARED / self._memory.name
        if not path.exists():
            return self.copy(0, self._shape[0])
        return np.asarray(np.memmap(path, np.uint8, "r+", 0, self._shape))


@dataclass(frozen=True)
class SharedTarget:
    """Shared memory, by its name."""

    name: str
    shape: tuple[int, ...]

    @contextmanager
    def opened(self) -> Iterator[Write]:
        memory = shared_memory.SharedMemory(self.name)

        def write(slot: int, frame: np.ndarray) -> None:
            np.ndarray(self.shape, np.uint8, memory.buf)[slot] = frame

        try:
            yield write
        finally:
            memory.close()


@dataclass(frozen=True)
class FileTarget:
    """A file of raw frames from `offset` on."""

    path: Path
    offset: int
    shape: tuple[int, ...]

    @contextmanager
    def opened(self) -> Iterator[Write]:
        frames = np.memmap(self.path, np.uint8, "r+", self.offset, self.shape)
        yield frames.__setitem__
        frames.flush()


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
    """A new folder for pictures, with a list of which frames they will be."""
    folder.mkdir()
    rows = [
        {"file": _png_name(slot), "index": rank, "pts": pts, "time_s": float(pts * plan.time_base)}
        for slot, (rank, pts) in enumerate(zip(plan.ranks, plan.stamps, strict=True))
    ]
    about = {"video": plan.path.name, "width": plan.width, "height": plan.height, "frames": rows}
    (folder / "frames.json").write_text(json.dumps(about, indent=1) + "\n")
    return PngTarget(folder)
