"""CodecSight on the golden machine: masks of a real stream, windows, and the invariants of SPEC 4.3."""

import numpy as np
import pytest

from compiler.policies import CodecSightPolicy, load_policy
from compiler.runtime import Limits, compile_model
from compiler.window_session import WindowSession
from golden import bf16
from golden import vector_kernels as kernels
from golden.decoder_layer import angles
from golden.vpe import widen
from hw.config import Config
from tests.compiler.codec_streams import FAMILIES, GOP, GoldenWindows, checkpoint_of, masked_frames, window_memory

TINY = Config.preset("tiny")
PREFIX, QUESTION = [3, 5, 8], [7, 11]


def stream(folder, family, policy, cores=1, layers=2, seed=0):
    checkpoint, size = checkpoint_of(folder, family, np.random.default_rng(seed), layers)
    machine = compile_model(checkpoint, TINY, Limits(tokens=64, step=9, **size), policy, cores=cores)
    height, width = FAMILIES[family][1]
    frames = list(masked_frames(folder, policy, machine.vision.shape.group, 7, (width, height)))
    return checkpoint, machine, machine.session(kind=WindowSession), frames


def show(session, number, picture, kept):
    timed = session.machine.spec.text.rope.sections is not None
    session.frame(picture, seconds=number / 2 if timed else None, kept=kept)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cores", [1, 2])
def test_windows_equal_the_golden_model(family, cores, tmp_path):
    """Keys, values and logits of three windows; frames are masked, reused and refreshed."""
    policy = CodecSightPolicy(window=4, stride=1, gop=GOP)
    checkpoint, machine, session, frames = stream(tmp_path, family, policy, cores)
    golden, patches = GoldenWindows(machine, checkpoint, 64, PREFIX), machine.images.patches
    session.prompt(PREFIX)
    done, reached = len(session.steps), set()
    for number, (kind, picture, kept) in enumerate(frames):
        show(session, number, picture, kept)
        refreshed, reused = golden.frame(patches(picture), kept)
        reached |= {("refresh", f % GOP == 0) for f in refreshed} | {("reuse",) for _ in reused}
        reached.add((kind, bool(kept.all())))
        for layer, (keys, values) in enumerate(window_memory(session)):
            np.testing.assert_array_equal(keys, golden.decoder.keys[layer][: session.position])
            np.testing.assert_array_equal(values, golden.decoder.values[layer][: session.position])
        if number in (4, 6):
            session.prompt(QUESTION, answer=True)
            np.testing.assert_array_equal(session.logits, golden.logits(QUESTION))
        new, done = session.steps[done:], len(session.steps)
        runs = bool(kept.any()) * 2 + len([f for f in refreshed if len(golden.visual[f])]) + bool(refreshed or reused)
        assert sum(step.round_trips for step in new) == runs + (number in (4, 6))
    assert session.index == 3 and {("reuse",), ("refresh", True), ("I", True), ("P", False)} <= reached


@pytest.mark.parametrize("family", FAMILIES)
def test_refreshing_all_frames_is_a_full_prefill(family, tmp_path):
    """Bit for bit: a window whose frames are all refreshed, and the same frames as the first window of a stream."""
    policy = CodecSightPolicy(window=4, stride=2, gop=GOP, anchor="all")
    _, machine, session, frames = stream(tmp_path, family, policy)
    session.prompt(PREFIX)
    for number, (_, picture, kept) in enumerate(frames[:6]):
        show(session, number, picture, kept)
    fresh = compile_model(
        checkpoint_of(tmp_path, family, np.random.default_rng(0))[0], TINY, machine.limits, policy
    ).session(kind=WindowSession)
    fresh.prompt(PREFIX)
    for number, (_, picture, kept) in enumerate(frames[2:6]):
        show(fresh, number, picture, kept)
    assert (session.index, fresh.index) == (1, 0)
    for got, want in zip(window_memory(session), window_memory(fresh), strict=True):
        np.testing.assert_array_equal(got, want)
    for each in (session, fresh):
        each.prompt(QUESTION, answer=True)
    np.testing.assert_array_equal(session.logits, fresh.logits)


def test_one_layer_equals_a_full_prefill_within_rounding(tmp_path):
    """With one layer, values are equal, and reused keys differ by the rounding of their rotation only.

    A key is rounded when it is computed and once more for each of the windows that take it over, by at most 2**-9 of
    the length of its pair each; both machines round once more.
    """
    policy = CodecSightPolicy(window=4, stride=1, gop=8, anchor="none", force_first_anchor=False)
    _, machine, session, frames = stream(tmp_path, "llava-siglip", policy, layers=1)
    session.prompt(PREFIX)
    for number, (_, picture, kept) in enumerate(frames):
        show(session, number, picture, kept)
    checkpoint, _ = checkpoint_of(tmp_path, "llava-siglip", np.random.default_rng(0), 1)
    fresh = compile_model(checkpoint, TINY, machine.limits, policy).session(kind=WindowSession)
    fresh.prompt(PREFIX)
    for number, (_, picture, kept) in enumerate(frames[3:]):
        show(fresh, number, picture, kept)
    ((keys, values),), ((want_keys, want_values),) = window_memory(session), window_memory(fresh)
    np.testing.assert_array_equal(values, want_values)
    got, want = (bf16.decode(x).reshape(len(x), TINY.kv_heads, -1, 2, TINY.dpe_inputs) for x in (keys, want_keys))
    length = np.sqrt((want**2).sum(axis=3, keepdims=True))
    assert (np.abs(got - want) <= (3 + 2) * np.sqrt(2) * 2.0**-8 * length).all() and (keys != want_keys).any()


def test_rotations_add_up(rng):
    """R(a) R(b) = R(a + b) within the rounding to BF16, and lengths of pairs do not change."""
    keys = bf16.encode(rng.standard_normal((50, 2, 16)))
    frequencies = 10000.0 ** (-np.arange(8) / 8)

    def rotate(x, by):
        return kernels.rope(widen(x), *angles(np.full(len(x), by), 16, frequencies))

    twice, once = (bf16.decode(x) for x in (rotate(rotate(keys, -7), -30), rotate(keys, -37)))
    pair = np.hypot(*np.split(bf16.decode(keys), 2, axis=2))
    bound = np.tile(3 * np.sqrt(2) * 2.0**-8 * pair, 2)
    assert (np.abs(twice - once) <= bound).all()
    assert (np.abs(np.hypot(*np.split(once, 2, axis=2)) - pair) <= 2.0**-7 * pair).all()


def test_refused_frames_change_nothing(tmp_path):
    """Wrong masks, too many tokens, hidden states, and files."""
    policy = CodecSightPolicy(window=8, stride=1, gop=GOP)
    _, machine, session, frames = stream(tmp_path, "llava-siglip", policy)
    session.prompt([1] * 60)
    before = bytes(machine.core.device)
    picture = frames[0][1]
    with pytest.raises(ValueError, match=r"^kept must be 9 flags, got bool \(4,\)$"):
        session.frame(picture, kept=np.ones(4, bool))
    with pytest.raises(ValueError, match=r"^tokens of a session must be at most 64, got 69$"):
        session.frame(picture)
    with pytest.raises(ValueError, match=r"^frames of policy codecsight must be pictures, got hidden states$"):
        session.features(np.zeros((1, 32), np.uint16))
    with pytest.raises(ValueError, match=r"^frames of policy codecsight must come one by one, got a group of 1$"):
        session.frame_group([[picture]])
    with pytest.raises(ValueError, match=r"^policy of a saved session must keep its tokens in the store, got codec"):
        session.save(tmp_path / "stream")
    assert bytes(machine.core.device) == before and (session.position, session.frames) == (60, 0)


def test_policy_by_name():
    policy = load_policy("codecsight", {"window": 8, "stride": 2})
    assert (policy.rules(2).window, policy.rules(2).group) == (8, 2)
    with pytest.raises(ValueError, match=r"^stride must be at most 4, got 5$|^stride must be .*got 5$"):
        load_policy("codecsight", {"window": 4, "stride": 5})
    with pytest.raises(ValueError, match=r"^prefetch must be same_layer for policy codecsight, got 'next_layer'$"):
        load_policy("codecsight", {"prefetch": "next_layer"})
