"""A model on the golden machine: every token, logit and retrieved set equals the golden language model."""

import numpy as np
import pytest

from compiler.checkpoint import Checkpoint
from compiler.language_model import layer_weights
from compiler.machine.interpreter import FastInterpreter
from compiler.policies import ResvPolicy
from compiler.positions import Positions
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.core_interpreter import CoreInterpreter
from golden.decoder_layer import DecoderLayer, LayerShape
from golden.kvmu import KvmuConfig
from golden.kvpu import Kvpu
from golden.language_model import LanguageModel, greedy
from golden.store import ContextSizes, StoreSizes, create_context, create_store, store_bytes
from golden.vision import VisionTower
from hw.config import Config
from tests.compiler.checkpoints import write_random

TINY = Config.preset("tiny").replace(page_frames=256)
FAMILIES = ("llama", "llama3", "qwen2")


def golden_model(checkpoint, config, policy, tokens):
    """The golden language model with a store of its own, in which all pages stay in device memory."""
    text = checkpoint.spec.text
    shared = StoreSizes(
        text.layers, text.layers * tokens, config.page_tokens, 2 * config.head_dim * config.kv_heads, 64
    )
    own = ContextSizes(tokens, tokens)
    memory = np.zeros(store_bytes(shared, [own] * text.layers), np.uint8)
    store = create_store(memory, 0, shared)
    for n in range(text.layers):
        create_context(store, n, own, shared.nbytes + n * own.nbytes(shared))
    kvmu = KvmuConfig(
        config.kv_heads, config.head_dim, config.page_tokens, max_resident_tokens=1 << 30, lanes=config.dpe_inputs,
        kv_bits=config.kv_bits,
    )  # fmt: skip
    selection = policy.selection()
    table = Kvpu(policy.clustering(config), kvmu, memory, 0, selection.wtu, selection.target)
    shape = LayerShape(
        text.hidden, text.ffn, text.q_heads, text.kv_heads, config.head_dim, config.hash_bits, config.dpe_inputs,
        frequencies=tuple(text.rope.frequencies()), norm_epsilon=text.norm_epsilon, head_elements=text.head_dim,
        piece_tokens=config.max_step_tokens,
    )  # fmt: skip
    layers = []
    for n in range(text.layers):
        weights = layer_weights(checkpoint, text, config, n)
        layers.append(
            DecoderLayer(
                shape, dict(weights.matrices), weights.norms, table, n, biases=dict(weights.biases),
                policy=policy.table(config),
            )
        )  # fmt: skip
    return LanguageModel(
        layers, checkpoint.embedding(), checkpoint.final_norm(), checkpoint.lm_head(), policy.prefetch
    )  # fmt: skip


@pytest.mark.parametrize(
    "resident, interpreter",
    [(0, FastInterpreter), (6, FastInterpreter), (6, CoreInterpreter)],
    ids=["device memory", "host memory", "host memory, NumPy"],
)
@pytest.mark.parametrize("family, prefetch", [*((name, "same_layer") for name in FAMILIES), ("llama", "next_layer")])
def test_session_equals_the_golden_model(family, prefetch, resident, interpreter, tmp_path, rng):
    """Frames, a question, and an answer of which every token is one step."""
    write_random(tmp_path, family, rng, changes={"num_hidden_layers": 3} if prefetch == "next_layer" else {})
    checkpoint, retrieval = Checkpoint(tmp_path), ResvPolicy(ratio=0.5, hamming_threshold=3, prefetch=prefetch)
    limits = Limits(tokens=64, step=5, resident=resident)
    machine = compile_model(checkpoint, TINY, limits, retrieval, interpreter=interpreter)
    session, golden = machine.session(), golden_model(checkpoint, TINY, retrieval, 64)
    position, attended = 0, 0

    def step(x):
        nonlocal position
        logits, traces = golden.step(x, np.arange(position, position + len(x)))
        position += len(x)
        return logits, traces

    for _ in range(4):
        rows = bf16.encode(rng.standard_normal((3, checkpoint.spec.text.hidden)))
        session.features(rows)
        step(rows)
    question = rng.integers(checkpoint.spec.text.vocabulary, size=7).tolist()
    step(golden.embed(question[:5]))
    logits, traces = step(golden.embed(question[5:]))
    for token in session.ask(question, count=4):
        assert token == greedy(logits)
        np.testing.assert_array_equal(session.logits, logits)
        retrieved = session.steps[-1].retrieved
        assert retrieved.attended == [[len(past) for past in trace.attended] for trace in traces]
        attended += sum(sum(head) for head in retrieved.attended)
        logits, traces = step(golden.embed([token]))
    assert attended > 0
    assert any(sum(each.retrieved.fetched) for each in session.steps) == bool(resident)


@pytest.mark.parametrize(
    ("family", "pooled", "tokens"),
    [("llava", 0, 9), ("llava-siglip", 0, 9), ("llava", 2, 4), ("llava, class token", 2, 5), ("llava-siglip", 1, 1)],
)
def test_frames_equal_the_golden_tower_and_model(family, pooled, tokens, tmp_path, rng):
    """Pictures through the tower, the pooling, the projector and the layers; then one token of an answer."""
    changes = {"vision_feature_select_strategy": "full"} if "class token" in family else {}
    write_random(tmp_path, family.partition(",")[0], rng, changes=changes)
    checkpoint, retrieval = Checkpoint(tmp_path), ResvPolicy(ratio=0.5, hamming_threshold=3)
    machine = compile_model(checkpoint, TINY, Limits(tokens=64, resident=12, pooled=pooled), retrieval)
    session, golden = machine.session(), golden_model(checkpoint, TINY, retrieval, 64)
    shape = machine.vision.shape
    assert (shape.pooled, shape.output_tokens) == (pooled, tokens)
    tower = VisionTower(shape, {name: checkpoint.load(name) for name in shape.weights()})
    position = 0
    for _ in range(3):
        picture = rng.integers(256, size=(20, 28, 3), dtype=np.uint8)
        session.frame(picture)
        rows = tower.run(machine.images.patches(picture))
        golden.step(rows, np.arange(position, position + len(rows)))
        position += len(rows)
    question = rng.integers(40, size=3).tolist()
    logits, _ = golden.step(golden.embed(question), np.arange(position, position + 3))
    assert next(session.ask(question)) == greedy(logits)
    np.testing.assert_array_equal(session.logits, logits)


AXES = [0, 1, 2, 2]  # of the RoPE pairs of the checkpoint


def test_video_of_qwen_equals_the_golden_tower_and_model(tmp_path, rng):
    """Text, a video of three frames, another one, a picture alone and a question; the session is saved in between.

    A video has 2 positions per second. The tokens of a frame are 2 x 3.
    """
    write_random(tmp_path / "model", "qwen2.5-vl", rng)
    checkpoint, retrieval = Checkpoint(tmp_path / "model"), ResvPolicy(ratio=0.5, hamming_threshold=3)
    limits = Limits(tokens=64, resident=12, height=16, width=24)
    machine = compile_model(checkpoint, TINY, limits, retrieval)
    session, golden = machine.session(), golden_model(checkpoint, TINY, retrieval, 64)
    shape = machine.vision.shape
    assert shape.grid.windows == (16, 8) and shape.output_grid == (2, 3)
    tower = VisionTower(shape, {name: checkpoint.load(name) for name in shape.weights()})
    text = rng.integers(40, size=4).tolist()
    session.prompt(text)
    golden.step(golden.embed(text), np.arange(4))
    row, column = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2])
    for number, (first, time, seconds) in enumerate(
        ((4, 0, 5.0), (4, 3, 6.5), (4, 6, 8.4), (11, 0, 1.0), (14, 0, None))
    ):
        pictures = rng.integers(256, size=(1 if number == 1 else 2, 20, 28, 3), dtype=np.uint8)
        session.frame(*pictures, seconds=seconds)
        output = np.empty((6, 32), np.uint16)
        output[shape.output_order] = tower.run(machine.images.patches(*pictures)[shape.order])
        golden.step(output, first + np.stack([np.full(6, time), row, column], axis=1)[:, AXES])
        if number == 1:
            session.save(tmp_path / "session")
            session = compile_model(checkpoint, TINY, limits, retrieval).session(tmp_path / "session")
    assert (session.position, session.positions.next) == (34, 17)
    question = rng.integers(40, size=3).tolist()
    logits, _ = golden.step(golden.embed(question), np.arange(17, 20))
    tokens = session.ask(question)
    assert next(tokens) == greedy(logits)
    np.testing.assert_array_equal(session.logits, logits)
    logits, _ = golden.step(golden.embed([greedy(logits)]), np.array([20]))
    next(tokens)
    np.testing.assert_array_equal(session.logits, logits)


def test_features_on_a_grid_have_the_positions_of_a_frame(tmp_path, rng):
    write_random(tmp_path, "qwen2.5-vl", rng)
    checkpoint = Checkpoint(tmp_path)
    machine = compile_model(checkpoint, TINY, Limits(streams=2, tokens=40, height=16, width=24))
    picture = rng.integers(256, size=(16, 24, 3), dtype=np.uint8)
    shape, answers = machine.vision.shape, []
    tower = VisionTower(shape, {name: checkpoint.load(name) for name in shape.weights()})
    rows = tower.run(machine.images.patches(picture)[shape.order])[np.argsort(shape.output_order)]
    for session, feed in (
        (machine.session(), lambda session: session.frame(picture, seconds=2.0)),
        (machine.session(), lambda session: session.features(rows, (2, 3), seconds=2.0)),
    ):
        feed(session)
        assert session.positions.next == 3
        session.prompt([1, 2], answer=True)
        answers.append(session.logits)
    np.testing.assert_array_equal(*answers)
    session.features(rows, (2, 3), seconds=1.0)
    for changes, message in (
        ({"grid": (2, 2)}, r"grid must have 6 tokens, got \(2, 2\)"),
        ({"seconds": 1.0}, "seconds must be None for tokens without a grid, got 1.0"),
        ({"grid": (2, 3), "seconds": -1.0}, "seconds must be at least 0, got -1.0"),
        ({"grid": (2, 3), "seconds": 300.0}, "positions of the model must be at most 512, got 604"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            session.features(rows, **changes)
    with pytest.raises(ValueError, match=r"^pictures must be 1 or 2, got 3$"):
        session.frame(picture, picture, picture)
    for limits, message in (
        (Limits(tokens=40, height=12), "height must be a multiple of the 8 pixels of a token, got 12"),
        (Limits(tokens=40, pooled=1), "pooled must be 0 for a tower of kind qwen2.5-vl, got 1"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            compile_model(checkpoint, TINY, limits)


def test_refusals(tmp_path, rng):
    write_random(tmp_path, "llama", rng)
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"^memory must hold the model and its contexts, got 4096 bytes$"):
        compile_model(checkpoint, TINY, Limits(tokens=64, memory=4096))
    with pytest.raises(ValueError, match=r"^tokens must be at most 512 positions of the model, got 513$"):
        compile_model(checkpoint, TINY, Limits(tokens=513))
    with pytest.raises(ValueError, match=r"^kv_heads of the model must be those of the core, 1, got 2$"):
        compile_model(checkpoint, TINY.replace(kv_heads=1), Limits(tokens=64))
    with pytest.raises(ValueError, match=r"^resident must be 1 to 12, which is page_frames = 16 .* 4 tokens, got 13$"):
        compile_model(checkpoint, Config.preset("tiny"), Limits(tokens=64, step=4, resident=13))
    for name in ("height", "width", "pooled"):
        with pytest.raises(ValueError, match=rf"^{name} must be 0 for a model without a vision tower, got 8$"):
            compile_model(checkpoint, TINY, Limits(**{name: 8}))
    with pytest.raises(ValueError, match=r"^step must be less than page_frames = 16 of the core, got 16$"):
        compile_model(checkpoint, Config.preset("tiny"), Limits(tokens=64, step=16))
    with pytest.raises(ValueError, match=r"^pages must be at most 64 on this core, got 65$"):
        compile_model(checkpoint, TINY, Limits(tokens=64, pages=65))
    machine = compile_model(checkpoint, TINY, Limits(tokens=8, step=4))
    session = machine.session()
    with pytest.raises(ValueError, match=r"^sessions must be at most streams = 1$"):
        machine.session()
    with pytest.raises(ValueError, match=r"^model of family llama has no vision tower, got a frame$"):
        session.frame(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"^rows must have shape \(T, 32\), got \(2, 8\)$"):
        session.features(np.zeros((2, 8), np.uint16))
    with pytest.raises(ValueError, match=r"^rows must be 1 to 4, got 5$"):
        session.features(np.zeros((5, 32), np.uint16))
    with pytest.raises(ValueError, match=r"^token must be 0 to 47, got 48$"):
        session.prompt([1, 48])
    with pytest.raises(ValueError, match=r"^tokens must be at least one token ID, got none$"):
        session.prompt([])
    with pytest.raises(ValueError, match=r"^grid must be None for a model of family llama, got \(1, 2\)$"):
        session.features(np.zeros((2, 32), np.uint16), (1, 2))
    assert session.position == 0
    session.prompt([1, 2, 3, 4, 5, 6])
    with pytest.raises(ValueError, match=r"^tokens of a session must be at most 8, got 9$"):
        session.prompt([1, 2, 3])
    with pytest.raises(ValueError, match=r"^tokens of a session must be at most 8, got 15$"):
        session.prompt([1] * 9)  # three steps, of which none is done
    assert session.position == 6
    with pytest.raises(ValueError, match=r"^ratio must be above 0 and at most 1, got 1.5$"):
        ResvPolicy(ratio=1.5)
    with pytest.raises(ValueError, match=r"^prefetch must be one of next_layer, same_layer, got 'none'$"):
        ResvPolicy(prefetch="none")


@pytest.mark.parametrize("resident", [0, 6])
def test_saved_session_continues_on_another_machine(resident, tmp_path, rng):
    """The second machine has other limits; its next answer is the same. A damaged file is refused."""
    write_random(tmp_path / "model", "qwen2", rng)
    checkpoint, retrieval = Checkpoint(tmp_path / "model"), ResvPolicy(ratio=0.5, hamming_threshold=3)
    first = compile_model(checkpoint, TINY, Limits(tokens=64, step=8, resident=resident), retrieval).session()
    for _ in range(3):
        first.features(bf16.encode(rng.standard_normal((5, 32))))
    first.save(tmp_path / "session")
    first.positions = Positions(14)
    first.save(tmp_path / "other positions")
    first.positions = Positions(15)
    answer = list(first.ask([1, 2, 3], count=4))

    machine = compile_model(checkpoint, TINY, Limits(streams=2, tokens=48, step=4, resident=12), retrieval)
    data = bytearray((tmp_path / "session").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(ValueError, match=r"SHA-256 of the section \d must be"):
        machine.session(tmp_path / "damaged")
    with pytest.raises(ValueError, match=r"other positions: position must be 15, the tokens of the stream, got 14$"):
        machine.session(tmp_path / "other positions")
    with pytest.raises(OSError):
        machine.session(tmp_path / "missing")
    machine.session().prompt([7, 8])
    second = machine.session(tmp_path / "session")
    assert second.position == 15
    assert list(second.ask([1, 2, 3], count=4)) == answer
