"""The compiler wrapper reuses an object only when source, flags and compiler are equal."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from sim.bench.object_cache import compile


@pytest.fixture
def compiler(tmp_path):
    """A compiler that writes its flags and source, counts its calls and fails on the word `bad`."""
    tool = tmp_path / "g++"
    tool.write_text(
        "#!/bin/sh\n"
        f'echo call >> "{tmp_path}/calls"\n'
        'while [ "$#" -gt 1 ]; do [ "$1" = -o ] && out="$2"; flags="$flags $1"; shift; done\n'
        'grep -q bad "$1" && exit 3\n'
        '(echo "$flags"; cat "$1") > "$out"\n'
    )
    tool.chmod(0o755)

    def run(text, *flags, name="verilated_vpi.cpp", out="o.o"):
        (tmp_path / name).write_text(text)
        target = tmp_path / out
        target.unlink(missing_ok=True)
        status = compile(tmp_path / "cache", [str(tool), *flags, "-c", "-o", str(target), str(tmp_path / name)])
        calls = (tmp_path / "calls").read_text().count("call")
        return status, calls, target.read_text() if target.exists() else None

    return run


def test_compiles_once(compiler):
    assert compiler("one", "-Os") == (0, 1, compiler("one", "-Os")[2])
    assert compiler("one", "-Os")[:2] == (0, 1)
    assert compiler("two", "-Os")[1] == 2  # another source
    assert compiler("two", "-O0")[1] == 3  # other flags
    assert compiler("two", "-O0")[2].endswith("two")
    assert compiler("one", "-Os")[1] == 3 and compiler("one", "-Os")[2].endswith("one")


def test_main_program_is_cached_by_the_ports(compiler, tmp_path, monkeypatch):
    """It allocates the class of the design, whose size follows from the number of ports, not from their widths."""
    monkeypatch.chdir(tmp_path)
    for ports, calls in (("clk 1", 1), ("clk 1", 1), ("rst 32", 1), ("clk 1 rst 1", 2), ("clk 1", 2), ("a 8 b 200", 2)):
        names = zip(ports.split()[::2], map(int, ports.split()[1::2]), strict=True)
        lines = [f"VL_IN{'W' if n > 64 else n}(&{port},{n - 1},0{',7' if n > 64 else ''});\n" for port, n in names]
        (tmp_path / "Vtop.h").write_text("class Vtop {\n" + "".join(lines) + "};\n")
        assert compiler("main", name="verilator.cpp")[1] == calls, ports


def test_another_compiler_compiles_again(compiler, tmp_path):
    assert compiler("one")[1] == 1
    os.utime(tmp_path / "g++", ns=(1, 1))
    assert compiler("one")[1] == 2


def test_objects_of_designs_are_not_cached(compiler):
    for call in (1, 2):
        assert compiler("one", name="Vtop__ALL.cpp")[:2] == (0, call)


def test_headers_of_a_design_in_one_file_are_compiled_once(compiler, tmp_path):
    include = tmp_path / "include"
    include.mkdir()
    (include / "verilated.h").write_text("// one")

    def design(*flags):
        status, calls, text = compiler("one", f"-I{include}", *flags, name="Vtop__ALL.cpp")
        assert status == 0 and text.endswith("one")
        (header,) = re.findall(r"-include (\S+\.h)\b", text)
        assert Path(f"{header}.gch").read_text().splitlines()[1:] == Path(header).read_text().splitlines()
        return calls, header

    calls, header = design("-Og")
    assert calls == 2 and design("-Og") == (3, header)
    calls, other = design("-O0")  # other options
    assert calls == 5 and other != header
    (include / "verilated.h").write_text("// another library")
    calls, other = design("-Og")
    assert calls == 7 and other != header


def test_design_without_library_or_with_broken_headers_is_compiled(compiler, tmp_path):
    assert compiler("one", f"-I{tmp_path}", name="Vtop__ALL.cpp")[1] == 1
    (tmp_path / "verilated.h").write_text("")
    (tmp_path / "g++").write_text((tmp_path / "g++").read_text().replace("bad", "dpi"))  # fails on the headers
    os.utime(tmp_path / "g++", ns=(2, 2))
    status, calls, text = compiler("one", f"-I{tmp_path}", name="Vtop__ALL.cpp")
    assert (status, calls) == (0, 3) and "-include" not in text


def test_call_without_object_is_passed_on(tmp_path):
    (tmp_path / "verilated.cpp").write_text("")
    assert compile(tmp_path / "cache", ["false", str(tmp_path / "verilated.cpp")]) == 1
    assert compile(tmp_path / "cache", ["true", str(tmp_path / "Vtop__0.cpp")]) == 0
    assert not (tmp_path / "cache").exists()


def test_failures_are_passed_on_and_not_cached(compiler):
    for call in (1, 2):
        assert compiler("bad") == (3, call, None)


def test_unknown_compiler_raises_error(tmp_path):
    (tmp_path / "verilated.cpp").write_text("")
    with pytest.raises((OSError, subprocess.SubprocessError)):
        compile(tmp_path / "cache", [str(tmp_path / "none"), "-o", "x.o", str(tmp_path / "verilated.cpp")])
