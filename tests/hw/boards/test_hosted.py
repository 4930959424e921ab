"""Units behind a serial port: the host's own code talks to the Verilog of the board's top."""

import json
from dataclasses import replace

import pytest

from hw.boards.hosted import Hosted
from hw.config import Config
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.kvpu import KVPU
from sim.bench.build import build
from sim.bench.run import run_folder, run_module
from synth.board import description, vectors
from synth.power.stimulus import RANDOM, stimulus

DIVISOR, PATIENCE = 4, 4000


@pytest.fixture(scope="module")
def unit():
    return KVMU.from_config(Config.preset("tiny"))


def of(unit, beats):
    """Enough beats for transfers, which come when not all tokens can stay."""
    return vectors(unit, stimulus(unit, RANDOM, beats=beats))


@pytest.fixture(scope="module")
def given(unit):
    return of(unit, 80)


def talk(unit, on_board, told, **job):
    """Beats by output stream, and what went wrong, when the host has vectors `told`."""
    made = build(Hosted(unit, on_board, divisor=DIVISOR, patience=PATIENCE), "hosted")
    folder = run_folder("hosted")
    told = description(unit, told, baud=0)
    settings = {"divisor": DIVISOR, "patience": PATIENCE, "limit_cycles": 3_000_000, "interrupt": "", "broken": 0}
    (folder / "job.json").write_text(json.dumps({"description": told, **settings, **job}))
    run_module(made, "tests.hw.boards.uart_bench", folder, environment={"BENCH_JOB": str(folder / "job.json")})
    result = json.loads((folder / "result.json").read_text())
    return result["beats"], result["problem"]


def changed(given, stream, beat):
    """The vectors with one bit of one expected beat inverted."""
    words = list(given.outputs[stream])
    words[beat] ^= 1
    return replace(given, outputs={**given.outputs, stream: words})


def test_self_test_and_streams_through_the_serial_port(unit, given):
    beats, problem = talk(unit, given, given)
    assert problem == ""
    assert beats == {name: len(words) for name, words in given.outputs.items()}
    assert min(beats.values()) > 0


@pytest.mark.parametrize("interrupt", ["at once", "went away"])
def test_hosts_that_come_and_go(interrupt, unit, given):
    """The test at power-up is cut short by the next host; half a message of one that went away is forgotten."""
    assert talk(unit, given, given, interrupt=interrupt)[1] == ""


def test_a_byte_without_a_stop_bit(unit, given):
    assert talk(unit, given, given, interrupt="no stop bit")[1] == (
        "BoardError: the board lost a byte: check the baud rate"
    )


@pytest.mark.parametrize("stream", ["o", "o_dma"])
def test_a_wrong_beat_is_seen_by_the_host(unit, given, stream):
    told = changed(given, stream, 3)
    _, problem = talk(unit, given, told)
    expected, actual = told.outputs[stream][3], given.outputs[stream][3]
    assert problem == f"BoardError: {stream}: beat 3 must be 0x{expected:x} (golden model), got 0x{actual:x}"


@pytest.mark.heavy
def test_a_wrong_beat_is_seen_on_the_board(unit, given):
    """Another build: the expected beats are in the fabric."""
    _, problem = talk(unit, changed(given, "o_dma", 3), given, broken=1)
    assert problem.startswith("BoardError: the self-test of the board failed")


@pytest.mark.heavy
def test_the_whole_retrieval_engine(given):
    whole = KVPU.from_config(Config.preset("tiny"))
    told = of(whole, 30)
    beats, problem = talk(whole, told, told)
    assert problem == "" and beats == {name: len(words) for name, words in told.outputs.items()}
    assert min(beats.values()) > 0
