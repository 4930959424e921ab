"""What a unit is given while its activity is counted: nothing, random bits, or what real keys make of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from golden.hashing import hash_codes, hyperplanes
from hw.arith.dot import DotTree
from hw.dre.hcu import HCU, Op

IDLE, RANDOM = "idle", "random"
IDLE_CYCLES = 1000
BEATS = 200  # tokens of a stream
STEP = 10  # tokens of one step, as of a frame


@dataclass(frozen=True)
class Stimulus:
    """Streams and settings of one run, as `sim.run.simulate` takes them."""

    name: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, int]
    config: Mapping[str, int] = field(default_factory=dict)
    echo: Mapping[str, str] = field(default_factory=dict)
    drain_cycles: int = 8


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


def _hcu(unit: HCU, name: str, keys: np.ndarray | None, count: int, rng: np.random.Generator) -> Stimulus:
    """Tokens in steps; the threshold is the paper's 7 of 32 bits in proportion (V-Rex, section VI-A)."""
    if keys is None:
        codes = rng.integers(0, 1 << unit.hash_bits, count)
    else:
        flat = keys[:count].reshape(len(keys[:count]), -1)
        codes = hash_codes(flat, hyperplanes(flat.shape[1], unit.hash_bits))
    n = len(codes)
    token = Op.TOKEN.value  # type: ignore[attr-defined]
    beats = {"op": np.full(n, token), "hash": codes, "last": np.arange(n) % STEP == STEP - 1}
    settings = {"threshold": round(7 * unit.hash_bits / 32), "window": unit.window, "count_max": 65535}
    config = {f"cfg_{key}": value for key, value in settings.items()}
    return Stimulus(name, {"i": beats}, {"o": n}, config, drain_cycles=_drain(n))


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


_UNITS: dict[type, Callable[..., Stimulus]] = {HCU: _hcu, DotTree: _dot_tree}
