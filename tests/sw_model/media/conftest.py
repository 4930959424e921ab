"""Small encoded videos, one set per test session."""

import pytest

from sw_model.media import clip


@pytest.fixture(scope="session")
def pictures():
    """48 small frames with two cuts, before encoding."""
    return list(clip.synthesise(48, width=96, height=64, scene_frames=20, seed=7))


@pytest.fixture(scope="session")
def small_video(tmp_path_factory, pictures):
    return clip.encode(pictures, tmp_path_factory.mktemp("clips") / "small.mp4", gop=16)
