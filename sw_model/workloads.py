"""Models and workloads: the sizes of what a run computes.

A `Workload` is a sequence of `Phase`s, each repeated `count` times at its mean context length: one frame, one
generated token, a COIN session, a long stream.
"""

import itertools
from dataclasses import asdict, dataclass

from sw_model.policies import base
from sw_model.policies.base import BF16_BYTES, ModelShape
from util import checks


@dataclass(frozen=True)
class Tower:
    """A vision transformer: `patches` tokens through `layers` layers, weights in BF16."""

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
        """Parameters of one layer."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.ffn

    @property
    def params(self) -> int:
        """Parameters of the tower and its projector."""
        return self.layers * self.layer_params + self.patch_inputs * self.hidden + self.projector_params


@dataclass(frozen=True, kw_only=True)
class Model(ModelShape):
    """A decoder-only language model with grouped KV heads, gated FFN and BF16 weights, and its vision tower."""

    name: str
    ffn: int
    vocab: int
    tokens_per_frame: int
    vision: Tower
    source: str

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return self.layers * self.kv_bytes

    @property
    def attn_params(self) -> int:
        """Parameters of the query, key, value and output projections of one layer."""
        return self.hidden * self.head_dim * (2 * self.q_heads + 2 * self.kv_heads)

    @property
    def ffn_params(self) -> int:
        """Parameters of the gated feed-forward block of one layer."""
        return 3 * self.hidden * self.ffn

    @property
    def params(self) -> int:
        """Parameters of all layers, the embedding and the output head."""
        return self.layers * (self.attn_params + self.ffn_params) + 2 * self.vocab * self.hidden

    @property
    def streamed_weight_bytes(self) -> int:
        """Bytes of weights that one step reads: all layers and the output head, without the input embedding."""
        return BF16_BYTES * (self.layers * (self.attn_params + self.ffn_params) + self.vocab * self.hidden)


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
    **asdict(base.LLAMA3_8B),
    name="Llama-3-8B",
    ffn=14336,
    vocab=128256,
    tokens_per_frame=10,
    vision=SIGLIP_L_384,
    source="V-Rex VI-A; ten tokens a frame (CLS and 3 x 3) from showlab/videollm-online",
)


@dataclass(frozen=True)
class Phase:
    """`count` equal steps.

    stage       `frame` or `text`; selects the retrieval ratio
    kv_tokens   context before the step, in tokens of one stream
    new_tokens  tokens of the step, of one stream
    frames      video frames that the vision tower computes in the step, of one stream
    """

    stage: str
    kv_tokens: int
    new_tokens: int
    frames: int
    count: int = 1

    def __post_init__(self) -> None:
        checks.integer("kv_tokens", self.kv_tokens, 0)
        checks.integer("new_tokens", self.new_tokens, 1)
        checks.integer("frames", self.frames, 0)
        checks.integer("count", self.count, 1)


@dataclass(frozen=True)
class Workload:
    """The phases of a run on `batch` streams at once."""

    name: str
    model: Model
    batch: int
    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        checks.integer("batch", self.batch, 1)


def frame(kv_tokens: int, batch: int = 1, model: Model = LLAMA3_8B) -> Workload:
    """One video frame through the vision tower and the iterative prefill."""
    phase = Phase("frame", kv_tokens, model.tokens_per_frame, frames=1)
    return Workload(f"frame-{kv_tokens}-b{batch}", model, batch, (phase,))


def text(kv_tokens: int, batch: int = 1, model: Model = LLAMA3_8B) -> Workload:
    """One generated token; its latency is the time per output token (TPOT)."""
    return Workload(f"text-{kv_tokens}-b{batch}", model, batch, (Phase("text", kv_tokens, 1, frames=0),))


def coin_session(kv_tokens: int, batch: int = 1, model: Model = LLAMA3_8B) -> Workload:
    """The mean COIN session of V-Rex III-A after `kv_tokens` of history.

    A session is 26 frames, a question of 25 tokens and an answer of 39 tokens.
    """
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
    checks.integer("frames", frames, 1)
    t, steps = model.tokens_per_frame, min(steps, frames)
    edges = [frames * i // steps for i in range(steps + 1)]
    phases = tuple(Phase("frame", t * (a + b - 1) // 2, t, frames=1, count=b - a) for a, b in itertools.pairwise(edges))
    return Workload(f"stream-{frames}-b{batch}", model, batch, phases)
