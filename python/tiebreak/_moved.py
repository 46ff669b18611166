"""Rows whose elements stand in other places, such as positions before samples, as `nn.MultiheadAttention` has them.

Each element of such a tensor is one of the rows. The operators that move elements are applied to the numbers of these, until they stand again
where the rows have them, or where heads of the rows do.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ._mask import ELEMENTS_MAX, MOVED
from ._matcher import Matcher, Refused, Value


class Moved(NamedTuple):
    """Elements of rows [N, C], or of several such rows one behind the other, by their numbers."""

    names: Tuple[str, ...]
    channels: int
    at: Any

    @property
    def rows(self) -> int:
        return self.at.numel() // (self.channels * len(self.names))


def begun(x: Value, node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """Rows, or heads of rows, after an operator that moves their elements."""
    import torch

    _check(x.shape)
    numbers = torch.arange(math.prod(x.shape), dtype=torch.int32)
    if x.layout == "rows":
        channels, at = x.shape[-1], numbers.reshape(x.shape)
    elif x.layout == "heads":
        samples, heads, positions, width = x.shape
        channels, at = heads * width, numbers.reshape(samples, positions, heads, width).transpose(1, 2)
    else:
        return None
    return computed(node, values, x._replace(name=Moved((x.name,), channels, at), layout="moved"))


def exchanged(m: Matcher, node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """Rows whose samples and positions are exchanged, and heads whose positions come first: `nn.MultiheadAttention` computes so."""
    x = values.get(node.args[0]) if node.args and hasattr(node.args[0], "meta") else None
    if isinstance(x, Value) and (x.layout, len(x.shape), str(node.target)) == ("raw", 3, "aten.transpose.int"):
        x = x._replace(name=m.rows(x), layout="rows")
    if not isinstance(x, Value) or not isinstance(x.name, str):
        return None
    exchanged = (str(node.target), x.layout, len(x.shape)) == ("aten.transpose.int", "rows", 3) and sorted(dim % 3 for dim in node.args[1:3]) == [0, 1]
    to_rows = (str(node.target), x.layout) == ("aten.permute.default", "heads") and list(node.args[1]) == [2, 0, 1, 3]
    return begun(x, node, values) if exchanged or to_rows else None


def computed(node: Any, values: Dict[Any, Any], x: Optional[Value] = None) -> Optional[Value]:
    """The value of an operator that moves elements which have been moved before; None if it is no such operator."""
    import torch

    inputs = [values[argument] for argument in node.all_input_nodes]
    x = x or (inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Value) and inputs[0].layout == "moved" else None)
    if x is None or str(node.target) not in MOVED:
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda _: x.name.at)
    at = node.target(*args, **kwargs)
    return settled(x.name._replace(at=at)) if at.numel() == x.name.at.numel() else _part(x.name, at)


def _check(shape: Any) -> None:
    if math.prod(shape) > ELEMENTS_MAX:
        raise Refused(f"it moves a tensor of the shape {list(shape)}, which is too large to be looked at", "give an example batch of fewer samples")


def _part(x: Moved, at: Any) -> Value:
    """One of several rows."""
    each = x.rows * x.channels
    number = int(at.flatten()[0]) // each if at.numel() == each else -1
    if len(x.names) == 1 or number < 0 or not bool((at // each == number).all()):
        raise Refused("it takes a part of a tensor whose elements were moved", "take the queries, keys or values of an attention as a whole")
    return settled(Moved((x.names[number],), x.channels, at - number * each))


def settled(x: Moved) -> Value:
    """The value with these elements: rows or heads, if that is where they stand."""
    import torch

    shape = tuple(x.at.shape)
    numbers = torch.arange(x.at.numel(), dtype=torch.int32)
    if len(x.names) == 1 and shape[-1] == x.channels and bool((x.at == numbers.reshape(shape)).all()):
        return Value(x.names[0], "rows", shape)
    if len(x.names) == 1 and len(shape) == 4 and shape[1] * shape[3] == x.channels:
        samples, heads, positions, width = shape
        if bool((x.at == numbers.reshape(samples, positions, heads, width).transpose(1, 2)).all()):
            return Value(x.names[0], "heads", shape)
    return Value(x, "moved", shape)


def row_order(x: Value) -> Tuple[str, Any]:
    """Rows that stand in another order: their name, and the number of each."""
    moved = x.name
    starts = moved.at[..., :1]
    whole = len(moved.names) == 1 and x.shape[-1] == moved.channels and bool((starts % moved.channels == 0).all())
    if not whole or not bool((moved.at - starts == moved.at.new_ones(moved.channels).cumsum(0) - 1).all()):
        raise Refused("it takes rows whose channels were moved", "give linear layers whole rows")
    return moved.names[0], starts[..., 0] // moved.channels


def of_rows(names: List[str], order: Any, channels: int) -> Value:
    """Rows of so many channels each in this order, one behind the other along the last dimension."""
    import torch

    _check((*order.shape, len(names) * channels))
    count = order.numel()
    within = order[..., None] * channels + torch.arange(channels, dtype=torch.int32)
    at = torch.cat([within + number * count * channels for number in range(len(names))], -1)
    return settled(Moved(tuple(names), channels, at))
