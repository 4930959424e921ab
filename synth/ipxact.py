"""IP-XACT description of a register map, exported from SystemRDL by peakrdl-ipxact where that package is installed.

The package is not a dependency: its licence is GPL-3.0. The `dev` extra installs it.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

PACKAGE = "peakrdl_ipxact"
VENDOR, LIBRARY = "vrex", "ip"  # as in the FuseSoC core file


def installed() -> bool:
    """Whether `ipxact` can export."""
    return importlib.util.find_spec(PACKAGE) is not None


def ipxact(systemrdl: str, version: str) -> str:
    """The last address map of a SystemRDL text as an IP-XACT component (IEEE 1685-2014) of the given version.

    Raises
    ------
    ModuleNotFoundError
        peakrdl-ipxact is not installed.
    """
    from peakrdl_ipxact import IPXACTExporter
    from systemrdl import RDLCompiler

    with tempfile.TemporaryDirectory(prefix="ipxact-") as folder:
        source, target = Path(folder) / "registers.rdl", Path(folder) / "component.xml"
        source.write_text(systemrdl)
        compiler = RDLCompiler()
        compiler.compile_file(str(source))
        exporter = IPXACTExporter(vendor=VENDOR, library=LIBRARY, version=version)
        exporter.export(compiler.elaborate().top, str(target))
        return target.read_text(encoding="utf-8")
