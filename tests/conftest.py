"""Shared options and fixtures: the seed of each test, simulators, and the `heavy` marker."""

import contextlib
import gc
import hashlib
import os
import signal
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in vrex.py; the test workers already share the cores

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="base of the seed of every test (default 1)")
    parser.addoption("--seeded", action="store_true", help="only run the tests that depend on --seed")
    parser.addoption("--sim", choices=("verilator", "icarus"), help="simulator of tests that do not select one")
    parser.addoption("--waves", action="store_true", help="keep waveforms in build/sim/runs")
    parser.addoption("--coverage", action="store_true", help="keep line and toggle coverage in build/sim/runs")
    parser.addoption("--gates", action="store_true", help="simulate mapped netlists instead of the RTL")
    parser.addoption("--unknown", action="store_true", help="start registers and memories with X (needs --sim icarus)")
    parser.addoption("--torch-device", default="cpu", help="PyTorch device of the models in tests of the KV cache")
    parser.addoption("--heavy", action="store_true", help="also run the tests marked heavy")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell ignores SIGINT for background commands
        signal.signal(signal.SIGINT, signal.default_int_handler)  # programs under test must not inherit SIG_IGN
    for option, variable in (("--sim", "VREX_SIM"), ("--waves", "VREX_WAVES"), ("--coverage", "VREX_COVERAGE")):
        if value := config.getoption(option):
            os.environ[variable] = str(value)
    if not config.getoption("--heavy"):
        os.environ.setdefault("VREX_OPTIMIZE", "-Og")  # most simulations are shorter than a build


@pytest.fixture(scope="session", autouse=True)
def _evidence(tmp_path_factory: pytest.TempPathFactory):
    """Commands that tests run write their records of evidence to a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VREX_EVIDENCE", str(tmp_path_factory.mktemp("evidence")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _sources(request: pytest.FixtureRequest):
    """Simulate mapped netlists (`--gates`) or RTL without initial values (`--unknown`)."""
    if request.config.getoption("--gates"):
        from synth.gates import of_component as sources
    elif request.config.getoption("--unknown"):
        from sim.bench.power_up import unknown_at_power_up as sources
    else:
        yield
        return
    from sim.bench.override import source_override

    with source_override(sources):
        yield


@pytest.fixture(scope="session", autouse=True)
def _servers():
    """Simulate in forks of running simulators, unless a mutation campaign does so already."""
    from sim.bench.override import current_simulator_override, simulator_override
    from sim.bench.server import Servers

    if current_simulator_override() is not None:
        yield
        return
    with contextlib.closing(Servers()) as servers, simulator_override(servers):
        yield


def pytest_collection_finish() -> None:
    """Collect garbage rarely: a collection scans all modules and test items, and took an eighth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def runs(item: pytest.Item) -> bool:
        if "heavy" in item.keywords and not config.getoption("--heavy"):
            return False
        # fixtures of fixtures count; only the fixture `seed` reads --seed (tests/test_structure.py)
        return not config.getoption("--seeded") or "seed" in getattr(item, "fixturenames", ())

    config.hook.pytest_deselected(items=[item for item in items if not runs(item)])
    items[:] = [item for item in items if runs(item)]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Seed of this test: a hash of the option `--seed` and the test ID."""
    text = f"{request.config.getoption('--seed')}:{request.node.nodeid}"
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    request.node.user_properties.append(("seed", value))
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random generator with the seed of this test."""
    return np.random.default_rng(seed)


@pytest.fixture
def own_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder of builds; it shares only the objects of Verilator's library."""
    from sim.bench.build import build_root

    objects = build_root() / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "objects").symlink_to(objects)
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    outcome = yield
    report = outcome.get_result()
    if report.failed and (seed := dict(item.user_properties).get("seed")) is not None:
        report.sections.append(
            ("seed", f"--seed {item.config.getoption('--seed')} results in seed {seed} of this test")
        )
