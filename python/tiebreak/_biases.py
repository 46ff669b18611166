"""Addends of an attention's scores that no mask of earlier positions, a window or padding is: tables of constants, such as ALiBi's and masks with holes,
and entries of a parameter for each two positions, such as the relative positions of MPNet.
"""

from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional

import numpy as np

from ._mask import ELEMENTS_MAX, HIDDEN, MOVED
from ._matcher import Matcher, Refused, Value

INSTEAD = "add one parameter's entries for each two positions of a sample, [heads, T, T], and constants, to the scores before their softmax"
INDEX, EMBEDDING, GREATER = "aten.index.Tensor", "aten.embedding.default", "aten.max.other"
SUMS = ("aten.add.Tensor", "aten.add_.Tensor")


class Entries(NamedTuple):
    """Elements of a parameter by their numbers, and constants that are added to them, if any."""

    parameter: Value
    at: Any
    plus: Any = None


class Bias(NamedTuple):
    """What is added to scores: entries, and constants [samples or 1, heads or 1, T or 1, T]."""

    entries: Optional[Value] = None
    constant: Any = None


def computed(m: Matcher, node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """The value of an operator that takes entries of a parameter by constant numbers, or moves them, and of one that leaves scores as they are;
    None if it is another one.
    """
    import torch

    target, inputs = str(node.target), [values[argument] for argument in node.all_input_nodes]
    if not inputs or not all(isinstance(value, Value) for value in inputs):
        return None
    if target in SUMS and sorted(value.layout for value in inputs) == ["constant", "entries"] and node.kwargs.get("alpha", 1) == 1:
        constant, entries = sorted(inputs, key=lambda value: value.layout)
        shape = tuple(node.meta["val"].shape)
        # PyTorch promotes each of them to the entries' dtype.
        plus = constant.name.float() if entries.name.plus is None else constant.name.float() + entries.name.plus
        return _of(entries.name.parameter, entries.name.at.expand(shape), plus.expand(shape))
    first, *others = inputs
    if target == GREATER and sorted(value.layout for value in inputs) == ["constant", "scores"]:
        scores, bound = sorted(inputs, key=lambda value: value.layout, reverse=True)
        # Such a bound lies below all scores but those of hidden positions.
        return scores if not scores.name.softmax and bool((bound.name <= HIDDEN).all()) else None
    if any(value.layout != "constant" for value in others) or target not in (INDEX, EMBEDDING, *MOVED):
        return None
    if first.layout == "parameter" and target in (INDEX, EMBEDDING) and others:
        shape = m.shapes[first.name]
        numbers = torch.arange(math.prod(shape)).reshape(shape)
        if target == EMBEDDING:
            if any(node.args[3:]) or node.kwargs.get("scale_grad_by_freq") or node.kwargs.get("sparse"):
                return None
            # Rows in the order of positions are tables.
            indices, padding = others[0].name, node.args[2] if len(node.args) > 2 else -1
            if padding >= 0 and bool((indices == padding).any()):
                return None
            if indices.dim() < 2 or indices.shape[-1] != indices.shape[-2] or bool((indices == indices[..., :1, :]).all()):
                return None
            at = numbers[indices]
        else:
            at = node.target(numbers, [None if index is None else values[index].name for index in node.args[1]])
        return _of(first, at)
    if first.layout != "entries" or (others and target == EMBEDDING):
        return None
    moved = []
    for tensor in (first.name.at, first.name.plus):
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument, tensor=tensor: tensor if values[argument] is first else values[argument].name)
        moved.append(None if tensor is None else node.target(*args, **kwargs))
    return _of(first.name.parameter, *moved)


def _of(parameter: Value, at: Any, plus: Any = None) -> Value:
    if at.numel() > ELEMENTS_MAX:
        raise Refused(f"it makes {list(at.shape)} of a parameter, which is too large to be looked at", "give an example batch of fewer samples")
    return Value(Entries(parameter, at, plus), "entries", tuple(at.shape))


def of_scores(addend: Value, factor: float = 1.0) -> Bias:
    """An addend of scores [.., T, T], times a number: numbers, or True where a position is seen."""
    import torch

    if addend.layout == "entries":
        if factor != 1:
            raise Refused(f"it multiplies entries of a parameter by {factor}", INSTEAD)
        return Bias(addend, None if addend.name.plus is None else addend.name.plus.float().clamp(min=HIDDEN))
    tensor = addend.name
    tensor = torch.where(tensor, 0.0, HIDDEN) if str(tensor.dtype) == "torch.bool" else tensor.float() * factor
    return Bias(constant=tensor.clamp(min=HIDDEN))


def both(first: Optional[Bias], second: Bias) -> Bias:
    if first is None:
        return second
    if first.entries is not None and second.entries is not None:
        raise Refused("the scores of an attention have two addends of parameters", INSTEAD)
    constants = [bias.constant for bias in (first, second) if bias.constant is not None]
    return Bias(first.entries or second.entries, sum(constants[1:], constants[0]) if constants else None)


def made(m: Matcher, bias: Bias, hidden: Any, shape: Any, factor: float) -> str:
    """The network's [heads, T T] of a bias of scores of this shape, [samples, heads, T, T], times a number. `hidden`: a mask besides, [T, T], if any."""
    import torch

    samples, heads, positions, _ = shape
    constant = bias.constant if bias.constant is not None else torch.zeros(1)
    if hidden is not None:
        constant = constant + torch.where(hidden, HIDDEN, 0.0)
    table = _of_one_sample(constant, shape).clamp(min=HIDDEN)
    if bool((table <= HIDDEN).all(-1).any()):
        raise Refused("the mask of its scores hides all positions from one", "let each position see one")
    table = np.float32(factor) * table.reshape(heads, -1).numpy()
    if bias.entries is None:
        return m.constant(table)
    name = _looked_up(m, bias.entries, shape)
    if factor != 1:
        name = m.node("gain", name, m.vector(positions**2, factor), tail="scale")
    return m.node("residual", name, m.constant(table), tail="mask") if table.any() else name


def _of_one_sample(tensor: Any, shape: Any) -> Any:
    """A tensor of scores, which is the same one for each sample."""
    try:
        whole = tensor.expand(shape)
    except RuntimeError:
        raise Refused(f"its addend is {list(tensor.shape)}, and the scores are {list(shape)}", INSTEAD) from None
    if not bool((whole == whole[:1]).all()):
        raise Refused("the addend of its scores differs between samples", INSTEAD)
    return whole[0]


def _looked_up(m: Matcher, entries: Value, shape: Any) -> str:
    """Entries of a matrix [rows, heads] or [heads, rows], where each two positions have a row: a product with a matrix of zeros and ones."""
    import torch

    heads = shape[1]
    parameter = entries.name.parameter
    of = m.shapes[parameter.name]
    at = _of_one_sample(entries.name.at, shape).reshape(heads, -1)
    if len(of) == 2:
        rows, columns = at // of[1], at % of[1]
        for role, row, head in (("transposed", rows, columns), ("plain", columns, rows)):
            count = of[0] if role == "transposed" else of[1]
            if heads == math.prod(of) // count and bool((row == row[:1]).all()) and bool((head == torch.arange(heads)[:, None]).all()):
                if at.shape[1] * count > ELEMENTS_MAX:
                    raise Refused(f"it looks up {at.shape[1]} of {count} rows for its scores", "give samples of fewer positions")
                chosen = np.zeros((at.shape[1], count), np.float32)
                chosen[np.arange(at.shape[1]), row[0].numpy()] = 1
                return m.node("matmul", m.parameter(parameter, role), m.constant(chosen), tail="bias")
    raise Refused(f"the addend of its scores takes entries of a parameter {list(of)} otherwise than by row and head", INSTEAD)
