"""Compiler wrapper that caches the objects of Verilator's and cocotb's own sources, most of the work of a small build.

Verilator's makefiles call it through `OBJCACHE`: `object_cache.py FOLDER [ccache] g++ ... -o OBJECT SOURCE`. It caches
the sources of Verilator's library, and cocotb's main program for designs with equally many ports. All other sources
and those that are not in the cache go to the compiler, through ccache where it is installed.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

MAIN, HEADER = "verilator", "Vtop.h"  # cocotb's main program, and the class of the design that it allocates
PORT = re.compile(r"\bVL_(?:IN|OUT|INOUT)\w*\(&\w+,[^)]*\)")  # each is a reference, whatever its name and width


def compile(folder: Path, command: list[str]) -> int:
    """Run the compiler, or copy the cached object of an equal command; returns the exit status."""
    source = Path(command[-1])
    if not source.stem.startswith(("verilated", MAIN)) or "-o" not in command:
        return subprocess.run(command, check=False).returncode
    plain = command[Path(command[0]).name == "ccache" :]
    target = Path(command[command.index("-o") + 1])
    compiler = Path(shutil.which(plain[0]) or plain[0]).resolve()
    key_text = f"{compiler}\0{compiler.stat().st_mtime_ns}\0" + "\0".join(plain)
    if source.stem == MAIN:
        key_text += PORT.sub("", Path(HEADER).read_text())
    key = hashlib.sha256(key_text.encode() + source.read_bytes()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    cached = folder / f"{source.stem}-{key}.o"
    with (folder / f"{cached.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # builds that run side by side compile once
        if not cached.exists():
            status = subprocess.run(command, check=False).returncode
            if status:
                return status
            temporary = cached.with_suffix(".part")
            shutil.copyfile(target, temporary)
            temporary.replace(cached)
    shutil.copyfile(cached, target)
    return 0


if __name__ == "__main__":
    sys.exit(compile(Path(sys.argv[1]), sys.argv[2:]))
