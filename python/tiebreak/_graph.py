"""Matches the graph of `torch.export` to the nodes of a network file. Every attribute of an operator is checked."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Tuple

from . import _attention, _convolutions, _cut, _drawn, _joined, _moved, _norms, _pieces, _pixels, _positions, _spread, _tables
from ._formula import formula
from ._matcher import Formula, Matcher, Refused, Value, no_formula, same, square
from ._whole import minus, plus, times, whole

Given = Dict[str, Any]


def _linear(m: Matcher, a: Given, out: Any) -> Value:
    weight, bias, parts = a["weight"], a["bias"], _parts_of(out)
    if isinstance(a["input"], Value) and a["input"].layout == "moved":
        x, order = _moved.row_order(a["input"])
        made = _product(m, x, weight, bias, "plain", out, parts, may_be_cut=False)
        names = [part.name for part in made.name] if parts > 1 else [made.name]
        return _moved.of_rows(names, order, made.shape[-1] // parts)
    if isinstance(a["input"], Value) and a["input"].layout == "last":
        return _spread.at_pixels(m, a["input"], weight, bias, out)
    if isinstance(a["input"], Value) and a["input"].layout == "pixel":
        return _spread.linear(m, a["input"], weight, bias, out)
    return _product(m, m.rows(a["input"]), weight, bias, "plain", out, parts)


def _product(m: Matcher, x: str, weight: Any, bias: Any, role: str, out: Any, parts: int, may_be_cut: bool = True) -> Value:
    if isinstance(weight, Value) and weight.layout == "turned parameter":
        weight, role = weight._replace(layout="parameter"), {"plain": "transposed", "transposed": "plain"}[role]
    shape, made = tuple(out.meta["val"].shape), []
    if bias is not None and tuple(bias.shape) != shape[-1:]:
        raise Refused(f"what it adds is {list(bias.shape)}, and the rows have {shape[-1]} channels", "add one number for each channel")
    if parts == 1 and may_be_cut and (cut := _cut.begun(m, x, weight, bias, role, out)) is not None:
        return cut
    for number in range(parts):
        tail = str(number) if parts > 1 else ""
        names = [m.parameter(weight, role, number, parts)]
        if bias is not None:
            names.append(m.parameter(bias, "plain", number, parts))
        made.append(m.node("linear" if bias is not None else "matmul", x, *names, tail=tail))
    if parts == 1:
        return Value(made[0], "rows", shape)
    each = (*shape[:-1], shape[-1] // parts)
    return Value([Value(name, "rows", each) for name in made], "parts", shape)


def _parts_of(node: Any) -> int:
    """The equal parts into which the only user of a linear layer cuts its channels; 1 if there is none."""
    width = node.meta["val"].shape[-1]
    while len(node.users) == 1:
        (user,) = node.users
        name = str(user.target)
        if name in VIEWS and user.meta["val"].shape[-1] == width:
            node = user
            continue
        if name == "aten.unflatten.int":
            count, *width_of_one = user.args[2]
            return count if user.args[1] in (-1, len(node.meta["val"].shape) - 1) and [count * n for n in width_of_one] == [width] else 1
        if name not in ("aten.split.Tensor", "aten.chunk.default", "aten.split_with_sizes.default"):
            return 1
        sizes = {part.shape[-1] for part in user.meta["val"]}
        count = len(user.meta["val"])
        return count if len(sizes) == 1 and sizes.pop() * count == width else 1
    return 1


def _addmm(m: Matcher, a: Given, out: Any) -> Value:
    same("beta", a["beta"], 1, "leave beta out")
    same("alpha", a["alpha"], 1, "leave alpha out")
    bias = a["input"] if "input" in a else a["self"]
    return _product(m, m.rows(a["mat1"]), a["mat2"], bias, "transposed", out, _parts_of(out))


def _of_elements(kind: str) -> Callable[[Matcher, Given, Any], Value]:
    def handler(m: Matcher, a: Given, out: Any) -> Value:
        x, layout = m.any(a["self"])
        return Value(m.node(kind, x), layout, tuple(out.meta["val"].shape))

    return handler


def _gelu(m: Matcher, a: Given, out: Any) -> Value:
    kind = {"none": "gelu_erf", "tanh": "gelu"}.get(a["approximate"])
    if kind is None:
        raise Refused(f"approximate is {a['approximate']!r:.60}", "use 'none' or 'tanh'")
    return _of_elements(kind)(m, a, out)


def _dropout(m: Matcher, a: Given, out: Any) -> Value:
    value = a["input"] if "input" in a else a["self"]
    if not a["train"] or a["p"] == 0:
        return value
    if value.layout == "scores":
        return _attention.dropped(value, a["p"])
    x, layout = m.any(value)
    return Value(m.node("dropout", x, p=a["p"]), layout, tuple(out.meta["val"].shape))


def _max_pool(m: Matcher, a: Given, out: Any) -> Value:
    same("dilation", square("dilation", a["dilation"]), 1, "use dilation=1")
    return _pool(m, a, out, "max_pool")


def _avg_pool(m: Matcher, a: Given, out: Any) -> Value:
    same("divisor_override", a["divisor_override"], None, "leave divisor_override out")
    made = _pool(m, a, out, "avg_pool")
    if a["count_include_pad"] or square("padding", a["padding"]) == 0:
        return made
    return made._replace(name=_pixels.of_counted(m, made.name, made.shape, a))


def _pool(m: Matcher, a: Given, out: Any, kind: str) -> Value:
    kernel = square("kernel_size", a["kernel_size"])
    stride = square("stride", a["stride"]) if a["stride"] else kernel
    padding = square("padding", a["padding"])
    if a["ceil_mode"] and any((size + 2 * padding - kernel) % stride for size in a["self"].shape[2:]):
        raise Refused(f"ceil_mode is True, and its windows leave images of {list(a['self'].shape[2:])}", "use ceil_mode=False, or other sizes")
    name = m.node(kind, m.image(a["self"]), kernel=kernel, stride=stride, padding=padding)
    return Value(name, "image", tuple(out.meta["val"].shape))


def _adaptive(m: Matcher, a: Given, out: Any) -> Value:
    shape, x = tuple(out.meta["val"].shape), m.image(a["self"])
    if shape[2:] == (1, 1):
        return _spread.pooled(m, x, out)
    return Value(m.node("adaptive_avg_pool", x, windows=list(shape[2:])), "image", shape)


def _mean(m: Matcher, a: Given, out: Any) -> Value:
    x, shape = a["self"], tuple(out.meta["val"].shape)
    dims = sorted(dim % len(x.shape) for dim in a["dim"] or [])
    if dims == [len(x.shape) - 1] and a["keepdim"] and a["dtype"] is None and x.layout in ("formula", "rows", "split", "heads", "raw", "patches"):
        return formula(m, "mean", out, x)
    x = whole(m, x)
    same("dtype", a["dtype"], None, "leave dtype out")
    if (x.layout, dims) in (("planes", [2]), ("patches", [1])) or ((x.layout, dims) == ("last", [1, 2]) and not a["keepdim"]):
        return Value(m.node("mean_pool", x.name), "pooled" if x.layout == "planes" and a["keepdim"] else "rows", shape)
    if len(x.shape) == 3 and dims == [1] and x.layout in ("rows", "raw"):
        same("the first dimension", x.shape[0], m.batch, "take the mean over the positions of each sample")
        return Value(m.node("mean_positions", m.rows(x)), "rows", shape)
    if len(x.shape) == 3 and dims == [2] and not a["keepdim"] and x.layout in ("rows", "raw") and x.shape[0] == m.batch:
        # Positions are the last dimension.
        return Value(m.node("mean_positions", _positions.exchanged(m, m.rows(x))), "rows", shape)
    if dims != [2, 3] or len(x.shape) != 4:
        why = f"it is no mean over the pixels of images, nor over the positions of samples, but over {dims} of {list(x.shape)} ({x.layout})"
        raise Refused(why, "take the mean over the dimensions 2 and 3 of images, or over dimension 1 of [B, T, C]")
    return _spread.pooled(m, m.image(x), out)


def _sum(m: Matcher, a: Given, out: Any) -> Value:
    """A sum over pixels or positions: their mean, times their number."""
    mean = _mean(m, a, out)
    if mean.layout == "formula":
        raise Refused("it is a sum over channels", "take sums over the pixels of images, or over dimension 1 of [B, T, C]")
    return times(m, mean, math.prod(a["self"].shape) // math.prod(mean.shape), out)


def _view(m: Matcher, a: Given, out: Any) -> Value:
    value, shape = a["self"], tuple(out.meta["val"].shape)
    no_formula(value if value.shape != shape else None)
    if value.layout == "parameter" and [size for size in shape if size != 1] == [size for size in value.shape if size != 1]:
        return value._replace(shape=shape)
    if value.layout == "parameter" and (token := _tables.token(m, value, shape)) is not None:
        return token
    if value.layout == "repeated" and shape[:2] + shape[3:] == value.shape[:2] + value.shape[3:] and value.shape[2] in (1, shape[2]):
        return value._replace(shape=shape)
    if (spread := _spread.viewed(m, value, out)) is not None:
        return spread
    if math.prod(shape) != math.prod(value.shape):
        raise Refused(f"it repeats {list(value.shape)} to {list(shape)}", "keep tensors as they are")
    if value.shape == shape or value.layout == "labels":
        return value._replace(shape=shape)
    old = value.shape
    flat = len(shape) == 2 and shape[0] == old[0]
    if value.layout == "parts" and shape[-1] == old[-1]:
        return value._replace(shape=shape)
    if value.layout == "raw" and flat and m.input_below is None:
        return value._replace(shape=shape)
    if value.layout == "tokens":
        return value._replace(shape=shape)
    if value.layout == "raw" and len(old) == 2 and shape == (old[0], 1, old[1]) and m.input_below is None:
        # One channel at each position.
        return Value(m.rows(value), "rows", shape)
    if value.layout == "raw" and len(old) == 3 and shape == (old[0], 1, *old[1:]) and m.input_below is None:
        return _pixels.of_one_channel(m, value)
    if value.layout == "turned" and isinstance(value.name, Value) and len(old) == 4 and shape == (old[0], old[1] * old[2], old[3]):
        # Heads of channels behind one another, as convolutions over positions have them.
        return Value(_positions.exchanged(m, value.name.name), "rows", shape)
    if value.layout == "image" and shape == (*old[:2], math.prod(old[2:])) and len(old) == 4:
        return value._replace(layout="planes", shape=shape)
    if value.layout == "last" and shape == (old[0], old[1] * old[2], old[3]):
        return value._replace(layout="patches", shape=shape)
    if value.layout == "heads" and shape == (old[0] * old[1], *old[2:]):
        return Value(value, "merged", shape)
    if value.layout == "merged" and shape == value.name.shape:
        return value.name
    if value.layout == "scores":
        return value._replace(shape=shape)
    if value.layout == "image" and flat:
        return Value(m.node("flatten", value.name, tail="flatten" if m.where else ""), "rows", shape)
    if value.layout == "pooled" and shape[:2] == old[:2] and set(shape[2:]) <= {1}:
        return value._replace(layout="rows" if flat else "pooled", shape=shape)
    if value.layout == "rows" and len(shape) == 4 and shape[:-2] == old[:-1]:
        return value._replace(layout="split", shape=shape)
    if value.layout == "rows" and shape[-1] == old[-1]:
        return value._replace(shape=shape)
    if value.layout == "heads" and len(shape) == 5 and shape == (*old[:2], 1, *old[2:]):
        return value._replace(layout="repeated", shape=shape)
    if value.layout == "repeated" and shape == (old[0], old[1] * old[2], *old[3:]):
        return Value((value.name, old[1]), "grouped", shape)
    if value.layout == "split" and shape == (*old[:2], old[2] * old[3]):
        return value._replace(layout="rows", shape=shape)
    if value.layout in ("rows", "split", "heads", "image", "last") and "expand" not in str(out.target):
        return _joined.moved(m, out, value, {out.all_input_nodes[0]: value})
    raise Refused(f"it makes {list(shape)} of {list(old)} ({value.layout})", "keep rows [.., C], or flatten images [B, C, H, W] to [B, N]")


def _transpose(m: Matcher, a: Given, out: Any) -> Value:
    value, shape = a["self"], tuple(out.meta["val"].shape)
    if value.layout in ("parameter", "turned parameter") and len(shape) == 2 and shape == value.shape[::-1]:
        return _turned(m, a, out)
    dims = list(a["dims"]) if "dims" in a else sorted(d % len(shape) for d in (a["dim0"], a["dim1"]))
    if len(shape) == 3 and dims in ([1, 2], [0, 2, 1]) and shape[0] == m.batch and value.layout in ("rows", "raw", "patches"):
        return value._replace(layout="planes", shape=shape) if value.layout == "patches" else Value(_positions.exchanged(m, m.rows(value)), "rows", shape)
    if (value.layout, dims) in (("image", [0, 2, 3, 1]), ("last", [0, 3, 1, 2])) or (value.layout == "raw" and len(shape) == 4 and dims == [0, 2, 3, 1]):
        return Value(m.image(value) if value.layout == "raw" else value.name, "image" if value.layout == "last" else "last", shape)
    if value.layout == "merged" and dims in ([1, 2], [0, 2, 1]):
        return Value(value.name, "turned", shape)
    if value.layout in ("heads", "grouped") and dims in ([2, 3], [0, 1, 3, 2]):
        return Value(value, "turned", shape)
    if value.layout == "planes" and dims in ([1, 2], [0, 2, 1]):
        return value._replace(layout="patches", shape=shape)
    if value.layout == "split" and dims == [0, 2, 3, 1]:
        return Value(value._replace(layout="heads", shape=(shape[0], shape[1], shape[3], shape[2])), "turned", shape)
    if value.layout == "rows" and len(shape) == 4 and shape[0] == m.batch and dims in ([2, 3], [0, 1, 3, 2]):
        # Rows [B, H D, T] that were cut into heads.
        return Value(_positions.exchanged(m, value.name), "heads", shape)
    if value.layout == "image" and dims in ([2, 3], [0, 1, 3, 2]):
        return _pixels.turned(m, value)
    turned = {"split": "heads", "heads": "split"}.get(value.layout)
    if turned is None or dims not in ([1, 2], [0, 2, 1, 3]):
        why = f"it turns {list(value.shape)} ({value.layout})"
        raise Refused(why, 'turn heads alone, and attend by scaled_dot_product_attention, which transformers calls attn_implementation="sdpa"')
    return value._replace(layout=turned, shape=shape)


def _split(m: Matcher, a: Given, out: Any) -> Value:
    x, pieces = a["self"], out.meta["val"]
    if x.layout in ("split", "heads") and a["dim"] % 4 == 3 and len(pieces) == 2 and pieces[0].shape == pieces[1].shape:
        shape, half = tuple(pieces[0].shape), x.shape[-1] // 2
        return Value([Value(Formula("slice", (x, start, start + half), out), "formula", shape) for start in (0, half)], "pieces", shape)
    dim = a["dim"] % len(x.shape)
    if x.layout != "parts" and (dim == _joined.channel_dim(x) or _joined.has_positions(x)):
        return _joined.moved(m, out, x, {out.all_input_nodes[0]: x})
    if x.layout != "parts" or dim != len(x.shape) - 1:
        raise Refused(f"it cuts dimension {dim} of {list(x.shape)} ({x.layout}), which are neither channels nor positions", _joined.JOINED)
    shape = tuple(out.meta["val"][0].shape)
    return Value([part._replace(shape=shape) for part in a["self"].name], "pieces", shape)


def _add(m: Matcher, a: Given, out: Any) -> Value:
    x, y = a["self"], a["other"]
    y = _times_alpha(m, a, out)
    for draw, other in ((x, y), (y, x)):
        if isinstance(draw, Value) and draw.layout == "draw":
            return _drawn.increased(draw, other)
    if not isinstance(x, Value) or not isinstance(y, Value) or "formula" in (x.layout, y.layout):
        return formula(m, "add", out, x, y)
    if "scores" in (x.layout, y.layout):
        return _attention.increased(m, x, y) if x.layout == "scores" else _attention.increased(m, y, x)
    return plus(m, x, y, out)


def _sub(m: Matcher, a: Given, out: Any) -> Value:
    if str(out.target).startswith("aten.rsub"):
        # 1 - x is an operator of its own.
        same("alpha", a["alpha"], 1, "leave alpha out")
        return formula(m, "sub", out, a["other"], a["self"])
    return formula(m, "sub", out, a["self"], _times_alpha(m, a, out))


def _times_alpha(m: Matcher, a: Given, out: Any) -> Any:
    """The second argument of a sum, or of a difference, times `alpha`."""
    y, alpha = a["other"], a["alpha"]
    if alpha == 1:
        return y
    if isinstance(y, Value) and y.layout == "parameter":
        raise Refused(f"alpha is {alpha}, of a parameter", "leave alpha out, and let the parameter hold the product")
    if isinstance(y, Value) and y.layout == "constant":
        return y._replace(name=y.name * alpha)
    return y * alpha if isinstance(y, (int, float)) else times(m, whole(m, y), alpha, out)


def _lerp(m: Matcher, a: Given, out: Any) -> Value:
    """x + weight (y - x)."""
    x, y, weight = whole(m, a["self"]), whole(m, a["end"]), a["weight"]
    return plus(m, x, times(m, minus(m, y, x, out), weight, out), out)


def _addcmul(m: Matcher, a: Given, out: Any) -> Value:
    """x + value y z."""
    product = times(m, whole(m, a["tensor1"]), whole(m, a["tensor2"]), out)
    return plus(m, whole(m, a["self"]), product if a["value"] == 1 else times(m, product, a["value"], out), out)


def _glu(m: Matcher, a: Given, out: Any) -> Value:
    x = a["self"]
    if x.layout != "columns" or a["dim"] % len(x.shape) != len(x.shape) - 1:
        raise Refused("it cuts something else than the channels of one linear layer", "use it behind a linear layer, over the last dimension")
    return _cut.gated(m, out, x, a["dim"])


def _log_softmax(m: Matcher, a: Given, out: Any) -> Value:
    x = a["self"]
    same("dim", a["dim"] % len(x.shape), len(x.shape) - 1, "take the logarithm of the softmax over the classes, the last dimension")
    same("dtype", str(out.meta["val"].dtype), "torch.float32", "compute in float32")
    return Value(m.rows(x), "log softmax", x.shape)


def _nll_loss(m: Matcher, a: Given, out: Any) -> Value:
    x = a["self"]
    if x.layout != "log softmax":
        raise Refused("it takes no log_softmax", "use torch.nn.CrossEntropyLoss()")
    return _loss(m, {**a, "self": x._replace(layout="rows"), "label_smoothing": 0.0}, out)


def _turned(m: Matcher, a: Given, out: Any) -> Value:
    """A matrix of parameters, transposed."""
    x = a["self"]
    if not isinstance(x, Value) or x.layout not in ("parameter", "turned parameter") or len(x.shape) != 2:
        raise Refused("it transposes something else than a matrix of parameters", "keep activations as rows [.., C]")
    other = "turned parameter" if x.layout == "parameter" else "parameter"
    return Value(x.name, other, x.shape[::-1])


def _matmul(m: Matcher, a: Given, out: Any) -> Value:
    """A product with a matrix of parameters, or one of an attention."""
    x, y = a["self"], a.get("other", a.get("mat2"))
    if isinstance(y, Value) and y.layout in ("parameter", "turned parameter") and len(y.shape) == 2:
        return _product(m, m.rows(x), y, None, "transposed", out, _parts_of(out))
    return _attention.matmul(m, {"self": x, "other": y}, out)


def _div(m: Matcher, a: Given, out: Any) -> Value:
    x, y = a["self"], a["other"]
    if isinstance(x, Value) and x.layout == "draw" and isinstance(y, (int, float)) and y != 0:
        return _drawn.multiplied(m, x, 1 / y, out)
    if isinstance(x, Value) and x.layout != "scores" and isinstance(y, (int, float)) and y != 0:
        return formula(m, "mul", out, x, 1 / y)
    return _attention.divided(m, a, out)


def _square(m: Matcher, a: Given, out: Any) -> Value:
    return formula(m, "pow", out, a["self"], 2)


def _cat(m: Matcher, a: Given, out: Any) -> Value:
    full = [value for value in a["tensors"] if 0 not in value.shape]
    dim = a.get("dim", 1) % len(out.meta["val"].shape)
    if str(out.target) != "aten.cat.default":
        return _joined.joined(m, out, full, dim)
    if len(full) == 2 and all(value.layout == "formula" for value in full) and a["dim"] % len(full[0].shape) == len(full[0].shape) - 1:
        return formula(m, "cat", out, *full)
    if (with_token := _tables.joined(m, full, a["dim"], out)) is not None:
        return with_token
    if len(full) == 1:
        return full[0]
    if not any(dim == _joined.channel_dim(value) or _joined.has_positions(value) for value in full):
        instead = f"{_joined.JOINED}; tokens [1, P, C], expanded to each sample, may stand among its positions"
        raise Refused(f"it joins tensors along dimension {dim} of {list(full[0].shape)}, which are neither channels nor positions", instead)
    return _joined.joined(m, out, full, dim)


def _to(m: Matcher, a: Given, out: Any) -> Value:
    same("dtype", str(out.meta["val"].dtype).split(".")[1], "float32", "compute in float32")
    return a["self"]


def _part(op: str) -> Callable[[Matcher, Given, Any], Value]:
    """A step of a formula that is an operator as a whole, such as transformers' GELU."""

    def handler(m: Matcher, a: Given, out: Any) -> Value:
        return formula(m, op, out, a["self"], *(a[key] for key in ("other", "exponent") if key in a))

    return handler


def _mul(m: Matcher, a: Given, out: Any) -> Value:
    if isinstance(a["self"], Value) and a["self"].layout == "scores":
        return _attention.scaled(a["self"], a["other"])
    if any(isinstance(a[key], Value) and a[key].layout == "draw" for key in ("self", "other")):
        return _drawn.multiplied(m, a["self"], a["other"], out)
    return _part("mul")(m, a, out)


def _tanh(m: Matcher, a: Given, out: Any) -> Value:
    """The hyperbolic tangent, that of transformers' GELU, which takes a formula, or one that bounds the scores of an attention."""
    if a["self"].layout == "scores":
        return _attention.bounded(a["self"])
    return (_part if a["self"].layout == "formula" else _of_elements)("tanh")(m, a, out)


def _silu(m: Matcher, a: Given, out: Any) -> Value:
    """SiLU, or that of a SwiGLU: a product of activations alone takes it."""
    if [str(user.target) for user in out.users] == ["aten.mul.Tensor"]:
        x, layout = m.any(a["self"])
        return formula(m, "silu", out, Value(x, layout, tuple(out.meta["val"].shape)))
    return _of_elements("silu")(m, a, out)


def _slice(m: Matcher, a: Given, out: Any) -> Value:
    x, dim, size = a["self"], a["dim"] % len(a["self"].shape), a["self"].shape[a["dim"]]
    start, end = (min(max(place + size if place < 0 else place, 0), size) for place in (a["start"] or 0, size if a["end"] is None else a["end"]))
    if (start, end, a["step"]) == (0, size, 1):
        return x
    if len(x.shape) == 3 and dim == 1 and end - start == 1 and x.layout in ("rows", "raw", "patches"):
        if (value := _tables.position(m, x, start, tuple(out.meta["val"].shape))) is not None:
            return value
    if x.layout in ("split", "heads") and dim == len(x.shape) - 1 and a["step"] == 1:
        return formula(m, "slice", out, x, start, end)
    is_image = x.layout == "image" or (x.layout == "raw" and len(x.shape) == 4)
    if dim == _joined.channel_dim(x) or (dim > 0 and _joined.has_positions(x)) or (is_image and dim > 1 and (start, end) == (0, size)):
        return _joined.moved(m, out, x, {out.all_input_nodes[0]: x})
    instead = f"{_joined.JOINED}; of pixels every k-th down and across"
    raise Refused(f"it cuts {start} to {end} out of dimension {dim} of {list(x.shape)}", instead)


def _loss(m: Matcher, a: Given, out: Any) -> Value:
    logits, labels = a["self"], a["target"]
    if logits.layout == "log softmax":
        # The logarithm of a softmax is its own.
        logits = logits._replace(layout="rows")
    name = m.rows(logits)
    if labels.layout != "labels" or len(labels.shape) != 1:
        raise Refused("its targets are not the labels of the batch, one for each row", "flatten logits to [N, V] and labels to [N]")
    same("weight", a["weight"], None, "use classes of one weight")
    same("reduction", a["reduction"], 1, 'use reduction="mean"')
    if not m.nodes or name != m.nodes[-1]["name"]:
        raise Refused("the logits are not the last that the model computes", "leave out what the loss does not depend on")
    m.classes = logits.shape[-1]
    if a["label_smoothing"]:
        m.loss["smoothing"] = a["label_smoothing"]
    if 0 <= a["ignore_index"] < m.classes:
        m.loss["ignore"] = a["ignore_index"]
    return Value(None, "loss", ())


def _unchanged(m: Matcher, a: Given, out: Any) -> Value:
    return a["self"]


VIEWS = (
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints", "aten.squeeze.dim", "aten.squeeze.default",
    "aten.unsqueeze.default", "aten.squeeze.dims", "aten.expand.default",
)

HANDLERS: Dict[str, Callable[[Matcher, Given, Any], Value]] = {
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.conv2d.default": _convolutions.conv2d,
    "aten.conv2d.padding": _convolutions.conv2d,
    "aten.conv1d.default": _convolutions.conv1d,
    "aten.conv1d.padding": _convolutions.conv1d,
    "aten.batch_norm.default": _norms.batch_norm,
    "aten.layer_norm.default": _norms.layer_norm,
    "aten.rms_norm.default": _norms.rms_norm,
    "aten.group_norm.default": _norms.group_norm,
    "aten.relu.default": _of_elements("relu"),
    "aten.relu_.default": _of_elements("relu"),
    "aten.silu.default": _silu,
    "aten.silu_.default": _silu,
    "aten.gelu.default": _gelu,
    "aten.dropout.default": _dropout,
    "aten.dropout_.default": _dropout,
    "aten.max_pool2d.default": _max_pool,
    "aten.avg_pool2d.default": _avg_pool,
    "aten.adaptive_avg_pool2d.default": _adaptive,
    "aten.mean.dim": _mean,
    "aten.transpose.int": _transpose,
    "aten.permute.default": _transpose,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _split,
    "aten.scaled_dot_product_attention.default": _attention.scaled_dot_product,
    "aten.add.Tensor": _add,
    "aten.add_.Tensor": _add,
    "aten.embedding.default": _tables.embedding,
    **{name: _cat for name in _joined.JOINS},
    "aten.to.dtype_layout": _to,
    "aten.type_as.default": _to,
    "aten.to.dtype": _to,
    "aten.mul.Tensor": _mul,
    "aten.mul_.Tensor": _mul,
    "aten.div.Tensor": _div,
    "aten.div_.Tensor": _div,
    "aten.sub.Tensor": _sub,
    "aten.sub_.Tensor": _sub,
    "aten.lerp.Scalar": _lerp,
    "aten.addcmul.default": _addcmul,
    "aten.rsub.Scalar": _sub,
    "aten.square.default": _square,
    "aten.expand_as.default": _view,
    "aten.sum.dim_IntList": _sum,
    "aten.sigmoid.default": _of_elements("sigmoid"),
    "aten.sigmoid_.default": _of_elements("sigmoid"),
    "aten.glu.default": _glu,
    "aten.log_softmax.int": _log_softmax,
    "aten.nll_loss_nd.default": _nll_loss,
    "aten.matmul.default": _matmul,
    "aten.mm.default": _matmul,
    "aten.bmm.default": _attention.batched,
    "aten.rand.default": _drawn.uniform,
    "aten.new_empty.default": _drawn.unwritten,
    "aten.bernoulli_.float": _drawn.bernoulli,
    "aten.floor.default": _drawn.floor,
    "aten.floor_.default": _drawn.floor,
    "aten.baddbmm.default": _attention.added,
    "aten.t.default": _turned,
    "aten.numpy_T.default": _turned,
    "aten.softmax.int": _attention.softmax,
    "aten.masked_fill.Scalar": _attention.filled,
    "aten.where.self": _attention.chosen,
    "aten.select.int": _tables.selected,
    "aten.pow.Tensor_Scalar": _part("pow"),
    "aten.tanh.default": _tanh,
    "aten.tanh_.default": _tanh,
    "aten.neg_.default": _part("neg"),
    "aten.rsqrt.default": _part("rsqrt"),
    "aten.erf.default": _part("erf"),
    "aten.neg.default": _part("neg"),
    "aten.slice.Tensor": _slice,
    "aten.cross_entropy_loss.default": _loss,
    "aten.contiguous.default": _unchanged,
    "aten.clone.default": _unchanged,
    "aten.alias.default": _unchanged,
    **{name: _view for name in VIEWS},
    **_pieces.HANDLERS,
    **{name: _joined.padded for name in _joined.PADS},
}
# Operators that choose or move elements, where no other handler is for them.
HANDLERS.update({name: _joined.moved for name in _joined.MOVES if name not in HANDLERS})
# Operators that may be a part of an operator of the contract. Others take what a formula computes.
TAKE_FORMULAS = (
    "aten.mul.Tensor", "aten.mul_.Tensor", "aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor", "aten.rsub.Scalar", "aten.div.Tensor",
    "aten.sub_.Tensor", "aten.div_.Tensor", "aten.neg_.default", "aten.layer_norm.default",
    "aten.pow.Tensor_Scalar", "aten.square.default", "aten.tanh.default", "aten.erf.default", "aten.rsqrt.default", "aten.neg.default", "aten.mean.dim", "aten.cat.default",
    "aten.to.dtype", "aten.to.dtype_layout", "aten.type_as.default", "aten.contiguous.default", "aten.clone.default", "aten.alias.default",
)  # fmt: skip

def arguments(node: Any, values: Dict[Any, Any]) -> Given:
    """The arguments of an operator by the names of its schema, with the defaults."""

    def made(argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [made(inner) for inner in argument]
        return values.get(argument, argument) if hasattr(argument, "meta") else argument

    given = {}
    for number, argument in enumerate(node.target._schema.arguments):
        value = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        given[argument.name] = made(value)
    return given


def module_of(node: Any) -> Tuple[str, str]:
    """The path of the module that computes a node, without the wrapper's, and the module's class."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", ""
    path, kind = stack[-1]
    if path.startswith(("L['", "G['")):
        # The path of a graph of torch.compile: its first part is the name of a variable.
        path = f"model{path.partition(']')[2]}"
    path = path.split("model", 1)[1].lstrip(".") if path == "model" or path.startswith("model.") else ""
    return path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
