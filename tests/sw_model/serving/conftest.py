"""Step times without the event model."""

import pytest

from sw_model.assumptions import Assumptions
from sw_model.serving.step_times import BATCHES, CONTEXTS, FETCHES, StepTimes
from sw_model.systems import load_system


class LinearTimes(StepTimes):
    """20 ms for a step, 2 ms for each stream of it, 1 ms for 1000 tokens of context, 1 ms for 100 MB of fetched KV."""

    def fill(self, kind, batch, context, fetch):
        ms = 20 + 2 * BATCHES[batch] + CONTEXTS[context] / 1e3 + FETCHES[fetch] / 1e8
        self.table[kind, batch, context, fetch] = round(ms * 1e9)


@pytest.fixture
def linear_times():
    """A function that makes such times for a system, a policy and assumptions."""

    def make(system="vrex8", policy="resv", **assume):
        return LinearTimes(load_system(system), policy, question_tokens=25, assume=Assumptions(**assume))

    return make
