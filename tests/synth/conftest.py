"""Keeps what the tests build of synthesis in one cache for the whole run, and shared libraries."""

import pytest

from synth.library.reader import Library, embedded


@pytest.fixture(scope="session")
def predictive() -> Library:
    return embedded()
