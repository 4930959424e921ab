"""The vision tower as the machine computes it, compared with transformers; skipped without the extra `capture`."""

import numpy as np
import pytest

from compiler.model_spec import ProjectorSpec, VisionSpec
from compiler.vision_shapes import vision_shape
from golden import bf16
from golden.patch_grid import PatchGrid
from golden.vision import VisionTower, patch_rows
from hw.config import Config

torch = pytest.importorskip("torch", reason="the optional extra `capture` is not installed")
transformers = pytest.importorskip("transformers", reason="the optional extra `capture` is not installed")

PROJECTOR = {"kind": "mlp2x", "inputs": 48, "hidden": 40, "outputs": 40, "activation": "gelu", "bias": True,
             "feature_layer": -2}  # fmt: skip
SIZES = {"hidden": 48, "ffn": 88, "layers": 4, "heads": 3, "patch_size": 4, "temporal_patch": 1, "norm": "layer_norm",
         "gated": False}  # fmt: skip
SPECS = {
    "clip": (
        VisionSpec(kind="clip", image_size=16, activation="quick_gelu", norm_epsilon=1e-5, class_token=True,
                   input_norm=True, patch_bias=False, **SIZES),
        ProjectorSpec(select="default", **PROJECTOR),
    ),
    "siglip": (
        VisionSpec(kind="siglip", image_size=18, activation="gelu_pytorch_tanh", norm_epsilon=1e-6, class_token=False,
                   input_norm=False, patch_bias=True, **{**SIZES, "heads": 4}),
        ProjectorSpec(select="full", **PROJECTOR),
    ),
}  # fmt: skip
EMBEDDING = {"patch": "embeddings.patch_embedding", "positions": "embeddings.position_embedding",
             "class_token": "embeddings.class_embedding", "input_norm": "pre_layrnorm"}  # fmt: skip
LAYER = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.out_proj",
         "up": "mlp.fc1", "down": "mlp.fc2", "attention_norm": "layer_norm1", "ffn_norm": "layer_norm2"}  # fmt: skip


def name_in_transformers(name):
    """Name of a weight in the tower (without its prefix) or in the projector of transformers."""
    base, kind = name.removesuffix("_bias"), "bias" if name.endswith("_bias") else "weight"
    owner, *middle, last = base.split(".")
    if owner == "projector":
        return f"{last}.{kind}"
    if middle:
        return f"encoder.layers.{middle[1]}.{LAYER[last]}.{kind}"
    return EMBEDDING[last] + ("" if last == "class_token" else f".{kind}")


def random_models(name, vision, projector, rng):
    """Tower and projector of transformers with random BF16 weights, and these weights by the names of this project."""
    config = {"hidden_size": vision.hidden, "intermediate_size": vision.ffn, "num_hidden_layers": vision.layers,
              "num_attention_heads": vision.heads, "patch_size": vision.patch_size, "image_size": vision.image_size,
              "hidden_act": vision.activation, "layer_norm_eps": vision.norm_epsilon}  # fmt: skip
    if name == "clip":
        config = transformers.CLIPVisionConfig(**config)
        tower = transformers.CLIPVisionModel(config)
    else:
        config = transformers.SiglipVisionConfig(**config, vision_use_head=False)
        tower = transformers.SiglipVisionModel(config)
    text = transformers.LlamaConfig(hidden_size=projector.outputs, num_attention_heads=4)
    llava = transformers.LlavaConfig(vision_config=config, text_config=text, projector_hidden_act=projector.activation)
    mlp = transformers.models.llava.modeling_llava.LlavaMultiModalProjector(llava)
    states = [(key.removeprefix("vision_model."), value) for key, value in tower.state_dict().items()]
    states += list(mlp.state_dict().items())
    tensors = {key: value for key, value in states if value.dtype == torch.float32}
    for key, tensor in tensors.items():
        scale = 1 / np.sqrt(tensor[0].numel()) if tensor.ndim > 1 and "position" not in key else 0.2
        value = rng.standard_normal(tuple(tensor.shape)) * scale + (tensor.ndim == 1 and "norm" in key)
        tensor.copy_(torch.from_numpy(bf16.decode(bf16.encode(value))))
    shape = vision_shape(Config.preset("small"), vision, projector)
    weights = {key: bf16.encode(tensors[name_in_transformers(key)].numpy()) for key in shape.weights()
               }  # fmt: skip
    return tower.eval(), mlp.eval(), shape, weights


def relative_error(got, want):
    return float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))


@pytest.mark.parametrize("name", SPECS)
def test_error_is_that_of_bfloat16(name, rng):
    """Features of layer -2, and tokens after the projector: the error against float32 is at most twice that of
    transformers with bfloat16."""
    vision, projector = SPECS[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        tower, mlp, shape, weights = random_models(name, vision, projector, rng)
        pixels = bf16.decode(bf16.encode(rng.standard_normal((3, vision.image_size, vision.image_size))))

        def run(dtype):
            image = torch.from_numpy(pixels)[None].to(dtype)
            hidden = tower.to(dtype)(image, output_hidden_states=True).hidden_states[projector.feature_layer][0]
            tokens = mlp.to(dtype)(hidden[1:] if projector.select == "default" else hidden)
            return [result.to(torch.float64).numpy() for result in (hidden, tokens)]

        exact, rounded = run(torch.float32), run(torch.bfloat16)
    torch.set_num_threads(threads)
    golden = VisionTower(shape, weights)
    features = golden.features(patch_rows(pixels, vision.patch_size))
    results = [bf16.decode(codes) for codes in (features, golden.project(features))]
    for stage, got, want, other in zip(("features", "tokens"), results, exact, rounded, strict=True):
        assert got.shape == want.shape
        error, error_bf16 = relative_error(got, want), relative_error(other, want)
        print(f"{name} {stage}: relative error {error:.2e}, of bfloat16 in transformers {error_bf16:.2e}")
        assert 0 < error <= 2 * error_bf16


@pytest.mark.parametrize(("rows", "columns", "window"), [(6, 10, 4), (8, 8, 4), (4, 6, 8), (2, 14, 6)])
def test_windows_and_positions_of_patches(rows, columns, window):
    """Order of merged tokens, windows, and rows and columns of patches equal those of transformers."""
    utils = pytest.importorskip("transformers.vision_utils")
    grid, sizes = PatchGrid(rows, columns, 2, window, 100.0), torch.tensor([[1, rows, columns]])
    index, ends = utils.get_vision_window_index(sizes, 2, 4 * window, 4)
    assert index.tolist() == grid.token_order.tolist()
    assert ends.diff().tolist() == list(grid.windows)
    positions = utils.get_vision_position_ids(sizes, 2).reshape(-1, 4, 2)[index].reshape(-1, 2)
    np.testing.assert_array_equal(positions.numpy(), np.stack(np.divmod(grid.order, columns), axis=1))
