"""The model of the demo: steps of its session, and the core's RTL with equal and with different results."""

import numpy as np
import pytest

from cli.demo import model
from sim.bench.core_run import CoreRun
from util.progress import no_progress

FRAMES, ANSWER = 1, 2


@pytest.fixture(scope="module")
def finished():
    """A session of one frame on both machines; a second check takes the results of the first simulation."""
    rng, results, simulate = np.random.default_rng(3), [], CoreRun.simulate
    pictures = rng.integers(256, size=(FRAMES, 20, 28, 3), dtype=np.uint8)
    made = model.golden_session(pictures, answer_tokens=ANSWER, seed=0, progress=no_progress)

    def once(run, **options):
        if not results:
            results.append(simulate(run, **options))
        return results[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoreRun, "simulate", once)
        yield made, model.through_core(made, seed=0)


def test_steps_of_the_session(finished):
    made, result = finished
    assert [step.kind for step in result.steps] == ["frame", "question", "answer"]
    assert [step.tokens for step in result.steps] == [9, len(model.QUESTION), 1]
    assert [step.past for step in result.steps] == [0, 9, 9 + len(model.QUESTION)]
    assert len(result.answer) == ANSWER and result.programs == 4
    first, *others = result.steps
    assert first.tower_cycles > 0 and not first.shares
    for step in others:
        assert step.tower_cycles == 0 and step.decoder_cycles > 0 and step.fetched_bytes > 0
        assert len(step.shares) == 2 and all(0 < share <= 1 for share in step.shares)
    assert sum(step.tower_cycles + step.decoder_cycles for step in result.steps) == sum(made.run.cycles)


def test_different_result_raises(finished):
    """One bit of the store of the golden machine changes after the session."""
    made, _ = finished
    store = made.machine.core.table.kvmu.memory
    store[-1] ^= 1
    try:
        with pytest.raises(ArithmeticError, match=r"^the RTL of the core differs from the golden machine: .*store"):
            model.through_core(made, seed=0)
    finally:
        store[-1] ^= 1


def test_section_has_a_row_for_every_step(finished):
    _, result = finished
    section = model.section(result)
    assert len(section.tables[0].rows) == len(result.steps) and len(section.images) == 2
    assert any("random" in text for text in section.text)
    assert f"{result.answer[0]}, {result.answer[1]}" in section.text[-1]
