"""A KVMU in simulation next to the golden KVMU on a store with several contexts."""

import dataclasses
from functools import cache

import numpy as np

from golden.kvmu import Command, Fault, Op, Reply
from golden.kvmu.transfer import Descriptor
from golden.store import ContextSizes, StoreSizes, recover
from golden.store.create import regions
from hw.dre.kvmu.command import Fault as HwFault
from hw.dre.kvmu.kvmu import KVMU
from sim.bench.run import simulate
from tests.golden.store_bench import StoreBench

FAULTS = {int(cause): HwFault[cause.name].value for cause in Fault}
SETTINGS = (
    "page_frames_base",
    "staging_base",
    "staging_head_pages",
    "max_resident_tokens",
    "max_cluster_tokens",
    "window_tokens",
    "offload_to_storage",
)
SMALL = {
    "kv_heads": 2,
    "head_dim": 8,
    "page_tokens": 4,
    "max_pages": 16,
    "page_frames": 8,
    "max_clusters": 6,
    "max_contexts": 16,
    "word": 64,
    "cache_lines": 4,
    "max_window_tokens": 1023,
    "cluster_bits": 7,
    "address_bits": 24,
    "reference_bits": 2,
}
LARGE = {"max_pages": 64, "page_frames": 64, "max_clusters": 64, "reference_bits": 3}
NOT_COMPARED = ("log", "mean_keys")  # tables that the golden KVMU does not write
STEP_OFFSET = 124  # byte of the step number in the store header


def columns(objects, kind):
    """Payload columns of dataclass objects."""
    names = [f.name for f in dataclasses.fields(kind)]
    return {n: np.array([int(getattr(o, n)) for o in objects], np.int64) for n in names}


unit_of = cache(KVMU)  # a unit is elaborated once


class KvmuBench(StoreBench):
    """Records the commands of the golden KVMU, and simulates the RTL with them.

    Parameters
    ----------
    word, cache_lines : of the RTL
    log_entries, page_frames, max_clusters, max_pages : of the store
    reference_bits : of the RTL
    largest : sizes of the RTL for a larger store, with which benches of several sizes share a build
    others : see `StoreBench`
    """

    def __init__(
        self,
        rng=None,
        *,
        word=64,
        cache_lines=4,
        log_entries=2048,
        page_frames=8,
        max_clusters=6,
        max_pages=16,
        reference_bits=2,
        contexts=(0, 1, 3),
        largest=None,
        **settings,
    ):
        sizes = StoreSizes(
            contexts=max(contexts) + 2,
            page_frames=page_frames,
            page_tokens=4,
            key_bytes=32,
            log_entries=log_entries,
            line_bytes=max(32, word // 8),
        )
        super().__init__(contexts, rng, sizes=sizes, context_sizes=ContextSizes(max_clusters, max_pages), **settings)
        sizes = {"word": word, "cache_lines": cache_lines, "max_clusters": max_clusters}
        sizes |= {"max_pages": max_pages, "page_frames": page_frames, "reference_bits": reference_bits}
        self.unit = unit_of(**{**SMALL, **sizes, **(largest or {})})
        self.initial = self.memory.copy()
        self.commands, self.replies = [], []
        self.candidates = []  # beats of `o_candidates`
        self.committed = [self.initial]  # memory after each STEP

    def append(self, cluster):
        """APPEND to a cluster, which is opened if it is the next one. Returns the replies."""
        opened = int(cluster == int(self.kvmu.tables.header["clusters"]))
        return self.do(Op.APPEND, cluster=cluster, opened=opened, hash=opened * (0x1000 + cluster))

    def execute(self, command):
        opened_before = self.kvmu.opened
        replies = super().execute(command)
        self.commands.append(command)
        self.replies += replies
        if command.op == Op.STEP and not replies[-1].fault:
            self.committed.append(self.memory.copy())
        if command.op == Op.OPEN and self.kvmu.opened is not None and self.kvmu.opened is not opened_before:
            self._expect_candidates(self.kvmu.opened)
        return replies

    def _expect_candidates(self, opened):
        common = {"tokens": opened.tokens}
        beats = [{"begin": 1, "cluster": opened.cluster, "hash": 0, "first_token": 0, "count": 0, **common}]
        beats += [{"begin": 0, **dataclasses.asdict(candidate), **common} for candidate in opened.candidates]
        self.candidates += [{**beat, "last": int(n == len(beats) - 1)} for n, beat in enumerate(beats)]

    def random(self, rng, count, **options):
        """Execute random commands, then end the fetch in progress."""
        for _ in range(count):
            self.execute(self.random_command(rng, **options))
        self.do(Op.FETCH)

    @property
    def settings(self):
        """Values of the `cfg_*` ports."""
        values = {f"cfg_{name}": int(getattr(self.config, name)) for name in SETTINGS}
        return {
            **values,
            "cfg_store_base": self.BASE,
            "cfg_max_descriptor_bytes": self.config.max_descriptor_bytes % 4096,
        }

    def run(self, **options):
        """Simulate the commands."""
        outputs = {
            "o": len(self.replies),
            "o_candidates": len(self.candidates),
            "o_dma": len(self.kvmu.descriptors),
            "o_complete": sum(reply.tagged for reply in self.replies),
        }
        config = {**self.settings, **options.pop("config", {})}
        options.setdefault("timeout_cycles", 20_000 + 2_000 * len(self.commands))
        options.setdefault("memory", self.initial)
        inputs = {"i": columns(self.commands, Command)}
        return simulate(self.unit, "kvmu", inputs, outputs, config=config, echo={"i_done": "o_dma"}, **options)

    def check_run(self, **options):
        """Simulate; compare replies, descriptors, candidates and the memory after each commit with the golden model."""
        record = self.run(**options)
        want = columns(self.replies, Reply)
        want["fault"] = np.array([FAULTS[cause] for cause in want["fault"].tolist()])
        got = {name: record.outputs["o"][name].astype(int) for name in want}
        different = np.flatnonzero(np.any([got[name] != want[name] for name in want], axis=0))
        if len(different):
            first = different[0]
            shown = [{name: int(side[name][first]) for name in want} for side in (got, want)]
            raise AssertionError(f"reply {first}: got {shown[0]}, want {shown[1]}")
        if self.kvmu.descriptors:
            for name, column in columns(self.kvmu.descriptors, Descriptor).items():
                assert record.outputs["o_dma"][name].astype(int).tolist() == column.tolist(), name
        for name in self.candidates[0] if self.candidates else ():
            got = record.outputs["o_candidates"][name].astype(int).tolist()
            assert got == [beat[name] for beat in self.candidates], name
        self._check_commits(record)
        return record

    def tables(self):
        """Byte ranges of the tables that the RTL must write as the golden model does."""
        return {name: span for name, span in regions(self.store).items() if not name.startswith(NOT_COMPARED)}

    def difference(self, memory, expected):
        """First table whose bytes differ, with offset and both words; None if all are equal."""
        for name, (start, end) in self.tables().items():
            wrong = np.flatnonzero(memory[start:end] != expected[start:end])
            if len(wrong):
                at = start + wrong[0] // 4 * 4
                words = [side[at : at + 4].view("<u4")[0] for side in (memory, expected)]
                return f"{name} + {at - start}: got {words[0]:#x}, want {words[1]:#x}"
        return None

    def _check_commits(self, record):
        """The memory after each commit, from the sequence of writes."""
        memory, nbytes = self.initial.copy(), self.unit.sizes.word // 8
        step = self.BASE + STEP_OFFSET
        commits = 0
        for (address, _, _), word in zip(record.memory["written"], record.memory["words"], strict=True):
            before = memory[step : step + 4].view("<u4")[0]
            memory[address * nbytes : (address + 1) * nbytes] = word
            if memory[step : step + 4].view("<u4")[0] != before:
                commits += 1
                difference = self.difference(memory, self.committed[commits])
                assert difference is None, f"commit {commits}: {difference}"
        assert commits == len(self.committed) - 1

    def check_recovery(self, record, rng, count):
        """Interrupt the run at random moments; recovery gives the store before or after the step in progress."""
        written, words = record.memory["written"], record.memory["words"]
        acknowledged = record.memory["acknowledged"]
        nbytes, step = self.unit.sizes.word // 8, self.BASE + STEP_OFFSET
        end = int(acknowledged.max())
        # the run can end before the last write is acknowledged
        jobs = 1 + max((job for _, job, _ in written.tolist()), default=-1)
        acknowledged = np.append(acknowledged, np.full(max(0, jobs - len(acknowledged)), end + 1))
        moments = np.sort(rng.integers(0, end + 1, count))
        for moment in moments.tolist():
            memory = self.initial.copy()
            cuts = {}  # words of each job without acknowledgement that have reached memory
            done = {}
            for (address, job, when), word in zip(written.tolist(), words, strict=True):
                if acknowledged[job] > moment:
                    if when > moment:
                        continue
                    cut = cuts.setdefault(job, int(rng.integers(0, 3 * self.unit.sizes.line // self.unit.sizes.word)))
                    done[job] = done.get(job, 0) + 1
                    if done[job] > cut:
                        continue
                memory[address * nbytes : (address + 1) * nbytes] = word
            commits = int(memory[step : step + 4].view("<u4")[0] - self.initial[step : step + 4].view("<u4")[0])
            restored = recover(memory, self.BASE)
            memory[step : step + 4].view("<u4")[0] -= restored > 0
            difference = self.difference(memory, self.committed[commits])
            assert difference is None, f"cycle {moment}, step {commits}, {restored} lines: {difference}"
