"""What a unit is given while its activity is counted: nothing, random bits, or what real keys make of its inputs.

Units of the retrieval engine get the steps of a stream: ten tokens are clustered, then two of their keys, as queries,
score all clusters. The matrix engine multiplies keys by other keys, the vector engine takes their softmax and hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

import numpy as np
from ml_dtypes import bfloat16

from compiler import vector_programs as programs
from golden.clustering import Assignment, ClusterRule, ClusterTable
from golden.hashing import hash_codes, hyperplanes
from golden.hc_table import HcTable as GoldenTable
from golden.kvmu import Command, Kvmu, KvmuConfig, Reply
from golden.kvmu import Op as PageOp
from golden.kvpu import HeadScores, Kvpu
from golden.mean_keys import MeanKeys
from golden.scores import codes as score_codes
from golden.scores import dots
from golden.selection import RESV
from golden.vpe import widen
from golden.wicsum import RowSelections, select
from hw.arith.dot import DotTree
from hw.dre.hc_table import HcTable
from hw.dre.hc_table import Op as TableOp
from hw.dre.hcu import HCU, Op
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.kvpu import KVPU
from hw.dre.wtu.command import Op as RowOp
from hw.dre.wtu.wtu import WTU
from hw.lxe.dpe import DPE
from hw.lxe.memory import OperandMemory
from hw.lxe.microcode import Instruction
from hw.lxe.vpe import VPE
from sim.ports import hc_table_config, hc_table_ports, hcu_ports, kvmu_config, kvmu_ports, kvpu_ports, wtu_ports

IDLE, RANDOM = "idle", "random"
IDLE_CYCLES = 1000
BEATS = 200  # tokens of a stream
STEP = 10  # tokens of one step, as of a frame
QUERIES = 2  # rows of scores of a step
TARGET = 19661  # V-Rex's ratio of 0.3 in 1/65536


@dataclass(frozen=True)
class Stimulus:
    """Streams and settings of one run, as `sim.bench.run.simulate` takes them.

    `answers`: the golden model's beats of the output streams as payload columns, for the units that give them.
    """

    name: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, int]
    config: Mapping[str, int] = field(default_factory=dict)
    echo: Mapping[str, str] = field(default_factory=dict)
    drain_cycles: int = 8
    answers: Mapping[str, Any] = field(default_factory=dict)


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
        known = ", ".join(sorted(unit.__name__ for unit in _UNITS))
        raise ValueError(f"unit {type(component).__name__}: no stimulus is known for it, only for {known}")
    if name not in (IDLE, RANDOM) and (keys is None or not len(keys)):
        raise ValueError(f"stimulus {name!r}: must be {IDLE}, {RANDOM} or come with keys")
    rng = np.random.default_rng(seed)
    count = 0 if name == IDLE else beats
    return _UNITS[type(component)](component, name, keys if name not in (IDLE, RANDOM) else None, count, rng)


def _drain(count: int) -> int:
    return 8 if count else IDLE_CYCLES


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
    """Beats as payload columns of a layout; fields that a beat has not are 0."""
    columns = {}
    for name, one in layout:
        length = getattr(one.shape, "length", None)
        kind = object if length is None and one.width > 63 else np.int64
        column = np.array([beat.get(name, 0) for beat in beats], kind)
        columns[name] = column.reshape(len(beats), *([length] if length else []))
    return columns


def _code(op: Any) -> int:
    """The number of an operation: type checkers do not see through Amaranth's enumerations."""
    return int(op.value)


def _hcu(unit: HCU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Tokens in steps."""
    codes = _codes(keys, unit.hash_bits, count, rng)
    n = len(codes)
    token = _code(Op.TOKEN)
    beats = {"op": np.full(n, token), "hash": codes, "last": np.arange(n) % STEP == STEP - 1}
    rule = ClusterRule(hamming_threshold=_threshold(unit.hash_bits), window_tokens=unit.max_window_tokens)
    return Stimulus(name, {"i": beats}, {"o": n}, hcu_ports(rule), drain_cycles=_drain(n))


@dataclass(frozen=True)
class _Step:
    """Some tokens: first token, hash codes, clusters they joined; then tokens of every cluster, rows of scores."""

    first: int
    codes: np.ndarray
    assigned: Assignment
    counts: np.ndarray
    rows: np.ndarray

    @property
    def tokens(self) -> Iterator[dict[str, Any]]:
        """What the HC table is told of each token."""
        for n, code in enumerate(self.codes.tolist()):
            found = {name: int(getattr(self.assigned, name)[n]) for name in ("cluster", "count", "opened")}
            yield {"token": self.first + n, "hash": code, **found}

    def chosen(self) -> RowSelections:
        return select(self.rows, self.counts, TARGET, RESV)


def _steps(
    keys: np.ndarray | None, bits: int, rule: ClusterRule, count: int, rng: np.random.Generator
) -> Iterator[_Step]:
    """The steps of a stream; queries are the keys of the step's first tokens."""
    codes = _codes(keys, bits, count, rng)
    flat = None if keys is None else keys[: len(codes)].reshape(len(codes), -1)
    clusters, means = ClusterTable(rule), None if flat is None else MeanKeys(flat.shape[1])
    for first in range(0, len(codes), STEP):
        part = codes[first : first + STEP]
        assigned = clusters.assign(part)
        if flat is None or means is None:
            rows = rng.integers(0x3C00, 0x3F81, (QUERIES, len(clusters)))
        else:
            means.update(flat[first : first + STEP], assigned.cluster, clusters.counts)
            queries = flat[first : first + QUERIES].astype(np.float64)
            rows = score_codes(dots(queries, means.means.astype(np.float64)), flat.shape[1]).astype(np.int64)
        yield _Step(first, part, assigned, clusters.counts.astype(np.int64), rows)


def _rule(bits: int, clusters: int) -> ClusterRule:
    return ClusterRule(hamming_threshold=_threshold(bits), window_tokens=0, max_clusters=clusters)


Bases = tuple[int, int, int, int]


def _bases(address_bits: int, offset: int = 0) -> Bases:
    """Four regions far apart in the address space."""
    first, second, third, fourth = ((k << address_bits - 3) + offset for k in range(1, 5))
    return first, second, third, fourth


def _packets(parts: Sequence[tuple[np.ndarray, dict[str, int]]], lanes: int) -> list[dict[str, Any]]:
    """Rows of words as beats of `lanes`; what goes with a row is in each of its beats."""
    beats = []
    for words, along in parts:
        for first in range(0, max(1, len(words)), lanes):
            part = words[first : first + lanes]
            padded = np.pad(part, (0, lanes - len(part)))
            beats.append({**along, "words": padded, "used": len(part), "last": first + lanes >= len(words)})
    return beats


def _wtu(unit: WTU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """The counts and the rows of every step, joined."""
    lanes, parts, rows, beats, listed = unit.sizes.lanes, [], 0, 0, 0
    for step in _steps(keys, 32, _rule(32, unit.sizes.max_row_clusters), count, rng):
        parts.append((step.counts, {"op": _code(RowOp.COUNTS)}))
        for k, row in enumerate(step.rows):
            along = {"op": _code(RowOp.KEYS), "join": int(k + 1 < len(step.rows))}
            parts.append((row, along))
        rows += len(step.rows)
        beats += -(-len(step.counts) // lanes)
        listed += int(np.logical_or.reduce(step.chosen().selected, axis=0).sum()) + 1
    inputs = {"i": _columns(_packets(parts, lanes), unit.sizes.beat)}
    config = wtu_ports(RESV, TARGET)
    return Stimulus(name, inputs, {"o_row": rows, "o": beats, "o_index": listed}, config, drain_cycles=_drain(count))


def _hc_table(unit: HcTable, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Every token of a step, the counts, the entry and the tokens of the cluster that the last one joined."""
    config = hc_table_config(unit, _bases(unit.address_bits))
    table = GoldenTable(config)
    commands: list[dict[str, int]] = []
    replies = beats = 0
    for step in _steps(keys, unit.hash_bits, _rule(unit.hash_bits, unit.max_clusters), count, rng):
        for token in step.tokens:
            table.update(**token)
            commands.append({"op": _code(TableOp.UPDATE), **token})
        cluster = int(step.assigned.cluster[-1])
        asked = (TableOp.COUNTS, TableOp.READ, TableOp.LIST)
        commands += [{"op": _code(op), "cluster": cluster} for op in asked]
        beats += len(table.counts(unit.lanes))
        replies += 1 + len(table.pages(cluster))
    outputs = {"o": replies, "o_counts": beats, "o_write": len(table.writes)}
    inputs = {"i": _columns(commands, unit.command)}
    return Stimulus(name, inputs, outputs, hc_table_ports(config), drain_cycles=_drain(count))


def _pages(unit: KVMU, bases: Bases) -> KvmuConfig:
    """The golden configuration: at most half of the stream's tokens stay resident."""
    max_resident_tokens = min(BEATS // 2, unit.page_frames * unit.page_tokens // 4)
    return kvmu_config(unit, bases=bases, staging_head_pages=64, max_resident_tokens=max_resident_tokens)


def _paging(golden: Kvmu, replies: Sequence[Reply]) -> dict[str, list[dict[str, Any]]]:
    """What leaves a KVMU: its replies, its descriptors, and the tags that are completed in their order."""
    return {
        "o": [asdict(reply) for reply in replies],
        "o_dma": [asdict(descriptor) for descriptor in golden.descriptors],
        "o_complete": [{"tag": reply.tag} for reply in replies if reply.tagged],
    }


def _answered(unit: Any, asked: Stimulus, answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Stimulus:
    """The stimulus with the golden model's beats of every output stream."""
    columns = {name: _columns(told, getattr(unit, name).payload.shape()) for name, told in answers.items()}
    return replace(asked, outputs={name: len(told) for name, told in answers.items()}, answers=columns)


def _kvmu(unit: KVMU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """A place for every token, then the clusters that the step selects for one head, their pages, and the offload."""
    config = _pages(unit, _bases(unit.address_bits))
    golden, commands, replies = Kvmu(config), [], []
    for number, step in enumerate(_steps(keys, 32, _rule(32, unit.max_clusters), count, rng)):
        heads = 1 << number % unit.kv_heads
        asked = [Command(PageOp.APPEND, cluster=cluster) for cluster in step.assigned.cluster.tolist()]
        selected = np.flatnonzero(np.logical_or.reduce(step.chosen().selected, axis=0)).tolist()
        asked += [Command(PageOp.SELECT, cluster=cluster, heads=heads) for cluster in selected]
        asked += [Command(PageOp.FETCH, bank=number % 2), Command(PageOp.STEP)]
        commands += asked
        replies += [reply for command in asked for reply in golden.execute(command)]
    answers = _paging(golden, replies)
    inputs = {"i": {f.name: np.array([int(getattr(c, f.name)) for c in commands], np.int64) for f in fields(Command)}}
    return _answered(unit, Stimulus(name, inputs, {}, kvmu_ports(config), {"i_done": "o_dma"}, _drain(count)), answers)


def _kvpu(unit: KVPU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """The whole chain: codes of the step's tokens, then its rows of scores for one head."""
    hcu, wtu = cast(HCU, unit.units["hcu"]), cast(WTU, unit.units["wtu"])
    table = hc_table_config(unit.table, _bases(unit.table.address_bits))
    paging = _pages(unit.kvmu, _bases(unit.kvmu.address_bits, offset=1 << unit.kvmu.address_bits - 4))
    rule = ClusterRule(hamming_threshold=_threshold(hcu.hash_bits), window_tokens=0, max_candidates=hcu.max_candidates)
    golden = Kvpu(rule, table, paging, RESV, TARGET)
    beats: list[dict[str, int]] = []
    parts: list[tuple[np.ndarray, dict[str, int]]] = []
    assigned: list[dict[str, int]] = []
    cutoffs: list[dict[str, int]] = []
    replies: list[Reply] = []
    for number, step in enumerate(_steps(keys, hcu.hash_bits, rule, count, rng)):
        head = number % unit.kvmu.kv_heads
        given = golden.step(step.codes, [HeadScores(head, step.rows)])
        replies += given.replies
        for n, token in enumerate(step.tokens):
            found = {name: int(getattr(given.assignment, name)[n]) for name in ("distance", "overflow")}
            assigned.append({**token, **found, "last": int(n + 1 == len(step.codes))})
        for rows in given.rows:
            cutoffs += [{"cutoff": int(c), "passes": int(p)} for c, p in zip(rows.cutoff, rows.passes, strict=True)]
        ends = np.arange(len(step.codes)) == len(step.codes) - 1
        beats += [{"hash": code, "query": 1, "last": int(end)} for code, end in zip(step.codes, ends, strict=True)]
        for k, row in enumerate(step.rows):
            final = int(k + 1 == len(step.rows))
            parts.append((row, {"head": head, "join": 1 - final, "final": final}))
    answers = {
        "o_assignment": assigned,
        "o_row": cutoffs,
        "o_write": [
            {"address": place, "data": int.from_bytes(value, "little"), "bytes": len(value)}
            for place, value in golden.table.writes
        ],
        **_paging(golden.kvmu, replies),
    }
    inputs = {
        "i": _columns(beats, unit.i.payload.shape()),
        "i_scores": _columns(_packets(parts, wtu.sizes.lanes), unit.i_scores.payload.shape()),
    }
    return _answered(unit, Stimulus(name, inputs, {}, kvpu_ports(golden), {"i_done": "o_dma"}, _drain(count)), answers)


def _vectors(keys: np.ndarray | None, rows: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """BF16 codes (rows, width): keys one after the other, over again when they end; or normal deviates."""
    if keys is None:
        return rng.standard_normal((rows, width)).astype(bfloat16).view(np.uint16)
    flat = keys.reshape(len(keys), -1)
    wide = np.tile(flat, (1, -(-width // flat.shape[1])))[:, :width]
    return wide[np.arange(rows) % len(wide)].astype(bfloat16).view(np.uint16)


def _dot_tree(unit: DotTree, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Keys times hyperplanes, slice by slice: the products that hash bits are made of; or normal deviates."""
    if keys is None:
        a, b = rng.standard_normal((2, count, unit.inputs)).astype(bfloat16)
    else:
        flat = keys[:count].reshape(len(keys[:count]), -1)
        planes = hyperplanes(flat.shape[1]).T
        slices = flat.shape[1] // unit.inputs
        if not slices:
            raise ValueError(f"keys of dimension {flat.shape[1]}: must be at least {unit.inputs}")
        token, part = np.divmod(np.arange(count), slices)
        columns = part[:, None] * unit.inputs + np.arange(unit.inputs)
        a = flat[token % len(flat), :][np.arange(count)[:, None], columns]
        b = planes[(token // len(flat)) % len(planes), :][np.arange(count)[:, None], columns]
    beats = {"a": a.view(np.uint16), "b": b.view(np.uint16)}
    return Stimulus(name, {"i": beats}, {"o": len(a)}, drain_cycles=_drain(count))


def _dpe(unit: DPE, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Tiles of keys times columns of other keys, as a frame's scores; each result sums two tiles."""
    columns = min(STEP, unit.slots)
    tiles = -(-count // columns)
    weights = _vectors(keys, tiles * unit.trees, unit.inputs, rng)
    x = _vectors(None if keys is None else keys[::-1], tiles * columns, unit.inputs, rng)
    tile, slot = np.divmod(np.arange(tiles * columns), columns)
    last = (tile % 2 == 1) | (tile == tiles - 1)
    flags = {"slot": slot, "first": tile % 2 == 0, "last": last, "release": slot == columns - 1}
    inputs = {"i": {"x": x, **flags}, "i_weights": weights.reshape(-1, unit.load_rows, unit.inputs)}
    return Stimulus(name, inputs, {"o": int(last.sum())}, drain_cycles=_drain(count))


def _operand_memory(
    unit: OperandMemory, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator
) -> Stimulus:
    """What the matrix engine reads for such columns, while a row a cycle is written: weights and activations in turn.

    Its tiles are square, as in every preset.
    """
    columns = min(STEP, unit.slots)
    tiles = -(-count // columns)
    rows, reads = np.arange(count), np.arange(tiles * columns)
    into = rows % 2
    place = np.where(into, rows % unit.activation_rows, rows % unit.weight_rows)
    write = {"row": place, "activations": into, "codes": _vectors(keys, count, unit.inputs, rng)}
    tile, slot = np.divmod(reads, columns)
    flags = {"slot": slot, "first": tile % 2 == 0, "last": tile % 2 == 1, "release": slot == columns - 1}
    weights = np.arange(tiles * unit.inputs // unit.load_rows) % (unit.weight_rows // unit.load_rows)
    inputs = {
        "i_write": write,
        "i_weights": weights,
        "i_activations": {"row": reads % unit.activation_rows, **flags},
    }
    outputs = {"o_weights": len(weights), "o_activations": len(reads)}
    return Stimulus(name, inputs, outputs, drain_cycles=_drain(count))


def _vpe(unit: VPE, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Softmax of rows that fill the lanes, the norm that precedes a layer, and hash bits, over and over."""
    lanes = unit.lanes
    wide = 4 * lanes
    kinds = (
        (programs.softmax(wide, lanes, 64), 4),
        (programs.rms_norm(wide, lanes), 8),
        (programs.hash_bits(min(32, lanes), lanes, 4), 4),
    )
    program: list[Instruction] = []
    beats = 0
    while beats < count:
        for code, taken in kinds:
            program += code
            beats += taken
    stream = widen(_vectors(keys, beats, lanes, rng))
    rows = [op.fields() for op in program]
    code_columns = {n: np.array([row[n] for row in rows], np.int64) for n in Instruction().fields()}
    results = sum(op.results for op in program)
    return Stimulus(name, {"code": code_columns, "i": stream}, {"o": results}, drain_cycles=_drain(count))


_UNITS: dict[type, Callable[..., Stimulus]] = {
    HCU: _hcu,
    HcTable: _hc_table,
    WTU: _wtu,
    KVMU: _kvmu,
    KVPU: _kvpu,
    DotTree: _dot_tree,
    DPE: _dpe,
    OperandMemory: _operand_memory,
    VPE: _vpe,
}
