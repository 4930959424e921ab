"""Keys from pictures: shapes, determinism, batching, causality, window, and keys that follow the picture."""

from itertools import islice

import numpy as np
import pytest

from golden import rope
from sw_model.media import clip, keys, video
from sw_model.media.stream import BF16, Geometry

SMALL = keys.FrontEndConfig(
    geometry=Geometry(layers=2, q_heads=4, kv_heads=2, head_dim=32),
    cell=1,
    patch=12,
    hidden=64,
    window_tokens=40,
)


def pictures_of(config, count, seed=3, **options):
    size = config.picture_size
    frames = clip.synthesise(count, width=max(size, 32), height=max(size, 32), seed=seed, **options)
    return np.stack([picture[:size, :size] for picture in frames])


def close(a, b):
    """Equal up to the rounding of bfloat16 (sums in another order may round differently)."""
    assert a.shape == b.shape
    assert np.allclose(a.astype(np.float32), b.astype(np.float32), rtol=2**-6, atol=0.02)


def test_default_shapes_and_positions():
    chunks = keys.FrontEnd().frames(pictures_of(keys.FrontEndConfig(), 2))
    assert [s.stage for s in chunks] == ["frame", "frame"]
    assert np.concatenate([s.positions for s in chunks]).tolist() == list(range(20))
    assert chunks[0].q.shape == (4, 10, 32, 128)
    assert chunks[0].k.shape == chunks[0].v.shape == (4, 10, 8, 128)
    assert chunks[0].k.dtype == BF16
    norms = np.linalg.norm(chunks[0].k.astype(np.float32), axis=-1)
    assert 9 < norms.mean() < 15


def test_seed_decides_alone():
    frames = pictures_of(SMALL, 3)
    one, same = (keys.FrontEnd(SMALL).frames(frames) for _ in range(2))
    other = keys.FrontEnd(keys.FrontEndConfig(**{**vars(SMALL), "seed": 1})).frames(frames)
    assert all(np.array_equal(a.k, b.k) and np.array_equal(a.q, b.q) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0].k, other[0].k)


def test_together_equals_one_by_one():
    """Also beyond the window, the tokens that a frame attends to do not depend on the batching."""
    frames = pictures_of(SMALL, 14)
    together = keys.FrontEnd(SMALL).frames(frames)
    single = keys.FrontEnd(SMALL)
    for chunk, picture in zip(together, frames, strict=True):
        (alone,) = single.frames(picture[None])
        assert np.array_equal(alone.positions, chunk.positions)
        for name in ("q", "k", "v"):
            close(getattr(alone, name), getattr(chunk, name))


def test_the_past_does_not_see_the_future_and_the_window_ends():
    """A changed frame 2 alters layer 1 of later frames inside the window, and nothing before or beyond it."""
    frames = pictures_of(SMALL, 9)
    changed = frames.copy()
    changed[2] = 255 - changed[2]
    plain, other = keys.FrontEnd(SMALL).frames(frames), keys.FrontEnd(SMALL).frames(changed)
    differs = [not np.array_equal(a.k[1], b.k[1]) for a, b in zip(plain, other, strict=True)]
    # 40 tokens = 4 frames: the last token of frame 2 is seen by tokens up to 39 later, in frame 6
    assert differs == [False, False, True, True, True, True, True, False, False]


def test_attention_against_a_plain_loop(rng):
    """One layer's grouped-query attention compared with loops over heads and keys in float64."""
    front_end = keys.FrontEnd(SMALL)
    q, k, v = (rng.standard_normal((50, heads, 32)).astype(np.float32) for heads in (4, 2, 2))
    got = np.concatenate([front_end._attend(0, q[a:b], k[a:b], v[a:b]) for a, b in ((0, 10), (10, 45), (45, 50))])
    for t in range(50):
        for head in range(4):
            seen = range(max(0, t - 39), t + 1)
            logits = np.array([q[t, head].astype(float) @ k[j, head // 2] for j in seen]) / np.sqrt(32)
            weight = np.exp(logits - logits.max())
            want = sum(w * v[j, head // 2].astype(float) for w, j in zip(weight / weight.sum(), seen, strict=True))
            assert np.allclose(got[t, 32 * head : 32 * head + 32], want, atol=1e-5)


def test_rope_is_applied_at_the_running_position():
    """Still picture: undoing the rotation at the stated positions makes layer-0 keys of all frames equal."""
    frames = np.repeat(pictures_of(SMALL, 1), 6, axis=0)
    chunks = keys.FrontEnd(SMALL).frames(frames)
    undone = [rope.rotate(s.k[0].astype(np.float32), -s.positions[:, None]) for s in chunks]
    assert np.abs(np.array(undone) - undone[0]).max() < 0.05
    assert np.abs(chunks[5].k[0].astype(np.float32) - chunks[0].k[0].astype(np.float32)).max() > 0.2


def test_keys_follow_the_picture():
    """The key of a changed cell changes, keys of its neighbours do not; a cut changes all keys."""
    config = keys.FrontEndConfig(geometry=Geometry(layers=1))
    pair = pictures_of(config, 2, scene_frames=1, noise=0, seed=11)
    still = np.repeat(pair[:1], 2, axis=0)
    moved = still.copy()
    moved[1, :32, :32] = 255 - moved[1, :32, :32]  # the first cell, token 1

    def similarity(frames):
        first, second = (s.k[0].astype(np.float32).reshape(10, -1) for s in keys.FrontEnd(config).frames(frames))
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        return (first * second).sum(1) / norms

    assert similarity(still).min() > 0.97
    one_changed = similarity(moved)
    assert one_changed[1] < 0.8
    assert one_changed[2:].min() > 0.85
    assert similarity(pair)[1:].mean() < 0.6


def test_text_tokens_depend_on_their_ids():
    front_end = keys.FrontEnd(SMALL)
    first, second = front_end.text([5, 9]), front_end.text([5])
    assert (first.stage, first.tokens, second.positions.tolist()) == ("text", 2, [2])
    back = rope.rotate(second.k[0].astype(np.float32), -2)
    assert np.abs(back[0] - first.k[0, 0].astype(np.float32)).max() < 0.1
    with pytest.raises(ValueError, match="token_ids must be at least 0, got -3"):
        front_end.text([-3])
    with pytest.raises(ValueError, match="token_ids must not be empty"):
        front_end.text([])


def test_video_chunks_stream(small_video):
    front_end = keys.FrontEnd(SMALL)
    pairs = list(islice(keys.video_chunks(small_video, front_end, fps=5), 3))
    assert [frame.index for frame, _ in pairs] == [0, 2, 4]
    all_pairs = list(keys.video_chunks(small_video, keys.FrontEnd(SMALL)))
    assert [frame.index for frame, _ in all_pairs] == list(range(48))
    assert all_pairs[-1][1].positions[-1] == 479
    assert len(list(keys.video_chunks(small_video, keys.FrontEnd(SMALL), max_frames=11))) == 11


def test_metadata_says_where_the_weights_come_from():
    metadata = keys.FrontEnd(SMALL).metadata()
    assert "not trained" in metadata["weights"]
    assert metadata["tokens_per_frame"] == 10
    assert metadata["geometry"]["kv_heads"] == 2


def test_bad_arguments(small_video, tmp_path):
    front_end = keys.FrontEnd(SMALL)
    for bad in (
        np.zeros((1, 8, 8, 3), np.uint8),
        np.zeros((1, 36, 36, 3), np.float32),
        np.zeros((0, 36, 36, 3), np.uint8),
    ):
        with pytest.raises(ValueError, match="pictures must be uint8 of shape"):
            front_end.frames(bad)
    with pytest.raises(ValueError, match="hidden must be a multiple of 32, got 100"):
        keys.FrontEndConfig(hidden=100)
    with pytest.raises(ValueError, match="grid must be at least 1, got 0"):
        keys.FrontEndConfig(grid=0)
    with pytest.raises(ValueError, match="max_frames must be at least 1, got 0"):
        keys.video_chunks(small_video, front_end, max_frames=0)
    with pytest.raises(video.VideoError, match="no such file"):
        keys.video_chunks(tmp_path / "none.mp4", front_end)
