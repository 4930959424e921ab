"""Chunks of every key source: the constructor checks shapes and types."""

import numpy as np
import pytest

from sw_model.media.stream import BF16, Chunk, Geometry, slow_pair_gains


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers must be between 1 and 65536, got 0"),
        ({"q_heads": 6, "kv_heads": 4}, "q_heads must be a multiple of kv_heads = 4, got 6"),
        ({"head_dim": 7}, "head_dim must be even, got 7"),
        ({"theta": 0.0}, "theta must be finite and at least 1, got 0.0"),
    ],
)
def test_geometry_rejects(change, message):
    with pytest.raises(ValueError, match=message):
        Geometry(**{"layers": 2, **change})


def test_chunk_rejects_what_does_not_fit():
    q, k = np.zeros((2, 3, 4, 8), BF16), np.zeros((2, 3, 2, 8), BF16)
    where = np.arange(3)
    assert Chunk("frame", where, q, k, k).tokens == 3
    with pytest.raises(ValueError, match="stage must be one of frame, text, got 'audio'"):
        Chunk("audio", where, q, k, k)
    with pytest.raises(TypeError, match="k must be bfloat16, got float32"):
        Chunk("frame", where, q, k.astype(np.float32), k)
    with pytest.raises(ValueError, match=r"q must have shape \(layers, 2, heads, d\), got \(2, 3, 4, 8\)"):
        Chunk("frame", np.arange(2), q, k, k)
    with pytest.raises(ValueError, match="k and v must have equal shapes"):
        Chunk("frame", where, q, k, k[..., :4])
    with pytest.raises(ValueError, match="does not fit k of shape"):
        Chunk("frame", where, q[:1], k, k)
    with pytest.raises(ValueError, match="positions must be at least 0, got -1"):
        Chunk("frame", where - 1, q, k, k)


def test_gains_rise_from_fast_to_slow_pairs():
    gains = slow_pair_gains(128)
    assert gains.shape == (64,)
    assert (np.diff(gains) > 0).all()
    assert gains[0] == pytest.approx(0.08, abs=1e-3)
    assert gains[-1] == pytest.approx(1, abs=1e-3)
    assert np.interp(0.6, 2 * np.arange(64) / 128, gains) == pytest.approx(0.54, abs=0.01)
