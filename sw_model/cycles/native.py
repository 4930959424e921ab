"""Runs the compiled processes and calls the compiled DRAM model for them."""

from __future__ import annotations

import ctypes
from functools import cached_property
from math import ceil, floor
from pathlib import Path
from typing import Any

import numba
import numba.experimental.function_type  # lets numba accept a `WrapperAddressProtocol`
import numpy as np
from numba import types

from sw_model.cycles.layout import Ask, place
from sw_model.memory import dram_kernel as k
from sw_model.memory.live import DramTiming
from util.c_library import c_library
from util.compiled import inlined, unowned

POOL = 1 << 18  # DRAM bursts that are not done, of all ports
ASK, IS_NATIVE = place("ask", 0), place("is_native", 0)


class Processes:
    """Processes compiled from C code with `vrex_start` and `vrex_proceed`, see `translate.py`."""

    def __init__(self, source: str):
        self.library = c_library(source, Path(__file__).parent / "__pycache__")
        self.library.vrex_start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 7]
        self.library.vrex_start.restype = None

    def start(self, m: np.ndarray, d: np.ndarray, *arguments: int) -> None:
        """Start a process: core, process, delay and four arguments, see `scheduler.start`."""
        self.library.vrex_start(m.ctypes.data, d.ctypes.data, *arguments)

    def run(self, m: np.ndarray, d: np.ndarray, t: tuple[Any, ...]) -> bool:
        """Run until nothing is left (False) or until a timing model in Python has to answer (True)."""
        return _run(self._proceed, m.ctypes.data, d.ctypes.data, m, t)

    @cached_property
    def _proceed(self) -> types.WrapperAddressProtocol:
        address = ctypes.cast(self.library.vrex_proceed, ctypes.c_void_p).value

        class Proceed(types.WrapperAddressProtocol):
            def __wrapper_address__(self):
                return address

            def signature(self):
                return numba.int64(numba.int64, numba.int64)

        return Proceed()


def native_memory(timing: DramTiming) -> tuple[Any, ...]:
    """State arrays of a DRAM model, which the compiled calls modify; its pool gets at least `POOL` bursts."""
    free = len(timing.pool[-2])
    if free < POOL:
        timing.pool = k.larger_pool(timing.pool, POOL)
    sizes = np.array([timing.bursts, timing.memory.burst_bytes])
    rates = np.array([timing.clocks_per_cycle, timing.fixed_cycles])
    return (
        timing.parameters, timing.digits, timing.state, timing.ahead, timing.pool, timing.transfers, timing.counter,
        timing.scratch, sizes, rates,
    )  # fmt: skip


@unowned
def _run(proceed, m_at, d_at, m, t):
    """Run processes until nothing is left or a timing model in Python has to answer; `m_at`, `d_at`: addresses."""
    while proceed(m_at, d_at):
        if not m[IS_NATIVE + m[ASK + Ask.SIDE]]:
            return True
        if m[ASK + Ask.CONFIRM]:
            m[ASK + Ask.READY] = _confirm(t, m)
        else:
            m[ASK + Ask.READY] = _arrive(t, m)
            m[ASK + Ask.NUMBER] = t[6][0]
    return False


@inlined
def _arrive(t, m):
    """A burst arrives: `DramTiming.arrive`, or, without LOOK_AHEAD, a cycle before which no memory answers it."""
    parameters, digits, state, ahead, pool, transfers, counter, scratch, sizes, rates = t
    address, write = m[ASK + Ask.ADDRESS], m[ASK + Ask.WRITE]
    first, last = address // sizes[1], (address + m[ASK + Ask.BYTES] - 1) // sizes[1]
    start, count, clock = first % sizes[0], last - first + 1, floor(m[ASK + Ask.CYCLE] * rates[0])
    if m[ASK + Ask.LOOK_AHEAD]:
        end = k.arrive(
            parameters, start, count, write, clock, False, digits, state, ahead, pool, transfers, counter, scratch
        )
    else:
        end = k.enter(parameters, start, count, write, clock, digits, state, pool, transfers, counter, scratch)
    return ceil(end / rates[0] + rates[1])


@inlined
def _confirm(t, m):
    """`DramTiming.confirm` of a burst; without LOOK_AHEAD, an earlier cycle in which the caller asks again."""
    parameters, _, state, ahead, pool, transfers, _, scratch, _, rates = t
    number, cycle, write = m[ASK + Ask.NUMBER], m[ASK + Ask.CYCLE], m[ASK + Ask.WRITE]
    clock = floor((cycle - rates[1]) * rates[0])
    end = k.confirm(parameters, number, clock, m[ASK + Ask.LOOK_AHEAD], write, state, ahead, pool, transfers, scratch)
    return max(cycle, ceil(end / rates[0] + rates[1]))
