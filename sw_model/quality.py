"""Quality of a retrieval policy without a trained model: its attention compared with full attention on a key stream.

One pass over the stream; every policy gets the same keys, values and queries, step by step and layer by layer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ml_dtypes import bfloat16

from golden.attention import attention_mass, light_attention
from golden.growable_array import GrowableArray
from golden.kv_formats import NAMES, ReadBack, read_back
from sw_model.media.stream import STAGES, Chunk, Geometry
from sw_model.policies import POLICIES, ModelShape, Policy, Selection, Step, load
from util import checks, text


@dataclass(frozen=True)
class Quality:
    """The quality of one policy in one stage: means over steps that have a past, layers and heads.

    steps          number of measured steps
    ratio          share of the past tokens that a KV head attends to, 0 to 1
    recall         share of the weight of full attention on the tokens that the policy attends to, the step's own tokens
                   included, 0 to 1
    output_error   |output - full output| / |full output|, Euclidean, per token and query head
    read_bytes     bytes of past keys and values that one step reads in all layers
    """

    policy: str
    stage: str
    steps: int
    ratio: float
    recall: float
    output_error: float
    read_bytes: float


def shape_of(geometry: Geometry) -> ModelShape:
    """The shape of a stream's attention for a policy; the hidden size is that of all query heads together."""
    g = geometry
    return ModelShape(g.layers, g.q_heads * g.head_dim, g.q_heads, g.kv_heads, g.head_dim)


def policies_for(
    geometry: Geometry,
    tokens_per_frame: int,
    names: Iterable[str] = POLICIES,
    budget_frames: int | None = None,
) -> dict[str, Policy]:
    """New policies for a stream of this geometry, by name.

    names          names of published policies or paths of Python files (`sw_model.policies.load`)
    budget_frames  number of frames that a policy with such a budget can retrieve or keep (`Policy.for_stream`); None:
                   as published, which is all of a short stream

    Raises ValueError for an unknown name or a budget below 1.
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
    """The rows as a table of text."""
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


def quality_table(
    chunks: Iterable[Chunk], policies: Mapping[str, Policy], every: int = 1, kv_format: str | None = None
) -> list[Quality]:
    """The quality of each policy in each stage of the stream, in the order of `policies`.

    chunks    the stream, read once; all its layers are used
    policies  new policies by their name in the table; a policy keeps the keys of its stream
    every     interval of the measured steps: the first step of a stage, then each `every`-th; all steps are appended
    kv_format  number format in which past keys and values are stored (`golden.kv_formats`); None: BF16. The tokens of
               the step are attended in BF16. Policies select with BF16 keys, as their mean keys are not part of the KV
               cache. A policy with stored keys and values of its own keeps these.

    Raises ValueError for a stream without a step that has a past, for a policy that does not fit the stream, or for a
    format that is unknown or does not fit the head size.
    """
    checks.integer("every", every, 1)
    if kv_format is not None:
        checks.one_of("kv_format", kv_format, NAMES)
    if not policies:
        raise ValueError("policies must name at least one policy, got none")
    sums = {(name, stage): np.zeros(4) for name in policies for stage in STAGES}
    counts, steps = dict.fromkeys(STAGES, 0), dict.fromkeys(STAGES, 0)
    cache: list[tuple[GrowableArray, GrowableArray]] = []
    for chunk in chunks:
        layers, _, heads, d = chunk.k.shape
        cache = cache or [
            (GrowableArray((heads, d), bfloat16), GrowableArray((heads, d), bfloat16)) for _ in range(layers)
        ]
        has_past = len(cache[0][0]) > 0
        measured = has_past and steps[chunk.stage] % every == 0
        steps[chunk.stage] += has_past
        counts[chunk.stage] += measured
        for layer, (keys, values) in enumerate(cache):
            q, k, v = (x[layer] for x in (chunk.q, chunk.k, chunk.v))
            keys.extend(k)
            values.extend(v)
            if measured:
                mass = attention_mass(q, keys.array)
                full = light_attention(q, keys.array, values.array, [np.arange(len(keys) - len(k))] * heads)
                stored = read_back(kv_format, keys.array[: -len(k)], values.array[: -len(k)]) if kv_format else None
            for name, policy in policies.items():
                policy.append(layer, k, v)
                selection = policy.select(layer, q, chunk.stage)
                if measured:
                    quality = _measure(selection, q, keys.array, values.array, mass, full, stored)
                    sums[name, chunk.stage] += quality * [1 / layers, 1 / layers, 1 / layers, 1]
    if not any(counts.values()):
        raise ValueError("chunks must hold a step that has a past, got none")
    return [
        Quality(name, stage, counts[stage], *(float(x) for x in total / counts[stage]))
        for (name, stage), total in sums.items()
        if counts[stage]
    ]


def retrieved(chunks: Iterable[Chunk], policy: Policy) -> dict[str, float]:
    """The mean share of the past that a new policy retrieves on a stream, 0 to 1, for each stage with a past.

    Raises ValueError for a stream without a step that has a past.
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
    selection: Selection,
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    mass: np.ndarray,
    full: np.ndarray,
    stored: ReadBack | None,
) -> np.ndarray:
    """Ratio, recall, output error and bytes read of one selection, float64 (4,).

    mass    (Hkv, rows, N) weight of full attention; full: output of full attention
    stored  past keys and values in the number format of the KV cache; None: BF16
    """
    steps, heads, d = len(q), keys.shape[1], keys.shape[2]
    past, bits = len(keys) - steps, selection.bits
    past_keys, past_values = selection.keys, selection.values
    if stored is not None and past_keys is None:
        past_keys, past_values, bits = stored.keys, stored.values, stored.bits
    if past_keys is not None and past_values is not None:
        keys = np.concatenate([past_keys, keys[past:].astype(np.float32)])
        values = np.concatenate([past_values, values[past:].astype(np.float32)])
    out = light_attention(
        q, keys, values, selection.tokens, selection.allowed, selection.pseudo_keys, selection.pseudo_values
    )
    error = np.linalg.norm(out - full, axis=2) / np.maximum(np.linalg.norm(full, axis=2), np.finfo(float).tiny)
    recall = [
        (mass[h][:, ids] * (1 if selection.allowed is None else selection.allowed[h])).sum(axis=1)
        + mass[h][:, past:].sum(axis=1)
        for h, ids in enumerate(selection.tokens)
    ]
    retrieved_tokens = sum(len(ids) for ids in selection.tokens)
    pseudo = 0 if selection.pseudo_keys is None else len(selection.pseudo_keys) * heads
    read = (retrieved_tokens * bits / 16 + pseudo) * 4 * d
    return np.array([retrieved_tokens / heads / past, np.mean(recall), error.mean(), read])
