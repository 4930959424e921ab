"""Hybrid cache: masks and tables compared with lists, the fused branch with its components, prompts and prefix hits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.hybrid import (
    BlockPool,
    BlockTable,
    Client,
    HybridConfig,
    HybridDecoder,
    sliding_mask,
    streaming_llm,
)
from golden.mamba import MambaParams, MambaState, mamba
from golden.reference_decoder import Decoder, DecoderConfig, KVCache, LayerInput, attention

SEEDS = st.integers(0, 2**32 - 1)
DEFAULT = HybridConfig()

# -- phase 1


@settings(derandomize=True, database=None, deadline=None)
@given(total=st.integers(1, 40), new=st.integers(0, 40), sink=st.integers(0, 6), window=st.integers(1, 50))
def test_mask_token_by_token(total, new, sink, window):
    queries = np.arange(max(0, total - new), total)
    got = sliding_mask(queries, np.arange(total), sink, window)
    for row, t in enumerate(queries):
        for j in range(total):
            assert got[row, j] == (j <= t and (j < sink or t - j < window))


@settings(derandomize=True, database=None, deadline=None)
@given(sink=st.integers(0, 5), recent=st.integers(1, 9), steps=st.lists(st.integers(1, 12), max_size=12))
def test_streaming_llm_is_independent_of_step_size(sink, recent, steps):
    cache: list[int] = []
    seen = 0
    for size in steps:
        cache += range(seen, seen + size)
        seen += size
        if len(cache) > sink + recent:
            cache = cache[:sink] + cache[-recent:]
        assert streaming_llm(seen, sink, recent).tolist() == cache
        assert len(cache) <= sink + recent


def test_streaming_llm_by_hand():
    assert streaming_llm(10, 2, 3).tolist() == [0, 1, 7, 8, 9]
    assert streaming_llm(5, 2, 3).tolist() == [0, 1, 2, 3, 4]
    assert streaming_llm(10, 2, 3, coming=2).tolist() == [0, 1, 9]
    assert streaming_llm(4, 2, 3, coming=1).tolist() == [0, 1, 2, 3]
    assert streaming_llm(10, 2, 3, coming=7).tolist() == [0, 1]
    assert streaming_llm(9, 0, 2).tolist() == [7, 8]


# -- phase 2


CONFIGS = st.builds(
    HybridConfig,
    block=st.integers(1, 5),
    sink_blocks=st.integers(0, 3),
    recent_blocks=st.integers(0, 4),
    max_tokens=st.integers(1, 30),
)


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(config=CONFIGS, steps=st.lists(st.integers(0, 14), max_size=15))
def test_table_matches_list_of_blocks(config, steps):
    pool = BlockPool(64)
    table = BlockTable(pool, config)
    plain: list[list[int]] = []
    seen = 0
    for size in steps:
        for _ in range(size):
            if not plain or len(plain[-1]) == config.block:
                plain.append([])
            plain[-1].append(seen)
            seen += 1
        gone: list[int] = []
        middle = len(plain) - config.sink_blocks - config.recent_blocks
        if sum(map(len, plain)) >= config.max_tokens and middle > 0:
            for _ in range(middle):
                gone += plain.pop(config.sink_blocks)
        assert table.append(size) == gone
        assert table.tokens == plain and table.n_tokens == sum(map(len, plain))
        assert pool.free == 64 - len(plain) and len(set(table.blocks)) == len(plain)
    table.close()
    assert pool.free == 64 and set(pool.references) == {0}


@settings(derandomize=True, database=None, deadline=None)
@given(config=CONFIGS, frame=st.integers(1, 12))
def test_memory_is_constant_after_window_is_full(config, frame):
    table = BlockTable(BlockPool(400), config)
    limit = max(config.max_tokens, (config.sink_blocks + config.recent_blocks) * config.block) + frame
    held = []
    for _ in range(60):
        table.append(frame)
        held.append(len(table.blocks))
    assert max(held) <= -(-limit // config.block) + 1
    assert max(held[30:]) <= max(held[:30])


def test_eviction_guards():
    table = BlockTable(BlockPool(99), HybridConfig(block=2, sink_blocks=3, recent_blocks=4, max_tokens=1))
    assert table.append(14) == [] and len(table.blocks) == 7, "a short table does not change"
    assert table.append(1) == [6, 7], "the first block behind the sink is evicted"
    assert table.tokens[-1] == [14], "the last block may be partly filled"
    bare = BlockTable(BlockPool(99), HybridConfig(block=2, sink_blocks=1, recent_blocks=0, max_tokens=1))
    assert bare.append(9) == [2, 3, 4, 5, 6, 7, 8], "no recent blocks means none, not all"
    patient = BlockTable(BlockPool(99), HybridConfig(block=2, sink_blocks=1, recent_blocks=1, max_tokens=9))
    assert patient.append(8) == [] and patient.append(1) == [2, 3, 4, 5, 6, 7]


def test_block_freed_when_reference_count_is_zero():
    pool = BlockPool(12)
    first = BlockTable(pool, HybridConfig(block=2, sink_blocks=1, recent_blocks=1, max_tokens=99))
    first.append(7)
    second = first.fork()
    assert pool.free == 8 and second.blocks == first.blocks
    second.append(1)
    assert second.blocks[:3] == first.blocks[:3] and second.blocks[3] != first.blocks[3], "copied before written"
    assert first.tokens[3] == [6] and second.tokens[3] == [6, 7]
    first.config = replace(first.config, max_tokens=1)
    assert first.evict() == [2, 3, 4, 5]
    assert pool.free == 7, "evicted from one table, still used by the other"
    second.close()
    assert pool.free == 10
    first.close()
    assert pool.free == 12


def test_empty_pool_raises():
    pool = BlockPool(2)
    pool.allocate(), pool.allocate()
    with pytest.raises(RuntimeError, match="all 2 blocks are in use"):
        pool.allocate()


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    block=st.integers(1, 4), size=st.integers(1, 6), steps=st.lists(st.integers(0, 9), max_size=6), fork=st.booleans()
)
def test_append_that_exceeds_the_pool_changes_nothing(block, size, steps, fork):
    """The needed blocks are counted before the first token is written, the copy of a shared block included."""
    pool = BlockPool(size)
    table = BlockTable(pool, HybridConfig(block=block))
    other = None
    for count in steps:
        before = (list(table.blocks), [list(t) for t in table.tokens], table.next_position, list(pool.references))
        free = pool.free
        needed = table.blocks_needed(count)
        if needed <= free:
            table.append(count)
            assert pool.free == free - needed
            other = other or (table.fork() if fork else None)
        else:
            with pytest.raises(RuntimeError, match=f"{count} tokens need {needed} free blocks, got {free}"):
                table.append(count)
            assert before == (table.blocks, table.tokens, table.next_position, pool.references)


@pytest.mark.parametrize("call", ["share", "release"])
@pytest.mark.parametrize("block", [-1, 2])
def test_blocks_outside_the_pool_are_named(call, block):
    pool = BlockPool(2)
    pool.allocate(), pool.allocate()
    with pytest.raises(ValueError, match=f"block must be between 0 and 1, got {block}"):
        getattr(pool, call)(block)
    assert pool.references == [1, 1]


def test_table_2_of_the_paper():
    """Qwen2.5-VL-3B: 36 layers x K and V x 2 heads x 128 x 2 bytes a token; 64-token frames peak at 40 blocks."""
    per_token = 36 * 2 * 2 * 128 * 2
    table = BlockTable(BlockPool(99), DEFAULT)
    peak = 0
    for _ in range(50):
        before = len(table.blocks)
        table.append(64)
        peak = max(peak, before + 4)
    assert peak == 40 and len(table.blocks) == 36
    evicting = peak * DEFAULT.block * per_token
    assert per_token == 36_864 and round(evicting / 1e6, 1) == 23.6
    assert round(968 * 223.1 / 1e3) == round(9150 * 23.6 / 1e3) == 216, "both columns share a 216 GB pool"
    assert round(1 - 23.6 / 223.1, 3) == 0.894 and round(9150 / 968, 2) == 9.45 == round(223.1 / 23.6, 2)
    assert 196 * 3600 == 705_600, "tokens of an hour"


# -- phase 3


def hybrid(rng, config, layers=2, hidden=32, table=None):
    decoder = Decoder(DecoderConfig(layers=layers, hidden=hidden), rng)
    width_in = 32 if config.ssm_input == "query" else hidden
    width_out = 32 if config.fuse == "pre_o_proj" else hidden
    params = [MambaParams.random(rng, width_in, width_out, states=4) for _ in range(layers)]
    return HybridDecoder(decoder, config, params, table), decoder, params


@pytest.mark.parametrize("mode", ["disabled", "prefix_sum", "mamba"])
@pytest.mark.parametrize("ssm_input", ["query", "hidden"])
@pytest.mark.parametrize("fuse", ["pre_o_proj", "post_o_proj"])
def test_fused_layer_is_attention_plus_branch(rng, mode, ssm_input, fuse):
    config = HybridConfig(block=1, sink_blocks=2, window=4, ssm_mode=mode, ssm_input=ssm_input, fuse=fuse)
    model, decoder, params = hybrid(rng, config, layers=1)
    x = rng.standard_normal((9, 32))
    seen: list[LayerInput] = []

    def attend(new):
        seen.append(new)
        allowed = np.array([[j <= t and (j < 2 or t - j < 4) for j in range(9)] for t in range(9)])
        out = attention(new.q, new.k, new.v, allowed)
        u = new.q.reshape(9, 32) if ssm_input == "query" else new.hidden
        if mode == "disabled":
            return out, None
        branch = [u[: t + 1].sum(axis=0) for t in range(9)]
        if mode == "mamba":
            branch = mamba(u, params[0], MambaState.zero(params[0]))[0]
        if fuse == "post_o_proj":
            return out, np.array(branch)
        return out + np.reshape(branch, (9, 4, 8)), None

    wanted = decoder.run(x, np.arange(9), attend)
    np.testing.assert_allclose(model.step(x), wanted, atol=1e-11)
    assert len(seen) == 1


@settings(derandomize=True, database=None, deadline=None, max_examples=40)
@given(
    seed=SEEDS,
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    mode=st.sampled_from(["disabled", "prefix_sum", "mamba"]),
)
def test_steps_of_any_size_equal_one_pass(seed, sizes, mode):
    config = HybridConfig(block=2, sink_blocks=1, window=3, ssm_mode=mode)
    x = np.random.default_rng(seed).standard_normal((sum(sizes), 32))
    unlimited, *_ = hybrid(np.random.default_rng(seed), config)
    parts, *_ = hybrid(np.random.default_rng(seed), config)
    cuts = np.cumsum(sizes)[:-1]
    got = np.concatenate([parts.step(part) for part in np.split(x, cuts)])
    np.testing.assert_allclose(got, unlimited.step(x), atol=1e-10)


def test_wide_window_without_branch_equals_prefill(rng):
    model, decoder, _ = hybrid(rng, replace(DEFAULT, ssm_mode="disabled"))
    x = rng.standard_normal((30, 32))
    wanted = decoder.prefill(x, np.arange(30), KVCache.empty(decoder.config))
    np.testing.assert_allclose(model.step(x), wanted, atol=1e-11)


def test_evicting_masked_tokens_changes_nothing(rng):
    """Blocks leave only when the window has passed them, so the evicting stream equals the masked one."""
    config = HybridConfig(block=2, sink_blocks=1, recent_blocks=6, max_tokens=1, window=4)
    state = rng.bit_generator.state
    masked, *_ = hybrid(rng, config)
    rng.bit_generator.state = state
    evicting, *_ = hybrid(rng, config, table=BlockTable(BlockPool(20), config))
    for _ in range(25):
        x = rng.standard_normal((3, 32))
        np.testing.assert_allclose(evicting.step(x), masked.step(x), atol=1e-10)
    assert len(masked.positions) == 75
    assert evicting.positions.tolist() == [t for block in evicting.table.tokens for t in block]
    assert len(evicting.positions) < 15


def test_eviction_attends_to_tokens_in_table(rng):
    """Block eviction reaches into the window: attention then uses the remaining tokens at their old positions."""
    config = HybridConfig(block=2, sink_blocks=1, recent_blocks=2, max_tokens=1, ssm_mode="disabled")
    model, decoder, _ = hybrid(rng, config, layers=1, table=BlockTable(BlockPool(20), config))
    x = rng.standard_normal((20, 32))
    full = KVCache.empty(decoder.config)
    decoder.prefill(x, np.arange(20), full)
    for t in range(19):
        model.step(x[t : t + 1])
    held = model.positions.tolist()
    assert held == [0, 1, 16, 17, 18]
    alone = KVCache([full.k[0][held]], [full.v[0][held]])
    wanted = decoder.prefill(x[19:], np.array([19]), alone)
    np.testing.assert_allclose(model.step(x[19:]), wanted, atol=1e-11)


@pytest.mark.parametrize("mode", ["disabled", "prefix_sum", "mamba"])
def test_state_does_not_grow_after_the_window_fills(rng, mode):
    config = HybridConfig(block=2, sink_blocks=1, recent_blocks=4, max_tokens=10, ssm_mode=mode)
    model, *_ = hybrid(rng, config, table=BlockTable(BlockPool(20), config))
    sizes = []
    for _ in range(40):
        model.step(rng.standard_normal((2, 32)))
        sizes.append(model.state_values)
    assert len(set(sizes[6:])) == 1
    heads = 2 * 2 * 10 * 2 * 8  # layers, K and V, tokens, KV heads, d
    branch = {"disabled": 0, "prefix_sum": 2 * 32, "mamba": 2 * (3 * 64 + 64 * 4)}[mode]
    assert sizes[-1] == heads + branch


@pytest.mark.parametrize("mode", ["disabled", "prefix_sum", "mamba"])
@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (np.ones((0, 32)), ValueError, "x must hold at least one token, got none"),
        (np.ones((2, 31)), ValueError, r"x must have shape \(any, 32\), got \(2, 31\)"),
        (np.full((2, 32), np.nan), ValueError, "x must be finite"),
        (np.ones((9, 32)), RuntimeError, "9 tokens need 4 free blocks, got 2"),
    ],
)
def test_refused_step_changes_nothing(mode, x, error, words, rng):
    config = HybridConfig(block=2, ssm_mode=mode)
    model, *_ = hybrid(rng, config, table=BlockTable(BlockPool(4), config))
    model.step(rng.standard_normal((3, 32)))
    before = (model.positions.tolist(), model.state_values, model.sums.tolist(), model.table.next_position)
    with pytest.raises(error, match=words):
        model.step(x)
    assert before == (model.positions.tolist(), model.state_values, model.sums.tolist(), model.table.next_position)
    model.step(rng.standard_normal((1, 32)))
    assert model.positions.tolist() == [0, 1, 2, 3]


# -- phase 4

TABLES = {"sink": st.integers(0, 3), "window": st.integers(1, 6), "low": st.integers(1, 6), "block": st.integers(1, 5)}


@settings(derandomize=True, database=None, deadline=None)
@given(
    **TABLES,
    system=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    requests=st.lists(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=5), max_size=12),
)
def test_requests_of_several_frames_by_definition(sink, window, low, block, system, requests):
    """The frames of a request are added together; then the window is checked once."""
    low = min(low, window)
    client = Client(HybridConfig(block=block, low_watermark=low), sink, window, system)
    last, first, recent = [], [], []
    for number, frames in enumerate(requests):
        question = [number % 3]
        got = client.request(frames, question)
        for frame in frames:
            (first if len(first) < sink else recent).append(frame)
        shifted = len(recent) > window
        if shifted:
            recent = recent[-low:]
        flat = [*system, *(t for frame in [*first, *recent] for t in frame), *question]
        common = next(
            (i for i, (a, b) in enumerate(zip(flat, last, strict=False)) if a != b), min(len(flat), len(last))
        )
        assert (list(got.prompt), got.frames, got.shifted) == (flat, len(first) + len(recent), shifted)
        assert got.hit == common // block * block
        last = flat


def test_system_prompt_hits_after_every_shift():
    client = Client(DEFAULT, sink_frames=1, window=2, system=range(100, 132))
    requests = [client.request([range(8 * f, 8 * f + 8)]) for f in range(6)]
    assert [r.hit for r in requests] == [0, 32, 48, 32, 32, 32]
    assert all(r.prompt[:32] == tuple(range(100, 132)) for r in requests)
    assert requests[-1].frames == 3, "the system prompt is no frame"


def test_question_without_frames_extends_the_prompt():
    client = Client(HybridConfig(block=1), sink_frames=1, window=2)
    client.request([[1, 2], [3]], [9])
    again = client.request([], [8, 7])
    assert again.prompt == (1, 2, 3, 8, 7) and again.hit == 3 and not again.shifted


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.push("abc"), r"frames\[0\] must be an array of integers"),
        (lambda c: c.push([1, 2.5]), r"frames\[0\] must be an array of integers"),
        (lambda c: c.push(3), r"frames\[0\] must have shape \(any\), got \(\)"),
        (lambda c: c.push([1], [-1]), r"question must be at least 0, got -1"),
        (lambda c: c.request([[1], [-2]]), r"frames\[1\] must be at least 0, got -2"),
        (lambda c: c.request([1, 2]), r"frames\[0\] must have shape \(any\), got \(\)"),
    ],
)
def test_refused_request_changes_nothing(call, words):
    client = Client(HybridConfig(block=1), sink_frames=1, window=1)
    client.request([[5], [6]])
    before = (list(client.sink), list(client.recent))
    with pytest.raises(ValueError, match=words):
        call(client)
    assert (client.sink, client.recent) == before
    assert client.request([]).hit == 2
    with pytest.raises(ValueError, match="system must be at least 0, got -3"):
        Client(HybridConfig(), 1, 1, [-3])


def prompts(client, frames, tokens=8):
    return [client.push(range(f * tokens, (f + 1) * tokens)) for f in range(frames)]


def test_published_client_hits_only_sink_after_window_is_full():
    requests = prompts(Client(DEFAULT, sink_frames=2, window=20), 60)
    for f, request in enumerate(requests):
        if f < 22:  # every prompt extends the one before
            assert not request.shifted and request.hit == f * 8 // 16 * 16
        else:
            assert request.shifted and request.frames == 22 and request.hit == 16
            assert request.recomputed == 20 * 8
    late = requests[-1]
    assert late.recomputed / len(late.prompt) == pytest.approx(0.9, abs=0.02), "about 90 % of every prompt"


def test_low_watermark_restores_accumulating_phase():
    requests = prompts(Client(replace(DEFAULT, low_watermark=10), sink_frames=2, window=20), 200)
    late = requests[100:]
    assert 0 < sum(r.shifted for r in late) / len(late) < 0.1
    paper = prompts(Client(DEFAULT, sink_frames=2, window=20), 200)[100:]
    assert sum(r.recomputed for r in late) < 0.2 * sum(r.recomputed for r in paper)


@settings(derandomize=True, database=None, deadline=None)
@given(
    **TABLES,
    frames=st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=30),
    question=st.lists(st.integers(0, 2), max_size=3),
)
def test_prompts_and_hits_by_definition(sink, window, low, block, frames, question):
    low = min(low, window)
    client = Client(HybridConfig(block=block, low_watermark=low), sink, window)
    last: list[int] = []
    recent: list[list[int]] = []
    for f, frame in enumerate(frames):
        request = client.push(frame, question)
        if f >= sink:
            recent.append(frame)
            if len(recent) > window:
                recent = recent[len(recent) - low :]
        flat = [t for tokens in [*frames[: min(sink, f + 1)], *recent] for t in tokens] + question
        assert list(request.prompt) == flat
        common = 0
        for a, b in zip(flat, last, strict=False):
            if a != b:
                break
            common += 1
        assert request.hit == common - common % block
        assert request.hit + request.recomputed == len(flat)
        last = flat


# -- bad input


def decoder():
    return Decoder(DecoderConfig(hidden=16), np.random.default_rng(0))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: HybridConfig(block=0), "block must be at least 1, got 0"),
        (lambda: HybridConfig(recent_blocks=-1), "recent_blocks must be at least 0, got -1"),
        (lambda: HybridConfig(window=0), "window must be at least 1, got 0"),
        (lambda: HybridConfig(ssm_mode="s4"), "ssm_mode must be one of disabled, mamba, prefix_sum"),
        (lambda: HybridConfig(ssm_input="keys"), "ssm_input must be one of hidden, query"),
        (lambda: HybridConfig(fuse="late"), "fuse must be one of post_o_proj, pre_o_proj"),
        (lambda: streaming_llm(-1, 1, 1), "total must be at least 0, got -1"),
        (lambda: sliding_mask(np.array([-1]), np.arange(2), 0, 1), "positions must be at least 0, got -1"),
        (lambda: BlockPool(0), "blocks must be at least 1, got 0"),
        (lambda: BlockPool(1).share(0), "block must be in use, got the free block 0"),
        (lambda: BlockPool(1).release(0), "block must be in use, got the free block 0"),
        (lambda: BlockTable(BlockPool(1), DEFAULT).append(-1), "count must be at least 0, got -1"),
        (lambda: Client(HybridConfig(low_watermark=5), 1, 4), "low_watermark must be between 1 and 4, got 5"),
        (lambda: HybridDecoder(decoder(), DEFAULT), r"params must be one per layer \(2\), got 0"),
        (
            lambda: HybridDecoder(decoder(), HybridConfig(ssm_mode="prefix_sum", ssm_input="hidden")),
            "widths must be equal for ssm_mode prefix_sum, got 16 and 32",
        ),
        (
            lambda: HybridDecoder(decoder(), DEFAULT, [MambaParams.random(np.random.default_rng(0), 16, 32)] * 2),
            r"params.w_in must have shape \(32, any\), got \(16, 64\)",
        ),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()
