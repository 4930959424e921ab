"""A unit without counters behaves as the unit with counters."""

import pytest

from hw.config import PRESETS
from hw.registry import UNITS
from sim.bench.run import simulate
from synth.power.stimulus import stimulus


def record(name, counters, seed):
    """Values of every port in every cycle of a run with pauses."""
    component = UNITS[name].build(PRESETS["tiny"].replace(dre_counters=counters))
    run = stimulus(component, "random", beats=30)
    memory = {} if run.memory is None else {"memory": run.memory, "memory_latency": (1, 5)}
    options = {"config": run.config, "echo": run.echo, "drain_cycles": run.drain_cycles, "stall": 0.3, "seed": seed}
    return simulate(component, name, run.inputs, run.outputs, **options, **memory, record_ports=True)


@pytest.mark.parametrize("name", ["hcu", "wtu", "kvmu", "kvpu"])
def test_counters_do_not_change_other_ports(name, seed):
    counting, plain = (record(name, counters, seed) for counters in (1, 0))
    others = ("_clear", "_overflow", "_fault", "_faults", "_resident")
    counters = {port for port in counting.ports if port.startswith("stat_") and not port.endswith(others)}
    assert len(counters) >= 6 and any(counting.ports[port].any() for port in counters)
    assert not any(plain.ports[port].any() for port in counters)
    for port in counting.ports.keys() - counters:
        assert (counting.ports[port] == plain.ports[port]).all(), port
