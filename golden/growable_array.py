"""NumPy array that grows along its first axis; used for keys, values and token tables."""

import numpy as np


class GrowableArray:
    """Rows of a fixed shape and dtype."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype | type) -> None:
        self._store = np.empty((64, *shape), dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> np.ndarray:
        """Read-only view of all rows."""
        view = self._store[: self._length]
        view.flags.writeable = False
        return view

    def extend(self, rows: np.ndarray) -> None:
        """Append `rows` (T, ...). The storage doubles when it is full, so that appending n rows costs O(n) copies."""
        end = self._length + len(rows)
        if end > len(self._store):
            store = np.empty((max(end, 2 * len(self._store)), *self._store.shape[1:]), self._store.dtype)
            store[: self._length] = self.array
            self._store = store
        self._store[self._length : end] = rows
        self._length = end
