"""QuickPrefill on the machine: kept tokens and attended tokens equal the golden models and `golden.quickvideo`."""

from dataclasses import replace

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import FullPolicy, QuickPrefillPolicy, load_policy
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.decoder_layer import LayerPolicy
from golden.language_model import greedy
from golden.quickvideo import QuickVideoConfig, group_scores, kept_count, top_tokens
from tests.compiler.checkpoints import write_random
from tests.compiler.test_policies import TINY, Sessions


class PrunedSessions(Sessions):
    """Sessions whose kept tokens are checked against `golden.quickvideo`."""

    def __init__(self, folder, policy, rng, **options):
        super().__init__(folder, policy, rng, **options)
        self.rho, self.keys = policy.rho, []
        for layer in self.model.layers:
            kept_tokens = layer.kept_tokens

            def recorded(k, kept_tokens=kept_tokens):
                self.keys.append(k)
                return kept_tokens(k)

            layer.kept_tokens = recorded

    def golden(self, x, label=0):
        self.keys = []
        return super().golden(x, label)

    def group(self, rows):
        """A group of frames, BF16 bit patterns (T, hidden); returns the kept tokens of the layers."""
        for layer in self.model.layers:
            layer.visual = True
        self.session.features(rows)
        traces = self.golden(rows)[1]
        for layer in self.model.layers:
            layer.visual = False
        kept = [trace.kept.tolist() for trace in traces]
        machine = self.session.steps[-1].retrieved.kept
        assert (machine or [list(range(len(rows)))] * len(kept)) == kept
        for k, own in zip(self.keys, kept, strict=True):
            check_kept(bf16.decode(k), np.array(own), self.rho)
        return kept


def check_kept(keys, kept, rho):
    """The kept tokens are those of `golden.quickvideo`, the lower index first among norms that are equal in BF16."""
    scores = group_scores(keys, keys, QuickVideoConfig(rho=rho))
    want = top_tokens(scores, rho)
    assert len(kept) == len(want)
    squares = scores**2
    cut = np.sort(squares)[len(want) - 1]
    # a rounded norm differs by 2**-9 at most, and FP32 sums by less
    near = np.abs(squares - cut) <= 2.0**-7 * cut
    np.testing.assert_array_equal(kept[~near[kept]], want[~near[want]])


def visual(rng, tokens, hidden=32):
    return bf16.encode(rng.standard_normal((tokens, hidden)))


@pytest.mark.parametrize("prefetch, resident", [("same_layer", 24), ("next_layer", 0)])
def test_groups_are_pruned_and_text_is_not(prefetch, resident, tmp_path, rng):
    """Groups of several pieces; then a question and its answer attend to the kept tokens and to all text."""
    policy = QuickPrefillPolicy(rho=0.4, prefetch=prefetch)
    sessions = PrunedSessions(tmp_path, policy, rng, resident=resident, layers=3, tokens=160, step=40)
    sessions.prompt([1, 2, 3])
    stored = 3
    for tokens in (1, 30, 2, 9, 25):
        for kept in sessions.group(visual(rng, tokens)):
            assert len(kept) == kept_count(tokens, 0.4)
        assert sessions.session.steps[-1].retrieved.attended == [[stored] * TINY.kv_heads] * 3
        stored += kept_count(tokens, 0.4)
    sessions.answer([1, 2, 3, 4], 4)
    header = sessions.machine.core.table.context.header
    assert int(header["tokens"]) == stored + 4 + len(sessions.session.steps[7:])
    assert any(sum(step.retrieved.fetched) for step in sessions.session.steps) == bool(resident)


def test_kept_tokens_fill_whole_pages(tmp_path, rng):
    """The pages of a cluster hold kept tokens only: all of them are full except the last one."""
    sessions = PrunedSessions(tmp_path, QuickPrefillPolicy(rho=0.5), rng, tokens=96, step=24)
    for tokens in (18, 14, 22):
        sessions.group(visual(rng, tokens))
    pages = sessions.machine.core.table.context.pages
    used = [int(page["used"]) for page in pages if page["used"]]
    assert sum(used) == 9 + 7 + 11 and used[:-1] == [TINY.page_tokens] * (len(used) - 1)


def test_the_first_of_equal_norms_stay(tmp_path, rng):
    """Hidden states of zero have keys of zero in the first layer, more of them than tokens stay."""
    sessions = PrunedSessions(tmp_path, QuickPrefillPolicy(rho=0.25), rng, tokens=64, step=24)
    rows = visual(rng, 24)
    rows[5:17] = 0
    assert sessions.group(rows)[0] == list(range(5, 11))


def test_all_tokens_stay_with_rho_1(tmp_path, rng):
    """The programs, and so the results, are those of full attention."""
    write_random(tmp_path, "llama", rng)
    checkpoint, rows = Checkpoint(tmp_path), [visual(rng, tokens) for tokens in (12, 20)]
    results = []
    for policy in (FullPolicy(), QuickPrefillPolicy(rho=1.0)):
        session = compile_model(checkpoint, TINY, Limits(tokens=64, step=24), policy).session()
        for group in rows:
            session.features(group)
        answer = list(session.ask([1, 2, 3], count=3))
        results.append((answer, session.logits.tolist(), [replace(step.retrieved) for step in session.steps]))
    assert results[0] == results[1]
    dropped = compile_model(checkpoint, TINY, Limits(tokens=64, step=24), QuickPrefillPolicy(rho=0.5)).session()
    for group in rows:
        dropped.features(group)
    list(dropped.ask([1, 2, 3], count=3))
    assert dropped.logits.tolist() != results[0][1]


def test_saved_session_continues(tmp_path, rng):
    """Positions continue after the dropped tokens."""
    sessions = PrunedSessions(tmp_path / "model", QuickPrefillPolicy(rho=0.5), rng, tokens=96, step=24)
    for tokens in (20, 13):
        sessions.group(visual(rng, tokens))
    sessions.session.save(tmp_path / "session")
    limits = Limits(tokens=96, step=24)
    machine = compile_model(sessions.checkpoint, TINY, limits, QuickPrefillPolicy(rho=0.5))
    sessions.session = machine.session(tmp_path / "session")
    assert sessions.session.position == sessions.session.positions.next == 33
    assert int(machine.memories.store.context(0).header["tokens"]) == 16
    sessions.answer([1, 2, 3, 4], 3)


def test_groups_of_frames_are_steps(tmp_path, rng):
    """LLaVA: a group of pictures is one step, with the tokens and results of the pictures one by one."""
    write_random(tmp_path, "llava-siglip", rng, changes={"vision_config.image_size": 12})
    checkpoint, limits = Checkpoint(tmp_path), Limits(tokens=64, pooled=2)
    machine = compile_model(checkpoint, TINY, limits, QuickPrefillPolicy(rho=0.5, group_frames=3))
    assert machine.step >= 12
    pictures = rng.integers(256, size=(4, 16, 24, 3), dtype=np.uint8)
    session = machine.session()
    session.frame_group([[picture] for picture in pictures[:3]])
    features = machine.core.get(machine.vision.out, 12 * 2 * checkpoint.spec.text.hidden).view("<u2").reshape(12, -1)
    session.frame(pictures[3])
    assert [step.tokens for step in session.steps] == [12, 4]
    assert [[len(kept) for kept in step.retrieved.kept] for step in session.steps] == [[6] * 2, [2] * 2]
    answer = list(session.ask([1, 2], count=2))
    single = compile_model(checkpoint, TINY, Limits(tokens=64, pooled=2, step=12), QuickPrefillPolicy(0.5, 1))
    other = single.session()
    assert single.vision.frames == 1
    other.features(features)
    other.frame(pictures[3])
    assert list(other.ask([1, 2], count=2)) == answer
    np.testing.assert_array_equal(session.logits, other.logits)
    for frames, seconds, message in (
        ([], None, "frames must be 1 to 3 for one step, got 0"),
        ([[pictures[0]]] * 4, None, "frames must be 1 to 3 for one step, got 4"),
        ([[pictures[0]]] * 2, [1.0], "seconds must be one for each of 2 frames, got 1"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            session.frame_group(frames, seconds)


def test_refusals(tmp_path, rng):
    for options, message in (
        ({"rho": 1.5}, "rho must be finite and between 0 and 1, got 1.5"),
        ({"rho": -0.1}, "rho must be finite and between 0 and 1, got -0.1"),
        ({"group_frames": 0}, "group_frames must be at least 1, got 0"),
        ({"mode": "x"}, "option of policy quickprefill must be one of prefetch, rho, group_frames, got 'mode'"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            load_policy("quickprefill", options)
    with pytest.raises(ValueError, match=r"^rho must be 1 with hash codes or mean keys, got 0.5$"):
        LayerPolicy(rho=0.5)
    write_random(tmp_path, "llama", rng)
    with pytest.raises(
        ValueError, match=r"^step must be at most max_row_clusters = 64 for policy quickprefill, got 65$"
    ):
        compile_model(Checkpoint(tmp_path), TINY, Limits(tokens=96, step=65), QuickPrefillPolicy())
    write_random(tmp_path / "llava", "llava-siglip", rng, changes={"vision_config.image_size": 12})
    with pytest.raises(ValueError, match=r"^step must be at least the 16 tokens of 4 frames, got 15$"):
        compile_model(
            Checkpoint(tmp_path / "llava"), TINY, Limits(tokens=64, step=15, pooled=2), QuickPrefillPolicy(0.5, 4)
        )


def test_answer_of_a_pruned_session(tmp_path, rng):
    """Logits equal the golden model's after every step of text."""
    sessions = PrunedSessions(tmp_path, QuickPrefillPolicy(rho=0.3), rng, tokens=96, step=32)
    sessions.group(visual(rng, 32))
    logits, _ = sessions.golden(sessions.model.embed([7, 8]))
    assert sessions.session.prompt([7, 8], answer=True) == greedy(logits)
    np.testing.assert_array_equal(sessions.session.logits, logits)
