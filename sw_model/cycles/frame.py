"""A frame of Llama-3-8B on the cores of the preset `paper`, which share one device memory.

The programs are those that the compiler makes for a step on several cores; the clusters, pages and scores of every
layer are those of a recorded step of the generator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.builder import Share
from compiler.layer import Context, LayerCompiler, LayerSizes, model_step
from compiler.memory import Region
from hw.config import Config
from hw.core.isa import COMMAND_BYTES, Command
from hw.lxe.microcode import Instruction
from sw_model.cycles.context_cost import BASES, FFN, FRAME, HIDDEN, Q_HEADS, Stream
from sw_model.cycles.core import MultiCoreModel
from sw_model.cycles.step_data import StepData
from util.progress import Progress, no_progress
from util.timing import MemoryTiming

LAYERS = 32  # of Llama-3-8B


@dataclass(frozen=True)
class Step:
    """Recorded step, with the byte sizes of its store and of all pages of its KV heads."""

    data: StepData
    store_bytes: int
    page_bytes: int


@dataclass(frozen=True)
class Frame:
    """Programs of a frame.

    config : of a core
    programs, word_addresses, steps : for each core
    instructions : vector programs by word address
    """

    config: Config
    programs: list[list[Command]]
    word_addresses: list[int]
    steps: list[list[StepData]]
    instructions: dict[int, list[Instruction]]

    def model(self, device: MemoryTiming, host: MemoryTiming) -> MultiCoreModel:
        """The cores with their memories."""
        timing = {"device": device, "host": host}
        return MultiCoreModel(self.config, timing, BASES, self.instructions, cores=len(self.programs))


def record(past: int, progress: Progress = no_progress) -> Step:
    """A step of a frame of the generator after `past` tokens, in the preset `paper`."""
    stream = Stream(Config.preset("paper"), past, 1, progress, own=False)
    return Step(stream.same[-1], stream.nbytes, stream.page_bytes)


def compile_frame(step: Step, past: int, *, layers: int = LAYERS) -> Frame:
    """Programs of a frame of `layers` layers; every layer has its own weights, and pages at its own addresses."""
    config = Config.preset("paper")
    word = 2 * config.dpe_inputs
    region = Region(1 << 32, (step.store_bytes + step.page_bytes) // word)
    sizes = LayerSizes(HIDDEN, FFN, FRAME, past + 4 * FRAME, q_heads=Q_HEADS)
    layer = LayerCompiler(config, sizes, region, Context(0, step.data.mean_keys // word))
    compilers = [layer, *(layer.another(layer.context) for _ in range(layers - 1))]
    programs = [model_step(compilers, FRAME, Share(core, config.cores)) for core in range(config.cores)]
    addresses = [region.allocate(len(program) * COMMAND_BYTES // word) for program in programs]
    offsets = (n * step.page_bytes // LAYERS // word * word for n in range(layers))
    steps = [_moved(step.data, offset) for offset in offsets]
    return Frame(config, programs, addresses, [steps] * config.cores, layer.vectors.instructions)


def _moved(data: StepData, offset: int) -> StepData:
    """The same step with its pages `offset` bytes later."""
    pages = {head: [(address + offset, count) for address, count in pages] for head, pages in data.pages.items()}
    return replace(data, pages=pages)
