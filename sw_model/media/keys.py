"""Keys from video frames, computed by a small, complete vision-language transformer in NumPy.

`FrontEnd` is this transformer: vision transformer (ViT), pooling, projector and decoder. It processes one frame after
another.

A frame is divided into patches. A ViT (class token, 2-D positions, bidirectional attention) turns them into features.
Pooling reduces them to `1 + grid * grid` tokens: the class token and a grid of cells (VideoLLM-Online has 1 + 3 x 3).
The projector, an MLP, computes the inputs of the decoder. Decoder layers like those of Llama (RMSNorm, RoPE,
grouped-query attention, SwiGLU) compute Q, K and V. The decoder attends over a sliding window, so that memory use is
constant.

The weights are random numbers from a seed, not trained. Three choices make the keys similar to those of trained models:
residual branches have a small gain, most energy of the Q and K projections is in the slow RoPE pairs, and visual tokens
are standardised with the mean and deviation of synthetic pictures. `FrontEnd.metadata` describes the last two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from golden import rope
from sw_model.media import clip, video
from sw_model.media.stream import BF16, Chunk, Geometry, slow_pair_gains
from util import checks

KEY_NORM = 12.0  # approximate norm of the key of one head; assumed order of magnitude of trained models
CALIBRATION_PICTURES = 32  # synthetic pictures that give the mean and deviation of visual tokens
VISION_HEAD_DIM = 32
BATCH_FRAMES = 8  # frames of a video that one call of `FrontEnd.frames` processes


@dataclass(frozen=True)
class FrontEndConfig:
    """Sizes of the front end. Pictures have `picture_size` x `picture_size` pixels.

    geometry        layers, heads, head dimension and RoPE base of the decoder
    grid            cells per side that become tokens, in addition to the class token
    cell            patches per side of one cell
    patch           pixels per side of one patch
    hidden          width of both transformers, a multiple of 32
    window_tokens   attention window of the decoder, in tokens
    """

    geometry: Geometry = field(default_factory=lambda: Geometry(layers=4))
    grid: int = 3
    cell: int = 2
    patch: int = 16
    hidden: int = 256
    vision_layers: int = 2
    window_tokens: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("grid", "cell", "patch", "hidden", "window_tokens"):
            checks.integer(name, getattr(self, name), 1)
        for name in ("vision_layers", "seed"):
            checks.integer(name, getattr(self, name), 0)
        if self.hidden % VISION_HEAD_DIM:
            raise ValueError(f"hidden must be a multiple of {VISION_HEAD_DIM}, got {self.hidden}")

    @property
    def tokens_per_frame(self) -> int:
        """Tokens of a frame."""
        return 1 + self.grid * self.grid

    @property
    def picture_size(self) -> int:
        """Side of a picture in pixels."""
        return self.grid * self.cell * self.patch


def _layer_norm(x: np.ndarray) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return _rms_norm(x)


def _rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(1e-6))


def _gelu(x: np.ndarray) -> np.ndarray:
    """Sigmoid approximation of GELU (QuickGELU)."""
    return x / (1 + np.exp(np.float32(-1.702) * x))


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class FrontEnd:
    """Front end of one video. It stores the attention window of the decoder: use a new object for each video."""

    def __init__(self, config: FrontEndConfig | None = None):
        self.config = config = config or FrontEndConfig()
        rng = np.random.default_rng(config.seed)
        width, geometry = config.hidden, config.geometry

        def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
            return rng.standard_normal((rows, columns), np.float32) * np.float32(gain / np.sqrt(rows))

        side = config.grid * config.cell
        axis_embeddings = rng.standard_normal((2, side, width), np.float32) / 2
        self._position_embeddings = (axis_embeddings[0][:, None] + axis_embeddings[1][None]).reshape(side * side, width)
        self._patch_weights = matrix(3 * config.patch**2, width, 2.0)
        self._class_token = rng.standard_normal(width, np.float32)
        residual_gain = 1 / np.sqrt(2 * max(1, config.vision_layers))
        self._vision = [
            (
                matrix(width, 3 * width),
                matrix(width, width, residual_gain),
                matrix(width, 4 * width),
                matrix(4 * width, width, residual_gain),
            )
            for _ in range(config.vision_layers)
        ]
        self._projector = matrix(width, 2 * width, 1.5), matrix(2 * width, width)

        pair_gains = np.tile(slow_pair_gains(geometry.head_dim), 2)  # RoPE pair i has elements i and i + head_dim / 2
        gains = (KEY_NORM * pair_gains / np.linalg.norm(pair_gains)).astype(np.float32)
        query_dim, key_dim = geometry.q_heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
        residual_gain = 1 / np.sqrt(2 * geometry.layers)
        self._decoder = [
            {
                "q": matrix(width, query_dim) * np.tile(gains, geometry.q_heads),
                "k": matrix(width, key_dim) * np.tile(gains, geometry.kv_heads),
                "v": matrix(width, key_dim),
                "o": matrix(query_dim, width, residual_gain),
                "gate": matrix(width, 4 * width),
                "up": matrix(width, 4 * width),
                "down": matrix(4 * width, width, residual_gain),
            }
            for _ in range(geometry.layers)
        ]
        empty = np.zeros((geometry.kv_heads, 0, geometry.head_dim), np.float32)
        self._window = [(empty, empty) for _ in range(geometry.layers)]
        self._position = 0
        self._mean, self._deviation = self._calibrate()

    def metadata(self) -> dict[str, Any]:
        """Description of the keys: sizes, and texts that say how the weights were made."""
        return {
            **asdict(self.config),
            "tokens_per_frame": self.config.tokens_per_frame,
            "weights": f"not trained: drawn from seed {self.config.seed}",
            "projection": f"Q and K energy in the slow RoPE pairs, key norm {KEY_NORM:g} per head",
            "normalisation": f"visual tokens standardised on {CALIBRATION_PICTURES} synthetic pictures",
        }

    def frames(self, pictures: np.ndarray) -> list[Chunk]:
        """Compute one chunk (Q, K and V) for each of several consecutive pictures.

        pictures  uint8 (n, picture_size, picture_size, 3), n at least 1

        One call with several pictures gives the same chunks as one call per picture, up to rounding. It is faster,
        because the weights are read once.
        """
        size = self.config.picture_size
        if pictures.dtype != np.uint8 or pictures.shape[1:] != (size, size, 3) or not len(pictures):
            raise ValueError(
                f"pictures must be uint8 of shape (1 or more, {size}, {size}, 3), got {pictures.dtype} {pictures.shape}"
            )
        tokens = (self._vision_tokens(pictures) - self._mean) / self._deviation
        return self._decode("frame", tokens)

    def text(self, token_ids: Sequence[int]) -> Chunk:
        """Compute the chunk of text tokens. The embedding of a token is random, from the seed and the token id."""
        ids = checks.integers("token_ids", token_ids, None, low=0)
        if not len(ids):
            raise ValueError("token_ids must not be empty")
        rows = [np.random.default_rng([self.config.seed, int(i)]).standard_normal(self.config.hidden) for i in ids]
        return self._decode("text", np.array([rows], np.float32))[0]

    def _calibrate(self) -> tuple[np.ndarray, np.ndarray]:
        """Measure mean and standard deviation of the visual tokens on synthetic pictures."""
        size = self.config.picture_size
        scenes = clip.synthesise(
            CALIBRATION_PICTURES,
            width=max(32, size),
            height=max(32, size),
            scene_frames=1,
            seed=self.config.seed,
        )
        tokens = self._vision_tokens(np.stack([picture[:size, :size] for picture in scenes]))
        return tokens.mean((0, 1)), tokens.std((0, 1))

    def _vision_tokens(self, pictures: np.ndarray) -> np.ndarray:
        """Run the ViT, the pooling and the projector: float32 (n, tokens_per_frame, hidden), class token first."""
        config = self.config
        n, side, patch, width = len(pictures), config.grid * config.cell, config.patch, config.hidden
        pixels = pictures.astype(np.float32) / np.float32(127.5) - 1
        patches = pixels.reshape(n, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(n, side * side, -1) @ self._patch_weights + self._position_embeddings
        x = np.concatenate([np.broadcast_to(self._class_token, (n, 1, width)), x], axis=1)
        heads, tokens = width // VISION_HEAD_DIM, side * side + 1
        for qkv, out, up, down in self._vision:
            q, k, v = (_layer_norm(x) @ qkv).reshape(n, tokens, 3, heads, VISION_HEAD_DIM).transpose(2, 0, 3, 1, 4)
            weights = _softmax(q @ k.swapaxes(2, 3) / np.float32(np.sqrt(VISION_HEAD_DIM)))
            x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(n, tokens, width) @ out
            x = x + _gelu(_layer_norm(x) @ up) @ down
        x = _layer_norm(x)
        cells = x[:, 1:].reshape(n, config.grid, config.cell, config.grid, config.cell, width).mean((2, 4))
        pooled = np.concatenate([x[:, :1], cells.reshape(n, -1, width)], axis=1)
        inner, outer = self._projector
        return _gelu(_layer_norm(pooled) @ inner) @ outer

    def _decode(self, stage: str, embeddings: np.ndarray) -> list[Chunk]:
        """Run the decoder layers over embeddings, float32 (chunks, tokens, hidden). One `Chunk` per index of axis 0."""
        geometry = self.config.geometry
        chunks, chunk_tokens, width = embeddings.shape
        tokens, d = chunks * chunk_tokens, geometry.head_dim
        x = embeddings.reshape(tokens, width)
        positions = self._position + np.arange(tokens)
        self._position += tokens
        q_shape, kv_shape = (chunks, chunk_tokens, geometry.q_heads, d), (chunks, chunk_tokens, geometry.kv_heads, d)
        q_all, k_all, v_all = (np.empty((geometry.layers, *shape), BF16) for shape in (q_shape, kv_shape, kv_shape))
        for layer, weights in enumerate(self._decoder):
            h = _rms_norm(x)
            row_positions = positions[:, None]
            q = rope.rotate((h @ weights["q"]).reshape(tokens, -1, d), row_positions, geometry.theta)
            k = rope.rotate((h @ weights["k"]).reshape(tokens, -1, d), row_positions, geometry.theta)
            v = (h @ weights["v"]).reshape(tokens, -1, d)
            x = x + self._attend(layer, q, k, v) @ weights["o"]
            h = _rms_norm(x)
            x = x + (_silu(h @ weights["gate"]) * (h @ weights["up"])) @ weights["down"]
            q_all[layer], k_all[layer], v_all[layer] = (
                q.reshape(q_shape),
                k.reshape(kv_shape),
                v.reshape(kv_shape),
            )
        position_ids = positions.reshape(chunks, chunk_tokens)
        return [Chunk(stage, position_ids[i], q_all[:, i], k_all[:, i], v_all[:, i]) for i in range(chunks)]

    def _attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Causal grouped-query attention over the window and the new tokens. Appends the new tokens to the window."""
        tokens, q_heads, d = q.shape
        old_k, old_v = self._window[layer]
        all_k = np.concatenate([old_k, k.transpose(1, 0, 2)], axis=1)
        all_v = np.concatenate([old_v, v.transpose(1, 0, 2)], axis=1)
        kv_heads, key_count, _ = all_k.shape
        grouped = q.reshape(tokens, kv_heads, -1, d).transpose(1, 2, 0, 3).reshape(kv_heads, -1, d)
        scores = grouped @ all_k.transpose(0, 2, 1) / np.float32(np.sqrt(d))
        scores = scores.reshape(kv_heads, -1, tokens, key_count)
        # position of the query minus position of the key
        distance = np.arange(key_count - tokens, key_count)[:, None] - np.arange(key_count)
        window = self.config.window_tokens
        scores += np.where((distance >= 0) & (distance < window), np.float32(0), np.float32(-np.inf))
        attention_output = _softmax(scores).reshape(kv_heads, -1, key_count) @ all_v
        self._window[layer] = all_k[:, -window:], all_v[:, -window:]
        return attention_output.reshape(kv_heads, -1, tokens, d).transpose(2, 0, 1, 3).reshape(tokens, q_heads * d)


def video_chunks(
    path: Path | str,
    front_end: FrontEnd,
    *,
    fps: float | Fraction | None = None,
    max_frames: int | None = None,
) -> Iterator[tuple[video.Frame, Chunk]]:
    """Yield every sampled frame of a video with its chunk while the video is decoded.

    If `fps` is None, every frame is used. If the video has more than `max_frames` frames, decoding stops before the
    end, so that damage after the last used frame is not detected. Raises `VideoError` as `video.decode` does.
    """
    if max_frames is not None:
        checks.integer("max_frames", max_frames, 1)
    frames = islice(video.sample(video.decode(path), fps), max_frames)
    # a generator of its own, so that a wrong argument is an error at the call and not at the first frame
    return _video_chunks(frames, front_end)


def _video_chunks(frames: Iterator[video.Frame], front_end: FrontEnd) -> Iterator[tuple[video.Frame, Chunk]]:
    size = front_end.config.picture_size
    while batch := list(islice(frames, BATCH_FRAMES)):
        yield from zip(batch, front_end.frames(np.stack([f.rgb(size, size) for f in batch])), strict=True)
