"""Progress messages on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any


class Console:
    """Shows progress as a bar on a terminal and as plain lines elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._what, self._printed_s = "", 0.0

    def progress(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` (0: unknown) parts of the step `what` are complete."""
        if self.terminal:
            self._update_bar(what, done, total)
        elif what != self._what or done == total or time.monotonic() - self._printed_s > 10:
            count = f": {done} of {total}" if total else f": {done}" if done else ""
            print(f"{what}{count}", file=sys.stderr, flush=True)
            self._what, self._printed_s = what, time.monotonic()

    def _update_bar(self, what: str, done: int, total: int) -> None:
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
        """End the bar and leave it on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
