"""Reads the config.json of a Hugging Face checkpoint into a `ModelSpec`.

A nested section (`text_config`, `vision_config`) can omit keys. Their values are the defaults of the configuration
classes of transformers, because its older versions did not write values that equal the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compiler.model_spec import ACTIVATIONS, ROPE_SCALINGS, ModelSpec, ProjectorSpec, RopeSpec, TextSpec, VisionSpec
from util import checks

# defaults of the configuration classes, by model_type
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": None, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048, "eos_token_id": 2, "rope_theta": 10000.0,
    },
    "qwen2": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768, "eos_token_id": None, "rope_theta": 10000.0,
    },
    "qwen2_5_vl_text": {
        "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 32768, "eos_token_id": 151645, "rope_theta": 1000000.0,
    },
    "clip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 32, "num_channels": 3, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    },
    "siglip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 16, "num_channels": 3, "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
    "qwen2_5_vl_vision": {
        "depth": 32, "hidden_size": 3584, "hidden_act": "silu", "intermediate_size": 3420, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 4,
        "window_size": 112, "out_hidden_size": 3584, "fullatt_block_indexes": (7, 15, 23, 31), "in_channels": 3,
    },
}  # fmt: skip
# keys that a section at the top level must have
REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
    "max_position_embeddings",
)  # fmt: skip
MAX_LAYERS = 1024  # bounds the table of tensors, which is built before the weights are compared with it
QWEN_VISION_EPSILON = 1e-6  # constant of the model's definition, in no config.json
QWEN_VISION_THETA = 10000.0  # likewise, until transformers 5 wrote it


@dataclass(frozen=True)
class Section:
    """An object of config.json. `path` precedes its keys in error messages; `defaults` are values of missing keys."""

    path: str
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def name(self, key: str) -> str:
        return f"{self.path}{key} in config.json"

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str) -> Any:
        """Value of a key. ValueError if it is missing and has no default."""
        if key in self.values:
            return self.values[key]
        if key not in self.defaults:
            raise ValueError(f"config.json must have the key {self.path}{key}, got none")
        return self.defaults[key]

    def optional(self, key: str, default: Any = None) -> Any:
        """Value of a key, `default` if it is missing or null."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, low: int = 1, high: int | None = None) -> int:
        return checks.integer(self.name(key), self.get(key), low, high)

    def real(self, key: str) -> float:
        value = checks.real(self.name(key), self.get(key))
        if value <= 0:
            raise ValueError(f"{self.name(key)} must be positive, got {value}")
        return value

    def one_of(self, key: str, options: tuple[str, ...]) -> str:
        value = self.get(key)
        if value not in options:
            raise ValueError(f"{self.name(key)} must be one of {', '.join(options)}, got {value!r}")
        return str(value)

    def constant(self, key: str, expected: Any) -> None:
        """ValueError if the key is present with a value other than `expected` or null."""
        value = self.optional(key, expected)
        if value != expected:
            raise ValueError(f"{self.name(key)} must be {_json(expected)}, got {_json(value)}")

    def flag(self, key: str, default: bool) -> bool:
        return checks.flag(self.name(key), self.optional(key, default))

    def section(self, key: str, defaults: Mapping[str, Any] | None = None) -> Section:
        value = self.get(key)
        if not isinstance(value, dict):
            raise ValueError(f"{self.name(key)} must be an object, got {value!r}")
        return Section(f"{self.path}{key}.", value, defaults or {})


def _json(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def model_spec(config: Any, generation: Any = None) -> ModelSpec:
    """Model described by the values of config.json and, if present, generation_config.json.

    Raises ValueError with the key for a missing or invalid value, an unknown architecture, or a property that is not
    supported.
    """
    for file, values in (("config.json", config), ("generation_config.json", generation or {})):
        if not isinstance(values, dict):
            raise ValueError(f"{file} must be an object, got {values!r:.60}")
    root = Section("", config, {})
    architectures = root.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else architectures
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ValueError(f"architectures in config.json must be one of {', '.join(ARCHITECTURES)}, got {name!r}")
    model_type, read = ARCHITECTURES[name]
    root.constant("model_type", model_type)
    try:
        return read(root, generation or {})
    except ValueError as error:  # the specs check what depends on several keys, without the name of the file
        message = str(error) if "config.json" in str(error) else f"config.json: {error}"
        raise ValueError(message) from None


def _eos_ids(generation: Mapping[str, Any], *sections: Section) -> tuple[int, ...]:
    """Tokens that end an answer; generation_config.json has priority, as in transformers."""
    default = sections[-1].defaults.get("eos_token_id")
    candidates = [("eos_token_id in generation_config.json", generation.get("eos_token_id"))]
    candidates += [(section.name("eos_token_id"), section.optional("eos_token_id")) for section in sections]
    name, value = next((item for item in candidates if item[1] is not None), ("eos_token_id", default))
    ids = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(checks.integer(name, token, 0) for token in ids)


def _rope(text: Section, head_dim: int, m_rope: bool) -> RopeSpec:
    """Rotary embedding from `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta` (earlier)."""
    key = "rope_parameters" if text.optional("rope_parameters") is not None else "rope_scaling"
    scaling = text.section(key) if text.optional(key) is not None else Section(f"{text.path}{key}.", {}, {})
    text.constant("partial_rotary_factor", 1.0)
    scaling.constant("partial_rotary_factor", 1.0)
    type_key = "rope_type" if "rope_type" in scaling else "type"
    kind = scaling.optional(type_key, "default")
    if m_rope and kind == "mrope":  # name of the default scaling in the first checkpoints with M-RoPE
        kind = "default"
    if kind not in ROPE_SCALINGS:
        raise ValueError(f"{scaling.name(type_key)} must be one of {', '.join(ROPE_SCALINGS)}, got {kind!r}")
    parameters: dict[str, Any] = {}
    if kind != "default":
        parameters["factor"] = scaling.real("factor")
    if kind == "llama3":
        parameters["low_frequency_factor"] = scaling.real("low_freq_factor")
        parameters["high_frequency_factor"] = scaling.real("high_freq_factor")
        parameters["original_positions"] = scaling.integer("original_max_position_embeddings")
    if m_rope:
        sections = checks.integers(scaling.name("mrope_section"), scaling.get("mrope_section"), None, low=0)
        parameters["sections"] = tuple(sections.tolist())
    theta = scaling.real("rope_theta") if "rope_theta" in scaling else text.real("rope_theta")
    return RopeSpec(head_dim, theta, kind, **parameters)


def _text(text: Section, *, qkv_bias: bool, tied: bool, m_rope: bool = False) -> TextSpec:
    text.one_of("hidden_act", ("silu",))
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        text.constant(key, False)
    if "sliding_attention" in text.optional("layer_types", ()):
        raise ValueError(f"{text.name('layer_types')} must be full_attention for all layers, got sliding_attention")
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    if text.optional("head_dim") is not None:
        head_dim = text.integer("head_dim")
    elif hidden % heads:
        raise ValueError(
            f"{text.name('hidden_size')} must be a multiple of num_attention_heads = {heads}, got {hidden}"
        )
    else:
        head_dim = hidden // heads
    return TextSpec(
        hidden=hidden,
        ffn=text.integer("intermediate_size"),
        layers=text.integer("num_hidden_layers", high=MAX_LAYERS),
        q_heads=heads,
        kv_heads=heads if text.get("num_key_value_heads") is None else text.integer("num_key_value_heads"),
        head_dim=head_dim,
        vocabulary=text.integer("vocab_size"),
        norm_epsilon=text.real("rms_norm_eps"),
        qkv_bias=qkv_bias,
        tied_embeddings=tied,
        rope=_rope(text, head_dim, m_rope),
        max_positions=text.integer("max_position_embeddings"),
    )


def _top_level(root: Section, model_type: str) -> Section:
    """The text section of a model whose text keys are at the top level of config.json."""
    defaults = {key: value for key, value in DEFAULTS[model_type].items() if key not in REQUIRED}
    return Section("", root.values, defaults)


def _text_only(family: str, qkv_bias: bool) -> Callable[[Section, Mapping[str, Any]], ModelSpec]:
    def read(root: Section, generation: Mapping[str, Any]) -> ModelSpec:
        text = _top_level(root, family)
        spec = _text(text, qkv_bias=qkv_bias, tied=root.flag("tie_word_embeddings", False))
        return ModelSpec(family, spec, eos_ids=_eos_ids(generation, text))

    return read


def _tied(root: Section, text: Section) -> bool:
    """Tied embeddings: the key is at the top level or in the text section, as in transformers."""
    return root.flag("tie_word_embeddings", False) or text.flag("tie_word_embeddings", False)


def _model_type(root: Section, key: str, options: tuple[str, ...]) -> str:
    return root.section(key).one_of("model_type", options)


def _llava(root: Section, generation: Mapping[str, Any]) -> ModelSpec:
    text_type = _model_type(root, "text_config", ("llama", "qwen2"))
    vision_type = _model_type(root, "vision_config", ("clip_vision_model", "siglip_vision_model"))
    text = root.section("text_config", DEFAULTS[text_type])
    vision = root.section("vision_config", DEFAULTS[vision_type])
    text_spec = _text(text, qkv_bias=text_type == "qwen2", tied=_tied(root, text))
    clip = vision_type == "clip_vision_model"
    vision_spec = VisionSpec(
        kind="clip" if clip else "siglip",
        hidden=vision.integer("hidden_size"),
        ffn=vision.integer("intermediate_size"),
        layers=vision.integer("num_hidden_layers", high=MAX_LAYERS),
        heads=vision.integer("num_attention_heads"),
        patch_size=vision.integer("patch_size"),
        temporal_patch=1,
        image_size=vision.integer("image_size"),
        activation=vision.one_of("hidden_act", ACTIVATIONS),
        norm="layer_norm",
        norm_epsilon=vision.real("layer_norm_eps"),
        class_token=clip,
        input_norm=clip,
        patch_bias=not clip,
        gated=False,
        channels=vision.integer("num_channels"),
    )
    keys = Section("", root.values, {
        "projector_hidden_act": "gelu", "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
    })  # fmt: skip
    feature_layer = checks.integer(keys.name("vision_feature_layer"), keys.get("vision_feature_layer"))
    projector = ProjectorSpec(
        kind="mlp2x",
        inputs=vision_spec.hidden,
        hidden=text_spec.hidden,
        outputs=text_spec.hidden,
        activation=keys.one_of("projector_hidden_act", ACTIVATIONS),
        bias=keys.flag("multimodal_projector_bias", True),
        feature_layer=feature_layer,
        select=keys.one_of("vision_feature_select_strategy", ("default", "full")),
    )
    image_key = "image_token_id" if "image_token_id" in root else "image_token_index"
    eos_ids = _eos_ids(generation, root, text)
    return ModelSpec("llava", text_spec, vision_spec, projector, root.integer(image_key, 0), None, eos_ids)


def _qwen2_5_vl(root: Section, generation: Mapping[str, Any]) -> ModelSpec:
    if "text_config" in root:
        text = root.section("text_config", DEFAULTS["qwen2_5_vl_text"])
    else:  # transformers before 4.52
        text = _top_level(root, "qwen2_5_vl_text")
    vision = root.section("vision_config", DEFAULTS["qwen2_5_vl_vision"])
    text_spec = _text(text, qkv_bias=True, tied=_tied(root, text), m_rope=True)
    rope = vision.section("rope_parameters", {}) if vision.optional("rope_parameters") is not None else None
    full = checks.integers(vision.name("fullatt_block_indexes"), vision.get("fullatt_block_indexes"), None, low=0)
    vision_spec = VisionSpec(
        kind="qwen2.5-vl",
        hidden=vision.integer("hidden_size"),
        ffn=vision.integer("intermediate_size"),
        layers=vision.integer("depth", high=MAX_LAYERS),
        heads=vision.integer("num_heads"),
        patch_size=vision.integer("patch_size"),
        temporal_patch=vision.integer("temporal_patch_size"),
        image_size=None,
        activation=vision.one_of("hidden_act", ACTIVATIONS),
        norm="rms_norm",
        norm_epsilon=QWEN_VISION_EPSILON,
        class_token=False,
        input_norm=False,
        patch_bias=False,
        gated=True,
        rope_theta=rope.real("rope_theta") if rope else QWEN_VISION_THETA,
        window_size=vision.integer("window_size"),
        full_attention_layers=tuple(full.tolist()),
        spatial_merge=vision.integer("spatial_merge_size"),
        tokens_per_second=vision.integer("tokens_per_second"),
        channels=vision.integer("in_channels"),
    )
    if vision.integer("out_hidden_size") != text_spec.hidden:
        raise ValueError(
            f"{vision.name('out_hidden_size')} must be {text.path}hidden_size = {text_spec.hidden}, "
            f"got {vision.get('out_hidden_size')}"
        )
    merged = vision_spec.hidden * vision_spec.spatial_merge**2
    projector = ProjectorSpec(
        kind="patch_merger",
        inputs=merged,
        hidden=merged,
        outputs=text_spec.hidden,
        activation="gelu",
        bias=True,
        feature_layer=-1,
        select="full",
        norm_epsilon=QWEN_VISION_EPSILON,
    )
    image, video = root.integer("image_token_id", 0), root.integer("video_token_id", 0)
    return ModelSpec("qwen2.5-vl", text_spec, vision_spec, projector, image, video, _eos_ids(generation, root, text))


Reader = Callable[[Section, Mapping[str, Any]], ModelSpec]
ARCHITECTURES: Mapping[str, tuple[str, Reader]] = {  # architecture: model_type, function that reads config.json
    "LlamaForCausalLM": ("llama", _text_only("llama", qkv_bias=False)),
    "Qwen2ForCausalLM": ("qwen2", _text_only("qwen2", qkv_bias=True)),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl", _qwen2_5_vl),
    "LlavaForConditionalGeneration": ("llava", _llava),
}
