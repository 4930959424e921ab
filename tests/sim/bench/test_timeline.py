"""Timelines from a trace that was made by hand."""

import numpy as np
import pytest

from hw.core.core import TRACE
from hw.core.isa import Command, ExecUnit
from sim.bench.timeline import busy, chrome_trace, column, picture, spans, together


def event(**fields):
    return sum(value << TRACE[name].offset for name, value in fields.items())


PROGRAM = [Command("LOAD"), Command("COPY"), Command("LOAD"), Command("END")]
LOAD, COPY = 1 << ExecUnit.LOAD, 1 << ExecUnit.COPY


@pytest.fixture
def trace():
    """Cycles: a LOAD from 2 to 5, a COPY from 3 to 8, the other LOAD in cycle 9 alone."""
    words = np.zeros(12, object)
    words[2] = event(started=LOAD)
    words[3] = event(started=COPY, device_read=1)
    words[4] = event(complete=LOAD, device_read=1)
    words[7] = event(complete=COPY)
    words[9] = event(started=LOAD, complete=LOAD)
    return words


def test_spans(trace):
    found = spans(trace, [PROGRAM[:2], PROGRAM[2:]])
    assert [(s.unit, s.name, s.number, s.start, s.end) for s in found] == [
        (ExecUnit.LOAD, "LOAD", 0, 2, 5),
        (ExecUnit.COPY, "COPY", 1, 3, 8),
        (ExecUnit.LOAD, "LOAD", 0, 9, 10),
    ]
    assert busy(found) == {
        ExecUnit.LOAD: 4,
        ExecUnit.MATRIX: 0,
        ExecUnit.VECTOR: 0,
        ExecUnit.RETRIEVAL: 0,
        ExecUnit.COPY: 5,
    }
    assert together(found).tolist() == [1, 5, 2, 0, 0, 0]
    assert column(trace, "device_read").tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_what_is_drawn(trace):
    found = spans(trace, [PROGRAM])
    events = chrome_trace(found, trace, window=4, clock_mhz=1000)["traceEvents"]
    drawn = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn == [("LOAD", 0.002, 0.003), ("COPY", 0.003, 0.005), ("LOAD", 0.009, 0.001)]
    shares = [e["args"]["share"] for e in events if e["ph"] == "C" and e["name"] == "device_read"]
    assert shares == [0.25, 0.25, 0.0]
    assert picture(found, trace).count("<title>") == len(found) + 1


def test_a_trace_of_another_program(trace):
    with pytest.raises(ValueError, match=r"LOAD: 2 beginnings and 2 ends of 1 commands"):
        spans(trace, [PROGRAM[:2]])
