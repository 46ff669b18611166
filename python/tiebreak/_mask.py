"""Masks of padding: tensors of a graph whose elements each depend on one token id, and on nothing of it but whether it is that of padding.

Such a tensor is known exactly: for each element which id decides it, and its value in both cases. The operators of the graph are applied to
these three tensors, so no example of a batch stands for others.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ._matcher import Matcher, Refused, Value

# A score with this addend, or a lesser one, has the probability 0: PyTorch's masks hold -inf, or the least number of their type.
HIDDEN = -1e30
ELEMENTS_MAX = 2**26

GATHER, COUNTED = "aten.gather.default", "aten.cumsum.default"
COMPARED = ("aten.ne.Scalar", "aten.eq.Scalar")
# Operators that put elements in other places, or repeat them.
MOVED = (
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints", "aten.unflatten.int",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default", "aten.unsqueeze.default", "aten.expand.default", "aten.expand_as.default", "aten.repeat.default",
    "aten.slice.Tensor", "aten.select.int", "aten.transpose.int", "aten.permute.default", "aten.alias.default", "aten.clone.default",
    "aten.contiguous.default", "aten.index.Tensor",
)  # fmt: skip
# Operators that compute each element by those in its place.
OF_ELEMENTS = (
    *COMPARED, "aten.gt.Scalar", "aten.lt.Scalar", "aten.ge.Scalar", "aten.le.Scalar", "aten.to.device", "aten.to.dtype", "aten.to.dtype_layout",
    "aten.bitwise_not.default", "aten.logical_not.default", "aten.__and__.Tensor", "aten.__or__.Tensor", "aten.bitwise_and.Tensor",
    "aten.bitwise_or.Tensor", "aten.logical_and.default", "aten.logical_or.default", "aten.add.Tensor", "aten.sub.Tensor", "aten.rsub.Scalar",
    "aten.mul.Tensor", "aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar", "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor", "aten.masked_fill_.Scalar", "aten.zeros_like.default", "aten.ones_like.default", "aten.full_like.default",
    "aten.type_as.default",
)  # fmt: skip


class Mask(NamedTuple):
    """A tensor in three parts. `at` has for each element the id that decides it, counted over the inputs."""

    padding: int
    at: Any
    real: Any
    hidden: Any


def computed(node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """The value of an operator that makes a mask of token ids, or another one of it; None if it is no such operator."""
    target = str(node.target)
    inputs = [values[argument] for argument in node.all_input_nodes]
    if target in COMPARED and inputs and isinstance(inputs[0], Value) and inputs[0].layout == "tokens":
        return _compared(node, inputs[0].shape, node.args[1])
    masks = [value.name for value in inputs if isinstance(value, Value) and value.layout == "mask"]
    known = all(isinstance(value, Value) and value.layout in ("mask", "constant") for value in inputs)
    if target == GATHER and masks and known and values[node.args[2]].layout == "mask" and values[node.args[0]].layout == "constant":
        made = [_applied(node, values, part) for part in ("real", "hidden")]
        if bool((made[0] == made[1]).all()):
            # Whatever is padding, the numbers are the same.
            return Value(made[0], "constant", tuple(made[0].shape))
        return Value(Mask(masks[0].padding, masks[0].at, *made), "mask", tuple(made[0].shape))
    if not masks or not known or target not in (*MOVED, *OF_ELEMENTS):
        return None
    shape = tuple(node.meta["val"].shape)
    if math.prod(shape) > ELEMENTS_MAX:
        raise Refused(f"a mask has the shape {list(shape)}, which is too large to be looked at", "give an example batch of fewer samples")
    if any(mask.padding != masks[0].padding for mask in masks):
        raise Refused(f"it joins masks of the ids {masks[0].padding} and others", "let one id be that of padding")
    made = [_applied(node, values, part) for part in ("real", "hidden")]
    at = _applied(node, values, "at") if target in MOVED else _joined([mask.at for mask in masks], shape)
    return Value(Mask(masks[0].padding, at, *made), "mask", shape)


def counted(m: Matcher, node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """Positions that are counted over the ids that are no padding, in texts without padding; None if it is another operator."""
    x = values[node.all_input_nodes[0]] if str(node.target) == COUNTED and len(node.all_input_nodes) == 1 else None
    if not isinstance(x, Value) or x.layout != "mask":
        return None
    return m.without(x.name.padding, _applied(node, values, "real"))


def _compared(node: Any, shape: Tuple[int, ...], padding: Any) -> Value:
    import torch

    if not isinstance(padding, int) or isinstance(padding, bool) or not 0 <= padding < 2**31:
        raise Refused(f"it compares the token ids with {padding!r:.40}", "compare them with the id of padding")
    at = torch.arange(math.prod(shape)).reshape(shape)
    equal = str(node.target) == "aten.eq.Scalar"
    return Value(Mask(padding, at, torch.full(shape, not equal), torch.full(shape, equal)), "mask", shape)


def _applied(node: Any, values: Dict[Any, Any], part: str) -> Any:
    """The operator on one part of its masks."""
    import torch

    def of(argument: Any) -> Any:
        value = values[argument]
        tensor = getattr(value.name, part) if value.layout == "mask" else value.name
        return tensor.clone() if node.target._schema.is_mutable else tensor

    if str(node.target) == "aten.index.Tensor" and any(values[index].layout == "mask" for index in node.args[1] if index is not None):
        raise Refused("a mask of padding chooses elements", "use it to mask the scores of an attention alone")
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), of)
    with torch.no_grad():
        return node.target(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})


def _joined(each: List[Any], shape: Tuple[int, ...]) -> Any:
    """The ids that decide the elements of masks that are computed together: the same ones."""
    first, *others = (at.broadcast_to(shape) for at in each)
    if any(not bool((first == other).all()) for other in others):
        raise Refused("it joins masks that depend on other positions", "mask padding by the positions that are attended to alone")
    return first


def inverse(x: Value) -> Value:
    """A mask with True where it had False."""
    return x._replace(name=x.name._replace(real=~x.name.real, hidden=~x.name.hidden))


def padding_of(x: Value, samples: int, positions: int) -> Optional[int]:
    """The id of padding, if a mask hides from all positions of each sample those of this id and no other; None if it is another mask."""
    import torch

    mask, shape = x.name, x.shape
    if len(shape) not in (2, 4) or shape[-1] != positions or (len(shape) == 4 and shape[0] != samples) or (len(shape) == 2 and samples != 1):
        return None
    if str(mask.real.dtype) == "torch.bool":
        fits = bool(mask.real.all()) and not bool(mask.hidden.any())
    else:
        fits = mask.real.is_floating_point() and bool((mask.real == 0).all()) and bool((mask.hidden <= HIDDEN).all())
    due = torch.arange(samples * positions).reshape(samples, 1, 1, positions)
    at = mask.at if len(shape) == 4 else mask.at[None, None]
    # What is repeated for each head and position is looked at once.
    at = at[tuple(slice(0, 1) if dim in (1, 2) and at.stride(dim) == 0 else slice(None) for dim in range(4))]
    return mask.padding if fits and bool((at == due).all()) else None
