"""Models and workloads: what a run has to compute, in sizes only.

A `Workload` is a sequence of `Phase`s, each repeated `count` times at its mean context length: one frame, one
generated token, a COIN session, a long stream.
"""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Tower:
    """A vision transformer: `patches` tokens through `layers` layers; weights in BF16."""

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    patches: int
    patch_inputs: int
    projector_params: int
    source: str

    @property
    def layer_params(self) -> int:
        return 4 * self.hidden**2 + 2 * self.hidden * self.ffn

    @property
    def params(self) -> int:
        return self.layers * self.layer_params + self.patch_inputs * self.hidden + self.projector_params


@dataclass(frozen=True)
class Model:
    """A decoder-only language model with grouped KV heads, gated FFN and BF16 weights, and its vision
    tower."""

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tokens_per_frame: int
    vision: Tower
    source: str

    @property
    def kv_bytes_per_token_layer(self) -> int:
        return 2 * self.kv_heads * self.head_dim * 2

    @property
    def kv_bytes_per_token(self) -> int:
        return self.layers * self.kv_bytes_per_token_layer

    @property
    def attn_params(self) -> int:
        """Query, key, value and output projections of one layer."""
        return self.hidden * self.head_dim * (2 * self.q_heads + 2 * self.kv_heads)

    @property
    def ffn_params(self) -> int:
        return 3 * self.hidden * self.ffn

    @property
    def params(self) -> int:
        return self.layers * (self.attn_params + self.ffn_params) + 2 * self.vocab * self.hidden

    @property
    def streamed_weight_bytes(self) -> int:
        """What one step reads: all layers and the output head; of the input embedding only a few rows."""
        return 2 * (self.layers * (self.attn_params + self.ffn_params) + self.vocab * self.hidden)


SIGLIP_L_384 = Tower(
    name="SigLIP-ViT-L-384",
    layers=24,
    hidden=1024,
    heads=16,
    ffn=4096,
    patches=576,
    patch_inputs=3 * 16 * 16,
    projector_params=1024 * 4096 + 4096 * 4096,
    source="V-Rex VI-A; sizes of google/siglip-large-patch16-384; two-layer projector of VideoLLM-Online",
)

LLAMA3_8B = Model(
    name="Llama-3-8B",
    layers=32,
    hidden=4096,
    q_heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab=128256,
    tokens_per_frame=10,
    vision=SIGLIP_L_384,
    source="V-Rex VI-A; ten tokens a frame (CLS and 3 x 3) from showlab/videollm-online",
)


@dataclass(frozen=True)
class Phase:
    """`count` equal steps: `new_tokens` per stream on `kv_tokens` of context; `stage` picks the retrieval
    ratio."""

    stage: str
    kv_tokens: int
    new_tokens: int
    frames: int
    count: int = 1


@dataclass(frozen=True)
class Workload:
    name: str
    model: Model
    batch: int
    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch = {self.batch} must be at least 1")
        for p in self.phases:
            if p.kv_tokens < 0 or p.new_tokens < 1 or p.count < 1 or p.frames < 0:
                raise ValueError(f"workload {self.name!r}: impossible phase {p}")


def frame(kv_tokens: int, batch: int = 1, model: Model = LLAMA3_8B) -> Workload:
    """One video frame through the vision tower and the iterative prefill."""
    phase = Phase("frame", kv_tokens, model.tokens_per_frame, frames=1)
    return Workload(f"frame-{kv_tokens}-b{batch}", model, batch, (phase,))


def text(kv_tokens: int, batch: int = 1, model: Model = LLAMA3_8B) -> Workload:
    """One generated token (its latency is the TPOT)."""
    return Workload(f"text-{kv_tokens}-b{batch}", model, batch, (Phase("text", kv_tokens, 1, frames=0),))


def coin_session(kv_tokens: int, batch: int = 1, model: Model = LLAMA3_8B) -> Workload:
    """The mean COIN session of V-Rex III-A on top of `kv_tokens` of history: 26 frames, a question of 25
    tokens, an answer of 39."""
    frames, question, answer = 26, 25, 39
    n, t = kv_tokens, model.tokens_per_frame
    phases = (
        Phase("frame", n + frames * t // 2, t, frames=1, count=frames),
        Phase("text", n + frames * t, question, frames=0),
        Phase("text", n + frames * t + question + answer // 2, 1, frames=0, count=answer),
    )
    return Workload(f"coin-{kv_tokens}-b{batch}", model, batch, phases)


def stream(frames: int, batch: int = 1, model: Model = LLAMA3_8B, steps: int = 32) -> Workload:
    """`frames` frames from an empty context, in at most `steps` phases at their mean length."""
    if frames < 1:
        raise ValueError(f"frames = {frames} must be at least 1")
    t, steps = model.tokens_per_frame, min(steps, frames)
    edges = [frames * i // steps for i in range(steps + 1)]
    phases = tuple(Phase("frame", t * (a + b - 1) // 2, t, frames=1, count=b - a) for a, b in itertools.pairwise(edges))
    return Workload(f"stream-{frames}-b{batch}", model, batch, phases)
