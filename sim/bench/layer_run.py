"""A decoder layer on a simulated core, compared with the golden layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.layer import LayerCompiler, LayerSizes, Region, tiles
from golden import bf16
from golden.clustering import ClusterRule
from golden.decoder_layer import DecoderLayer, LayerShape, StepResult, angles, pad_heads
from golden.hashing import hyperplanes
from golden.kvpu import Kvpu
from golden.selection import MOSAIC, RESV, TOP_K
from hw.axi.ports import BOUNDARY, WORD_ADDRESS_BITS
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import Command
from hw.core.retrieval.page_lists import ENTRY_BYTES
from sim.bench.axi import Sparse
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import BASES, CoreRun, Outcome
from sim.ports import KVMU_AREAS, TABLE_AREAS, core_settings, hc_table_config, kvmu_config

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
    """A core, its golden model, and steps that run on both.

    Parameters
    ----------
    preset : preset of the core ; sizes : sizes of the layer, by default those of `CASES`
    hamming_threshold : Hamming distance below which a token joins a cluster
    policy : selection rule of a row of scores, one of `POLICIES`
    selection_target : ratio of the row in 1/65536 (`ratio`), tokens (`budget`) or clusters (`count`)
    window_tokens : a cluster takes new tokens while its first token is at most this many tokens old; 0: no limit
    max_resident_tokens : tokens that stay in device memory ; staging_head_pages : head pages of each staging bank
    storage : offload pages to storage instead of host memory
    host_pages : pages of the host region, doubled with `storage` ; device_bytes : size of the device memory
    limit : largest number of cycles of a program
    number : number of the core in a multi-core; the regions of the cores follow each other
    scattered : both regions span all word addresses, and everything lies at a random address
    mirrored : with `scattered`, invert the upper bits of all addresses
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
        host_pages: int = 0,
        device_bytes: int = 4 << 20,
        limit: int = 100_000,
        number: int = 0,
        scattered: bool = False,
        mirrored: bool = False,
    ):
        self.config = c = Config.preset(preset)
        self.sizes, self.rng, n = sizes or CASES[preset], rng, c.dpe_inputs
        self.core = Core.from_config(c)
        word = self.core.processor.word // 8
        unit = self.core.processor.retrieval_unit.kvpu
        page = unit.kvmu.page_bytes
        # device memory: tables, page frames, staging, layer, programs, inputs and outputs of the steps
        host_pages = host_pages or c.max_pages
        regions = {"device": Region(device_bytes // word), "host": Region(host_pages * page * (1 + storage) // word)}
        if scattered:
            regions = {side: ScatteredRegion(1 << WORD_ADDRESS_BITS, rng=rng, mirrored=mirrored) for side in BASES}
        bases = {}
        for name, size in (
            ("cluster_records", unit.table.max_clusters * 16),
            ("token_lists", unit.table.max_list_pages * c.page_tokens * 4),
            ("list_links", unit.table.max_list_pages * 4),
            ("mean_keys", unit.table.max_clusters * unit.table.key_dim * 2),
            ("cluster_counts", unit.table.max_clusters * 2),
            ("page_lists", c.kv_heads * c.max_pages * ENTRY_BYTES),
            ("page_frames", c.page_frames * page),
            ("staging", 2 * staging_head_pages * unit.kvmu.head_page_bytes),
        ):
            bases[name] = regions["device"].allocate(-(-size // word)) * word
        self.page_lists = bases["page_lists"]
        self.words, self.region = regions["device"].words, regions["device"]
        self.layer = LayerCompiler(c, self.sizes, self.region, bases["mean_keys"] // word)
        bases["host_pages"], bases["storage_pages"] = (
            regions["host"].allocate(host_pages * page // word) * word if used else 0 for used in (True, storage)
        )
        prediction = Kvpu(
            ClusterRule(
                hamming_threshold=hamming_threshold, window_tokens=window_tokens, max_candidates=unit.hcu.max_candidates
            ),
            hc_table_config(unit.table, _ordered(bases, TABLE_AREAS)),
            kvmu_config(
                unit.kvmu,
                bases=_ordered(bases, KVMU_AREAS),
                staging_head_pages=staging_head_pages,
                max_resident_tokens=max_resident_tokens,
                offload_to_storage=storage,
            ),
            POLICIES[policy],
            selection_target,
        )
        settings = core_settings(prediction) | {"page_lists_base": bases["page_lists"]}
        kind: type[bytearray] | type[Sparse] = Sparse if scattered else bytearray
        device, host = (kind(regions[side].words * word) for side in BASES)
        starts = {"device": BASES["device"] + number * len(device), "host": BASES["host"] + number * len(host)}
        if scattered:
            pages = ScatteredRegion((1 << BUS_BITS) // BOUNDARY, rng=rng, mirrored=mirrored)
            starts = {side: pages.allocate(len(device) // BOUNDARY) * BOUNDARY for side in BASES}
        self.run_on = CoreRun(self.core, device, host, settings, limit=limit, number=number, bases=starts)
        drive = bases["storage_pages"] or len(host)
        self.storage_at = starts["host"] + drive  # first address of the storage on the host port

        shape = LayerShape(
            self.sizes.hidden, self.sizes.ffn, self.sizes.q_heads, c.kv_heads, c.head_dim, c.hash_bits, n,
            head_elements=self.sizes.head,
        )  # fmt: skip
        model_shape = replace(shape, head_dim=shape.model_head_dim)
        weights = {
            name: bf16.encode(rng.standard_normal((rows, columns)) / np.sqrt(columns))
            for name, (rows, columns) in model_shape.weights().items()
        }
        weights["planes"] = hyperplanes(c.kv_heads * shape.model_head_dim, c.hash_bits).view(np.uint16).T.copy()
        padding = {"q": (shape.q_heads, 0), "k": (c.kv_heads, 0), "v": (c.kv_heads, 0), "o": (shape.q_heads, 1),
                 "planes": (c.kv_heads, 1)}  # fmt: skip
        weights |= {name: pad_heads(weights[name], count, c.head_dim, axis) for name, (count, axis) in padding.items()}
        norms = (
            bf16.encode(1 + rng.standard_normal(self.sizes.hidden) / 8),
            bf16.encode(1 + rng.standard_normal(self.sizes.hidden) / 8),
        )
        self.golden = DecoderLayer(shape, weights, norms, prediction)
        order = self.golden.order
        stored = dict(weights)
        for name, heads in (("q", self.sizes.q_heads), ("k", c.kv_heads)):
            stored[name] = weights[name].reshape(heads, c.head_dim, -1)[:, order].reshape(weights[name].shape)
        stored["planes"] = self.golden.hyperplanes()
        for name, matrix in stored.items():
            self.run_on.put(self.layer.weights[name], tiles(matrix, n))
        for address, norm in zip(self.layer.norms, norms, strict=True):
            self.run_on.put(address, norm.tobytes())
        for address, image in self.layer.images.items():
            self.run_on.put(address, image)
        self.position = 0
        self.traces: list[StepResult] = []
        self.outputs: list[tuple[int, np.ndarray]] = []
        self.programs: list[Program] = []
        self.program_addresses: list[int] = []  # word addresses of the programs
        self.steps: list[int] = []  # indices of the programs that are steps
        self.clearing = False  # clear a fault after every program

    def begin(self) -> None:
        """Clear all tables."""
        self.run([Command("BEGIN"), Command("END")])

    def run(self, program: Program, clear: bool | None = None) -> None:
        """Append a program of commands, or of raw commands of 64 bytes; `clear`: clear a fault afterwards."""
        code = b"".join(command if isinstance(command, bytes) else command.encode() for command in program)
        address = self.region.allocate(-(-len(code) // self.run_on.word_bytes))
        self.run_on.put(address, code)
        self.run_on.run(address, len(program), clear=self.clearing if clear is None else clear)
        self.programs.append(program)
        self.program_addresses.append(address)

    def commands(self) -> list[list[Command]]:
        """The commands of all programs."""
        return [[command for command in program if isinstance(command, Command)] for program in self.programs]

    def step(self, x: np.ndarray) -> StepResult:
        """A step of the tokens `x` (T, hidden), BF16 codes, on both; returns the golden trace."""
        if not self.steps:
            self.begin()
        trace = self.golden.step(x, range(self.position, self.position + len(x)))
        self.traces.append(trace)
        self.outputs.append((self.run_step(x), trace.output))
        return trace

    def run_step(self, x: np.ndarray) -> int:
        """A step on the core only; returns the byte address of its output."""
        tokens, n = len(x), self.config.dpe_inputs
        positions = np.arange(self.position, self.position + tokens)
        cos, sin = angles(positions, self.config.head_dim, 5e5, self.sizes.head)
        rope_angles = np.stack([cos.reshape(tokens, -1, n), sin.reshape(tokens, -1, n)], axis=2)
        self.fill({self.layer.x: x.tobytes(), self.layer.cosines: rope_angles.astype("<u4").tobytes()})
        self.steps.append(len(self.programs))
        self.run(self.layer.step(tokens))
        self.position += tokens
        return self.save_outputs({self.layer.out: tokens * self.sizes.hidden * 2})[0]

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
        sources = {source: heads[h].nbytes for h, source in enumerate(self.layer.context)}
        copies = zip(self.save_outputs(sources), heads, strict=True)
        self.outputs += [(address, np.ascontiguousarray(head)) for address, head in copies]
        self.traces.append(trace)
        return trace

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
        for at, entry in dict(self.golden.table.table.writes).items():  # the last write of each address
            assert device[at : at + len(entry)] == entry, f"table at {at:#x}"
        self._verify_page_lists(device)
        for cluster, mean in enumerate(self.golden.means.means):
            at = self.layer.mean_keys_word * self.run_on.word_bytes + cluster * mean.nbytes
            assert device[at : at + mean.nbytes] == mean.tobytes(), f"mean of cluster {cluster}"

    def _verify_page_lists(self, device: bytes | bytearray | Sparse) -> None:
        """Compare the page lists of the last step with the golden model."""
        size = self.config.max_pages * ENTRY_BYTES
        for head, pages in enumerate(self.traces[-1].pages if self.traces else ()):
            entries = [(address // self.run_on.word_bytes, tokens) for address, tokens in pages if tokens]
            expected = np.array(entries, "<u4").tobytes()
            at = self.page_lists + head * size
            assert device[at : at + len(expected)] == expected, f"page list of KV head {head}"


def _ordered(bases: Mapping[str, int], areas: Sequence[str]) -> Any:
    """Base addresses of areas, as the golden configurations take them."""
    return tuple(bases[area] for area in areas)


def frames(run: LayerRun, count: int, tokens: int, drift: float = 0.3) -> Iterator[np.ndarray]:
    """Steps of tokens that change slowly from step to step, as frames of a video do."""
    base = run.rng.standard_normal((tokens, run.sizes.hidden))
    for _ in range(count):
        base += drift * run.rng.standard_normal(base.shape)
        yield bf16.encode(base)
