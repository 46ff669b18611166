"""Channels that are chosen and joined: `cat`, `stack`, slices, `split` and other moves of activations, followed by the numbers of their elements.

Where another operator takes such a tensor, each of its channels has to be a channel of one source, at the same positions or pixels, or a constant;
or each of its positions a position of one source (`_positions.py`). Copies choose the channels, or products with frozen matrices of zeros and ones
where the copies were too many (`_copies.py`), and sums join them. A tensor that is neither is made of its inputs, which are computed first.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ._copies import Chosen, copied
from ._cut import CUTS, position_of
from ._mask import ELEMENTS_MAX, MOVED
from ._matcher import Matcher, Refused, Value
from ._positions import Placed, Source, exchanged, placed
from ._positions import made as made_of_positions

# Operators that put elements in other places, leave some out, or repeat them. The numbers of the elements go the same way.
MOVES = (
    "aten.narrow.default", "aten.select.int", "aten.unbind.int", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default",
    "aten.tensor_split.sections", "aten.tensor_split.indices", "aten.hsplit.int", "aten.hsplit.array", "aten.flip.default", "aten.roll.default",
    "aten.index_select.default", "aten.index.Tensor", "aten.repeat.default", "aten.repeat_interleave.self_int", "aten.channel_shuffle.default",
    "aten.movedim.int", "aten.swapaxes.default", "aten.unflatten.int", "aten.tile.default",
)  # fmt: skip
FOLLOWED = {*MOVES, *MOVED, *(name for name in CUTS if name != "aten.glu.default"), "aten.transpose.int", "aten.permute.default"}
VIEWED = {*MOVED} - {"aten.slice.Tensor", "aten.select.int", "aten.index.Tensor", "aten.repeat.default"}
JOINS = ("aten.cat.default", "aten.stack.default", "aten.hstack.default")
PADS = ("aten.pad.default", "aten.constant_pad_nd.default")
REDUCTIONS = {"aten.sum.dim_IntList": False, "aten.mean.dim": True}
# A sum over more tensors than these is one over positions.
PIECES_MAX = 64
JOINED = "join and choose channels, dimension 1 of images [B, C, H, W] and the last one of rows [.., C], or positions of each sample, dimension 1 of [B, T, C]"


class Joined(NamedTuple):
    """Elements of several sources, by their numbers: those of the sources stand one behind the other."""

    sources: Tuple[Source, ...]
    # Those of the first image; None for rows.
    pixels: Optional[Tuple[int, int]]
    at: Any
    # The operator that chose or joined last.
    node: Any
    # The same value, of inputs that are computed first.
    again: Optional[Callable[[], Value]] = None


class Column(NamedTuple):
    """How so many channels are made: for each source those that are chosen, and the operator that takes its rows; and constants, that are added."""

    width: int
    parts: List[Tuple[Source, Chosen, Tuple[str, int]]]
    constant: Any


def begun(m: Matcher, x: Any, node: Any) -> Optional[Value]:
    """A value as elements that can be followed; None if it is no activation and no constant."""
    import torch

    from ._whole import whole

    if not isinstance(x, Value):
        return None
    if x.layout == "joined":
        return x
    if x.layout == "formula":
        op, args, of = x.name
        if op == "slice" and of not in m.whole and (followed := begun(m, args[0], node)) is not None:
            return _of(followed, followed.name.at[..., args[1] : args[2]], node)
        x = whole(m, x)
    if math.prod(x.shape) > ELEMENTS_MAX:
        raise Refused(f"it moves a tensor of the shape {list(x.shape)}, which is too large to be looked at", "give an example batch of fewer samples")
    if x.layout == "constant" and x.name.is_floating_point():
        at = torch.arange(math.prod(x.shape)).reshape(x.shape)
        return Value(Joined((Source(None, 0, 0, x.name.flatten()),), None, at, node), "joined", x.shape)
    if x.layout == "raw" and m.input_below is None:
        x = x._replace(name=m.image(x), layout="image") if len(x.shape) == 4 else x._replace(name=m.rows(x), layout="rows")
    if x.layout in ("patches", "planes", "pixel", "last"):
        x = x._replace(name=m.rows(x), layout="rows")
    if x.layout == "token":
        rows = math.prod(m.shapes[x.name]) // x.shape[-1]
        at = torch.arange(rows * x.shape[-1]).reshape(1, rows, x.shape[-1]).expand(x.shape)
        return Value(Joined((Source(x.name, rows, x.shape[-1], token=x._replace(layout="parameter")),), None, at, node), "joined", x.shape)
    if x.layout not in ("rows", "split", "heads", "pooled", "image") or not isinstance(x.name, str):
        return None
    pixels, numbers, shape = None, torch.arange(math.prod(x.shape)), x.shape
    if x.layout == "image":
        pixels = shape[2:]
        at, channels = numbers.reshape(shape[0], *pixels, shape[1]).permute(0, 3, 1, 2), shape[1]
    elif x.layout == "heads":
        samples, heads, positions, width = shape
        at, channels = numbers.reshape(samples, positions, heads, width).transpose(1, 2), heads * width
    else:
        at, channels = numbers.reshape(shape), {"split": math.prod(shape[2:]), "pooled": shape[1]}.get(x.layout, shape[-1])
    source = Source(x.name, math.prod(shape) // channels, channels, None, pixels)
    return Value(Joined((source,), pixels, at, node), "joined", shape)


def moved(m: Matcher, node: Any, x: Value, values: Dict[Any, Any]) -> Value:
    """The value of an operator that moves or chooses elements of x. Its other arguments are constants."""
    import torch

    followed = begun(m, x, node)
    if followed is None:
        raise Refused(f"it takes a part of {list(x.shape)} ({x.layout})", JOINED)

    def of(argument: Any) -> Any:
        value = values[argument]
        if value is x:
            return followed.name.at
        if isinstance(value, Value) and value.layout == "constant":
            return value.name
        raise Refused("it moves elements by numbers that are no constants", JOINED)

    def again(number: int) -> Callable[[], Value]:
        def value() -> Value:
            of_whole = settled(m, of_x, x)
            found = moved(m, call, of_whole, {key: of_whole if other is x else other for key, other in values.items()})
            return found.name[number] if found.layout == "pieces" else found

        return value

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), of)
    made, call = node.target(*args, **kwargs), node
    of_x = next((argument for argument in node.all_input_nodes if values[argument] is x), None)
    # A refusal names what chose or joined, not the view behind it.
    node = followed.name.node if str(node.target) in VIEWED else node
    is_second = x.layout == "joined" and of_x is not None
    pieces = [_of(followed, at, node, again(number) if is_second else None) for number, at in enumerate(made if isinstance(made, (list, tuple)) else [made])]
    return Value(pieces, "pieces", x.shape) if isinstance(made, (list, tuple)) else pieces[0]


def _of(x: Value, at: Any, node: Any, again: Optional[Callable[[], Value]] = None) -> Value:
    return Value(x.name._replace(at=at, node=node, again=again), "joined", tuple(at.shape))


def computed(m: Matcher, node: Any, values: Dict[Any, Any]) -> Optional[Value]:
    """The value of an operator that goes on with joined channels; None if it is another one, which takes them as a whole."""
    tensors = [values[argument] for argument in node.all_input_nodes]
    joined = [value for value in tensors if isinstance(value, Value) and value.layout == "joined"]
    target = str(node.target)
    if len(joined) != 1 or (target not in FOLLOWED and target not in REDUCTIONS):
        return None
    (x,) = joined
    if target in REDUCTIONS:
        return _reduced(m, node, x)
    made = node.meta["val"]
    # Heads that are repeated for several heads of queries are heads as a whole.
    if target == "aten.unsqueeze.default" and len(x.shape) == 4 and tuple(made.shape) == (*x.shape[:2], 1, *x.shape[2:]):
        if (plan := _plan(m, x)) is not None and plan[0] == "heads":
            return None
    # Pixels that become channels are those of a whole image.
    if x.name.pixels is not None and not isinstance(made, (list, tuple)) and made.dim() < len(x.shape) and target not in ("aten.select.int", *MOVES):
        if made.dim() < 4 and _plan(m, x) is not None:
            return None
    return moved(m, node, x, values)


def joined(m: Matcher, node: Any, tensors: Sequence[Any], dim: int) -> Value:
    """Tensors one behind the other along a dimension, or along a new one."""
    import torch

    followed = [begun(m, value, node) for value in tensors]
    kinds = {value.name.pixels is None for value in followed if value and any(source.constant is None for source in value.name.sources)}
    if any(value is None for value in followed) or len(kinds) != 1:
        raise Refused("it joins tensors that are no activations of one kind", JOINED)
    sources: Dict[Any, Tuple[int, Source]] = {}
    end, moved_to, pixels = 0, [], None
    for value in followed:
        at = value.name.at.clone()
        pixels = pixels or value.name.pixels
        begin = 0
        for source in value.name.sources:
            size = source.size
            key = source.name if source.constant is None else id(source.constant)
            if key not in sources:
                sources[key] = (end, source)
                end += size
            inside = (value.name.at >= begin) & (value.name.at < begin + size)
            at[inside] = value.name.at[inside] - begin + sources[key][0]
            begin += size
        moved_to.append(at)
    join = torch.stack if "stack" in str(node.target) and "hstack" not in str(node.target) else torch.cat
    at = join(moved_to, dim)

    def again() -> Value:
        return joined(m, node, [_made(m, value) if value.layout == "joined" else value for value in tensors], dim)

    is_second = any(value.layout == "joined" for value in tensors)
    made = Joined(tuple(source for _, source in sources.values()), pixels, at, node, again if is_second else None)
    return Value(made, "joined", tuple(at.shape))


def _reduced(m: Matcher, node: Any, x: Value) -> Optional[Value]:
    """A sum or a mean of tensors that were stacked; None if it is one over positions or pixels."""
    from ._whole import plus, times, where_of

    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = given if isinstance(given, (list, tuple)) else [given]
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    pieces: List[Value] = []
    if len(dims) == 1 and isinstance(dims[0], int) and "dtype" not in node.kwargs:
        pieces = [_of(x, at, node) for at in (x.name.at.split(1, dims[0]) if keeps else x.name.at.unbind(dims[0]))]
    if not 0 < len(pieces) <= PIECES_MAX or any(_of_channels(m, piece) is None for piece in pieces):
        if "stack" in str(node.all_input_nodes[0].target) and _plan(m, x) is None:
            instead = f"add at most {PIECES_MAX} tensors, which are stacked along that dimension and are all activations; add constants by x + constant"
            raise Refused(f"it adds up {list(x.shape)}, which is no activation, along dimension {given}", instead)
        return None
    m.where = where_of(node)
    total, *others = (_made(m, piece) for piece in pieces)
    for other in others:
        total = plus(m, total, other, node)
    return times(m, total, 1 / len(pieces), node) if REDUCTIONS[str(node.target)] else total


def settled(m: Matcher, node: Any, x: Value) -> Value:
    """The value of a node as the network's rows or images."""
    if node not in m.whole:
        m.whole[node] = _made(m, x)
    return m.whole[node]


def channel_dim(x: Value) -> int:
    """The dimension of PyTorch's tensor that has the channels."""
    return 1 if x.layout in ("image", "pooled") or (x.layout == "raw" and len(x.shape) == 4) else len(x.shape) - 1


def has_positions(x: Value) -> bool:
    """True of a tensor whose other dimensions than the channels may be positions."""
    return x.layout in ("rows", "split", "heads", "joined", "patches", "planes", "token", "last") or (x.layout == "raw" and len(x.shape) == 3)


def slices(m: Matcher, x: Value, start: int, end: int, node: Any) -> Value:
    """Some channels of heads, or of rows, as a whole."""
    followed = begun(m, x, node)
    if followed is None:
        raise Refused(f"it takes a part of {list(x.shape)} ({x.layout})", JOINED)
    return _made(m, _of(followed, followed.name.at[..., start:end], node))


def whole_of(m: Matcher, tensors: Sequence[Any], dim: int, node: Any) -> Value:
    """Tensors that are joined, as a whole."""
    return _made(m, joined(m, node, tensors, dim))


def padded(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
    """`F.pad` of channels, or of positions. A negative number cuts."""
    import torch

    x, pads = a["self"], list(a["pad"])
    sides = {len(x.shape) - 1 - number: (pads[2 * number], pads[2 * number + 1]) for number in range(len(pads) // 2)}
    sides = {dim: pair for dim, pair in sides.items() if pair != (0, 0)}
    is_image = x.layout in ("image", "pooled") or (x.layout == "raw" and len(x.shape) == 4)
    if is_image and sides and set(sides) <= {2, 3} and a.get("mode", "constant") == "constant" and not a["value"] and min(min(pair) for pair in sides.values()) >= 0:
        from ._pixels import padded as pixels_padded

        return pixels_padded(m, x, (*sides.get(2, (0, 0)), *sides.get(3, (0, 0))))
    if a.get("mode", "constant") != "constant" or 0 in sides or (is_image and set(sides) - {1}):
        raise Refused(f"it pads {pads} of {list(x.shape)}", "pad images by zeros alone, and no samples; cut images by strides")
    for dim, (before, after) in sides.items():
        if min(before, after) < 0:
            x = _cropped(m, x, out, dim, max(-before, 0), x.shape[dim] - max(-after, 0))
        full = []
        for count in (before, None, after):
            shape = tuple(count if count is not None and at == dim else size for at, size in enumerate(x.shape))
            if count is None:
                full.append(x)
            elif count > 0:
                full.append(Value(torch.full(shape, float(a["value"] or 0)), "constant", shape))
        x = x if len(full) == 1 else joined(m, out, full, dim)
    return x


def _cropped(m: Matcher, x: Value, node: Any, dim: int, first: int, end: int) -> Value:
    followed = begun(m, x, node)
    if followed is None:
        raise Refused(f"it takes a part of {list(x.shape)} ({x.layout})", JOINED)
    again = (lambda: _cropped(m, _made(m, x), node, dim, first, end)) if x.layout == "joined" else None
    return _of(followed, followed.name.at.narrow(dim, first, end - first), node, again)


def _made(m: Matcher, x: Value) -> Value:
    from ._whole import where_of

    plan = _plan(m, x)
    if plan is None and x.name.again is not None:
        return _again(m, x)
    if plan is None:
        raise _neither(x)
    m.where = where_of(x.name.node)
    layout, how = plan
    name = made_of_positions(m, how) if isinstance(how, Placed) else _of_columns(m, x, how)
    return Value(exchanged(m, name), "rows", x.shape) if layout == "exchanged" else Value(name, layout, x.shape)


def _neither(x: Value) -> Refused:
    why = (
        f"it makes {list(x.shape)}, whose channels are not channels of activations at the same positions, or not as rows, heads or images have them, "
        "and whose positions are no positions of the same sample"
    )
    return Refused(why, JOINED, x.name.node)


def _again(m: Matcher, x: Value) -> Value:
    """The value, of inputs that are computed first."""
    try:
        return _made(m, x.name.again())
    except Refused as error:
        raise _neither(x) from error


def _of_columns(m: Matcher, x: Value, plan: Column) -> str:
    """Channels that are chosen and joined."""
    names = []
    for source, chosen, (operator, number) in plan.parts:
        name = source.name
        if operator == "avg_pool":
            name = m.node("avg_pool", name, tail="pixels", kernel=1, stride=number, padding=0)
        elif operator:
            name = m.node(operator, name)
        copy = name if chosen.is_all(plan.width) else copied(m, name, "channels", chosen, plan.width)
        if copy is None and x.name.pixels is not None:
            kind = "conv2d" if m.convolution == 1 else "conv2d_v2"
            copy = m.node(kind, name, m.constant(chosen.matrix(plan.width)[:, None, None]), tail="channels", stride=1, padding=0)
        elif copy is None:
            copy = m.node("matmul", name, m.constant(chosen.matrix(plan.width)), tail="channels")
        names.append(copy)
    made = names[0]
    for name in names[1:]:
        made = m.node("residual", made, name, tail="join")
    if plan.constant is not None:
        made = m.node("bias", made, m.constant(plan.constant), tail="constants")
    return made


def _plan(m: Matcher, x: Value) -> Optional[Tuple[str, Union[Column, Placed]]]:
    """How the channels or the positions are made, and their layout; None if they are not."""
    if (found := _of_channels(m, x)) is not None:
        return found
    if x.name.pixels is not None or any(source.pixels is not None for source in x.name.sources):
        return None
    for layout, at in _orders(m, x):
        if layout != "pooled" and (by_position := placed(m, x.name.sources, at)) is not None:
            return layout, by_position
    return None


def _of_channels(m: Matcher, x: Value) -> Optional[Tuple[str, Column]]:
    """How the channels are made, and their layout; None if they are not."""
    for layout, at in _orders(m, x):
        if (found := _columns(m, x.name, at)) is not None:
            return layout, found
    return None


def _orders(m: Matcher, x: Value) -> Iterator[Tuple[str, Any]]:
    """The layouts that elements may have, each with the elements as rows of channels. "exchanged" are rows of positions, for each channel."""
    at, shape = x.name.at, x.shape
    if not shape or 0 in shape:
        return
    if x.name.pixels is not None:
        if len(shape) == 4:
            yield "image", at.permute(0, 2, 3, 1).flatten(0, 2)
        return
    if len(shape) > 1:
        yield "rows", at.reshape(-1, shape[-1])
    if len(shape) == 4:
        yield "split", at.flatten(2).flatten(0, 1)
        yield "heads", at.transpose(1, 2).flatten(2).flatten(0, 1)
        if shape[2:] == (1, 1):
            yield "pooled", at.flatten(1)
    if len(shape) == 3 and shape[0] == m.batch:
        yield "exchanged", at.transpose(1, 2).flatten(0, 1)


def _columns(m: Matcher, of: Joined, at: Any) -> Optional[Column]:
    import torch

    count, width = at.shape
    ends = torch.tensor([source.size for source in of.sources]).cumsum(0)
    owner = torch.bucketize(at.contiguous(), ends, right=True)
    if not bool((owner == owner[:1]).all()):
        return None
    parts: List[Tuple[Source, Chosen, Tuple[str, int]]] = []
    constants = np.zeros(width, dtype=np.float32)
    for number, source in enumerate(of.sources):
        mine = (owner[0] == number).nonzero().flatten()
        if not len(mine):
            continue
        local = at[:, mine] - (int(ends[number]) - source.size)
        if source.token is not None:
            return None
        if source.constant is not None:
            found = source.constant[local]
            if not bool((found == found[:1]).all()):
                return None
            constants[mine.numpy()] = found[0].float().numpy()
            continue
        rows, columns = local // source.channels, local % source.channels
        if not bool((columns == columns[:1]).all()) or not bool((rows == rows[:, :1]).all()):
            return None
        taken = _taken(m, of, source, rows[:, 0], count)
        if taken is None:
            return None
        parts.append((source, Chosen(source.channels, columns[0].numpy(), mine.numpy()), taken))
    if not parts:
        return None
    return Column(width, parts, constants if constants.any() else None)


def _taken(m: Matcher, of: Joined, source: Source, rows: Any, count: int) -> Optional[Tuple[str, int]]:
    """The operator that takes these rows of a source, with its number: none for all of them in order."""
    import torch

    if of.pixels is None:
        operator = position_of(rows.tolist(), source.rows, m.batch)
        return None if operator is None else (operator, 0)
    if count == source.rows and bool((rows == torch.arange(count)).all()):
        return "", 1
    height, width = source.pixels
    images = source.rows // (height * width)
    numbers = torch.arange(source.rows).reshape(images, height, width)
    for stride in range(2, max(height, width) + 1):
        if (every := numbers[:, ::stride, ::stride].flatten()).numel() == count and bool((every == rows).all()):
            return "avg_pool", stride
    return None
