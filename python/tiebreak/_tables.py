"""Rows of tables that a model adds to the positions of a sample, and a row that it puts before them: words, positions, token types, class tokens."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

from . import _joined
from ._matcher import INPUTS, Matcher, Refused, Value, same

# A table with more rows than a sample has positions has fewer than these.
ROWS_MAX = 2**15


def embedding(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    shape, padding = tuple(out.meta["val"].shape), a["padding_idx"]
    if a["scale_grad_by_freq"] or a["sparse"]:
        raise Refused("scale_grad_by_freq or sparse is set", "leave them out")
    if a["indices"].layout == "mask":
        mask = a["indices"].name
        a = {**a, "indices": m.without(mask.padding, mask.real)}
    if a["indices"].layout == "constant":
        if padding >= 0 and bool((a["indices"].name == padding).any()):
            raise Refused(f"padding_idx is {padding}, which is among its constant numbers", "leave padding_idx out, where the numbers are constants")
        layout, first = _of_constant(a["indices"].name)
        return Value((a["weight"], first) if first else a["weight"], layout, shape)
    if a["indices"].layout != "tokens":
        raise Refused("its numbers are not the inputs", "look up the inputs themselves, or torch.arange(T)")
    below = m.shapes[a["weight"].name][0]
    m.input_below = below if m.input_below is None else min(m.input_below, below)
    m.take_inputs([math.prod(a["indices"].shape)])
    table = m.parameter(a["weight"])
    if padding < 0:
        return Value(m.node("embedding", table, INPUTS), "rows", shape)
    return Value(m.node("padded_embedding", table, INPUTS, ignore=padding), "rows", shape)


def _of_constant(numbers: Any) -> Tuple[str, int]:
    """The layout of rows of a table by constant numbers, and the first number: a "table" of positions, a "later table" from a row behind the
    first on, as OPT has it, or its "first row" for each of them.
    """
    flat = numbers.reshape(-1, numbers.shape[-1]) if numbers.dim() else numbers.reshape(1, 1)
    first = int(flat[0, 0])
    if bool((flat == 0).all()) and flat.shape[-1] > 1:
        return "first row", 0
    if first >= 0 and bool((flat == flat.new_ones(flat.shape[-1]).cumsum(0) - 1 + first).all()):
        return "later table" if first else "table", first
    instead = "look up torch.arange(T), also with a number added to it, or token types that are all 0"
    raise Refused(f"the constant numbers are {flat.flatten().tolist()!r:.60}", instead)


def added(m: Matcher, x: Value, y: Value, out: Any) -> Optional[Value]:
    """The sum of rows and of rows of a table, or of a parameter of such rows; None if it is another sum."""
    shape = tuple(out.meta["val"].shape)
    if x.layout in ("table", "later table", "first row") or (x.layout == "parameter" and y.layout != "parameter"):
        x, y = y, x
    if tuple(x.shape) != shape:
        # One position that is repeated to those of the table.
        return None
    if y.layout == "first row":
        return Value(m.node("first_row", m.rows(x), m.parameter(y.name)), "rows", shape)
    if y.layout in ("table", "later table"):
        if math.prod(y.shape[:-2]) not in (1, m.batch):
            # Positions that begin again within a sample.
            return None
        table, first = (y.name, 0) if y.layout == "table" else y.name
        numbers = math.prod(y.shape[:-1]) // (y.shape[0] if y.shape[0] == m.batch and len(y.shape) == 3 else 1)
        rows = m.shapes[table.name][0]
        _check_positions(m, shape, numbers, rows - first)
        if not first:
            return Value(m.node("position_embedding", m.rows(x), m.parameter(table)), "rows", shape)
        if max(first + numbers, rows - first + 1) >= ROWS_MAX:
            raise Refused(f"the table has {rows} rows, and the positions begin at {first}", f"make the table shorter than {ROWS_MAX} rows")
        chosen = m.node("slice_rows", m.parameter(table), tail="rows", first=first, step=1, count=numbers)
        return Value(m.node("position_embedding", m.rows(x), chosen), "rows", shape)
    if y.layout == "parameter" and y.shape == shape[-1:] and x.layout not in ("image", "pooled"):
        return Value(m.node("bias", m.rows(x), m.parameter(y), tail="add_bias"), "rows", shape)
    if y.layout == "parameter" and len(shape) == 3 and y.shape in (shape[1:], (1, *shape[1:])):
        same("the first dimension", shape[0], m.batch, "add positions to each sample")
        role = "plain" if len(y.shape) == 2 else "table"
        return Value(m.node("position_embedding", m.rows(x), m.parameter(y, role)), "rows", shape)
    return None


def _check_positions(m: Matcher, shape: Any, numbers: int, rows: int) -> None:
    positions = m.batch and math.prod(shape[:-1]) // m.batch
    if numbers != positions or rows < positions:
        why = f"the table has {min(numbers, rows)} positions, and a sample {positions}"
        raise Refused(why, "give an example batch of whole samples, or make the table as long as them")
    if rows > positions and rows >= ROWS_MAX:
        raise Refused(f"the table has {rows} rows, and a sample {positions} positions", f"make the table as long as a sample, or shorter than {ROWS_MAX}")


def token(m: Matcher, value: Value, shape: Any) -> Optional[Value]:
    """A parameter of P rows, the same for each sample, as [B, P, C]; None if it is another shape."""
    if len(shape) != 3 or shape[0] != m.batch or value.shape[-1:] != shape[-1:] or math.prod(value.shape) != math.prod(shape[1:]):
        return None
    return value._replace(layout="token", shape=tuple(shape))


def joined(m: Matcher, values: List[Value], dim: int, out: Any) -> Optional[Value]:
    """Class tokens before the positions of each sample; None if something else is joined."""
    shape = tuple(out.meta["val"].shape)
    if len(values) < 2 or len(shape) != 3 or dim % 3 != 1:
        return None
    *tokens, x = values
    tokens = [token(m, value, value.shape) if value.layout == "parameter" else value for value in tokens]
    if x.layout not in ("patches", "rows") or any(value is None or value.layout != "token" or value.shape != (m.batch, 1, shape[2]) for value in tokens):
        return None
    name = x.name
    for value in tokens[::-1]:
        name = m.node("class_token", name, m.vector_of(value._replace(layout="parameter")))
    return Value(name, "rows", shape)


def selected(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    x = a["self"]
    is_position = isinstance(x, Value) and x.layout in ("rows", "raw", "patches") and len(x.shape) == 3 and a["dim"] % 3 == 1
    if is_position and (value := position(m, x, a["index"] % x.shape[1], tuple(out.meta["val"].shape))) is not None:
        return value
    if isinstance(x, Value) and (x.layout == "image" or _joined.has_positions(x)) and a["dim"] % len(x.shape) > 0:
        return _joined.moved(m, out, x, {out.all_input_nodes[0]: x})
    raise Refused(f"it takes number {a['index']} of dimension {a['dim']} of {list(x.shape)}", "take positions or channels of each sample, as x[:, 0] or x[..., 0]")


def position(m: Matcher, x: Value, place: int, shape: Any) -> Optional[Value]:
    """The first or the last position of each sample; None if it is another one."""
    same("the first dimension", x.shape[0], m.batch, "take a position of each sample")
    kind = {x.shape[1] - 1: "last_position", 0: "first_position"}.get(place)
    return None if kind is None else Value(m.node(kind, m.rows(x)), "rows", shape)
