"""Growable array: rows stay unchanged, and the view is read-only."""

import numpy as np
import pytest

from golden.growable_array import GrowableArray


def test_rows_grow_and_view_is_read_only(rng):
    rows, parts = GrowableArray((2, 3), np.float32), []
    for length in (1, 63, 1, 200, 5):
        parts.append(rng.standard_normal((length, 2, 3)).astype(np.float32))
        rows.extend(parts[-1])
        assert (rows.array == np.concatenate(parts)).all()
    with pytest.raises(ValueError, match="read-only"):
        rows.array[0] = 0
