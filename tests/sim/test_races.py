"""Programs of one and several cores have no races, and the check finds a missing wait or barrier."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from compiler.batch import Text, serve
from compiler.checkpoint import Checkpoint
from compiler.policies import (
    CodecSightPolicy,
    FullPolicy,
    InfiniGenPPolicy,
    QuickPrefillPolicy,
    RekvPolicy,
    ResvPolicy,
    WindowPolicy,
)
from compiler.runtime import Limits, Machine, compile_model
from compiler.window_session import WindowSession
from golden import bf16
from golden.core_interpreter import CoreInterpreter
from golden.resv import PREFETCH
from hw.config import Config
from hw.core.isa import Command, Destination, LengthSource, SyncEvent, all_but
from sim.races import Access, AccessRecorder, Race, check_order
from tests.compiler.checkpoints import write_random

LIMITS = Limits(tokens=64, step=8, resident=9)
RESV, NEXT_LAYER = (ResvPolicy(0.5, 3, prefetch=prefetch) for prefetch in ("same_layer", "next_layer"))
SIZES = {  # of pictures
    "llama": ({}, {}),
    "llava-siglip": ({"vision_config.image_size": 12}, {"pooled": 2}),
    "qwen2.5-vl": ({}, {"height": 8, "width": 16}),
}


class Recorder:
    """The programs of a machine, and the accesses of their commands."""

    def __init__(self, machine: Machine):
        self.cores, self.runs = machine.core.interpreters, list[tuple[list[list[Command]], list[list[Access]]]]()
        machine.core.observers.append(self)

    def wrote(self, images: Mapping[int, bytes]) -> None:
        pass

    @contextmanager
    def running(self, programs: list[list[Command]]) -> Iterator[None]:
        for core in self.cores:
            core.accesses = []
        yield
        self.runs.append((programs, [core.accesses for core in self.cores]))


def session(path, family, cores, rng, policy=RESV, layers=2) -> Recorder:
    """A token, two frames, a question and a token."""
    changes, size = SIZES[family]
    changes = changes | ({"num_hidden_layers": layers} if layers != 2 else {})
    write_random(path, family, rng, changes=changes)
    config = Config.preset("tiny").replace(page_frames=256)
    limits = replace(LIMITS, **size) if policy.table(config).kept_pages is None else Limits(tokens=64, step=8)
    machine = compile_model(Checkpoint(path), config, limits, policy, cores=cores, interpreter=AccessRecorder)
    recorder, opened = Recorder(machine), machine.session()
    opened.prompt([1])
    for _ in range(2):
        if machine.vision is None:
            opened.features(bf16.encode(rng.standard_normal((5, machine.spec.text.hidden))))
        else:
            opened.frame(rng.integers(256, size=(16, 24, 3), dtype=np.uint8))
    list(opened.ask(rng.integers(machine.spec.text.vocabulary, size=6).tolist(), count=2))
    return recorder


def test_accesses_are_those_of_the_golden_interpreter(tmp_path, rng):
    """All reads and writes of `CoreInterpreter`, in order, and equal results in memory."""
    write_random(tmp_path, "llama", rng)
    config, embedded = Config.preset("tiny").replace(page_frames=256), bf16.encode(rng.standard_normal((3, 32)))
    golden = type("Golden", (AccessRecorder,), {"_multiply": CoreInterpreter._multiply})
    recorders, memories = [], []
    for interpreter in (golden, AccessRecorder):
        machine = compile_model(Checkpoint(tmp_path), config, LIMITS, RESV, interpreter=interpreter)
        recorders.append(Recorder(machine))
        opened = machine.session()
        opened.prompt([1])
        opened.features(embedded)
        memories.append(bytes(machine.core.leader.memories[0]))
    assert memories[0] == memories[1]
    for (_, (want,)), (_, (got,)) in zip(*(recorder.runs for recorder in recorders), strict=True):
        assert want == got and any(access.writes for access in got)


@pytest.mark.parametrize("cores", [1, 2, 6])
@pytest.mark.parametrize("family", SIZES)
def test_compiled_programs_have_no_races(family, cores, tmp_path, rng):
    """With 6 cores, three share each of two KV heads."""
    recorder = session(tmp_path, family, cores, rng)
    assert all(check_order(programs, accesses) > 100 for programs, accesses in recorder.runs)


@pytest.mark.parametrize("cores", [1, 2, 6])
def test_programs_that_select_for_the_next_layer_have_no_races(cores, tmp_path, rng):
    """Three layers use both page lists, and the first ones again."""
    recorder = session(tmp_path, "llama", cores, rng, NEXT_LAYER, layers=3)
    assert all(check_order(programs, accesses) > 100 for programs, accesses in recorder.runs)


@pytest.mark.parametrize("cores", [1, 2, 6])
@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize(
    "policy", [FullPolicy(), WindowPolicy(sink=4, recent=4), RekvPolicy(frames=1), QuickPrefillPolicy(rho=0.5)]
)
def test_programs_of_policies_have_no_races(policy, prefetch, cores, tmp_path, rng):
    recorder = session(tmp_path, "llama", cores, rng, replace(policy, prefetch=prefetch), layers=3)
    assert all(check_order(programs, accesses) > 100 for programs, accesses in recorder.runs)


@pytest.mark.parametrize("cores", [1, 2, 6])
@pytest.mark.parametrize(
    "policy",
    [
        NEXT_LAYER,
        FullPolicy(prefetch="next_layer"),
        FullPolicy(),
        *(pytest.param(policy, marks=pytest.mark.heavy) for policy in (RESV, WindowPolicy(sink=4, recent=4))),
    ],
    ids=["resv, next layer", "full, next layer", "full", "resv", "window"],
)
def test_programs_of_several_streams_have_no_races(policy, cores, tmp_path, rng):
    """Three streams, whose pages leave device memory, in the page lists of which there are two."""
    write_random(tmp_path, "llama", rng, changes={"num_hidden_layers": 3})
    limits = Limits(streams=3, batch=3, tokens=64, step=12, resident=0 if policy.name == "window" else 12)
    config = Config.preset("tiny").replace(page_frames=256)
    machine = compile_model(Checkpoint(tmp_path), config, limits, policy, cores=cores, interpreter=AccessRecorder)
    recorder, sessions = Recorder(machine), [machine.session() for _ in range(3)]
    for counts in ((2, 5, 4), (4, 4, 4), (3, 1, 2)):
        texts = [rng.integers(machine.spec.text.vocabulary, size=count).tolist() for count in counts]
        serve(machine, [Text(session, text, answer=True) for session, text in zip(sessions, texts, strict=True)])
    moved = [step.retrieved for session in sessions for step in session.steps]
    assert any(sum(step.offloaded) for step in moved) == bool(limits.resident)
    assert all(check_order(programs, accesses) > 100 for programs, accesses in recorder.runs)


@pytest.mark.parametrize("cores", [2, *(pytest.param(cores, marks=pytest.mark.heavy) for cores in (1, 6))])
def test_programs_of_partial_scores_have_no_races(cores, tmp_path, rng):
    """Speculated queries of the second and of the third layer share their buffers."""
    recorder = session(tmp_path, "llama", cores, rng, InfiniGenPPolicy(budget=4), layers=3)
    assert all(check_order(programs, accesses) > 100 for programs, accesses in recorder.runs)


@pytest.mark.heavy
@pytest.mark.parametrize("cores", [1, 2])
def test_programs_of_windows_have_no_races(cores, tmp_path, rng):
    """Masked frames, a change of the window with a refreshed frame and reused ones, and a question."""
    write_random(tmp_path, "llava-siglip", rng, changes=SIZES["llava-siglip"][0])
    machine = compile_model(
        Checkpoint(tmp_path), Config.preset("tiny"), Limits(tokens=64, step=9),
        CodecSightPolicy(window=3, stride=1, gop=2), cores=cores, interpreter=AccessRecorder,
    )  # fmt: skip
    recorder, opened = Recorder(machine), machine.session(kind=WindowSession)
    opened.prompt([1])
    tokens = machine.vision.shape.output_tokens
    for kept in (range(tokens), (1,), (), range(tokens)):
        opened.frame(rng.integers(256, size=(16, 24, 3), dtype=np.uint8), kept=np.isin(np.arange(tokens), kept))
    opened.prompt([2, 3], answer=True)
    assert opened.index == 1 and len(recorder.runs) == 10
    for programs, accesses in recorder.runs:
        check_order(programs, accesses)


def test_a_missing_wait_for_the_decisions_is_found(tmp_path, rng):
    """Hash codes that do not wait for FETCH, and a selection in the page lists of the layer that attends."""
    programs, accesses = session(tmp_path, "llama", 1, rng, NEXT_LAYER, layers=3).runs[2]
    (program,), (theirs,) = programs, accesses
    codes = [n for n, each in enumerate(program) if each.fields.get("destination") == Destination.CODES]
    waits = {event: wait for event, wait in program[codes[1]].waits.items() if event != SyncEvent.RETRIEVAL}
    early = [*program[: codes[1]], replace(program[codes[1]], waits=waits), *program[codes[1] + 1 :]]
    with pytest.raises(Race, match=rf"word 0 of memory 2: VECTOR \(command {codes[1]} of core 0\)"):
        check_order([early], [theirs])
    selects, fetches = ([n for n, each in enumerate(program) if each.name == name] for name in ("SELECT", "FETCH"))
    changed = list(theirs)
    for n in (selects[2], fetches[1]):
        assert (2, 3, 2) in theirs[n].writes
        changed[n] = Access(theirs[n].reads, [(2, 1, 2)])
    with pytest.raises(Race, match=r"of memory 2: GATHER \(command \d+ of core 0\) does not wait for SELECT"):
        check_order([program], [changed])


def test_a_missing_wait_for_the_number_of_clusters_is_found(tmp_path, rng):
    """Mean keys that are loaded without a wait for COUNT. Every core has a number of its own."""
    programs, accesses = session(tmp_path, "llama", 2, rng, NEXT_LAYER, layers=3).runs[2]
    core = 1
    at = [n for n, each in enumerate(programs[core]) if each.fields.get("length") == LengthSource.COUNTED]
    first = programs[core][at[0]]
    assert first.name == "LOAD" and SyncEvent.LOAD in first.waits
    waits = {event: wait for event, wait in first.waits.items() if event != SyncEvent.LOAD}
    changed = list(programs)
    changed[core] = [*programs[core][: at[0]], replace(first, waits=waits), *programs[core][at[0] + 1 :]]
    check_order(programs, accesses)
    with pytest.raises(Race, match=r"word 1 of memory 3: LOAD \(command \d+ of core 1\) does not wait for COUNT"):
        check_order(changed, accesses)


def test_a_missing_barrier_is_found(tmp_path, rng):
    """Without its n-th BARRIER, which all cores leave out, the programs have a race."""
    programs, accesses = session(tmp_path, "llama", 2, rng).runs[2]
    count = sum(command.name == "BARRIER" for command in programs[0])
    found = 0
    for n in range(count):
        kept = []
        for program in programs:
            at = [index for index, command in enumerate(program) if command.name == "BARRIER"][n]
            kept.append([i for i in range(len(program)) if i != at])
        fewer = [[program[i] for i in keep] for program, keep in zip(programs, kept, strict=True)]
        theirs = [[access[i] for i in keep] for access, keep in zip(accesses, kept, strict=True)]
        try:
            check_order(fewer, theirs)
        except Race:
            found += 1
    # the waits of a step without one of its barriers still cover a few of them
    assert count > 20 and found > 0.8 * count


def two_copies(waits: dict[SyncEvent, int], second: str = "VECTOR") -> int:
    """Pairs of a COPY that writes word 5, and a command of another unit that reads it."""
    program = [Command("COPY", {}), Command(second, {}, waits), Command("END")]
    return check_order([program], [[Access([], [(0, 5, 1)]), Access([(0, 4, 2)], []), Access([], [])]])


def test_waits_order_accesses():
    assert two_copies({SyncEvent.COPY: all_but()}) == 1
    with pytest.raises(Race, match=r"word 5 of memory 0: VECTOR \(command 1 of core 0\) does not wait for COPY \(comm"):
        two_copies({})
    with pytest.raises(Race):
        two_copies({SyncEvent.COPY: all_but(1)})
    with pytest.raises(Race):  # commands of one unit start in order, but the first one need not be complete
        two_copies({}, "COPY")


def test_a_multiply_that_has_read_its_operands_has_not_written():
    """A LOAD waits for OPERANDS of a MULTIPLY: what the MULTIPLY waited for is complete, its results are not."""
    program = [
        Command("COPY", {}),
        Command("MULTIPLY", {}, {SyncEvent.COPY: all_but()}),
        Command("LOAD", {}, {SyncEvent.OPERANDS: all_but()}),
        Command("END"),
    ]
    write, result, none = Access([], [(0, 5, 1)]), Access([], [(0, 6, 1)]), Access([], [])
    assert check_order([program], [[write, none, Access([(0, 5, 1)], []), none]]) == 1
    with pytest.raises(Race, match=r"LOAD \(command 2 of core 0\) does not wait for MULTIPLY"):
        check_order([program], [[none, result, Access([(0, 6, 1)], []), none]])


def test_memories_are_different():
    """Word 5 behind the host link is not word 5 of the device memory."""
    program = [Command("COPY", {}), Command("VECTOR", {}), Command("END")]
    none = Access([], [])
    assert check_order([program], [[Access([], [(1, 5, 1)]), Access([(0, 5, 1)], []), none]]) == 0
