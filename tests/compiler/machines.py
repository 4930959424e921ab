"""A golden machine on the memories of a layer run."""

import numpy as np

from compiler.golden_machine import GoldenMachine
from compiler.machine.interpreter import FastInterpreter
from golden.kvpu import Kvpu
from sim.bench.layer_run import LayerRun


def golden_machine(bench: LayerRun) -> GoldenMachine:
    """A machine on the memories of `bench`, with a KV prediction unit of its own."""
    first, base = bench.golden.table, bench.store_base
    store = np.frombuffer(bench.run_on.device, np.uint8)[base : base + len(bench.memory)]
    table = Kvpu(first.rule, first.kvmu.config, store, base, first.wtu, first.target, origin=base)
    varying = {address for layer in bench.layers for address in layer.vectors.varying}
    memories = bench.run_on.device, bench.run_on.host
    return GoldenMachine(bench.config, *memories, table, bench.instructions, varying, FastInterpreter)


def check_outputs(bench: LayerRun) -> None:
    """Compare all outputs in the memory of `bench` with the golden layers."""
    for at, output in bench.outputs:
        actual = np.frombuffer(bench.run_on.device[at : at + output.nbytes], "<u2").reshape(output.shape)
        np.testing.assert_array_equal(actual, output)
