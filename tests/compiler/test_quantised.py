"""Quantised checkpoints against exact products, with words that are packed here a second time."""

from math import ceil

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

from compiler.checkpoint import Checkpoint, CheckpointError
from compiler.random_model import random_tensors
from golden import bf16
from golden.weight_formats import FORMATS
from tests.compiler.checkpoints import config_of, shapes_of, write

AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]  # column of a group of eight in each nibble of a word
EDGES = [0.0, -0.0, 1.0, -448.0, 2.0**-9, 240.0]  # E4M3: zeros, largest, smallest


def packed(codes, bits, axis, order=None):
    """Words int32 of codes along an axis; `order`: code of the word in each place from bit 0."""
    rows = np.moveaxis(codes, axis, 0)
    chunks = rows.reshape(-1, 32 // bits, *rows.shape[1:])
    words = sum(
        chunks[:, code].astype(np.int64) << bits * place for place, code in enumerate(order or range(32 // bits))
    )
    return np.ascontiguousarray(np.moveaxis(words.astype(np.uint32).view(np.int32), 0, axis))


def rounded(exact):
    """BF16 numbers nearest to float64 numbers, ties to even; subnormal ones are not expected."""
    significand, exponent = np.frexp(exact)
    return np.ldexp(np.rint(significand * 256), exponent - 8)


def integers(method, rng, outputs, inputs, bits, group, order=None, edges=True):
    """Parts of a matrix, and its weights as BF16 numbers (outputs, inputs)."""
    groups = ceil(inputs / group)
    codes, zeros = rng.integers(1 << bits, size=(inputs, outputs)), rng.integers(1 << bits, size=(groups, outputs))
    scales = (rng.standard_normal((groups, outputs)) * 0.05).astype(np.float16)
    if edges:
        scales[0, :2] = [2.0**-24, 65504]  # smallest subnormal and largest number of F16
    g_idx = np.arange(inputs) // group if order is None else order
    want = rounded(scales.astype(np.float64)[g_idx] * (codes - zeros[g_idx])).T
    if method == "awq":
        parts = {"qweight": packed(codes, 4, 1, AWQ_COLUMNS), "qzeros": packed(zeros, 4, 1, AWQ_COLUMNS)}
    else:
        stored = (zeros - (method == "gptq")) % (1 << bits)
        parts = {"qweight": packed(codes, bits, 0), "qzeros": packed(stored, bits, 1)}
    if order is not None:
        parts["g_idx"] = g_idx.astype(np.int32)
    return parts | {"scales": scales}, want


def fp8(rng, outputs, inputs, scale, block=(16, 8)):
    """Parts of a matrix with a scale for each block, each output, or the whole, and its weights."""
    weight = rng.standard_normal((outputs, inputs)).astype(float8_e4m3fn)
    weight[0, : len(EDGES)] = EDGES
    shape = {"block": (ceil(outputs / block[0]), ceil(inputs / block[1])), "output": (outputs, 1), "matrix": (1,)}[
        scale
    ]
    scales = rng.uniform(0.001, 0.1, shape).astype(np.float32)
    if scale != "block":
        full = np.broadcast_to(scales, (outputs, inputs))
    else:
        full = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:outputs, :inputs]
    name = "weight_scale_inv" if scale == "block" else "weight_scale"
    return {"weight": weight, name: scales}, rounded(weight.astype(np.float64) * full)


CASES = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False},
    "gptq, order": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
    "gptq v2, 8 bits": {"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"},
    "gptq, 2 bits": {"quant_method": "gptq", "bits": 2, "group_size": 32},
    "fp8, blocks": {"quant_method": "fp8", "weight_block_size": [16, 8]},
    "fp8, outputs": {"quant_method": "fp8"},
    "fp8, matrix": {"quant_method": "fp8"},
}


def quantised(case, rng, family="llama", edges=True, changes=None):
    """Configuration and tensors of a model whose matrices are quantised, and their weights by name.

    `edges` : some scales are boundaries of F16 ; `changes` : of config.json
    """
    changes = {"quantization_config": CASES[case]} | (changes or {})
    config, quantisation = config_of(family, changes), changes["quantization_config"]
    shapes = shapes_of(config)
    tensors, want = {}, {}
    for name, tensor in random_tensors(shapes, rng).items():
        if "_proj.weight" not in name:
            tensors[name] = tensor
            continue
        outputs, inputs = shapes[name]
        if quantisation["quant_method"] == "fp8":
            parts, want[name] = fp8(
                rng, outputs, inputs, case.split()[1].rstrip("s"), quantisation.get("weight_block_size", (16, 8))
            )
            parts["input_scale"] = np.ones(1, np.float32)
        else:
            group = quantisation["group_size"] if quantisation["group_size"] > 0 else inputs
            order = rng.permutation(np.arange(inputs) // group) if quantisation.get("desc_act") else None
            method = quantisation.get("checkpoint_format", quantisation["quant_method"])
            parts, want[name] = integers(method, rng, outputs, inputs, quantisation.get("bits"), group, order, edges)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in parts.items()}
    return config, tensors, want


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_exact_products(case, rng, tmp_path):
    """All matrices of a model; embedding, norms and LM head are BF16."""
    config, tensors, want = quantised(case, rng)
    checkpoint = Checkpoint(write(tmp_path, config, tensors))
    assert want.keys() <= set(checkpoint.names) and not [name for name in checkpoint.names if "scale" in name]
    for key, entry in checkpoint.table.items():
        if entry.name in want:
            assert checkpoint.shape(entry.name) == entry.shape
            np.testing.assert_array_equal(bf16.decode(checkpoint.load(key)), want[entry.name], err_msg=key)
    assert checkpoint.layer_matrix(1, "down").dtype == np.uint16 and checkpoint.fingerprint()


KEPT = {  # format that holds the codes
    "awq": "int4", "gptq": "int4", "gptq, 2 bits": "int4", "fp8, blocks": "fp8", "fp8, outputs": "fp8",
    "fp8, matrix": "fp8",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_codes_stand_for_the_exact_products(case, rng, tmp_path):
    """A format that holds the codes decodes them to the weights of the checkpoint; the other formats do not."""
    config, tensors, want = quantised(case, rng)
    checkpoint = Checkpoint(write(tmp_path, config, tensors))
    for key, entry in checkpoint.table.items():
        if case == "gptq, order" and entry.name in want:
            with pytest.raises(ValueError, match=r"g_idx must be the input divided by 16, got \d+ at \d+"):
                checkpoint.packed(key, FORMATS["int4"])
            continue
        packed = {name: checkpoint.packed(key, form) for name, form in FORMATS.items()}
        kept = KEPT.get(case) if entry.name in want else None
        assert [name for name, each in packed.items() if each is not None] == ([kept] if kept else [])
        if kept:
            got = bf16.decode(FORMATS[kept].decode(packed[kept]))
            np.testing.assert_array_equal(got, want[entry.name], err_msg=key)


def test_subnormal_scale(rng, tmp_path):
    """The hardware takes subnormal scales as zeros, so that their codes cannot be kept."""
    config, tensors, _ = quantised("fp8, outputs", rng)
    scale = next(name for name in tensors if "layers.1.self_attn.v_proj.weight_scale" in name)
    tensors[scale][3] = 1e-40
    checkpoint = Checkpoint(write(tmp_path, config, tensors))
    assert checkpoint.packed("layers.0.v", FORMATS["fp8"]) is not None
    with pytest.raises(ValueError, match=rf"{scale} must be 0 or at least 2\*\*-126, got 9.99"):
        checkpoint.packed("layers.1.v", FORMATS["fp8"])


def test_rows_of_a_quantised_matrix(rng, tmp_path):
    """Query, key and value of a vision layer are rows of one FP8 matrix."""
    config = config_of("qwen2.5-vl", {"quantization_config": CASES["fp8, blocks"]})
    shapes = shapes_of(config)
    tensors, name = random_tensors(shapes, rng), "visual.blocks.0.attn.qkv"
    parts, want = fp8(rng, *shapes[f"{name}.weight"], "block")
    tensors |= {f"{name}.{part}": array for part, array in parts.items()}
    checkpoint = Checkpoint(write(tmp_path, config, tensors))
    np.testing.assert_array_equal(bf16.decode(checkpoint.load("vision.layers.0.k")), want[16:32])
    packed = checkpoint.packed("vision.layers.0.k", FORMATS["fp8"])
    np.testing.assert_array_equal(bf16.decode(FORMATS["fp8"].decode(packed)), want[16:32])


def test_not_a_number_stays_one(rng, tmp_path):
    config, name = config_of("llama", {"quantization_config": {"quant_method": "fp8"}}), "model.layers.0.mlp.up_proj"
    tensors = random_tensors(shapes_of(config), rng)
    weight = np.zeros(tensors[f"{name}.weight"].shape, float8_e4m3fn)
    weight.view(np.uint8)[3, 5] = 0xFF
    parts = {f"{name}.weight": weight, f"{name}.weight_scale": np.ones((), np.float32)}
    write(tmp_path, config, tensors | parts)
    got = Checkpoint(tmp_path).layer_matrix(0, "up").view(bfloat16)
    assert np.argwhere(np.isnan(got.astype(np.float32))).tolist() == [[3, 5]]


PROJECTION = "model.layers.1.self_attn.o_proj"
DAMAGED = [
    ("awq", "scales", None, f"tensor {PROJECTION}.scales is missing"),
    ("awq", "qzeros", np.zeros((2, 3), np.int32), rf"{PROJECTION}.qzeros must have shape \(2, 4\), got \(2, 3\)"),
    ("gptq", "scales", np.zeros((2, 32), np.float32), f"{PROJECTION}.scales must be one of F16, BF16, got F32"),
    ("gptq", "qweight", np.zeros((3, 32), np.int32), rf"{PROJECTION}.qzeros must have shape \(2, 4\)|must have shape"),
    ("fp8, blocks", "weight_scale_inv", None, f"tensor {PROJECTION}.weight_scale_inv is missing"),
    (
        "fp8, outputs", "weight_scale", np.zeros((2, 3), np.float32),
        rf"{PROJECTION}.weight_scale must have shape \(\) or \(1,\) or \(32,\) or \(32, 1\), got \(2, 3\)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "part", "array", "message"), DAMAGED)
def test_damaged_matrix(case, part, array, message, rng, tmp_path):
    config, tensors, _ = quantised(case, rng)
    tensors.pop(f"{PROJECTION}.{part}")
    if array is not None:
        tensors[f"{PROJECTION}.{part}"] = array
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(write(tmp_path, config, tensors))


def test_group_out_of_range(rng, tmp_path):
    config, tensors, _ = quantised("gptq, order", rng)
    tensors[f"{PROJECTION}.g_idx"][7] = 2
    checkpoint = Checkpoint(write(tmp_path, config, tensors))
    with pytest.raises(ValueError, match=f"{PROJECTION}.g_idx must be between 0 and 1, got 2"):
        checkpoint.layer_matrix(1, "o")
