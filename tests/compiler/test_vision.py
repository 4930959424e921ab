"""Vision towers, compiled to commands and run on the golden interpreter, equal the golden tower bit for bit."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from compiler.memory import Region
from compiler.model_spec import ProjectorSpec, VisionSpec
from compiler.vision import MAX_TOKENS, VisionCompiler
from compiler.vision_shapes import vision_shape
from golden import bf16
from golden.core_interpreter import CoreInterpreter
from golden.patch_grid import PatchGrid
from golden.vision import ProjectorShape, VisionShape, VisionTower
from hw.config import Config
from hw.core.isa import BY_NAME, COMMAND_BYTES, ExecUnit, SyncEvent, encode
from hw.lxe.microcode import Source
from hw.lxe.operand_memory import OperandMemory

TINY, SMALL, PAPER = (Config.preset(name) for name in ("tiny", "small", "paper"))
WORDS = 1 << 17  # of the device memory
CLIP = VisionShape(
    patches=6, patch_elements=10, hidden=24, ffn=18, layers=2, heads=4, activation="quick_gelu", epsilon=1e-5,
    class_token=True, input_norm=True, patch_bias=False, projector=ProjectorShape(10, 8, drop_first=True), inputs=4,
)  # fmt: skip
SIGLIP = replace(
    CLIP, patches=9, hidden=12, heads=2, activation="gelu_pytorch_tanh", epsilon=1e-6, class_token=False,
    input_norm=False, patch_bias=True, projector=ProjectorShape(9, 12, "gelu_pytorch_tanh", bias=False),
)  # fmt: skip
QWEN = replace(
    CLIP, patches=24, patch_elements=24, hidden=16, ffn=20, heads=2, activation="silu", epsilon=1e-6, layers=2,
    class_token=False, input_norm=False, projector=ProjectorShape(64, 24, merge=4, norm_epsilon=1e-6),
    norm="rms_norm", gated=True, grid=PatchGrid(4, 6, 2, 4, 10000.0), full_attention_layers=(1,),
)  # fmt: skip
LARGE = {"hidden": 64, "ffn": 40, "patches": 17, "projector": ProjectorShape(33, 32), "inputs": 16}
CASES = {  # core, sizes, images
    "clip at tiny, head 6": (TINY, CLIP, 1),
    "siglip at tiny, head 6": (TINY, SIGLIP, 2),
    "no projector": (TINY, replace(CLIP, layers=1, projector=None, activation="gelu"), 2),
    "no layers": (TINY, replace(SIGLIP, layers=0), 1),
    "head 8": (TINY, replace(CLIP, layers=1, hidden=8, heads=1), 1),
    "row longer than the vector memory": (TINY, replace(SIGLIP, patches=66, layers=1, hidden=4, heads=1, ffn=4), 1),
    "activations in pieces": (TINY, replace(CLIP, layers=1, hidden=4, heads=1, ffn=170, patches=9), 1),
    "clip at small, head 16": (SMALL, replace(CLIP, **LARGE, layers=1), 1),
    "siglip at small, head 32": (SMALL, replace(SIGLIP, **LARGE | {"heads": 2}, layers=1), 1),
    "clip pooled to 2 x 2 with its class token": (
        TINY, replace(CLIP, layers=1, patches=16, pooled=2, projector=ProjectorShape(10, 8)), 1
    ),
    "clip pooled to 2 x 2 without its class token": (TINY, replace(CLIP, layers=1, patches=9, pooled=2), 1),
    "siglip pooled to 3 x 3, no layers": (TINY, replace(SIGLIP, layers=0, patches=25, pooled=3), 2),
    "clip pooled to 1 x 1, no projector": (
        TINY, replace(CLIP, layers=1, patches=9, pooled=1, projector=None, activation="gelu"), 1
    ),
    "siglip pooled at small": (SMALL, replace(SIGLIP, **LARGE | {"heads": 2, "patches": 49}, layers=1, pooled=3), 1),
    "qwen at tiny, head 8": (TINY, QWEN, 1),
    "qwen at tiny, windows": (
        TINY, replace(QWEN, patches=16, layers=1, heads=1, hidden=8, ffn=4, grid=PatchGrid(2, 8, 2, 6, 100.0),
                      projector=ProjectorShape(4, 4, merge=4, norm_epsilon=1e-6)), 1
    ),
    "qwen at tiny, head 12": (
        TINY, replace(QWEN, hidden=24, projector=None, layers=1, patches=12, grid=PatchGrid(2, 6, 2, 4, 100.0)), 1
    ),
    "qwen without windows": (TINY, replace(QWEN, layers=1, patches=12, grid=PatchGrid(6, 2, 2, 0, 100.0)), 1),
    "qwen at small, head 20, windows of 16, 8, 8 and 4 patches": (
        SMALL, replace(QWEN, patches=36, hidden=80, heads=4, layers=1, ffn=33, inputs=16,
                       projector=ProjectorShape(20, 32, merge=4, norm_epsilon=1e-6),
                       grid=PatchGrid(6, 6, 2, 4, 10000.0)), 1
    ),
    "qwen at paper, head 80": (
        PAPER, replace(QWEN, patches=12, hidden=320, heads=4, layers=1, ffn=70, inputs=64,
                       projector=ProjectorShape(64, 64, merge=4, norm_epsilon=1e-6),
                       grid=PatchGrid(2, 6, 2, 4, 10000.0)), 1
    ),
    "siglip at paper, head 72": (
        PAPER,
        replace(SIGLIP, patches=3, layers=1, hidden=576, heads=8, ffn=100, projector=ProjectorShape(80, 64), inputs=64),
        1,
    ),
}  # fmt: skip


@dataclass
class Run:
    """A compiled tower, its random weights and patches, and its memory, which otherwise holds NaN."""

    config: Config
    shape: VisionShape
    frames: int
    rng: np.random.Generator
    masks: bool = False

    def __post_init__(self):
        s, n = self.shape, self.config.dpe_inputs
        self.vision = v = VisionCompiler(self.config, s, Region(WORDS), self.frames, masks=self.masks)
        self.weights = {name: bf16.encode(self.rng.standard_normal(size) / 3) for name, size in s.weights().items()}
        self.memory = bytearray(b"\xff" * (2 * n * WORDS))
        for address, image in v.images(self.weights).items():
            self.put(address, image)
        self.patches = bf16.encode(self.rng.standard_normal((self.frames, s.patches, s.patch_elements)))
        padding = v.patch_words * n - s.patch_elements
        self.put(v.patches, np.pad(self.patches, ((0, 0), (0, 0), (0, padding))).tobytes())
        operands = OperandMemory.from_config(self.config)
        self.machine = CoreInterpreter(
            [self.memory, bytearray()], inputs=n, weight_rows=operands.weight_rows,
            activation_rows=operands.activation_rows, slots=self.config.dpe_accumulators,
            vector_rows=self.config.vpe_rows, head_words=1, align_bits=self.config.align_bits,
            programs={address: self.vector_program(address) for address in v.vectors.instructions},
        )  # fmt: skip

    def vector_program(self, address):
        def program(beats, tail):
            size = {"beats": beats, "tail": tail} if address in self.vision.vectors.varying else {}
            inputs = (Source.STREAM, Source.MEMORY)
            return [replace(op, **size) if op.a in inputs else op for op in self.vision.vectors.instructions[address]]

        return program

    def put(self, address, data):
        start = 2 * self.config.dpe_inputs * address
        self.memory[start : start + len(data)] = data

    def output(self, frames):
        rows, words, size = frames * self.shape.output_tokens, self.vision.out_words, 2 * self.config.dpe_inputs
        start = self.vision.out * size
        return np.frombuffer(bytes(self.memory[start : start + rows * words * size]), "<u2").reshape(rows, -1)

    def golden(self, frames):
        tower = VisionTower(self.shape, self.weights)
        return np.concatenate([tower.run(patches) for patches in self.patches[:frames]])


@pytest.mark.parametrize("name", CASES)
def test_program_equals_golden_tower(name, rng):
    run = Run(*CASES[name], rng)
    program = run.vision.program(run.frames)
    assert len(encode(program)) == len(program) * COMMAND_BYTES  # all fields fit
    assert {command.name for command in program} <= {"LOAD", "MULTIPLY", "VECTOR", "COPY", "END"}
    for command in program:
        run.machine.execute(command)
    want = run.golden(run.frames)
    assert not np.isnan(bf16.decode(want)).any() and len(np.unique(want)) > 10
    np.testing.assert_array_equal(run.output(run.frames), want)
    print(f"{name}: {len(program)} commands, {run.machine.products} products of tiles")


def test_cases_reach_all_methods():
    """Rows longer than the vector memory, activations in pieces, and norms in pieces."""
    cases = {name: VisionCompiler(config, shape, Region(WORDS), frames) for name, (config, shape, frames) in
             CASES.items()}  # fmt: skip
    long, pieces = cases["row longer than the vector memory"], cases["activations in pieces"]
    assert long.blocks > TINY.vpe_rows
    down = pieces.matrices["vision.layers.0.down"].k_blocks
    assert pieces.products.block(10, down) == 10 and not pieces.products.fits(10, down)
    assert cases["clip at tiny, head 6"].norm_piece < cases["clip at tiny, head 6"].x_words


def test_program_of_fewer_frames(rng):
    """A program leaves the results of other frames unchanged; it can be run again with other patches."""
    run = Run(TINY, replace(SIGLIP, layers=1), 3, rng)
    for command in run.vision.program(3):
        run.machine.execute(command)
    first = run.output(3)
    run.patches[:2] = run.patches[1:]
    run.put(run.vision.patches, np.pad(run.patches, ((0, 0), (0, 0), (0, 2))).tobytes())
    for command in run.vision.program(1):
        run.machine.execute(command)
    tokens = run.shape.output_tokens
    np.testing.assert_array_equal(run.output(3)[:tokens], first[tokens : 2 * tokens])
    np.testing.assert_array_equal(run.output(3)[tokens:], first[tokens:])


def completed_before(program):
    """For each command the commands that are complete when it starts, as a bit mask of their numbers.

    A unit starts its commands in order and signals them in order. A wait for an event covers all earlier commands of
    its unit except the newest ones. After the event OPERANDS, a command has started, but is not complete.
    """
    of_unit: dict[ExecUnit, list[int]] = {unit: [] for unit in ExecUnit}
    masks = []
    for number, command in enumerate(program):
        mask, unit = 0, BY_NAME[command.name].unit
        for event, wait in command.waits.items():
            covered = of_unit[event.unit][: len(of_unit[event.unit]) - (wait - 1)] if wait else []
            for other in covered:
                mask |= masks[other] | ((event is not SyncEvent.OPERANDS) << other)
        if unit is not None:
            mask |= masks[of_unit[unit][-1]] if of_unit[unit] else 0
            of_unit[unit].append(number)
        masks.append(mask)
    return masks


@pytest.mark.parametrize(
    "name",
    [
        "clip at tiny, head 6", "no projector", "activations in pieces", "qwen at tiny, windows",
        "clip pooled to 2 x 2 with its class token", "clip pooled to 1 x 1, no projector",
    ],
)  # fmt: skip
def test_waits_cover_all_dependencies(name, rng):
    """A command that reads or overwrites a word starts after the command that wrote it is complete. A command that
    overwrites a word starts after the commands that read it are complete."""
    run = Run(*CASES[name], rng)
    program = run.vision.program(run.frames)
    masks = completed_before(program)
    writer, readers = {}, {}
    checked = 0
    for number, command in enumerate(program):
        run.machine.reads.clear()
        run.machine.writes.clear()
        run.machine.execute(command)
        words = [
            {word for unit, jobs in accesses.items() if unit != "code" for _, start, count in jobs
             for word in range(start, start + count)}
            for accesses in (run.machine.reads, run.machine.writes)
        ]  # fmt: skip
        for word in words[0]:
            if word in writer:
                assert masks[number] >> writer[word] & 1, f"{number} {command} reads the result of {writer[word]}"
                checked += 1
            readers.setdefault(word, set()).add(number)
        for word in words[1]:
            for other in {*readers.pop(word, set()), *([writer[word]] if word in writer else [])} - {number}:
                assert masks[number] >> other & 1, f"{number} {command} overwrites an operand or result of {other}"
                checked += 1
            writer[word] = number
    assert checked > 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 18, "heads": 2}, "hidden must be a multiple of 4, got 18"),
        ({"hidden": 8196, "heads": 1}, "hidden must be at most 8192, got 8196"),
        ({"ffn": 28676}, "ffn must be at most 28672, got 28676"),
        ({"hidden": 516, "heads": 129}, "heads must be at most 128, got 129"),
        ({"patch_elements": 8193}, "patch_elements must be at most 8192, got 8193"),
        ({"patches": MAX_TOKENS}, f"tokens must be at most {MAX_TOKENS}, got {MAX_TOKENS + 1}"),
        ({"projector": ProjectorShape(8, 10)}, "outputs must be a multiple of 4, got 10"),
        ({"projector": ProjectorShape(28673, 8)}, "hidden of the projector must be at most 28672, got 28673"),
        ({"inputs": 8}, "inputs must be that of the core, 4, got 8"),
        (
            {
                "inputs": 4,
                "patches": 4,
                "class_token": False,
                "hidden": 264,
                "heads": 1,
                "grid": PatchGrid(2, 2, 2, 2, 100.0),
            },
            "hidden / heads must be at most",
        ),
        (
            {"projector": ProjectorShape(8, 8, merge=7, norm_epsilon=1.0), "hidden": 8192, "patches": 6},
            "inputs of the projector must be at most 28672, got 57344",
        ),
        ({"align_bits": 20}, "align_bits must be that of the core, 24, got 20"),
    ],
)
def test_unsupported_sizes_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        VisionCompiler(TINY, replace(CLIP, **changes), Region(1 << 20))


def test_unsupported_calls_raise():
    with pytest.raises(ValueError, match="frames must be at least 1, got 0"):
        VisionCompiler(TINY, CLIP, Region(WORDS), 0)
    with pytest.raises(ValueError, match="vpe_rows must be at least 3, got 2"):
        VisionCompiler(TINY.replace(vpe_rows=2), CLIP, Region(WORDS))
    with pytest.raises(ValueError, match=r"count must be at most \d+ free words of the region, got \d+"):
        VisionCompiler(TINY, CLIP, Region(100))
    vision = VisionCompiler(TINY, CLIP, Region(WORDS))
    for frames in (0, 2):
        with pytest.raises(ValueError, match=f"frames must be 1 to 1, got {frames}"):
            vision.program(frames)
    weights = {name: np.zeros(size, np.uint16) for name, size in CLIP.weights().items()}
    with pytest.raises(ValueError, match=r"weights\['vision.positions'\] must have shape \(7, 24\), got \(6, 24\)"):
        vision.images({**weights, "vision.positions": np.zeros((6, 24), np.uint16)})


VISION = VisionSpec(
    kind="clip", hidden=1024, ffn=4096, layers=24, heads=16, patch_size=14, temporal_patch=1, image_size=336,
    activation="quick_gelu", norm="layer_norm", norm_epsilon=1e-5, class_token=True, input_norm=True, patch_bias=False,
    gated=False,
)  # fmt: skip
PROJECTOR = ProjectorSpec(
    kind="mlp2x", inputs=1024, hidden=4096, outputs=4096, activation="gelu", bias=True, feature_layer=-2,
    select="default",
)  # fmt: skip


def test_shape_of_specifications():
    """The tower of LLaVA 1.5: 23 of 24 layers, 576 tokens without the class token."""
    shape = vision_shape(PAPER, VISION, PROJECTOR)
    assert (shape.patches, shape.patch_elements, shape.tokens, shape.output_tokens) == (576, 588, 577, 576)
    assert (shape.layers, shape.head, shape.outputs, shape.inputs) == (23, 64, 4096, 64)
    all_layers = vision_shape(PAPER, VISION)
    assert (all_layers.layers, all_layers.output_tokens, all_layers.outputs) == (24, 577, 1024)
    full = vision_shape(PAPER, VISION, replace(PROJECTOR, select="full", feature_layer=-1))
    assert (full.layers, full.output_tokens) == (24, 577)


@pytest.mark.parametrize(
    ("vision", "projector", "message"),
    [
        ({"kind": "qwen2.5-vl"}, {}, "norm of vision must be one of rms_norm, got layer_norm"),
        (
            {"kind": "qwen2.5-vl", "norm": "rms_norm", "gated": True},
            {},
            "activation of vision must be one of silu, got",
        ),
        ({"activation": "silu"}, {}, "activation of vision must be one of .*, got silu"),
        ({"norm": "rms_norm"}, {}, "norm of vision must be one of layer_norm, got rms_norm"),
        ({"gated": True}, {}, "gated of vision must be one of False, got True"),
        ({"window_size": 28}, {}, "window_size of vision must be one of None, got 28"),
        ({"image_size": None}, {}, "image_size of vision must be a number of pixels, got None"),
        ({}, {"kind": "patch_merger", "norm_epsilon": 1e-6}, "kind of projector must be one of mlp2x, got patch_mer"),
        ({}, {"inputs": 512}, "inputs of projector must be one of 1024, got 512"),
    ],
)
def test_unsupported_specifications_raise(vision, projector, message):
    with pytest.raises(ValueError, match=message):
        vision_shape(PAPER, replace(VISION, **vision), replace(PROJECTOR, **projector))


def test_layer_of_real_size_compiles():
    """One layer of the tower of LLaVA 1.5: the commands are valid, and nothing is multiplied twice."""
    shape = replace(vision_shape(PAPER, VISION, PROJECTOR), layers=1)
    program = VisionCompiler(PAPER, shape, Region(1 << 24)).program()
    encode(program)
    multiplies = [command.fields for command in program if command.name == "MULTIPLY"]
    t, blocks = 577, 10  # tokens, and blocks of them
    hidden, ffn, out, values = 16, 64, 64, 1024  # words of a row; rows of the value matrix
    projections = 3 * t * hidden * (hidden + 1) + values * blocks * (hidden + 1)
    attention = 16 * t * 2 * blocks
    feed_forward = t * (ffn * (hidden + 1) + hidden * (ffn + 1))
    embedding_and_projector = 576 * (10 * hidden + ffn * (hidden + 1) + out * (ffn + 1))
    products = sum(f["m_blocks"] * f["k_blocks"] * f["vectors"] for f in multiplies)
    assert products == projections + attention + feed_forward + embedding_and_projector


def test_qwen_layer_of_real_size_compiles():
    """One layer of the tower of Qwen2.5-VL with four windows of 8 x 8 patches: each key is in one window."""
    vision = VisionSpec(
        kind="qwen2.5-vl", hidden=1280, ffn=3420, layers=32, heads=16, patch_size=14, temporal_patch=2,
        image_size=None, activation="silu", norm="rms_norm", norm_epsilon=1e-6, class_token=False, input_norm=False,
        patch_bias=False, gated=True, rope_theta=10000.0, window_size=112, full_attention_layers=(7, 15, 23, 31),
        spatial_merge=2, tokens_per_second=2,
    )  # fmt: skip
    merger = ProjectorSpec(
        kind="patch_merger", inputs=5120, hidden=5120, outputs=3584, activation="gelu", bias=True, feature_layer=-1,
        select="full", norm_epsilon=1e-6,
    )  # fmt: skip
    shape = vision_shape(PAPER, vision, merger, (224, 224))
    assert (shape.patches, shape.patch_elements, shape.output_tokens, shape.outputs) == (256, 1176, 64, 3584)
    assert shape.layers == 32 and shape.segments(0) == [(0, 64), (64, 64), (128, 64), (192, 64)]
    assert shape.segments(7) == [(0, 256)]
    program = VisionCompiler(PAPER, replace(shape, layers=1), Region(1 << 24)).program()
    encode(program)
    multiplies = [command.fields for command in program if command.name == "MULTIPLY"]
    t, hidden, ffn, merged, out, head = 256, 20, 54, 80, 56, 2  # tokens, and words of a row
    projections = t * (2 * 16 * head * (hidden + 1) + hidden * (16 * head + 1)) + 4 * 16 * head * 64 * (hidden + 1)
    attention = 16 * t * 2 * head
    feed_forward = t * (2 * ffn * (hidden + 1) + hidden * (ffn + 1))
    embedding_and_merger = t * 19 * hidden + 64 * (merged + out) * (merged + 1)
    products = sum(f["m_blocks"] * f["k_blocks"] * f["vectors"] for f in multiplies)
    assert products == projections + attention + feed_forward + embedding_and_merger


MASKS = {  # kept squares of patches of each image
    "clip at tiny, head 6": [(0, 1, 2, 3, 4, 5), (2,), (0, 3, 4)],
    "siglip at tiny, head 6": [(8,), (0, 1, 3, 4, 5, 7)],
    "no projector": [(1, 5)],
    "qwen at tiny, head 8": [(0, 1, 2, 3, 4, 5), (2, 5), (1, 3, 4), (5,)],  # windows of 4 squares and of 2
    "qwen without windows": [(0, 2)],
}


@pytest.mark.parametrize("name", MASKS)
def test_program_skips_patches(name, rng):
    """Several images on one memory, which still holds what larger images left; with all patches as without a mask."""
    config, shape, _ = CASES[name]
    run = Run(config, shape, 1, rng, masks=True)
    whole, words = VisionTower(shape, run.weights), run.vision.patch_words * config.dpe_inputs
    for kept in MASKS[name]:
        vision = run.vision.keep(kept)
        part = vision.shape
        patches = run.patches[0][np.isin(shape.order, part.order)]
        run.put(run.vision.patches, np.pad(patches, ((0, 0), (0, words - patches.shape[1]))).tobytes())
        program = vision.program()
        encode(program)
        for command in program:
            run.machine.execute(command)
        want = VisionTower(part, run.weights).run(patches)
        np.testing.assert_array_equal(run.output(1)[: len(want)], want)
        assert not np.isnan(bf16.decode(want)).any()
        if len(kept) * shape.group**2 == shape.patches:
            np.testing.assert_array_equal(want, whole.run(patches))
        else:
            assert len(program) <= len(run.vision.program()) + 4


def test_kept_patches_equal_a_tower_in_float(rng):
    """The masked tower against attention weights that are 0 for the other patches, in the whole tower.

    With no layers the tokens are those of the whole tower bit for bit: they keep their positions.
    """
    for shape in (replace(SIGLIP, layers=0), replace(QWEN, layers=0, patches=24)):
        weights = {name: bf16.encode(rng.standard_normal(size) / 3) for name, size in shape.weights().items()}
        patches = bf16.encode(rng.standard_normal((shape.patches, shape.patch_elements)))
        part = shape.keep((1, 4))
        rows = np.isin(shape.output_order, (1, 4))
        got = VisionTower(part, weights).run(patches[np.isin(shape.order, part.order)])
        np.testing.assert_array_equal(got, VisionTower(shape, weights).run(patches)[rows])


def test_kept_patches_of_windows():
    """Windows, order and angles of the kept squares are those of the whole grid without the others."""
    for window in (0, 4, 6):
        whole = PatchGrid(8, 10, 2, window, 100.0)
        kept = (0, 1, 4, 7, 8, 13, 19)
        part = replace(whole, kept=kept)
        mask = np.isin(whole.token_order, kept)
        np.testing.assert_array_equal(part.token_order, whole.token_order[mask])
        np.testing.assert_array_equal(part.order, whole.order[mask.repeat(4)])
        starts = np.cumsum((0, *whole.windows))
        counts = [int(mask.repeat(4)[a:b].sum()) for a, b in pairwise(starts)]
        assert part.windows == tuple(count for count in counts if count)
        for a, b in zip(part.angles(8, 8), whole.angles(8, 8), strict=True):
            np.testing.assert_array_equal(a, b[mask.repeat(4)])


@pytest.mark.parametrize("kept", [(), (1, 0), (1, 1), (-1, 2), (0, 6)])
def test_kept_must_be_ascending_tokens(kept):
    with pytest.raises(ValueError, match=r"^kept must be ascending numbers of tokens from 0 to 5, got \("):
        QWEN.keep(kept)


def test_masks_are_refused(rng):
    with pytest.raises(ValueError, match=r"^pooled must be 0 for a tower that skips patches, got 2$"):
        replace(CLIP, patches=9, pooled=2).keep((0,))
    with pytest.raises(ValueError, match=r"^masks must be True for a program that skips patches, got False$"):
        Run(TINY, CLIP, 1, rng).vision.keep((0,))
