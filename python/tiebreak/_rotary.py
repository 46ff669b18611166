"""Rotary positions: the base of the frequencies whose cosines and sines are the numbers of a graph's tables."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import numpy as np

from ._matcher import Refused

# The bounds of the operator `rotary`.
POSITIONS_MAX = 2**16
CHANNELS_MAX = 256
THETA_MAX = float(np.finfo(np.float32).max)
# A number of a table may differ from the true one by FIXED and the angle's OF_ANGLE. FIXED is for the rounding of a cosine, and less for the
# sine of a small angle. An angle of binary32 has the errors of a power, a quotient and a product, and of the power's exponent times the
# logarithm of a base up to 10^8.
FIXED = 2.0**-22
OF_ANGLE = 2.0**-20
# The base of heads whose tables say nothing about it: those of one position, or of one pair of channels.
ANY_THETA = 10000.0
DIGITS_MAX = 9


def theta_of(tables: Tuple[Any, Any], samples: int, heads_first: bool, shape: Tuple[int, ...]) -> float:
    """The base of two tables, cosines and sines, that multiply heads of a shape [B, H, T, D], or [B, T, H, D].

    It is the shortest decimal number with which each entry is near the true cosine or sine.
    """
    positions, channels = shape[2 if heads_first else 1], shape[-1]
    if shape[0] != samples or positions > POSITIONS_MAX or channels > CHANNELS_MAX or channels % 2:
        why = f"it turns heads of the shape {list(shape)}"
        raise Refused(why, f"turn positions of each sample, at most {POSITIONS_MAX}, by heads of an even number of channels up to {CHANNELS_MAX}")
    halves = [_half(table, heads_first, (positions, channels)) for table in tables]
    if any(half is None for half in halves):
        raise Refused("its tables are not those of a sample's positions, the same for each sample and head", "give it cosines of [T, D]")
    cos, sin = halves
    for theta in _candidates(cos, sin):
        if _is_near(cos, sin, theta):
            return theta
    why = "its tables are not the cosines and sines of t theta^(-2 i / D) for any theta"
    raise Refused(why, "use positions from 0 on and no scaling of frequencies (rope_type default); rotate the first and the second half of a head")


def _half(table: Any, heads_first: bool, size: Tuple[int, int]) -> Optional[np.ndarray]:
    """The first half of the channels of a table [T, D], whose halves are the same; None if it is another tensor."""
    positions, channels = size
    # Dimensions in front that a product broadcasts.
    table = table.reshape((1,) * (4 - table.dim()) + tuple(table.shape)) if table.dim() < 4 else table
    table = table if heads_first else table.transpose(1, 2)
    if table.dim() != 4 or tuple(table.shape[2:]) != size or not table.is_floating_point():
        return None
    first = table[0, 0]
    if tuple(table.shape[:2]) != (1, 1) and not bool((table == first).all()):
        return None
    half = channels // 2
    if not bool((first[:, :half] == first[:, half:]).all()):
        return None
    return first[:, :half].double().numpy()


def _candidates(cos: np.ndarray, sin: np.ndarray) -> Any:
    """Bases near that of the last pair's angle at position 1, those of few digits first."""
    positions, pairs = cos.shape
    if positions == 1 or pairs == 1:
        yield ANY_THETA
        return
    angle = math.atan2(sin[1, -1], cos[1, -1])
    if not 0 < angle <= 1 + OF_ANGLE:
        return
    exponent = math.log(angle) * pairs / (1 - pairs)
    estimate = max(math.exp(min(exponent, math.log(THETA_MAX))), 1.0)
    for digits in range(DIGITS_MAX):
        yield min(float(f"{estimate:.{digits}e}"), THETA_MAX)


def _is_near(cos: np.ndarray, sin: np.ndarray, theta: float) -> bool:
    """True if each entry is near the true cosine or sine. The contract's own entries are less than 3 * 2^-24 from them."""
    positions, pairs = cos.shape
    angles = np.arange(positions)[:, None] * theta ** -(np.arange(pairs) / pairs)
    of_angle, small = OF_ANGLE * angles, FIXED * np.minimum(angles, 1)
    return bool(np.all(np.abs(cos - np.cos(angles)) <= FIXED + of_angle) and np.all(np.abs(sin - np.sin(angles)) <= small + of_angle))
