"""A decoder layer on a simulated core and on its golden twin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.layer import LayerCompiler, Region, Sizes, tiles
from golden import bf16
from golden.clustering import ClusterRule
from golden.decoder_layer import DecoderLayer, LayerShape, StepResult, angles
from golden.hashing import hyperplanes
from golden.kvpu import Kvpu
from golden.selection import MOSAIC, RESV, TOP_K
from hw.axi.ports import BOUNDARY, WORD_BITS
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import Command
from sim.bench.axi import Sparse
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import BASES, CoreRun, Outcome
from sim.ports import KVMU_AREAS, TABLE_AREAS, core_settings, hc_table_config, kvmu_config

CASES = {  # hidden, ffn, largest step, keys of a row
    "tiny": Sizes(hidden=16, ffn=24, tokens=2, keys=64, q_heads=4),
    "small": Sizes(hidden=256, ffn=384, tokens=4, keys=512, q_heads=4),
}
POLICIES = {"ratio": RESV, "budget": MOSAIC, "count": TOP_K}  # in the order of the core's modes
Program = Sequence["Command | bytes"]
BUS_BITS = 48  # of byte addresses


@dataclass
class Anywhere(Region):
    """Hands out words all over a region, from an even one on.

    mirrored : as far from its end, so that the upper bits of each place are the opposite
    """

    rng: np.random.Generator = field(kw_only=True)
    mirrored: bool = False
    taken: list[range] = field(default_factory=list)

    def take(self, count: int) -> int:
        while True:
            place = 2 * int(self.rng.integers((self.words - count) // 2))
            if all(place >= part.stop or place + count <= part.start for part in self.taken):
                self.taken.append(range(place, place + count))
                return self.words - count - count % 2 - place if self.mirrored else place


class LayerRun:
    """A core, its golden twin, and steps that run on both.

    Parameters
    ----------
    preset : sizes of the core ; sizes : of the layer, by default those of `CASES`
    hamming_threshold : Hamming distance below which tokens share a cluster
    policy : selection rule of a row of scores
    selection_target : share that a row keeps, in 1/65536, or with `budget` tokens, with `count` clusters
    max_resident_tokens : tokens that stay on the device ; staging_head_pages : of each bank
    storage : pages go to the drive
    host_pages : of the region behind the link, twice as many with `storage` ; device_bytes : of the device memory
    limit : cycles of a program ; number : of the core in a cluster, whose regions follow those of the one before
    scattered : both regions have all words that an address can name and lie anywhere, as everything in them does
    mirrored : with `scattered`, at addresses whose upper bits are the opposite
    """

    def __init__(
        self,
        preset: str,
        rng: np.random.Generator,
        *,
        hamming_threshold: int,
        max_resident_tokens: int,
        sizes: Sizes | None = None,
        policy: str = "ratio",
        selection_target: int = 19661,
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
        # device memory: tables, frames, staging, layer, programs, inputs and outputs of the steps
        host_pages = host_pages or c.max_pages
        regions = {"device": Region(device_bytes // word), "host": Region(host_pages * page * (1 + storage) // word)}
        if scattered:
            regions = {side: Anywhere(1 << WORD_BITS, rng=rng, mirrored=mirrored) for side in BASES}
        bases = {}
        for name, size in (
            ("cluster_records", unit.table.max_clusters * 16),
            ("token_lists", unit.table.max_list_pages * c.page_tokens * 4),
            ("list_links", unit.table.max_list_pages * 4),
            ("mean_keys", unit.table.max_clusters * unit.table.key_dim * 2),
            ("page_frames", c.page_frames * page),
            ("staging", 2 * staging_head_pages * unit.kvmu.head_page_bytes),
        ):
            bases[name] = regions["device"].take(-(-size // word)) * word
        self.words, self.region = regions["device"].words, regions["device"]
        self.layer = LayerCompiler(c, self.sizes, self.region, bases["mean_keys"] // word)
        bases["host_pages"], bases["storage_pages"] = (
            regions["host"].take(host_pages * page // word) * word if used else 0 for used in (True, storage)
        )
        prediction = Kvpu(
            ClusterRule(hamming_threshold=hamming_threshold, window_tokens=0, max_candidates=unit.hcu.max_candidates),
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
        settings = core_settings(prediction)
        kind: type[bytearray] | type[Sparse] = Sparse if scattered else bytearray
        device, host = (kind(regions[side].words * word) for side in BASES)
        starts = {"device": BASES["device"] + number * len(device), "host": BASES["host"] + number * len(host)}
        if scattered:
            pages = Anywhere((1 << BUS_BITS) // BOUNDARY, rng=rng, mirrored=mirrored)
            starts = {side: pages.take(len(device) // BOUNDARY) * BOUNDARY for side in BASES}
        self.run_on = CoreRun(self.core, device, host, settings, limit=limit, number=number, bases=starts)
        drive = bases["storage_pages"] or len(host)
        self.storage_at = starts["host"] + drive  # address on the host port from which on the drive answers

        shape = LayerShape(
            self.sizes.hidden, self.sizes.ffn, self.sizes.q_heads, c.kv_heads, c.head_dim, c.hash_bits, n
        )
        weights = {
            name: bf16.encode(rng.standard_normal((rows, columns)) / np.sqrt(columns))
            for name, (rows, columns) in shape.weights().items()
        }
        weights["planes"] = hyperplanes(c.kv_heads * c.head_dim, c.hash_bits).view(np.uint16).T.copy()
        norms = (
            bf16.encode(1 + rng.standard_normal(self.sizes.hidden) / 8),
            bf16.encode(1 + rng.standard_normal(self.sizes.hidden) / 8),
        )
        self.golden = DecoderLayer(shape, weights, norms, prediction)
        order = self.golden.order
        stored = dict(weights)
        for name, heads in (("q", self.sizes.q_heads), ("k", c.kv_heads)):
            stored[name] = weights[name].reshape(heads, c.head_dim, -1)[:, order].reshape(weights[name].shape)
        stored["planes"] = self.golden._planes()
        for name, matrix in stored.items():
            self.run_on.put(self.layer.weights[name], tiles(matrix, n))
        for place, norm in zip(self.layer.norms, norms, strict=True):
            self.run_on.put(place, norm.tobytes())
        for place, image in self.layer.images.items():
            self.run_on.put(place, image)
        self.position = 0
        self.traces: list[StepResult] = []
        self.outputs: list[tuple[int, np.ndarray]] = []
        self.programs: list[Program] = []
        self.places: list[int] = []  # their first words
        self.steps: list[int] = []  # which of the programs are steps
        self.clearing = False  # faults are expected anywhere

    def begin(self) -> None:
        """Empty tables."""
        self.run([Command("BEGIN"), Command("END")])

    def run(self, program: Program, clear: bool | None = None) -> None:
        """Another program of commands, or of 64 bytes as they are; `clear` a fault afterwards."""
        code = b"".join(part if isinstance(part, bytes) else part.encode() for part in program)
        place = self.region.take(-(-len(code) // self.run_on.word_bytes))
        self.run_on.put(place, code)
        self.run_on.run(place, len(program), clear=self.clearing if clear is None else clear)
        self.programs.append(program)
        self.places.append(place)

    def commands(self) -> list[list[Command]]:
        """The commands of all programs."""
        return [[part for part in program if isinstance(part, Command)] for program in self.programs]

    def step(self, x: np.ndarray) -> StepResult:
        """A step of the tokens `x` (T, hidden), BF16 codes, on both; the golden trace."""
        if not self.steps:
            self.begin()
        trace = self.golden.step(x, range(self.position, self.position + len(x)))
        self.traces.append(trace)
        self.outputs.append((self.give(x), trace.output))
        return trace

    def give(self, x: np.ndarray) -> int:
        """A step on the core; the byte address of its output."""
        tokens, n = len(x), self.config.dpe_inputs
        cos, sin = angles(np.arange(self.position, self.position + tokens), self.config.head_dim, 5e5)
        turned = np.stack([cos.reshape(tokens, -1, n), sin.reshape(tokens, -1, n)], axis=2)
        self.fill({self.layer.x: x.tobytes(), self.layer.cosines: turned.astype("<u4").tobytes()})
        self.steps.append(len(self.programs))
        self.run(self.layer.step(tokens))
        self.position += tokens
        return self.keep({self.layer.out: tokens * self.sizes.hidden * 2})[0]

    def attend(self, k: np.ndarray, v: np.ndarray, q: np.ndarray | None = None) -> StepResult | None:
        """The six steps alone on both; keys, values (T, Hkv, d), queries (T, Hq, d): BF16 codes in memory order.

        Without queries the tokens are only clustered and placed.
        """
        if not self.steps:
            self.begin()
        tokens, turned = len(k), self.layer.turned
        self.fill(
            {turned["k"]: k.tobytes(), turned["v"]: v.tobytes()} | ({} if q is None else {turned["q"]: q.tobytes()})
        )
        self.steps.append(len(self.programs))
        self.run(self.layer.attention(tokens, query=q is not None))
        self.position += tokens
        if q is None:
            self.golden.fill(k, v)
            return None
        context, trace = self.golden.attend(q, k, v)
        heads = np.split(context, self.config.kv_heads, axis=1)
        places = self.keep({place: heads[h].nbytes for h, place in enumerate(self.layer.context)})
        self.outputs += [(place, np.ascontiguousarray(head)) for place, head in zip(places, heads, strict=True)]
        self.traces.append(trace)
        return trace

    def fill(self, images: Mapping[int, bytes]) -> None:
        """A program that copies bytes to words of the device memory, so that every step finds its own."""
        copies = []
        for target, image in images.items():
            words = len(image) // self.run_on.word_bytes
            source = self.region.take(words)
            self.run_on.put(source, image)
            copies.append(Command("COPY", {"source": source, "target": target, "words": words}))
        self.run([*copies, Command("END")])

    def keep(self, parts: Mapping[int, int]) -> list[int]:
        """A program that copies so many bytes from each word; the byte addresses of where they stay."""
        copies, places = [], []
        for source, size in parts.items():
            words = size // self.run_on.word_bytes
            places.append(self.region.take(words))
            copies.append(Command("COPY", {"source": source, "target": places[-1], "words": words}))
        self.run([*copies, Command("END")])
        return [place * self.run_on.word_bytes for place in places]

    def check(self, failed: int = 0, **options: Any) -> AxiRecord:
        """Runs everything on the core, the first `failed` programs of which may end as they like; the record.

        AssertionError when a program fails or an output differs from the golden one.
        """
        outcomes, record = self.run_on.simulate(**options)
        self.verify(outcomes, record.images["device"], failed)
        return record

    def verify(self, outcomes: list[Outcome], device: bytes | bytearray | Sparse, failed: int = 0) -> None:
        """What `check` does with the programs' outcomes and the device memory: outputs and the clusters' tables."""
        self.outcomes = outcomes
        for outcome in outcomes[failed:]:
            assert outcome.done and not outcome.failed and not outcome.hung, outcome
        for n, (at, output) in enumerate(self.outputs):
            got = np.frombuffer(device[at : at + output.nbytes], "<u2").reshape(output.shape)
            np.testing.assert_array_equal(got, output, err_msg=f"step {n}")
        for at, entry in dict(self.golden.table.table.writes).items():  # the last one at each place
            assert device[at : at + len(entry)] == entry, f"table at {at:#x}"
        for cluster, mean in enumerate(self.golden.means.means):
            at = self.layer.mean_keys_word * self.run_on.word_bytes + cluster * mean.nbytes
            assert device[at : at + mean.nbytes] == mean.tobytes(), f"mean of cluster {cluster}"


def _ordered(bases: Mapping[str, int], areas: Sequence[str]) -> tuple[int, int, int, int]:
    """Base addresses of four areas, as the golden configurations take them."""
    first, second, third, fourth = (bases[area] for area in areas)
    return first, second, third, fourth


def frames(run: LayerRun, count: int, tokens: int, drift: float = 0.3) -> Iterator[np.ndarray]:
    """Steps of tokens that change slowly from one to the next, as frames of a video do."""
    base = run.rng.standard_normal((tokens, run.sizes.hidden))
    for _ in range(count):
        base += drift * run.rng.standard_normal(base.shape)
        yield bf16.encode(base)
