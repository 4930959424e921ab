"""Timelines of a synthetic trace."""

import numpy as np
import pytest

from hw.core.core import TRACE
from hw.core.isa import OPCODES, Command, ExecUnit
from sim.bench.timeline import COLOURS, busy, chrome_trace, column, concurrency, picture, spans


def event(**fields):
    return sum(value << TRACE[name].offset for name, value in fields.items())


PROGRAM = [Command("LOAD"), Command("COPY"), Command("LOAD"), Command("END")]
LOAD, COPY = 1 << ExecUnit.LOAD, 1 << ExecUnit.COPY


@pytest.fixture
def trace():
    """A LOAD in cycles 2 to 4, a COPY in cycles 3 to 7, a LOAD in cycle 9."""
    words = np.zeros(12, object)
    words[2] = event(started=LOAD)
    words[3] = event(started=COPY, device_read=1)
    words[4] = event(complete=LOAD, device_read=1)
    words[7] = event(complete=COPY)
    words[9] = event(started=LOAD, complete=LOAD)
    return words


def test_spans_busy_and_concurrent_cycles(trace):
    timeline = spans(trace, [PROGRAM[:2], PROGRAM[2:]])
    assert [(s.unit, s.name, s.number, s.start, s.end) for s in timeline] == [
        (ExecUnit.LOAD, "LOAD", 0, 2, 5),
        (ExecUnit.COPY, "COPY", 1, 3, 8),
        (ExecUnit.LOAD, "LOAD", 0, 9, 10),
    ]
    assert busy(timeline) == {
        ExecUnit.LOAD: 4,
        ExecUnit.MATRIX: 0,
        ExecUnit.VECTOR: 0,
        ExecUnit.RETRIEVAL: 0,
        ExecUnit.COPY: 5,
        ExecUnit.SYNC: 0,
    }
    assert concurrency(timeline).tolist() == [1, 5, 2, 0, 0, 0, 0]
    assert column(trace, "device_read").tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_chrome_trace_and_picture_contain_all_spans(trace):
    timeline = spans(trace, [PROGRAM])
    events = chrome_trace(timeline, trace, window=4, clock_mhz=1000)["traceEvents"]
    drawn_spans = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn_spans == [("LOAD", 0.002, 0.003), ("COPY", 0.003, 0.005), ("LOAD", 0.009, 0.001)]
    shares = [e["args"]["share"] for e in events if e["ph"] == "C" and e["name"] == "device_read"]
    assert shares == [0.25, 0.25, 0.0]
    assert picture(timeline, trace).count("<title>") == len(timeline) + 1


def test_trace_of_another_program_raises_error(trace):
    with pytest.raises(ValueError, match="LOAD must have 1 start and end events, got 2 and 2"):
        spans(trace, [PROGRAM[:2]])


def test_every_command_of_a_unit_has_a_colour():
    assert set(COLOURS) == {opcode.name for opcode in OPCODES if opcode.unit is not None}
