"""The progress of a call: a bar on a terminal, or a function of the caller's."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple, Union

from ._errors import RunWarning, UsageError

logger = logging.getLogger("tiebreak")

BAR = 20
WARNING = "warning: "


@dataclass(frozen=True)
class Progress:
    """How far a call is: `done` of `total` of a `unit`, and news such as the loss. `total` is 0 until it is known."""

    done: int
    total: int
    unit: str
    message: str


Wanted = Union[None, bool, Callable[[Progress], object]]


class Listener:
    """Hears what a command says: progress goes to a bar or a function, warnings to `warnings`, other lines to the log `tiebreak`."""

    def __init__(self, wanted: Wanted) -> None:
        if not (wanted is None or isinstance(wanted, bool) or callable(wanted)):
            raise UsageError(f"progress is {type(wanted).__name__}", "give True, False, None or a function of one Progress")
        if wanted is None:
            stream = sys.stderr
            wanted = stream is not None and hasattr(stream, "isatty") and stream.isatty()
        self.tell: Optional[Callable[[Progress], object]] = self.draw if wanted is True else wanted or None
        self.last: Optional[Progress] = None
        self.width = 0

    def __call__(self, progress: Optional[Tuple[int, int, str, str]], lines: List[str]) -> None:
        for line in lines:
            if line.startswith(WARNING):
                self.clear()
                warnings.warn(line[len(WARNING) :], RunWarning, stacklevel=4)
            else:
                logger.info(line)
        now = progress and Progress(*progress)
        if self.tell is not None and now is not None and now != self.last:
            self.last = now
            self.tell(now)

    def draw(self, progress: Progress) -> None:
        """Draws a bar on stderr, over the one before."""
        filled = BAR * progress.done // progress.total if progress.total else 0
        total = f"/{progress.total}" if progress.total else ""
        line = f"[{'#' * filled:{BAR}}] {progress.done}{total} {progress.unit}  {progress.message}"[:120]
        self.write(f"\r{line:{self.width}}")
        self.width = len(line)

    def clear(self) -> None:
        """Takes the bar away."""
        if self.width:
            self.write(f"\r{'':{self.width}}\r")
            self.width = 0

    @staticmethod
    def write(text: str) -> None:
        # A terminal that is gone is no reason to stop training.
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            pass
