"""Rotation of queries and keys by a change of their position (RoPE in half-split form), on any device.

Rotations add up, R(a) R(b) = R(a + b), so a cached key moves to a new position without its original vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from golden import rope

STATIC_TYPES = ("default", "linear", "llama3")  # frequencies that do not depend on the length of the sequence


def parameters(config: Any) -> dict[str, Any]:
    """Parameters of the rotary embedding of a decoder."""
    model_values = getattr(config, "rope_parameters", None) or {}
    return {"rope_type": "default", "rope_theta": 10000.0, **model_values}


def rejected(config: Any, default_only: bool) -> str | None:
    """Reason why the rotary embedding of a decoder cannot be changed afterwards; None: it can be."""
    values = parameters(config)
    types = STATIC_TYPES[:1] if default_only else STATIC_TYPES
    if values["rope_type"] not in types:
        return f"rope_type must be {' or '.join(types)}, got {values['rope_type']!r}"
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        return f"partial_rotary_factor must be 1, got {values['partial_rotary_factor']}"
    return None


def axes(config: Any) -> tuple[tuple[int, ...] | None, str]:
    """Pairs of every position axis (None: there is one axis), and their layout, as in `golden.rope.rotate`."""
    values = parameters(config)
    sections = values.get("mrope_section")
    return sections and tuple(sections), "interleaved" if values.get("mrope_interleaved") else "chunked"


def frequencies(config: Any, head_dim: int) -> np.ndarray:
    """Angle per position of each pair in radians, float64 (d/2,)."""
    values = parameters(config)
    if values["rope_type"] == "default":
        return rope.frequencies(head_dim, float(values["rope_theta"]))
    inverse, _ = ROPE_INIT_FUNCTIONS[values["rope_type"]](config, torch.device("cpu"))
    return inverse.double().numpy()


def rotate(vectors: torch.Tensor, shifts: np.ndarray, frequency: np.ndarray) -> torch.Tensor:
    """Vectors (..., S, d) rotated by `shifts` positions, (S,) or (..., S)."""
    angle = torch.from_numpy(np.asarray(shifts, np.float64)[..., None] * frequency)
    kind = torch.promote_types(vectors.dtype, torch.float32)
    cos, sin = angle.cos().to(vectors.device, kind), angle.sin().to(vectors.device, kind)
    low, high = vectors.to(kind).chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
