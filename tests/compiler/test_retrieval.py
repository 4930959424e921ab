"""Retrieval of a session compared with `golden.resv`, which is driven with the same rotated keys and queries."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from compiler.checkpoint import Checkpoint
from compiler.policies import ResvPolicy
from compiler.runtime import Limits, compile_model
from golden import bf16
from golden.hashing import hash_codes
from golden.resv import Resv, ResvConfig
from hw.config import Config
from tests.compiler.checkpoints import write_random
from tests.compiler.test_runtime import golden_model

TINY = Config.preset("tiny").replace(page_frames=256)
TOKENS, FRAMES = 3, 12


def record_session(core, monkeypatch):
    """Lists that get hash codes and clusters, and the selected clusters of all heads, of every layer of every step."""
    clustered, selected = [], []
    cluster, retrieve = core.table.cluster, core.table.retrieve

    def record_cluster(codes):
        clustered.append((codes.copy(), cluster(codes)))
        return clustered[-1][1]

    def record_selection(groups):
        result = retrieve(groups)
        selected.append(result[1])
        return result

    monkeypatch.setattr(core.table, "cluster", record_cluster)
    monkeypatch.setattr(core.table, "retrieve", record_selection)
    return clustered, selected


def record_layers(model, monkeypatch):
    """A list that gets rotated queries and keys, and values, of every layer of every step."""
    calls = []
    for layer in model.layers:

        def attend(q, k, v, plain, run=layer.attend):
            calls.append((q.view(bfloat16), k.view(bfloat16), v.view(bfloat16)))
            return run(q, k, v, plain)

        monkeypatch.setattr(layer, "attend", attend)
    return calls


@pytest.mark.parametrize(
    "family, prefetch, layers",
    [("llama", "same_layer", 2), ("qwen2", "same_layer", 2), ("llama", "next_layer", 2), ("llama", "next_layer", 3)],
)
def test_session_retrieves_as_resv(family, prefetch, layers, tmp_path, rng, monkeypatch):
    """Frames of three scenes at the paper's ratio of 0.3: equal hash codes, clusters, selected clusters, tokens."""
    write_random(tmp_path, family, rng, changes={"head_dim": TINY.head_dim, "num_hidden_layers": layers})
    checkpoint, retrieval = Checkpoint(tmp_path), ResvPolicy(ratio=0.3, hamming_threshold=3, prefetch=prefetch)
    text = checkpoint.spec.text
    machine = compile_model(checkpoint, TINY, Limits(tokens=64, resident=12), retrieval)
    session, model = machine.session(), golden_model(checkpoint, TINY, retrieval, 64)
    clustered, selected = record_session(machine.core, monkeypatch)
    calls = record_layers(model, monkeypatch)
    config = ResvConfig(
        hash_bits=TINY.hash_bits, hamming_threshold=3, wics_ratio=0.3, window_tokens=0, prefetch=prefetch,
        max_candidates=TINY.max_candidates,
    )  # fmt: skip
    planes = [layer.hyperplanes().view(bfloat16).T for layer in model.layers]
    resv = Resv(config, layers, text.kv_heads, TINY.head_dim, planes)
    scenes = rng.standard_normal((3, TOKENS, text.hidden))
    shares = []
    for frame in range(FRAMES):
        rows = bf16.encode(scenes[frame // 2 % 3] + 0.1 * rng.standard_normal((TOKENS, text.hidden)))
        past = session.position
        session.features(rows)
        model.step(rows, np.arange(past, past + TOKENS))
        for number in range(layers):
            queries, keys, values = calls[frame * layers + number]
            codes, (assigned, _) = clustered[frame * layers + number]
            expected = resv.step(number, queries, keys, values)
            np.testing.assert_array_equal(codes, hash_codes(keys.reshape(TOKENS, -1), resv.layers[number].planes))
            np.testing.assert_array_equal(assigned.cluster, expected.assigned[0].cluster)
            has_clusters = past or not number or prefetch == "same_layer"
            wanted = expected.selected.clusters if has_clusters else []
            for clusters, want in zip(selected[frame * layers + number], wanted, strict=True):
                np.testing.assert_array_equal(clusters, want)
            tokens = [len(head) for head in expected.attended]
            assert session.steps[-1].retrieved.attended[number] == tokens
            shares += [count / past for count in tokens if past]
    assert 0.05 < np.mean(shares) < 0.95
