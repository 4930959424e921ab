"""Calls of the compiled DRAM model from compiled processes."""

from __future__ import annotations

from math import ceil, floor
from typing import Any

import numpy as np

from sw_model.memory import dram_kernel as k
from sw_model.memory.live import DramTiming
from util.compiled import inlined

POOL = 1 << 18  # DRAM bursts that are not done, of all ports


def native_memory(timing: DramTiming) -> tuple[Any, ...]:
    """Arrays of a DRAM model as arguments of `arrive_native` and `confirm_native`; both change them."""
    free = len(timing.pool[-2])
    if free < POOL:
        timing.pool = k.larger_pool(timing.pool, POOL)
    sizes = np.array([timing.bursts, timing.memory.burst_bytes])
    rates = np.array([timing.clocks_per_cycle, timing.fixed_cycles])
    return (
        timing.parameters, timing.digits, timing.state, timing.ahead, timing.pool, timing.transfers, timing.counter,
        timing.scratch, sizes, rates,
    )  # fmt: skip


@inlined
def arrive_native(t, look_ahead, cycle, address, nbytes, write):
    """A burst arrives: `DramTiming.arrive`, or, without `look_ahead`, a cycle before which no memory answers it.

    The number of the burst is `number_native(t)`.
    """
    parameters, digits, state, ahead, pool, transfers, counter, scratch, sizes, rates = t
    first, last = address // sizes[1], (address + nbytes - 1) // sizes[1]
    start, count, clock = first % sizes[0], last - first + 1, floor(cycle * rates[0])
    if look_ahead:
        end = k.arrive(
            parameters, start, count, write, clock, False, digits, state, ahead, pool, transfers, counter, scratch
        )
    else:
        end = k.enter(parameters, start, count, write, clock, digits, state, pool, transfers, counter, scratch)
    return ceil(end / rates[0] + rates[1])


@inlined
def confirm_native(t, look_ahead, number, cycle, write):
    """`DramTiming.confirm` of a burst; without `look_ahead`, an earlier cycle in which the caller asks again."""
    parameters, _, state, ahead, pool, transfers, _, scratch, _, rates = t
    clock = floor((cycle - rates[1]) * rates[0])
    end = k.confirm(parameters, number, clock, look_ahead, write, state, ahead, pool, transfers, scratch)
    return max(cycle, ceil(end / rates[0] + rates[1]))


@inlined
def number_native(t):
    """Number of the newest burst."""
    return t[6][0]
