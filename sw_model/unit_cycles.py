"""Cycle formulas of the accelerator's units; each says where it comes from.

All are the units' own formulas, which their simulations hold exactly; what a core's description does not say is that of
the hardware's preset `paper`.
"""

import math
from functools import lru_cache
from math import ceil

from compiler import vector_programs as programs
from hw.config import Config
from hw.dre.hcu import HCU
from hw.dre.wtu.wtu import WTU, Point
from hw.lxe.dpe import DPE
from hw.lxe.vpe import VPE
from sw_model.systems import Core

LEVELS = 2  # a bucket is divided once
# rows as long as they come: scores, a hidden state, a head, a feed-forward state; what is not here takes one pass
_PROGRAMS = {
    "softmax": lambda lanes: (4096, programs.softmax(4096, lanes, 128)),
    "norm": lambda lanes: (8 * 4096, programs.rms_norm(4096, lanes, vectors=8)),
    "rope": lambda lanes: (8 * 128, programs.rope(128, lanes, vectors=8)),
    "silu_mul": lambda lanes: (14336, programs.gated(14336, lanes)),
    "gelu": lambda lanes: (4096, programs.gated(4096, lanes)),  # the same steps with another constant
}


@lru_cache
def _dpe(trees: int, inputs: int) -> DPE:
    paper = Config.preset("paper")
    return DPE(trees=trees, inputs=inputs, load_rows=math.gcd(trees, paper.dpe_load_rows), slots=paper.dpe_slots)


@lru_cache
def _hcu(lanes: int, hash_bits: int) -> HCU:
    return HCU(hash_bits=hash_bits, lanes=lanes, accumulators=1, clusters=1024, tokens=32, window=4096)


@lru_cache
def _wtu(lanes: int, point: str) -> WTU:
    return WTU(lanes=lanes, clusters=4096, point=Point(point))


@lru_cache
def vpe_passes(what: str, lanes: int) -> float:
    """Cycles per beat of `lanes` elements: of the unit's program for long rows, or one."""
    if what not in _PROGRAMS:
        return 1.0
    elements, program = _PROGRAMS[what](lanes)
    return VPE(lanes=lanes, rows=1024).cycles(program) * lanes / elements


def hcu_cycles(pairs: float, hash_bits: int, core: Core) -> int:
    """`pairs` comparisons of a token's code with a leader's, leaders split over the cores."""
    return ceil(pairs / core.cores) * _hcu(core.hcu_lanes, hash_bits).slices


def wtu_cycles(rows: float, entries: float, passes: float, core: Core) -> int:
    """Selecting in `rows` rows of `entries` scores, rows split over the cores, each loading while the one before it is
    selected. `passes` is a mean, so it need not be whole: the unit's formula is linear in it."""
    if not rows:
        return 0
    unit, size = _wtu(core.wtu_lanes, core.wtu_point), ceil(entries)
    once = unit.cycles(size, 1, LEVELS)
    more = unit.cycles(size, 2, LEVELS) - once
    return ceil(ceil(entries / core.wtu_lanes) + ceil(rows / core.cores) * (once + (passes - 1) * more))


def dpe_cycles(vectors: float, inputs: float, outputs: float, core: Core, times: float = 1) -> int:
    """`times` products of (vectors x inputs) by (inputs x outputs), tiles split over the cores; vectors beyond the
    accumulators of a tree take the tiles again."""
    unit = _dpe(core.dpe_rows, core.dpe_cols)
    tiles = ceil(times * ceil(inputs / core.dpe_cols) * ceil(outputs / core.dpe_rows) / core.cores)
    turns = ceil(vectors / unit.slots)
    return unit.cycles(tiles * turns, ceil(vectors / turns)) if tiles else 0


def vpe_cycles(elements: float, what: str, core: Core) -> int:
    """`elements` of one kind of work, split over the cores."""
    return ceil(ceil(elements / (core.vpe_lanes * core.cores)) * vpe_passes(what, core.vpe_lanes))
