"""Programs of a frame or a token on all cores of a machine: vision tower, decoder layers, LM head.

The compiler makes the programs for a step on several cores. The clusters, pages and copies of every layer are those of
a `WorkloadStep`. The layers between the first and the last one take the same time, so three layers give the time of
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.builder import Share
from compiler.language_model import LanguageModelCompiler
from compiler.layer import Context
from compiler.memory import Region
from compiler.model_spec import ProjectorSpec, RopeSpec, TextSpec, VisionSpec
from compiler.policies import Policy, ResvPolicy
from compiler.policies.base import LayerWidths
from compiler.state_space import state_words
from compiler.vision import VisionCompiler
from compiler.vision_shapes import vision_shape
from hw.config import Config
from hw.core.isa import COMMAND_BYTES, Command
from hw.lxe.microcode import Instruction
from sw_model.cycles.core import MultiCoreModel, Traffic
from sw_model.cycles.step_data import StepData
from sw_model.cycles.workload_step import WorkloadStep
from sw_model.workloads import Model, Tower
from util.timing import MemoryTiming

BASES = {"device": 0, "host": 1 << 47}  # byte addresses of the memories
LAYERS = 3  # layers of a program whose time is computed: first, repeated, last
ADDRESSES = 1 << 32  # words
RESV = ResvPolicy(prefetch="next_layer")
POOLED = 3  # rows and columns of the tokens of a frame (VideoLLM-Online)


@dataclass(frozen=True)
class Programs:
    """Programs of the cores, with all that the cycle model needs.

    config : of a core, with the number of cores
    programs, word_addresses : for each core
    steps : data of each OPEN
    instructions : vector programs by word address
    ends : number of BARRIERs at the end of each layer
    """

    config: Config
    programs: list[list[Command]]
    word_addresses: list[int]
    steps: list[StepData]
    instructions: dict[int, list[Instruction]]
    ends: list[int]

    def run(self, timing: Mapping[str, MemoryTiming]) -> Run:
        """Execute the programs on the cycle model with these memories, `device` and `host`."""
        model = MultiCoreModel(self.config, timing, BASES, self.instructions, cores=self.config.cores)
        cycles = model.run_all(self.word_addresses, self.programs, [self.steps] * self.config.cores)
        barriers = [end for _, name, _, end in model.spans_of[0] if name == "BARRIER"]
        moved = [model.traffic_at[count - 1] for count in self.ends]
        return Run(max(cycles), [barriers[count - 1] for count in self.ends], moved, model)


@dataclass(frozen=True)
class Run:
    """Cycles of programs.

    cycles : of all ; ends : cycle in which each layer ends ; moved : traffic up to the end of each layer
    model : with the spans of all commands
    """

    cycles: int
    ends: list[int]
    moved: list[Traffic]
    model: MultiCoreModel

    def with_layers(self, layers: int) -> int:
        """Cycles with a number of layers, of which all but the first and the last take as long as the second one."""
        return self.cycles + (layers - len(self.ends)) * self.repeated

    @property
    def repeated(self) -> int:
        """Cycles of the second layer."""
        return self.ends[1] - self.ends[0]

    @property
    def traffic(self) -> Traffic:
        """Traffic of all."""
        return self.model.traffic

    @property
    def repeated_traffic(self) -> Traffic:
        """Traffic of the second layer."""
        return self.moved[1] - self.moved[0]


def text_spec(model: Model, layers: int) -> TextSpec:
    """Sizes of the text decoder of a model with some of its layers."""
    return TextSpec(
        hidden=model.hidden, ffn=model.ffn, layers=layers, q_heads=model.q_heads, kv_heads=model.kv_heads,
        head_dim=model.head_dim, vocabulary=model.vocab, norm_epsilon=1e-5, qkv_bias=False, tied_embeddings=False,
        rope=RopeSpec(head_dim=model.head_dim, theta=500_000.0), max_positions=1 << 17,
    )  # fmt: skip


def compile_step(
    config: Config,
    model: Model,
    step: WorkloadStep,
    *,
    tokens: int,
    past: int,
    layers: int = LAYERS,
    policy: Policy = RESV,
    visual: bool = False,
    answer: bool = False,
) -> Programs:
    """Programs of `tokens` tokens after `past` ones: copies of the embeddings, layers, with `answer` also the LM head.

    Every layer has its own weights, and pages and the state of its branch at its own addresses. `visual` : the tokens
    are those of frames
    """
    word = 2 * config.dpe_inputs
    states = (step.store_bytes + layers * step.frame_bytes + step.staging_bytes) // word
    branch = policy.branch(config, LayerWidths(model.hidden, model.q_heads, model.head_dim))
    size = state_words(branch.shape) if branch else 0
    region = Region(ADDRESSES, states + layers * size)
    contexts = [Context(n, step.later.mean_keys // word, states + n * size) for n in range(layers)]
    keys = past + tokens
    compiler = LanguageModelCompiler(
        config, text_spec(model, layers), region, contexts, tokens=tokens, keys=keys, policy=policy
    )
    rows = [compiler.embedding_words(token) for token in range(tokens)]
    programs = [
        compiler.step(rows, contexts, answer=answer, visual=visual, share=Share(core, config.cores))
        for core in range(config.cores)
    ]
    later = step.later if policy.prefetch == "next_layer" else step.first
    steps = [_moved(later if n else step.first, n * step.frame_bytes, step) for n in range(layers)]
    return _programs(config, region, programs, steps, compiler.vectors.instructions, compiler.layers[0].wide["down"])


def compile_vision(config: Config, model: Model, *, layers: int = 2) -> Programs:
    """Programs of the vision tower on one picture and of its projector, with some of the layers, which are equal."""
    tower, region = model.vision, Region(ADDRESSES)
    shape = vision_shape(config, vision_spec(tower, layers), _projector(tower, model), pooled=POOLED)
    compiler = VisionCompiler(config, shape, region, cores=config.cores)
    programs = [compiler.program(share=Share(core, config.cores)) for core in range(config.cores)]
    result = _programs(config, region, programs, [], compiler.vectors.instructions, compiler.wide, compiler.x)
    return replace(result, ends=result.ends[1:])  # the first one is the end of the embedding


def vision_spec(tower: Tower, layers: int) -> VisionSpec:
    """A vision tower of kind SigLIP with some of its layers."""
    side, patch = round(tower.patches**0.5), round((tower.patch_inputs / 3) ** 0.5)
    return VisionSpec(
        kind="siglip", hidden=tower.hidden, ffn=tower.ffn, layers=layers, heads=tower.heads, patch_size=patch,
        temporal_patch=1, image_size=side * patch, activation="gelu_pytorch_tanh", norm="layer_norm",
        norm_epsilon=1e-6, class_token=False, input_norm=False, patch_bias=True, gated=False,
    )  # fmt: skip


def _projector(tower: Tower, model: Model) -> ProjectorSpec:
    return ProjectorSpec(
        kind="mlp2x", inputs=tower.hidden, hidden=model.hidden, outputs=model.hidden, activation="gelu", bias=True,
        feature_layer=-1, select="full",
    )  # fmt: skip


def _programs(
    config: Config,
    region: Region,
    programs: list[list[Command]],
    steps: list[StepData],
    instructions: dict[int, list[Instruction]],
    last_input: int,
    last_output: int | None = None,
) -> Programs:
    """Programs in device memory; the last VECTOR of a layer has this second input, and this output."""
    word = 2 * config.dpe_inputs
    addresses = [region.allocate(len(program) * COMMAND_BYTES // word + 1) for program in programs]
    ends = set[int]()  # a core without a row of the VECTOR does not have the command
    for program in programs:
        barriers, closes = 0, False
        for command in program:
            f = command.fields
            if command.name == "VECTOR" and f.get("b") == last_input and last_output in (None, f["out"]):
                closes = True
            if command.name == "BARRIER":
                barriers += 1
                ends |= {barriers} if closes else set()
                closes = False
    return Programs(config, programs, addresses, steps, instructions, sorted(ends))


def _moved(data: StepData, offset: int, step: WorkloadStep) -> StepData:
    """The same step with its resident pages `offset` bytes later."""
    staging = step.store_bytes + step.frame_bytes
    pages = {
        head: [(address + offset * (address < staging), count) for address, count in pages]
        for head, pages in data.pages.items()
    }
    return replace(data, pages=pages)
