"""Skips the evaluation of separately built modules in cycles in which nothing in them can change.

Verilator evaluates a separately built module (`--hierarchical`) three times in every cycle, also when its inputs are
constant. At the size `paper` the 64 MAC trees take three quarters of the simulator's time, and most of them wait for
weights. The functions here put a C++ wrapper around the calls of such a module. The wrapper compares the inputs with
those of the last call and counts the clock edges since they changed.
"""

import re
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

UPDATES = ("combo_update", "seq_update")  # of the inputs and of the clock, as Verilator names them


@runtime_checkable
class Settling(Protocol):
    """A module without counters or other state that changes while its inputs are constant.

    settling : clock edges with constant inputs after which all registers are constant
    enables : inputs that have no effect while another input, of one bit, is 0
    """

    settling: int
    enables: Mapping[str, str]


def link_options(name: str) -> list[str]:
    """Options of the linker that send the calls of module `name` to the wrapper."""
    return [f"-Wl,--wrap={name}_protectlib_{update}" for update in UPDATES]


def wrapper(verilog: str, name: str, module: Settling) -> str:
    """C++ of the wrapper around module `name`, whose clock is `clk`. `verilog` is the text that contains the module.

    Raises
    ------
    ValueError
        When an entry of `enables` is not an input of the module.
    """
    ports = _ports(verilog, name)
    inputs = {port: width for port, (direction, width) in ports.items() if direction == "input" and port != "clk"}
    if unknown := {*module.enables, *module.enables.values()} - set(inputs):
        raise ValueError(f"module {name} has no input {', '.join(sorted(unknown))}")
    outputs = {port: width for port, (direction, width) in ports.items() if direction == "output"}
    enabled = {port: f"({enable} & 1) && " for port, enable in module.enables.items()}
    passed = ", ".join(port for port in ports if port != "clk")
    parameters = ", ".join(_parameter(port, *ports[port]) for port in ports if port != "clk")
    results = ", ".join(_parameter(port, "output", width) for port, width in outputs.items())
    lines = {
        "FIELDS": [f"    svLogicVecVal {port}[{_words(width)}];" for port, width in {**inputs, **outputs}.items()],
        "CHANGES": [
            f"    changed |= {enabled.get(port, '')}differs(s.{port}, {_pointer(port, width)}, {_words(width)});"
            for port, width in inputs.items()
        ],
        "STORE": [
            f"        store(s.{port}, {_pointer(port, width)}, {_words(width)});" for port, width in inputs.items()
        ],
        "KEEP": [f"    store(s.{port}, {_pointer(port, width)}, {_words(width)});" for port, width in outputs.items()],
        "RETURN": [
            f"    {'*' * (width == 1)}{port} = s.{port}[0].aval;" if width == 1 else
            f"    std::memcpy({port}, s.{port}, sizeof s.{port});"
            for port, width in outputs.items()
        ],
    }  # fmt: skip
    text = _TEMPLATE
    for mark, rows in lines.items():
        text = text.replace(f"@{mark}@", "\n".join(rows))
    for mark, value in (
        ("PREFIX", f"{name}_protectlib"), ("PARAMETERS", parameters), ("PASSED", passed), ("RESULTS", results),
        ("OUTPUTS", ", ".join(outputs)), ("SETTLING", str(module.settling)),
    ):  # fmt: skip
        text = text.replace(f"@{mark}@", value)
    return text


def _ports(verilog: str, name: str) -> dict[str, tuple[str, int]]:
    """Direction and width of each port of a module, in order of its header."""
    header = re.search(rf"^module {name}\((.*?)\);(.*?)^endmodule", verilog, re.M | re.S)
    if header is None:
        raise ValueError(f"the Verilog has no module {name}")
    found = {}
    for direction, high, port in re.findall(r"^  (input|output) (?:\[(\d+):0\] )?(\w+);", header[2], re.M):
        found[port] = (direction, int(high or 0) + 1)
    return {port.strip(): found[port.strip()] for port in header[1].split(",")}


def _words(width: int) -> int:
    return -(-width // 32)


def _pointer(port: str, width: int) -> str:
    return f"bits({port}).data()" if width == 1 else port


def _parameter(port: str, direction: str, width: int) -> str:
    if width == 1:
        return f"svLogic{'*' * (direction == 'output')} {port}"
    return f"{'const ' * (direction == 'input')}svLogicVecVal* {port}"


_TEMPLATE = """\
#include <array>
#include <cstring>
#include <unordered_map>
#include "svdpi.h"

namespace {

struct State {
@FIELDS@
    bool started = false;
    bool clock = false;  // as the module saw it last
    int settled = 0;  // clock edges since an input changed
    long long number = 0;  // of the last call
};

std::unordered_map<void*, State> states;

std::array<svLogicVecVal, 1> bits(svLogic bit) { return {{{bit, 0}}}; }
bool differs(const svLogicVecVal* a, const svLogicVecVal* b, int words) {
    return std::memcmp(a, b, words * sizeof *a) != 0;
}
void store(svLogicVecVal* to, const svLogicVecVal* from, int words) { std::memcpy(to, from, words * sizeof *to); }

}  // namespace

extern "C" {

long long __real_@PREFIX@_combo_update(void* handle, @PARAMETERS@);
long long __real_@PREFIX@_seq_update(void* handle, svLogic clk, @RESULTS@);

long long __wrap_@PREFIX@_combo_update(void* handle, @PARAMETERS@) {
    State& s = states[handle];
    bool changed = !s.started;
@CHANGES@
    if (changed) {
@STORE@
        __real_@PREFIX@_combo_update(handle, @PASSED@);
@KEEP@
        s.started = true;
        s.settled = 0;
    }
@RETURN@
    return ++s.number;
}

long long __wrap_@PREFIX@_seq_update(void* handle, svLogic clk, @RESULTS@) {
    State& s = states[handle];
    if (clk && s.settled < @SETTLING@) {
        if (s.clock) __real_@PREFIX@_seq_update(handle, 0, @OUTPUTS@);
        __real_@PREFIX@_seq_update(handle, 1, @OUTPUTS@);
@KEEP@
        s.clock = true;
        ++s.settled;
    }
@RETURN@
    return ++s.number;
}

}
"""
