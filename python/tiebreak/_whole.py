"""Sums and products of tensors with tensors, parameters, constants and numbers, and formulas as such operators: what no pattern has a part of."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import numpy as np

from . import _joined, _spread, _tables
from ._matcher import Matcher, Refused, Value, no_formula

ACTIVATIONS = ("rows", "raw", "image", "pooled", "split", "heads", "patches", "pixel", "last")
# The greatest exponent of a power.
POWER_MAX = 8
BROADCAST = "compute with tensors of one shape, with a parameter or a constant for each channel, or with a number"


def channels_of(x: Value) -> int:
    """The channels of an activation, the network's last dimension."""
    if x.layout in ("image", "pooled", "pixel") or (x.layout == "raw" and len(x.shape) == 4):
        return x.shape[1]
    return math.prod({"split": x.shape[2:], "heads": x.shape[1::2]}.get(x.layout, x.shape[-1:]))


def whole(m: Matcher, value: Any) -> Any:
    """A formula that is no part of an operator, computed; other values as they are."""
    if not isinstance(value, Value) or value.layout != "formula":
        return value
    from ._formula import without_gain

    op, args, node = value.name
    if node not in m.whole:
        where, m.where = m.where, where_of(node)
        try:
            # A normalisation is recognised before its parts are computed, which are no operators.
            normed = without_gain(m, value)
            m.whole[node] = normed if normed is not None else _computed(m, value, op, tuple(whole(m, arg) for arg in args))
        except Refused as error:
            error.node = error.node or node
            raise
        m.where = where
    return m.whole[node]


def where_of(node: Any) -> str:
    from ._graph import module_of

    return ".".join(part for part in (module_of(node)[0], str(node.target).split(".")[1].rstrip("_")) if part)


def _computed(m: Matcher, value: Value, op: str, args: Tuple[Any, ...]) -> Value:
    node = value.name.node
    if op == "mul":
        return times(m, *args, node)
    if op == "add":
        return plus(m, *args, node)
    if op == "sub":
        return minus(m, *args, node)
    if op == "neg":
        return times(m, args[0], -1, node)
    if op == "pow" and args[1] in range(2, POWER_MAX + 1):
        return _power(m, args[0], int(args[1]), node)
    if op in ("tanh", "silu"):
        x, layout = m.any(args[0])
        return Value(m.node(op, x), layout, value.shape)
    if op == "slice":
        return _joined.slices(m, args[0], args[1], args[2], node)
    if op == "cat":
        return _joined.whole_of(m, args, len(value.shape) - 1, node)
    no_formula(value)
    raise AssertionError("a formula is refused")


def _power(m: Matcher, x: Any, exponent: int, node: Any) -> Value:
    """x to an integer, by squares: x^3 is x^2 x, and x^6 is (x^3)^2."""
    if exponent == 1:
        return x
    half = _power(m, x, exponent // 2, node)
    square = times(m, half, half, node)
    return times(m, square, x, node) if exponent % 2 else square


def minus(m: Matcher, x: Any, y: Any, node: Any) -> Value:
    """A difference."""
    if isinstance(y, (int, float)):
        return plus(m, x, -y, node)
    if y.layout == "constant" and y.name.is_floating_point():
        return plus(m, x, y._replace(name=-y.name), node)
    if not isinstance(x, Value):
        return plus(m, times(m, y, -1, node), x, node)
    if y.layout == "parameter":
        # x - y = -(-x + y)
        return times(m, plus(m, times(m, x, -1, node), y, node), -1, node)
    return plus(m, x, times(m, y, -1, node), node)


def times(m: Matcher, x: Any, y: Any, node: Any) -> Value:
    """A product."""
    shape = tuple(node.meta["val"].shape)
    x, y = _ordered("multiplies", x, y)
    if (name := _of_channels(m, x, y)) is not None:
        (of, layout), shape = m.any(x), x.shape
        return Value(m.node("gain", of, name), layout, shape)
    if (table := _table(m, x, y)) is not None:
        of, layout = m.any(x)
        return Value(times_table(m, of, table), layout, x.shape)
    return _of_one_shape(m, "mul", "multiplies", x, y, shape)


def plus(m: Matcher, x: Any, y: Any, node: Any) -> Value:
    """A sum."""
    shape = tuple(node.meta["val"].shape)
    x, y = _ordered("adds", x, y)
    if (table := _table(m, x, y)) is not None and not (table == table[:1]).all():
        of, layout = m.any(x)
        return Value(m.node("position_embedding", of, m.constant(table)), layout, x.shape)
    if isinstance(y, Value) and (sum_of_rows := _tables.added(m, x, y, node)) is not None:
        return sum_of_rows
    if (name := _of_channels(m, x, y)) is not None:
        (of, layout), shape = m.any(x), x.shape
        return Value(m.node("bias", of, name), layout, shape)
    return _of_one_shape(m, "residual", "adds", x, y, shape)


def _ordered(does: str, x: Any, y: Any) -> Tuple[Any, Any]:
    """The activation first."""
    for first, second in ((x, y), (y, x)):
        if isinstance(first, Value) and first.layout in ACTIVATIONS:
            return first, second
    is_moved = any(isinstance(value, Value) and value.layout == "moved" for value in (x, y))
    raise Refused(f"it {does} {_shown(x)} and {_shown(y)}", f"{'give nn.MultiheadAttention need_weights=False, or ' if is_moved else ''}{BROADCAST}")


def _shown(x: Any) -> str:
    return f"{list(x.shape)} ({x.layout})" if isinstance(x, Value) else repr(x)[:40]


def _of_one_shape(m: Matcher, kind: str, does: str, x: Any, y: Any, shape: Tuple[int, ...]) -> Value:
    if isinstance(y, Value) and len(x.shape) == len(y.shape) == 4:
        x, y = _spread.at_each_pixel(m, x, shape), _spread.at_each_pixel(m, y, shape)
    if isinstance(y, Value) and y.layout in ACTIVATIONS and y.shape == x.shape:
        if {x.layout, y.layout} == {"rows", "pixel"} and len(shape) == 2:
            x, y = (value._replace(name=m.rows(value), layout="rows") for value in (x, y))
        (left, layout), (right, other) = m.any(x), m.any(y)
        if layout == other:
            return Value(m.node(kind, left, right), layout, x.shape)
    raise Refused(f"it {does} {_shown(x)} and {_shown(y)}", BROADCAST)


def _of_channels(m: Matcher, x: Any, y: Any) -> Optional[str]:
    """The name of a parameter or a constant that is one number for each channel of x; None if y is something else."""
    if not isinstance(x, Value) or x.layout not in ACTIVATIONS:
        return None
    channels = channels_of(x)
    if isinstance(y, (int, float)) and not isinstance(y, bool):
        return m.vector(channels, y)
    if not isinstance(y, Value) or y.layout not in ("constant", "parameter") or (not y.shape and y.layout == "parameter"):
        return None
    if y.layout == "constant" and math.prod(y.shape) == 1 and len(y.shape) <= len(x.shape) and y.name.is_floating_point():
        return m.vector(channels, float(y.name))
    # The dimension of PyTorch's tensor that has the channels.
    place = len(x.shape) - 1 if x.layout in ("rows", "patches", "last") or (len(x.shape) < 4 and x.layout != "pooled") else 1
    due = [channels if dim == place else 1 for dim in range(len(x.shape))]
    if x.layout in ("split", "heads") or (x.layout == "pixel" and len(x.shape) != 2) or math.prod(y.shape) != channels:
        return None
    if len(y.shape) > len(x.shape) or list(y.shape) != due[len(due) - len(y.shape) :]:
        return None
    if y.layout == "constant":
        return m.constant(y.name.float().numpy().reshape(channels)) if y.name.is_floating_point() else None
    return m.vector_of(y)


def _table(m: Matcher, x: Any, y: Any) -> Optional[Any]:
    """The constant rows that stand beside the positions of each sample, [T, C]; None if y is another constant."""
    if not isinstance(x, Value) or x.layout not in ("rows", "raw", "patches", "split", "heads") or x.shape[0] != m.batch or len(x.shape) not in (3, 4):
        return None
    if not isinstance(y, Value) or y.layout != "constant" or not y.name.is_floating_point() or (x.layout == "raw" and len(x.shape) == 4):
        return None
    if len(y.shape) > len(x.shape) or any(size not in (1, due) for size, due in zip(y.shape[::-1], x.shape[::-1])):
        return None
    table = y.name.float().expand(x.shape)
    table = (table.transpose(1, 2) if x.layout == "heads" else table).reshape(m.batch, -1, channels_of(x))
    return table[0].numpy() if bool((table == table[:1]).all()) else None


def times_table(m: Matcher, of: str, table: Any) -> str:
    """Rows times constants of their positions. A product takes two tensors of samples: zeros of these rows, to which the constants are added."""
    if (table == table[:1]).all():
        return m.node("gain", of, m.constant(table[0]))
    constant = m.constant(table)
    if constant not in m.tables:
        zeros = m.node("gain", of, m.vector(table.shape[1], 0), tail="zeros")
        m.tables[constant] = m.node("position_embedding", zeros, constant, tail="constants")
    return m.node("mul", of, m.tables[constant])
