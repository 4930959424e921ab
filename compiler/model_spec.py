"""Description of a model that does not depend on the format of its checkpoint: text decoder, vision tower, projector.

`compiler.model_config` derives it from the config.json of a Hugging Face checkpoint. Sizes are in elements.
"""

from dataclasses import dataclass

import numpy as np

from golden import rope
from util import checks

FAMILIES = ("llama", "qwen2", "qwen2.5-vl", "llava")
VISION_KINDS = ("clip", "siglip", "qwen2.5-vl")
PROJECTOR_KINDS = ("mlp2x", "patch_merger")
ROPE_SCALINGS = ("default", "linear", "llama3")
ACTIVATIONS = ("gelu", "gelu_pytorch_tanh", "quick_gelu", "silu")
NORMS = ("layer_norm", "rms_norm")
SELECT_STRATEGIES = ("default", "full")


def _sizes(spec: object, *names: str, low: int = 1) -> None:
    for name in names:
        checks.integer(name, getattr(spec, name), low)


def _positive(spec: object, *names: str) -> None:
    for name in names:
        if not checks.real(name, getattr(spec, name)) > 0:
            raise ValueError(f"{name} must be positive, got {getattr(spec, name)}")


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding of the text decoder, half-split form.

    head_dim               elements of a head, even; all of them are rotated
    theta                  base of the frequencies
    scaling                default: none; linear: all frequencies are divided by `factor`; llama3: low frequencies only
    factor                 divisor of the frequencies (linear, llama3)
    low_frequency_factor   turns in `original_positions` up to which a frequency is divided by all of `factor` (llama3)
    high_frequency_factor  turns in `original_positions` from which a frequency does not change (llama3)
    original_positions     positions of the training before the scaling (llama3)
    sections               M-RoPE: pairs of each position axis (time, height, width), in layout `chunked` of
                           `golden.rope`; None: one axis
    """

    head_dim: int
    theta: float
    scaling: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192
    sections: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if checks.integer("head_dim", self.head_dim, 2) % 2:
            raise ValueError(f"head_dim must be even, got {self.head_dim}")
        checks.one_of("scaling", self.scaling, ROPE_SCALINGS)
        _positive(self, "theta", "factor", "low_frequency_factor", "high_frequency_factor")
        _sizes(self, "original_positions")
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor must be above low_frequency_factor = {self.low_frequency_factor}, "
                f"got {self.high_frequency_factor}"
            )
        if self.sections is not None:
            rope.pair_axes(self.head_dim, self.sections)

    def frequencies(self) -> np.ndarray:
        """Angle per position of each pair in radians, float64 (head_dim / 2,)."""
        base = rope.frequencies(self.head_dim, self.theta)
        if self.scaling == "default":
            return base
        if self.scaling == "linear":
            return base / self.factor
        turns = self.original_positions * base / (2 * np.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return base * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class TextSpec:
    """Pre-norm decoder with RMSNorm, grouped-query attention and a SwiGLU block.

    hidden, ffn        width of the hidden states and of the feed-forward layer
    layers             number of decoder layers
    q_heads, kv_heads  query and KV heads
    head_dim           elements of a head
    vocabulary         rows of the embedding
    norm_epsilon       term that RMSNorm adds to the mean of squares
    qkv_bias           query, key and value projections have a bias
    tied_embeddings    the LM head is the embedding
    rope               rotary position embedding
    max_positions      positions that the model supports
    """

    hidden: int
    ffn: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    norm_epsilon: float
    qkv_bias: bool
    tied_embeddings: bool
    rope: RopeSpec
    max_positions: int

    def __post_init__(self) -> None:
        sizes = ("hidden", "ffn", "layers", "q_heads", "kv_heads", "head_dim", "vocabulary", "max_positions")
        _sizes(self, *sizes)
        _positive(self, "norm_epsilon")
        for name in ("qkv_bias", "tied_embeddings"):
            checks.flag(name, getattr(self, name))
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {self.kv_heads}, got {self.q_heads}")
        if self.rope.head_dim != self.head_dim:
            raise ValueError(f"rope.head_dim must be head_dim = {self.head_dim}, got {self.rope.head_dim}")


@dataclass(frozen=True)
class VisionSpec:
    """Vision tower: patch embedding and transformer layers with bidirectional attention.

    All matrices of the layers have a bias.

    kind                   clip, siglip, qwen2.5-vl
    hidden, ffn            width of the hidden states and of the feed-forward layer
    layers, heads          transformer layers, attention heads
    patch_size             side of a patch in pixels
    temporal_patch         frames of a patch
    image_size             side of the input in pixels; None: any multiple of the patches of a merged token
    activation             activation function of the feed-forward layer
    norm, norm_epsilon     kind of the norms; layer norms have a bias
    class_token            a class token precedes the patches
    input_norm             a norm follows the embedding
    patch_bias             the patch embedding has a bias
    gated                  the feed-forward layer has a gate (three matrices)
    rope_theta             base of the two-dimensional RoPE of patches; None: table of position embeddings
    window_size            side of an attention window in pixels; None: all layers have full attention
    full_attention_layers  layers without windows
    spatial_merge          side of the square of patches that becomes one token
    tokens_per_second      temporal positions of the text decoder per second of video; None: the model has no such axis
    channels               colours of a pixel
    """

    kind: str
    hidden: int
    ffn: int
    layers: int
    heads: int
    patch_size: int
    temporal_patch: int
    image_size: int | None
    activation: str
    norm: str
    norm_epsilon: float
    class_token: bool
    input_norm: bool
    patch_bias: bool
    gated: bool
    rope_theta: float | None = None
    window_size: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    spatial_merge: int = 1
    tokens_per_second: int | None = None
    channels: int = 3

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, VISION_KINDS)
        checks.one_of("activation", self.activation, ACTIVATIONS)
        checks.one_of("norm", self.norm, NORMS)
        _sizes(self, "hidden", "ffn", "layers", "heads", "patch_size", "temporal_patch", "spatial_merge", "channels")
        _positive(self, "norm_epsilon")
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be a multiple of heads = {self.heads}, got {self.hidden}")
        if self.image_size is not None:
            checks.integer("image_size", self.image_size, self.patch_size)
        if self.rope_theta is not None:
            _positive(self, "rope_theta")
            if self.head_dim % 4:
                raise ValueError(f"hidden / heads must be a multiple of 4, got {self.head_dim}")
        if self.tokens_per_second is not None:
            _sizes(self, "tokens_per_second")
        merged = self.patch_size * self.spatial_merge
        if self.window_size is not None and checks.integer("window_size", self.window_size, merged) % merged:
            raise ValueError(f"window_size must be a multiple of {merged} pixels, got {self.window_size}")
        checks.integers("full_attention_layers", self.full_attention_layers, None, low=0, high=self.layers - 1)

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    @property
    def positions(self) -> int:
        """Rows of the table of position embeddings; 0: the model has RoPE instead."""
        if self.image_size is None:
            return 0
        return (self.image_size // self.patch_size) ** 2 + self.class_token

    def has_window(self, layer: int) -> bool:
        """Whether the attention of a layer is limited to windows."""
        return self.window_size is not None and layer not in self.full_attention_layers


@dataclass(frozen=True)
class ProjectorSpec:
    """Two matrices with an activation between them that turn vision features into hidden states of the decoder.

    kind           mlp2x: one token per patch (LLaVA); patch_merger: a norm, then one token per square of patches
    inputs         elements of a token before the first matrix
    hidden         outputs of the first matrix
    outputs        outputs of the second matrix, the hidden size of the text decoder
    activation     activation function
    bias           both matrices have a bias
    feature_layer  hidden state of the vision tower that is the input: n >= 0 is the output of n layers, -1 that of all
                   layers, -2 that of all but the last
    select         default: the first token of the vision tower is dropped; full: all tokens are used
    norm_epsilon   term of the RMSNorm before the first matrix (patch_merger); None: no norm
    """

    kind: str
    inputs: int
    hidden: int
    outputs: int
    activation: str
    bias: bool
    feature_layer: int
    select: str
    norm_epsilon: float | None = None

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, PROJECTOR_KINDS)
        checks.one_of("activation", self.activation, ACTIVATIONS)
        checks.one_of("select", self.select, SELECT_STRATEGIES)
        checks.flag("bias", self.bias)
        checks.integer("feature_layer", self.feature_layer)
        _sizes(self, "inputs", "hidden", "outputs")
        if (self.norm_epsilon is not None) != (self.kind == "patch_merger"):
            valid = "a number for patch_merger" if self.kind == "patch_merger" else f"None for {self.kind}"
            raise ValueError(f"norm_epsilon must be {valid}, got {self.norm_epsilon}")


@dataclass(frozen=True)
class ModelSpec:
    """A text model, or a vision-language model.

    family             llama, qwen2, qwen2.5-vl, llava
    text               text decoder
    vision, projector  vision tower and projector; both None: text only
    image_token_id     token that image features replace
    video_token_id     token that video features replace
    eos_ids            tokens that end an answer
    """

    family: str
    text: TextSpec
    vision: VisionSpec | None = None
    projector: ProjectorSpec | None = None
    image_token_id: int | None = None
    video_token_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checks.one_of("family", self.family, FAMILIES)
        if (self.vision is None) != (self.projector is None):
            valid = "None without vision" if self.vision is None else "a ProjectorSpec with vision"
            raise ValueError(f"projector must be {valid}, got {self.projector}")
        if self.vision is None or self.projector is None:
            return
        checks.integer("feature_layer", self.projector.feature_layer, -self.vision.layers - 1, self.vision.layers)
        if self.projector.outputs != self.text.hidden:
            raise ValueError(
                f"outputs of the projector must be the hidden size {self.text.hidden} of the text decoder, "
                f"got {self.projector.outputs}"
            )

    @property
    def vision_layers(self) -> int:
        """Layers of the vision tower that contribute to the features; the remaining ones need not be computed."""
        if self.vision is None or self.projector is None:
            return 0
        return self.projector.feature_layer % (self.vision.layers + 1)
