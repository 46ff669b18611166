"""Matches every operator of a graph of `torch.export`, in the graph's order, and folds those of constants."""

from __future__ import annotations

import operator
from typing import Any, Callable, Dict, List, Optional, Set

from . import _biases, _cut, _in_place, _joined, _mask, _moved
from ._attention import scaled_heads
from ._errors import CaptureError
from ._graph import HANDLERS, TAKE_FORMULAS, VIEWS, arguments, module_of
from ._instead import instead_of
from ._matcher import Matcher, Refused, Value
from ._source import alike, place
from ._whole import whole

CONSTANT_MAX = 2**26
# The value of an operator that was refused, or that takes such a value.
BROKEN = object()
# What forward sets for some of its operators, which stand in a graph of their own then: what is wrong with them, and what to do.
_GRADIENTS = "leave torch.no_grad() and torch.enable_grad() out of forward: call the model inside of them, or freeze parameters by requires_grad_(False)"
WRAPPED = {
    "wrap_with_set_grad_enabled": ("forward computes it inside of torch.no_grad() or torch.enable_grad()", _GRADIENTS),
    "wrap_with_autocast": ("forward computes it inside of torch.autocast", "leave torch.autocast out of forward: an engine computes in float32"),
}


def matched(program: Any, fresh: Callable[[], Matcher], placeholder: Callable[[Matcher, Any], Any], ended: Callable[[Matcher, Any, Dict[Any, Any]], List[str]]) -> Matcher:
    """The graph as a network: each layer that is cut as several, or as a whole where its cuts are no layers.

    placeholder: the value of an input of the graph.
    ended: looks at what the graph returns, and says what is refused there.
    """
    uncut: Set[Any] = set()
    while True:
        matcher = fresh()
        matcher.uncut = set(uncut)
        try:
            _match(matcher, program, placeholder, ended)
            return matcher
        except CaptureError:
            if matcher.uncut_next <= uncut:
                raise
            uncut |= alike(program.graph, matcher.uncut_next)


def _match(matcher: Matcher, program: Any, placeholder: Callable[[Matcher, Any], Any], ended: Callable[[Matcher, Any, Dict[Any, Any]], List[str]]) -> None:
    """Matches every operator, and raises one error that lists all that have no counterpart."""
    values: Dict[Any, Any] = {}
    refused: List[str] = []
    for node in matcher.writes.live:
        if node.op == "placeholder":
            values[node] = placeholder(matcher, node)
            continue
        if node.op == "output":
            refused += ended(matcher, node, values)
            continue
        if node in matcher.writes.ignored:
            continue
        wrapped = [WRAPPED[str(user.target)] for user in node.users if str(user.target) in WRAPPED] if node.op == "get_attr" else []
        if wrapped:
            why, instead = wrapped[0]
            refused.append(f"{place(_first_of(node))}: {why}; {instead}")
            values[node] = BROKEN
            continue
        where, kind = module_of(node)
        if any(values.get(argument) is BROKEN for argument in node.all_input_nodes):
            values[node] = BROKEN
            continue
        matcher.at = node
        try:
            values[node] = _one(matcher, node, values, where, kind, str(node.target))
        except Refused as error:
            refused.append(f"{place(error.node or node)}: {error.why}; {error.instead}")
            values[node] = BROKEN
    if refused:
        raise CaptureError(refused)


def _first_of(node: Any) -> Any:
    """The first operator of a graph inside of a graph."""
    inner = getattr(node.graph.owning_module, node.target)
    return next((inner for inner in inner.graph.nodes if inner.op == "call_function"), None)


def _one(matcher: Matcher, node: Any, values: Dict[Any, Any], where: str, kind: str, target: str) -> Any:
    """The value of one operator."""
    if node.target is operator.getitem:
        whole = values[node.args[0]]
        if not isinstance(whole, Value) or whole.layout != "pieces":
            raise Refused("it takes a piece of something", "cut the output of a linear layer alone")
        return whole.name[node.args[1]]
    if target == "aten._assert_tensor_metadata.default":
        return None
    matcher.writes.check(node)
    if (constant := _folded(matcher, node, values)) is not None:
        return constant
    matcher.writes.check_readers(node)
    if (value := _mask.counted(matcher, node, values) or _mask.computed(node, values) or _biases.computed(matcher, node, values) or _moved.computed(node, values) or _moved.exchanged(matcher, node, values) or _cut.computed(node, values)) is not None:
        return value
    if (value := _joined.computed(matcher, node, values)) is not None:
        return value
    handler = HANDLERS.get(target)
    if handler is None or not hasattr(node.target, "_schema"):
        raise Refused("the contract has no such operator", instead_of(target))
    own_module = kind.startswith("torch.nn.modules.") or kind.rpartition(".")[2] == "Conv1D"
    matcher.where = where if own_module else ".".join(part for part in (where, target.split(".")[1].rstrip("_")) if part)
    settled = _settled(matcher, node, values)
    if handler is _joined.moved:
        return _joined.moved(matcher, node, settled[node.all_input_nodes[0]], settled)
    return handler(matcher, arguments(node, settled), node)


def _settled(matcher: Matcher, node: Any, values: Dict[Any, Any]) -> Dict[Any, Any]:
    """The values with those that an operator takes as a whole: no formula, unless it may be a part of one, and no cut layer."""
    where, keeps = matcher.where, str(node.target) in TAKE_FORMULAS
    same_shape = str(node.target) in VIEWS and len(node.all_input_nodes) == 1 and node.all_input_nodes[0].meta["val"].shape == node.meta["val"].shape
    settled = dict(values)
    for argument in node.all_input_nodes:
        value = values[argument]
        if isinstance(value, Value) and value.layout == "columns" and str(node.target) != _cut.GLU:
            settled[argument] = _cut.settled(matcher, argument, value)
        elif isinstance(value, Value) and value.layout == "joined" and str(node.target) not in (*_joined.JOINS, *_joined.PADS):
            settled[argument] = _joined.settled(matcher, argument, value)
        elif isinstance(value, Value) and value.layout == "formula" and not keeps and not same_shape and not _scales_queries(node, values):
            settled[argument] = whole(matcher, value)
    matcher.where = where
    return settled


def _scales_queries(node: Any, values: Dict[Any, Any]) -> bool:
    """True if a product is that of queries and keys, whose queries are multiplied by a number."""
    if str(node.target) != "aten.matmul.default":
        return False
    x, y = (values.get(argument) for argument in node.args)
    return scaled_heads(x) is not None and isinstance(y, Value) and y.layout == "turned"


def _folded(matcher: Matcher, node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """The value of an operator whose inputs are constants: a mask, positions."""
    import torch

    made, schema = node.meta.get("val"), getattr(node.target, "_schema", None)
    inputs = [values[argument] for argument in node.all_input_nodes]
    fixed = all(isinstance(value, Value) and value.layout == "constant" for value in inputs)
    pieces = list(made) if isinstance(made, (list, tuple)) else [made]
    if not fixed or schema is None or not all(isinstance(piece, torch.Tensor) for piece in pieces):
        return None
    # A mask that is repeated for each sample takes no memory.
    if sum(piece.numel() for piece in pieces) > CONSTANT_MAX and str(node.target) != "aten.expand.default":
        return None
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return None
    if schema.name.startswith(("aten::empty", "aten::new_empty")) and not any(map(_shares, node.users)):
        raise Refused("it makes a tensor of numbers that nobody has written", "use torch.zeros or torch.full")
    # Views share the memory of their constants, and what is written there is written to all of them.
    matcher.writes.begin(node, values)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: values[argument].name)
    with torch.no_grad():
        found = node.target(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})
    if isinstance(made, (list, tuple)):
        return Value([Value(piece, "constant", tuple(piece.shape)) for piece in found], "pieces", ())
    return Value(found, "constant", tuple(found.shape))


def _shares(node: Any) -> bool:
    """True if an operator writes to its input, or shows it."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(result.alias_info is not None for result in returns)
