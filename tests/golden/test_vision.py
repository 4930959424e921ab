"""Golden vision tower compared with a float64 implementation of the models, and its errors."""

from dataclasses import replace
from math import erf

import numpy as np
import pytest

from golden import bf16
from golden.patch_grid import PatchGrid
from golden.vision import ProjectorShape, VisionShape, VisionTower, pad, patch_rows, pooling_members

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
SHAPES = {
    "clip": CLIP, "siglip": SIGLIP, "no projector": replace(CLIP, projector=None), "qwen": QWEN,
    "clip, pooled with its class token": replace(CLIP, patches=36, pooled=3, projector=ProjectorShape(20, 24)),
    "siglip, pooled with common patches": replace(SIGLIP, pooled=2),
}  # fmt: skip
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
    if shape.pooled:
        x = averages(x, shape)
    if shape.projector is None:
        return x
    x = x if shape.pooled else x[shape.first_output :]
    if shape.projector.norm_epsilon is not None:
        x = norm("projector.norm", x).reshape(shape.output_tokens, -1)
    middle = ACTIVATIONS[shape.projector.activation](linear("projector.linear_1", x))
    return linear("projector.linear_2", middle)


def averages(x, shape):
    """Class token, unless the projector drops it, and float64 averages of rectangles of patches."""
    first, side = int(shape.class_token), round(shape.patches**0.5)
    image, rows = x[first:].reshape(side, side, -1), [x[:first]]
    if shape.projector is not None and shape.projector.drop_first:
        rows = []
    edges = [(int(np.floor(i * side / shape.pooled)), int(np.ceil((i + 1) * side / shape.pooled)))
             for i in range(shape.pooled)]  # fmt: skip
    rows += [image[top:bottom, left:right].mean(axis=(0, 1))[None] for top, bottom in edges for left, right in edges]
    return np.concatenate(rows)


POOLED = {  # tower and core: VideoLLM-Online, 384 / 16 and 3 x 3; SigLIP with 27 x 27 patches; common patches
    "clip, 24 to 3": replace(CLIP, patches=576, pooled=3, projector=None, inputs=64),
    "siglip, 27 to 3": replace(SIGLIP, patches=729, pooled=3, inputs=16),
    "clip without its class token, 5 to 3": replace(CLIP, patches=25, pooled=3),
    "siglip, 4 to 4": replace(SIGLIP, patches=16, pooled=4),
    "clip, 3 to 1, 16 alignment bits": replace(CLIP, pooled=1, projector=None, align_bits=16),
}


@pytest.mark.parametrize("name", POOLED)
def test_average_equals_float64(name, rng):
    """Every element is within the bound of `golden.vision`; a class token, and averages of one patch, are exact."""
    shape = POOLED[name]
    x = rng.standard_normal((shape.tokens, shape.hidden)) * np.exp(rng.uniform(-6, 6, (shape.tokens, 1)))
    codes = {key: np.zeros(size, np.uint16) for key, size in shape.weights().items()}
    features = bf16.encode(x)
    exact = bf16.decode(features)
    got, want = bf16.decode(VisionTower(shape, codes).pool(features)), averages(exact, shape)
    assert got.shape == want.shape == (shape.output_tokens, shape.hidden)
    tiles, count = -(-shape.tokens // shape.inputs), shape.pooling.sum(axis=1)[:, None]
    largest = np.stack([abs(exact[members]).max(axis=0) for members in shape.pooling])
    aligned = tiles * (shape.inputs - 1) * 2.0 ** (2 - shape.align_bits)
    bound = abs(want) / 256 + 1.01 * (aligned + (2 * tiles - 1) * 2**-24 * count) * largest / count + 2**-126
    error = abs(got - want)
    assert (error <= bound).all()
    print(f"{name}: largest error {(error / bound).max():.2f} of the bound")
    np.testing.assert_array_equal(got[count[:, 0] == 1], want[count[:, 0] == 1])
    assert (count == 1).any() or error.any()


def test_members_of_averages():
    """Averages of 5 patches in 3: patches 0 and 1, 1 to 3, and 3 and 4, in both axes."""
    members = pooling_members(5, 3).reshape(3, 3, 5, 5)
    assert members[0, 0].nonzero()[0].tolist() == [0, 0, 1, 1]
    assert np.argwhere(members[1, 2]).tolist() == [[1, 3], [1, 4], [2, 3], [2, 4], [3, 3], [3, 4]]
    assert members.sum() == (2 + 3 + 2) ** 2
    for side, pooled, message in (
        (5, 6, "pooled must be between 1 and 5, got 6"),
        (5, 0, "pooled must be between 1 and 5, got 0"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            pooling_members(side, pooled)


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
    stages = 1 + shape.input_norm + 2 * shape.layers + projector + bool(shape.pooled)
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
        ({"pooled": 4}, "pooled must be between 0 and 3, got 4"),
        ({"patches": 8, "pooled": 2}, "patches must be a square number for pooling, got 8"),
        (
            {"pooled": 2, "projector": ProjectorShape(20, 24, merge=2)},
            "pooled must be 0 with a grid, or a merge or norm in the projector, got 2",
        ),
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
    with pytest.raises(ValueError, match="projector must be a ProjectorShape, got None"):
        VisionTower(SHAPES["no projector"], codes).project(np.zeros((10, 32), np.uint16))
