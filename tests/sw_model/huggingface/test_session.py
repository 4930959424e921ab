"""Streaming sessions: questions between frames, removal of a question, saving and resuming, invalid states."""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from golden.hybrid import HybridConfig
from golden.quickvideo import QuickVideoConfig
from golden.resv import ResvConfig

FRAME = 6
ARGUMENTS = {
    "full": {},
    "resv": {"options": {"config": ResvConfig(wics_ratio=0.2)}},
    "rekv": {"budget_frames": 2},
    "infinigenp": {"options": {"alpha": 0.01}},
    "quickprefill": {"options": {"config": QuickVideoConfig(group_frames=2)}},
    "mosaic": {"budget_frames": 2},
    "hybrid": {
        "options": {"config": HybridConfig(block=4, sink_blocks=1, recent_blocks=3, max_tokens=20)},
        "positions": "compact",
    },
}


def open_session(model, policy, **changes):
    from sw_model.huggingface import StreamingSession

    arguments = {"device_tokens": 9, "block_tokens": 7, "frame_tokens": FRAME, **ARGUMENTS[policy], **changes}
    return StreamingSession(model, policy=policy, **arguments)


def frames(torch, first, count):
    """Token ids of frames `first` to `first + count - 1` of a stream."""
    for number in range(first, first + count):
        yield torch.randint(0, 300, (1, FRAME), generator=torch.Generator().manual_seed(number))


def logits_of(session, torch):
    """Logits after the next token, which is removed again."""
    collected = []
    session.ask([7], max_new_tokens=2, keep=False, end=-1, choose=lambda x: collected.append(x.cpu().numpy()) or 5)
    return np.stack(collected)


@pytest.mark.parametrize("policy", ARGUMENTS)
def test_resumed_session_continues_as_if_it_had_not_stopped(policy, make_model, torch, tmp_path):
    from sw_model.huggingface import StreamingSession

    model = make_model()
    session = open_session(model, policy)
    for ids in frames(torch, 0, 5):
        session.frame(input_ids=ids)
    first = session.ask([11, 12, 13], max_new_tokens=4, end=-1)
    session.save(tmp_path / "session")
    session.save(tmp_path / "session")  # replaces the earlier one
    resumed = StreamingSession.resume(model, tmp_path / "session")
    assert len(first.tokens) == 4
    assert first.text == ""
    assert resumed.next_position == session.next_position == session.cache.tokens == 5 * FRAME + 3 + 4
    for one in (session, resumed):
        for ids in frames(torch, 5, 3):
            one.frame(inputs_embeds=model.get_input_embeddings()(ids.to(model.device)))
    assert np.array_equal(logits_of(resumed, torch), logits_of(session, torch))
    assert resumed.cache.statistics() == session.cache.statistics()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["session"]


@pytest.mark.parametrize("policy", ARGUMENTS)
def test_question_that_is_not_kept_leaves_no_trace(policy, make_model, torch):
    model = make_model("qwen2")
    plain, asked = (open_session(model, policy) for _ in range(2))
    for number in range(8):
        for session in (plain, asked):
            session.frame(input_ids=next(frames(torch, number, 1)))
        asked.ask([1, 2, 3, number], max_new_tokens=3, keep=False)
    assert asked.next_position == plain.next_position == 8 * FRAME
    assert asked.cache.statistics() == plain.cache.statistics()
    assert np.array_equal(logits_of(asked, torch), logits_of(plain, torch))


def test_answer_of_the_full_policy_is_that_of_generate(make_model, torch):
    model = make_model()
    ids = torch.cat([torch.ones((1, 1), dtype=torch.long), *frames(torch, 0, 4)], 1).clamp(min=1).to(model.device)
    expected = model.generate(ids, max_new_tokens=7, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
    session = open_session(model, "full")
    session.tell(ids[:, :9])
    session.frame(input_ids=ids[:, 9:-2])
    assert session.ask(ids[0, -2:], max_new_tokens=7).tokens == expected
    session = open_session(model, "full")
    session.tell(ids[:, :-1])
    assert session.ask(ids[0, -1:].tolist(), max_new_tokens=7, end=[expected[2]]).tokens == expected[:3]


def test_text_is_read_with_the_tokenizer(make_model, torch):
    class Tokenizer:
        def __call__(self, text):
            return {"input_ids": [ord(character) for character in text]}

        def decode(self, tokens, skip_special_tokens):
            return " ".join(map(str, tokens))

    session = open_session(make_model(), "resv", stage="frame")
    with pytest.raises(ValueError, match="question must be token ids without a tokenizer, got a string"):
        session.tell("hello")
    session.tokenizer = Tokenizer()
    session.tell("hello")
    answer = session.ask("why?", max_new_tokens=2, end=-1)
    assert answer.text == " ".join(map(str, answer.tokens))
    assert session.cache.tokens == 5 + 4 + 2
    assert session.cache.stage == "frame"
    with pytest.raises(ValueError, match="question must hold at least one token, got none"):
        session.ask("")


def test_failed_question_that_is_not_kept_is_removed(make_model, torch):
    session = open_session(make_model(), "resv")
    session.frame(input_ids=next(frames(torch, 0, 1)))

    def fail(logits):
        raise RuntimeError("stop")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="stop"):
            session.ask([1, 2], keep=False, choose=fail)
        assert session.cache.tokens == session.next_position == FRAME
    empty = open_session(make_model(), "resv")
    empty.ask([1, 2], max_new_tokens=2, keep=False)
    assert empty.cache.tokens == empty.next_position == 0


KILLED = """
import sys, torch
sys.path[:0] = [{root!r}]
torch.set_num_threads(1)
from transformers import LlamaForCausalLM
from sw_model.huggingface import StreamingSession
model = LlamaForCausalLM.from_pretrained({model!r}).eval().to({device!r})
session = StreamingSession(model, policy="resv", device_tokens=9)
for number in range(1000):
    ids = torch.randint(0, 300, (1, {frame}), generator=torch.Generator().manual_seed(number))
    session.frame(input_ids=ids)
    session.save({folder!r})
    print(number, flush=True)
"""


def test_killed_process_is_resumed(make_model, torch, tmp_path):
    """A process is killed while it streams and saves; the last complete state continues with the same logits."""
    from sw_model.huggingface import StreamingSession

    model = make_model()
    model.save_pretrained(tmp_path / "model")
    values = {
        "model": str(tmp_path / "model"),
        "folder": str(tmp_path / "session"),
        "frame": FRAME,
        "device": str(model.device),
    }
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED.format(root=root, **values)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        for _ in range(4):
            assert process.stdout.readline()
        process.kill()
    resumed = StreamingSession.resume(model, tmp_path / "session")
    done = resumed.cache.tokens // FRAME
    assert done >= 4
    assert resumed.cache.tokens == resumed.next_position == done * FRAME
    session = StreamingSession(model, policy="resv", device_tokens=9)
    for ids in frames(torch, 0, done):
        session.frame(input_ids=ids)
    assert np.array_equal(logits_of(resumed, torch), logits_of(session, torch))


def test_states_that_cannot_be_used_are_rejected(make_model, torch, tmp_path):
    from sw_model.huggingface import StreamingSession
    from sw_model.huggingface.state import StateError, _Reader

    model, folder = make_model(), tmp_path / "session"
    with pytest.raises(StateError, match=r"session cannot be read: .*No such file"):
        StreamingSession.resume(model, folder)
    session = open_session(model, "resv")
    session.save(folder)  # an empty session
    assert StreamingSession.resume(model, folder).cache.tokens == 0
    session.frame(input_ids=next(frames(torch, 0, 1)))
    session.save(folder)
    shutil.move(folder, tmp_path / ".session.old")  # the writer was killed between two renames
    assert StreamingSession.resume(model, folder).cache.tokens == FRAME
    shutil.move(tmp_path / ".session.old", folder)
    index = (folder / "index.pickle").read_bytes()
    (folder / "index.pickle").write_bytes(index[:-9])
    with pytest.raises(StateError, match="session cannot be read"):
        StreamingSession.resume(model, folder)
    (folder / "index.pickle").write_bytes(pickle.dumps((os.system, {})))
    with pytest.raises(StateError, match=r"class posix\.system is not allowed"):
        StreamingSession.resume(model, folder)
    for name in ("golden.bf16", "sw_model.policies"):  # functions of the project are no classes
        with pytest.raises(pickle.UnpicklingError, match="is not allowed"):
            _Reader(io.BytesIO(f"c{name}\nload\n.".encode())).load()
    values = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**values, "format": 1}))
    with pytest.raises(StateError, match="session: format must be 2, got 1"):
        StreamingSession.resume(model, folder)
    with pytest.raises(ValueError, match="policy must be a name or a Python file to be saved, got a function"):
        _with_function(model).save(folder)


def _with_function(model):
    from sw_model.huggingface import StreamingSession
    from sw_model.policies import POLICIES

    return StreamingSession(model, policy=POLICIES["full"])


@pytest.mark.parametrize("policy", ARGUMENTS)
def test_tensors_are_on_the_device_of_the_model_or_on_the_host(policy, make_model, torch):
    """The default device of PyTorch is `meta`, which has no values: every tensor of the cache names its own device."""
    model = make_model()
    plain, session = (open_session(model, policy) for _ in range(2))
    ids = list(frames(torch, 0, 6))
    for one, context in ((plain, torch.device("cpu")), (session, torch.device("meta"))):
        with context:
            for frame in ids:
                one.frame(input_ids=frame)
            one.ask([11, 12], max_new_tokens=3, end=-1)
            one.ask([11, 12], max_new_tokens=3, end=-1, keep=False)
    assert np.array_equal(logits_of(session, torch), logits_of(plain, torch))
    assert session.cache.statistics() == plain.cache.statistics()
