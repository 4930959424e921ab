"""Overrides of the source and of the simulator: which one counts, and when it ends."""

import pytest

from sim.bench.build import build_settings
from sim.bench.override import (
    current_simulator_override,
    current_source_override,
    simulator_override,
    source_override,
)
from sim.bench.run import run_module


def test_innermost_override_counts_until_its_block_ends():
    outer, inner = (lambda component, name: {}), (lambda component, name: {})
    session = current_simulator_override()
    assert current_source_override() is None
    with source_override(outer), simulator_override(outer):
        with source_override(inner), simulator_override(inner):
            assert current_source_override() is inner and current_simulator_override() is inner
        assert current_source_override() is outer and current_simulator_override() is outer
    assert current_source_override() is None and current_simulator_override() is session


def test_exception_ends_override():
    session = current_simulator_override()
    with pytest.raises(KeyError), source_override(lambda component, name: {}), simulator_override(print):
        raise KeyError
    assert current_source_override() is None and current_simulator_override() is session


def test_simulator_override_gets_build_module_folder_and_environment(tmp_path):
    calls = []
    with simulator_override(lambda *arguments: calls.append(arguments)):
        run_module("build", "module", tmp_path, environment={"KEY": "value"})
    assert calls == [("build", "module", tmp_path, {"KEY": "value"})]


def test_build_settings_depend_on_source_override():
    before = build_settings()
    with source_override(lambda component, name: {}):
        assert build_settings() != before
    assert build_settings() == before
