"""Hybrid streaming cache ("To Infinity and Beyond"): a bounded attention cache and a parallel state-space branch.

Four parts: a mask that shows sink and recent tokens; the eviction of blocks between them, with reference counts; a
Mamba branch whose output is added to that of the attention; and a client that orders its prompts so that the prefix
cache of the server hits. Tables, counts and prompts are integers; the branch is float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from golden.mamba import MambaParams, MambaState, mamba
from golden.reference_decoder import Decoder, KVCache, LayerInput, attention, embeddings
from util import checks


@dataclass(frozen=True)
class HybridConfig:
    """Parameters of the method.

    block          tokens of a block
    sink_blocks    blocks at the start of a table that are never evicted
    recent_blocks  blocks at the end of a table that are never evicted
    max_tokens     tokens of a table from which on blocks are evicted
    window         recent tokens that the mask shows
    low_watermark  recent frames that a client keeps when it drops frames; None: as many as fit (the paper)
    ssm_mode       `disabled`, `prefix_sum` (a running sum, for tests) or `mamba`
    ssm_input      input of the branch: the flattened `query` (code of the authors) or the `hidden` states
    fuse           `pre_o_proj`: the branch is added to the attention output; `post_o_proj`: to the residual
    """

    block: int = 16
    sink_blocks: int = 4
    recent_blocks: int = 32
    max_tokens: int = 576
    window: int = 4096
    low_watermark: int | None = None
    ssm_mode: str = "mamba"
    ssm_input: str = "query"
    fuse: str = "pre_o_proj"

    def __post_init__(self) -> None:
        checks.integer("block", self.block, 1)
        checks.integer("sink_blocks", self.sink_blocks, 0)
        checks.integer("recent_blocks", self.recent_blocks, 0)
        checks.integer("max_tokens", self.max_tokens, 1)
        checks.integer("window", self.window, 1)
        if self.low_watermark is not None:
            checks.integer("low_watermark", self.low_watermark, 1)
        checks.one_of("ssm_mode", self.ssm_mode, ("disabled", "prefix_sum", "mamba"))
        checks.one_of("ssm_input", self.ssm_input, ("query", "hidden"))
        checks.one_of("fuse", self.fuse, ("pre_o_proj", "post_o_proj"))


# -- phase 1: attention mask


def sliding_mask(positions: np.ndarray, keys: np.ndarray, sink: int, window: int) -> np.ndarray:
    """Attention mask, bool (T, S): tokens at `positions` (T,) attend to earlier keys at (S,) that are sink or recent.

    Recent keys are the last `window` tokens, the query token included.
    """
    t = checks.integers("positions", positions, None, low=0)[:, None]
    j = checks.integers("keys", keys, None, low=0)
    return (j <= t) & ((j < checks.integer("sink", sink, 0)) | (j > t - checks.integer("window", window, 1)))


def streaming_llm(total: int, sink: int, recent: int, coming: int = 0) -> np.ndarray:
    """Tokens of `total` that StreamingLLM keeps, int64 ascending; their positions in the cache are 0, 1, ...

    It keeps the first `sink` and the last `recent` tokens; `coming` new tokens reduce the recent ones.
    """
    for name, value in (("total", total), ("sink", sink), ("recent", recent), ("coming", coming)):
        checks.integer(name, value, 0)
    if total + coming <= sink + recent:
        return np.arange(total)
    return np.r_[: min(sink, total), max(min(sink, total), total - max(recent - coming, 0)) : total]


# -- phase 2: blocks with reference counts


class BlockPool:
    """Blocks of device memory with reference counts. A block is free when its count is zero."""

    def __init__(self, blocks: int):
        self.references = [0] * checks.integer("blocks", blocks, 1)
        self._free = list(range(blocks - 1, -1, -1))  # the lowest number is allocated first

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def allocate(self) -> int:
        """Number of a block that was free; its reference count is one. RuntimeError if all blocks are in use."""
        if not self._free:
            raise RuntimeError(f"all {len(self.references)} blocks are in use")
        block = self._free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block in use."""
        self._check_used(block)
        self.references[block] += 1

    def release(self, block: int) -> None:
        """Remove a reference from a block in use."""
        self._check_used(block)
        self.references[block] -= 1
        if not self.references[block]:
            self._free.append(block)

    def _check_used(self, block: int) -> None:
        if not self.references[checks.integer("block", block, 0, len(self.references) - 1)]:
            raise ValueError(f"block must be in use, got the free block {block}")


class BlockTable:
    """Blocks of one stream in order, and the token numbers in each block. The last block can be partly filled."""

    def __init__(self, pool: BlockPool, config: HybridConfig):
        self.pool, self.config = pool, config
        self.blocks: list[int] = []
        self.tokens: list[list[int]] = []  # of each block
        self.next_position = 0

    @property
    def n_tokens(self) -> int:
        """Tokens in all blocks."""
        return sum(len(block) for block in self.tokens)

    def blocks_needed(self, count: int) -> int:
        """Free blocks that `append` of `count` tokens takes from the pool, the copy of a shared block included."""
        checks.integer("count", count, 0)
        room = self.config.block - len(self.tokens[-1]) if self.blocks else 0
        copied = count > 0 and room > 0 and self.pool.references[self.blocks[-1]] > 1
        return copied + -(-max(0, count - room) // self.config.block)

    def check_room(self, count: int) -> None:
        """RuntimeError if the pool does not have the blocks for `count` tokens."""
        needed = self.blocks_needed(count)
        if needed > self.pool.free:
            raise RuntimeError(f"{count} tokens need {needed} free blocks, got {self.pool.free}")

    def append(self, count: int) -> list[int]:
        """Write `count` new tokens, then evict. Returns the evicted token numbers, ascending.

        A partly filled block with other references is copied before it is written. RuntimeError if the pool has too few
        free blocks; nothing changes then.
        """
        self.check_room(count)
        for _ in range(count):
            if not self.blocks or len(self.tokens[-1]) == self.config.block:
                self.blocks.append(self.pool.allocate())
                self.tokens.append([])
            elif self.pool.references[self.blocks[-1]] > 1:
                copy = self.pool.allocate()
                self.pool.release(self.blocks[-1])
                self.blocks[-1] = copy
            self.tokens[-1].append(self.next_position)
            self.next_position += 1
        return self.evict()

    def evict(self) -> list[int]:
        """Release the blocks between sink and recent ones if the table has `max_tokens` tokens. Returns their tokens"""
        sink, recent = self.config.sink_blocks, self.config.recent_blocks
        if self.n_tokens < self.config.max_tokens or len(self.blocks) <= sink + recent:
            return []
        end = len(self.blocks) - recent
        evicted = [token for block in self.tokens[sink:end] for token in block]
        for block in self.blocks[sink:end]:
            self.pool.release(block)
        del self.blocks[sink:end], self.tokens[sink:end]
        return evicted

    def fork(self) -> "BlockTable":
        """Table of a second stream that shares all present blocks."""
        other = BlockTable(self.pool, self.config)
        for block in self.blocks:
            self.pool.share(block)
        other.blocks, other.tokens, other.next_position = (
            list(self.blocks),
            [list(t) for t in self.tokens],
            self.next_position,
        )
        return other

    def close(self) -> None:
        """Release all blocks."""
        for block in self.blocks:
            self.pool.release(block)
        self.blocks, self.tokens = [], []


# -- phase 3: state-space branch


class HybridDecoder:
    """Decoder whose attention uses sink and recent tokens, and whose branch carries the other tokens as state.

    Runs one stream in steps of any size. `params` gives the branch of each layer (required for `mamba`): inputs have
    width Hq * d (query) or hidden, outputs Hq * d (pre_o_proj) or hidden. With a `table`, keys and values of evicted
    tokens are removed after each step, so that memory stays bounded.
    """

    def __init__(
        self,
        decoder: Decoder,
        config: HybridConfig,
        params: Sequence[MambaParams] | None = None,
        table: BlockTable | None = None,
    ):
        c = decoder.config
        self.decoder, self.config, self.params, self.table = decoder, config, params, table
        heads = c.q_heads * c.d
        self._in = heads if config.ssm_input == "query" else c.hidden
        self._out = heads if config.fuse == "pre_o_proj" else c.hidden
        if config.ssm_mode == "prefix_sum" and self._in != self._out:
            raise ValueError(f"widths must be equal for ssm_mode prefix_sum, got {self._in} and {self._out}")
        if config.ssm_mode == "mamba":
            if params is None or len(params) != c.layers:
                raise ValueError(f"params must be one per layer ({c.layers}), got {len(params or ())}")
            for p in params:
                checks.reals("params.w_in", p.w_in, self._in, None)
                checks.reals("params.w_out", p.w_out, None, self._out)
            self.states = [MambaState.zero(p) for p in params]
        self.sums = np.zeros((c.layers, self._in))
        self.cache = KVCache.empty(c)
        self.positions = np.empty(0, np.int64)  # of the cached tokens
        self._n_tokens = 0

    @property
    def state_values(self) -> int:
        """Numbers that the stream stores: keys, values and the state of the branch."""
        held = sum(k.size + v.size for k, v in zip(self.cache.k, self.cache.v, strict=True))
        if self.config.ssm_mode == "mamba":
            return held + sum(s.inputs.size + s.h.size for s in self.states)
        return held + (self.sums.size if self.config.ssm_mode == "prefix_sum" else 0)

    def step(self, x: np.ndarray) -> np.ndarray:
        """Hidden states (T, hidden) after all layers of the next tokens (T, hidden).

        ValueError for invalid embeddings, RuntimeError if the table has no room; nothing changes then.
        """
        x = embeddings("x", x, self.decoder.config)
        if self.table is not None:
            self.table.check_room(len(x))
        new = np.arange(self._n_tokens, self._n_tokens + len(x))
        self.positions = np.concatenate([self.positions, new])
        sink = self.config.sink_blocks * self.config.block
        allowed = sliding_mask(new, self.positions, sink, self.config.window)

        def attend(layer: LayerInput) -> tuple[np.ndarray, np.ndarray | None]:
            self.cache.append(layer.layer, layer.k, layer.v)
            out = attention(layer.q, self.cache.k[layer.layer], self.cache.v[layer.layer], allowed)
            branch = self._branch(layer)
            if branch is None:
                return out, None
            if self.config.fuse == "post_o_proj":
                return out, branch
            return out + branch.reshape(out.shape), None

        hidden = self.decoder.run(x, new, attend)
        self._n_tokens += len(x)
        if self.table is not None:
            evicted = self.table.append(len(x))
            keep_mask = ~np.isin(self.positions, evicted)
            self.positions = self.positions[keep_mask]
            self.cache.k = [k[keep_mask] for k in self.cache.k]
            self.cache.v = [v[keep_mask] for v in self.cache.v]
        return hidden

    def _branch(self, new: LayerInput) -> np.ndarray | None:
        u = new.q.reshape(len(new.q), -1) if self.config.ssm_input == "query" else new.hidden
        if self.config.ssm_mode == "prefix_sum":
            sums = self.sums[new.layer] + np.cumsum(u, axis=0)
            self.sums[new.layer] = sums[-1] if len(sums) else self.sums[new.layer]
            return sums
        if self.config.ssm_mode == "mamba" and self.params is not None:
            out, self.states[new.layer] = mamba(u, self.params[new.layer], self.states[new.layer])
            return out
        return None


# -- phase 4: the client


@dataclass(frozen=True)
class PromptRequest:
    """One prompt: token ids, frames, tokens that hit the prefix cache, and `shifted` if frames were dropped."""

    prompt: tuple[int, ...]
    frames: int
    hit: int
    shifted: bool

    @property
    def recomputed(self) -> int:
        """Tokens of the prompt that the prefix cache does not have."""
        return len(self.prompt) - self.hit


class Client:
    """Orders the frames of a stream into prompts: `sink_frames` first frames, then up to `window` recent frames.

    While the recent frames fit, each prompt extends the previous one. If a request has more, all but the last
    `low_watermark` are dropped. With the paper's `low_watermark` = `window`, every later request drops a frame, and
    only the sink hits the prefix cache. Every prompt starts with the token ids of `system`, the system prompt.
    """

    def __init__(self, config: HybridConfig, sink_frames: int, window: int, system: Sequence[int] = ()):
        self.sink_frames = checks.integer("sink_frames", sink_frames, 0)
        self.window = checks.integer("window", window, 1)
        low = window if config.low_watermark is None else config.low_watermark
        self.low = checks.integer("low_watermark", low, 1, window)
        self.block = config.block
        self.system = _token_ids("system", system)
        self.sink: list[tuple[int, ...]] = []
        self.recent: list[tuple[int, ...]] = []
        self._last: tuple[int, ...] = ()

    def push(self, frame: Sequence[int], question: Sequence[int] = ()) -> PromptRequest:
        """Add the token ids of one frame and return the next request."""
        return self.request([frame], question)

    def request(self, frames: Sequence[Sequence[int]], question: Sequence[int] = ()) -> PromptRequest:
        """Add the token ids of any number of frames and return the next request; prefix hits count whole blocks.

        Frames fill the sink first. The window is compared once, after all frames of the request. The server caches the
        previous prompt. `question` follows the frames in this prompt only. A refused request changes nothing.
        """
        new = [_token_ids(f"frames[{i}]", frame) for i, frame in enumerate(frames)]
        question = _token_ids("question", question)
        free = max(0, self.sink_frames - len(self.sink))
        self.sink += new[:free]
        self.recent += new[free:]
        shifted = len(self.recent) > self.window
        if shifted:
            self.recent = self.recent[-self.low :]
        frames_shown = [*self.sink, *self.recent]
        prompt = (*self.system, *(token for tokens in frames_shown for token in tokens), *question)
        common = 0
        while common < min(len(prompt), len(self._last)) and prompt[common] == self._last[common]:
            common += 1
        self._last = prompt
        return PromptRequest(prompt, len(frames_shown), common // self.block * self.block, shifted)


def _token_ids(name: str, tokens: Sequence[int]) -> tuple[int, ...]:
    return tuple(checks.integers(name, tokens, None, low=0).tolist())
