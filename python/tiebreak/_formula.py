"""Formulas: operators of a graph that together are one operator of the contract, as transformers writes GELU, RMSNorm, SwiGLU and rotary
positions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ._matcher import Formula, Matcher, Refused, Value
from ._rotary import theta_of
from ._whole import whole


class Hole(NamedTuple):
    """A place of a pattern that any value fills, everywhere the same."""

    name: str


X, Y, GAIN, EPSILON, COS, SIN, MIDDLE, END = (Hole(name) for name in ("x", "y", "gain", "epsilon", "cos", "sin", "middle", "end"))

COMMUTATIVE = ("add", "mul")
GELU = (
    "mul",
    ("mul", X, 0.5),
    ("add", ("tanh", ("mul", ("add", X, ("mul", ("pow", X, 3), 0.044715)), math.sqrt(2 / math.pi))), 1),
)
GELU_ERF = ("mul", ("mul", X, 0.5), ("add", ("erf", ("mul", X, 1 / math.sqrt(2))), 1))
# The mean over the last dimension, which stays.
RMS_NORM = ("mul", GAIN, ("mul", X, ("rsqrt", ("add", ("mean", ("pow", X, 2)), EPSILON))))
LAYER_NORM = ("mul", GAIN, ("mul", ("sub", X, ("mean", X)), ("rsqrt", ("add", ("mean", ("pow", ("sub", X, ("mean", X)), 2)), EPSILON))))
SWIGLU = ("mul", ("silu", X), Y)
# A slice of the last dimension has its first channel and its end.
ROTARY = ("add", ("mul", X, COS), ("mul", ("cat", ("neg", ("slice", X, MIDDLE, END)), ("slice", X, 0, MIDDLE)), SIN))


def formula(m: Matcher, op: str, node: Any, *args: Any) -> Value:
    """The value of an operator that the contract has as a part of others: one of these, or a formula yet."""
    made = Value(Formula(op, args, node), "formula", tuple(node.meta["val"].shape))
    where = m.where
    for pattern, operator in ((GELU, _gelu), (GELU_ERF, partial(_gelu, kind="gelu_erf")), (LAYER_NORM, _layer_norm), (RMS_NORM, _rms_norm), (SWIGLU, _swiglu), (ROTARY, _rotary)):
        found: Dict[str, Any] = {}
        if pattern[0] == op and _fits(pattern, made, found, m.whole):
            # The name is that of the module and of the whole operator.
            m.where = where.rpartition(".")[0]
            if (value := operator(m, made, found)) is not None:
                return value
            m.where = where
    return made


def _fits(pattern: Any, value: Any, found: Dict[str, Any], computed: Dict[Any, Value]) -> bool:
    """True if a value has the form of a pattern. `found` has what fills the holes then. `computed`: formulas that were needed as a whole."""
    if isinstance(pattern, Hole):
        if isinstance(value, Value) and value.layout == "formula":
            value = computed.get(value.name.node, value)
        return _same(found.setdefault(pattern.name, value), value)
    if not isinstance(pattern, tuple):
        return isinstance(value, (int, float)) and value == pattern
    op, *parts = pattern
    if not isinstance(value, Value) or value.layout != "formula" or value.name.op != op or len(value.name.args) != len(parts):
        return False
    orders = [value.name.args, value.name.args[::-1]] if op in COMMUTATIVE else [value.name.args]
    for args in orders:
        tried = dict(found)
        if all(_fits(part, arg, tried, computed) for part, arg in zip(parts, args)):
            found.update(tried)
            return True
    return False


def _same(x: Any, y: Any) -> bool:
    """True if two values are one. Tensors and formulas are compared by identity."""
    if isinstance(x, Value) and isinstance(y, Value):
        is_name = x.name is y.name or (x.layout not in ("constant", "formula") and x.name == y.name)
        return is_name and x.layout == y.layout and x.shape == y.shape
    return isinstance(x, (int, float)) and isinstance(y, (int, float)) and x == y


def _gelu(m: Matcher, made: Value, found: Dict[str, Any], kind: str = "gelu") -> Optional[Value]:
    x = whole(m, found["x"])
    return Value(m.node(kind, m.rows(x), tail="gelu"), "rows", x.shape) if isinstance(x, Value) and x.layout in ("rows", "raw") else None


def _rms_norm(m: Matcher, made: Value, found: Dict[str, Any]) -> Optional[Value]:
    x, gain, epsilon = whole(m, found["x"]), found["gain"], found["epsilon"]
    gain, more = increased(gain)
    if not isinstance(gain, Value) or gain.layout != "parameter" or not isinstance(epsilon, (int, float)):
        return None
    return rms_norm(m, x, gain, float(epsilon), "rms_norm", more)


def _layer_norm(m: Matcher, made: Value, found: Dict[str, Any]) -> Optional[Value]:
    x, gain, epsilon = whole(m, found["x"]), found["gain"], found["epsilon"]
    if not isinstance(gain, Value) or gain.layout != "parameter" or tuple(gain.shape) != x.shape[-1:] or not isinstance(epsilon, (int, float)) or not epsilon > 0:
        return None
    if x.layout not in ("rows", "raw", "patches"):
        return None
    name = m.node("layer_norm", m.rows(x), m.parameter(gain), m.vector(x.shape[-1], 0), tail="layer_norm", epsilon=float(epsilon))
    return Value(name, "rows", x.shape)


def without_gain(m: Matcher, value: Value) -> Optional[Value]:
    """A normalisation by the root of the mean square that nothing multiplies by a gain; None if it is another formula."""
    found: Dict[str, Any] = {}
    if not _fits(RMS_NORM[2], value, found, m.whole) or not isinstance(found["epsilon"], (int, float)):
        return None
    return rms_norm(m, whole(m, found["x"]), None, float(found["epsilon"]), "rms_norm")


def increased(gain: Any) -> Tuple[Any, float]:
    """A gain, and the number that is added to it before it is used: Gemma's weight is the distance from 1."""
    if isinstance(gain, Value) and gain.layout == "formula" and gain.name.op == "add":
        for x, y in (gain.name.args, gain.name.args[::-1]):
            if isinstance(x, Value) and isinstance(y, (int, float)):
                return x, float(y)
    return gain, 0.0


def rms_norm(m: Matcher, x: Value, gain: Optional[Value], epsilon: float, tail: str = "", more: float = 0.0) -> Value:
    """A normalisation over the last dimension of rows, or of heads. Its gain is a parameter, and a number more."""
    if not epsilon > 0:
        raise Refused(f"eps is {epsilon}", "give eps above 0")
    if gain is not None and tuple(gain.shape) != x.shape[-1:]:
        raise Refused(f"its weight is {list(gain.shape)}, and x {list(x.shape)}", "normalise the last dimension alone")
    weight = m.vector(x.shape[-1], 1) if gain is None else m.parameter(gain)
    if more:
        weight = m.node("bias", weight, m.vector(x.shape[-1], more), tail="gain")
    if x.layout in ("split", "heads"):
        name = m.node("head_rms_norm", x.name, weight, tail=tail, heads=_heads(x), epsilon=epsilon)
        return x._replace(name=name)
    return Value(m.node("rms_norm", m.rows(x), weight, tail=tail, epsilon=epsilon), "rows", x.shape)


def _swiglu(m: Matcher, made: Value, found: Dict[str, Any]) -> Optional[Value]:
    x, y = (whole(m, found[key]) for key in ("x", "y"))
    if not isinstance(y, Value) or y.layout not in ("rows", "image") or (x.layout, x.shape) != (y.layout, y.shape):
        return None
    return Value(m.node("swiglu", x.name, y.name, tail="swiglu"), x.layout, x.shape)


def _rotary(m: Matcher, made: Value, found: Dict[str, Any]) -> Optional[Value]:
    x, tables = whole(m, found["x"]), (found["cos"], found["sin"])
    if not isinstance(x, Value) or x.layout not in ("split", "heads") or made.shape != x.shape:
        return None
    if not all(isinstance(table, Value) and table.layout == "constant" for table in tables):
        return None
    if 2 * found["middle"] != x.shape[-1] or found["end"] != x.shape[-1]:
        return None
    try:
        theta = _theta(m, x, (tables[0].name, tables[1].name))
    except Refused:
        # Other tables, such as those of scaled frequencies, are constants.
        return None
    return x._replace(name=m.node("rotary", x.name, tail="rotary", heads=_heads(x), theta=theta))


def _theta(m: Matcher, x: Value, tables: Tuple[Any, Any]) -> float:
    """The base of two tables. Each layer of a model has the same ones, which are checked once."""
    of_heads = (x.layout, x.shape[0], x.shape[-1])
    for others, other_heads, theta in m.rotations:
        if of_heads == other_heads and all(one.shape == other.shape and bool((one == other).all()) for one, other in zip(tables, others)):
            return theta
    theta = theta_of(tables, m.batch, x.layout == "heads", x.shape)
    m.rotations.append((tables, of_heads, theta))
    return theta


def _heads(x: Value) -> int:
    return x.shape[1 if x.layout == "heads" else 2]
