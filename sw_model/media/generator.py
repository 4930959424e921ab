"""Synthetic streams of keys and queries with the statistics that the paper reports, without a video.

The key of position p of a frame in KV head h is a sum of Gaussian components, scaled to norm 12 and then rotated: one
shared by all keys, one of the position, one of the scene (as a whole and per position), a slow drift (an AR(1) process)
and noise. Scenes last a geometrically distributed number of frames and return. Most energy is in the slow RoPE pairs
(`stream.slow_pair_gains`). Queries share a component per frame and head. They are scaled so that their logits over the
past keys have the configured spread. Only this spread, not content, determines how skewed the retrieval is: narrow for
frames, wide for text. Everything depends on the seed only, layer by layer, and past keys are not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from golden import rope
from sw_model.media.stream import BF16, Chunk, Geometry, slow_pair_gains
from util import checks

KEY_NORM = 12.0
QUERY_AMPLITUDES = {"common": 2.1, "token": 0.45, "head": 0.45}


@dataclass(frozen=True)
class GeneratorConfig:
    """Parameters of a stream.

    mean .. noise         amplitude of each component of a key
    drift_r               correlation of the drift from frame to frame
    scene_frames          mean length of a scene, in frames
    revisit               probability that a new scene is an earlier one
    sigma_frame, _text    standard deviation of the logits of a row over the past tokens, by stage; over the mean keys
                          of the clusters it is 7 % smaller
    sigma_spread          log-normal spread of this standard deviation over heads and chunks
    sigma_gains           factor on this standard deviation for each layer; empty: 1
    """

    geometry: Geometry = field(default_factory=lambda: Geometry(layers=1))
    tokens_per_frame: int = 10
    mean: float = 0.25
    position: float = 0.65
    scene: float = 0.30
    scene_position: float = 0.75
    drift: float = 0.38
    noise: float = 0.20
    drift_r: float = 0.97
    scene_frames: float = 64.0
    revisit: float = 0.5
    sigma_frame: float = 0.58
    sigma_text: float = 3.8
    sigma_spread: float = 0.45
    sigma_gains: tuple[float, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        checks.integer("tokens_per_frame", self.tokens_per_frame, 1)
        checks.integer("seed", self.seed, 0)
        component_names = ("mean", "position", "scene", "scene_position", "drift", "noise")
        for name in (*component_names, "sigma_frame", "sigma_text", "sigma_spread"):
            checks.real(name, getattr(self, name), 0)
        for name in ("drift_r", "revisit"):
            checks.real(name, getattr(self, name), 0, 1)
        checks.real("scene_frames", self.scene_frames, 1)
        if not any(getattr(self, name) for name in component_names):
            raise ValueError("one of mean .. noise must not be 0, got keys without a direction")
        if self.sigma_gains and len(self.sigma_gains) != self.geometry.layers:
            raise ValueError(f"sigma_gains must have {self.geometry.layers} entries, got {len(self.sigma_gains)}")


def coin(layers: int = 1, seed: int = 0) -> GeneratorConfig:
    """Stream like COIN's for the attention of Llama-3 8B: ten tokens per frame.

    With several layers, their spreads are 0.55 to 5 times the nominal one, most near the low end, so that retrieval per
    layer covers the range of V-Rex Fig. 20. The assignment of spreads to layers is a choice of this project.
    """
    if layers == 1:
        return GeneratorConfig(seed=seed)
    depth = np.linspace(0, 1, layers)
    gains = tuple(float(gain) for gain in 0.55 * (5 / 0.55) ** depth**4)
    return GeneratorConfig(geometry=Geometry(layers=layers), sigma_gains=gains, seed=seed)


def small(seed: int = 0) -> GeneratorConfig:
    """The same stream with 2 KV heads, 4 query heads and d = 64, for unit tests."""
    return GeneratorConfig(geometry=Geometry(layers=1, q_heads=4, kv_heads=2, head_dim=64), seed=seed)


class Generator:
    """Endless stream; `frame` and `text` return its next chunk."""

    def __init__(self, config: GeneratorConfig | None = None):
        self.config = config = config or coin()
        geometry = config.geometry
        self._position = 0
        self._frames_left = 0
        self._scenes = 0
        self._script = np.random.default_rng([config.seed, 0])
        self._layers = [_Layer(config, layer) for layer in range(geometry.layers)]

    def frame(self) -> Chunk:
        """Chunk of the next frame."""
        if self._frames_left == 0:
            self._frames_left = int(self._script.geometric(1 / self.config.scene_frames))
            scene = self._scenes
            if scene and self._script.random() < self.config.revisit:
                scene = int(self._script.integers(scene))
            else:
                self._scenes += 1
            for layer in self._layers:
                layer.enter(scene)
        self._frames_left -= 1
        return self._chunk("frame", [layer.frame_keys() for layer in self._layers])

    def text(self, tokens: int) -> Chunk:
        """Chunk of the next text turn."""
        checks.integer("tokens", tokens, 1)
        return self._chunk("text", [layer.text_keys(tokens) for layer in self._layers])

    def chunks(self, frames: int, *, text_interval: int | None = None, text_tokens: int = 25) -> Iterator[Chunk]:
        """`frames` frames; after every `text_interval` frames a question of `text_tokens` tokens."""
        checks.integer("frames", frames, 1)
        if text_interval is not None:
            checks.integer("text_interval", text_interval, 1)
        for index in range(1, frames + 1):
            yield self.frame()
            if text_interval and index % text_interval == 0:
                yield self.text(text_tokens)

    def _chunk(self, stage: str, bare: list[np.ndarray]) -> Chunk:
        tokens = len(bare[0])
        positions = self._position + np.arange(tokens)
        self._position += tokens
        component_names = [
            layer.rotate(stage, keys, positions[:, None]) for layer, keys in zip(self._layers, bare, strict=True)
        ]
        q, k, v = (np.stack(arrays) for arrays in zip(*component_names, strict=True))
        return Chunk(stage, positions, q, k, v)


class _Layer:
    """State of one layer, with its own random numbers: they do not depend on the number of layers."""

    def __init__(self, config: GeneratorConfig, layer: int):
        self.config, self.layer = config, layer
        geometry = config.geometry
        self.tokens, self.heads, self.d = config.tokens_per_frame, geometry.kv_heads, geometry.head_dim
        self.group = geometry.q_heads // self.heads
        self.gains = np.tile(slow_pair_gains(self.d), 2).astype(np.float32)
        self.gain = config.sigma_gains[layer] if config.sigma_gains else 1.0
        self.rng = np.random.default_rng([config.seed, 1, layer])
        self.shared = self._draw(self.rng, 1, self.heads) * config.mean
        self.places = self._draw(self.rng, self.tokens, self.heads) * config.position
        self.drift = self._draw(self.rng, self.tokens, self.heads)
        self.head_queries = self._draw(self.rng, 1, geometry.q_heads)
        # values follow keys: equal content, equal value
        self.to_value = self.rng.standard_normal((self.d, self.d), np.float32) / np.float32(np.sqrt(self.d))
        self.backdrop = self.places
        # running first and second moments of the rotated keys, per head
        self.seen = 0
        self.sums = np.zeros((self.heads, self.d))
        self.squares = np.zeros((self.heads, self.d, self.d))

    def _draw(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        return rng.standard_normal((*shape, self.d), np.float32) * self.gains

    def enter(self, scene: int) -> None:
        """Move to a scene; an earlier scene has the same components as before."""
        rng = np.random.default_rng([self.config.seed, 2, self.layer, scene])
        scene_vector, position_vectors = self._draw(rng, 1, self.heads), self._draw(rng, self.tokens, self.heads)
        setting = scene_vector * self.config.scene + position_vectors * self.config.scene_position
        self.backdrop = self.shared + self.places + setting

    def frame_keys(self) -> np.ndarray:
        """Keys before RoPE, float32 (tokens, heads, d)."""
        r = np.float32(self.config.drift_r)
        innovation = self._draw(self.rng, 2, self.tokens, self.heads)
        keys = self.backdrop + self.drift * self.config.drift + innovation[0] * self.config.noise
        self.drift = r * self.drift + np.sqrt(1 - r * r) * innovation[1]
        return self._scaled(keys)

    def text_keys(self, tokens: int) -> np.ndarray:
        """Keys of text tokens: each has its own direction and the component shared by all keys."""
        component_names = (self.config.position, self.config.scene, self.config.scene_position, self.config.drift)
        return self._scaled(
            self.shared + self._draw(self.rng, tokens, self.heads) * np.float32(np.linalg.norm(component_names))
        )

    def _scaled(self, keys: np.ndarray) -> np.ndarray:
        return keys * (np.float32(KEY_NORM) / np.linalg.norm(keys, axis=-1, keepdims=True))

    def rotate(self, stage: str, bare: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys and values (tokens, heads, d) in bfloat16 at `positions` (tokens, 1)."""
        theta = self.config.geometry.theta
        keys = rope.rotate(bare, positions, theta).astype(BF16)
        values = (bare @ self.to_value).astype(BF16)
        wide = keys.astype(np.float64).transpose(1, 0, 2)
        self.seen += len(bare)
        self.sums += wide.sum(axis=1)
        self.squares += wide.transpose(0, 2, 1) @ wide
        return self._queries(stage, positions, theta), keys, values

    def _queries(self, stage: str, positions: np.ndarray, theta: float) -> np.ndarray:
        tokens = len(positions)
        common = self._draw(self.rng, 1, self.heads)
        token_noise = self._draw(self.rng, tokens, self.heads)
        bare = QUERY_AMPLITUDES["common"] * common + QUERY_AMPLITUDES["token"] * token_noise
        bare = np.repeat(bare, self.group, axis=1) + QUERY_AMPLITUDES["head"] * self.head_queries
        rows = rope.rotate(bare, positions, theta).reshape(tokens, self.heads, self.group, self.d)
        mean = self.sums / self.seen
        spread = self.squares / self.seen - mean[:, :, None] * mean[:, None, :]
        variance = np.einsum("thgi,hij,thgj->thg", rows, spread, rows, optimize=True) / self.d
        present = np.sqrt(np.maximum(variance, 0)).mean(axis=(0, 2))
        sigma = self.config.sigma_frame if stage == "frame" else self.config.sigma_text
        target_sigma = sigma * self.gain * np.exp(self.config.sigma_spread * self.rng.standard_normal(self.heads))
        scale = np.divide(target_sigma, present, out=np.ones(self.heads), where=present > 0)
        return (rows * scale[:, None, None]).reshape(tokens, -1, self.d).astype(BF16)
