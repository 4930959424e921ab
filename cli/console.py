"""Progress on the console."""

from __future__ import annotations

import sys
import time
from typing import Any


class Console:
    """Progress as a bar on a terminal and as plain lines elsewhere; results go to stdout, progress to stderr."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._what, self._shown = "", 0.0

    def progress(self, what: str, done: int, total: int) -> None:
        """`done` of `total` (0: not known) of the step `what`."""
        if self.terminal:
            self._draw(what, done, total)
        elif what != self._what or done == total or time.monotonic() - self._shown > 10:
            count = f": {done} of {total}" if total else f": {done}" if done else ""
            print(f"{what}{count}", file=sys.stderr, flush=True)
            self._what, self._shown = what, time.monotonic()

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None or what != self._what:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self.close()
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            from rich.console import Console as Rich

            self._bar = Progress(*columns, console=Rich(stderr=True))
            self._task = self._bar.add_task(what, total=total or None)
            self._what = what
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total or None)

    def close(self) -> None:
        """End the bar; what it showed stays."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
