"""Linear layers whose output is cut into channels: each part that something takes becomes a layer of its own.

The operators that move and cut elements are applied to the numbers of the output's elements. Where another operator takes a part, its numbers
say which rows of the weight it needs, and in which order.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ._mask import ELEMENTS_MAX, MOVED
from ._matcher import Matcher, Refused, Value

CUTS = (
    "aten.slice.Tensor", "aten.select.int", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default", "aten.unbind.int",
    "aten.narrow.default", "aten.glu.default",
)  # fmt: skip
GLU = "aten.glu.default"


class Columns(NamedTuple):
    """A linear layer of rows `x`, and the numbers of the elements of its output, so many channels for each row."""

    x: str
    weight: Value
    bias: Any
    role: str
    where: str
    rows: int
    channels: int
    at: Any
    # The layer's operator.
    node: Any


def is_cut(node: Any) -> bool:
    """True if something cuts a node's output after operators that move elements, and nothing takes it before that."""
    if _is_taken(node):
        return False
    users = {user: str(user.target) for user in node.users}
    return any(name in CUTS and not _takes_all(user) for user, name in users.items()) or any(is_cut(user) for user, name in users.items() if name in MOVED)


def _is_taken(node: Any) -> bool:
    """True if an operator that does more than move and cut elements takes a node's output."""
    return any(str(user.target) not in (*MOVED, *CUTS) for user in node.users)


def _takes_all(node: Any) -> bool:
    """True if a slice takes everything, or nothing."""
    shape = getattr(node.meta["val"], "shape", None)
    return str(node.target) == "aten.slice.Tensor" and (shape == node.args[0].meta["val"].shape or 0 in shape)


def begun(m: Matcher, x: str, weight: Value, bias: Any, role: str, out: Any) -> Optional[Value]:
    """A layer whose output is cut; None if it is not, or too large to be looked at."""
    import torch

    shape = tuple(out.meta["val"].shape)
    if math.prod(shape) > ELEMENTS_MAX or out in m.uncut or not is_cut(out):
        return None
    at = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    return Value(Columns(x, weight, bias, role, m.where, math.prod(shape[:-1]), shape[-1], at, out), "columns", shape)


def computed(node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """The value of an operator that moves or cuts elements of such a layer; None if it is no such operator."""
    inputs = [values[argument] for argument in node.all_input_nodes]
    x = inputs[0] if len(inputs) == 1 else None
    if not isinstance(x, Value) or x.layout != "columns" or str(node.target) not in (*MOVED, *CUTS):
        return None
    if str(node.target) == GLU or _is_taken(node.all_input_nodes[0]):
        return None
    import torch

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda _: x.name.at)
    made = node.target(*args, **kwargs)
    if isinstance(made, torch.Tensor):
        return _of(x, made)
    return Value([_of(x, piece) for piece in made], "pieces", x.shape)


def _of(x: Value, at: Any) -> Value:
    return Value(x.name._replace(at=at), "columns", tuple(at.shape))


def settled(m: Matcher, node: Any, x: Value) -> Value:
    """The part of a layer's output that is the value of a node, computed: rows of samples, or heads of such rows."""
    if node not in m.whole:
        m.whole[node] = _or_uncut(m, x)
    return m.whole[node]


def _or_uncut(m: Matcher, x: Value) -> Value:
    """A part as a layer. A layer that has no such part is one as a whole, when the graph is matched again."""
    try:
        return _computed(m, x)
    except Refused:
        m.uncut_next.add(x.name.node)
        raise


def _computed(m: Matcher, x: Value) -> Value:
    found, shape = x.name, x.shape
    if 0 in shape:
        return Value(None, "nothing", shape)
    for layout, at in _orders(found.at, m.batch):
        rows, columns = at // found.channels, at % found.channels
        if not bool((columns == columns[0]).all()) or not bool((rows == rows[:, :1]).all()):
            continue
        position = position_of(rows[:, 0].tolist(), found.rows, m.batch)
        taken = tuple(columns[0].tolist())
        if position is None or len(set(taken)) != len(taken):
            continue
        where, m.where = m.where, found.where
        all_of_them = taken == tuple(range(found.channels))
        weights = ((found.weight, found.role), (found.bias, "plain"))
        names = [m.parameter(value, role, rows=() if all_of_them else taken) for value, role in weights if value is not None]
        kind = "linear" if found.bias is not None else "matmul"
        name = m.node(kind, found.x, *names, tail="" if all_of_them else names[0].rpartition(".")[2])
        m.where = where
        if layout in ("merged", "turned"):
            positions, channels = shape[1:] if layout == "merged" else shape[:0:-1]
            return Value(Value(name, "heads", (m.batch, shape[0] // m.batch, positions, channels)), layout, shape)
        return Value(m.node(position, name) if position else name, layout, shape)
    why = f"it takes {list(shape)} of a linear layer's output, which are neither rows nor heads of it, each channel once"
    raise Refused(why, "cut the output into channels, or into heads, of all positions; repeat no head, but use enable_gqa")


def gated(m: Matcher, node: Any, x: Value, dim: int) -> Value:
    """`glu` of a layer's output: one half of the channels times the sigmoid of the other."""
    left, right = (_of(x, at) for at in x.name.at.chunk(2, dim))
    made = [_or_uncut(m, half) for half in (left, right)]
    gate = m.node("sigmoid", made[1].name)
    return made[0]._replace(name=m.node("mul", made[0].name, gate))


def _orders(at: Any, samples: int) -> Iterator[Tuple[str, Any]]:
    """The layouts that elements may have, each with the elements as rows [N, C]."""
    if at.dim() == 4:
        yield "split", at.flatten(2).flatten(0, 1)
        yield "heads", at.transpose(1, 2).flatten(2).flatten(0, 1)
    yield "rows", at.reshape(-1, at.shape[-1])
    if at.dim() == 3 and samples and at.shape[0] > samples and at.shape[0] % samples == 0:
        # Heads that stand one behind the other, and their transpose.
        for layout, heads in (("merged", at), ("turned", at.transpose(1, 2))):
            yield layout, heads.reshape(samples, -1, *heads.shape[1:]).transpose(1, 2).flatten(2).flatten(0, 1)


def position_of(rows: List[int], count: int, samples: int) -> Optional[str]:
    """The operator that takes these of so many rows: none for all of them, or that of one position of each sample. None for other rows."""
    if rows == list(range(count)):
        return ""
    each = count // samples if samples and count % samples == 0 else 0
    for operator, place in (("first_position", 0), ("last_position", each - 1)):
        if each and rows == list(range(place, count, each)):
            return operator
    return None
