"""Conversion of pieces of memory to descriptors of the DMA engine."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Tier(IntEnum):
    """Memories that hold pages."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2


class TransferKind(IntEnum):
    """Purpose of a transfer."""

    FETCH = 0
    RETAIN = 1
    OFFLOAD = 2
    MOVE = 3
    MIGRATE = 4


@dataclass(frozen=True)
class Piece:
    """Bytes to copy from one byte address to another."""

    source: int
    target: int
    source_tier: int
    target_tier: int
    nbytes: int


@dataclass(frozen=True)
class Descriptor:
    """One transfer of the DMA engine."""

    source: int
    target: int
    source_tier: int
    target_tier: int
    bytes: int
    kind: int
    tag: int
    last: int


def join(pieces: Iterable[Piece]) -> list[Piece]:
    """Merge consecutive pieces that are adjacent at the source and at the destination."""
    out: list[Piece] = []
    for piece in pieces:
        previous = out[-1] if out else None
        if (
            previous is not None
            and (previous.source_tier, previous.target_tier) == (piece.source_tier, piece.target_tier)
            and previous.source + previous.nbytes == piece.source
            and previous.target + previous.nbytes == piece.target
        ):
            size = previous.nbytes + piece.nbytes
            out[-1] = Piece(previous.source, previous.target, previous.source_tier, previous.target_tier, size)
        else:
            out.append(piece)
    return out


def cut(piece: Piece, burst: int, boundary: int = 4096) -> list[tuple[int, int, int]]:
    """Divide a piece into (source, destination, bytes) of at most `burst` bytes.

    No transfer crosses a multiple of `boundary` at the source or at the destination.
    """
    out, done = [], 0
    while done < piece.nbytes:
        source, target = piece.source + done, piece.target + done
        size = min(burst, piece.nbytes - done, boundary - source % boundary, boundary - target % boundary)
        out.append((source, target, size))
        done += size
    return out
