"""Shared fixtures: one `--seed`, from which every test derives its own by its id, and the `heavy` marker."""

import hashlib
import os
import signal

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as vrex.py does; two test workers share the cores already

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="seed from which every test derives its own (default 1)")
    parser.addoption("--sim", choices=("verilator", "icarus"), help="simulator of every test that does not name one")
    parser.addoption("--waves", action="store_true", help="keep waveforms in build/sim/runs")
    parser.addoption("--coverage", action="store_true", help="keep line and toggle coverage in build/sim/runs")
    parser.addoption("--gates", action="store_true", help="simulate mapped netlists instead of the RTL")
    parser.addoption("--heavy", action="store_true", help="also run the tests marked heavy")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it for what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # programs under test shall not inherit that
    for option, variable in (("--sim", "VREX_SIM"), ("--waves", "VREX_WAVES"), ("--coverage", "VREX_COVERAGE")):
        if value := config.getoption(option):
            os.environ[variable] = str(value)


@pytest.fixture(scope="session", autouse=True)
def _gates(request: pytest.FixtureRequest):
    if not request.config.getoption("--gates"):
        yield
        return
    from sim.bench.override import source_override
    from synth.gates import of_component

    with source_override(of_component):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--heavy"):
        heavy = [item for item in items if "heavy" in item.keywords]
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if "heavy" not in item.keywords]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """This test's own seed: pytest's `--seed` mixed with the test's id."""
    text = f"{request.config.getoption('--seed')}:{request.node.nodeid}"
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    request.node.user_properties.append(("seed", value))
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A generator seeded for this test alone."""
    return np.random.default_rng(seed)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    outcome = yield
    report = outcome.get_result()
    if report.failed and (seed := dict(item.user_properties).get("seed")) is not None:
        report.sections.append(("seed", f"--seed {item.config.getoption('--seed')} gave this test seed {seed}"))
