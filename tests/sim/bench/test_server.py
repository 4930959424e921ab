"""Runs in forks of a simulator equal runs in processes of their own."""

import os
from types import SimpleNamespace

import pytest

import sim.bench.server as servers_of
from sim.bench.build import SimulatorError
from sim.bench.override import simulator_override
from sim.bench.run import run_process, simulate
from sim.bench.server import Server, Servers
from tests.sim.bench.test_run import Queue
from vrex import stop_children


@pytest.fixture
def servers():
    pool = Servers()
    with simulator_override(pool):
        yield pool
    pool.close()


def run(seed, **options):
    words = [7 * seed + i & 255 for i in range(60)]
    record = simulate(Queue(), "queue", {"i": words}, {"o": 60}, stall=0.5, seed=seed, **options)
    return record.outputs["o"].tolist(), record.cycles["i"].tolist(), record.cycles["o"].tolist(), record.status


def test_forks_equal_processes(servers, seed):
    forked = [run(seed + i) for i in (0, 1, 0)]
    assert len(servers.servers) == 1
    with simulator_override(run_process):
        alone = [run(seed + i) for i in (0, 1, 0)]
    assert forked == alone and alone[0] != alone[1]


def test_failed_run_is_repeated_for_its_log(servers, monkeypatch):
    options = {"config": {"cfg_flaw": 1}, "timeout_cycles": 500}
    with pytest.raises(SimulatorError, match="Timeout") as error:
        run(1, **options)
    assert "INFO" in str(error.value)  # the log of the process
    run(1)  # the server still serves
    monkeypatch.setattr(servers_of, "run_process", lambda *arguments: None)
    with pytest.raises(SimulatorError, match=r"queue: the run failed in a forked simulator only: .*Timeout"):
        run(1, **options)


def test_ended_server_is_replaced(servers):
    first = run(1)
    (server,) = servers.servers.values()
    stop_children()  # as an interrupted command
    server.simulator.join(60)
    assert run(1) == first and not servers.servers
    assert run(1) == first and servers.servers


def test_only_the_last_servers_are_kept(servers, monkeypatch):
    monkeypatch.setattr(servers_of, "KEPT", 1)
    words = {"i": [1]}, {"o": 1}
    simulate(Queue(), "queue", *words)
    (first,) = servers.servers.values()
    simulate(Queue(), "queue_again", *words)
    (second,) = servers.servers.values()
    assert first is not second and second.simulator.is_alive()
    assert not first.simulator.is_alive() and not first.folder.exists()


def test_dead_simulator_raises_error(tmp_path):
    server = object.__new__(Server)
    server.folder, server.simulator = tmp_path, SimpleNamespace(is_alive=lambda: False)
    (server.replies, _), (_, server.requests) = pipes = os.pipe(), os.pipe()
    try:
        with pytest.raises(SimulatorError, match="the simulator ended: see"):
            server.run("module", tmp_path, {}, limit_s=1)
    finally:
        for end in (end for pipe in pipes for end in pipe):
            os.close(end)
