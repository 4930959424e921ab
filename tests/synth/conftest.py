"""Shared libraries of the synthesis tests."""

import pytest

from synth.library.reader import Library, embedded


@pytest.fixture(scope="session")
def predictive() -> Library:
    return embedded()
