"""Cost of contexts: the same steps on one context and on a different context for every layer, in the RTL."""

from functools import partial

import numpy as np
import pytest

from cli.rtl import predict
from compiler.layer import model_step
from sim.bench.layer_run import CASES, LayerRun, frames
from sw_model.cycles.step_data import record_steps
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory

LAYERS, HISTORY = 3, 2


def timing():
    return {"device": DramTiming(load_memory("lpddr5-6400-256b")), "host": PcieTiming(PcieLink(3, 4))}


def run(preset, threshold, seed):
    """RTL cycles and predicted cycles of a program whose layers share a context, and of one whose layers do not.

    Context n of the second program is in the state that the shared context has before layer n.
    """
    bench = LayerRun(
        preset, np.random.default_rng(seed), hamming_threshold=threshold, max_resident_tokens=200, streams=LAYERS + 1
    )
    table, data, tokens = bench.golden.table, {}, CASES[preset].tokens
    past, *others = frames(bench, HISTORY + 1, tokens, drift=0.1)
    history, x = [past, *others[:-1]], others[-1]
    position = HISTORY * tokens

    def step(inputs, stream, at):
        bench.positions[stream] = at
        steps = record_steps(table, partial(bench.step, inputs, stream))
        data[bench.steps[-1]] = steps

    for stream in range(LAYERS + 1):
        for n, inputs in enumerate(history):
            step(inputs, stream, n * tokens)
    hidden = [x]
    numbers = []
    for streams in ([LAYERS] * LAYERS, range(LAYERS)):
        for stream in streams:
            for inputs in hidden[:stream] if stream < LAYERS else ():
                step(inputs, stream, position)
        bench.positions[streams[0]] = position
        bench.fill(bench.inputs(x, streams[0]))
        layers = [bench.layer.for_context(bench.contexts[stream], bench.layer.out if n else None)
                  for n, stream in enumerate(streams)]  # fmt: skip
        numbers.append(len(bench.programs))
        bench.run(model_step(layers, tokens))
        steps = []
        for n, stream in enumerate(streams):
            golden = bench.goldens[stream][0]
            trace = partial(golden.step, hidden[n], range(position, position + tokens))
            outputs = []
            steps += record_steps(table, lambda trace=trace, outputs=outputs: outputs.append(trace()))
            bench.traces.append(outputs[0])
            if len(hidden) < LAYERS + 1:
                hidden.append(outputs[0].output)
        data[numbers[-1]] = steps
        bench.outputs.append((bench.save_outputs({bench.layer.out: hidden[-1].nbytes})[0], hidden[-1]))
    bench.check(timing=timing(), seed=seed)
    predicted = predict(bench, data, timing())
    return [bench.outcomes[n].cycles for n in numbers], [predicted[n] for n in numbers]


@pytest.mark.parametrize("preset, threshold, bound", [("tiny", 5, 0.2), ("small", 9, 0.01)])
def test_context_cost_of_rtl_is_bounded(preset, threshold, bound, seed):
    """Further cycles of a layer that opens another context, as a share; the model predicts both programs."""
    cycles, predicted = run(preset, threshold, seed)
    print(cycles, predicted)
    same, different = cycles
    assert 0 < (different - same) / (LAYERS - 1) <= bound * same / LAYERS
    assert np.abs(np.array(predicted) / cycles - 1).max() <= 0.03
