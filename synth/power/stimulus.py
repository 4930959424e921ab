"""Input streams of a unit for the measurement of its activity: idle, random bits, or inputs computed from real keys.

The units of the retrieval engine process the steps of a stream. In a step ten tokens are clustered, then two of their
keys, as queries, score all clusters. The matrix engine multiplies keys by other keys. The vector engine computes
softmax, norms and hash bits. The KV codec encodes and decodes keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np

from golden.clustering import Assignment, ClusterRule, ClusterTable
from golden.hashing import hash_codes, hyperplanes
from golden.kvmu import Command, Kvmu, KvmuConfig, Reply
from golden.kvmu import Op as PageOp
from golden.kvpu import HeadScores, Kvpu
from golden.mean_keys import MeanKeys
from golden.scores import codes as score_codes
from golden.scores import dots
from golden.selection import RESV
from golden.store import ContextSizes, create_context, create_store, store_bytes
from golden.wicsum import RowSelections, select
from hw.arith.dot import DotTree
from hw.dre.hcu import HCU, Op
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.kvpu import KVPU
from hw.dre.kvpu import Op as KvpuOp
from hw.dre.wtu.wtu import WTU
from hw.kv_codec.bfp_decoder import BfpDecoder
from hw.kv_codec.bfp_encoder import BfpEncoder
from hw.kv_codec.kv_decoder import KvDecoder
from hw.kv_codec.kv_encoder import KvEncoder
from hw.lxe.dpe import DPE
from hw.lxe.operand_memory import OperandMemory
from hw.lxe.vpe import VPE
from hw.weight_codec.weight_decoder import WeightDecoder
from sim.ports.hcu import hcu_ports
from sim.ports.kvmu import kvmu_config, kvmu_ports, store_sizes
from sim.ports.kvpu import kvpu_ports
from sim.ports.wtu import wtu_ports
from synth.power import engine_stimulus
from synth.power.streams import BEATS, IDLE, RANDOM, STEP, Stimulus, drain

QUERIES = 2  # rows of scores of a step
STORE_BASE, LOG_ENTRIES = 0x1000, 4096  # byte address of the store in memory, entries of its undo log
MAX_BACKING_BITS = 44  # width of the address of an offloaded page, which a context header holds in units of 4 KiB
TARGET = 19661  # V-Rex's ratio of 0.3 in 1/65536


def stimulus(
    component: Any, name: str, *, keys: np.ndarray | None = None, beats: int = BEATS, seed: int = 0
) -> Stimulus:
    """The stimulus `name` for a unit: `idle`, `random`, or any other name for `keys`, bfloat16 (T, dimension).

    Raises
    ------
    ValueError
        The unit has no stimulus, or keys are missing.
    """
    if type(component) not in _UNITS:
        unit_names = ", ".join(sorted(unit.__name__ for unit in _UNITS))
        raise ValueError(f"unit must be one of {unit_names} to have a stimulus, got {type(component).__name__}")
    if name not in (IDLE, RANDOM) and (keys is None or not len(keys)):
        raise ValueError(f"stimulus must be {IDLE}, {RANDOM} or have keys, got {name!r} without keys")
    rng = np.random.default_rng(seed)
    count = 0 if name == IDLE else beats
    return _UNITS[type(component)](component, name, keys if name not in (IDLE, RANDOM) else None, count, rng)


def _codes(keys: np.ndarray | None, bits: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Hash codes of the first `count` keys, or random ones."""
    if keys is None:
        return rng.integers(0, 1 << bits, count)
    flat = keys[:count].reshape(len(keys[:count]), -1)
    return hash_codes(flat, hyperplanes(flat.shape[1], bits))


def _threshold(bits: int) -> int:
    """The paper's 7 of 32 bits in proportion (V-Rex, section VI-A)."""
    return round(7 * bits / 32)


def _columns(beats: Sequence[Mapping[str, Any]], layout: Any) -> dict[str, np.ndarray]:
    """Beats as payload columns of a layout; fields that are missing in a beat are 0."""
    columns = {}
    for name, field_layout in layout:
        length = getattr(field_layout.shape, "length", None)
        kind = object if length is None and field_layout.width > 63 else np.int64
        column = np.array([beat.get(name, 0) for beat in beats], kind)
        columns[name] = column.reshape(len(beats), *([length] if length else []))
    return columns


def _code(op: Any) -> int:
    """The number of an operation; type checkers do not know members of Amaranth's enumerations."""
    return int(op.value)


def _hcu(unit: HCU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Hash codes of the tokens, step by step."""
    codes = _codes(keys, unit.hash_bits, count, rng)
    n = len(codes)
    token, last = _code(Op.TOKEN), np.arange(n) % STEP == STEP - 1
    beats = {"op": np.full(n, token), "hash": codes, "last": last}
    rule = ClusterRule(
        hamming_threshold=_threshold(unit.hash_bits),
        window_tokens=unit.max_window_tokens,
        max_candidates=unit.max_candidates,
    )
    result = ClusterTable(rule).assign(codes)
    names = ("cluster", "count", "distance", "opened", "overflow")
    answers = {"token": np.arange(n), "hash": codes, "last": last, **{name: getattr(result, name) for name in names}}
    return Stimulus(name, {"i": beats}, {"o": n}, hcu_ports(rule), drain_cycles=drain(n), answers={"o": answers})


@dataclass(frozen=True)
class _Step:
    """One step: first token, hash codes and assignment of its tokens; token counts of clusters, rows of scores."""

    first: int
    codes: np.ndarray
    assignment: Assignment
    counts: np.ndarray
    rows: np.ndarray

    @property
    def tokens(self) -> Iterator[dict[str, Any]]:
        """Number, hash code and assignment of each token."""
        for n, code in enumerate(self.codes.tolist()):
            assignment_fields = {
                name: int(getattr(self.assignment, name)[n]) for name in ("cluster", "count", "opened")
            }
            yield {"token": self.first + n, "hash": code, **assignment_fields}

    def selection(self) -> RowSelections:
        """The clusters that the policy selects for each row."""
        return select(self.rows, self.counts, TARGET, RESV)


def _steps(
    keys: np.ndarray | None, bits: int, rule: ClusterRule, count: int, rng: np.random.Generator
) -> Iterator[_Step]:
    """The steps of a stream; queries are the keys of the step's first tokens."""
    codes = _codes(keys, bits, count, rng)
    flat = None if keys is None else keys[: len(codes)].reshape(len(codes), -1)
    clusters, means = ClusterTable(rule), None if flat is None else MeanKeys(flat.shape[1])
    for first in range(0, len(codes), STEP):
        chunk = codes[first : first + STEP]
        assignment = clusters.assign(chunk)
        if flat is None or means is None:
            rows = rng.integers(0x3C00, 0x3F81, (QUERIES, len(clusters)))
        else:
            means.update(flat[first : first + STEP], assignment.cluster, clusters.counts)
            queries = flat[first : first + QUERIES].astype(np.float64)
            rows = score_codes(dots(queries, means.means.astype(np.float64)), flat.shape[1]).astype(np.int64)
        yield _Step(first, chunk, assignment, clusters.counts.astype(np.int64), rows)


def _rule(bits: int, clusters: int) -> ClusterRule:
    """The paper's clustering rule for hash codes of `bits`, without window."""
    return ClusterRule(hamming_threshold=_threshold(bits), window_tokens=0, max_clusters=clusters)


def _packets(packets: Sequence[tuple[Mapping[str, np.ndarray], dict[str, int]]], lanes: int) -> list[dict[str, Any]]:
    """Rows of words, by field, as beats of `lanes`; the other fields of a row are in each of its beats."""
    beats = []
    for arrays, row_fields in packets:
        length = len(arrays["words"])
        for first in range(0, max(1, length), lanes):
            used = min(lanes, length - first)
            padded = {name: np.pad(words[first : first + lanes], (0, lanes - used)) for name, words in arrays.items()}
            beats.append({**row_fields, **padded, "used": used, "last": first + lanes >= length})
    return beats


def _wtu(unit: WTU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """The rows of every step with their token counts, joined."""
    lanes, packets = unit.sizes.lanes, []
    answers: dict[str, list[dict[str, int]]] = {name: [] for name in ("o_row", "o", "o_index", "o_again")}
    for step in _steps(keys, 32, _rule(32, unit.sizes.pairs), count, rng):
        for k, row in enumerate(step.rows):
            packets.append(({"words": row, "counts": step.counts}, {"join": int(k + 1 < len(step.rows))}))
        rows = step.selection()
        answers["o_row"] += [
            {"cutoff": int(c), "passes": int(p)} for c, p in zip(rows.cutoff, rows.passes, strict=True)
        ]
        union = np.logical_or.reduce(rows.selected, axis=0)
        answers["o"] += [
            {
                "mask": sum(int(bit) << k for k, bit in enumerate(union[first : first + lanes])),
                "first": first,
                "last": int(first + lanes >= len(union)),
            }
            for first in range(0, max(1, len(union)), lanes)
        ]
        clusters = np.flatnonzero(union).tolist()
        answers["o_index"] += [{"cluster": cluster, "last": 0} for cluster in clusters]
        answers["o_index"].append({"cluster": len(clusters), "last": 1})
    inputs = {"i": _columns(_packets(packets, lanes), unit.sizes.beat)}
    config = wtu_ports(RESV, TARGET)
    return _with_answers(unit, Stimulus(name, inputs, {}, config, drain_cycles=drain(count)), answers)


@dataclass(frozen=True)
class _StoreImage:
    """Memory with a store of one context, and the golden configuration of a KVMU on it."""

    memory: np.ndarray
    config: KvmuConfig

    @classmethod
    def of(cls, unit: KVMU) -> _StoreImage:
        """A store with the sizes of `unit`; at most half of the stream's tokens are resident."""
        sizes = unit.sizes
        shared = store_sizes(unit, contexts=1, page_frames=sizes.page_frames, log_entries=LOG_ENTRIES)
        own = ContextSizes(max_clusters=sizes.max_clusters, max_pages=min(sizes.max_pages, 4 * BEATS))
        memory = np.zeros(STORE_BASE + store_bytes(shared, [own]), np.uint8)
        store = create_store(memory, STORE_BASE, shared)
        bases = {
            name: k << min(sizes.address_bits, MAX_BACKING_BITS) - 3
            for k, name in enumerate(("frames", "host", "storage", "staging"), 1)
        }
        backing = {"host_base": bases["host"], "storage_base": bases["storage"]}
        create_context(store, 0, own, STORE_BASE + shared.nbytes, **backing)
        config = kvmu_config(
            unit,
            page_frames_base=bases["frames"],
            staging_base=bases["staging"],
            staging_head_pages=64,
            window_tokens=0,
            max_resident_tokens=min(BEATS // 2, sizes.page_frames * sizes.page_tokens // 4),
        )
        return cls(memory, config)


def _paging(golden: Kvmu, replies: Sequence[Reply]) -> dict[str, list[dict[str, Any]]]:
    """Beats of a KVMU's output streams: replies, descriptors, and completed tags in order."""
    return {
        "o": [asdict(reply) for reply in replies],
        "o_dma": [asdict(descriptor) for descriptor in golden.descriptors],
        "o_complete": [{"tag": reply.tag} for reply in replies if reply.tagged],
    }


def _with_answers(unit: Any, plain: Stimulus, answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Stimulus:
    """The stimulus with the golden model's beats of every output stream."""
    columns = {name: _columns(beats, getattr(unit, name).payload.shape()) for name, beats in answers.items()}
    return replace(plain, outputs={name: len(beats) for name, beats in answers.items()}, answers=columns)


def _kvmu(unit: KVMU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """A slot for every token, then the clusters that the step selects for one head, their pages, and the offload."""
    image, sizes = _StoreImage.of(unit), unit.sizes
    before = image.memory.copy()
    golden = Kvmu(image.config, image.memory, STORE_BASE)
    commands = [Command(PageOp.OPEN)] if count else []
    replies = [reply for command in commands for reply in golden.execute(command)]
    for number, step in enumerate(
        _steps(keys, sizes.hash_bits, _rule(sizes.hash_bits, sizes.max_clusters), count, rng)
    ):
        heads = 1 << number % sizes.kv_heads
        step_commands = [
            Command(PageOp.APPEND, cluster=token["cluster"], opened=token["opened"], hash=token["hash"])
            for token in step.tokens
        ]
        selected = np.flatnonzero(np.logical_or.reduce(step.selection().selected, axis=0)).tolist()
        selects = [Command(PageOp.SELECT, cluster=cluster, heads=heads, bank=number % 2) for cluster in selected]
        step_commands += [*selects, Command(PageOp.FETCH), Command(PageOp.STEP)]
        commands += step_commands
        replies += [reply for command in step_commands for reply in golden.execute(command)]
    answers = {"o_candidates": [{"begin": 1, "last": 1}] * len(commands[:1]), **_paging(golden, replies)}
    inputs = {"i": {f.name: np.array([int(getattr(c, f.name)) for c in commands], np.int64) for f in fields(Command)}}
    return _with_answers(
        unit,
        Stimulus(
            name,
            inputs,
            {},
            kvmu_ports(image.config, STORE_BASE),
            {"i_done": "o_dma"},
            drain(count),
            memory=before,
        ),
        answers,
    )


def _kvpu(unit: KVPU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """The complete retrieval: codes of the step's tokens, then its rows of scores for one head."""
    hcu, wtu = cast(HCU, unit.units["hcu"]), cast(WTU, unit.units["wtu"])
    image = _StoreImage.of(unit.kvmu)
    before = image.memory.copy()
    rule = ClusterRule(hamming_threshold=_threshold(hcu.hash_bits), window_tokens=0, max_candidates=hcu.max_candidates)
    golden = Kvpu(rule, image.config, image.memory, STORE_BASE, RESV, TARGET)
    beats: list[dict[str, int]] = [{"op": _code(KvpuOp.OPEN)}] if count else []
    packets: list[tuple[dict[str, np.ndarray], dict[str, int]]] = []
    assignments: list[dict[str, int]] = []
    cutoffs: list[dict[str, int]] = []
    requests: list[dict[str, int]] = []
    replies = golden.open(0) if count else []
    for number, step in enumerate(_steps(keys, hcu.hash_bits, rule, count, rng)):
        head = number % unit.kvmu.sizes.kv_heads
        step_result = golden.step(step.codes, [HeadScores(head, step.rows)])
        appended = len(step.codes)
        replies += [*step_result.replies[:appended], Reply(PageOp.SYNC, last=1), *step_result.replies[appended:]]
        for n, token in enumerate(step.tokens):
            more_fields = {name: int(getattr(step_result.assignment, name)[n]) for name in ("distance", "overflow")}
            assignments.append({**token, **more_fields, "last": int(n + 1 == len(step.codes))})
        for rows in step_result.rows:
            cutoffs += [{"cutoff": int(c), "passes": int(p)} for c, p in zip(rows.cutoff, rows.passes, strict=True)]
        ends = np.arange(len(step.codes)) == len(step.codes) - 1
        beats += [{"hash": code, "query": 1, "last": int(end)} for code, end in zip(step.codes, ends, strict=True)]
        ends_step = ({"op": _code(KvpuOp.FETCH)}, {"op": _code(KvpuOp.STEP)})
        beats += [{"op": _code(KvpuOp.SELECT), "head": head}, *ends_step]
        (results,) = step_result.rows
        is_long = len(step.counts) > wtu.sizes.pairs
        for k, row in enumerate(step.rows):
            times = wtu.packets(int(results.passes[k]), int(results.levels[k])) if is_long else 1
            row_fields = {"join": int(k + 1 < len(step.rows)), "long": int(is_long)}
            packets += times * [({"words": row, "counts": step.counts}, row_fields)]
            requests += [{"again": int(n + 1 < times)} for n in range(times)] if is_long else []
    answers = {
        "o_assignment": assignments,
        "o_row": cutoffs,
        "o_again": requests,
        "o_kept": [],
        **_paging(golden.kvmu, replies),
    }
    inputs = {
        "i": _columns(beats, unit.i.payload.shape()),
        "i_scores": _columns(_packets(packets, wtu.sizes.lanes), unit.i_scores.payload.shape()),
    }
    return _with_answers(
        unit,
        Stimulus(name, inputs, {}, kvpu_ports(golden), {"i_done": "o_dma"}, drain(count), memory=before),
        answers,
    )


_UNITS: dict[type, Callable[..., Stimulus]] = {
    HCU: _hcu,
    WTU: _wtu,
    KVMU: _kvmu,
    KVPU: _kvpu,
    DotTree: engine_stimulus.dot_tree,
    DPE: engine_stimulus.dpe,
    OperandMemory: engine_stimulus.operand_memory,
    VPE: engine_stimulus.vpe,
    KvEncoder: engine_stimulus.kv_encoder,
    KvDecoder: engine_stimulus.kv_decoder,
    BfpEncoder: engine_stimulus.kv_encoder,
    BfpDecoder: engine_stimulus.bfp_decoder,
    WeightDecoder: engine_stimulus.weight_decoder,
}
