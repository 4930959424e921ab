"""The state diagrams of the KVMU's README have the names of the states in the code."""

import re
from pathlib import Path

import pytest
from amaranth import Module

from hw.config import PRESETS
from hw.dre.kvmu.access import Access
from hw.dre.kvmu.command import Op
from hw.dre.kvmu.headers import Action
from hw.dre.kvmu.kvmu import KVMU

README = Path(__file__).resolve().parents[4] / "hw" / "dre" / "kvmu" / "README.md"
LABELS = {code.name for codes in (Op, Access, Action) for code in codes}  # these words also label arrows


def diagrams():
    """State diagrams of the README: file -> words in capitals."""
    sections = re.findall(r"^### `(\w+)\.py`\n\n```\n(.*?)^```$", README.read_text(), re.M | re.S)
    return {name: set(re.findall(r"\b[A-Z][A-Z_]+\b", text)) for name, text in sections}


@pytest.fixture(scope="module")
def states():
    """States of every component: file -> names, without those that only wait for the data of a read."""
    names: dict[str, set[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        state = Module.State
        recorded: list[str] = []

        def record(module, name):
            recorded.append(name)
            return state(module, name)

        patch.setattr(Module, "State", record)
        for component in vars(KVMU.from_config(PRESETS["tiny"])._parts()).values():
            recorded.clear()
            component.elaborate(None)
            file = type(component).__module__.rsplit(".", 1)[1]
            names[file] = {name for name in recorded if not name.endswith("_DATA")}
    return {file: machine for file, machine in names.items() if machine}


def test_every_state_machine_has_a_diagram(states):
    assert set(diagrams()) == set(states)


@pytest.mark.parametrize("file", diagrams())
def test_diagram_has_the_states_of_the_code(file, states):
    words = diagrams()[file]
    assert states[file] <= words, f"states that are not in the diagram: {sorted(states[file] - words)}"
    assert words - states[file] <= LABELS, f"words that are no states: {sorted(words - states[file] - LABELS)}"
