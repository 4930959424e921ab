import pytest

from hw import emit, registry
from hw.config import Config
from synth.elaborate import rtlil, sources

TINY = Config.preset("tiny")


def test_a_units_files_are_those_it_imports():
    files = {str(path.relative_to(path.parents[path.parts[::-1].index("hw")])) for path in sources("hw.dre.hcu")}
    assert {"hw/dre/hcu.py", "hw/config.py", "hw/common/memory.py"} <= files
    assert not any(name.startswith(("hw/lxe/", "hw/core/", "golden/")) for name in files)


def test_elaborated_once(tmp_path, monkeypatch):
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    first = rtlil("hcu", TINY)
    assert first == emit.to_rtlil(registry.unit("hcu").build(TINY), "hcu")
    monkeypatch.setattr(emit, "to_rtlil", lambda *args: pytest.fail("elaborated again"))
    assert rtlil("hcu", TINY) == first
    with pytest.raises(pytest.fail.Exception, match="elaborated again"):
        rtlil("hcu", TINY.replace(max_step_tokens=4))
    with pytest.raises(ValueError, match="unit must be one of"):
        rtlil("hcux", TINY)
