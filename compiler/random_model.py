"""Checkpoints with random weights: models of any size for demos and tests, without a download.

The words of such a model mean nothing, but it uses every operation of a trained one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

from compiler.checkpoint import WEIGHTS
from compiler.model_config import model_spec
from compiler.tensor_table import tensor_table


def random_tensors(
    shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator, dtype: Any = bfloat16
) -> dict[str, np.ndarray]:
    """Random weights: norms near 1, matrices scaled by 1 / sqrt(inputs), all other vectors near 0."""
    tensors = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        if len(shape) > 1:
            values /= np.sqrt(np.prod(shape[1:]))
        else:
            values = values * 0.1 + (name.endswith(".weight"))
        tensors[name] = values.astype(dtype)
    return tensors


def write_random_model(folder: Path, config: Mapping[str, Any], rng: np.random.Generator) -> None:
    """Write a checkpoint of the model that `config`, the content of config.json, describes, with random BF16 weights.

    The folder is created. ValueError names a property of `config` that is not supported.
    """
    table = tensor_table(model_spec(config), ())
    shapes = {entry.name: entry.shape for entry in table.values()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(shapes, rng), folder / WEIGHTS)
