"""Exact copies of chosen channels, positions or rows: runs of numbers with a constant distance, each taken out by a `slice` and put between zeros by a
`place`.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ._mask import ELEMENTS_MAX
from ._matcher import Matcher, Refused

# More runs than these are a product with a matrix of zeros and ones.
RUNS_MAX = 32
# Every so many-th number is tried as a run by itself, as in two halves that are interleaved.
APART_MAX = 16
# The bound of the places along an axis, zeros included.
PLACES_MAX = 2**15


class Run(NamedTuple):
    """So many numbers from `first` on, each `step` behind the one before it, at the places from `place` on, each `apart` from the one before it."""

    first: int
    step: int
    place: int
    apart: int
    count: int


class Chosen(NamedTuple):
    """Which numbers of `size` along an axis stand at which places."""

    size: int
    taken: np.ndarray
    places: np.ndarray

    def matrix(self, width: int) -> np.ndarray:
        """The matrix [width, size] of zeros and ones that chooses them in a product."""
        if width * self.size > ELEMENTS_MAX:
            raise Refused(f"it chooses {width} of {self.size} numbers by a matrix, which would be too large", "choose runs of fewer numbers")
        matrix = np.zeros((width, self.size), np.float32)
        matrix[self.places, self.taken] = 1
        return matrix

    def is_all(self, width: int) -> bool:
        """True if all numbers stay where they are."""
        return width == self.size == len(self.taken) and np.array_equal(self.taken, self.places)


def runs_of(chosen: Chosen) -> List[Run]:
    """The fewest runs that are found."""
    order = np.argsort(chosen.places)
    pairs = list(zip(chosen.taken[order].tolist(), chosen.places[order].tolist()))
    tried = range(1, min(APART_MAX, len(pairs)) + 1)
    return min(([run for begin in range(apart) for run in _one_by_one(pairs[begin::apart])] for apart in tried), key=len)


def _one_by_one(pairs: Sequence[Tuple[int, int]]) -> List[Run]:
    """Runs of pairs in their order, each as long as it can be."""
    found: List[Run] = []
    for number, place in pairs:
        last = found[-1] if found else None
        if last is not None:
            step, apart = number - last.first - last.step * (last.count - 1), place - last.place - last.apart * (last.count - 1)
            if step > 0 and (last.count == 1 or (step, apart) == (last.step, last.apart)):
                found[-1] = Run(last.first, step, last.place, apart, last.count + 1)
                continue
        found.append(Run(number, 1, place, 1, 1))
    return found


def copied(m: Matcher, name: str, kind: str, chosen: Chosen, width: int, most: Optional[int] = RUNS_MAX) -> Optional[str]:
    """The chosen "channels", "positions" or "rows" of a tensor at their places among `width`, and zeros elsewhere; None if they are too many."""
    runs = runs_of(chosen)
    if (most is not None and len(runs) > most) or not all(_fits(run, chosen.size, width) for run in runs):
        return None
    made = None
    for run in runs:
        part = name
        if run.count < chosen.size:
            part = m.node(f"slice_{kind}", part, tail=kind, first=run.first, step=run.step, count=run.count)
        if run.count < width:
            part = m.node(f"place_{kind}", part, tail=kind, first=run.place, step=run.apart, count=width)
        made = part if made is None else m.node("residual", made, part, tail="join")
    return made


def _fits(run: Run, size: int, width: int) -> bool:
    """True if a run and its gradient have few enough places, with the zeros around them."""
    spread = ((run.first, run.step, size), (run.place, run.apart, width))
    return all(max(first + step * run.count, whole - first + 1) < PLACES_MAX for first, step, whole in spread)
