"""A decoder layer on a simulated core, compared with the golden layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from compiler.layer import Context, LayerCompiler, LayerSizes, model_step
from compiler.memory import Region
from compiler.policies import ResvPolicy
from golden import bf16
from golden.clustering import ClusterRule
from golden.decoder_layer import DecoderLayer, LayerShape, StepResult, link, pad_heads
from golden.hashing import hyperplanes
from golden.kvpu import Kvpu
from golden.selection import MOSAIC, RESV, TOP_K
from golden.store import ContextSizes, create_context, create_store, store_bytes
from golden.store.layout import BACKING_UNIT, RESIDENT, TABLE_UNIT
from hw.axi.ports import BOUNDARY, WORD_ADDRESS_BITS
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import LIST_SETS, Command, SyncEvent, all_but
from hw.core.retrieval.page_lists import ENTRY_BYTES
from hw.lxe.microcode import Instruction
from sim.bench.axi import Sparse
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import BASES, CoreRun, Outcome
from sim.ports.kvmu import kvmu_config, store_sizes
from sim.ports.kvpu import core_settings

CASES = {  # sizes of the layer by preset of the core
    "tiny": LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, q_heads=4),
    "small": LayerSizes(hidden=256, ffn=384, tokens=4, keys=512, q_heads=4),
}
POLICIES = {"ratio": RESV, "budget": MOSAIC, "count": TOP_K}  # in the order of the core's modes
Program = Sequence["Command | bytes"]
BUS_BITS = 48  # of byte addresses


@dataclass
class ScatteredRegion(Region):
    """Allocator of random even word addresses all over a region, which exercises every address bit.

    mirrored : count the addresses from the end of the region, which inverts their upper bits
    """

    rng: np.random.Generator = field(kw_only=True)
    mirrored: bool = False
    allocations: list[range] = field(default_factory=list)

    def allocate(self, count: int) -> int:
        while True:
            address = 2 * int(self.rng.integers((self.words - count) // 2))
            if all(address >= other.stop or address + count <= other.start for other in self.allocations):
                self.allocations.append(range(address, address + count))
                return self.words - count - count % 2 - address if self.mirrored else address


class LayerRun:
    """A core, its golden model, and steps that run on both: one layer of one stream, or some of both.

    Parameters
    ----------
    preset : preset of the core ; sizes : sizes of the layer, by default those of `CASES`
    hamming_threshold : Hamming distance below which a token joins a cluster
    policy : selection rule of a row of scores, one of `POLICIES`
    selection_target : ratio of the row in 1/65536 (`ratio`), tokens (`budget`) or clusters (`count`)
    window_tokens : a cluster takes new tokens while its first token is at most this many tokens old; 0: no limit
    max_resident_tokens : tokens that stay in device memory ; staging_head_pages : head pages of each staging bank
    storage : offload pages to storage instead of host memory
    layers, streams : layers of the model; streams, each of which has a context per layer
    host_pages : pages of a context, in host memory and, with `storage`, in storage ; page_frames : page frames of the
        pool ; log_entries : size of the undo log
    device_bytes : size of the device memory
    limit : largest number of cycles of a program
    number : number of the core in a multi-core; the regions of the cores follow each other
    scattered : both regions span all word addresses, and everything lies at a random address
    mirrored : with `scattered`, invert the upper bits of all addresses
    prefetch : which layer the queries of a layer select for, as in `golden.resv.ResvConfig`
    changes : sizes of the core that differ from those of the preset
    """

    def __init__(
        self,
        preset: str,
        rng: np.random.Generator,
        *,
        hamming_threshold: int,
        max_resident_tokens: int,
        sizes: LayerSizes | None = None,
        policy: str = "ratio",
        selection_target: int = 19661,
        window_tokens: int = 0,
        staging_head_pages: int = 32,
        storage: bool = False,
        layers: int = 1,
        streams: int = 1,
        host_pages: int = 0,
        page_frames: int = 0,
        log_entries: int = 512,
        device_bytes: int = 4 << 20,
        limit: int = 100_000,
        number: int = 0,
        scattered: bool = False,
        mirrored: bool = False,
        prefetch: str = "same_layer",
        changes: Mapping[str, int] | None = None,
    ):
        self.config = c = Config.preset(preset).replace(**(changes or {}))
        self.sizes, self.rng = sizes or CASES[preset], rng
        self.core = Core.from_config(c)
        word = self.core.processor.word // 8
        unit = self.core.processor.retrieval_unit.kvpu
        page = unit.kvmu.sizes.page_bytes
        # device memory: tables, page frames, staging, layer, programs, inputs and outputs of the steps
        host_pages, page_frames = host_pages or min(c.max_pages, 512), page_frames or min(c.page_frames, 512)
        regions = {
            "device": Region(device_bytes // word),
            "host": Region(
                ((layers * streams + 1) * (host_pages * page + BACKING_UNIT) * (1 + storage) + BACKING_UNIT) // word
            ),
        }
        if scattered:
            regions = {side: ScatteredRegion(1 << WORD_ADDRESS_BITS, rng=rng, mirrored=mirrored) for side in BASES}
        count = layers * streams + 1  # the last context is empty
        shared = store_sizes(unit.kvmu, contexts=count, page_frames=page_frames, log_entries=log_entries)
        own = ContextSizes(max_clusters=min(c.max_clusters, 512), max_pages=host_pages)
        size = store_bytes(shared, [own] * count)
        store_base = _allocate(regions["device"], size, BACKING_UNIT, word)
        page_frames_base = _allocate(regions["device"], page_frames * page, TABLE_UNIT, word)
        staging = 2 * staging_head_pages * unit.kvmu.sizes.head_page_bytes
        staging_base = _allocate(regions["device"], staging, TABLE_UNIT, word)
        lists = c.kv_heads * (LIST_SETS if prefetch == "next_layer" else 1)  # second lists are only written there
        self.page_lists = regions["device"].allocate(lists * c.max_pages * ENTRY_BYTES // word) * word
        self.words, self.region = regions["device"].words, regions["device"]
        backing = {
            name: [_allocate(regions["host"], host_pages * page, BACKING_UNIT, word) for _ in range(count * used)]
            for name, used in (("host_base", True), ("storage_base", storage))
        }
        # the store of the golden model; records that are not in use have random content
        self.memory, self.store_base = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8), store_base
        self.store = create_store(self.memory, store_base, shared, origin=store_base)
        for n in range(count):
            base = store_base + shared.nbytes + n * own.nbytes(shared)
            create_context(self.store, n, own, base, **{name: values[n] for name, values in backing.items() if values})
        self.initial = self.memory.tobytes()
        contexts = [
            Context(n, self.store.count_byte(n) // word, int(header["mean_keys_base"]) * TABLE_UNIT // word)
            for n, header in enumerate(self.store.contexts)
        ]
        self.spare = count - 1
        prediction = Kvpu(
            ClusterRule(
                hamming_threshold=hamming_threshold, window_tokens=window_tokens, max_candidates=unit.hcu.max_candidates
            ),
            kvmu_config(
                unit.kvmu,
                page_frames_base=page_frames_base,
                staging_base=staging_base,
                staging_head_pages=staging_head_pages,
                max_resident_tokens=max_resident_tokens,
                offload_to_storage=storage,
            ),
            self.memory,
            store_base,
            POLICIES[policy],
            selection_target,
            origin=store_base,
        )
        settings = core_settings(prediction) | {"page_lists_base": self.page_lists}
        kind: type[bytearray] | type[Sparse] = Sparse if scattered else bytearray
        device, host = (kind(regions[side].words * word) for side in BASES)
        device[store_base : store_base + size] = self.initial
        starts = {"device": BASES["device"] + number * len(device), "host": BASES["host"] + number * len(host)}
        if scattered:
            pages = ScatteredRegion((1 << BUS_BITS) // BOUNDARY, rng=rng, mirrored=mirrored)
            starts = {side: pages.allocate(len(device) // BOUNDARY) * BOUNDARY for side in BASES}
        self.run_on = CoreRun(self.core, device, host, settings, limit=limit, number=number, bases=starts)
        drive = min(backing["storage_base"], default=len(host))
        self.storage_at = starts["host"] + drive  # first address of the storage on the host port

        shape = LayerShape(
            self.sizes.hidden, self.sizes.ffn, self.sizes.q_heads, c.kv_heads, c.head_dim, c.hash_bits, c.dpe_inputs,
            head_elements=self.sizes.head, piece_tokens=c.max_step_tokens, norm_epsilon=self.sizes.norm_epsilon,
        )  # fmt: skip
        self.layers: list[LayerCompiler] = []
        self.goldens: list[list[DecoderLayer]] = [[] for _ in range(streams)]  # stream by stream, layer by layer
        for at in range(layers):
            self.layers.append(LayerCompiler(c, self.sizes, self.region, contexts[at], ResvPolicy(prefetch=prefetch)))
            weights, norms = self._weights(shape)
            biases = self._biases() if self.sizes.qkv_bias else {}
            for stream in range(streams):
                context = stream * layers + at
                self.goldens[stream].append(DecoderLayer(shape, weights, norms, prediction, context, biases=biases))
            self._put_layer(self.layers[at], self.goldens[0][at])
        for goldens in self.goldens:
            link(goldens, prefetch)
        self.last_lists = (layers - 1) % LIST_SETS if prefetch == "next_layer" else 0  # page lists of the last layer
        self.layer, self.golden = self.layers[0], self.goldens[0][0]
        self.contexts = contexts
        self.positions = [0] * streams
        self.traces: list[StepResult] = []
        self.outputs: list[tuple[int, np.ndarray]] = []
        self.programs: list[Program] = []
        self.program_addresses: list[int] = []  # word addresses of the programs
        self.steps: list[int] = []  # indices of the programs that are steps
        self.outcomes: list[Outcome] = []  # of the programs, after a simulation
        self.clearing = False  # clear a fault after every program

    def _weights(self, shape: LayerShape) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Random weights of a layer, and of its two norms."""
        rng, kv_heads, head_dim = self.rng, shape.kv_heads, shape.model_head_dim
        weights = {
            name: bf16.encode(rng.standard_normal((rows, columns)) / np.sqrt(columns))
            for name, (rows, columns) in replace(shape, head_dim=head_dim).weights().items()
        }
        weights["planes"] = hyperplanes(kv_heads * head_dim, shape.hash_bits).view(np.uint16).T.copy()
        padding = {"q": (shape.q_heads, 0), "k": (kv_heads, 0), "v": (kv_heads, 0), "o": (shape.q_heads, 1),
                   "planes": (kv_heads, 1)}  # fmt: skip
        weights |= {
            name: pad_heads(weights[name], count, shape.head_dim, axis) for name, (count, axis) in padding.items()
        }
        norms = (
            bf16.encode(1 + rng.standard_normal(self.sizes.hidden) / 8),
            bf16.encode(1 + rng.standard_normal(self.sizes.hidden) / 8),
        )
        return weights, norms

    def _biases(self) -> dict[str, np.ndarray]:
        """Random biases of the projections; the padding of a head has none."""
        c, biases = self.config, {}
        for name, heads in (("q", self.sizes.q_heads), ("k", c.kv_heads), ("v", c.kv_heads)):
            bias = bf16.encode(self.rng.standard_normal(heads * (self.sizes.head or c.head_dim)))
            biases[name] = pad_heads(bias, heads, c.head_dim, 0)
        return biases

    def _put_layer(self, layer: LayerCompiler, golden: DecoderLayer) -> None:
        """Store weights and vector programs of a layer in device memory."""
        for address, image in layer.images(golden.weights, golden.norms, golden.biases).items():
            self.run_on.put(address, image)

    @property
    def position(self) -> int:
        """Tokens of the first stream."""
        return self.positions[0]

    @position.setter
    def position(self, value: int) -> None:
        self.positions[0] = value

    def begin(self) -> None:
        """Make the store empty, as software does after a fault; at the start only open the spare context."""
        copies = []
        if self.programs or ["reset"] in self.run_on.script:
            words = len(self.initial) // self.run_on.word_bytes
            source = self.region.allocate(words)
            self.run_on.put(source, self.initial)
            target = self.store_base // self.run_on.word_bytes
            copies.append(Command("COPY", {"source": source, "target": target, "words": words}))
        opens = Command("OPEN", {"context": self.spare}, {SyncEvent.COPY: all_but(0)} if copies else {})
        self.run([*copies, opens, Command("END")])

    def run(self, program: Program, clear: bool | None = None) -> None:
        """Append a program of commands, or of raw commands of 64 bytes; `clear`: clear a fault afterwards."""
        code = b"".join(command if isinstance(command, bytes) else command.encode() for command in program)
        address = self.region.allocate(-(-len(code) // self.run_on.word_bytes))
        self.run_on.put(address, code)
        self.run_on.run(address, len(program), clear=self.clearing if clear is None else clear)
        self.programs.append(program)
        self.program_addresses.append(address)

    @property
    def instructions(self) -> dict[int, list[Instruction]]:
        """Vector programs of all layers by word address."""
        return {address: program for layer in self.layers for address, program in layer.vectors.instructions.items()}

    def commands(self) -> list[list[Command]]:
        """The commands of all programs."""
        return [[command for command in program if isinstance(command, Command)] for program in self.programs]

    def step(self, x: np.ndarray, stream: int = 0) -> StepResult:
        """A step of the tokens `x` (T, hidden), BF16 codes, on both; returns the golden trace of the last layer."""
        if not self.steps:
            self.begin()
        hidden = x
        for layer in self.goldens[stream]:
            trace = layer.step(hidden, range(self.positions[stream], self.positions[stream] + len(x)))
            hidden = trace.output
            self.traces.append(trace)
        self.outputs.append((self.run_step(x, stream), trace.output))
        return trace

    def inputs(self, x: np.ndarray, stream: int = 0) -> dict[int, bytes]:
        """Input and RoPE angles of a step, by word address."""
        n, start = self.config.dpe_inputs, self.positions[stream]
        cos, sin = self.golden.shape.angles(np.arange(start, start + len(x)))
        rope_angles = np.stack([cos.reshape(len(x), -1, n), sin.reshape(len(x), -1, n)], axis=2)
        return {self.layer.x: x.tobytes(), self.layer.cosines: rope_angles.astype("<u4").tobytes()}

    def run_step(self, x: np.ndarray, stream: int = 0) -> int:
        """A step on the core only; returns the byte address of its output."""
        tokens = len(x)
        self.fill(self.inputs(x, stream))
        self.steps.append(len(self.programs))
        layers, x_word = [], self.layer.x
        for at, layer in enumerate(self.layers):
            context = self.contexts[stream * len(self.layers) + at]
            layers.append(layer.for_context(context, x_word, self.layer.cosines))
            x_word = layer.out
        self.run(model_step(layers, tokens))
        self.positions[stream] += tokens
        return self.save_outputs({x_word: tokens * self.sizes.hidden * 2})[0]

    def attend(self, k: np.ndarray, v: np.ndarray, q: np.ndarray | None = None) -> StepResult | None:
        """Attention alone on both; keys, values (T, Hkv, d), queries (T, Hq, d): BF16 codes in memory order.

        Without queries the tokens are only clustered and stored.
        """
        if not self.steps:
            self.begin()
        tokens, rotated = len(k), self.layer.rotated
        self.fill(
            {rotated["k"]: k.tobytes(), rotated["v"]: v.tobytes()} | ({} if q is None else {rotated["q"]: q.tobytes()})
        )
        self.steps.append(len(self.programs))
        self.run(self.layer.attention(tokens, query=q is not None))
        self.position += tokens
        if q is None:
            self.golden.fill(k, v)
            return None
        context, trace = self.golden.attend(q, k, v)
        heads = np.split(context, self.config.kv_heads, axis=1)
        sources = {source: heads[h].nbytes for h, source in enumerate(self.layer.retrieval.outputs)}
        copies = zip(self.save_outputs(sources), heads, strict=True)
        self.outputs += [(address, np.ascontiguousarray(head)) for address, head in copies]
        self.traces.append(trace)
        return trace

    def preload(self, k: np.ndarray, v: np.ndarray) -> None:
        """Past tokens of the first context, in steps of at most `max_step_tokens`, before the first program.

        Keys, values (T, Hkv, d): BF16 codes in memory order. Only the golden model executes the steps; the memory of
        the core starts with its store and its pages, as if the stream was resumed.
        """
        if self.programs:
            raise ValueError(f"preload must precede the first program, got {len(self.programs)} programs")
        size = self.config.max_step_tokens
        for start in range(0, len(k), size):
            self.golden.fill(k[start : start + size], v[start : start + size])
        self.position = len(k)
        self.initial = self.memory.tobytes()
        self.run_on.device[self.store_base : self.store_base + len(self.initial)] = self.initial
        kvmu, context = self.golden.table.kvmu, self.golden.table.context
        for page in filter(context.in_use, range(len(context.pages))):
            record = context.pages[page]
            resident = int(record["flags"]) & RESIDENT
            memory = self.run_on.device if resident else self.run_on.host
            base = kvmu.config.page_frames_base if resident else self.store.backing_base(context.number, False)
            start = base + (int(record["frame"]) if resident else page) * kvmu.config.page_bytes
            tokens = context.lists[page, : int(record["used"])].tolist()
            for head, (slot, token) in product(kvmu.config.heads, enumerate(tokens)):
                for value, stored in enumerate((self.golden.keys, self.golden.values)):
                    at = start + head * kvmu.config.head_page_bytes + kvmu.config.layout.offset(slot, value)
                    data = stored[token][head].tobytes()
                    memory[at : at + len(data)] = data

    def fill(self, images: Mapping[int, bytes]) -> None:
        """Append a program that copies `images` to words of the device memory before a step reads them."""
        copies = []
        for target, image in images.items():
            words = len(image) // self.run_on.word_bytes
            source = self.region.allocate(words)
            self.run_on.put(source, image)
            copies.append(Command("COPY", {"source": source, "target": target, "words": words}))
        self.run([*copies, Command("END")])

    def save_outputs(self, sources: Mapping[int, int]) -> list[int]:
        """Append a program that copies outputs (word address -> bytes) elsewhere; returns their byte addresses."""
        copies, targets = [], []
        for source, size in sources.items():
            words = size // self.run_on.word_bytes
            targets.append(self.region.allocate(words))
            copies.append(Command("COPY", {"source": source, "target": targets[-1], "words": words}))
        self.run([*copies, Command("END")])
        return [target * self.run_on.word_bytes for target in targets]

    def check(self, failed: int = 0, **options: Any) -> AxiRecord:
        """Run everything on the core and verify it; the first `failed` programs may fail.

        Raises `AssertionError` when a program fails or an output differs from the golden model.
        """
        outcomes, record = self.run_on.simulate(**options)
        self.verify(outcomes, record.images["device"], failed)
        return record

    def verify(self, outcomes: list[Outcome], device: bytes | bytearray | Sparse, failed: int = 0) -> None:
        """Compare outcomes, outputs, cluster tables and mean keys with the golden model."""
        self.outcomes = outcomes
        for outcome in outcomes[failed:]:
            assert outcome.done and not outcome.failed and not outcome.hung, outcome
        for n, (at, output) in enumerate(self.outputs):
            actual = np.frombuffer(device[at : at + output.nbytes], "<u2").reshape(output.shape)
            np.testing.assert_array_equal(actual, output, err_msg=f"step {n}")
        want = self.memory.copy()
        got = np.frombuffer(bytes(device[self.store_base : self.store_base + len(want)]), np.uint8).copy()
        start = int(self.store.header["log_base"]) * TABLE_UNIT - self.store_base
        want[start : start + self.store.log.size] = got[start : start + self.store.log.size] = 0
        difference = np.flatnonzero(want != got)
        assert not len(difference), f"store differs in {len(difference)} bytes, the first one is {difference[0]:#x}"
        self._verify_page_lists(device)

    def _verify_page_lists(self, device: bytes | bytearray | Sparse) -> None:
        """Compare the page lists of the last step with the golden model."""
        size = self.config.max_pages * ENTRY_BYTES
        for head, pages in enumerate(self.traces[-1].pages if self.traces else ()):
            entries = [(address // self.run_on.word_bytes, tokens) for address, tokens in pages if tokens]
            expected = np.array(entries, "<u4").tobytes()
            at = self.page_lists + (head + self.last_lists * self.config.kv_heads) * size
            assert device[at : at + len(expected)] == expected, f"page list of KV head {head}"


def _allocate(region: Region, size: int, unit: int, word: int) -> int:
    """Allocate `size` bytes and return the byte address of the first one, a multiple of `unit`."""
    return -(-region.allocate((size + unit) // word) * word // unit) * unit


def frames(run: LayerRun, count: int, tokens: int, drift: float = 0.3) -> Iterator[np.ndarray]:
    """Steps of tokens that change slowly from step to step, as frames of a video do."""
    base = run.rng.standard_normal((tokens, run.sizes.hidden))
    for _ in range(count):
        base += drift * run.rng.standard_normal(base.shape)
        yield bf16.encode(base)
