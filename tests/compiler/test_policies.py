"""Policies of the runtime: sessions equal the golden model; attended tokens equal independent references."""

import numpy as np
import pytest

from compiler import store_plan
from compiler.checkpoint import Checkpoint
from compiler.policies import (
    CodecSightPolicy,
    FullPolicy,
    InfiniGenPPolicy,
    MosaicPolicy,
    OakenPolicy,
    QuickPrefillPolicy,
    RekvPolicy,
    ResvPolicy,
    WindowPolicy,
    load_policy,
)
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.baselines import rekv, rekv_blocks
from golden.bf16 import BF16
from golden.decoder_layer import LayerPolicy
from golden.hybrid import BlockPool, BlockTable, HybridConfig
from golden.language_model import greedy
from hw.config import Config
from tests.compiler.checkpoints import write_random
from tests.compiler.test_runtime import golden_model

TINY = Config.preset("tiny").replace(page_frames=256)
BLOCK = TINY.page_tokens


class Sessions:
    """The same steps on the machine and on the golden model."""

    def __init__(self, folder, policy, rng, resident=0, layers=2, tokens=96, step=9, config=TINY):
        write_random(folder, "llama", rng, changes={"num_hidden_layers": layers})
        self.checkpoint, self.rng, self.position = Checkpoint(folder), rng, 0
        limits = Limits(tokens=tokens, step=step, resident=resident)
        self.machine = compile_model(self.checkpoint, config, limits, policy)
        self.session, self.model = self.machine.session(), golden_model(self.checkpoint, config, policy, tokens)

    def golden(self, x, label=0):
        for layer in self.model.layers:
            layer.label = label
        logits, traces = self.model.step(x, np.arange(self.position, self.position + len(x)))
        self.position += len(x)
        return logits, traces

    def frame(self, tokens, label=0):
        """A frame of random visual tokens; returns the golden results of the layers."""
        rows = bf16.encode(self.rng.standard_normal((tokens, self.checkpoint.spec.text.hidden)))
        self.session.features(rows)
        return self.golden(rows, label)[1]

    def prompt(self, tokens):
        """Text before the video."""
        self.session.prompt(tokens)
        return self.golden(self.model.embed(tokens))[1]

    def answer(self, question, count):
        """An answer with equal logits and equal attended tokens."""
        logits, traces = self.golden(self.model.embed(question))
        for token in self.session.ask(question, count=count):
            assert token == greedy(logits)
            np.testing.assert_array_equal(self.session.logits, logits)
            retrieved = self.session.steps[-1].retrieved
            assert retrieved.attended == [[len(past) for past in trace.attended] for trace in traces]
            logits, traces = self.golden(self.model.embed([token]))


@pytest.mark.parametrize("prefetch", ["same_layer", "next_layer"])
@pytest.mark.parametrize("resident", [0, 6])
def test_full_attention(prefetch, resident, tmp_path, rng):
    """Every head attends to all past tokens in order, also when their pages come from host memory."""
    sessions = Sessions(tmp_path, FullPolicy(prefetch=prefetch), rng, resident, layers=3)
    for tokens in (3, 1, 9, 5, 4):
        past = sessions.position
        for trace in sessions.frame(tokens):
            assert trace.attended == [list(range(past))] * TINY.kv_heads
        assert sessions.session.steps[-1].retrieved.attended == [[past] * TINY.kv_heads] * 3
    sessions.answer([1, 2, 3, 4], 4)
    assert any(sum(step.retrieved.fetched) for step in sessions.session.steps) == bool(resident)


def test_full_attention_equals_the_softmax_of_all_keys(tmp_path, rng):
    """The attention of a layer against float64, within the rounding of weights and values to BF16."""
    sessions = Sessions(tmp_path, FullPolicy(), rng)
    layer, results = sessions.model.layers[1], []
    attend = layer.attend

    def record(q, k, v, plain):
        results.append((q, attend(q, k, v, plain)[1]))
        return results[-1][1].context.reshape(q.shape), results[-1][1]

    layer.attend = record
    for tokens in (4, 5, 3):
        sessions.frame(tokens)
    q, trace = results[-1]
    queries, keys, values = (bf16.decode(np.asarray(x), BF16) for x in (q, layer.keys, layer.values))
    group, past = q.shape[1] // TINY.kv_heads, len(keys) - len(q)
    for token in range(len(q)):
        for head in range(q.shape[1]):
            end = past + token + 1
            scores = keys[:end, head // group] @ queries[token, head] / np.sqrt(layer.shape.model_head_dim)
            weights = np.exp(scores - scores.max())
            want = weights / weights.sum() @ values[:end, head // group]
            got = bf16.decode(trace.context[token].reshape(q.shape[1], -1)[head], BF16)
            # a weight has an error of 1 % (exponential 0.65 %, rounding), the result is rounded to 8 bits
            bound = 0.012 * (weights / weights.sum() @ np.abs(values[:end, head // group])) + 2.0**-8 * np.abs(want)
            assert (np.abs(got - want) <= bound + 1e-30).all()


ENCODED = {  # policy, tokens in device memory
    "oaken": (OakenPolicy(), 6),
    "oaken, next layer": (OakenPolicy(prefetch="next_layer"), 6),
    "resv": (ResvPolicy(ratio=0.5, hamming_threshold=3), 6),
    "window": (WindowPolicy(sink=4, recent=8), 0),
    "rekv": (RekvPolicy(frames=2), 6),
    "quickprefill": (QuickPrefillPolicy(rho=0.5, group_frames=1), 6),
    "infinigenp": (InfiniGenPPolicy(budget=5, column_share=0.5), 6),
}


QUICK = [("oaken", 4), ("resv", 4), ("resv", 8)]
CASES = [
    *QUICK,
    *(pytest.param(name, 4, marks=pytest.mark.heavy) for name in ENCODED if (name, 4) not in QUICK),
    *(pytest.param(name, 8, marks=pytest.mark.heavy) for name in ("window", "rekv", "quickprefill", "infinigenp")),
]


@pytest.mark.parametrize("name, kv_bits", CASES)
def test_encoded_pages(name, kv_bits, tmp_path, rng):
    """Past tokens as they are stored, those of the step in BF16, as in the golden layers; logits differ from BF16."""
    (policy, resident), logits = ENCODED[name], []
    for bits in (kv_bits, 16) if name == "resv" else (kv_bits,):
        config, generator = TINY.replace(kv_bits=bits), np.random.default_rng(5)
        sessions = Sessions(tmp_path, policy, generator, resident, tokens=64, step=5, config=config)
        sessions.prompt([1, 2])
        for number in range(4):
            for layer in sessions.model.layers:
                layer.visual = True
            sessions.frame(4, label=number + 1 if policy.name == "rekv" else 0)
        for layer in sessions.model.layers:
            layer.visual = False
        sessions.answer([1, 2, 3, 4], 3)
        logits.append(sessions.session.logits)
        moved = [sum(step.retrieved.fetched) for step in sessions.session.steps]
        assert any(moved) == bool(resident)
        block = sessions.machine.core.table.kvmu.config.layout.block_bytes
        assert all(nbytes % block == 0 for nbytes in moved)
    assert len(logits) == 1 or (logits[0] != logits[1]).any()


@pytest.mark.parametrize("kv_bits", [4, 8])
def test_saved_sessions_hold_encoded_pages(kv_bits, tmp_path, rng):
    """A resumed session continues with the same bits; a core with another format refuses the file."""
    policy = OakenPolicy() if kv_bits == 4 else FullPolicy()
    sessions = Sessions(tmp_path, policy, rng, resident=6, step=5, config=TINY.replace(kv_bits=kv_bits))
    for _ in range(4):
        sessions.frame(5)
    sessions.session.save(tmp_path / "session")
    limits = Limits(tokens=96, step=5, resident=6)
    other = compile_model(sessions.checkpoint, TINY.replace(kv_bits=kv_bits), limits, policy)
    resumed = other.session(tmp_path / "session")
    for session in (sessions.session, resumed):
        session.prompt([1, 2, 3], answer=True)
    np.testing.assert_array_equal(resumed.logits, sessions.session.logits)
    plain = compile_model(sessions.checkpoint, TINY, limits, FullPolicy())
    with pytest.raises(ValueError, match="model must be"):
        plain.session(tmp_path / "session")


def test_policies_without_encoded_pages(tmp_path, rng):
    write_random(tmp_path, "llama", rng)
    for policy, kv_bits, message in (
        (OakenPolicy(), 16, "kv_bits must be 4 for policy oaken, got 16"),
        (OakenPolicy(), 8, "kv_bits must be 4 for policy oaken, got 8"),
        (MosaicPolicy(), 8, "kv_bits must be 16 for policy mosaic, which moves tokens, got 8"),
        (MosaicPolicy(), 4, "kv_bits must be 16 for policy mosaic, which moves tokens, got 4"),
        (CodecSightPolicy(), 4, "kv_bits must be 16 for policy codecsight, which has no encoded pages, got 4"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            compile_model(Checkpoint(tmp_path), TINY.replace(kv_bits=kv_bits), Limits(tokens=64), policy)


@pytest.mark.parametrize("prefetch", ["same_layer", "next_layer"])
@pytest.mark.parametrize("sink, recent", [(1, 2), (0, 1), (2, 1)])
def test_window_keeps_the_blocks_of_the_hybrid_cache(prefetch, sink, recent, tmp_path, rng):
    """Attended tokens of every step equal those of the table of blocks in `golden.hybrid`."""
    policy = WindowPolicy(sink=sink * BLOCK, recent=recent * BLOCK, prefetch=prefetch)
    sessions = Sessions(tmp_path, policy, rng)
    config = HybridConfig(block=BLOCK, sink_blocks=sink, recent_blocks=recent, max_tokens=(sink + recent) * BLOCK)
    table, released = BlockTable(BlockPool(64), config), 0
    for tokens in (3, 1, 9, 5, 2, 6, 9, 9, 1, 1, 1, 4):
        held = [token for block in table.tokens for token in block]
        for trace in sessions.frame(tokens):
            assert trace.attended == [held] * TINY.kv_heads
        retrieved = sessions.session.steps[-1].retrieved
        assert retrieved.attended == [[len(held)] * TINY.kv_heads] * 2
        blocks = len(table.blocks)
        table.append(tokens)
        released += sum(retrieved.released)
        assert not sum(retrieved.fetched) + sum(retrieved.offloaded) and blocks <= sink + recent
    assert released == 2 * (-(-51 // BLOCK) - sink - recent) > 0
    sessions.answer([1, 2, 3, 4], 4)


@pytest.mark.parametrize("prefetch", ["same_layer", "next_layer"])
@pytest.mark.parametrize("resident", [0, 6])
def test_rekv_attends_to_frames(prefetch, resident, tmp_path, rng):
    """All text and the frames of `golden.baselines.rekv`, except where scores differ by less than the rounding."""
    policy = RekvPolicy(frames=3, prefetch=prefetch)
    sessions = Sessions(tmp_path, policy, rng, resident, layers=3)
    record, kinds = [], [0] * 2
    for layer in sessions.model.layers:
        attend = layer.attend

        def recorded(q, k, v, plain, attend=attend):
            record.append(plain)
            return attend(q, k, v, plain)

        layer.attend = recorded
    sessions.prompt([1, 2])
    keys = [[plain[1]] for plain in record[-3:]]
    sizes, checked = [3, 5, 9, 4, 3, 5, 4, 6], 0
    for number, tokens in enumerate(sizes, start=1):
        traces = sessions.frame(tokens, number)
        past = kinds
        for at, trace in enumerate(traces):
            assert sessions.session.steps[-1].retrieved.attended[at] == [len(head) for head in trace.attended]
            assert trace.attended[0] == trace.attended[1]
            scoring = at if prefetch == "same_layer" or not at else at - 1
            queries = bf16.decode(record[-3:][scoring][0], BF16)
            attended = np.array(trace.attended[0])
            assert np.isin(np.flatnonzero(np.array(past) == 0), attended).all()
            frames = np.unique(np.array(past)[attended])
            frames = frames[frames > 0] - 1
            if number > 1:
                before = bf16.decode(np.concatenate(keys[at])[2:], BF16)
                blocks = rekv_blocks(before, np.array(sizes[: number - 1]), queries.shape[1] // TINY.kv_heads)
                scores = blocks @ queries.sum(axis=0).ravel()
                # mean keys are rounded to BF16 once per piece, the score once, each by 2**-9 of its size at most
                magnitude = np.abs(blocks) @ np.abs(queries).sum(axis=0).ravel()
                error = 2.0**-7 * magnitude
                want = rekv(queries, blocks, policy.frames)
                assert len(frames) == len(want)
                for wrong in set(frames.tolist()) ^ set(want.tolist()):
                    others = np.setdiff1d(want, frames) if wrong in frames else np.setdiff1d(frames, want)
                    assert any(abs(scores[wrong] - scores[o]) <= error[wrong] + error[o] for o in others)
                checked += len(np.intersect1d(frames, want))
        kinds = [*kinds, *[number] * tokens]
        for at, plain in enumerate(record[-3:]):
            keys[at].append(plain[1])
    assert checked > 30
    sessions.answer([1, 2, 3, 4], 4)
    assert any(sum(step.retrieved.fetched) for step in sessions.session.steps) == bool(resident)


def test_selected_frames_of_rekv_stay(tmp_path, rng, monkeypatch):
    """If the selected frames of all layers fit into device memory, fewer bytes are fetched than by age.

    The same text over and over selects about the same frames, of which most are old. The results are equal.
    """
    moved, logits, seed = [], [], int(rng.integers(1 << 32))
    for retains in (True, False):
        if not retains:
            monkeypatch.setattr(store_plan, "_retains", lambda *args, **kwargs: False)
        folder = tmp_path / str(retains)
        folder.mkdir()
        # in each of 2 layers 2 frames and 20 tokens of text
        sessions = Sessions(folder, RekvPolicy(frames=2), np.random.default_rng(seed), resident=60, step=4)
        assert sessions.machine.plan.retains == retains
        sessions.prompt([1, 2])
        for number in range(1, 16):
            sessions.frame(4, number)
        for _ in range(15):
            sessions.prompt([5])
        sessions.answer([5], 2)
        moved.append(sum(sum(step.retrieved.fetched) for step in sessions.session.steps))
        logits.append(sessions.session.logits)
    assert 0 < moved[0] < moved[1]
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize("policy, resident", [(RekvPolicy(frames=2), 32), (FullPolicy(), 12)])
def test_a_resumed_session_keeps_what_its_machine_keeps(policy, resident, tmp_path, rng):
    """From a machine that keeps all pages to one that does not: equal results, and no more resident tokens."""
    sessions = Sessions(tmp_path, policy, rng, step=4)
    assert sessions.machine.plan.keeps_all
    sessions.prompt([1, 2])
    for number in range(1, 16):
        sessions.frame(4, number)
    sessions.session.save(tmp_path / "session")
    limits = Limits(tokens=96, step=4, resident=resident)
    other = compile_model(sessions.checkpoint, TINY, limits, policy)
    assert other.plan.retains == (policy.name == "rekv")
    resumed, header = other.session(tmp_path / "session"), other.memories.store.header
    assert resident - 4 < int(header["resident_tokens"]) <= resident
    for text in ([5], [6, 7], [5]):
        for session in (sessions.session, resumed):
            session.prompt(text, answer=True)
        np.testing.assert_array_equal(resumed.logits, sessions.session.logits)
        assert int(header["resident_tokens"]) <= resident


@pytest.mark.parametrize(
    "prefetch, batch, resident, retains",
    [
        ("same_layer", 1, 23, False),  # 2 contexts x (2 frames and the text) x 4 tokens
        ("same_layer", 1, 24, True),
        ("same_layer", 1, 192, True),
        ("same_layer", 1, 193, False),  # a fetch of all 64 pages of a context needs 64 of the 256 page frames
        ("next_layer", 1, 24, False),
        ("same_layer", 2, 24, False),
    ],
)
def test_when_fetched_frames_of_rekv_stay(prefetch, batch, resident, retains):
    policy = RekvPolicy(frames=2, prefetch=prefetch)
    plan = store_plan.plan_store(TINY, policy, 2, tokens=96, step=4, resident=resident, batch=batch)
    assert plan.retains == retains and (plan.staged == 0) == retains and not plan.keeps_all


def test_frames_of_rekv_are_limited(tmp_path, rng):
    sessions = Sessions(tmp_path, RekvPolicy(frames=2), rng)
    with pytest.raises(ValueError, match=r"^a session of policy rekv must begin with text, got a frame$"):
        sessions.session.features(np.zeros((1, 32), np.uint16))
    sessions.prompt([1])
    for number in range(1, TINY.max_candidates):
        sessions.frame(1, number)
    with pytest.raises(ValueError, match=r"^frames of a session of policy rekv must be at most 15, got 16$"):
        sessions.frame(1, TINY.max_candidates)
    assert sessions.session.position == TINY.max_candidates


def test_pages_of_a_window_are_constant(tmp_path, rng):
    """A long stream needs no more pages than the window and one step."""
    policy = WindowPolicy(sink=BLOCK, recent=2 * BLOCK)
    sessions = Sessions(tmp_path, policy, rng)
    assert sessions.machine.plan.pages == 3 + 2 + 9 // BLOCK
    for _ in range(10):
        sessions.frame(9)
    header = sessions.machine.core.table.context.header
    assert int(header["never_used"]) <= sessions.machine.plan.pages and int(header["tokens"]) == 90


@pytest.mark.parametrize("policy", [FullPolicy(), WindowPolicy(sink=BLOCK, recent=BLOCK)], ids=["full", "window"])
def test_saved_session_continues(policy, tmp_path, rng):
    """A session resumes on another machine of the same policy, and is refused by one of another policy."""
    sessions = Sessions(tmp_path / "model", policy, rng)
    for tokens in (3, 9, 5):
        sessions.frame(tokens)
    sessions.session.save(tmp_path / "session")
    limits = Limits(tokens=48, step=9)
    resumed = compile_model(sessions.checkpoint, TINY, limits, policy).session(tmp_path / "session")
    assert resumed.position == 17
    sessions.session = resumed
    sessions.answer([1, 2, 3, 4], 3)
    for other in (ResvPolicy(), WindowPolicy(sink=0, recent=BLOCK)):
        with pytest.raises(ValueError, match="model"):
            compile_model(sessions.checkpoint, TINY, limits, other).session(tmp_path / "session")


SOURCE = """
from compiler.policies import Policy, Selection
from dataclasses import dataclass
from golden.clustering import ClusterRule
from golden.wicsum import WtuConfig


@dataclass(frozen=True)
class Largest(Policy):
    name = "largest"
    count: int = 2

    def clustering(self, config):
        return ClusterRule(hamming_threshold=3, window_tokens=0, max_candidates=config.max_candidates)

    def selection(self):
        return Selection(WtuConfig(refine_levels=3, weight="one", stop_rule="count"), self.count)
"""


def test_policy_of_a_file(tmp_path, rng):
    """A user's policy: the clusters with the largest scores, as many for every row."""
    path = tmp_path / "largest.py"
    path.write_text(SOURCE)
    policy = load_policy(str(path), {"count": 1})
    assert (policy.name, policy.count, policy.prefetch) == ("largest", 1, "same_layer")
    sessions = Sessions(tmp_path / "model", policy, rng)
    for tokens in (3, 9, 5):
        traces = sessions.frame(tokens)
    for trace in traces:
        assert all((rows.selected.sum(axis=1) == 1).all() for rows in trace.rows)
    sessions.answer([1, 2, 3, 4], 4)


def test_refusals(tmp_path, rng):
    for arguments, message in (
        (
            ("recent", {}),
            "policy must be one of resv, full, window, hybrid, rekv, quickprefill, codecsight, mosaic, infinigen, "
            "infinigenp, oaken or a .py file, got 'recent'",
        ),
        (("window", {"sinks": 4}), "option of policy window must be one of prefetch, sink, recent, got 'sinks'"),
        (("window", {"recent": 0}), "recent must be at least 1, got 0"),
        (("full", {"prefetch": "none"}), "prefetch must be one of next_layer, same_layer, got 'none'"),
        (("missing.py", {}), "policy file must exist, got 'missing.py'"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            load_policy(*arguments)
    for text, message in (
        ("import nothing_of_this_name", "must run, got ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("", "must define one subclass of Policy, got 0"),
        (SOURCE.replace('name = "largest"', "pass"), "Largest must define name"),
        (SOURCE.replace("def selection", "def other"), "Largest must define selection"),
    ):
        (tmp_path / "p.py").write_text(text)
        with pytest.raises(ValueError, match=f"^policy file '.*p.py':? {message}$"):
            load_policy(str(tmp_path / "p.py"), {})
    write_random(tmp_path, "llama", rng)
    checkpoint = Checkpoint(tmp_path)
    for config, limits, policy, message in (
        (
            TINY, Limits(tokens=64), WindowPolicy(sink=4, recent=6),
            "recent must be a multiple of page_tokens = 4, got 6",
        ),
        (
            TINY, Limits(tokens=64, resident=8), WindowPolicy(sink=4, recent=8),
            "resident must be 0 for policy window, got 8",
        ),
        (
            Config.preset("tiny"), Limits(tokens=64, step=4), WindowPolicy(sink=4, recent=32),
            "pages of policy window must be at most page_frames = 16 of the core, got 24",
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{message}$"):
            compile_model(checkpoint, config, limits, policy)
    write_random(tmp_path / "one", "llama", rng, changes={"num_hidden_layers": 1, "max_position_embeddings": 1 << 17})
    with pytest.raises(
        ValueError, match=r"^tokens must be at most 65535 for policy window with one context, got 65536$"
    ):
        compile_model(Checkpoint(tmp_path / "one"), TINY, Limits(tokens=65536, step=4), WindowPolicy(sink=4, recent=8))
    with pytest.raises(ValueError, match=r"^mean_keys must be True without a score_row, got False$"):
        LayerPolicy(mean_keys=False)
    assert load_policy("resv", {"ratio": 0.5}) == ResvPolicy(0.5)
