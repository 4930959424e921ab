"""Sliding window with sinks: the first and the most recent pages stay, all others are released (Hybrid)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.policies.base import TableSizes
from compiler.policies.full import FullPolicy
from golden.decoder_layer import LayerPolicy
from hw.config import Config
from util import checks


@dataclass(frozen=True)
class WindowPolicy(FullPolicy):
    """Attention to sink and recent tokens. A block is a page, and the last one can be partly filled.

    After every step, the pages between the sinks and the recent ones are released. So the queries of a step attend to
    the pages that were kept before it and to the tokens of the step, at their original positions. All pages stay in
    device memory, where each stream has a constant number of them.

    sink    tokens at the start of a stream that stay, a multiple of `page_tokens`
    recent  tokens at its end that stay, a multiple of `page_tokens`, at least one page

    Source: "To Infinity and Beyond", eviction of blocks (`golden.hybrid.BlockTable` with `max_tokens` = `sink` +
    `recent`, which are 64 + 512 in the paper).
    """

    name: ClassVar[str] = "window"
    sink: int = 64
    recent: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("sink", self.sink, 0)
        checks.integer("recent", self.recent, 1)

    def table(self, config: Config) -> LayerPolicy:
        """As full attention; pages are released."""
        for name in ("sink", "recent"):
            if getattr(self, name) % config.page_tokens:
                value = getattr(self, name)
                raise ValueError(f"{name} must be a multiple of page_tokens = {config.page_tokens}, got {value}")
        pages = self.sink // config.page_tokens, self.recent // config.page_tokens
        return replace(super().table(config), kept_pages=pages)

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """The kept pages, and those of one step."""
        held = min(tokens, self.sink + self.recent)
        pages = held // config.page_tokens + 2 + step // config.page_tokens
        return TableSizes(held, 1, pages, pages)
