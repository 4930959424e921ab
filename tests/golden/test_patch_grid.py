"""Order and windows of the patches of a picture."""

import numpy as np
import pytest

from golden.patch_grid import PatchGrid

GRIDS = [(6, 10, 2, 4), (4, 4, 2, 8), (9, 6, 3, 3), (4, 6, 2, 0)]


@pytest.mark.parametrize(("rows", "columns", "merge", "window"), GRIDS)
def test_windows_and_squares_are_contiguous(rows, columns, merge, window):
    grid = PatchGrid(rows, columns, merge, window, 100.0)
    row, column = np.divmod(grid.order, columns)
    assert sorted(grid.order) == list(range(rows * columns)) and sum(grid.windows) == rows * columns
    side, start, windows = window or 100, 0, []
    for size in grid.windows:
        patches = slice(start, start + size)
        windows.append(set(zip((row[patches] // side).tolist(), (column[patches] // side).tolist(), strict=True)))
        start += size
    assert all(len(each) == 1 for each in windows) and sorted(windows, key=min) == windows
    assert len(set.union(*windows)) == len(windows)
    squares = (row // merge * (columns // merge) + column // merge).reshape(-1, merge**2)
    np.testing.assert_array_equal(squares, np.repeat(grid.token_order[:, None], merge**2, axis=1))
    inner = (row % merge * merge + column % merge).reshape(-1, merge**2)
    np.testing.assert_array_equal(inner, np.tile(np.arange(merge**2), (len(inner), 1)))


def test_invalid_sizes_raise():
    with pytest.raises(ValueError, match=r"^rows must be a multiple of merge = 2, got 5$"):
        PatchGrid(5, 4, 2, 4, 100.0)
    with pytest.raises(ValueError, match=r"^window must be a multiple of merge = 2, got 3$"):
        PatchGrid(4, 4, 2, 3, 100.0)
    with pytest.raises(ValueError, match=r"^head must be a multiple of 4, got 6$"):
        PatchGrid(4, 4, 2, 4, 100.0).angles(6, 8)
