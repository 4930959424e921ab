import pytest

from hw import yosys
from synth.library.cells import Stage
from synth.library.liberty import LOADS, SLEWS_PS, path_ps
from synth.library.technology import Technology


def test_inverter_chain_has_the_delay_it_was_derived_for():
    t = Technology()
    slew = 10.0
    for _ in range(10):
        delay, slew = path_ps(t, (Stage(),), True, slew, 4 * t.gate_ff)
    assert delay == pytest.approx(t.fo4_ps)


def test_fo4_is_read_back_from_the_liberty(predictive):
    assert predictive.fo4_ps == pytest.approx(Technology().fo4_ps, rel=0.02)


def test_tables_grow_with_load_and_slew(predictive):
    for cell in predictive.cells():
        for pin in cell.pins.values():
            for arc in pin.arcs:
                for name, table in arc.tables.items():
                    if name.startswith("cell_"):
                        assert table.values.shape == (len(SLEWS_PS), len(LOADS))
                        assert (table.values[:, 1:] > table.values[:, :-1]).all(), (cell.name, name)
                        assert (table.values[1:] > table.values[:-1]).all(), (cell.name, name)


def test_yosys_reads_it(predictive):
    log = yosys.run([f"read_liberty -lib {predictive.path}"])
    assert f"Imported {len(predictive.names)} cell types" in log
