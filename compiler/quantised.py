"""Matrices of quantised Hugging Face checkpoints as BF16 bit patterns, or as codes: AWQ, GPTQ and FP8.

========  ===========================================================================  ============================
method    tensors of a matrix (outputs, inputs)                                        weight
========  ===========================================================================  ============================
awq       `qweight` int32 (inputs, outputs / 8), `qzeros` int32 (groups, outputs / 8)  scale (code - zero)
          `scales` (groups, outputs)
gptq      `qweight` int32 (inputs b / 32, outputs), `qzeros` int32 (groups, outputs    scale (code - zero), where
          b / 32), `scales` (groups, outputs); optional `g_idx` int32 (inputs,), the   zero is one more than stored,
          group of each input. b: 2, 4 or 8 bits                                       modulo 2^b; in format
                                                                                       `gptq_v2` it is the stored one
fp8       `weight` E4M3 (outputs, inputs), `weight_scale_inv` with a scale for each    scale code
          block, or `weight_scale` with one for the matrix or for each output
========  ===========================================================================  ============================

Sources: AutoAWQ (layout `gemm`, whose words hold the outputs 0, 2, 4, 6, 1, 3, 5, 7 from bit 0), GPTQModel, and the
integration of fine-grained FP8 in transformers. Libraries round products to F16 or FP32 first. Here the exact product
is rounded once to BF16, to nearest even, because the machine computes with BF16 weights. The codes of AWQ, of GPTQ with
2 or 4 bits and of FP8 are also those of `golden.weight_formats`, which defines the same products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from golden import bf16
from golden.weight_formats import PackedWeights
from util import checks

METHODS = ("awq", "gptq", "fp8")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # outputs of a word, from bit 0
GROUP_SCALES, FP8_SCALES = ("F16", "BF16"), ("F16", "BF16", "F32")
UNUSED = ("input_scale", "activation_scale")  # of activations, which the machine does not quantise

Read = Callable[[str], np.ndarray]  # stored values of a tensor


class Stored(Protocol):
    """Dtype, as safetensors names it, and shape of a tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Quantisation:
    """How the matrices of a checkpoint are stored.

    method : of `METHODS` ; bits : of a code ; group : inputs that share a scale, None: all ; zero_offset : of stored
    zeros ; block : (outputs, inputs) that share a scale of FP8, None: all inputs
    """

    method: str
    bits: int
    group: int | None = None
    zero_offset: int = 0
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class QuantisedMatrix:
    """A matrix of `shape` (outputs, inputs) in several tensors, by the last part of their names."""

    quantisation: Quantisation
    shape: tuple[int, ...]
    parts: Mapping[str, str]

    @property
    def dtype(self) -> str:
        """Dtype of `codes` as safetensors names it."""
        return "BF16"

    @property
    def format(self) -> str | None:
        """Format of `golden.weight_formats` that has these codes; None: there is none."""
        if self.quantisation.method == "fp8":
            return "fp8"
        return "int4" if self.quantisation.bits <= 4 else None

    def codes(self, read: Read) -> np.ndarray:
        """BF16 bit patterns, uint16 (outputs, inputs)."""
        decode = _decode_fp8 if self.quantisation.method == "fp8" else _decode_groups
        return decode(self, {part: read(name) for part, name in self.parts.items()})

    def packed(self, read: Read) -> PackedWeights:
        """Codes and scales in the format `format`.

        Raises ValueError if groups are not of neighbouring inputs, or if a scale is subnormal in FP32.
        """
        pack = _pack_fp8 if self.quantisation.method == "fp8" else _pack_groups
        return pack(self, {part: read(name) for part, name in self.parts.items()})


def quantisation_of(config: Mapping[str, Any]) -> Quantisation | None:
    """Quantisation that a config.json describes; None: there is none.

    Raises ValueError for a method or a layout that is not supported.
    """
    name = "quantization_config in config.json"
    section = config.get("quantization_config")
    if section is None:
        return None
    if not isinstance(section, dict):
        raise ValueError(f"{name} must be an object, got {section!r:.60}")
    method = checks.one_of(f"quant_method of {name}", str(section.get("quant_method")), METHODS)
    if method == "fp8":
        block = section.get("weight_block_size")
        if block is not None:
            block = tuple(checks.integers(f"weight_block_size of {name}", block, 2, low=1).tolist())
        return Quantisation("fp8", 8, block=block)
    sizes = {"awq": (4,), "gptq": (2, 4, 8)}[method]
    bits = section.get("bits", section.get("w_bit"))
    if bits not in sizes:
        raise ValueError(f"bits of {name} must be one of {', '.join(map(str, sizes))} for {method}, got {bits!r}")
    group = section.get("group_size", section.get("q_group_size", 128))
    group = None if group == -1 else checks.integer(f"group_size of {name}", group, 1)
    if method == "awq":
        checks.one_of(f"version of {name}", str(section.get("version", "gemm")).lower(), ("gemm",))
        return Quantisation("awq", bits, group)
    form = checks.one_of(f"checkpoint_format of {name}", section.get("checkpoint_format", "gptq"), ("gptq", "gptq_v2"))
    return Quantisation("gptq", bits, group, zero_offset=form == "gptq")


def quantised_matrices(quantisation: Quantisation, stored: Mapping[str, Stored]) -> dict[str, QuantisedMatrix]:
    """The quantised matrices among the tensors of a checkpoint, by the name that the matrix would have in BF16.

    Raises ValueError if a part is missing or has another dtype or shape than the others need.
    """
    first = "weight" if quantisation.method == "fp8" else "qweight"
    matrices = {}
    for name, tensor in stored.items():
        base, _, part = name.rpartition(".")
        if part == first and (part == "qweight" or tensor.dtype == "F8_E4M3"):
            check = _check_fp8 if quantisation.method == "fp8" else _check_groups
            matrices[f"{base}.weight"] = check(quantisation, base, stored)
    return matrices


def unused_parts(stored: Mapping[str, Stored]) -> list[str]:
    """Names of tensors that belong to quantised activations."""
    return [name for name in stored if name.rpartition(".")[2] in UNUSED]


def _part(stored: Mapping[str, Stored], base: str, part: str, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> str:
    """Name of a part; ValueError unless it exists with one of the dtypes and shapes (none: any)."""
    name = f"{base}.{part}"
    if name not in stored:
        raise ValueError(f"tensor {name} is missing")
    tensor = stored[name]
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} must be one of {', '.join(dtypes)}, got {tensor.dtype}")
    if shapes and tensor.shape not in shapes:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, shapes))}, got {tensor.shape}")
    return name


def _check_groups(quantisation: Quantisation, base: str, stored: Mapping[str, Stored]) -> QuantisedMatrix:
    per_word = 32 // quantisation.bits
    weight = _part(stored, base, "qweight", ("I32",))
    if len(stored[weight].shape) != 2:
        raise ValueError(f"{weight} must have two dimensions, got shape {stored[weight].shape}")
    rows, columns = stored[weight].shape
    by_outputs = quantisation.method == "awq"
    inputs, outputs = (rows, columns * per_word) if by_outputs else (rows * per_word, columns)
    groups = ceil(inputs / (quantisation.group or inputs))
    parts = {
        "qweight": weight,
        "qzeros": _part(stored, base, "qzeros", ("I32",), (groups, outputs // per_word)),
        "scales": _part(stored, base, "scales", GROUP_SCALES, (groups, outputs)),
    }
    if quantisation.method == "gptq" and f"{base}.g_idx" in stored:
        parts["g_idx"] = _part(stored, base, "g_idx", ("I32",), (inputs,))
    return QuantisedMatrix(quantisation, (outputs, inputs), parts)


def _check_fp8(quantisation: Quantisation, base: str, stored: Mapping[str, Stored]) -> QuantisedMatrix:
    weight, block = f"{base}.weight", quantisation.block
    if len(stored[weight].shape) != 2:
        raise ValueError(f"{weight} must have two dimensions, got shape {stored[weight].shape}")
    outputs, inputs = shape = stored[weight].shape
    if block:
        scale = _part(stored, base, "weight_scale_inv", FP8_SCALES, (ceil(outputs / block[0]), ceil(inputs / block[1])))
    else:
        scale = _part(stored, base, "weight_scale", FP8_SCALES, (), (1,), (outputs,), (outputs, 1))
    return QuantisedMatrix(quantisation, shape, {"weight": weight, "scale": scale})


def _unpack(words: np.ndarray, bits: int, axis: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Codes uint8 in the words along an axis, from bit 0; `order` says which element of the word each one is."""
    words = np.moveaxis(words, axis, -1).view(np.uint32)
    codes = np.empty((*words.shape, 32 // bits), np.uint8)
    for slot, element in enumerate(order or range(32 // bits)):
        codes[..., element] = words >> np.uint32(bits * slot) & np.uint32((1 << bits) - 1)
    return np.moveaxis(codes.reshape(*words.shape[:-1], -1), -1, axis)


def _codes_and_zeros(matrix: QuantisedMatrix, parts: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Codes uint8 (inputs, outputs) and zero points int16 (groups, outputs) of AWQ and GPTQ."""
    q = matrix.quantisation
    awq = q.method == "awq"
    codes = _unpack(parts["qweight"], q.bits, axis=1 if awq else 0, order=AWQ_ORDER if awq else None)
    zeros = _unpack(parts["qzeros"], q.bits, axis=1, order=AWQ_ORDER if awq else None)
    return codes, (zeros.astype(np.int16) + q.zero_offset) & ((1 << q.bits) - 1)


def _decode_groups(matrix: QuantisedMatrix, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    q, (outputs, inputs) = matrix.quantisation, matrix.shape
    codes, zeros = _codes_and_zeros(matrix, parts)
    scales = parts["scales"].astype(np.float32)
    groups = parts.get("g_idx", np.arange(inputs) // (q.group or inputs))
    if (bad := groups[(groups < 0) | (groups >= len(scales))]).size:
        raise ValueError(f"{matrix.parts['g_idx']} must be between 0 and {len(scales) - 1}, got {bad[0]}")
    result = np.empty((outputs, inputs), np.uint16)
    for number, (zero, scale) in enumerate(zip(zeros, scales, strict=True)):
        own = np.flatnonzero(groups == number)
        exact = (codes[own].astype(np.int16) - zero).astype(np.float32) * scale  # 9 and 11 significant bits
        result[:, own] = exact.astype(ml_dtypes.bfloat16).view(np.uint16).T
    return result


def _decode_fp8(matrix: QuantisedMatrix, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    weight, block = parts["weight"].view(ml_dtypes.float8_e4m3fn), matrix.quantisation.block
    scale = parts["scale"].astype(np.float64)
    result = np.empty(matrix.shape, np.uint16)
    height = block[0] if block else 128  # outputs at a time, so that float64 needs little memory
    for number, row in enumerate(range(0, len(weight), height)):
        values = weight[row : row + height].astype(np.float64)
        if block:
            values *= np.repeat(scale[number], block[1])[: values.shape[1]]
        else:
            values *= scale.reshape(-1, 1)[row : row + height] if scale.size > 1 else scale.reshape(())
        result[row : row + height] = bf16.encode(values)
    return result


def _scale_bits(matrix: QuantisedMatrix, part: str, scales: np.ndarray) -> np.ndarray:
    """FP32 bit patterns of scales, uint32 in their shape; ValueError for subnormal ones."""
    scales = scales.astype(np.float32)
    bits = scales.view(np.uint32)
    if np.any(subnormal := (bits & 0x7FFFFFFF != 0) & (bits >> 23 & 255 == 0)):
        raise ValueError(f"{matrix.parts[part]} must be 0 or at least 2**-126, got {scales[subnormal][0]}")
    return bits


def _pack_groups(matrix: QuantisedMatrix, parts: Mapping[str, np.ndarray]) -> PackedWeights:
    inputs = matrix.shape[1]
    group = matrix.quantisation.group or inputs
    order = np.arange(inputs) // group
    if np.any(wrong := parts.get("g_idx", order) != order):
        at = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"{matrix.parts['g_idx']} must be the input divided by {group}, got {parts['g_idx'][at]} at {at}"
        )
    codes, zeros = _codes_and_zeros(matrix, parts)
    entries = _scale_bits(matrix, "scales", parts["scales"]) | zeros.astype(np.uint32)
    return PackedWeights(np.ascontiguousarray(codes.T), np.ascontiguousarray(entries.T), group)


def _pack_fp8(matrix: QuantisedMatrix, parts: Mapping[str, np.ndarray]) -> PackedWeights:
    (outputs, inputs), block = matrix.shape, matrix.quantisation.block
    bits = _scale_bits(matrix, "scale", parts["scale"])
    if block:
        entries, group = np.repeat(bits, block[0], axis=0)[:outputs], block[1]
    else:
        entries, group = np.broadcast_to(bits.reshape(-1, 1), (outputs, 1)), inputs
    return PackedWeights(parts["weight"].view(np.uint8), entries, group)
