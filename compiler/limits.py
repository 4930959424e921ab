"""Limits of a machine."""

from __future__ import annotations

from dataclasses import dataclass, fields

from util import checks


@dataclass(frozen=True)
class Limits:
    """Sizes of a machine that the model does not determine.

    streams  sessions that can exist at the same time
    batch    sessions that one step can serve (`compiler.batch.serve`), at most `streams`
    tokens   tokens of a session; 0: 2,048, or all positions of a smaller model
    step     tokens of the largest step, of all its sessions together; 0: those of `batch` frames or as many as a step
             can have, at least 64, or half of the core's page frames if these are fewer
    resident tokens of all contexts that stay in device memory; 0: as many as the page frames of the core allow
    pages    pages of a context; 0: as many as the policy needs; with hash codes a quarter of `tokens`, at least 64, at
             most what the core allows
    memory   bytes of device memory; 0: what the model needs
    height   rows of a frame in pixels, for a vision tower that has no image size; 0: those of 8 tokens
    width    columns of a frame, likewise
    pooled   rows, and columns, of the tokens of a frame after average pooling of its patches; 0: no pooling
    shared   tokens that each further session shares with the first one, in complete pages (`Session.fork`), which
             reduces the device memory; 0: nothing is shared
    """

    streams: int = 1
    batch: int = 1
    tokens: int = 0
    step: int = 0
    resident: int = 0
    pages: int = 0
    memory: int = 0
    height: int = 0
    width: int = 0
    pooled: int = 0
    shared: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            checks.integer(field.name, getattr(self, field.name), int(field.name in ("streams", "batch")))
        if self.batch > self.streams:
            raise ValueError(f"batch must be at most streams = {self.streams}, got {self.batch}")
