"""Bins of the retrieval engine's units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from golden.selection import sortable
from hw.dre import kvpu
from hw.dre.hcu import Op
from hw.dre.kvmu import command as kvmu_command
from hw.dre.wtu import command as wtu_command
from hw.dre.wtu.wtu import WtuDesign
from sim.coverage.bins.cover import RESET, Cover, Met, Run


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


def _kvmu(run: Run) -> Iterator[Met]:
    """Reply by reply: how every command ended, and the pages that a fetch visited."""
    names = {op.value: op.name for op in kvmu_command.Op}
    resident = transit = beats = 0
    for at, reply in zip(run.cycles["o"].tolist(), _rows(run.outputs["o"]), strict=True):
        op, fault = names.get(reply["op"]), kvmu_command.Fault(reply["fault"]).name
        if not reply["last"]:
            beats += 1
            if op in ("SELECT", "MARK"):
                resident, transit = resident + (not reply["transit"]), transit + reply["transit"]
            continue
        if op is None:
            yield "no operation", "refused", at
        elif fault in _ANY_COMMAND and (op, fault) != ("OPEN", "CONTEXT"):
            yield "any command", f"refused: {fault}", at
        elif fault != "NONE":
            yield op, f"refused: {fault}", at
        elif op == "FETCH":
            yield op, "nothing" if not resident + transit else "all resident" if not transit else "moves", at
        elif op in ("STEP", "EVICT", "SELECT"):
            yield op, "something" if beats else "nothing", at
        else:
            yield op, "done", at
        beats = 0
        if op == "FETCH":
            resident = transit = 0


_ANY_COMMAND = ("FETCHING", "CONTEXT", "LOG")  # causes that do not depend on the command
_KVMU: dict[str, tuple[str, ...]] = {
    "OPEN": ("done", *_refused("CONTEXT", "UNCOMMITTED", "REGION")),
    "APPEND": ("done", *_refused("CLUSTER", "NO_PAGE", "NO_PAGE_FRAME")),
    "STEP": ("something", "nothing"),
    "SELECT": ("something", "nothing", *_refused("CLUSTER", "STAGING", "NO_PAGE_FRAME")),
    "FETCH": ("nothing", "all resident", "moves", *_refused("STAGING", "NO_PAGE_FRAME")),
    "LOOKUP": ("done", *_refused("ADDRESS")),
    "FIND": ("done", *_refused("CLUSTER", "ADDRESS")),
    "MOVE": ("done", *_refused("CLUSTER", "ADDRESS", "NO_PAGE", "NO_PAGE_FRAME", "NOT_RESIDENT", "HELD")),
    "SEAL": ("done", *_refused("ADDRESS")),
    "FREE": ("done", *_refused("ADDRESS")),
    "MIGRATE": ("done", *_refused("ADDRESS")),
    "SYNC": ("done",),
    "HOLD": ("done", *_refused("ADDRESS", "HELD")),
    "MARK": ("done", *_refused("ADDRESS", "STAGING", "NO_PAGE_FRAME")),
    "EVICT": ("something", "nothing", *_refused("CLUSTER")),
    "any command": _refused(*_ANY_COMMAND),
    "no operation": ("refused",),
    RESET[0]: RESET[1:],
}


_STEP = (
    "first of its context",
    "one token",
    "several tokens",
    "all clusters old",
    "opens a cluster",
    "offloads",
    "releases pages",
    "releases nothing",
    "drops tokens",
    "keeps all tokens",
)
_QUERY = ("joined rows", "long rows", "several heads", "nothing moves", "moves")


def _kvpu(run: Run) -> Iterator[Met]:
    """Command by command; the replies of a step end with that of its STEP."""
    kind = "query, retaining" if run.config.get("cfg_retain_fetched") else "query"
    replies = zip(run.cycles["o"].tolist(), _rows(run.outputs["o"]), strict=True)
    assigned = _rows(run.outputs["o_assignment"])
    rows = _packets(run, "i_scores")
    tokens, opened, queried, joined, long, fresh = 0, False, False, False, False, True
    releasing, kept = False, ""  # the step has a RELEASE; what its KEEP does
    heads: set[int] = set()  # of the selections of a step
    for beat in _rows(run.inputs["i"]):
        op = kvpu.Op(beat["op"])
        if op is kvpu.Op.OPEN:
            at, reply = next(replies)
            fault = kvmu_command.Fault(reply["fault"])
            yield "open", f"refused: {fault.name}" if reply["fault"] else "done", at
            fresh = True
        elif op is kvpu.Op.CODE:
            tokens, opened = tokens + 1, opened or bool(next(assigned)["opened"])
        elif op is kvpu.Op.SELECT:
            heads.add(beat["head"])
            for _, _, is_long, join in rows:
                joined, long = joined or join, long or is_long
                if not join:
                    break
        elif op is kvpu.Op.FETCH:
            queried = True
        elif op is kvpu.Op.RELEASE:
            releasing = True
        elif op is kvpu.Op.KEEP:
            words, *_ = next(rows)
            kept = "keeps all tokens" if beat["count"] == len(words) else "drops tokens"
        elif op is kvpu.Op.STEP:
            moves = offloads = releases = False
            at = 0
            for cycle, reply in replies:
                at = cycle
                moves = moves or (reply["op"] == kvmu_command.Op.SELECT.value and bool(reply["transit"]))
                releases = releases or (reply["op"] == kvmu_command.Op.EVICT.value and not reply["last"])
                if reply["op"] == kvmu_command.Op.STEP.value:
                    if reply["last"]:
                        break
                    offloads = True
            met = ["joined rows"] * joined + ["long rows"] * long + ["several heads"] * (len(heads) > 1)
            met += ["first of its context"] * fresh + ["offloads"] * offloads
            met += ["moves" if moves else "nothing moves"] * queried
            met += ["releases pages" if releases else "releases nothing"] * releasing
            met += [kept] * bool(kept)
            met += ["one token" if tokens == 1 else "several tokens"]
            met += ["opens a cluster" if opened else "all clusters old"]
            yield from ((kind if queried else "no query", boundary, at) for boundary in met)
            tokens, opened, queried, joined, long, fresh, heads = 0, False, False, False, False, False, set()
            releasing, kept = False, ""


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
            "open": ("done", *_refused("CONTEXT", "UNCOMMITTED")),
            RESET[0]: RESET[1:],
        },
        _kvpu,
    ),
}
