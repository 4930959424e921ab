"""The system model and the quality table treat a policy by its attributes, never by its name or class."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from sw_model import workloads
from sw_model.compare import compare
from sw_model.explain import retrieved
from sw_model.media.generator import Generator, GeneratorConfig
from sw_model.media.stream import Geometry
from sw_model.model import run
from sw_model.policies import POLICIES, Policy
from sw_model.policies.base import MACHINES
from sw_model.policies.rekv import ReKV
from sw_model.quality import policies_for, quality_table
from sw_model.request import Request
from sw_model.systems import load_system, preset_names

ROOT = Path(__file__).resolve().parents[3]
GEOMETRY = Geometry(layers=2, q_heads=4, kv_heads=2, head_dim=16, theta=10_000.0)
# modules that use policies; sw_model/policies defines them, and sw_model/papers compares published ones by name
SOURCES = [*(ROOT / "sw_model").glob("*.py"), *(ROOT / "cli" / "commands").glob("*.py")]


@pytest.fixture
def renamed(request, tmp_path):
    """The path of a user's file that defines the policy of `request.param` under another name."""
    policy = POLICIES[request.param]
    file = tmp_path / "renamed.py"
    base = f"from {policy.__module__} import {policy.__name__} as Base\n"
    file.write_text(f'{base}class Renamed(Base):\n    name = "renamed"\n')
    return request.param, str(file)


each_policy = pytest.mark.parametrize("renamed", POLICIES, indirect=True)


@each_policy
@pytest.mark.parametrize("system", preset_names())
def test_renamed_copy_gives_the_same_run(system, renamed):
    name, file = renamed
    machine = load_system(system)
    for workload in (workloads.frame(20_000, batch=2), workloads.text(20_000)):
        for link in ("paper", "realistic"):
            copy = run(machine, file, workload, link=link)
            assert copy.policy == "renamed"
            assert replace(copy, policy=name) == run(machine, name, workload, link=link)


@each_policy
@pytest.mark.parametrize("budget", [None, 2])
def test_renamed_copy_gives_the_same_quality(budget, renamed, seed):
    name, file = renamed
    config = GeneratorConfig(geometry=GEOMETRY, tokens_per_frame=3, sigma_frame=1.5, seed=seed)
    policies = policies_for(GEOMETRY, 3, [name, file], budget)
    rows = quality_table(Generator(config).chunks(12, text_interval=4, text_tokens=2), policies)
    table = {(row.policy, row.stage): row for row in rows}
    assert len(table) == 4
    for stage in ("frame", "text"):
        assert replace(table["renamed", stage], policy=name) == table[name, stage]


@each_policy
def test_renamed_copy_gives_the_same_comparison(renamed):
    name, file = renamed
    own, copy = compare(Request(system="agx-orin"), [name, file], [20_000])
    assert replace(copy, policy=name) == own
    assert retrieved(Request(policy=file)) == retrieved(Request(policy=name))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_policy_is_named_in_the_source(path):
    """No string constant is a policy's name, no identifier is a policy's class, no import is a policy's module."""
    classes = {policy.__name__ for policy in POLICIES.values()}
    files = {policy.__module__ for policy in POLICIES.values()}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant):
            assert node.value not in POLICIES
        if isinstance(node, ast.Name | ast.Attribute | ast.alias):
            name = next(getattr(node, field) for field in ("id", "attr", "name") if hasattr(node, field))
            assert name.split(".")[-1] not in classes and name not in files
        if isinstance(node, ast.ImportFrom):
            assert node.module not in files


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_attributes_name_kinds_of_machine(policy):
    assert policy.offloads_all <= set(MACHINES) and policy.blocking <= set(MACHINES)
    assert {load_system(name).kind for name in preset_names()} == set(MACHINES)


def test_attributes_decide_the_time_on_a_gpu():
    """With the default attributes recent tokens stay in device memory and copies overlap, so a step takes less time."""

    class Overlapped(ReKV):
        name = "overlapped"
        offloads_all = blocking = frozenset()

    machine, step, shape = load_system("agx-orin"), workloads.frame(20_000), workloads.LLAMA3_8B
    assert run(machine, Overlapped(shape), step).total_s < run(machine, ReKV(shape), step).total_s
    assert Policy.offloads_all == Policy.blocking == frozenset()
