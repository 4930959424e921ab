"""What a retrieval policy asks of the hardware in one layer for one stream, in counts.

Nothing here knows a system or a time. The retrieval ratios are the published averages (V-Rex Table II)
unless the caller brings measured ones; everything assumed is a field of `Assumptions` with its reason.
"""

from dataclasses import dataclass
from math import ceil

from sw_model.workloads import Model, Phase


@dataclass(frozen=True)
class Assumptions:
    """The free choices of the model, all of them, shared by every figure.

    resident_tokens: newest tokens whose KV stays in device memory (V-Rex calls it the recent region, without
        a size; 4096 is the hardware's page-table capacity here).
    retained_hit: share of the selected older pages that are still in device memory from an earlier step.
    tokens_per_cluster: V-Rex VI-B.
    wtu_passes_frame, wtu_passes_text: buckets examined per row, measured with the golden model on the
        synthetic stream.
    chunks: pieces per transfer and matrix in the event model; finer changes totals by less than a percent.
    """

    resident_tokens: int = 4096
    retained_hit: float = 0.0
    tokens_per_cluster: float = 32.0
    wtu_passes_frame: float = 12.7
    wtu_passes_text: float = 8.5
    hash_bits: int = 32
    chunks: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.retained_hit <= 1:
            raise ValueError(f"retained_hit = {self.retained_hit} must lie in 0..1")
        for key in ("resident_tokens", "wtu_passes_frame", "wtu_passes_text"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} = {getattr(self, key)} must not be negative")
        for key in ("tokens_per_cluster", "hash_bits", "chunks"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} = {getattr(self, key)} must be at least 1")


@dataclass(frozen=True)
class Demand:
    """One layer, one stream.

    attended_tokens: past tokens each query attends to. fetch_bytes: KV crossing the host link, in contiguous
    pieces of fetch_unit_bytes. table_bytes: read from device memory to predict. score_shape (vectors, inputs,
    outputs) x score_times and hash_inputs: matrix work of the prediction; exp_elements: its vector work.
    cluster_pairs: (token, candidate) comparisons. select_rows x select_entries: what is ranked, in
    select_passes sweeps. gpu_ops: eager operations the prediction takes on a GPU. schedule: `ahead` (nothing
    to predict: the next layer's KV is fetched during this one), `next_layer` (predicted one layer early, so
    the fetch overlaps this layer), `in_layer` (predict, fetch, then attend). resident_tokens stay in device
    memory.
    """

    attended_tokens: int
    fetch_bytes: int
    fetch_unit_bytes: int
    kv_bytes_per_token: float
    schedule: str
    ratio: float
    resident_tokens: int
    table_bytes: int = 0
    score_shape: tuple[int, int, int] = (0, 0, 0)
    score_times: int = 1
    hash_inputs: int = 0
    exp_elements: int = 0
    cluster_pairs: int = 0
    select_rows: int = 0
    select_entries: int = 0
    select_passes: float = 0.0
    gpu_ops: int = 0


# retrieval ratio per policy and stage: V-Rex Table II, averages
RATIOS = {
    "flexgen": {"frame": 1.0, "text": 1.0},
    "infinigen": {"frame": 1.0, "text": 0.068},
    "infinigenp": {"frame": 0.508, "text": 0.068},
    "rekv": {"frame": 0.584, "text": 0.312},
    "resv": {"frame": 0.327, "text": 0.025},
}


def policy_names() -> list[str]:
    return sorted(RATIOS)


def demand(policy: str, model: Model, phase: Phase, assume: Assumptions, ratio: float | None = None) -> Demand:
    """The demand of `policy` in one layer of `model` at `phase`. `ratio` replaces the published retrieval
    ratio."""
    if policy not in RATIOS:
        raise ValueError(f"unknown policy {policy!r}: one of {', '.join(policy_names())}")
    if ratio is not None and not 0 <= ratio <= 1:
        raise ValueError(f"retrieval ratio {ratio} must lie in 0..1")
    share = RATIOS[policy][phase.stage] if ratio is None else ratio
    n, t, kv = phase.kv_tokens, phase.new_tokens, model.kv_bytes_per_token_layer
    attended = round(share * n)
    older = max(0, n - assume.resident_tokens)
    missed = ceil(share * older * (1 - assume.retained_hit))
    head_bytes = 2 * model.head_dim * 2
    if policy == "flexgen" or (policy == "infinigen" and phase.stage == "frame"):
        return Demand(n, n * kv, n * kv, kv, "ahead", 1.0, 0)
    if policy == "resv":
        clusters = ceil(n / assume.tokens_per_cluster)
        recent = ceil(min(n, assume.resident_tokens) / assume.tokens_per_cluster)
        rows, dims = t * model.q_heads, model.kv_heads * model.head_dim
        text = phase.stage == "text"
        return Demand(
            attended_tokens=attended,
            fetch_bytes=missed * kv,
            fetch_unit_bytes=round(assume.tokens_per_cluster) * head_bytes,
            kv_bytes_per_token=kv,
            schedule="next_layer",
            ratio=share,
            resident_tokens=min(n, assume.resident_tokens),
            table_bytes=clusters * (dims * 2 + 8),
            score_shape=(rows // model.kv_heads, model.head_dim, clusters),
            score_times=model.kv_heads,
            hash_inputs=dims,
            exp_elements=rows * clusters,
            cluster_pairs=t * recent,
            select_rows=rows,
            select_entries=clusters,
            select_passes=assume.wtu_passes_text if text else assume.wtu_passes_frame,
            gpu_ops=20 + 6 * t,
        )
    if policy == "rekv":
        blocks = ceil(n / model.tokens_per_frame)
        dims = model.q_heads * model.head_dim
        return Demand(
            attended_tokens=attended,
            fetch_bytes=missed * kv,
            fetch_unit_bytes=model.tokens_per_frame * head_bytes,
            kv_bytes_per_token=kv,
            schedule="in_layer",
            ratio=share,
            resident_tokens=min(n, assume.resident_tokens),
            table_bytes=blocks * dims * 2,
            score_shape=(1, dims, blocks),
            select_rows=1,
            select_entries=blocks,
            select_passes=15.6,
            gpu_ops=12,
        )
    # InfiniGen and its prefill variant: partial queries (30 % of the columns) against every token's partial
    # key
    rows, part = t * model.q_heads, round(0.3 * model.head_dim)
    return Demand(
        attended_tokens=attended,
        fetch_bytes=missed * kv,
        fetch_unit_bytes=head_bytes,
        kv_bytes_per_token=kv,
        schedule="next_layer",
        ratio=share,
        resident_tokens=min(n, assume.resident_tokens),
        table_bytes=n * model.kv_heads * part * 2,
        score_shape=(rows // model.kv_heads, part, n),
        score_times=model.kv_heads,
        select_rows=rows,
        select_entries=n,
        select_passes=15.6,
        gpu_ops=15,
    )
