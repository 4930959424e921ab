"""Streams of CodecSight for tests: a real video with motion, its masks, and the golden model of its windows."""

from itertools import islice

import numpy as np

from compiler.checkpoint import Checkpoint
from compiler.positions import of_pairs
from golden import vector_kernels as kernels
from golden.codecsight import REFRESH, REUSE, TokenLayout, window_plan
from golden.dot import matmul
from golden.vision import VisionTower
from golden.window_decoder import Move, WindowDecoder
from sw_model.media.clip import encode, synthesise
from sw_model.media.masks import masked
from sw_model.media.video import decode
from tests.compiler.checkpoints import write_random
from tests.compiler.test_runtime import golden_model

GOP = 2


def masked_frames(folder, policy, group, count, size=(24, 24), patch=4):
    """Pictures of an encoded clip with a moving square, and the groups of patches that its motion vectors keep."""
    side = 96
    base = next(synthesise(1, width=side, height=side, noise=0, seed=3))

    def pictures():
        for number in range(count):
            picture, at = base.copy(), 8 + 5 * number
            picture[30:54, at : at + 24] = base[:24, 60:84]
            yield picture

    path = encode(pictures(), folder / "clip.mp4", gop=GOP, fps=10)
    for each in islice(masked(decode(path), policy.rules(group), (side, side), size, patch), count):
        yield each.frame.kind, each.frame.rgb(), each.kept


class GoldenWindows:
    """The windows of a stream by `golden.codecsight` and the golden layers."""

    def __init__(self, machine, checkpoint: Checkpoint, slots, prefix):
        self.machine, self.text = machine, checkpoint.spec.text
        self.model = golden_model(checkpoint, machine.config, machine.policy, slots)
        self.decoder = WindowDecoder(self.model.layers, slots)
        shape = machine.vision.shape
        self.tower, self.shape = VisionTower(shape, {n: checkpoint.load(n) for n in shape.weights()}), shape
        self.visual, self.kept, self.frames, self.index = {}, {}, [], 0
        self.prefix = len(prefix)
        if prefix:
            self.step(self.model.embed(prefix), np.arange(self.prefix), 0)

    def pairs(self, positions):
        return of_pairs(np.asarray(positions), self.text.head_dim, self.text.rope.sections)

    def step(self, x, positions, start):
        return self.decoder.step(x, self.pairs(positions), start)

    def layout(self, frames):
        return TokenLayout(self.prefix, {f: len(self.visual[f]) for f in frames}, 0)

    def positions(self, frames, f):
        """Of the tokens of a frame: the slots, or on three axes time, row and column."""
        if self.text.rope.sections is None:
            return self.layout(frames).of(f)
        columns = self.shape.output_grid[1]
        row, column = np.divmod(np.array(self.kept[f], int), columns)
        return self.prefix + np.stack([np.full_like(row, f - frames[0]), row, column], axis=1)

    def frame(self, patches, kept):
        """A frame whose patches (row-major) are kept as `kept`; returns the numbers of refreshed and reused frames."""
        f, rules, refreshed, reused = len(self.visual), self.machine.policy.rules(), [], []
        self.kept[f] = np.flatnonzero(kept).tolist()
        self.visual[f] = np.zeros((0, self.text.hidden), np.uint16)
        if self.kept[f]:
            part = self.shape.keep(self.kept[f])
            tokens = VisionTower(part, self.tower.weights).run(patches[part.order])
            self.visual[f] = tokens[np.argsort(part.output_order)]
        if f == self.index * rules.stride + rules.window:
            old, self.index = self.frames, self.index + 1
            self.frames = [n for n in [*old, f] if n >= self.index * rules.stride]
            plan = window_plan(self.index, rules)
            before, after = self.layout(old), self.layout(self.frames)
            moves = [Move(0, 0, self.prefix, None)]
            reused = [n for n in self.frames[:-1] if plan[n] == REUSE and len(self.visual[n])]
            for n in reused:
                delta = self.positions(self.frames, n)[0] - self.positions(old, n)[0]
                delta = self.pairs(delta[None])[0] if np.ndim(delta) else delta
                moves.append(Move(before.of(n)[0], after.of(n)[0], len(self.visual[n]), delta))
            self.decoder.carry(moves)
            refreshed = [n for n in self.frames[:-1] if plan[n] == REFRESH]
        else:
            self.frames.append(f)
        for n in [*refreshed, f]:
            if len(self.visual[n]):
                at = self.layout(self.frames).of(n)
                self.step(self.visual[n], self.positions(self.frames, n), at[0])
        return refreshed, reused

    def logits(self, question):
        """Logits after a question at the end of the window, FP32 bit patterns."""
        start = next_position = self.layout(self.frames).slots
        if self.text.rope.sections is not None:
            rows, columns = self.shape.output_grid
            next_position = self.prefix + max(self.frames[-1] - self.frames[0], rows - 1, columns - 1) + 1
        positions = next_position + np.arange(len(question))
        x = self.step(self.model.embed(question), positions, start)[-1:]
        s = self.model.layers[0].shape
        normed = kernels.rms_norm(x, self.model.norm, s.inputs, s.norm_epsilon)
        return matmul(normed, self.model.head, s.inputs, s.align_bits)[0]


def window_memory(session):
    """Keys and values of the slots of the present window: for each layer (slots, Hkv, d) each."""
    machine, result = session.machine, []
    c = machine.config
    for pair in session.memory.layers:
        at = pair[session.index % 2]
        shape = (session.position, c.kv_heads, c.head_dim)
        nbytes = 2 * int(np.prod(shape))
        result.append([machine.core.get(word, nbytes).view("<u2").reshape(shape) for word in (at.keys, at.values)])
    return result


FAMILIES = {  # changes of the checkpoint, size of a picture
    "llava-siglip": ({"vision_config.image_size": 12, "vision_config.num_hidden_layers": 2}, (12, 12)),
    "qwen2.5-vl": ({"vision_config.depth": 2}, (16, 24)),
}


def checkpoint_of(folder, family, rng, layers=2):
    """A random checkpoint, and the limits of its pictures."""
    changes, (height, width) = FAMILIES[family]
    nested = family != "qwen2.5-vl"
    layers_key = "text_config.num_hidden_layers" if nested else "num_hidden_layers"
    write_random(folder, family, rng, changes={**changes, layers_key: layers})
    return Checkpoint(folder), {} if nested else {"height": height, "width": width}
