"""Sessions that share the pages of a prefix, and a server of prompts: results equal those of sessions alone."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.policies import FullPolicy, HybridPolicy, ResvPolicy, WindowPolicy
from compiler.prompt_server import PromptServer
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.hybrid import BlockPool, BlockTable, Client, HybridConfig, PromptRequest
from golden.store import check
from hw.config import Config
from tests.compiler.checkpoints import write_random

TINY = Config.preset("tiny").replace(page_frames=256)
BLOCK, LAYERS = TINY.page_tokens, 2
SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6]
POLICIES = {
    "full": FullPolicy(),
    "full, next layer": FullPolicy(prefetch="next_layer"),
    "window": WindowPolicy(sink=2 * BLOCK, recent=2 * BLOCK),
    "hybrid": HybridPolicy(sink=2 * BLOCK, recent=2 * BLOCK, states=2, width=3),
}


def machine(folder, policy=POLICIES["full"], streams=3, **limits):
    return compile_model(Checkpoint(folder), TINY, Limits(streams=streams, tokens=64, step=9, **limits), policy)


def pages(of):
    """Page frames in use; checks all invariants of the store."""
    store = of.memories.store
    check(store, complete=False)
    return int(store.header["resident_pages"])


@pytest.mark.parametrize("name", POLICIES)
def test_streams_share_a_system_prompt(name, tmp_path, rng):
    """Three streams with different frames; the first is closed early. Pages are those of `golden.hybrid.BlockPool`."""
    write_random(tmp_path, "llama", rng)
    policy, shared = POLICIES[name], machine(tmp_path, POLICIES[name])
    window = policy.table(TINY).kept_pages
    sink, recent = window or (0, 64)
    config = HybridConfig(block=BLOCK, sink_blocks=sink, recent_blocks=recent, max_tokens=(sink + recent) * BLOCK)
    pool = BlockPool(64)
    tables = [BlockTable(pool, config)]
    sessions = [shared.session()]
    sessions[0].prompt(SYSTEM)
    tables[0].append(len(SYSTEM))
    for parent in (0, 1):  # the third stream begins with the pages of the second one
        sessions.append(sessions[parent].fork(len(SYSTEM)))
        tables.append(tables[parent].fork())
    assert pages(shared) == LAYERS * (64 - pool.free) == LAYERS * 2
    hidden = shared.spec.text.hidden
    rows = [bf16.encode(rng.standard_normal((size, hidden))) for size in (9, 6, 5, 7, 9, 3)]
    answers = []
    for number, own in enumerate((rows[:2], rows[2:4], rows[4:])):
        for row in own:
            sessions[number].features(row)
            tables[number].append(len(row))
            assert pages(shared) == LAYERS * (64 - pool.free)
        answers.append(list(sessions[number].ask([7, number], count=2)))
        for count in [2, *[1] * (len(answers[-1]) - 1)]:
            tables[number].append(count)
        alone = machine(tmp_path, policy, streams=1).session()
        alone.prompt(SYSTEM)
        for row in own:
            alone.features(row)
        assert answers[-1] == list(alone.ask([7, number], count=2))
        np.testing.assert_array_equal(sessions[number].logits, alone.logits)
        if number == 0:
            sessions[0].close()
            tables[0].close()
    for number in (1, 2):
        assert pages(shared) == LAYERS * (64 - pool.free)
        sessions[number].close()
        tables[number].close()
    assert pages(shared) == 64 - pool.free == 0


def test_a_closed_stream_is_used_again(tmp_path, rng):
    """A session after another one on the same stream gives what it gives on a new machine, also with a branch."""
    write_random(tmp_path, "llama", rng)
    used = machine(tmp_path, POLICIES["hybrid"], streams=1)
    first = used.session()
    first.prompt(SYSTEM)
    first.close()
    file = tmp_path / "closed"
    calls = (first.close, lambda: first.prompt([1]), first.fork, lambda: first.save(file), lambda: first.resume(file))
    for closed in calls:
        with pytest.raises(ValueError, match=r"^session must be open, got a closed one$"):
            closed()
    assert not file.exists()
    second, alone = used.session(), machine(tmp_path, POLICIES["hybrid"], streams=1).session()
    for session in (second, alone):
        session.prompt([2, 7, 1, 8], answer=True)
    np.testing.assert_array_equal(second.logits, alone.logits)


def test_the_server_computes_what_follows_the_prefix_hit(tmp_path, rng):
    """A system prompt and several frames per request: the answer of a complete prompt, the tokens of the client."""
    write_random(tmp_path, "llama", rng)
    served = machine(tmp_path, streams=2)
    server, hits, shifts = PromptServer(served), 0, 0
    client = Client(HybridConfig(block=BLOCK, low_watermark=2), sink_frames=1, window=4, system=SYSTEM[:6])
    vocabulary = served.spec.text.vocabulary
    for frames in (1, 2, 1, 1, 2, 3, 0):
        tokens = rng.integers(vocabulary, size=(frames, 5)).tolist()
        request = client.request(tokens, rng.integers(vocabulary, size=3).tolist())
        answer = server.answer(request, count=2)
        steps = sum(step.tokens for step in server.session.steps)
        assert steps == request.recomputed + len(answer) - 1
        hits, shifts = hits + request.hit, shifts + request.shifted
        assert pages(served) == LAYERS * -(-(len(request.prompt) + len(answer) - 1) // BLOCK)
        alone = machine(tmp_path, streams=1).session()
        assert answer == list(alone.ask(request.prompt, count=2))
        np.testing.assert_array_equal(server.session.logits, alone.logits)
    assert hits > 60 and shifts == 2
    same = PromptRequest(request.prompt[:-1], 0, len(request.prompt) // BLOCK * BLOCK, False)
    server.answer(same, count=1)  # a prompt that the cache has as a whole: its last block is computed
    assert 1 <= server.session.steps[0].tokens <= BLOCK
    with pytest.raises(ValueError, match=r"^hit must be a common prefix with the last prompt, got 4 tokens$"):
        server.answer(PromptRequest((39, *request.prompt), 0, 4, False))
    assert server.prompt == same.prompt
    with pytest.raises(ValueError, match=r"^streams must be at least 2 for a server of prompts, got 1$"):
        PromptServer(machine(tmp_path, streams=1))


def test_refusals(tmp_path, rng):
    write_random(tmp_path, "llama", rng)
    for policy, limits, tokens, message in (
        (ResvPolicy(), {}, 4, "policy of a session to fork must be full, window or hybrid, got resv"),
        (FullPolicy(), {"resident": 9}, 4, "resident must be 0 to fork a session, got 9"),
        (FullPolicy(), {}, 0, "tokens must be a multiple of page_tokens = 4, at most 9, got 9"),
        (FullPolicy(), {}, 12, "tokens must be a multiple of page_tokens = 4, at most 9, got 12"),
        (WindowPolicy(sink=4, recent=4), {}, 8, "tokens must be a multiple of page_tokens = 4, at most 4, got 8"),
        (POLICIES["hybrid"], {}, 8, "tokens must be all 9 of a session with a branch or with M-RoPE, got 8"),
    ):
        session = machine(tmp_path, policy, **limits).session()
        session.prompt([1, 2, 3, 4, 5, 6, 7, 8, 9])
        with pytest.raises(ValueError, match=f"^{message}$"):
            session.fork(tokens)
    session = machine(tmp_path, streams=2).session()
    session.prompt(SYSTEM)
    other = session.fork()
    with pytest.raises(ValueError, match=r"^sessions must be at most streams = 2$"):
        session.fork()
    with pytest.raises(ValueError, match=r"^pages of a saved session must not be shared with another session$"):
        session.save(tmp_path / "session")
    other.close()
    session.save(tmp_path / "session")
    write_random(tmp_path / "one", "llama", rng, changes={"num_hidden_layers": 1})
    session = machine(tmp_path / "one", streams=2).session()
    session.prompt(SYSTEM)
    with pytest.raises(ValueError, match=r"^layers must be at least 2 to fork a session, got 1$"):
        session.fork()


def test_sessions_that_share_tokens_need_less_memory(tmp_path, rng):
    """Page frames for the shared pages exist once; all sessions can reach their largest size at the same time."""
    write_random(tmp_path, "llama", rng)
    streams = 3
    plain, shared = (machine(tmp_path, FullPolicy(), streams, shared=tokens) for tokens in (0, len(SYSTEM)))
    saved = (streams - 1) * LAYERS * len(SYSTEM) // BLOCK
    assert plain.plan.page_frames - shared.plan.page_frames == saved
    assert len(plain.core.device) - len(shared.core.device) >= saved * shared.plan.page_bytes
    first = shared.session()
    first.prompt(SYSTEM[:4])
    with pytest.raises(ValueError, match=r"^tokens must be at least shared = 8, got 4$"):
        first.fork()
    first.prompt(SYSTEM[4:])
    with pytest.raises(ValueError, match=r"^sessions that share 8 tokens must be forks of the first one$"):
        shared.session()
    sessions = [first, *(first.fork() for _ in range(streams - 1))]
    for session in sessions:
        session.prompt(rng.integers(40, size=64 - len(SYSTEM)).tolist())
    most = LAYERS * (streams * 64 - (streams - 1) * len(SYSTEM)) // BLOCK
    assert pages(shared) == most <= shared.plan.page_frames
    for session in sessions:
        session.close()
    assert shared.session().position == pages(shared) == 0
    for changed, policy, message in (
        ({"shared": 6}, POLICIES["window"], "shared must be a multiple of page_tokens = 4, at most 8, got 6"),
        ({"shared": 12}, POLICIES["window"], "shared must be a multiple of page_tokens = 4, at most 8, got 12"),
        ({"shared": 4}, ResvPolicy(), "shared must be 0 with resident tokens, and for policies other .*, got 4"),
        ({"shared": 4, "resident": 9}, FullPolicy(), "shared must be 0 with resident tokens, and for .*, got 4"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            machine(tmp_path, policy, **changed)
    with pytest.raises(ValueError, match=r"^pages of sessions that share tokens must be at most page_frames = 256 .*$"):
        machine(tmp_path, FullPolicy(), streams=9, shared=4)
