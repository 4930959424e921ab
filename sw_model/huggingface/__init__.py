"""A retrieval cache for Hugging Face models: `RetrievalCache`, `StreamingSession`, `prepare`.

PyTorch and transformers are an optional extra of this project, `pip install 'vrex-rtl[capture]'`. The names are
imported when they are first used, so that the kernels of this package work without the extra.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    "IMPLEMENTATION": "attention",
    "RetrievalCache": "cache",
    "StreamingSession": "session",
    "prepare": "attention",
}
__all__ = ["IMPLEMENTATION", "RetrievalCache", "StreamingSession", "prepare"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("torch", "transformers"):
            raise
        raise ImportError(f"{name} needs PyTorch and transformers: pip install 'vrex-rtl[capture]' ({error})") from None
    return getattr(module, name)
