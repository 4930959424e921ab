"""InfiniGen on the machine: sessions equal the golden model; attended tokens equal `golden.baselines`."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import InfiniGenPolicy, InfiniGenPPolicy, load_policy
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.baselines import infinigen, infinigen_columns
from golden.bf16 import BF16, FP32
from golden.decoder_layer import column_mask, pair_order
from hw.config import Config
from tests.compiler.checkpoints import write_random
from tests.compiler.test_policies import TINY, Sessions

ALL = 1e9  # alpha at which every score counts, so that the budget alone limits the selection


class Recorded(Sessions):
    """Sessions that record the speculation of every layer, and compare each step with the golden model."""

    def __init__(self, folder, policy, rng, resident=0):
        super().__init__(folder, policy, rng, resident, layers=3, tokens=64)
        self.policy, self.inputs = policy, {}
        for number, layer in enumerate(self.model.layers):
            speculate = layer.speculate

            def recorded(x, norm, cos, sin, visual, number=number, speculate=speculate):
                self.inputs[number] = x, norm, cos, sin
                return speculate(x, norm, cos, sin, visual)

            layer.speculate = recorded

    def step(self, count, visual):
        """Golden results of a step of frames or of text that the session executes, too."""
        for layer in self.model.layers:
            layer.visual = visual
        tokens = self.rng.integers(self.checkpoint.spec.text.vocabulary, size=count).tolist()
        traces = self.frame(count) if visual else self.prompt(tokens)
        retrieved = self.session.steps[-1].retrieved
        assert retrieved.attended == [[len(past) for past in trace.attended] for trace in traces]
        return traces

    def model_order(self, vectors):
        """Vectors (.., d) in memory order as float64 in the order of the model, whose heads have no padding here."""
        values = np.empty(vectors.shape)
        values[..., pair_order(TINY.head_dim, TINY.dpe_inputs)] = bf16.decode(np.asarray(vectors, np.uint16), BF16)
        return values

    def speculated(self, number):
        """Speculated queries (T, Hq, d) of a layer in float64, in the order of the model."""
        layer, (x, norm, cos, sin) = self.model.layers[number], self.inputs[number]
        hidden, half = bf16.decode(x, BF16), TINY.head_dim // 2
        scale = np.sqrt((hidden**2).mean(axis=1, keepdims=True) + layer.shape.norm_epsilon)
        q = (hidden / scale * bf16.decode(norm, BF16)) @ bf16.decode(layer.weights["q"], BF16).T
        q = q.reshape(len(x), layer.shape.q_heads, TINY.head_dim)
        low, high = q[..., :half], q[..., half:]
        c, s = (bf16.decode(angle, FP32)[:, None, :] for angle in (cos, sin))
        return np.concatenate([low * c - high * s, high * c + low * s], axis=2)


def check_selection(sessions, number, trace, past, columns):
    """Compare the tokens of a layer with the reference; returns how many of them are equal."""
    layer, policy = sessions.model.layers[number], sessions.policy
    queries, keys = sessions.model_order(layer.speculated), sessions.model_order(np.array(layer.keys[:past]))
    exact = sessions.speculated(number)
    for head, used in enumerate(columns):
        others = np.setdiff1d(np.arange(TINY.head_dim), used)
        assert not queries[:, head, others].any()
        # the norm, its factor and the query are rounded to BF16
        error = 2.0**-6 * np.abs(exact[:, head]).max(axis=1, keepdims=True)
        assert (np.abs(queries[:, head, used] - exact[:, head, used]) <= error).all()
    reference, group = infinigen(queries, keys, columns, ALL, policy.budget), len(columns) // TINY.kv_heads
    equal = 0
    for kv_head in range(TINY.kv_heads):
        heads = range(kv_head * group, (kv_head + 1) * group)
        want = np.unique(np.concatenate([reference[head] for head in heads]))
        got = np.array(trace.attended[kv_head])
        scores = np.concatenate([queries[:, head] @ keys[:, kv_head].T for head in heads])
        limits = np.sort(scores, axis=1)[:, -min(policy.budget, past)][:, None]
        # a score is rounded to BF16, and the limit is one of the scores
        near = (np.abs(scores - limits) <= 2.0**-8 * (np.abs(scores) + np.abs(limits))).any(axis=0)
        assert near[np.setxor1d(want, got)].all()
        equal += len(np.intersect1d(want, got))
    return equal


@pytest.mark.parametrize("kind", [InfiniGenPolicy, InfiniGenPPolicy])
@pytest.mark.parametrize("resident", [0, 6])
def test_attended_tokens(kind, resident, tmp_path, rng):
    """The first layer, and steps that do not select, attend to all tokens; the others to those of the reference."""
    sessions = Recorded(tmp_path, kind(budget=5, column_share=0.5), rng, resident)
    sessions.step(3, visual=False)
    columns = []
    for layer in sessions.model.layers:
        used = np.flatnonzero(layer.columns.any(axis=0))
        assert len(used) and (layer.columns.sum(axis=1) == TINY.head_dim // 2).all()
        mask = np.zeros(layer.columns.shape, bool)
        mask[:, pair_order(TINY.head_dim, TINY.dpe_inputs)] = layer.columns
        columns.append(np.stack([np.flatnonzero(row) for row in mask]))
    equal = total = 0
    for count, visual in ((9, True), (4, True), (1, True), (5, False), (6, True), (1, False), (1, False)):
        past = sessions.position
        traces = sessions.step(count, visual)
        selects = kind is InfiniGenPPolicy or (count, visual) == (1, False)
        everything = [list(range(past))] * TINY.kv_heads
        assert traces[0].attended == everything
        for number in (1, 2):
            if selects:
                equal += check_selection(sessions, number, traces[number], past, columns[number])
                total += sum(map(len, traces[number].attended))
            else:
                assert traces[number].attended == everything
    assert equal > 0.9 * total > 0
    moved = sessions.session.steps[-1].retrieved  # of one text token, for which both policies select
    slot = 4 * TINY.head_dim
    for attended, fetched in zip(moved.attended, moved.fetched, strict=True):
        assert fetched % slot == 0 and fetched <= slot * sum(attended)
    assert (sum(moved.fetched) > 0) == bool(resident)
    assert sum(moved.attended[1]) < sum(moved.attended[0])
    sessions.answer([1, 2, 3, 4], 3)


def test_columns_of_padded_heads(rng):
    """The columns are those of `golden.baselines`, with the elements of a head in memory order and padding."""
    head, order = 12, pair_order(16, 4)
    queries = bf16.encode(rng.standard_normal((5, 3, head)))
    padded = np.zeros((5, 3, 16), np.uint16)
    padded[:, :, :6], padded[:, :, 8:14] = queries[:, :, :6], queries[:, :, 6:]
    mask = column_mask(padded[:, :, order], order, head, 0.3)
    numbers = np.r_[:6, -1, -1, 6:12, -1, -1][order]  # element of the model at each position
    for row, columns in zip(mask, infinigen_columns(bf16.decode(queries, BF16), 0.3), strict=True):
        assert sorted(numbers[row].tolist()) == columns.tolist()


def test_the_host_writes_the_columns_once(tmp_path, rng):
    """After the first step, a row of BF16 numbers for each layer; the other steps write programs and angles."""
    sessions = Recorded(tmp_path, InfiniGenPPolicy(budget=4), rng)
    sessions.step(3, visual=False)
    sessions.step(3, visual=False)
    first, second = sessions.session.steps
    row = 2 * sessions.model.layers[0].shape.q_heads * TINY.head_dim
    written = [step.input_bytes - 64 * step.commands for step in (first, second)]
    assert written[0] - written[1] == 3 * row and first.round_trips == second.round_trips == 1
    for layer, context in zip(sessions.model.layers, sessions.session.contexts, strict=True):
        image = sessions.machine.core.get(context.columns_word, row).view("<u2").reshape(layer.columns.shape)
        np.testing.assert_array_equal(image, np.where(layer.columns, 0x3F80, 0))


def test_streams_have_their_own_columns(tmp_path, rng):
    """Two sessions in turn give what each gives alone."""
    write_random(tmp_path, "llama", rng)
    checkpoint, policy = Checkpoint(tmp_path), InfiniGenPPolicy(budget=4, column_share=0.25)
    texts = [rng.integers(checkpoint.spec.text.vocabulary, size=(4, 5)).tolist() for _ in range(2)]
    together = compile_model(checkpoint, TINY, Limits(streams=2, tokens=64, step=5), policy)
    pair = [together.session() for _ in texts]
    for number in range(4):
        for session, text in zip(pair, texts, strict=True):
            session.prompt(text[number], answer=True)
    for session, text in zip(pair, texts, strict=True):
        alone = compile_model(checkpoint, TINY, Limits(tokens=64, step=5), policy).session()
        for tokens in text:
            alone.prompt(tokens, answer=True)
        np.testing.assert_array_equal(session.logits, alone.logits)
        assert [s.retrieved.attended for s in session.steps] == [s.retrieved.attended for s in alone.steps]


def test_refusals(tmp_path, rng):
    for options, message in (
        ({"budget": 0}, "budget must be at least 1, got 0"),
        ({"column_share": 0}, "column_share must be above 0 and at most 1, got 0"),
        ({"prefetch": "same_layer"}, "prefetch must be next_layer for policy infinigen, got 'same_layer'"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            load_policy("infinigen", options)
    write_random(tmp_path, "llama", rng)
    for tokens, budget, message in (
        (65, 4, "tokens must be at most 64 for policy infinigen on this core, got 65"),
        (64, 3, "budget must be at least dpe_inputs = 4, got 3"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            compile_model(Checkpoint(tmp_path), TINY, Limits(tokens=tokens, step=8), InfiniGenPolicy(budget=budget))
    config = Config.preset("tiny")
    session = compile_model(
        Checkpoint(tmp_path), config, Limits(tokens=64, step=4), InfiniGenPolicy(budget=4)
    ).session()
    session.prompt([1])
    with pytest.raises(
        ValueError, match=r"^session must be of a policy whose state is in its contexts, got policy inf"
    ):
        session.save(tmp_path / "session")
