"""`CoreSystem`: the accesses of a host to a core with memories, and a model of two layers that they run."""

import numpy as np
import pytest

from hw.boards.message_codes import Access
from hw.boards.protocol import Vectors
from hw.config import Config
from sim.bench.run import simulate
from synth.core_session import Accesses, random_session, self_test, vectors_of
from tests.hw.boards.serial import talk

TINY = Config.preset("tiny")
ON_BOARD = TINY.replace(dre_counters=0, hcu_lanes=2, wtu_lanes=2, cache_lines=2)  # the bitstream of hw/boards/README.md
LIMITS = {"patience": 1 << 20, "limit_cycles": 40_000_000}  # CLEAR takes a cycle per word


def beats(words):
    """Payload columns of the stream `access`."""
    words = np.array(words, object)
    return {
        "value": (words & (1 << 64) - 1).astype(np.uint64),
        "address": (words >> 64 & (1 << 24) - 1).astype(np.uint64),
        "kind": (words >> 88).astype(np.uint64),
    }


def replies(system, vectors, **options):
    """Words that the system replies to the accesses."""
    expected = vectors.outputs["reply"]
    record = simulate(
        system, "core_system", {"access": beats(vectors.inputs["access"])}, {"reply": len(expected)}, **options
    )
    return record.outputs["reply"].tolist()


@pytest.fixture
def session(seed):
    return random_session(TINY, seed)


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_model_of_two_layers(stall, session, seed):
    """Logits and tokens of every step equal those of the golden machine; pages come back from the host memory."""
    vectors = session.vectors()
    assert session.programs > 3 and sum(session.machine.core.retrieved.fetched) > 0
    assert replies(session.system(), vectors, stall=stall, seed=seed) == vectors.outputs["reply"]


def test_self_test_and_accesses_without_effect(session):
    """After the self-test: an unknown access, and a wait for an interrupt that does not come."""
    test, accesses = self_test(session.system()), Accesses(session.word)
    accesses.add(Access.CLEAR)
    accesses.words.append(0xFF << 88)
    accesses.read(Access.READ_HOST, 1, bytes(session.word))
    accesses.add(Access.WAIT, value=100, reply=0)
    more = vectors_of(accesses)
    words = {"access": [*test.inputs["access"], *more.inputs["access"]]}
    expected = [*test.outputs["reply"], *more.outputs["reply"]]
    assert replies(session.system(), Vectors({}, words, {"reply": expected}, {})) == expected


@pytest.mark.heavy
def test_model_through_the_serial_port(seed):
    """The self-test after power-up, then the host program runs the model: 60 clock cycles for each byte."""
    session = random_session(ON_BOARD, seed)
    system, vectors = session.system(), session.vectors()
    beats, problem = talk(system, self_test(system), vectors, **LIMITS)
    assert problem == "" and beats == {"reply": len(vectors.outputs["reply"])}


@pytest.mark.heavy
def test_host_names_a_wrong_logit(session):
    system, vectors = session.system(), session.vectors()
    first = next(at for at, word in enumerate(vectors.outputs["reply"]) if word > 2)
    expected = vectors.outputs["reply"][first]
    vectors.outputs["reply"][first] ^= 1
    _, problem = talk(system, self_test(system), vectors, **LIMITS)
    assert problem == f"BoardError: beat {first} of reply must be 0x{expected ^ 1:x}, got 0x{expected:x}"


def test_refused_accesses_and_machines():
    with pytest.raises(ValueError, match="address must be 0 to 16777215, got 16777216"):
        Accesses(8).add(Access.READ_HOST, 1 << 24)
