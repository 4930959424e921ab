"""Every reason of `tests/coverage.toml` matches a source line, a signal or a bin.

A renamed line or signal makes its reason ineffective. A coverage campaign reports that too, but takes an hour.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache

import pytest

from hw.config import Config
from hw.emit import to_rtlil
from hw.registry import UNITS
from sim.coverage.bins.table import covers
from sim.coverage.explained import Reasons
from util.files import ROOT

REASONS = Reasons.read(ROOT / "tests" / "coverage.toml").entries
ARMS = ("else", "if", "elsif", "block", "expr", "case", "cond_then", "cond_else", "taken", "not taken")
WIRE = re.compile(
    r'^ *attribute \\src "([^":]+):\d+"\n(?: *attribute [^\n]*\n)* *wire (?:width (\d+) )?[^\n]*\\(\S+)$', re.M
)


@cache
def source_lines(where: str) -> list[str]:
    paths = [path for folder in ("cli", "compiler", "golden", "hw", "sim", "sw_model", "synth", "util")
             for path in sorted((ROOT / folder).rglob("*.py"))]  # fmt: skip
    files = [path for path in paths if fnmatch(str(path.relative_to(ROOT)), where)]
    return [line.strip() for path in files for line in path.read_text().splitlines()]


@cache
def signals() -> dict[str, set[str]]:
    """Texts `signal[bit] edge` of every signal, by file: of a multi-core at tiny, which has all units except one design
    of the WTU, and of the units that elaborate quickly at paper."""
    tiny, paper = Config.preset("tiny"), Config.preset("paper")
    builds = [(UNITS[name], tiny) for name in ("multicore", "wtu_sweep")]
    builds += [(UNITS[name], paper) for name in ("hcu", "kvmu", "operand_memory")]
    builds.append((UNITS["hcu"], tiny.replace(hcu_accumulators=4)))
    texts = defaultdict(set)
    for unit, config in builds:
        for file, width, name in WIRE.findall(to_rtlil(unit.build(config), unit.name, locations=True)):
            where = file.split("site-packages/")[-1].removeprefix(f"{ROOT}/")
            bits = [f"[{k}]" for k in range(int(width))] if width else [""]
            texts[where] |= {f"{name}{bit} {edge}" for bit in bits for edge in ("0->1", "1->0")}
    return texts


@cache
def bins() -> dict[str, list[str]]:
    return {unit: list(cover.all()) for unit, cover in covers().items()}


def candidates(reason) -> Iterator[str]:
    if reason.kind == "python":
        yield from source_lines(reason.where)
    elif reason.kind == "verilog":
        yield from (f"{line} -> {arm}" for line in source_lines(reason.where) for arm in ARMS)
    else:
        groups = signals() if reason.kind == "toggle" else bins()
        yield from (text for where, texts in groups.items() if fnmatch(where, reason.where) for text in texts)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: f"{reason.kind} {reason.where} {reason.what[:40]}")
def test_reason_matches_something(reason):
    pattern = re.compile(reason.what)
    assert any(pattern.search(text) for text in candidates(reason)), f"{reason.where}: {reason.what} matches nothing"
