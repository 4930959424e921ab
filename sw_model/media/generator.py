"""Keys and queries without a video: a generator of streams with the statistics the paper reports.

The key of position p of a frame in KV head h is a sum of Gaussian parts, scaled to norm 12 and then rotated:
what all keys share, what the position shares, what the scene shares (as a whole and per position), a slow drift
(an AR(1) process) and noise. Scenes last a geometric number of frames and come back. Energy sits in the slow RoPE
pairs (`stream.slow_pair_gains`). Queries share a part per frame and head, and are scaled so that their logits over
the past keys spread as asked for; that spread alone, not content, sets how skewed the retrieval is: narrow for
frames, wide for text. All of it depends on the seed alone, layer by layer, and past keys are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from golden import rope
from sw_model.media.stream import BF16, Chunk, Geometry, slow_pair_gains
from util import checks

KEY_NORM = 12.0
QUERY_PARTS = {"common": 2.1, "token": 0.45, "head": 0.45}


@dataclass(frozen=True)
class GeneratorConfig:
    """What a stream is made of.

    mean .. noise         amplitude of each part of a key
    drift_r               the drift's correlation from frame to frame
    scene_frames          mean length of a scene in frames
    revisit               probability that a new scene is an old one
    sigma_frame, _text    spread (standard deviation) of a row's logits over the past tokens, by stage;
                          over the mean keys of the clusters it is 7 % less
    sigma_spread          its log-normal spread from head to head and chunk to chunk
    sigma_gains           factor on the spread of each layer; empty: 1 everywhere
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
        parts = ("mean", "position", "scene", "scene_position", "drift", "noise")
        for name in (*parts, "sigma_frame", "sigma_text", "sigma_spread"):
            checks.real(name, getattr(self, name), 0)
        for name in ("drift_r", "revisit"):
            checks.real(name, getattr(self, name), 0, 1)
        checks.real("scene_frames", self.scene_frames, 1)
        if not any(getattr(self, name) for name in parts):
            raise ValueError("mean .. noise must not all be 0: keys would have no direction")
        if self.sigma_gains and len(self.sigma_gains) != self.geometry.layers:
            raise ValueError(f"sigma_gains must have {self.geometry.layers} entries, got {len(self.sigma_gains)}")


def coin(layers: int = 1, seed: int = 0) -> GeneratorConfig:
    """Llama-3 8B's attention on streams like COIN's: ten tokens a frame.

    With several layers their spreads run from 0.55 to 5 times the nominal one, most near the low end, so that
    retrieval per layer covers the range of V-Rex Fig. 20. Which layer is how narrow is this project's choice.
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
    """One endless stream: `frame` and `text` give its next chunk."""

    def __init__(self, config: GeneratorConfig | None = None):
        self.config = config = config or coin()
        geometry = config.geometry
        self._position = 0
        self._frames_left = 0
        self._scenes = 0
        self._script = np.random.default_rng([config.seed, 0])
        self._layers = [_Layer(config, layer) for layer in range(geometry.layers)]

    def frame(self) -> Chunk:
        """The next frame's tokens."""
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
        """The next turn of text."""
        checks.integer("tokens", tokens, 1)
        return self._chunk("text", [layer.text_keys(tokens) for layer in self._layers])

    def chunks(self, frames: int, *, text_every: int | None = None, text_tokens: int = 25) -> Iterator[Chunk]:
        """`frames` frames; after each `text_every` of them a question of `text_tokens` tokens."""
        checks.integer("frames", frames, 1)
        if text_every is not None:
            checks.integer("text_every", text_every, 1)
        for index in range(1, frames + 1):
            yield self.frame()
            if text_every and index % text_every == 0:
                yield self.text(text_tokens)

    def _chunk(self, stage: str, bare: list[np.ndarray]) -> Chunk:
        tokens = len(bare[0])
        positions = self._position + np.arange(tokens)
        self._position += tokens
        parts = [layer.rotate(stage, keys, positions[:, None]) for layer, keys in zip(self._layers, bare, strict=True)]
        q, k, v = (np.stack(part) for part in zip(*parts, strict=True))
        return Chunk(stage, positions, q, k, v)


class _Layer:
    """One layer's part of the stream, with random numbers of its own: the same whatever other layers there are."""

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
        """Move to a scene; an old one is what it was before."""
        rng = np.random.default_rng([self.config.seed, 2, self.layer, scene])
        whole, by_place = self._draw(rng, 1, self.heads), self._draw(rng, self.tokens, self.heads)
        setting = whole * self.config.scene + by_place * self.config.scene_position
        self.backdrop = self.shared + self.places + setting

    def frame_keys(self) -> np.ndarray:
        """Keys before RoPE, float32 (tokens, heads, d)."""
        r = np.float32(self.config.drift_r)
        fresh = self._draw(self.rng, 2, self.tokens, self.heads)
        keys = self.backdrop + self.drift * self.config.drift + fresh[0] * self.config.noise
        self.drift = r * self.drift + np.sqrt(1 - r * r) * fresh[1]
        return self._scaled(keys)

    def text_keys(self, tokens: int) -> np.ndarray:
        """Keys of words: each of its own direction beside what all keys share."""
        parts = (self.config.position, self.config.scene, self.config.scene_position, self.config.drift)
        return self._scaled(self.shared + self._draw(self.rng, tokens, self.heads) * np.float32(np.linalg.norm(parts)))

    def _scaled(self, keys: np.ndarray) -> np.ndarray:
        return keys * (np.float32(KEY_NORM) / np.linalg.norm(keys, axis=-1, keepdims=True))

    def rotate(self, stage: str, bare: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys and values (tokens, heads, d) in bfloat16 at the positions `where` (tokens, 1)."""
        theta = self.config.geometry.theta
        keys = rope.rotate(bare, where, theta).astype(BF16)
        values = (bare @ self.to_value).astype(BF16)
        wide = keys.astype(np.float64).transpose(1, 0, 2)
        self.seen += len(bare)
        self.sums += wide.sum(axis=1)
        self.squares += wide.transpose(0, 2, 1) @ wide
        return self._queries(stage, where, theta), keys, values

    def _queries(self, stage: str, where: np.ndarray, theta: float) -> np.ndarray:
        tokens = len(where)
        common = self._draw(self.rng, 1, self.heads)
        own = self._draw(self.rng, tokens, self.heads)
        bare = QUERY_PARTS["common"] * common + QUERY_PARTS["token"] * own
        bare = np.repeat(bare, self.group, axis=1) + QUERY_PARTS["head"] * self.head_queries
        rows = rope.rotate(bare, where, theta).reshape(tokens, self.heads, self.group, self.d)
        mean = self.sums / self.seen
        spread = self.squares / self.seen - mean[:, :, None] * mean[:, None, :]
        variance = np.einsum("thgi,hij,thgj->thg", rows, spread, rows, optimize=True) / self.d
        present = np.sqrt(np.maximum(variance, 0)).mean(axis=(0, 2))
        sigma = self.config.sigma_frame if stage == "frame" else self.config.sigma_text
        wanted = sigma * self.gain * np.exp(self.config.sigma_spread * self.rng.standard_normal(self.heads))
        scale = np.divide(wanted, present, out=np.ones(self.heads), where=present > 0)
        return (rows * scale[:, None, None]).reshape(tokens, -1, self.d).astype(BF16)
