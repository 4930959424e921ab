"""How good a retrieval policy is, without a trained model: its attention beside full attention, on any key stream.

One pass over the stream; every policy sees the same keys, values and queries, step by step and layer by layer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ml_dtypes import bfloat16

from golden.attention import attention_mass, light_attention
from golden.growable_array import GrowableArray
from sw_model.media.stream import STAGES, Chunk, Geometry
from sw_model.policies import POLICIES, ModelShape, Policy, Selection, Step, load
from util import checks, text


@dataclass(frozen=True)
class Quality:
    """One policy in one stage: means over steps, layers and heads, of steps that have a past.

    steps          measured
    ratio          share of the past tokens attended to, KV head by KV head
    recall         share of full attention's weight that lies on what the policy attends to, the step itself included
    output_error   |output - full output| / |full output|, Euclidean, of each token and query head
    read_bytes     keys and values of the past that one step reads, all layers
    """

    policy: str
    stage: str
    steps: int
    ratio: float
    recall: float
    output_error: float
    read_bytes: float


def shape_of(geometry: Geometry) -> ModelShape:
    """The shape of a stream's attention for a policy; the hidden size is taken to be all query heads together."""
    g = geometry
    return ModelShape(g.layers, g.q_heads * g.head_dim, g.q_heads, g.kv_heads, g.head_dim)


def policies_for(
    geometry: Geometry,
    tokens_per_frame: int,
    names: Iterable[str] = POLICIES,
    budget_frames: int | None = None,
) -> dict[str, Policy]:
    """Policies with their defaults, ready for a stream of this geometry: all published ones, or those of `names`.

    A name is a published policy's or a Python file's (`sw_model.policies.load`); ValueError if there is no such.
    `budget_frames` is the number of frames that a policy with such a budget may retrieve or keep; None: as published,
    which is all of a short stream (`Policy.for_stream`).
    """
    model = shape_of(geometry)
    if budget_frames is not None:
        checks.integer("budget_frames", budget_frames, 1)
    classes = [load(name) for name in names]
    return {
        policy.name: policy.for_stream(
            model, tokens_per_frame=tokens_per_frame, theta=geometry.theta, budget_frames=budget_frames
        )
        for policy in classes
    }


def as_text(rows: Sequence[Quality]) -> str:
    """The rows as a plain table."""
    head = ("policy", "stage", "steps", "retrieved %", "recall %", "output error", "read MB per step")
    body = [
        (
            row.policy,
            row.stage,
            str(row.steps),
            f"{100 * row.ratio:.1f}",
            f"{100 * row.recall:.1f}",
            f"{row.output_error:.4f}",
            f"{row.read_bytes / 1e6:.3f}",
        )
        for row in rows
    ]
    return text.table(head, body)


def quality_table(chunks: Iterable[Chunk], policies: Mapping[str, Policy], every: int = 1) -> list[Quality]:
    """Quality of each policy in each stage that the stream has, in the order given.

    chunks    the stream, read once; all its layers are used
    policies  by the name they get in the table; fresh ones, for they keep what they have seen
    every     measure the first and each `every`-th step of a stage only (all steps are taken in)

    Raises ValueError if no step with a past was measured, or if a policy does not fit the stream.
    """
    checks.integer("every", every, 1)
    if not policies:
        raise ValueError("policies must name at least one policy, got none")
    sums = {(name, stage): np.zeros(4) for name in policies for stage in STAGES}
    counts, seen = dict.fromkeys(STAGES, 0), dict.fromkeys(STAGES, 0)
    cache: list[tuple[GrowableArray, GrowableArray]] = []
    for chunk in chunks:
        layers, _, heads, d = chunk.k.shape
        cache = cache or [
            (GrowableArray((heads, d), bfloat16), GrowableArray((heads, d), bfloat16)) for _ in range(layers)
        ]
        has_past = len(cache[0][0]) > 0
        measured = has_past and seen[chunk.stage] % every == 0
        seen[chunk.stage] += has_past
        counts[chunk.stage] += measured
        for layer, (keys, values) in enumerate(cache):
            q, k, v = (x[layer] for x in (chunk.q, chunk.k, chunk.v))
            keys.extend(k)
            values.extend(v)
            if measured:
                mass = attention_mass(q, keys.array)
                full = light_attention(q, keys.array, values.array, [np.arange(len(keys) - len(k))] * heads)
            for name, policy in policies.items():
                policy.append(layer, k, v)
                selection = policy.select(layer, q, chunk.stage)
                if measured:
                    found = _measure(selection, q, keys.array, values.array, mass, full)
                    sums[name, chunk.stage] += found * [1 / layers, 1 / layers, 1 / layers, 1]
    if not any(counts.values()):
        raise ValueError("chunks must hold a step that has a past, got none")
    return [
        Quality(name, stage, counts[stage], *(float(x) for x in total / counts[stage]))
        for (name, stage), total in sums.items()
        if counts[stage]
    ]


def retrieved(chunks: Iterable[Chunk], policy: Policy) -> dict[str, float]:
    """Run a fresh policy over a stream: the mean share of the past that it retrieved, in each stage that had a past.

    Raises ValueError if the stream has no step with a past.
    """
    stages = []
    for chunk in chunks:
        stages.append(chunk.stage)
        for layer in range(len(chunk.k)):
            policy.append(layer, chunk.k[layer], chunk.v[layer])
            policy.select(layer, chunk.q[layer], chunk.stage)
    if len(stages) < 2:
        raise ValueError("chunks must hold a step that has a past, got none")
    return {stage: policy.ratio(Step(1, 1, stage, policy.model)) for stage in STAGES if stage in stages[1:]}


def _measure(
    selection: Selection, q: np.ndarray, keys: np.ndarray, values: np.ndarray, mass: np.ndarray, full: np.ndarray
) -> np.ndarray:
    """Ratio, recall, output error and bytes read of one selection."""
    steps, heads, d = len(q), keys.shape[1], keys.shape[2]
    past = len(keys) - steps
    if selection.keys is not None and selection.values is not None:
        keys = np.concatenate([selection.keys, keys[past:].astype(np.float32)])
        values = np.concatenate([selection.values, values[past:].astype(np.float32)])
    out = light_attention(
        q, keys, values, selection.tokens, selection.allowed, selection.pseudo_keys, selection.pseudo_values
    )
    error = np.linalg.norm(out - full, axis=2) / np.maximum(np.linalg.norm(full, axis=2), np.finfo(float).tiny)
    recall = [
        (mass[h][:, ids] * (1 if selection.allowed is None else selection.allowed[h])).sum(axis=1)
        + mass[h][:, past:].sum(axis=1)
        for h, ids in enumerate(selection.tokens)
    ]
    held = sum(len(ids) for ids in selection.tokens)
    pseudo = 0 if selection.pseudo_keys is None else len(selection.pseudo_keys) * heads
    read = (held * selection.bits / 16 + pseudo) * 4 * d
    return np.array([held / heads / past, np.mean(recall), error.mean(), read])
