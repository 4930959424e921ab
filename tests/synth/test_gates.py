"""The mapped netlist in a simulator, and the models of its cells against yosys's Liberty functions."""

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from golden.clustering import ClusterTable
from hw import yosys
from hw.common.memory import Ram
from hw.config import Config
from hw.dre.hcu import HCU, Op
from sim.bench.override import source_override
from sim.bench.run import simulate
from sim.ports.hcu import cluster_rule, hcu_ports
from synth.gates import cell_model, of_component
from synth.library.reader import Library


def test_cell_models_equal_yosys_functions(predictive, tmp_path):
    """SAT over all inputs of every gate; flip-flops from equal states, one step (their state starts at 0).

    yosys does not read the state tables of clock gates.
    """
    cells = [cell for cell in predictive.cells() if cell.is_logic or (cell.state and cell.state.kind == "ff")]
    (tmp_path / "models.v").write_text("\n".join(cell_model(cell) for cell in cells))
    commands = [
        f"read_verilog {tmp_path}/models.v",
        "proc",
        *(f"rename {cell.name} model_{cell.name}" for cell in cells),
    ]
    commands += [f"read_liberty -ignore_miss_func {predictive.path}"]
    for cell in cells:
        miter = f"miter_{cell.name}"
        commands += [f"miter -equiv -flatten {cell.name} model_{cell.name} {miter}", f"async2sync {miter}"]
        steps = "" if cell.state is None else "-seq 1 -tempinduct -set-init-zero "
        commands.append(f"sat {steps}-verify -prove trigger 0 {miter}")
    log = yosys.run(commands)
    assert log.count("SUCCESS!") + log.count("successfully") >= len(cells) > 40


def test_wrong_model_differs_from_liberty(predictive, tmp_path):
    (tmp_path / "models.v").write_text(cell_model(predictive.cell("AOI21_X1")).replace("'h", "'h1"))
    commands = [f"read_verilog {tmp_path}/models.v", "rename AOI21_X1 model", f"read_liberty {predictive.path}"]
    commands += ["miter -equiv -flatten AOI21_X1 model miter", "sat -verify -prove trigger 0 miter"]
    with pytest.raises(yosys.YosysError):
        yosys.run(commands)


def test_rejects_latches_and_unknown_clocks(predictive):
    with pytest.raises(ValueError, match="LATCH_X1 must be a flip-flop or without state, got a latch"):
        cell_model(predictive.cell("LATCH_X1"))
    gated = Library([("some.lib", predictive.text.replace('clocked_on : "CK"', 'clocked_on : "CK * D"'))], "user")
    with pytest.raises(ValueError, match="cell DFF_X1: clocked_on must be a pin or its inverse, got "):
        cell_model(gated.cell("DFF_X1"))


class WriteThenRead(wiring.Component):
    """Writes `word` to one address of a memory, then reads another address."""

    i: In(stream.Signature(data.StructLayout({"write": 6, "read": 6, "word": 8})))
    o: Out(stream.Signature(8))

    def elaborate(self, platform):
        m = Module()
        m.submodules.ram = ram = Ram(depth=64, width=8)
        m.d.comb += [self.i.ready.eq(~self.o.valid | self.o.ready), ram.r_en.eq(self.i.valid & self.i.ready)]
        m.d.comb += [
            ram.w_addr.eq(self.i.payload.write),
            ram.w_data[0].eq(self.i.payload.word),
            ram.w_mask.eq(ram.r_en),
        ]
        m.d.comb += [ram.r_addr.eq(self.i.payload.read), self.o.payload.eq(ram.r_data[0])]
        with m.If(self.i.ready):
            m.d.sync += self.o.valid.eq(self.i.valid)
        return m


def test_a_netlist_with_a_memory_simulates(rng, seed):
    beats = {name: rng.integers(0, 4, 100) for name in ("write", "read")} | {"word": rng.integers(0, 256, 100)}
    words, want = [0] * 64, []
    for write, read, word in zip(*beats.values(), strict=True):
        words[write] = int(word)
        want.append(words[read])
    with source_override(of_component):
        record = simulate(WriteThenRead(), "write_then_read", {"i": beats}, {"o": 100}, stall=0.3, seed=seed)
    assert record.outputs["o"].tolist() == want
    assert "reg [7:0] words [0:63];" in of_component(WriteThenRead(), "write_then_read")["macros.v"]


@pytest.mark.heavy
def test_hcu_netlist_matches_golden_under_back_pressure(rng, seed):
    unit = HCU.from_config(Config.preset("tiny"))
    stream = rng.integers(0, 1 << 16, 120).astype(np.uint32)
    beats = {"op": np.full(120, Op.TOKEN.value), "hash": stream, "last": np.arange(120) % 10 == 9}
    rule = cluster_rule(unit, hamming_threshold=6, window_tokens=40, max_cluster_tokens=5)
    record = simulate(unit, "hcu", {"i": beats}, {"o": 120}, config=hcu_ports(rule), stall=0.3, seed=seed)
    want = ClusterTable(rule).assign(stream)
    for name in ("cluster", "opened", "count", "distance", "overflow"):
        assert record.outputs["o"][name].tolist() == getattr(want, name).astype(int).tolist(), name
