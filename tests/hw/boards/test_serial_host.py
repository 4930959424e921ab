"""`SerialHost`: the host program exchanges messages with the Verilog of the board's top level."""

from dataclasses import replace

import pytest
from amaranth import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.boards.protocol import Vectors
from hw.config import Config
from hw.dre.hcu import HCU
from hw.dre.wtu.wtu import WTU
from synth.board import vectors
from synth.power.stimulus import RANDOM, stimulus
from tests.hw.boards.serial import talk


class Requester(wiring.Component):
    """Requests a transfer for each beat of `i`, and reports each transfer that is done with its tag plus a setting."""

    i: In(stream.Signature(8))
    o_dma: Out(stream.Signature(data.StructLayout({"address": 8, "tag": 4})))
    i_done: In(stream.Signature(data.StructLayout({"tag": 4})))
    o: Out(stream.Signature(8))
    cfg_more: In(8)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [
            self.o_dma.valid.eq(self.i.valid),
            self.o_dma.payload.address.eq(~self.i.payload),
            self.o_dma.payload.tag.eq(self.i.payload),
            self.i.ready.eq(self.o_dma.ready),
            self.o.valid.eq(self.i_done.valid),
            self.o.payload.eq(self.i_done.payload.tag + self.cfg_more),
            self.i_done.ready.eq(self.o.ready),
        ]
        return m


REQUESTS = list(range(3, 40, 4))
REQUESTER_VECTORS = Vectors(
    {"cfg_more": 100},
    {"i": REQUESTS},
    {"o_dma": [255 - n | n % 16 << 8 for n in REQUESTS], "o": [n % 16 + 100 for n in REQUESTS]},
    {"i_done": "o_dma"},
)


@pytest.fixture(scope="module")
def unit():
    return WTU.from_config(Config.preset("tiny"))


def vectors_of(unit, beats):
    return vectors(unit, stimulus(unit, RANDOM, beats=beats))


@pytest.fixture(scope="module")
def vectors_on_board(unit):
    return vectors_of(unit, 80)


def with_wrong_beat(vectors, stream, beat):
    """The vectors, with one bit of one expected beat inverted."""
    words = list(vectors.outputs[stream])
    words[beat] ^= 1
    return replace(vectors, outputs={**vectors.outputs, stream: words})


def test_self_test_and_streams_through_the_serial_port(unit, vectors_on_board):
    beats, problem = talk(unit, vectors_on_board, vectors_on_board)
    assert problem == ""
    assert beats == {name: len(words) for name, words in vectors_on_board.outputs.items()}
    assert min(beats[name] for name in ("o_row", "o", "o_index")) > 0


def test_host_answers_transfers():
    beats, problem = talk(Requester(), REQUESTER_VECTORS, REQUESTER_VECTORS)
    assert problem == "" and beats == {"o_dma": len(REQUESTS), "o": len(REQUESTS)}


@pytest.mark.parametrize("stream", ["o", "o_dma"])
def test_host_detects_a_wrong_beat_of_a_unit_with_transfers(stream):
    on_host = with_wrong_beat(REQUESTER_VECTORS, stream, 3)
    expected, got = on_host.outputs[stream][3], REQUESTER_VECTORS.outputs[stream][3]
    _, problem = talk(Requester(), REQUESTER_VECTORS, on_host)
    assert problem == f"BoardError: beat 3 of {stream} must be 0x{expected:x}, got 0x{got:x}"


@pytest.mark.parametrize("interrupt", ["at once", "incomplete message"])
def test_new_host_interrupts_the_self_test(interrupt, unit, vectors_on_board):
    """A host stops the self-test after power-up. An incomplete message of an earlier host is discarded."""
    assert talk(unit, vectors_on_board, vectors_on_board, interrupt=interrupt)[1] == ""


def test_missing_stop_bit_is_reported(unit, vectors_on_board):
    problem = "BoardError: a byte to the board was lost: check the baud rate"
    assert talk(unit, vectors_on_board, vectors_on_board, interrupt="no stop bit")[1] == problem


@pytest.mark.parametrize("stream", ["o", "o_index"])
def test_host_detects_a_wrong_beat(unit, vectors_on_board, stream):
    on_host = with_wrong_beat(vectors_on_board, stream, 3)
    _, problem = talk(unit, vectors_on_board, on_host)
    expected, got = on_host.outputs[stream][3], vectors_on_board.outputs[stream][3]
    assert problem == f"BoardError: beat 3 of {stream} must be 0x{expected:x}, got 0x{got:x}"


@pytest.mark.heavy
def test_self_test_detects_a_wrong_beat(unit, vectors_on_board):
    """Needs another build, because the expected beats are in the memories of the design."""
    _, problem = talk(unit, with_wrong_beat(vectors_on_board, "o_index", 3), vectors_on_board, broken=1)
    assert problem.startswith("BoardError: the self-test on the board failed")


@pytest.mark.heavy
def test_hash_clustering_unit():
    unit = HCU.from_config(Config.preset("tiny"))
    expected = vectors_of(unit, 30)
    beats, problem = talk(unit, expected, expected)
    assert problem == "" and beats == {"o": 30}
