"""Steps that serve several sessions: each session gets what it gets in a step of its own, in every bit."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.batch import Frame, Text, ask, prompt, serve
from compiler.checkpoint import Checkpoint
from compiler.language_model import StreamTokens
from compiler.policies import (
    CodecSightPolicy,
    FullPolicy,
    HybridPolicy,
    InfiniGenPolicy,
    OakenPolicy,
    QuickPrefillPolicy,
    RekvPolicy,
    ResvPolicy,
    WindowPolicy,
)
from compiler.runtime import Limits, compile_model
from compiler.sampling import Sampling
from compiler.window_session import WindowSession
from hw.config import Config
from hw.core.isa import MAX_STEP
from tests.compiler.checkpoints import CONFIGS, write_random

TINY = Config.preset("tiny").replace(page_frames=1024)
POLICIES = {
    "resv": (TINY, ResvPolicy(ratio=0.5, hamming_threshold=3)),
    "resv, next layer": (TINY, ResvPolicy(ratio=0.5, hamming_threshold=3, prefetch="next_layer")),
    "full": (TINY, FullPolicy()),
    "window": (TINY, WindowPolicy(sink=4, recent=8)),
    "oaken": (TINY.replace(kv_bits=4), OakenPolicy()),
}


def checkpoint_of(path, rng, layers=3):
    text = {**CONFIGS["llava"]["text_config"], "num_hidden_layers": layers}
    write_random(path, "llava", rng, changes={"text_config": text})
    return Checkpoint(path)


def same_step(together, alone, requests):
    """Serve requests of the sessions `together` in one step, and alone each of the sessions `alone`."""
    machine, choices = together[0].machine, []
    for number, what, answer in requests:
        if isinstance(what, np.ndarray):
            alone[number].frame(what)
            choices.append(None)
        else:
            choices.append(alone[number].prompt(what, answer=answer))
    got = serve(
        machine,
        [
            Frame(together[n], [what]) if isinstance(what, np.ndarray) else Text(together[n], what, answer)
            for n, what, answer in requests
        ],
    )
    assert got == choices
    for number, _, answer in requests:
        first, second = together[number], alone[number]
        assert (first.position, first.positions) == (second.position, second.positions)
        if answer:
            np.testing.assert_array_equal(first.logits, second.logits)
        own, other = first.steps[-1], second.steps[-1]
        assert (own.tokens, own.sessions, other.sessions) == (other.tokens, len(requests), 1)
        for name in ("past", "clusters", "attended", "released"):
            assert getattr(own.retrieved, name) == getattr(other.retrieved, name), name


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(
    ("name", "resident"),
    [*((name, 0) for name in POLICIES), *((name, 24) for name in POLICIES if name != "window")],
    ids=lambda value: value if isinstance(value, str) else "host memory" if value else "device memory",
)
def test_sessions_together_equal_sessions_alone(name, resident, cores, tmp_path, rng):
    """Frames and texts of different lengths, three sessions in one step and fewer; then answers side by side."""
    config, policy = POLICIES[name]
    checkpoint = checkpoint_of(tmp_path, rng)
    limits = Limits(streams=3, tokens=64, step=20, resident=resident, pooled=2)
    machines = [
        compile_model(checkpoint, config, each, policy, cores=cores)
        for each in (Limits(**{**vars(limits), "batch": 3}), limits)
    ]
    together, alone = ([machine.session() for _ in range(3)] for machine in machines)

    def picture():
        return rng.integers(256, size=(20, 28, 3), dtype=np.uint8)

    def text(count):
        return rng.integers(40, size=count).tolist()

    same_step(together, alone, [(0, picture(), False), (1, picture(), False), (2, text(5), False)])
    for _ in range(3):
        same_step(together, alone, [(2, picture(), False), (0, picture(), False), (1, picture(), False)])
    same_step(together, alone, [(1, picture(), False), (0, text(7), True)])
    same_step(together, alone, [(2, text(3), True)])
    for _ in range(3):
        same_step(together, alone, [(0, text(1), True), (1, picture(), False), (2, text(2), True)])
    same_step(together, alone, [(n, text(1), True) for n in range(3)])
    fetched = sum(sum(step.retrieved.fetched) for session in together for step in session.steps)
    assert (fetched > 0) == bool(resident)


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=2.0, seed=3)], ids=["greedy", "sampled"])
def test_answers_side_by_side_equal_answers_alone(sampling, tmp_path, rng):
    """Texts of several steps; then questions, of which one has a shorter answer."""
    checkpoint = checkpoint_of(tmp_path, rng)
    limits = Limits(streams=3, tokens=64, step=12, pooled=2)
    machine, other = (compile_model(checkpoint, TINY, Limits(**{**vars(limits), "batch": n})) for n in (3, 1))
    together, alone = ([each.session() for _ in range(3)] for each in (machine, other))
    texts, questions = ([rng.integers(40, size=n).tolist() for n in sizes] for sizes in ((2, 11, 5), (4, 1, 2)))
    for session, text in zip(alone, texts, strict=True):
        session.prompt(text)
    assert prompt(machine, together, texts) == [None] * 3
    assert [session.position for session in together] == [2, 11, 5]
    assert [step.tokens for step in together[1].steps] == [4, 6, 1]  # the others are complete after 1 and 2 steps
    other.spec = replace(other.spec, eos_ids=())
    want = [list(session.ask(text, count=6, sampling=sampling)) for session, text in zip(alone, questions, strict=True)]
    end = want[2][2]  # the answers of a model that ends them with this token
    machine.spec = replace(machine.spec, eos_ids=(end,))
    want = [answer[: answer.index(end) + 1] if end in answer else answer for answer in want]
    got = list(ask(machine, together, questions, count=6, sampling=sampling))
    assert [[step[n] for step in got if step[n] is not None] for n in range(3)] == want
    assert len(want[2]) <= 3 and all(step[2] is None for step in got[len(want[2]) :])
    for n, session in enumerate(together):
        assert session.position == len(texts[n]) + len(questions[n]) + len(want[n]) - 1


def test_text_that_does_not_fit_changes_nothing(tmp_path, rng):
    machine = compile_model(checkpoint_of(tmp_path, rng), TINY, Limits(streams=2, batch=2, tokens=16, step=8, pooled=2))
    sessions = [machine.session() for _ in range(2)]
    with pytest.raises(ValueError, match="tokens of a session must be at most 16, got 17"):
        prompt(machine, sessions, [[1, 2], [1] * 17])
    for texts, message in (
        ([[1, 2], [3] * 12], "tokens must be at least 17 for the question and its answer, got 16"),
        ([[1, 2]], "texts must be one for each of 2 sessions, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            next(ask(machine, sessions, texts, count=6))
    assert [(session.position, session.steps) for session in sessions] == [(0, [])] * 2


def test_frames_of_a_model_with_positions_on_three_axes(tmp_path, rng):
    """Qwen2.5-VL: a frame has positions on three axes, a text on one."""
    write_random(tmp_path, "qwen2.5-vl", rng)
    checkpoint, limits = Checkpoint(tmp_path), Limits(streams=3, tokens=200)
    machines = [compile_model(checkpoint, TINY, Limits(**{**vars(limits), "batch": n})) for n in (3, 1)]
    together, alone = ([machine.session() for _ in range(3)] for machine in machines)

    def picture():
        return rng.integers(256, size=(20, 28, 3), dtype=np.uint8)

    same_step(together, alone, [(0, [1, 2, 3], False), (1, picture(), False), (2, picture(), False)])
    same_step(together, alone, [(1, [4], True), (0, picture(), False)])
    same_step(together, alone, [(0, [5], True), (1, [6, 7], True), (2, [8], True)])


def test_windows_are_refused(tmp_path, rng):
    """A session of CodecSight decides the slots of a step itself."""
    checkpoint = checkpoint_of(tmp_path, rng)
    machine = compile_model(checkpoint, TINY, Limits(tokens=64), CodecSightPolicy(window=3, stride=1, gop=2))
    session = machine.session(kind=WindowSession)
    with pytest.raises(ValueError, match="policy of a step of several sessions must have no windows, got codecsight"):
        serve(machine, [Text(session, [1])])


def test_as_many_frames_as_a_step_can_have(tmp_path, rng):
    """The default step has the frames of all sessions, up to the longest step of the core."""
    checkpoint = checkpoint_of(tmp_path, rng)
    for streams, pooled, step, frames in ((4, 0, 64, 4), (128, 3, MAX_STEP // 9 * 9, MAX_STEP // 9)):
        config = TINY.replace(page_frames=4096, max_contexts=512)
        limits = Limits(streams=streams, batch=streams, tokens=24, pooled=pooled, pages=24)
        machine = compile_model(checkpoint, config, limits)
        assert (machine.step, machine.vision.frames) == (step, frames)


def test_weights_are_read_once_for_all_sessions(tmp_path, rng):
    """A step of three tokens of three sessions loads as many tiles of the projections as a step of one session."""
    machine = compile_model(checkpoint_of(tmp_path, rng), TINY, Limits(streams=3, batch=3, tokens=64))
    contexts, layers, row = machine.contexts, machine.spec.text.layers, machine.decoder.embedding_words(1)

    def loads(sessions):
        streams = [StreamTokens([row], contexts[n * layers : (n + 1) * layers]) for n in range(sessions)]
        tiles = {matrix.address for layer in machine.decoder.layers for matrix in layer.matrices.values()}
        tiles.add(machine.decoder.head.address)
        return sorted(c.fields["source"] for c in machine.decoder.step(streams) if c.fields.get("source") in tiles)

    assert loads(3) == loads(1)


def test_requests_that_are_refused_change_nothing(tmp_path, rng):
    """Each refusal names its cause; a valid step succeeds afterwards."""
    checkpoint = checkpoint_of(tmp_path, rng)
    limits = Limits(streams=3, tokens=64, step=20, pooled=2)
    machine, other = (compile_model(checkpoint, TINY, Limits(**{**vars(limits), "batch": n})) for n in (2, 1))
    first, second, third = (machine.session() for _ in range(3))
    stranger = other.session()
    picture = rng.integers(256, size=(20, 28, 3), dtype=np.uint8)
    device = bytes(machine.core.device)
    for requests, message in (
        ([], r"requests of a step must be 1 to batch = 2, got 0"),
        ([Text(each, [1]) for each in (first, second, third)], r"requests of a step must be 1 to batch = 2, got 3"),
        ([Text(first, [1]), Text(first, [2])], "sessions of a step must be different, got one twice"),
        ([Text(first, [1]), Text(stranger, [2])], "sessions of a step must be of its machine, got one of another"),
        ([Text(first, [1] * 17), Frame(second, [picture])], "tokens of a step of all sessions must be at most 20"),
        ([Text(first, [1]), Text(second, [])], "tokens must be at least one token ID, got none"),
        ([Text(first, [1]), Text(second, [1 << 20])], "token must be 0 to"),
        ([Text(first, [1]), Frame(second, [picture[:, :, 0]])], "picture"),
    ):
        with pytest.raises(ValueError, match=message):
            serve(machine, requests)
        assert bytes(machine.core.device) == device
        assert (first.position, second.position, second.frames) == (0, 0, 0)
    serve(machine, [Text(first, [1]), Frame(second, [picture])])
    assert (first.position, second.position) == (1, 4)


@pytest.mark.parametrize(
    "policy",
    [HybridPolicy(states=4), InfiniGenPolicy(), QuickPrefillPolicy(group_frames=1), RekvPolicy(), CodecSightPolicy()],
    ids=lambda policy: policy.name,
)
def test_policies_with_one_buffer_for_a_step_are_refused(policy, tmp_path, rng):
    checkpoint = checkpoint_of(tmp_path, rng)
    with pytest.raises(ValueError, match=f"batch must be 1 for policy {policy.name}"):
        compile_model(checkpoint, policy.core(TINY), Limits(streams=2, batch=2, tokens=64, step=20), policy)


def test_step_of_fewer_tokens_than_sessions_is_refused(tmp_path, rng):
    with pytest.raises(ValueError, match="step must be at least batch = 3, got 2"):
        compile_model(checkpoint_of(tmp_path, rng), TINY, Limits(streams=3, batch=3, tokens=64, step=2))


def test_batch_of_more_sessions_than_streams_is_refused():
    with pytest.raises(ValueError, match="batch must be at most streams = 2, got 3"):
        Limits(streams=2, batch=3)
