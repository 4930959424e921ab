"""Invalid parameters raise errors that name them; specifications are checked before their proofs."""

from collections import Counter
from dataclasses import replace

import pytest
from amaranth import Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from compiler import vector_programs as programs
from compiler.builder import Operands, ProgramBuilder
from compiler.driver import Driver
from compiler.layer import Context, LayerCompiler
from compiler.memory import Region
from hw import yosys
from hw.arith.adders import full_adders, ripple_add
from hw.axi.gearbox import Gearbox
from hw.boards.uart import check_divisor
from hw.common.instances import instantiate
from hw.common.pipeline import CreditGate
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import AssemblyError, Command, Field, Opcode, SyncEvent, decode
from hw.core.matrix_unit import MatrixUnit
from hw.core.processor import Processor
from hw.dre.kvmu.line_cache import LineCache
from hw.dre.wtu.command import WtuSizes
from hw.emit import to_rtlil
from hw.lxe.microcode import Instruction, Post, Pre, Source, Times
from hw.registry import UNITS
from sim.bench.layer_run import CASES
from sim.formal import claims as formal

TINY = Config.preset("tiny")
LANE = wiring.Signature({"a": In(2), "y": Out(2)}).members


def layer(**changes):
    return LayerCompiler(TINY, replace(CASES["tiny"], **changes), Region(1 << 20), Context(0, 0, 0))


BAD = {
    "widths of a, b, c must be equal, got 2, 2, 3": lambda: full_adders(
        Module(), Const(0, 2), Const(0, 2), Const(0, 3)
    ),
    "widths of a, b must be equal, got 1, 0": lambda: ripple_add(Module(), [Const(0)], []),
    r"inputs of lane must be \['a'\], got \['clk'\]": lambda: instantiate(
        Module(), "lane", "lane0", LANE, clk=Const(0)
    ),
    "stages must be at least 0, got -1": lambda: CreditGate(4, stages=-1),
    "activations must be at most 8 words, got 9": lambda: Operands(ProgramBuilder(), 4, 8).activations([], 9),
    "control must be 0 to 3, got 4": lambda: Driver(Core.from_config(TINY).map, 8).write("control", 4),
    "item must be a multiple or a divisor of word = 64, got 96": lambda: Gearbox(word=64, item=96),
    "bits of opcode LONG must be at most 512, got": lambda: Opcode("LONG", 1, None, "", (Field("x", 600, ""),)),
    "END after COPY: wait must be 0 to 15, got 1000000": lambda: Command("END", {}, {SyncEvent.COPY: 10**6}).encode(),
    "count must be at most 2 free words of the region, got 3": lambda: Region(4, next=2).allocate(3),
    "hidden must be a multiple of .*, got 30": lambda: layer(hidden=30),
    "hidden must be at most 8192, got 8196": lambda: layer(hidden=8196),
    "ffn must be at most 28672, got 28676": lambda: layer(ffn=28676),
    "head must be even and at most head_dim = 8, got 10": lambda: layer(head=10),
    "head must be even and at most head_dim = 8, got 5": lambda: layer(head=5),
    "q_heads must be at most 128, got 130": lambda: layer(q_heads=130),
    "keys must be at most 262140, got 262141": lambda: layer(keys=262141),
    "tokens must be at most 1024, got 1025": lambda: layer(tokens=1025),
    "fill must be at most 1024, got 1025": lambda: layer(fill=1025),
    "head_dim must be at most .* got 80": lambda: LayerCompiler(
        replace(TINY, head_dim=80), CASES["tiny"], Region(1 << 20), Context(0, 0, 0)
    ),
    "tokens must be 1 to 4, got 5": lambda: layer(fill=4).attention(5, query=False),
    "n must be at least 1, got 0": lambda: programs.exponentials(0, 4, 8),
    r"head_dim must be a multiple of 8 \(two beats of 4 lanes\), got 6": lambda: programs.rope(6, 4),
    "head_dim must be at least 1, got 0": lambda: programs.exponentials(4, 4, 0),
    "old_count and members must be at least 0 and 1, got -1 and 1": lambda: programs.running_mean(8, 4, -1, 1),
    "pre, times, function of ROTATE must be A, B, NONE, got ADD, ONE, NONE": lambda: Instruction(
        post=Post.ROTATE, pre=Pre.ADD
    ),
    "beats of ROTATE must be even, got 1": lambda: Instruction(post=Post.ROTATE, times=Times.B),
    "bytes of a command must be 64, got 63": lambda: decode(bytes(63)),
    "tokens must be 1 to 2, got 3": lambda: layer().attention(3),
    "dpe_trees, dpe_inputs, vpe_lanes must be equal, got 8, ": lambda: Processor(replace(TINY, dpe_trees=8)),
    "dpe_trees / dpe_load_rows must be a power of two, got 3": lambda: MatrixUnit(
        replace(TINY, dpe_trees=6, dpe_load_rows=2)
    ),
    "head_dim must be a multiple of dpe_inputs = 4, got 6": lambda: Processor(replace(TINY, head_dim=6)),
    "wtu_lanes must divide vpe_lanes = 4, got 16": lambda: Processor(replace(TINY, wtu_lanes=16)),
    "lines must be at least 2, got 1": lambda: LineCache(word=64, lines=1),
    "page_tokens must be 2 to 32, got 64": lambda: UNITS["kvmu"].build(replace(TINY, page_tokens=64)),
    "max_row_clusters must be below .* = 64, got 64": lambda: WtuSizes(4, 64, 64, 16, 8, 6),
    "b must be MEMORY, SCALAR or IMMEDIATE, got STREAM": lambda: Instruction(b=Source.STREAM),
    "beats must be at least 1, got 0": lambda: Instruction(beats=0),
    "divisor must be at least 4 cycles per bit, got 3": lambda: check_divisor(3),
}


@pytest.mark.parametrize("message", BAD)
def test_refused(message):
    with pytest.raises((ValueError, AssemblyError), match=message):
        BAD[message]()


def test_an_input_of_another_width():
    with pytest.raises(ValueError, match="input a of lane must have 2 bits, got 3"):
        instantiate(Module(), "lane", "lane0", LANE, a=Const(0, 3))


def test_yosys_that_is_not_there_or_takes_too_long(monkeypatch):
    with pytest.raises(yosys.YosysError, match=r"yosys did not finish within 0\.1 s"):
        yosys.run(["read_rtlil /dev/stdin"], timeout_s=0.1)
    monkeypatch.setattr(yosys.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(yosys.YosysError, match="yosys build 'pyosys' needs the package pyosys, which is not installed"):
        yosys.run([], tool="pyosys")


def test_programs_of_attention_alone():
    """With a query, the program is a complete step; without one, it only clusters and stores the tokens."""
    compiler = layer()
    complete, no_query = (
        Counter(command.name for command in compiler.attention(2, query=query)) for query in (True, False)
    )
    assert (
        no_query["CLUSTER"] == no_query["STORE"] == no_query["OFFLOAD"] == no_query["END"] == 1
        and not no_query["GATHER"]
    )
    assert complete["GATHER"] and no_query < complete


SOME = ("dma", "hcu", "kvmu", "wtu")  # the others' claims are the same or long to elaborate


@pytest.mark.parametrize(
    "unit", [name if name in SOME else pytest.param(name, marks=pytest.mark.heavy) for name in UNITS]
)
def test_every_claim_has_something_to_prove(unit):
    """Each specification elaborates, with properties and with covers."""
    for claim in formal.claims(unit):
        spec = claim.build()
        assert "cell $check" in to_rtlil(spec, "spec"), claim.name
        assert any(name.startswith("cover_") for name in spec.signature.members), claim.name
