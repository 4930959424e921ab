"""Decoder layers on the slots of a window (CodecSight): programs of a step, and of the change to the next window.

The keys and values of a window are rows of device memory, one for each slot. A stream has two windows for each layer,
which it uses in turn. All slots are attended to, so that nothing is clustered, selected or fetched: no command of the
retrieval unit is needed.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.builder import CommandRef, LoadedOperands, Operands, Share
from compiler.layer import Context, LayerCompiler
from compiler.memory import Region
from compiler.retrieval_attention import RetrievalAttention, Selected


@dataclass(frozen=True)
class WindowContext(Context):
    """Slots of one layer of a stream.

    keys, values : word addresses of the key and of the value of slot 0 ; start : slot of the first token of a step
    """

    keys: int = 0
    values: int = 0
    start: int = 0


@dataclass(frozen=True)
class WindowKeys(Selected):
    """All slots in front of the step, and word addresses of the key and of the value of slot 0."""

    keys: int = 0
    values: int = 0


@dataclass(frozen=True)
class Carry:
    """Slots that the next window takes over.

    source, target, count : first slot in the old and in the new window; number of slots
    angles : word address of the RoPE angles of the change of their position; 0: keys are copied
    """

    source: int
    target: int
    count: int
    angles: int


class WindowAttention(RetrievalAttention):
    """Attention to the slots of a window: GATHER reads them as tokens of the step, chunk by chunk."""

    def _attended_blocks(self, tokens: int, selected: Selected) -> int:
        return -(-(selected.before + tokens) // self.width)

    def _past(self, selected: Selected, head: int) -> dict[str, int]:
        return {}

    def _gather(
        self,
        p: Operands,
        head: int,
        tokens: int,
        selected: Selected,
        block: int,
        team: Share,
        *,
        after: Sequence[CommandRef] = (),
        values: range | None = None,
    ) -> LoadedOperands:
        assert isinstance(selected, WindowKeys)
        chunk, first = self.half // self.head, block * self.width
        rows = (selected.keys if values is None else selected.values) + first * self.kv
        fields = {
            "head": head, "blocks": chunk, "stride": self.kv, "step_word": rows + head * self.head, "restart": 1,
            "tokens": min(chunk * self.width, selected.before + tokens - first), "values": values is not None,
        }  # fmt: skip
        if values is not None and len(values) < self.head:
            fields |= {"word": values.start, "words": len(values)}
        return p.weights("GATHER", fields, after)


@dataclass(frozen=True)
class StreamWindows:
    """Memory of a stream: both windows of every layer, visual tokens of a window of frames, and angles of a carry.

    layers : for each layer, its two windows ; visual, angles : word addresses
    """

    layers: list[list[WindowContext]]
    visual: int
    angles: int


@dataclass(frozen=True)
class WindowMemory:
    """Memory of all streams ; frame_words : words of the visual tokens of a frame."""

    streams: list[StreamWindows]
    frame_words: int


def plan_windows(
    region: Region, layers: Sequence[LayerCompiler], *, streams: int, slots: int, frames: int, frame_words: int
) -> WindowMemory:
    """Allocate windows of `slots` slots and `frames` frames."""
    allocate, planned = region.allocate, list[StreamWindows]()
    for _ in range(streams):
        windows = [layer.windows(region, slots) for layer in layers if isinstance(layer, WindowLayer)]
        planned.append(StreamWindows(windows, allocate(frames * frame_words), allocate(frames * 2 * layers[0].head)))
    return WindowMemory(planned, frame_words)


class WindowLayer(LayerCompiler):
    """A layer whose context is a `WindowContext`."""

    attention_kind = WindowAttention

    def windows(self, region: Region, slots: int) -> list[WindowContext]:
        """Allocate both windows of `slots` slots."""
        allocate, words = region.allocate, slots * self.kv
        return [WindowContext(0, 0, 0, keys=allocate(words), values=allocate(words)) for _ in range(2)]

    def add_step(
        self,
        p: Operands,
        tokens: int,
        after: Sequence[CommandRef] = (),
        selected: Selected | None = None,
        following: LayerCompiler | None = None,
        visual: bool = False,
    ) -> tuple[list[CommandRef], Selected | None]:
        """Append the commands of a step: its keys and values get the slots from `start` of the context on.

        Every token attends to all slots up to its own. Nothing is selected.
        """
        self._check(tokens)
        at, w, meet = self.context, self.wide, p.builder.meet
        assert isinstance(at, WindowContext)
        x, first = self._normed(p, tokens, after), at.start * self.kv
        k = meet(self._multiply(p, "k", tokens, x, w["k"], wide=True))
        k = meet(self._rotate(p, "k", tokens, k, w["k"], at.keys + first))
        q = meet(self._multiply(p, "q", tokens, x, w["q"], wide=True))
        q = meet(self._rope(p, "q", tokens, q))
        v = meet(self._multiply(p, "v", tokens, x, at.values + first, wide=False))
        slots = WindowKeys(0, [], at.start, at.keys, at.values)
        context = self.retrieval.attend(p, tokens, slots, [*k, *q, *v])
        return self._finish(p, tokens, context), None

    def add_carry(self, p: Operands, old: WindowContext, new: WindowContext, moves: Sequence[Carry]) -> None:
        """Append the commands that fill the window `new` with slots of `old`: the cores share the slots."""
        for move in moves:
            part = p.builder.share.part(move.count)
            source, target = (move.source + part.start) * self.kv, (move.target + part.start) * self.kv
            if not part:
                continue
            pairs = [(old.values, new.values)] + ([] if move.angles else [(old.keys, new.keys)])
            for old_word, new_word in pairs:
                fields = {"source": old_word + source, "target": new_word + target, "words": len(part) * self.kv}
                p.builder.add("COPY", fields)
            if move.angles:
                self._vector(p, "rope k", [], repeat=len(part), a=move.angles, a_beats=self.head, a_wide=1,
                             b=old.keys + source, b_stride=self.kv, b_beats=self.kv, b_used=1, out=new.keys + target,
                             out_stride=self.kv, out_beats=self.kv, extra=1)  # fmt: skip
