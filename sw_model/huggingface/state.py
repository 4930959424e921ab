"""A retrieval cache on disk: keys and values as safetensors, figures as JSON, the index of the policy as a pickle.

The reader of the pickle accepts NumPy arrays, standard containers and the classes of this project only, so that a file
cannot run other code.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ml_dtypes import bfloat16
from safetensors.torch import load_file, save_file

from sw_model.huggingface.cache import RetrievalCache, RetrievalLayer, policy_class

FORMAT = 2
PROJECT = ("golden", "sw_model")
NUMPY = {"_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype"}
CONTAINERS = {"set", "frozenset", "slice", "range", "bytearray"}
FIELDS = ("device_tokens", "block_tokens", "frame_tokens", "budget_frames", "stage", "block", "positions")


class StateError(ValueError):
    """A folder does not hold a usable state. The message is one line and names the folder."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        top = module.split(".")[0]
        if top == "numpy" and (name in NUMPY or module == "numpy.dtypes"):
            return super().find_class(module, name)
        if (module, name) == ("ml_dtypes", "bfloat16"):
            return bfloat16
        if module == "builtins" and name in CONTAINERS:
            return super().find_class(module, name)
        if top in PROJECT and "." not in name:
            value = getattr(importlib.import_module(module), name, None)
            if isinstance(value, type) and value.__module__ == module:
                return value
        raise pickle.UnpicklingError(f"class {module}.{name} is not allowed")


def save(cache: RetrievalCache, folder: Path | str, extra: dict[str, Any] | None = None) -> Path:
    """Write the state of a cache to `folder`, or leave what is there; `extra` is stored as JSON.

    The policy must have a name or a file. Raises ValueError otherwise, or in the middle of a step.
    """
    folder = Path(folder)
    if not isinstance(cache.policy_name, str):
        raise ValueError("policy must be a name or a Python file to be saved, got a function")
    if cache.pending is not None:
        raise ValueError(f"cache must be between two steps to be saved, got a step in layer {cache.pending}")
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    stores = [layer.store for layer in cache.layers]
    values = {
        "format": FORMAT,
        "policy": cache.policy_name,
        "arguments": {name: getattr(cache, name) for name in FIELDS},
        "frequency": cache.frequency.tolist(),
        "layers": [[layer.retrieved, layer.past_tokens] for layer in cache.layers],
        "extra": extra or {},
    }
    (temporary / "state.json").write_text(json.dumps(values, indent=2) + "\n")
    save_file(
        {f"layer{i}": store.rows.contiguous() for i, store in enumerate(stores) if store is not None},
        temporary / "rows.safetensors",
    )
    index = {} if cache.policy is None else cache.policy.__dict__
    (temporary / "index.pickle").write_bytes(pickle.dumps((index, cache.options), protocol=5))
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return folder


def load(
    folder: Path | str, device: torch.device | str = "cpu", rows_folder: Path | str | None = None
) -> tuple[RetrievalCache, dict[str, Any]]:
    """The cache of a folder, and the values of `extra`.

    device       device of the model
    rows_folder  folder for memory-mapped files, as `folder` of `RetrievalCache`

    Raises StateError for a folder without a complete state.
    """
    folder = Path(folder)
    if not folder.exists() and (old := folder.with_name(f".{folder.name}.old")).exists():
        folder = old  # a writer was killed between two renames
    try:
        values = json.loads((folder / "state.json").read_text())
        if values["format"] != FORMAT:
            raise StateError(f"state {folder}: format must be {FORMAT}, got {values['format']}")
        rows = load_file(folder / "rows.safetensors")
        index, options = _Reader(io.BytesIO((folder / "index.pickle").read_bytes())).load()
        cache = RetrievalCache(values["policy"], options=options, folder=rows_folder, **values["arguments"])
        cache.frequency = np.array(values["frequency"], np.float64)
        for i, figures in enumerate(values["layers"]):
            layer = RetrievalLayer(cache, i)
            layer.retrieved, layer.past_tokens = figures
            cache.layers.append(layer)
            if f"layer{i}" in rows:
                layer.restore(rows[f"layer{i}"], torch.device(device))
    except (OSError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"state {folder} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error
    if index:
        cache.policy = object.__new__(policy_class(values["policy"]))
        cache.policy.__dict__.update(index)
        for layer in cache.layers:
            layer.bind_rows(cache.policy)
    return cache, values["extra"]
