"""Programs of a frame or a token on all cores of a machine: vision tower, decoder layers, LM head.

The compiler makes the programs for a step on several cores. The clusters, pages and copies of every layer are those of
a `WorkloadStep`. The layers between the first and the last one take the same time, so three layers give the time of
all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.builder import Share
from compiler.language_model import LanguageModelCompiler, StreamTokens
from compiler.layer import Context
from compiler.memory import Region
from compiler.model_spec import ProjectorSpec, RopeSpec, TextSpec, VisionSpec
from compiler.policies import CodecSightPolicy, Policy, ResvPolicy
from compiler.policies.base import LayerWidths
from compiler.state_space import state_words
from compiler.vision import VisionCompiler
from compiler.vision_shapes import vision_shape
from compiler.window_layer import Carry, WindowContext, WindowLayer
from golden.store.layout import COUNT_BYTE, HEADER_BYTES
from golden.weight_formats import FORMATS
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


class _Decoder:
    """A text decoder with some of its layers, each with its own weights, pages and state of its branch.

    Cores with `weight_bits` = 4 load projections in `int4`.

    step : gives the places of the contexts; None: they are not in a store
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        step: WorkloadStep | None,
        tokens: int,
        keys: int,
        layers: int,
        policy: Policy,
        batch: int = 1,
    ):
        word, start, mean_keys = 2 * config.dpe_inputs, 0, 0
        if step is not None:
            start = (step.store_bytes + layers * batch * step.frame_bytes + step.staging_bytes) // word
            mean_keys = step.later.mean_keys // word
        branch = policy.branch(config, LayerWidths(model.hidden, model.q_heads, model.head_dim))
        size = state_words(branch.shape) if branch else 0
        columns = model.q_heads * config.head_dim // config.dpe_inputs if policy.table(config).partial else 0
        self.config, self.region = config, Region(ADDRESSES, start + layers * (size + columns))
        self.batch = batch
        self.contexts = [
            Context(
                n, (HEADER_BYTES * (1 + n) + COUNT_BYTE) // word, mean_keys, start + n * size,
                start + layers * size + n * columns,
            )
            for n in range(layers)
        ]  # fmt: skip
        self.compiler = LanguageModelCompiler(
            config, text_spec(model, layers), self.region, self.contexts, tokens=tokens * batch, keys=keys,
            policy=policy, form=FORMATS["int4"] if config.weight_bits == 4 else None, cores=config.cores, batch=batch,
        )  # fmt: skip
        self.shares = [Share(core, config.cores) for core in range(config.cores)]

    def programs(self, programs: list[list[Command]], steps: list[StepData]) -> Programs:
        """Programs of the cores, with the data of each OPEN."""
        compiler = self.compiler
        return _programs(
            self.config, self.region, programs, steps, compiler.vectors.instructions, compiler.layers[0].wide["down"]
        )

    def step(self, contexts: Sequence[Context], tokens: int, *, answer: bool, visual: bool) -> list[list[Command]]:
        """Programs of a step of `tokens` tokens of every stream."""
        rows = [self.compiler.embedding_words(token) for token in range(tokens)]
        streams = [StreamTokens(rows, contexts, answer, visual)] * self.batch
        return [self.compiler.step(streams, share) for share in self.shares]


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
    partitions: int = 0,
    batch: int = 1,
) -> Programs:
    """Programs of `tokens` tokens after `past` ones: copies of the embeddings, layers, with `answer` also the LM head.

    Every layer has its own weights, and pages and the state of its branch at its own addresses. `visual` : the tokens
    are those of frames ; `partitions` : that pass the first stage of a selection in two stages ; `batch` : streams
    with this data, each with its own pages
    """
    decoder = _Decoder(config, model, step, tokens, past + tokens, layers, policy, batch)
    for layer in decoder.compiler.layers:
        if layer.retrieval.two_stage is not None:
            layer.retrieval.two_stage.partitions = partitions
    programs = decoder.step(decoder.contexts, tokens, answer=answer, visual=visual)
    later = step.later if policy.prefetch == "next_layer" else step.first
    data = [step.first] * batch + [later] * (layers - 1) * batch
    steps = [_moved(each, n * step.frame_bytes, step) for n, each in enumerate(data)]
    return decoder.programs(programs, steps)


def compile_store(
    config: Config, model: Model, step: WorkloadStep, *, tokens: int, past: int, layers: int, policy: Policy
) -> Programs:
    """Programs that store the tokens of a step after it, for a policy with partitions; no tokens move."""
    assert step.stored is not None
    decoder = _Decoder(config, model, step, tokens, past + tokens, layers, policy)
    moves: list[list[dict[str, int]]] = [[] for _ in range(layers)]
    programs = [decoder.compiler.store(tokens, decoder.contexts, moves, share) for share in decoder.shares]
    return decoder.programs(programs, [_moved(step.stored, n * step.frame_bytes, step) for n in range(layers)])


def compile_window_step(
    config: Config,
    model: Model,
    policy: CodecSightPolicy,
    *,
    tokens: int,
    before: int,
    slots: int,
    layers: int = LAYERS,
    visual: bool = False,
) -> Programs:
    """Programs of `tokens` tokens after the first `before` slots of a window of `slots` slots."""
    decoder = _Decoder(config, model, None, tokens, slots, layers, policy)
    windows = [replace(_windows(decoder, layer, slots)[0], start=before) for layer in range(layers)]
    return decoder.programs(decoder.step(windows, tokens, answer=False, visual=visual), [])


def compile_carry(
    config: Config, model: Model, policy: CodecSightPolicy, moves: Sequence[Carry], *, slots: int, layers: int
) -> Programs:
    """Programs that fill a window of `slots` slots from the one before."""
    decoder = _Decoder(config, model, None, 1, slots, layers, policy)
    programs, windows = list[list[Command]](), [_windows(decoder, n, slots) for n in range(layers)]
    for share in decoder.shares:
        p = decoder.compiler.layers[0].products.program(share)
        for layer, (old, new) in zip(decoder.compiler.layers, windows, strict=True):
            assert isinstance(layer, WindowLayer)
            layer.add_carry(p, old, new, moves)
        programs.append(p.complete())
    return decoder.programs(programs, [])


def _windows(decoder: _Decoder, layer: int, slots: int) -> list[WindowContext]:
    compiler = decoder.compiler.layers[layer]
    assert isinstance(compiler, WindowLayer)
    return compiler.windows(decoder.region, slots)


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
