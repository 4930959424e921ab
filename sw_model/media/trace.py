"""Traces of queries, keys and values on disk: one safetensors file, written and read chunk by chunk.

Tensors `<chunk>.q`, `.k`, `.v` (layers, tokens, heads, d) in BF16, Q and K after RoPE, and `<chunk>.positions`
in I64; chunk numbers have eight digits. The file's metadata holds the geometry, the stage of every chunk and
where the trace comes from, as JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import safetensors

from sw_model.media.stream import BF16, STAGES, Chunk, Geometry

FORMAT, VERSION = "vrex-trace", "1"
PARTS = ("q", "k", "v", "positions")
KINDS = {"q": "BF16", "k": "BF16", "v": "BF16", "positions": "I64"}


class TraceError(ValueError):
    """A file that is no whole trace; the message is one line and names it."""

    def __init__(self, path: Path | str, problem: str):
        super().__init__(f"trace {str(path)!r}: {problem}")


def _name(chunk: int, part: str) -> str:
    return f"{chunk:08d}.{part}"


def _shapes(geometry: Geometry, tokens: int) -> dict[str, tuple[int, ...]]:
    keys = (geometry.layers, tokens, geometry.kv_heads, geometry.head_dim)
    return {
        "q": (geometry.layers, tokens, geometry.q_heads, geometry.head_dim),
        "k": keys,
        "v": keys,
        "positions": (tokens,),
    }


class TraceWriter:
    """Writes chunks as they come; the file appears whole when the `with` block ends without an error.

    Only the table of contents is kept in memory. Tensors go to a file aside first, because a safetensors file
    starts with its contents.
    """

    def __init__(self, path: Path | str, geometry: Geometry, source: Mapping[str, Any]):
        self.path, self.geometry, self.source = Path(path), geometry, dict(source)
        self._contents: dict[str, Any] = {}
        self._stages: list[str] = []
        self._next_position = 0
        self._offset = 0
        self._spool = self.path.with_name(f".{self.path.name}.tensors")
        self._aside = self.path.with_name(f".{self.path.name}.part")

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._data = self._spool.open("wb")
        return self

    def append(self, chunk: Chunk) -> None:
        """Write one chunk. Raises ValueError for other shapes than the geometry's, NaN, or positions that go back."""
        shapes = _shapes(self.geometry, chunk.tokens)
        for part in PARTS:
            array = getattr(chunk, part)
            if array.shape != shapes[part]:
                raise ValueError(f"{part} must have shape {shapes[part]}, got {array.shape}")
            if part != "positions" and not np.isfinite(array.astype(np.float32)).all():
                raise ValueError(f"{part} of chunk {len(self._stages)} must be finite, got a NaN or an infinity")
        positions = chunk.positions.astype(np.int64)
        if chunk.tokens and (positions[0] < self._next_position or (np.diff(positions) <= 0).any()):
            raise ValueError(f"positions must ascend from {self._next_position} on, got {positions.tolist()}")
        for part in PARTS:
            array = positions if part == "positions" else getattr(chunk, part)
            content = np.ascontiguousarray(array).tobytes()
            self._data.write(content)
            self._contents[_name(len(self._stages), part)] = {
                "dtype": KINDS[part],
                "shape": list(array.shape),
                "data_offsets": [self._offset, self._offset + len(content)],
            }
            self._offset += len(content)
        self._stages.append(chunk.stage)
        self._next_position = int(positions[-1]) + 1 if chunk.tokens else self._next_position

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            self._data.close()
            if kind is None:
                self._finish()
        finally:
            self._spool.unlink(missing_ok=True)
            self._aside.unlink(missing_ok=True)

    def _finish(self) -> None:
        if not self._stages:
            raise ValueError(f"a trace must have at least one chunk, got none for {str(self.path)!r}")
        told = {
            "format": FORMAT,
            "version": VERSION,
            "geometry": json.dumps(self.geometry.as_dict()),
            "stages": json.dumps(self._stages),
            "source": json.dumps(self.source),
        }
        header = json.dumps({"__metadata__": told, **self._contents}).encode()
        header += b" " * (-len(header) % 8)
        with self._aside.open("wb") as out, self._spool.open("rb") as data:
            out.write(len(header).to_bytes(8, "little") + header)
            shutil.copyfileobj(data, out, 1 << 20)
        self._aside.replace(self.path)


def write_trace(path: Path | str, geometry: Geometry, chunks: Iterable[Chunk], source: Mapping[str, Any]) -> Path:
    """Write a whole stream. `source` says in plain values where it comes from."""
    with TraceWriter(path, geometry, source) as writer:
        for chunk in chunks:
            writer.append(chunk)
    return Path(path)


class Trace:
    """A trace on disk: `geometry`, `source`, `stages` and `lengths` (tokens) of its chunks, and these one at a time.

    Raises `TraceError` where the file is missing, truncated, no safetensors file, or no trace; `chunks` raises it
    for values that cannot be (NaN, positions that go back).
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if self.path.is_dir():
            raise TraceError(path, "is a directory, not a trace file")
        try:
            with self._open() as file:
                told = file.metadata() or {}
                slices = {name: file.get_slice(name) for name in file.offset_keys()}
                shapes = {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
        except OSError as error:
            raise TraceError(path, (error.strerror or str(error)).lower()) from None
        except safetensors.SafetensorError as error:
            raise TraceError(path, f"truncated or no safetensors file ({str(error).splitlines()[0]})") from None
        if told.get("format") != FORMAT or told.get("version") != VERSION:
            raise TraceError(path, f"is a safetensors file but no {FORMAT} of version {VERSION}")
        try:
            self.geometry = Geometry(**json.loads(told["geometry"]))
            self.stages: list[str] = json.loads(told["stages"])
            self.source: dict[str, Any] = json.loads(told["source"])
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(path, f"has damaged metadata ({type(error).__name__}: {error})") from None
        if not self.stages or not set(self.stages) <= set(STAGES):
            raise TraceError(path, f"must mark every chunk as one of {', '.join(STAGES)}")
        if set(shapes) != {_name(n, part) for n in range(len(self.stages)) for part in PARTS}:
            raise TraceError(path, f"must hold {', '.join(PARTS)} of {len(self.stages)} chunks, got other tensors")
        self.lengths: list[int] = []
        for chunk in range(len(self.stages)):
            tokens = int(np.prod(shapes[_name(chunk, "positions")][1]))
            self.lengths.append(tokens)
            for part, shape in _shapes(self.geometry, tokens).items():
                kind, got = shapes[_name(chunk, part)]
                if (kind, tuple(got)) != (KINDS[part], shape):
                    raise TraceError(
                        path, f"{_name(chunk, part)} must be {KINDS[part]} {shape}, got {kind} {tuple(got)}"
                    )

    def _open(self) -> Any:
        return safetensors.safe_open(self.path, framework="np")

    def __len__(self) -> int:
        return len(self.stages)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks in order; the file stays open meanwhile, one chunk is in memory."""
        with self._open() as file:
            last = -1
            for index, stage in enumerate(self.stages):
                q, k, v, positions = (file.get_tensor(_name(index, part)) for part in PARTS)
                for part, array in (("q", q), ("k", k), ("v", v)):
                    if not np.isfinite(array.astype(np.float32)).all():
                        raise TraceError(self.path, f"{_name(index, part)} holds a NaN or an infinity")
                if (np.diff(positions, prepend=last) <= 0).any():
                    raise TraceError(self.path, f"{_name(index, 'positions')} does not ascend")
                last = int(positions[-1]) if len(positions) else last
                yield Chunk(stage, positions, *(np.asarray(array, BF16) for array in (q, k, v)))
