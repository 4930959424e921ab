"""The predictive library as Liberty text: delays, transitions, constraints, energies, leakage, wire load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from synth.library.cells import (
    CLOCK_FINGERS,
    CLOCK_INVERTER,
    DATA_FINGERS,
    GATE_CLOCK_FINGERS,
    SETUP_PATH,
    Cell,
    Stage,
    cells,
)
from synth.library.technology import Technology

SLEWS_PS = (2.0, 6.0, 15.0, 40.0, 100.0, 250.0)  # 20 to 80 % of the swing
LOADS = (0.5, 2.0, 5.0, 12.0, 30.0, 80.0)  # in gate fingers
_SWING = 0.6  # share of the transition between the slew thresholds
_EDGES = {"rise": True, "fall": False}


def library_text(technology: Technology | None = None) -> str:
    """The Liberty text of the predictive library: ps, fF, V, nW, fJ."""
    return "\n".join(_library(technology or Technology())) + "\n"


def path_ps(
    t: Technology, stages: Sequence[Stage], rising: bool, slew_ps: float, load_ff: float
) -> tuple[float, float]:
    """Delay and output slew of a chain of stages whose output rises or falls.

    Each stage: Sakurai and Newton's delay, a step part R(C + C_load) and a share of the input's transition time.
    """
    delay, transition = 0.0, slew_ps / _SWING
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        edge = rising == ((len(stages) - 1 - number) % 2 == 0)
        load = stage.drains * t.drain_ff + stage.load * t.gate_ff + (load_ff if last else 0.0)
        step = t.ps_per_ff * t.stack_resistance(stage.up if edge else stage.down) / stage.fingers * load
        delay += step + t.slew_share * transition
        transition = t.slew_gain * step
    return delay, transition * _SWING


def _library(t: Technology) -> Iterator[str]:
    slews = ", ".join(f"{slew:g}" for slew in SLEWS_PS)
    loads = ", ".join(f"{load * t.gate_ff:.4f}" for load in LOADS)
    yield f"""library ({t.name}) {{
  comment : "Predictive, generated from published facts: synth/library/technology.py lists each with its source";
  delay_model : table_lookup;
  time_unit : "1ps";
  voltage_unit : "1V";
  current_unit : "1uA";
  pulling_resistance_unit : "1kohm";
  leakage_power_unit : "1nW";
  capacitive_load_unit (1, ff);
  slew_upper_threshold_pct_rise : 80;
  slew_lower_threshold_pct_rise : 20;
  slew_upper_threshold_pct_fall : 80;
  slew_lower_threshold_pct_fall : 20;
  input_threshold_pct_rise : 50;
  input_threshold_pct_fall : 50;
  output_threshold_pct_rise : 50;
  output_threshold_pct_fall : 50;
  nom_process : 1;
  nom_voltage : {t.voltage_v:g};
  nom_temperature : {t.temperature_c:g};
  operating_conditions (typical) {{ process : 1; voltage : {t.voltage_v:g}; temperature : {t.temperature_c:g}; }}
  default_operating_conditions : typical;
  wire_load (placed) {{ resistance : 0; capacitance : {t.wire_ff:.4f}; area : 0; slope : 1; fanout_length (1, 1); }}
  default_wire_load : placed;
  lu_table_template (delay) {{
    variable_1 : input_net_transition; variable_2 : total_output_net_capacitance;
    index_1 ("{slews}"); index_2 ("{loads}");
  }}
  lu_table_template (constraint) {{
    variable_1 : related_pin_transition; variable_2 : constrained_pin_transition;
    index_1 ("{slews}"); index_2 ("{slews}");
  }}"""
    for cell in cells():
        yield from _cell(t, cell)
    yield "}"


def _cell(t: Technology, cell: Cell) -> Iterator[str]:
    single = cell.columns - 1 - cell.stacked
    leakage = t.leakage_nw(single) + (t.leakage_nw(cell.stacked) + t.leakage_nw(cell.stacked, 2)) / 2
    yield f"  cell ({cell.name}) {{\n    area : {t.area_um2(cell.columns):.6f};"
    yield f"    cell_leakage_power : {leakage:.4f};"
    sequential = dict(cell.sequential)
    kind = sequential.pop("kind", None)
    if kind == "gate":
        yield '    clock_gating_integrated_cell : "latch_posedge";'
        yield '    statetable ("CK E", "IQ") { table : "L L : - : L, L H : - : H, H - : - : N"; }'
        yield '    pin (IQ) { direction : internal; internal_node : "IQ"; }'
    elif kind:
        body = " ".join(f'{key} : "{value}";' for key, value in sequential.items())
        yield f"    {kind} (IQ, IQN) {{ {body} }}"
    for pin, fingers in cell.inputs.items():
        yield from _input(t, cell, pin, fingers, kind)
    for pin, function in cell.functions.items():
        yield from _output(t, cell, pin, function, kind)
    yield "  }"


def _input(t: Technology, cell: Cell, pin: str, fingers: int, kind: str | None) -> Iterator[str]:
    yield f"    pin ({pin}) {{ direction : input; capacitance : {fingers * t.gate_ff:.4f};"
    clock = kind is not None and pin in ("CK", "G")
    if clock:
        yield "      clock : true;"
    if kind == "gate":
        yield f"      clock_gate_{'clock' if clock else 'enable'}_pin : true;"
    if kind in ("ff", "gate"):
        clock_fingers = CLOCK_FINGERS if kind == "ff" else GATE_CLOCK_FINGERS
        hidden = {"CK": clock_fingers, "D": DATA_FINGERS}.get(pin, 1.0)
        energy = _energy_fj(t, hidden)
        yield "      internal_power () {"
        yield "".join(f'        {edge}_power (scalar) {{ values ("{energy:.6f}"); }}\n' for edge in _EDGES) + "      }"
    if kind in ("ff", "gate") and pin in ("D", "E"):
        setup, hold = [], []
        for clock_slew in SLEWS_PS:
            clock_ps = path_ps(t, (CLOCK_INVERTER,), True, clock_slew, 0.0)[0]
            data = [max(path_ps(t, SETUP_PATH, edge, slew, 0.0)[0] for edge in (True, False)) for slew in SLEWS_PS]
            input_ps = [path_ps(t, SETUP_PATH[:1], True, slew, 0.0)[0] for slew in SLEWS_PS]
            setup.append([max(0.0, value - clock_ps) for value in data])
            hold.append([clock_ps - value for value in input_ps])
        for name, rows in (("setup_rising", setup), ("hold_rising", hold)):
            yield f'      timing () {{ related_pin : "CK"; timing_type : {name};'
            yield "".join(_table(f"{edge}_constraint", "constraint", rows) for edge in _EDGES) + "      }"
    yield "    }"


def _output(t: Technology, cell: Cell, pin: str, function: str, kind: str | None) -> Iterator[str]:
    drive = max(chains[0][-1].fingers for (_, out), chains in cell.paths.items() if out == pin)
    attribute = "clock_gate_out_pin : true; state_function" if kind == "gate" else "function"
    yield f'    pin ({pin}) {{ direction : output; {attribute} : "{function}";'
    yield f"      max_capacitance : {drive * LOADS[-1] * t.gate_ff:.3f};"
    for (source, target), chains in cell.paths.items():
        if target != pin:
            continue
        yield f'      timing () {{ related_pin : "{source}";'
        if kind == "gate":
            yield "        timing_sense : positive_unate;"
        elif kind and source in ("CK", "G"):
            yield "        timing_type : rising_edge; timing_sense : non_unate;"
        else:
            yield f"        timing_sense : {cell.senses[source, target]};"
        for edge, rising in _EDGES.items():
            grid = [
                [max(path_ps(t, c, rising, slew, load * t.gate_ff) for c in chains) for load in LOADS]
                for slew in SLEWS_PS
            ]
            yield _table(f"cell_{edge}", "delay", [[delay for delay, _ in row] for row in grid]).rstrip()
            yield _table(f"{edge}_transition", "delay", [[slew for _, slew in row] for row in grid]).rstrip()
        yield "      }"
        # energy inside the cell: drains and gates on the path, without the output load
        longest = max(chains, key=len)
        fingers = sum(t.parasitic * stage.drains + stage.load for stage in longest) + cell.hidden
        energy = _energy_fj(t, fingers)
        yield f'      internal_power () {{ related_pin : "{source}";'
        yield "".join(f'        {edge}_power (scalar) {{ values ("{energy:.6f}"); }}\n' for edge in _EDGES) + "      }"
    yield "    }"


def _energy_fj(t: Technology, fingers: float) -> float:
    """Energy of one transition of the capacitance of `fingers` gate fingers: half of C V^2.

    Short-circuit current is neglected: at 0.8 V both devices conduct only within V - 2 V_th = 0.1 V of the swing.
    """
    return 0.5 * fingers * t.gate_ff * t.voltage_v**2


def _table(name: str, template: str, rows: Sequence[Sequence[float]]) -> str:
    values = ", ".join('"' + ", ".join(f"{value:.4f}" for value in row) + '"' for row in rows)
    return f"        {name} ({template}) {{ values ({values}); }}\n"
