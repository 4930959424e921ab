"""A technology with one cell and a layout of two inverters by hand."""

from types import SimpleNamespace

import pytest

from synth.layout.design import Design, Port
from synth.layout.lef import parse
from synth.layout.placement import PinPlace, Place, Placement
from synth.layout.routing import unrouted_def

LEF = """
VERSION 5.4 ;
LAYER metal1
  TYPE ROUTING ;
  DIRECTION HORIZONTAL ;
  PITCH 1 ;
  WIDTH 0.3 ;
  SPACING 0.3 ;
  RESISTANCE RPERSQ 0.08 ;
  CAPACITANCE CPERSQDIST 4e-05 ;
  EDGECAPACITANCE 8e-05 ;
END metal1
LAYER via
  TYPE CUT ;
END via
LAYER metal2
  TYPE ROUTING ;
  DIRECTION VERTICAL ;
  PITCH 0.8 ;
  WIDTH 0.3 ;
  SPACING 0.3 ;
  RESISTANCE RPERSQ 0.06 ;
  CAPACITANCE CPERSQDIST 2e-05 ;
  EDGECAPACITANCE 6e-05 ;
END metal2
LAYER via2
  TYPE CUT ;
END via2
LAYER metal3
  TYPE ROUTING ;
  DIRECTION HORIZONTAL ;
  PITCH 1 ;
  WIDTH 0.3 ;
  SPACING 0.3 ;
  RESISTANCE RPERSQ 0.06 ;
  CAPACITANCE CPERSQDIST 1e-05 ;
  EDGECAPACITANCE 5e-05 ;
END metal3
VIA M2_M1 DEFAULT
  LAYER metal1 ;
    RECT -0.2 -0.2 0.2 0.2 ;
  LAYER via ;
    RECT -0.1 -0.1 0.1 0.1 ;
  LAYER metal2 ;
    RECT -0.2 -0.2 0.2 0.2 ;
END M2_M1
VIARULE generated GENERATE
  LAYER metal1 ;
    WIDTH 0.3 TO 60 ;
END generated
SITE core
  CLASS CORE ;
  SIZE 0.800 BY 10.000 ;
END core
MACRO FILL
  SIZE 0.8 BY 10 ;
  PIN gnd
    DIRECTION INOUT ;
    USE GROUND ;
    PORT
      LAYER metal1 ;
        RECT -0.2 -0.3 1.0 0.3 ;
    END
  END gnd
END FILL
MACRO INV_X1
  CLASS CORE ;
  SIZE 1.6 BY 10 ;
  PIN A
    DIRECTION INPUT ;
    PORT
      LAYER metal1 ;
        RECT 0.2 4.3 0.6 4.7 ;
    END
  END A
  PIN Y
    DIRECTION OUTPUT ;
    PORT
      LAYER metal1 ;
        RECT 1.0 4.3 1.4 4.7 ;
    END
  END Y
  PIN gnd
    DIRECTION INOUT ;
    USE GROUND ;
    PORT
      LAYER metal1 ;
        RECT -0.2 -0.3 1.8 0.3 ;
    END
  END gnd
  OBS
      LAYER metal1 ;
        RECT 0.7 6.0 0.9 8.0 ;
  END
END INV_X1
END LIBRARY
"""

WIRES = """\
- a
+ ROUTED metal1 ( 4400 9500 ) M2_M1
  NEW metal2 ( 4400 9500 ) ( * 500 ) ;
- n
+ ROUTED metal1 ( 5200 9500 ) ( 8400 * ) ;
- y
+ ROUTED metal1 ( 9200 9500 ) M2_M1
  NEW metal2 ( 9200 9500 ) ( * 500 ) ;
"""


def routed(text: str, special: str = "") -> str:
    """DEF text with these wires."""
    head = "UNITS DISTANCE MICRONS 1000 ;\n"
    extra = f"SPECIALNETS 1 ;\n{special}END SPECIALNETS\n" if special else ""
    return f"{head}NETS 3 ;\n{text}END NETS\n{extra}END DESIGN\n"


@pytest.fixture(scope="session")
def pair():
    """Port a, inverter u0, net n, inverter u1, port y: technology, netlist, placement and text of the wires."""
    lef = parse(LEF, "two.lef")
    design = Design(
        name="pair",
        cells={"u0": "INV_X1", "u1": "INV_X1"},
        sources={"u0": "first", "u1": "second"},
        pins={"u0": {"A": "a", "Y": "n"}, "u1": {"A": "n", "Y": "y"}},
        ports=(Port("a", "a", False, ("a", 0)), Port("y", "y", True, ("y", 0))),
        bits={"a": 2, "n": 4, "y": 3},
        constants={},
    )
    placement = Placement(
        width=16000,
        height=20000,
        cells={"u0": Place(4000, 5000, "N"), "u1": Place(8000, 5000, "N")},
        pins={"a": PinPlace("metal2", 4400, 500), "y": PinPlace("metal2", 9200, 500)},
        fillers={},
        rows=((4000, 5000, 10, "N"),),
        utilisation=0.4,
    )
    assert "- u1 INV_X1 + PLACED ( 8000 5000 ) N ;" in unrouted_def(design, lef, placement)
    return SimpleNamespace(lef=lef, design=design, placement=placement, text=WIRES, routed=routed)
