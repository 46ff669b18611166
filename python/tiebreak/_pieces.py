"""Activations of straight pieces, as sums, products with constants and `relu`: their values, and their derivatives where pieces meet.

`relu` has the derivative 0 at 0. Its other side is `_rising`, with the derivative 1 at 0.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Optional

import numpy as np

from ._matcher import Matcher, Refused, Value
from ._whole import channels_of

Given = Dict[str, Any]
# A bound is met exactly by elements of at most this many times its size.
FAR = 2.0**19


class _Elements:
    """The operators of an activation's elements, by their names in the network."""

    def __init__(self, m: Matcher, x: Value) -> None:
        self.m, self.channels = m, channels_of(x)
        self.x, self.layout = m.any(x)

    def value(self, name: str, x: Value) -> Value:
        return Value(name, self.layout, x.shape)

    def plus(self, x: str, number: float) -> str:
        return self.m.node("bias", x, self.m.vector(self.channels, number))

    def times(self, x: str, number: float) -> str:
        return self.m.node("gain", x, self.m.vector(self.channels, number))

    def sum(self, x: str, y: str) -> str:
        return self.m.node("residual", x, y)

    def product(self, x: str, y: str) -> str:
        return self.m.node("mul", x, y)

    def relu(self, x: str) -> str:
        return self.m.node("relu", x)

    def rising(self, x: str) -> str:
        """relu(x), whose derivative at 0 is 1: x + relu(-x)."""
        return self.sum(x, self.relu(self.times(x, -1)))

    def below(self, x: str) -> str:
        """min(x, 0), whose derivative at 0 is 1: x - relu(x)."""
        return self.sum(x, self.times(self.relu(x), -1))

    def at_most(self, x: str, bound: float) -> str:
        """min(x, bound), whose derivative at the bound is 0."""
        if bound < 0 or not _is_short(bound):
            # What is far above the bound comes near it first, but not below it, so that the next difference is exact.
            x = self.sum(x, self.times(self.relu(self.plus(x, -bound)), -(1 - 1 / (2 * FAR))))
        return self.sum(x, self.times(self.rising(self.plus(x, -bound)), -1))

    def at_least(self, x: str, bound: float) -> str:
        """max(x, bound), whose derivative at the bound is 0."""
        if bound == 0:
            return self.relu(x)
        if bound > 0 or not _is_short(bound):
            x = self.sum(x, self.times(self.relu(self.plus(self.times(x, -1), bound)), 1 - 1 / (2 * FAR)))
        return self.sum(x, self.rising(self.plus(self.times(x, -1), bound)))

    def between(self, x: str, low: Optional[float], high: Optional[float]) -> str:
        if low is not None:
            x = self.at_least(x, low)
        return x if high is None else self.at_most(x, high)


def _is_short(bound: float) -> bool:
    """True if x - bound is exact for each x beyond the bound, seen from 0, up to `FAR` times its size."""
    return bound == 0 or math.frexp(bound)[0] * 32 % 1 == 0


def _number(name: str, value: Any) -> float:
    """An argument as binary32 has it."""
    if not isinstance(value, (int, float)) or not np.isfinite(np.float32(value)):
        raise Refused(f"{name} is {value!r:.60}", f"give {name} as a finite number")
    return float(np.float32(value))


def bounded(low: str, high: str) -> Callable[[Matcher, Given, Any], Value]:
    """An operator that keeps its input between two of its arguments."""

    def handler(m: Matcher, a: Given, out: Any) -> Value:
        bounds = [None if a.get(name) is None else _number(name, a[name]) for name in (low, high)]
        if None not in bounds and not bounds[0] < bounds[1]:
            raise Refused(f"its bounds are {bounds[0]} and {bounds[1]}", "give a lower bound that is less than the upper one")
        e = _Elements(m, a["self"])
        return e.value(e.between(e.x, *bounds), a["self"])

    return handler


def relu6(m: Matcher, a: Given, out: Any) -> Value:
    e = _Elements(m, a["self"])
    return e.value(e.between(e.x, 0, 6), a["self"])


def absolute(m: Matcher, a: Given, out: Any) -> Value:
    e = _Elements(m, a["self"])
    return e.value(e.sum(e.relu(e.x), e.relu(e.times(e.x, -1))), a["self"])


def leaky_relu(m: Matcher, a: Given, out: Any) -> Value:
    slope = _number("negative_slope", a["negative_slope"])
    e = _Elements(m, a["self"])
    return e.value(e.sum(e.relu(e.x), e.times(e.below(e.x), slope)), a["self"])


def prelu(m: Matcher, a: Given, out: Any) -> Value:
    x, weight = a["self"], a["weight"]
    e = _Elements(m, x)
    # PyTorch has the channels in dimension 1.
    in_place = len(x.shape) == 2 or e.layout == "image"
    if not in_place or tuple(weight.shape) != (e.channels,):
        why = f"its weight is {list(weight.shape)}, and its input {list(x.shape)} ({x.layout})"
        raise Refused(why, "give nn.PReLU as many num_parameters as channels, of rows [N, C] or images; or use nn.LeakyReLU")
    return e.value(e.sum(e.relu(e.x), m.node("gain", e.below(e.x), m.parameter(weight))), x)


def softshrink(m: Matcher, a: Given, out: Any) -> Value:
    width = _number("lambd", a["lambd"])
    if width < 0:
        raise Refused(f"lambd is {width}", "give lambd of at least 0")
    e = _Elements(m, a["self"])
    above, below = e.relu(e.plus(e.x, -width)), e.relu(e.plus(e.times(e.x, -1), -width))
    return e.value(e.sum(above, e.times(below, -1)), a["self"])


def _steps(e: _Elements) -> str:
    """x + 3 between 0 and 6."""
    return e.plus(e.between(e.x, -3, 3), 3)


def hardsigmoid(m: Matcher, a: Given, out: Any) -> Value:
    e = _Elements(m, a["self"])
    return e.value(e.times(_steps(e), 1 / 6), a["self"])


def hardswish(m: Matcher, a: Given, out: Any) -> Value:
    e = _Elements(m, a["self"])
    return e.value(e.times(e.product(e.x, _steps(e)), 1 / 6), a["self"])


_BOUNDED = {"hardtanh": ("min_val", "max_val"), "clamp": ("min", "max"), "clip": ("min", "max"), "clamp_min": ("min", ""), "clamp_max": ("", "max")}
_HANDLERS: Dict[str, Callable[[Matcher, Given, Any], Value]] = {
    **{name: bounded(*arguments) for name, arguments in _BOUNDED.items()},
    "relu6": relu6,
    "abs": absolute,
    "leaky_relu": leaky_relu,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "softshrink": softshrink,
    "prelu": prelu,
}
_NOT_IN_PLACE = ("softshrink", "prelu")
HANDLERS = {
    f"aten.{name}{tail}.default": handler for name, handler in _HANDLERS.items() for tail in ("", "_") if not (tail and name in _NOT_IN_PLACE)
}
