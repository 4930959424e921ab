"""Sizes of a vision tower on a core, from the description of a model."""

from collections.abc import Mapping, Sequence

from compiler.model_spec import ProjectorSpec, VisionSpec
from golden import vector_kernels
from golden.patch_grid import PatchGrid
from golden.vision import ProjectorShape, VisionShape
from hw.config import Config
from util import checks

DEFAULT_TOKENS = 8  # rows, and columns, of a picture in merged tokens, if neither the model nor the user has a size
Supported = Mapping[str, Sequence[object]]  # valid values by property
LLAVA: Supported = {
    "norm": ("layer_norm",), "gated": (False,), "rope_theta": (None,), "window_size": (None,), "spatial_merge": (1,),
    "temporal_patch": (1,), "activation": vector_kernels.ACTIVATIONS,
}  # fmt: skip
QWEN: Supported = {"norm": ("rms_norm",), "gated": (True,), "activation": ("silu",), "class_token": (False,),
        "input_norm": (False,)}  # fmt: skip
SUPPORTED: Mapping[str, Supported] = {"clip": LLAVA, "siglip": LLAVA, "qwen2.5-vl": QWEN}


def picture_size(vision: VisionSpec, height: int = 0, width: int = 0) -> tuple[int, int]:
    """Rows and columns of the pictures of a tower in pixels; 0: those of 8 tokens.

    `ValueError` if the tower has an image size and another one is requested, or a side does not hold whole tokens.
    """
    token, sides = vision.patch_size * vision.spatial_merge, []
    for name, side in (("height", height), ("width", width)):
        if vision.image_size is not None and side not in (0, vision.image_size):
            raise ValueError(f"{name} must be the image_size {vision.image_size} of the tower, got {side}")
        if vision.image_size is None and checks.integer(name, side, 0) % token:
            raise ValueError(f"{name} must be a multiple of the {token} pixels of a token, got {side}")
        sides.append(vision.image_size or side or DEFAULT_TOKENS * token)
    return sides[0], sides[1]


def vision_shape(
    config: Config,
    vision: VisionSpec,
    projector: ProjectorSpec | None = None,
    size: tuple[int, int] | None = None,
    pooled: int = 0,
) -> VisionShape:
    """Sizes of a tower with its projector on a core; without a projector, all layers.

    `size` : of the pictures in pixels, see `picture_size`
    `pooled` : rows, and columns, of the tokens of a picture after average pooling; 0: no pooling
    `ValueError` names a property that the compiler does not support.
    """
    merge = vision.spatial_merge
    supported: list[tuple[str, VisionSpec | ProjectorSpec, str, Sequence[object]]] = [
        ("vision", vision, name, values) for name, values in SUPPORTED[vision.kind].items()
    ]
    if projector is not None:
        supported += [
            ("projector", projector, "kind", ("mlp2x",) if vision.rope_theta is None else ("patch_merger",)),
            ("projector", projector, "activation", vector_kernels.ACTIVATIONS),
            ("projector", projector, "inputs", (vision.hidden * merge**2,)),
        ]
    for owner, spec, name, values in supported:
        if (value := getattr(spec, name)) not in values:
            raise ValueError(f"{name} of {owner} must be one of {', '.join(map(str, values))}, got {value}")
    side = 0 if vision.image_size is None else vision.image_size // vision.patch_size
    if vision.image_size is None and pooled:
        raise ValueError(f"pooled must be 0 for a tower of kind {vision.kind}, got {pooled}")
    if checks.integer("pooled", pooled, 0) > side:
        raise ValueError(f"pooled must be at most {side}, the rows of patches of a picture, got {pooled}")
    grid = None
    if vision.rope_theta is not None:
        if vision.image_size is not None:
            raise ValueError(f"image_size of vision must be None for a tower with RoPE, got {vision.image_size}")
        rows, columns = (side // vision.patch_size for side in size or picture_size(vision))
        grid = PatchGrid(rows, columns, merge, (vision.window_size or 0) // vision.patch_size, vision.rope_theta)
    elif vision.image_size is None:
        raise ValueError("image_size of vision must be a number of pixels, got None")
    return VisionShape(
        patches=grid.rows * grid.columns if grid else vision.positions - vision.class_token,
        patch_elements=vision.channels * vision.temporal_patch * vision.patch_size**2,
        hidden=vision.hidden, ffn=vision.ffn,
        layers=vision.layers if projector is None else projector.feature_layer % (vision.layers + 1),
        heads=vision.heads, activation=vision.activation, epsilon=vision.norm_epsilon, class_token=vision.class_token,
        input_norm=vision.input_norm, patch_bias=vision.patch_bias,
        projector=None if projector is None else ProjectorShape(
            projector.hidden, projector.outputs, projector.activation, projector.bias, projector.select == "default",
            merge**2, projector.norm_epsilon,
        ),
        inputs=config.dpe_inputs, align_bits=config.align_bits, norm=vision.norm, gated=vision.gated, grid=grid,
        full_attention_layers=vision.full_attention_layers, pooled=pooled,
    )  # fmt: skip
