"""Session of CodecSight: windows of frames on the machine (SPEC 4.2 and 4.3).

Window k has the frames k * stride to k * stride + window - 1. Its slots hold a prefix of text, the tokens of its
frames, and a question with its answer. The first frame that the window does not hold begins the next one:

1. One program copies the prefix and takes over the frames that are reused: the vector engine rotates their keys by the
   change of their position, and the values are copied.
2. Every frame that is refreshed is a step, in ascending order. Its visual tokens are still in device memory. It attends
   to the slots up to its own, as with the causal mask of the whole window, because all lower slots are complete.
3. New frames are steps when they arrive. A question is the last step; the next frame overwrites its slots.

The host decides which patches of a frame are computed, which frames are reused or refreshed, and the angles. All of it
follows from the stream and the policy; no decision depends on a result of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compiler.policies.codecsight import CodecSightPolicy
from compiler.positions import Positions, of_pairs
from compiler.runtime import Placement, Session
from compiler.window_layer import Carry, WindowLayer
from golden.codecsight import REFRESH, REUSE, window_plan
from golden.decoder_layer import angles

if TYPE_CHECKING:
    from compiler.runtime import Machine


@dataclass(frozen=True)
class WindowFrame:
    """Frame of a window: its time, and the row-major numbers of its tokens. It can have no token."""

    seconds: float | None
    kept: tuple[int, ...]


class WindowSession(Session):
    """One stream of windows.

    Text before the first frame is the prefix of all windows. Later text is removed by the next frame.

    Attributes
    ----------
    index : number of the window ; prefix : tokens in front of the frames
    window : frames of the window so far, by number
    """

    def __init__(self, machine: Machine, stream: int):
        super().__init__(machine, stream)
        assert isinstance(machine.policy, CodecSightPolicy) and machine.windows is not None
        self.policy, self.memory = machine.policy, machine.windows.streams[stream]
        self.index = self.prefix = 0
        self.window: dict[int, WindowFrame] = {}

    def save(self, path: Path | str) -> None:
        """Not possible: `ValueError`."""
        raise ValueError(f"policy of a saved session must keep its tokens in the store, got {self.policy.name}")

    def resume(self, path: Path | str) -> None:
        """Not possible: `ValueError`."""
        raise ValueError(f"policy of a resumed session must keep its tokens in the store, got {self.policy.name}")

    def features(self, rows: np.ndarray, grid: tuple[int, int] | None = None, seconds: float | None = None) -> None:
        """Not possible: `ValueError`. A window needs the pictures of its frames."""
        raise ValueError(f"frames of policy {self.policy.name} must be pictures, got hidden states")

    def frame_group(self, frames: Sequence[Sequence[np.ndarray]], seconds: Sequence[float] | None = None) -> None:
        """Not possible: `ValueError`. A window takes one frame after the other."""
        raise ValueError(f"frames of policy {self.policy.name} must come one by one, got a group of {len(frames)}")

    def frame(self, *pictures: np.ndarray, seconds: float | None = None, kept: np.ndarray | None = None) -> None:
        """The next frame of the stream; it begins a window if the present one is full.

        `kept` : tokens that are computed, bool (rows, columns), see `golden.codecsight.complete_groups`; None: all.
        The other arguments are those of `Session.frame`.
        """
        self.require_open()
        vision = self.machine.vision
        if vision is None:
            raise ValueError(f"model of family {self.machine.spec.family} has no vision tower, got a frame")
        size = vision.shape.patches // vision.shape.group**2
        if kept is not None and (np.asarray(kept).dtype != bool or np.size(kept) != size):
            raise ValueError(f"kept must be {size} flags, got {np.asarray(kept).dtype} {np.shape(kept)}")
        numbers = range(size) if kept is None else np.flatnonzero(kept).tolist()
        if seconds is not None and self.machine.spec.text.rope.sections is None:
            raise ValueError(f"seconds must be None for a model of family {self.machine.spec.family}, got {seconds}")
        added, number, stride = WindowFrame(seconds, tuple(numbers)), self.frames, self.policy.stride
        if not number:
            self.prefix = self.position
        index = self.index + (number == self.index * stride + self.policy.window)
        window = {f: frame for f, frame in self.window.items() if f >= index * stride} | {number: added}
        places, after = self._places(window)
        slots = self.prefix + sum(map(len, places.values()))
        if slots > self.machine.limits.tokens:
            raise ValueError(f"tokens of a session must be at most {self.machine.limits.tokens}, got {slots}")
        if after.next > self.machine.spec.text.max_positions:
            most = self.machine.spec.text.max_positions
            raise ValueError(f"positions of the model must be at most {most}, got {after.next}")
        more = self._see(number, added, pictures) if added.kept else 0
        if index > self.index:
            self._advance(index, window, places)
        self.window, self.index, self.frames = window, index, number + 1
        self.position = slots - len(places[number])
        if added.kept:
            self._frame_step(number, places[number], after, more)
        self.positions = after

    def _outputs(self, frame: WindowFrame) -> int:
        """Visual tokens of a frame: those of its kept squares, and of the class token if it has one."""
        assert self.machine.vision is not None
        return self.machine.vision.shape.keep(frame.kept).output_tokens if frame.kept else 0

    def _places(self, window: dict[int, WindowFrame]) -> tuple[dict[int, np.ndarray], Positions]:
        """Positions of the tokens of every frame of a window, (tokens,) or (tokens, 3), and those after them."""
        places, after = dict[int, np.ndarray](), Positions(self.prefix)
        sections = self.machine.spec.text.rope.sections
        assert self.machine.vision is not None
        grid = self.machine.vision.shape.output_grid
        for number, frame in window.items():
            if grid is None or sections is None:
                places[number], after = after.text(self._outputs(frame))
                continue
            vision = self.machine.spec.vision
            positions, after = after.picture(
                grid[0], grid[1], frame.seconds, vision.tokens_per_second if vision else None
            )
            places[number] = positions[list(frame.kept)]
        return places, after

    def _see(self, number: int, frame: WindowFrame, pictures: Sequence[np.ndarray]) -> int:
        """Compute the visual tokens of a frame and keep them in device memory; returns the number of commands."""
        machine = self.machine
        assert machine.vision is not None and machine.images is not None
        vision = machine.vision.keep(frame.kept)
        rows = machine.images.patches(*pictures)[vision.shape.order]
        padded = np.zeros((len(rows), vision.patch_words * machine.config.dpe_inputs), "<u2")
        padded[:, : rows.shape[1]] = rows
        machine.core.put({vision.patches: padded.tobytes()})
        programs = []
        for share in machine.shares:
            p = vision.products.program(share)
            seen, words = vision.add(p), vision.out_words
            for n, place in enumerate(np.argsort(vision.shape.output_order, kind="stable").tolist()):
                fields = {"source": vision.out + place * words, "target": self._visual_word(number) + n * words,
                          "words": words}  # fmt: skip
                p.builder.lead("COPY", fields, after=seen)
            programs.append(p.complete())
        machine.core.run(*programs)
        return sum(map(len, programs))

    def _visual_word(self, number: int) -> int:
        """Word address of the visual tokens of a frame: those of a window have places of their own."""
        assert self.machine.windows is not None
        return self.memory.visual + number % self.policy.window * self.machine.windows.frame_words

    def _frame_step(self, number: int, positions: np.ndarray, after: Positions, more: int = 0) -> None:
        """A frame through the layers, from its visual tokens, at the present slot."""
        words, first = self.machine.decoder.words, self._visual_word(number)
        rows = [[(first + n * words, words)] for n in range(len(positions))]
        self._step(rows, (positions, after), answer=False, more=more)

    def _step(
        self,
        rows: Sequence[Sequence[tuple[int, int]]],
        placed: Placement,
        *,
        answer: bool,
        frame: bool = False,
        more: int = 0,
    ) -> int | None:
        self.contexts = [replace(pair[self.index % 2], start=self.position) for pair in self.memory.layers]
        return super()._step(rows, placed, answer=answer, frame=frame, more=more)

    def _advance(self, index: int, window: dict[int, WindowFrame], places: dict[int, np.ndarray]) -> None:
        """Take over the reused frames from the old window, and refresh the others; the last frame is new."""
        plan, overlap = window_plan(index, self.policy.rules()), list(window)[:-1]
        old_places, _ = self._places(self.window)
        old = self._slots({f: len(at) for f, at in old_places.items()})
        new = self._slots({f: len(at) for f, at in places.items()})
        moves, deltas = list[Carry](), list[np.ndarray]()
        if self.prefix:
            moves.append(Carry(0, 0, self.prefix, 0))
        for f in overlap:
            if plan[f] != REUSE or not len(places[f]):
                continue
            delta = places[f][0] - old_places[f][0]
            if not deltas or (delta != deltas[-1]).any():
                deltas.append(np.asarray(delta))
            move = Carry(old[f], new[f], len(places[f]), self._angles_word(len(deltas) - 1))
            last = moves[-1] if moves else None
            if last and (last.angles, last.source + last.count, last.target + last.count) == (
                move.angles, move.source, move.target,
            ):  # fmt: skip
                move = replace(moves.pop(), count=last.count + move.count)
            moves.append(move)
        self._carry(index, moves, deltas)
        self.index = index
        for f in overlap:
            if plan[f] == REFRESH and len(places[f]):
                self.position = new[f]
                self._frame_step(f, places[f], Positions(int(places[f].max()) + 1))

    def _slots(self, counts: dict[int, int]) -> dict[int, int]:
        """First slot of every frame."""
        return dict(zip(counts, accumulate(counts.values(), initial=self.prefix), strict=False))

    def _angles_word(self, number: int) -> int:
        return self.memory.angles + number * self.machine.decoder.layers[0].head * 2

    def _carry(self, index: int, moves: Sequence[Carry], deltas: Sequence[np.ndarray]) -> None:
        """Run the program that fills the window `index` from the one before."""
        machine, text = self.machine, self.machine.spec.text
        if not moves:
            return
        if deltas:
            pairs = of_pairs(np.stack(deltas), text.head_dim, text.rope.sections)
            image = machine.decoder.angles(*angles(pairs, machine.config.head_dim, self.frequencies))
            machine.core.put({self.memory.angles: image})
        programs = []
        for share in machine.shares:
            p = machine.decoder.layers[0].products.program(share)
            for layer, pair in zip(machine.decoder.layers, self.memory.layers, strict=True):
                assert isinstance(layer, WindowLayer)
                layer.add_carry(p, pair[1 - index % 2], pair[index % 2], moves)
            programs.append(p.complete())
        machine.core.run(*programs)
