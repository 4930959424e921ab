"""Stored weights in 4 and 8 bits: products, and sessions of the machine compared with golden layers."""

import numpy as np
import pytest

from cli.commands import models
from compiler.blocks import Activations, Columns
from compiler.builder import Share
from compiler.checkpoint import Checkpoint
from compiler.language_model import PROJECTIONS
from compiler.machine.interpreter import FastInterpreter
from compiler.memory import block_words, encoded_tiles, tiles
from compiler.policies import FullPolicy, OakenPolicy, ResvPolicy
from compiler.products import Matrix, Products
from compiler.runtime import WEIGHTS, Limits, compile_model
from golden import bf16
from golden.dot import matmul
from golden.language_model import greedy
from golden.weight_formats import FORMATS
from hw.config import Config
from hw.lxe.operand_memory import OperandMemory
from tests.compiler.checkpoints import write, write_random
from tests.compiler.test_quantised import CASES, quantised
from tests.compiler.test_runtime import golden_model

TINY = Config.preset("tiny").replace(page_frames=256, weight_bits=4)
SMALL = Config.preset("small").replace(weight_bits=4)
WORD = 2 * SMALL.dpe_inputs
X, OUT, SIZE = 1 << 14, 3 << 13, 1 << 20  # word addresses of activations and results, bytes of the memory


class Decoded:
    """A checkpoint whose projections have the values that their codes stand for."""

    def __init__(self, checkpoint, name):
        self.checkpoint, self.form = checkpoint, FORMATS[name]

    def load(self, key):
        tensor = self.checkpoint.load(key)
        if key.startswith("layers.") and key.split(".")[-1] in PROJECTIONS:
            return self.form.decode(self.form.quantise(tensor))
        return tensor

    def __getattr__(self, name):
        return getattr(self.checkpoint, name)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize(("m_blocks", "k_blocks", "tokens"), [(5, 32, 2), (5, 51, 10), (7, 64, 3), (3, 6, 4)])
@pytest.mark.parametrize("name", FORMATS)
def test_product_equals_golden(name, m_blocks, k_blocks, tokens, cores, bias, rng):
    """Result blocks with and without a gap, in several pieces; the last input block is BF16 with a bias."""
    n, products, form = SMALL.dpe_inputs, Products(SMALL), FORMATS[name]
    weights = bf16.encode(rng.standard_normal((m_blocks * n, k_blocks * n)))
    plain = bf16.encode(rng.standard_normal((m_blocks * n, bias * n)))
    x = bf16.encode(rng.standard_normal((tokens, (k_blocks + bias) * n)))
    image, memory = encoded_tiles(weights, n, form), bytearray(SIZE)
    assert len(image) == m_blocks * block_words(k_blocks, n, form) * WORD
    assert block_words(51, n, FORMATS["mxfp4"]) == 255 and block_words(64, n, FORMATS["fp8"]) == 640
    parts = {0: image, len(image): tiles(plain, n) if bias else b"", X * WORD: x.tobytes()}
    for at, part in parts.items():
        memory[at : at + len(part)] = part
    matrix = Matrix(0, m_blocks, k_blocks + bias, form=form, bias=len(image) // WORD if bias else None)
    operands = OperandMemory.from_config(SMALL)
    for core in range(cores):
        p = products.program(Share(core, cores))
        products.multiply(p, matrix, tokens, Activations([Columns(X, k_blocks + bias)], []), OUT, wide=True)
        machine = FastInterpreter(
            [memory, bytearray(64)], inputs=n, weight_rows=operands.weight_rows,
            activation_rows=operands.activation_rows, slots=SMALL.dpe_accumulators, vector_rows=SMALL.vpe_rows,
            head_words=SMALL.head_dim // n, align_bits=SMALL.align_bits, weight_bits=4, programs={},
        )  # fmt: skip
        for command in p.builder.commands:
            machine.execute(command)
    result = np.frombuffer(bytes(memory), np.uint32, tokens * m_blocks * n, OUT * WORD).reshape(tokens, -1)
    whole = np.concatenate([form.decode(form.quantise(weights)), plain], axis=1)
    np.testing.assert_array_equal(result, matmul(x, whole, n, SMALL.align_bits))


@pytest.mark.parametrize(
    ("name", "family", "policy", "cores"),
    [
        ("mxfp4", "llama", ResvPolicy(), 1),
        ("int4", "llama", FullPolicy(), 2),
        ("fp8", "llama", OakenPolicy(), 1),
        ("mxfp4", "qwen2", FullPolicy(), 2),
        ("int4", "qwen2", ResvPolicy(), 1),
    ],
)  # fmt: skip
def test_session_equals_golden(name, family, policy, cores, tmp_path, rng):
    """Two layers, frames and an answer: logits and tokens of layers with the decoded weights; `qwen2` has biases."""
    write_random(tmp_path, family, rng, changes={"num_hidden_layers": 2})
    checkpoint, config = Checkpoint(tmp_path), policy.core(TINY)
    machine = compile_model(checkpoint, config, Limits(tokens=64, step=9), policy, cores=cores, weights=name)
    model, session, position = golden_model(Decoded(checkpoint, name), config, policy, 64), machine.session(), 0
    for tokens in (5, 9, 3):
        rows = bf16.encode(rng.standard_normal((tokens, checkpoint.spec.text.hidden)))
        session.features(rows)
        model.step(rows, np.arange(position, position + tokens))
        position += tokens
    logits, _ = model.step(model.embed([3, 7]), np.arange(position, position + 2))
    for at, token in enumerate(session.ask([3, 7], count=4), position + 2):
        assert token == greedy(logits)
        np.testing.assert_array_equal(session.logits, logits)
        logits, _ = model.step(model.embed([token]), np.array([at]))
    other = compile_model(checkpoint, config, Limits(tokens=64, step=9), policy)
    less = len(machine.core.device) < len(other.core.device)
    assert less == (name != "fp8")  # at `tiny` a header of FP8 takes as many words as its codes
    assert machine.memories.model != other.memories.model  # its contexts cannot continue with other weights


GROUPS = {"quant_method": "gptq", "bits": 4, "group_size": 12}


@pytest.mark.parametrize(
    ("name", "case", "family", "cores", "changes"),
    [
        ("int4", "awq", "llama", 2, {}),
        ("int4", "gptq, 2 bits", "qwen2", 1, {}),
        ("int4", "gptq", "llama", 1, {"head_dim": 4, "quantization_config": GROUPS}),  # heads are padded to 8
        ("fp8", "fp8, blocks", "qwen2", 2, {"head_dim": 4}),
        ("fp8", "fp8, outputs", "llama", 1, {}),
    ],
)  # fmt: skip
def test_codes_of_a_checkpoint_are_kept(name, case, family, cores, changes, tmp_path, rng):
    """Sessions equal golden layers with the weights that the checkpoint defines, without a second rounding."""
    config, tensors, _ = quantised(case, rng, family, edges=False, changes=changes)
    checkpoint, policy = Checkpoint(write(tmp_path, config, tensors)), FullPolicy()
    machine = compile_model(checkpoint, TINY, Limits(tokens=64, step=9), policy, cores=cores, weights=name)
    model, session = golden_model(checkpoint, TINY, policy, 64), machine.session()
    rows = bf16.encode(rng.standard_normal((9, checkpoint.spec.text.hidden)))
    session.features(rows)
    model.step(rows, np.arange(9))
    logits, _ = model.step(model.embed([3, 7]), np.arange(9, 11))
    for at, token in enumerate(session.ask([3, 7], count=3), 11):
        assert token == greedy(logits)
        np.testing.assert_array_equal(session.logits, logits)
        logits, _ = model.step(model.embed([token]), np.array([at]))


@pytest.mark.parametrize(
    ("name", "case", "changes", "message"),
    [
        ("int4", "awq", {"quantization_config": CASES["awq"] | {"group_size": 2}},
         "layers.0.q: group must cover each block of 4 inputs, got 2 inputs"),
        ("fp8", "fp8, blocks", {"quantization_config": CASES["fp8, blocks"] | {"weight_block_size": [16, 2]}},
         "layers.0.q: group must cover each block of 4 inputs, got 2 inputs"),
        ("fp8", "fp8, blocks", {"head_dim": 6}, "layers.0.o: group must cover each block of 4 inputs, got 8 inputs"),
        ("int4", "gptq, order", {}, r"layers.0.self_attn.q_proj.g_idx must be the input divided by 16, got \d at \d"),
    ],
)  # fmt: skip
def test_codes_that_do_not_fit(name, case, changes, message, tmp_path, rng):
    """Codes are rounded again only in a format of another kind."""
    config, tensors, _ = quantised(case, rng, edges=False, changes=changes)
    checkpoint = Checkpoint(write(tmp_path, config, tensors))
    with pytest.raises(ValueError, match=message):
        compile_model(checkpoint, TINY, Limits(tokens=64), weights=name)
    compile_model(checkpoint, TINY, Limits(tokens=64), weights="mxfp4")


def test_the_command_line_knows_all_formats():
    assert models.WEIGHTS == WEIGHTS


def test_rejects_bad_input(tmp_path, rng):
    write_random(tmp_path, "llama", rng)
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(ValueError, match="weights must be one of bf16, fp8, int4, mxfp4, got 'int3'"):
        compile_model(checkpoint, TINY, Limits(tokens=64), weights="int3")
    with pytest.raises(ValueError, match="weight_bits must be 4 for weights in int4, got 16"):
        compile_model(checkpoint, TINY.replace(weight_bits=16), Limits(tokens=64), weights="int4")
