"""Bins of the retrieval engine's units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from golden import hc_table as golden
from golden.selection import sortable
from hw.dre import hc_table, kvpu
from hw.dre.hcu import Op
from hw.dre.kvmu import command as kvmu_command
from hw.dre.wtu import command as wtu_command
from hw.dre.wtu.wtu import WtuDesign
from sim.coverage.bins.cover import RESET, Cover, Met, Run
from sim.ports import TABLE_AREAS


def _rows(columns: Any) -> Iterator[dict[str, int]]:
    """Payload columns as one dictionary a beat."""
    names = list(columns)
    for values in zip(*(np.asarray(columns[name]).tolist() for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


_HCU = ("exactly at the threshold", "tie", "count saturates", "overflow")
_WINDOW = "nearest leader too old"


def _hcu(run: Run) -> Iterator[Met]:
    """Token by token, with the distances to all leaders that this run opened."""
    rule = "first match" if run.config.get("cfg_first_match") else "nearest"
    window = run.config.get("cfg_window_tokens", 0)
    mode = f"{rule}, window" if window else rule
    limit = run.config.get("cfg_hamming_threshold", 0) + run.config.get("cfg_hamming_inclusive", 0)
    ops = np.asarray(run.inputs["i"]["op"])
    if (ops != Op.TOKEN.value).any():
        cycles = run.cycles["i"].tolist()
        yield from (
            ("table", Op(op).name, at) for op, at in zip(ops.tolist(), cycles, strict=True) if op != Op.TOKEN.value
        )
        if run.status["stat_fault"]:
            yield "table", "LOAD into a full table", cycles[-1]
        return
    out = run.outputs["o"]
    hashes, opened = np.asarray(out["hash"]).astype(np.uint64), np.asarray(out["opened"]).astype(bool)
    first_token = np.flatnonzero(opened)
    columns = [np.asarray(out[name]).tolist() for name in ("distance", "count", "overflow")]
    for n, (at, distance, count, overflow) in enumerate(zip(run.cycles["o"].tolist(), *columns, strict=True)):
        before = first_token[first_token < n]
        if not len(before):
            yield "table", "first token", at
            continue
        if overflow:
            yield mode, "overflow", at
            continue
        if count == run.config.get("cfg_max_cluster_tokens") and not opened[n]:
            yield mode, "count saturates", at
        apart = np.bitwise_count(hashes[before] ^ hashes[n])
        young = n - before <= window if window else np.ones(len(before), bool)
        if opened[n]:
            if window and (apart < limit).any() and not (apart[young] < limit).any():
                yield mode, _WINDOW, at
        else:
            if distance == limit - 1:
                yield mode, "exactly at the threshold", at
            if (apart[young] == distance).sum() > 1:
                yield mode, "tie", at


def _packets(run: Run, port: str = "i") -> Iterator[tuple[np.ndarray, np.ndarray, bool, bool]]:
    """Score rows of a stream, a long row once: words, token counts, `long` and `join`."""
    columns = {name: np.asarray(values) for name, values in run.inputs[port].items()}
    requests = iter(np.asarray(run.outputs["o_again"]["again"]).tolist())
    first, again = 0, 0
    for last in np.flatnonzero(columns["last"]).tolist():
        words, counts = (columns[name][first : last + 1].reshape(-1).astype(np.int64) for name in ("words", "counts"))
        used = len(words) - columns["words"].shape[1] + int(columns["used"][last])
        is_long = bool(columns["long"][first])
        if not again:
            yield words[:used], counts[:used], is_long, bool(columns["join"][last])
        again = next(requests) if is_long else 0
        first = last + 1


_KEYS = {
    wtu_command.KeyOrder.PLAIN: lambda words: words,
    wtu_command.KeyOrder.SIGNED: sortable,
    wtu_command.KeyOrder.REVERSED: lambda words: 0xFFFF - words,
}
_ROW = (
    "no cluster",
    "one cluster",
    "longest row",
    "whole beats",
    "part of a beat",
    "all keys equal",
    "several keys at the cutoff",
    "selected whole",
    "not selected whole",
    "saturated counts",
    "long row",
    "joined",
    "joined long rows",
)


def _wtu(run: Run) -> Iterator[Met]:
    """Row by row, with the cutoff that came out."""
    mode = wtu_command.SelectionMode(run.config["cfg_selection_mode"]).name.lower()
    keys_of = _KEYS[wtu_command.KeyOrder(run.config["cfg_key_order"])]
    sizes = run.component.sizes
    results = zip(np.asarray(run.outputs["o_row"]["cutoff"]).tolist(), run.cycles["o_row"].tolist(), strict=True)
    for words, counts, is_long, join in _packets(run):
        (cutoff, at), used = next(results), len(words)
        if not used:
            yield mode, "no cluster", at
            continue
        if used > (sizes.max_row_clusters if is_long else sizes.pairs):
            yield mode, "too long", at
            continue
        keys = keys_of(words)
        chosen = (keys >= cutoff).sum()
        yield mode, "selected whole" if chosen == used else "not selected whole", at
        yield mode, "part of a beat" if used % sizes.lanes else "whole beats", at
        conditions = {
            "one cluster": used == 1,
            "longest row": used == sizes.max_row_clusters,
            "all keys equal": used > 1 and (keys == keys[0]).all(),
            "several keys at the cutoff": (keys == cutoff).sum() > 1,
            "saturated counts": (counts == (1 << sizes.count_bits) - 1).any(),
            "long row": is_long,
            "joined": join and not is_long,
            "joined long rows": join and is_long,
        }
        yield from ((mode, name, at) for name, holds in conditions.items() if holds)


def _refused(*causes: str) -> tuple[str, ...]:
    return tuple(f"refused: {cause}" for cause in causes)


def _hc_table(run: Run) -> Iterator[Met]:
    """Command by command, with the golden table as the state."""
    unit = run.component
    sizes = {
        n: getattr(unit, n) for n in ("max_clusters", "max_list_pages", "list_page_tokens", "key_dim", "address_bits")
    }
    record, list_, link, mean, counts = (run.config.get(f"cfg_{name}_base", 0) for name in TABLE_AREAS)
    table = golden.HcTable(golden.HcTableConfig(**sizes, bases=(record, list_, link, mean, counts)))
    codes: dict[int, Any] = {op.value: op for op in hc_table.Op}
    for at, beat in zip(run.cycles["i"].tolist(), _rows(run.inputs["i"]), strict=True):
        op, met = codes.get(beat["op"]), "done"
        fields: dict[str, Any] = {name: beat[name] for name in ("token", "cluster", "hash", "count", "opened")}
        if op is None:
            yield "no operation", "refused", at
            continue
        name = op.name
        fault = golden.Fault.NONE
        if op is hc_table.Op.UPDATE:
            writes = len(table.writes)
            fault = table.update(**fields)
            met = "opens" if beat["opened"] else "new page" if len(table.writes) - writes > 2 else "joins"
        elif op is hc_table.Op.BEGIN:
            fault = table.begin(beat["first"])
        elif op is hc_table.Op.LOAD:
            fault = table.load(golden.Entry(*(beat[n] for n in ("hash", "token", "count", "first", "newest"))))
        elif op is hc_table.Op.LINK:
            fault = table.link(beat["first"], beat["newest"])
        elif op is hc_table.Op.COUNTS:
            fault = golden.Fault.REGION if table.config.region_bad else fault
            size = len(table.entries)
            met = "empty table" if not size else "full table" if size == unit.max_clusters else "some clusters"
        else:
            fault = table.known(beat["cluster"])
            if not fault and op is hc_table.Op.LIST:
                met = "one page" if len(table.pages(beat["cluster"])) == 1 else "several pages"
        yield name, f"refused: {fault.name}" if fault else met, at


_TABLE: dict[str, tuple[str, ...]] = {
    "UPDATE": ("opens", "joins", "new page", *_refused("CLUSTER", "COUNT", "NO_PAGE", "REGION")),
    "BEGIN": ("done", *_refused("REGION")),
    "LOAD": ("done", *_refused("CLUSTER", "REGION")),
    "LINK": ("done", *_refused("REGION")),
    "READ": ("done", *_refused("CLUSTER", "REGION")),
    "LIST": ("one page", "several pages", *_refused("CLUSTER", "REGION")),
    "COUNTS": ("empty table", "some clusters", "full table", *_refused("REGION")),
    "no operation": ("refused",),
    RESET[0]: RESET[1:],
}


def _kvmu(run: Run) -> Iterator[Met]:
    """Reply by reply: how every command ended, and what a FETCH found on its way."""
    names = {op.value: op.name for op in kvmu_command.Op}
    resident = transit = 0
    for at, reply in zip(run.cycles["o"].tolist(), _rows(run.outputs["o"]), strict=True):
        op = names.get(reply["op"])
        if not reply["last"]:
            resident, transit = resident + (not reply["transit"]), transit + reply["transit"]
            continue
        if op is None:
            yield "no operation", "refused", at
        elif reply["fault"]:
            yield op, f"refused: {kvmu_command.Fault(reply['fault']).name}", at
        elif op == "FETCH":
            yield op, "nothing" if not resident + transit else "all resident" if not transit else "moves", at
        elif op in ("STEP", "EVICT", "SELECT"):
            yield op, "something" if reply["count"] else "nothing", at
        else:
            yield op, "done", at
        resident = transit = 0


_KVMU: dict[str, tuple[str, ...]] = {
    "BEGIN": ("done", *_refused("REGION")),
    "APPEND": ("done", *_refused("CLUSTER", "NO_PAGE", "NO_PAGE_FRAME", "REGION")),
    "STEP": ("something", "nothing", *_refused("REGION")),
    "SELECT": ("something", "nothing", *_refused("CLUSTER", "REGION")),
    "FETCH": ("nothing", "all resident", "moves", *_refused("STAGING", "NO_PAGE_FRAME", "REGION")),
    "LOOKUP": ("done", *_refused("ADDRESS", "REGION")),
    "FIND": ("done", *_refused("CLUSTER", "ADDRESS", "REGION")),
    "MOVE": ("done", *_refused("CLUSTER", "ADDRESS", "NO_PAGE", "NO_PAGE_FRAME", "NOT_RESIDENT", "HELD", "REGION")),
    "SEAL": ("done", *_refused("ADDRESS", "REGION")),
    "FREE": ("done", *_refused("ADDRESS", "REGION")),
    "MIGRATE": ("done", *_refused("ADDRESS", "REGION")),
    "SYNC": ("done", *_refused("REGION")),
    "HOLD": ("done", *_refused("ADDRESS", "HELD", "REGION")),
    "MARK": ("done", *_refused("ADDRESS", "REGION")),
    "EVICT": ("something", "nothing", *_refused("CLUSTER", "REGION")),
    "no operation": ("refused",),
    RESET[0]: RESET[1:],
}


_STEP = ("first of its tables", "one token", "several tokens", "all clusters old", "opens a cluster", "offloads")
_QUERY = ("joined rows", "long rows", "several heads", "nothing moves", "moves")


def _kvpu(run: Run) -> Iterator[Met]:
    """Step by step; the replies of a step end with that of its STEP."""
    kind = "query, retaining" if run.config.get("cfg_retain_fetched") else "query"
    replies = zip(run.cycles["o"].tolist(), _rows(run.outputs["o"]), strict=True)
    assigned = _rows(run.outputs["o_assignment"])
    rows = _packets(run, "i_scores")
    tokens, fresh, opened = 0, True, False
    heads: set[int] = set()  # of the selections of a step
    joined = long = False
    for beat in _rows(run.inputs["i"]):
        if beat["op"] == kvpu.Op.BEGIN.value:
            yield "begin", "done", next(replies)[0]
            fresh = True
            continue
        if beat["op"] == kvpu.Op.SELECT.value:
            heads.add(beat["head"])
            for _, _, is_long, join in rows:
                joined, long = joined or join, long or is_long
                if not join:
                    break
            continue
        queried = beat["op"] == kvpu.Op.FETCH.value
        if not queried:
            tokens, opened = tokens + 1, opened or bool(next(assigned)["opened"])
            if beat["query"] or not beat["last"]:
                continue
        mode = kind if queried else "no query"
        met = ["joined rows"] * joined + ["long rows"] * long + ["several heads"] * (len(heads) > 1)
        moves = offloads = False
        at = 0
        for cycle, reply in replies:
            if reply["op"] == kvmu_command.Op.FETCH.value:
                moves = moves or bool(reply["transit"])
            if reply["op"] == kvmu_command.Op.STEP.value:
                offloads = offloads or not reply["last"]
                if reply["last"]:
                    at = cycle
                    break
        met += ["first of its tables"] * fresh + ["offloads"] * offloads
        met += ["moves" if moves else "nothing moves"] * queried
        met += ["one token" if tokens == 1 else "several tokens", "opens a cluster" if opened else "all clusters old"]
        yield from ((mode, boundary, at) for boundary in met)
        tokens, fresh, opened, joined, long, heads = 0, False, False, False, False, set()


_MODES = [mode.name.lower() for mode in wtu_command.SelectionMode]
COVERS = {
    "hcu": Cover(
        {
            "nearest": _HCU,
            "nearest, window": (*_HCU, _WINDOW),
            "first match": _HCU,
            "first match, window": (*_HCU, _WINDOW),
            "table": ("first token", "BEGIN", "LOAD", "LOAD into a full table"),
            RESET[0]: RESET[1:],
        },
        _hcu,
    ),
    "hc_table": Cover(_TABLE, _hc_table),
    **{
        f"wtu, {design}": Cover(
            {**dict.fromkeys(_MODES, _ROW), "ratio": (*_ROW, "too long"), RESET[0]: RESET[1:]}, _wtu
        )
        for design in WtuDesign
    },
    "kvmu": Cover(_KVMU, _kvmu),
    "kvpu": Cover(
        {
            "no query": _STEP,
            "query": (*_STEP, *_QUERY),
            "query, retaining": (*_STEP, *_QUERY),
            "begin": ("done",),
            RESET[0]: RESET[1:],
        },
        _kvpu,
    ),
}
