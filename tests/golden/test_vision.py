"""Golden vision tower compared with a float64 implementation of the models, and its errors."""

from dataclasses import replace
from math import erf

import numpy as np
import pytest

from golden import bf16
from golden.patch_grid import PatchGrid
from golden.vision import ProjectorShape, VisionShape, VisionTower, pad, patch_rows

CLIP = VisionShape(
    patches=9, patch_elements=12, hidden=32, ffn=44, layers=3, heads=4, activation="quick_gelu", epsilon=1e-5,
    class_token=True, input_norm=True, patch_bias=False, projector=ProjectorShape(20, 24, drop_first=True), inputs=8,
)  # fmt: skip
SIGLIP = replace(
    CLIP, heads=3, hidden=30, activation="gelu_pytorch_tanh", epsilon=1e-6, class_token=False, input_norm=False,
    patch_bias=True, projector=ProjectorShape(20, 24, bias=False),
)  # fmt: skip
QWEN = replace(
    CLIP, patches=48, activation="silu", class_token=False, input_norm=False, norm="rms_norm", gated=True,
    projector=ProjectorShape(128, 24, merge=4, norm_epsilon=1e-5), grid=PatchGrid(6, 8, 2, 4, 100.0),
    full_attention_layers=(1,),
)  # fmt: skip
SHAPES = {"clip": CLIP, "siglip": SIGLIP, "no projector": replace(CLIP, projector=None), "qwen": QWEN}
GAIN = 0.7  # standard deviation of the weights times the root of their inputs


def weights(shape, rng):
    """Random weights whose products keep the scale of their inputs."""
    result = {}
    for name, size in shape.weights().items():
        value = rng.standard_normal(size) * (GAIN / size[-1] ** 0.5 if len(size) == 2 else 0.2)
        result[name] = bf16.encode(value + (name.endswith("norm")))
    return result


def gelu(x):
    return x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2


ACTIVATIONS = {
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu_pytorch_tanh": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "gelu": gelu,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def rotate(x, turns):
    """RoPE in half-split form: pairs are complex numbers, which are multiplied by `turns`."""
    pairs = (x[..., : x.shape[2] // 2] + 1j * x[..., x.shape[2] // 2 :]) * turns
    return np.concatenate([pairs.real, pairs.imag], axis=2)


def reference(shape, codes, patches):
    """Output of the tower and its projector in float64."""
    w = {name: bf16.decode(code) for name, code in codes.items()}

    def linear(name, x):
        return x @ w[name].T + w.get(f"{name}_bias", 0)

    def norm(name, x):
        if shape.norm == "rms_norm":
            return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + shape.epsilon) * w[name]
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + shape.epsilon) * w[name] + w[f"{name}_bias"]

    def split(x):
        return x.reshape(len(x), shape.heads, -1).swapaxes(0, 1)

    x = linear("vision.patch", bf16.decode(patches))
    if shape.class_token:
        x = np.concatenate([w["vision.class_token"][None], x])
    mask = [np.zeros((len(x), len(x)))] * shape.layers
    if shape.grid is None:
        x = x + w["vision.positions"]
    else:
        at = np.array([divmod(number, shape.grid.columns) for number in shape.order])
        quarter = shape.head // 4
        frequencies = shape.grid.theta ** (-np.arange(quarter) / quarter)
        turns = np.exp(1j * np.concatenate([at[:, :1] * frequencies, at[:, 1:] * frequencies], axis=1))
        window = at // shape.grid.window
        same = (window[:, None] == window).all(axis=2)
        mask = [np.where(same | (n in shape.full_attention_layers), 0, -np.inf) for n in range(shape.layers)]
    if shape.input_norm:
        x = norm("vision.input_norm", x)
    for number in range(shape.layers):
        at = f"vision.layers.{number}."
        normed = norm(f"{at}attention_norm", x)
        q, k, v = (split(linear(f"{at}{name}", normed)) for name in "qkv")
        if shape.grid is not None:
            q, k = (rotate(heads, turns) for heads in (q, k))
        scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(shape.head) + mask[number])
        context = (scores / scores.sum(axis=2, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape)
        x = x + linear(f"{at}o", context)
        normed = norm(f"{at}ffn_norm", x)
        middle = ACTIVATIONS[shape.activation](linear(f"{at}gate" if shape.gated else f"{at}up", normed))
        if shape.gated:
            middle = middle * linear(f"{at}up", normed)
        x = x + linear(f"{at}down", middle)
    if shape.projector is None:
        return x
    x = x[shape.first_output :]
    if shape.projector.norm_epsilon is not None:
        x = norm("projector.norm", x).reshape(shape.output_tokens, -1)
    middle = ACTIVATIONS[shape.projector.activation](linear("projector.linear_1", x))
    return linear("projector.linear_2", middle)


@pytest.mark.parametrize("name", SHAPES)
def test_tower_equals_float64(name, rng):
    """The relative root-mean-square error is at most 2**-9 for each stage: embedding, norm, attention, feed-forward
    layer, matrix of the projector. A rounding to BF16 changes a number by up to 2**-8, and by 2**-9.8 on average."""
    shape = SHAPES[name]
    codes, patches = weights(shape, rng), bf16.encode(rng.standard_normal((shape.patches, shape.patch_elements)))
    got = bf16.decode(VisionTower(shape, codes).run(patches))
    want = reference(shape, codes, patches)
    assert got.shape == want.shape == (shape.output_tokens, shape.outputs)
    projector = 0 if shape.projector is None else 2 + (shape.projector.norm_epsilon is not None)
    stages = 1 + shape.input_norm + 2 * shape.layers + projector
    error = np.sqrt(((got - want) ** 2).mean() / (want**2).mean())
    print(f"{name}: relative error {error:.2e}, bound {stages / 512:.2e}")
    assert 0 < error <= stages / 512


def test_patch_rows(rng):
    """A patch times the flattened weights is a convolution with a stride of its size; edges are dropped."""
    pixels, kernel = rng.standard_normal((3, 9, 7)), rng.standard_normal((5, 3, 2, 2))
    rows = bf16.decode(patch_rows(pixels, 2))
    assert rows.shape == (4 * 3, 12)
    got = rows @ kernel.reshape(5, -1).T
    for row in range(4):
        for column in range(3):
            window = bf16.decode(bf16.encode(pixels[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]))
            np.testing.assert_allclose(got[3 * row + column], (kernel * window).sum(axis=(1, 2, 3)))
    with pytest.raises(ValueError, match=r"pixels must have at least 8 rows and columns, got shape \(3, 9, 7\)"):
        patch_rows(pixels, 8)


def test_padding():
    assert pad(np.arange(1, 7)[None], 1, 2, 4).tolist() == [[1, 2, 3, 0, 4, 5, 6, 0]]
    assert pad(np.arange(1, 5), 0, 1, 4).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "hidden must be a multiple of heads = 5, got 32"),
        ({"epsilon": 0.0}, "epsilon must be positive, got 0.0"),
        ({"activation": "relu"}, "activation must be one of gelu, gelu_pytorch_tanh, quick_gelu, got 'relu'"),
        ({"patches": 1, "class_token": False}, "patches must be at least 2 if drop_first drops one of them, got 1"),
        ({"ffn": 0}, "ffn must be at least 1, got 0"),
    ],
)
def test_invalid_shapes_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CLIP, **changes)


def test_invalid_weights_raise(rng):
    codes = weights(CLIP, rng)
    convolution = codes["vision.patch"].reshape(32, 3, 2, 2)
    tower = VisionTower(CLIP, {**codes, "vision.patch": convolution})
    np.testing.assert_array_equal(tower.weights["vision.patch"], codes["vision.patch"])
    with pytest.raises(ValueError, match=r"weights\['vision.layers.1.up'\] must have shape \(44, 32\), got \(32, 44\)"):
        VisionTower(CLIP, {**codes, "vision.layers.1.up": codes["vision.layers.1.down"]})
    with pytest.raises(ValueError, match=r"weights must have 'vision.class_token', got no such name"):
        VisionTower(CLIP, {name: code for name, code in codes.items() if name != "vision.class_token"})
    with pytest.raises(ValueError, match=r"patches must have shape \(9, 12\), got \(9, 11\)"):
        tower.run(np.zeros((9, 11), np.uint16))
    with pytest.raises(ValueError, match="projector must be given, got None"):
        VisionTower(SHAPES["no projector"], codes).project(np.zeros((10, 32), np.uint16))
