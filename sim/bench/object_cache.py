"""Compiler wrapper that caches what builds share: objects of Verilator's and cocotb's own sources, and its headers.

Verilator's makefiles call it through `OBJCACHE`: `object_cache.py FOLDER [ccache] g++ ... -o OBJECT SOURCE`. It caches
the objects of Verilator's library, and of cocotb's main program for designs with equally many ports. A design that is
one C++ file is compiled with Verilator's headers precompiled, which take more time than a small design. All other
sources and those that are not in the cache go to the compiler, through ccache where it is installed.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAIN, HEADER = "verilator", "Vtop.h"  # cocotb's main program, and the class of the design that it allocates
PORT = re.compile(r"\bVL_(?:IN|OUT|INOUT)\w*\(&\w+,[^)]*\)")  # each is a reference, whatever its name and width
ONE_FILE = "__ALL.cpp"  # a design that is one C++ file; Verilator itself precompiles headers for designs of several
LIBRARY, HEADERS = "verilated.h", ("verilated.h", "verilated_dpi.h")


def compile(folder: Path, command: list[str]) -> int:
    """Run the compiler, or copy the cached object of an equal command; returns the exit status."""
    source = Path(command[-1])
    if "-o" not in command:
        return subprocess.run(command, check=False).returncode
    if source.name.endswith(ONE_FILE):
        return subprocess.run([*command[:-1], *_headers(folder, command), command[-1]], check=False).returncode
    if not source.stem.startswith(("verilated", MAIN)):
        return subprocess.run(command, check=False).returncode
    plain = command[Path(command[0]).name == "ccache" :]
    target = Path(command[command.index("-o") + 1])
    key_text = _compiler(plain[0]) + "\0".join(plain)
    if source.stem == MAIN:
        key_text += PORT.sub("", Path(HEADER).read_text())
    key = hashlib.sha256(key_text.encode() + source.read_bytes()).hexdigest()[:16]
    cached = folder / f"{source.stem}-{key}.o"
    with _locked(cached):  # builds that run side by side compile once
        if not cached.exists():
            status = subprocess.run(command, check=False).returncode
            if status:
                return status
            temporary = cached.with_suffix(".part")
            shutil.copyfile(target, temporary)
            temporary.replace(cached)
    shutil.copyfile(cached, target)
    return 0


def _headers(folder: Path, command: list[str]) -> list[str]:
    """Options that include Verilator's headers, precompiled with the options of `command`.

    Nothing with ccache, which does not cache an object of precompiled headers. The compiler ignores precompiled headers
    of other options and reads the headers instead.
    """
    paths = [Path(word[2:], LIBRARY) for word in command if word.startswith("-I")]
    library = next((path for path in paths if path.exists()), None)
    if library is None or Path(command[0]).name == "ccache":
        return []
    at = command.index("-o")
    options = [word for word in [*command[:at], *command[at + 2 : -1]] if word not in ("-c", "-MMD")]
    key_text = _compiler(command[0]) + "\0".join([*options, str(library.stat().st_mtime_ns)])
    key = hashlib.sha256(key_text.encode() + library.read_bytes()).hexdigest()[:16]
    header = folder / f"headers-{key}.h"
    compiled = header.with_suffix(".h.gch")
    with _locked(compiled):
        if not compiled.exists():
            header.write_text("".join(f'#include "{name}"\n' for name in HEADERS))
            temporary = folder / f"headers-{key}.part"
            if subprocess.run(
                [*options, "-x", "c++-header", "-o", str(temporary), str(header)], check=False
            ).returncode:
                return []
            temporary.replace(compiled)
    return ["-include", str(header)]


def _compiler(name: str) -> str:
    """Path and time of the compiler, which are part of a key."""
    path = Path(shutil.which(name) or name).resolve()
    return f"{path}\0{path.stat().st_mtime_ns}\0"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(compile(Path(sys.argv[1]), sys.argv[2:]))
