"""Sizes of both units of the KV cache with 8 bits."""

import pytest

from hw.config import PRESETS, Config
from hw.emit import to_rtlil
from hw.kv_codec.bfp_decoder import BfpDecoder
from hw.kv_codec.bfp_encoder import BfpEncoder

UNITS = {"bfp_encoder": BfpEncoder, "bfp_decoder": BfpDecoder}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", UNITS)
def test_every_preset_elaborates(name, preset):
    config = Config.preset(preset)
    unit = UNITS[name].from_config(config)
    assert unit.lanes == config.dpe_inputs
    assert f"module \\{name}" in to_rtlil(unit, name)


@pytest.mark.parametrize("lanes", [2, 12])
@pytest.mark.parametrize("name", UNITS)
def test_bad_parameters(name, lanes):
    with pytest.raises(ValueError, match=f"lanes must be a power of two, at least 4, got {lanes}"):
        UNITS[name](lanes=lanes)
