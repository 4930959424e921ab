"""The main job's steps on their own: the pictures that it keeps, and an RTL that is wrong."""

import pytest

from cli.demo import steps
from hw.config import Config
from hw.dre.hcu import HCU
from sim.ports import cluster_rule
from sw_model.media import clip
from sw_model.media.clip import Clip


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = clip.encode(clip.synthesise(20, width=96, height=64), tmp_path_factory.mktemp("film") / "film.mp4")
    unit = HCU.from_config(Config.preset("tiny"))
    rule = cluster_rule(unit, hamming_threshold=4, window_tokens=40)
    options = {"hash_bits": unit.hash_bits, "layers": 1, "grid": 1, "rule": rule}
    return steps.cluster_video(Clip(path, "film", "", ""), **options, progress=lambda *told: None), unit, rule


def test_few_pictures_of_a_long_video(video):
    made, _, _ = video
    assert [picture.index for picture in made.pictures] == list(range(0, 16, 2)) and made.frames == 20


def test_an_rtl_that_differs_is_named(video, monkeypatch):
    made, unit, rule = video
    real = steps.simulate

    def wrong(*arguments, **options):
        record = real(*arguments, **options)
        record.outputs["o"]["count"][3] += 1
        return record

    assert steps.through_rtl(made, unit, rule).tokens == 40
    monkeypatch.setattr(steps, "simulate", wrong)
    with pytest.raises(ArithmeticError, match=r"the RTL differs from the golden model: .*'count': 1"):
        steps.through_rtl(made, unit, rule)
