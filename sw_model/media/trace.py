"""Traces of queries, keys and values on disk: one safetensors file, written and read chunk by chunk.

Tensors `<chunk>.q`, `.k`, `.v` (layers, tokens, heads, d) in BF16, Q and K after RoPE, and `<chunk>.positions` in I64.
Chunk numbers have eight digits. The metadata of the file hold geometry, stage of every chunk and origin of the trace as
JSON.
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
TENSORS = ("q", "k", "v", "positions")
KINDS = {"q": "BF16", "k": "BF16", "v": "BF16", "positions": "I64"}


class TraceError(ValueError):
    """File that is not a complete trace. The message is one line and names the file."""

    def __init__(self, path: Path | str, problem: str):
        super().__init__(f"trace {str(path)!r}: {problem}")


def _name(chunk: int, tensor: str) -> str:
    return f"{chunk:08d}.{tensor}"


def _shapes(geometry: Geometry, tokens: int) -> dict[str, tuple[int, ...]]:
    keys = (geometry.layers, tokens, geometry.kv_heads, geometry.head_dim)
    return {
        "q": (geometry.layers, tokens, geometry.q_heads, geometry.head_dim),
        "k": keys,
        "v": keys,
        "positions": (tokens,),
    }


class TraceWriter:
    """Writes chunks one by one. The file appears complete when the `with` block ends without an error.

    Only the table of contents is in memory. Tensors are written to a temporary file first, because a safetensors file
    starts with its table of contents.
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
        """Write one chunk. ValueError for shapes other than the geometry, NaN, or positions that do not ascend."""
        shapes = _shapes(self.geometry, chunk.tokens)
        for tensor in TENSORS:
            array = getattr(chunk, tensor)
            if array.shape != shapes[tensor]:
                raise ValueError(f"{tensor} must have shape {shapes[tensor]}, got {array.shape}")
            if tensor != "positions" and not np.isfinite(array.astype(np.float32)).all():
                raise ValueError(f"{tensor} of chunk {len(self._stages)} must be finite, got a NaN or an infinity")
        positions = chunk.positions.astype(np.int64)
        if chunk.tokens and (positions[0] < self._next_position or (np.diff(positions) <= 0).any()):
            raise ValueError(f"positions must ascend from {self._next_position} on, got {positions.tolist()}")
        for tensor in TENSORS:
            array = positions if tensor == "positions" else getattr(chunk, tensor)
            content = np.ascontiguousarray(array).tobytes()
            self._data.write(content)
            self._contents[_name(len(self._stages), tensor)] = {
                "dtype": KINDS[tensor],
                "shape": list(array.shape),
                "data_offsets": [self._offset, self._offset + len(content)],
            }
            self._offset += len(content)
        self._stages.append(chunk.stage)
        self._next_position = int(positions[-1]) + 1 if chunk.tokens else self._next_position

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
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
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "geometry": json.dumps(self.geometry.as_dict()),
            "stages": json.dumps(self._stages),
            "source": json.dumps(self.source),
        }
        header = json.dumps({"__metadata__": metadata, **self._contents}).encode()
        header += b" " * (-len(header) % 8)
        with self._aside.open("wb") as out, self._spool.open("rb") as data:
            out.write(len(header).to_bytes(8, "little") + header)
            shutil.copyfileobj(data, out, 1 << 20)
        self._aside.replace(self.path)


def write_trace(path: Path | str, geometry: Geometry, chunks: Iterable[Chunk], source: Mapping[str, Any]) -> Path:
    """Write a whole stream. `source` describes its origin in plain values."""
    with TraceWriter(path, geometry, source) as writer:
        for chunk in chunks:
            writer.append(chunk)
    return Path(path)


class Trace:
    """Trace on disk: `geometry`, `source`, `stages` and `lengths` (tokens) of its chunks, and the chunks one at a time.

    Raises `TraceError` if the file is missing, truncated, not a safetensors file, or not a trace. `chunks` raises it
    for invalid values (NaN, positions that do not ascend).
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if self.path.is_dir():
            raise TraceError(path, "is a directory, not a trace file")
        try:
            with self._open() as file:
                metadata = file.metadata() or {}
                slices = {name: file.get_slice(name) for name in file.offset_keys()}
                shapes = {name: (tensor.get_dtype(), tensor.get_shape()) for name, tensor in slices.items()}
        except OSError as error:
            raise TraceError(path, (error.strerror or str(error)).lower()) from None
        except safetensors.SafetensorError as error:
            raise TraceError(path, f"truncated or no safetensors file ({str(error).splitlines()[0]})") from None
        if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
            raise TraceError(path, f"is a safetensors file but no {FORMAT} of version {VERSION}")
        try:
            self.geometry = Geometry(**json.loads(metadata["geometry"]))
            self.stages: list[str] = json.loads(metadata["stages"])
            self.source: dict[str, Any] = json.loads(metadata["source"])
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(path, f"has damaged metadata ({type(error).__name__}: {error})") from None
        if not self.stages or not set(self.stages) <= set(STAGES):
            raise TraceError(path, f"must mark every chunk as one of {', '.join(STAGES)}")
        if set(shapes) != {_name(n, tensor) for n in range(len(self.stages)) for tensor in TENSORS}:
            raise TraceError(path, f"must hold {', '.join(TENSORS)} of {len(self.stages)} chunks, got other tensors")
        self.lengths: list[int] = []
        for chunk in range(len(self.stages)):
            tokens = int(np.prod(shapes[_name(chunk, "positions")][1]))
            self.lengths.append(tokens)
            for tensor, shape in _shapes(self.geometry, tokens).items():
                kind, actual_shape = shapes[_name(chunk, tensor)]
                if (kind, tuple(actual_shape)) != (KINDS[tensor], shape):
                    raise TraceError(
                        path,
                        f"{_name(chunk, tensor)} must be {KINDS[tensor]} {shape}, got {kind} {tuple(actual_shape)}",
                    )

    def _open(self) -> Any:
        return safetensors.safe_open(self.path, framework="np")

    def __len__(self) -> int:
        return len(self.stages)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def chunks(self) -> Iterator[Chunk]:
        """Chunks in order, one in memory at a time; the file stays open meanwhile."""
        with self._open() as file:
            last = -1
            for index, stage in enumerate(self.stages):
                q, k, v, positions = (file.get_tensor(_name(index, tensor)) for tensor in TENSORS)
                for tensor, array in (("q", q), ("k", k), ("v", v)):
                    if not np.isfinite(array.astype(np.float32)).all():
                        raise TraceError(self.path, f"{_name(index, tensor)} holds a NaN or an infinity")
                if (np.diff(positions, prepend=last) <= 0).any():
                    raise TraceError(self.path, f"{_name(index, 'positions')} does not ascend")
                last = int(positions[-1]) if len(positions) else last
                yield Chunk(stage, positions, *(np.asarray(array, BF16) for array in (q, k, v)))
