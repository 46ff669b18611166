"""Matches the graph of `torch.export` to the nodes of a network file. Every attribute of an operator is checked.

Values carry a layout beside their node: the contract keeps rows [N, C], and images with their channels last.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

INPUTS = "inputs"
NAME_MAX = 100

# The layouts. "raw": the inputs as they come. "tokens": integers, flat. "rows": [N, C] of PyTorch's [.., C]. "image": [B, H, W, C] of
# [B, C, H, W]. "pooled": [B, C] of [B, C, 1, 1]. "split" and "heads": [B T, H D] of [B, T, H, D] and of [B, H, T, D]. "positions": the
# numbers of a sample's positions. "table": rows of a table by these. "parts", "pieces": several values. "formula": numbers that are a
# part of an operator. "constant": a tensor that depends on nothing. "labels", "parameter", "buffer", "loss".


class Value(NamedTuple):
    """A tensor of PyTorch's graph as the network has it."""

    name: Any
    layout: str
    shape: Tuple[int, ...]


class Part(NamedTuple):
    """A parameter of the network: the part `number` of `count` of a tensor of the model, in the layout of a role."""

    source: str
    # "plain", "kernels" of a convolution, or a "transposed" matrix.
    role: str
    number: int
    count: int


class Refused(Exception):
    """An operator has no counterpart: why, and what to do instead."""

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(why)
        self.why, self.instead = why, instead


def to_role(array: Any, part: Part) -> Any:
    """A tensor of the model as the network's parameter, NumPy."""
    if part.role == "kernels":
        array = array.transpose(0, 2, 3, 1)
    elif part.role == "transposed":
        array = array.T
    rows = array.shape[0] // part.count
    return array[part.number * rows : (part.number + 1) * rows]


def from_role(parts: Sequence[Any], role: str) -> Any:
    """The tensor of the model from the network's parameters in their order, NumPy."""
    import numpy as np

    whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if role == "kernels":
        return whole.transpose(0, 3, 1, 2)
    return whole.T if role == "transposed" else whole


class Matcher:
    """The nodes and parameters of the network, made from a graph node by node."""

    def __init__(self, shapes: Dict[str, Tuple[int, ...]], canonical: Dict[str, str], convolution: int) -> None:
        self.shapes, self.canonical = shapes, canonical
        self.convolution = convolution
        self.nodes: List[Dict[str, Any]] = []
        self.parts: Dict[str, Part] = {}
        self.input_shape: Optional[List[int]] = None
        self.input_below: Optional[int] = None
        self.momentum: Optional[float] = None
        # The model's buffers by their names in the graph, and those of batch normalisations with the network's names.
        self.buffers: Dict[str, str] = {}
        self.loss: Dict[str, Any] = {}
        self.classes = 0
        self.norms: Dict[str, str] = {}
        self.names = {INPUTS, *shapes}
        self.images: Optional[str] = None
        self.batch = 0
        self.where = ""

    # What a handler calls.

    def node(self, kind: str, *inputs: str, tail: str = "", **attributes: Any) -> str:
        """Appends a node, named by the module that computes it."""
        base = ".".join(part for part in (self.where, tail) if part) or kind
        base = base[:NAME_MAX]
        name, number = base, 1
        while name in self.names:
            number += 1
            name = f"{base}.{number}"
        self.names.add(name)
        made: Dict[str, Any] = {"name": name, "operator": kind, "inputs": list(inputs)}
        if attributes:
            made["attributes"] = attributes
        self.nodes.append(made)
        return name

    def parameter(self, value: Any, role: str = "plain", number: int = 0, count: int = 1) -> str:
        """The network's name of a parameter, or of a part of one."""
        if not isinstance(value, Value) or value.layout != "parameter":
            raise Refused("a weight is no parameter of the model", "make it an nn.Parameter that the operator takes directly")
        source = value.name
        name = source if count == 1 else f"{source}.{number}"
        part = Part(source, role, number, count)
        others = [other for other in self.parts.values() if other.source == source and other[1::2] != part[1::2]]
        if others or self.parts.setdefault(name, part) != part:
            raise Refused(f"the parameter {source} is used in two layouts", "give each use a parameter of its own")
        return name

    def image(self, value: Value) -> str:
        """A value as an image with its channels last."""
        if value.layout == "raw" and len(value.shape) == 4 and self.input_below is None:
            self.take_inputs(value.shape)
            if self.images is None:
                where, self.where = self.where, ""
                self.images = self.node("image", INPUTS, tail="image")
                self.where = where
            return self.images
        if value.layout != "image":
            raise Refused(f"it takes {list(value.shape)}, which is no image [B, C, H, W]", "give it images of four dimensions")
        return value.name

    def rows(self, value: Any) -> str:
        """A value as rows of its last dimension."""
        if isinstance(value, Value) and value.layout == "raw" and len(value.shape) == 2 and self.input_below is None:
            self.take_inputs(value.shape)
            return INPUTS
        if not isinstance(value, Value) or value.layout != "rows":
            why = "it takes a tensor whose last dimension is not that of rows"
            raise Refused(why, "flatten images before linear layers, and use modules for activations")
        return value.name

    def any(self, value: Value) -> Tuple[str, str]:
        """A value of any layout for an operator on elements: its name and its layout."""
        if value.layout == "raw":
            return (self.image(value), "image") if len(value.shape) == 4 else (self.rows(value), "rows")
        if value.layout not in ("rows", "image", "pooled", "split", "heads"):
            raise Refused(f"it takes {value.layout}", "apply it to activations")
        return value.name, value.layout

    def take_inputs(self, shape: Sequence[int]) -> None:
        if self.input_shape not in (None, list(shape)):
            raise Refused("the inputs are used in two shapes", "reshape them in one place")
        self.input_shape = list(shape)


def same(name: str, value: Any, due: Any, instead: str) -> None:
    if value != due:
        raise Refused(f"{name} is {value!r:.60}, and only {due!r} is there", instead)


def square(name: str, value: Any) -> int:
    """The one number of a list for rows and columns."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    if not numbers or any(number != numbers[0] for number in numbers):
        raise Refused(f"{name} is {value!r:.60}, with other numbers down than across", f"give {name} as one number")
    return int(numbers[0])


Given = Dict[str, Any]


def _linear(m: Matcher, a: Given, out: Any) -> Value:
    x, parts = m.rows(a["input"]), _parts_of(out)
    weight, bias = a["weight"], a["bias"]
    return _product(m, x, weight, bias, "plain", out, parts)


def _product(m: Matcher, x: str, weight: Any, bias: Any, role: str, out: Any, parts: int) -> Value:
    shape, made = tuple(out.meta["val"].shape), []
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


def _conv2d(m: Matcher, a: Given, out: Any) -> Value:
    if isinstance(a["padding"], str):
        raise Refused(f"padding is {a['padding']!r}", "give padding as a number")
    same("dilation", square("dilation", a["dilation"]), 1, "use dilation=1")
    x, weight = m.image(a["input"]), m.parameter(a["weight"], "kernels")
    attributes = {"stride": square("stride", a["stride"]), "padding": square("padding", a["padding"])}
    if a["groups"] == 1:
        y = m.node("conv2d" if m.convolution == 1 else "conv2d_v2", x, weight, **attributes)
    else:
        same("convolution", m.convolution, 1, "capture convolutions of groups with convolution=1")
        y = m.node("grouped_conv2d", x, weight, groups=a["groups"], **attributes)
    if a["bias"] is not None:
        y = m.node("bias", y, m.parameter(a["bias"]), tail="add_bias")
    return Value(y, "image", tuple(out.meta["val"].shape))


def _batch_norm(m: Matcher, a: Given, out: Any) -> Value:
    same("training", a["training"], True, "call model.train() before capture")
    if a["weight"] is None or a["bias"] is None or a["running_mean"] is None:
        raise Refused("it has no weight, bias or running averages", "use affine=True and track_running_stats=True")
    momentum = a["momentum"]
    if not isinstance(momentum, float) or m.momentum not in (None, momentum):
        raise Refused(f"momentum is {momentum!r:.60}, and a network has one number for all", "use one momentum")
    m.momentum = momentum
    x, layout = m.any(a["input"])
    if (layout, len(a["input"].shape)) not in (("rows", 2), ("image", 4)):
        raise Refused(f"it normalises {list(a['input'].shape)} ({layout})", "normalise images, or rows [N, C]")
    buffers = [m.buffers[buffer.name] for buffer in out.args[3:5]]
    if any(buffer in m.norms for buffer in buffers):
        raise Refused("its running averages would be those of two normalisations", "give each use a module of its own")
    names = [m.parameter(a[key]) for key in ("weight", "bias")]
    name = m.node("batch_norm", x, *names, epsilon=a["eps"])
    m.norms.update({buffer: f"{name}.{key}" for buffer, key in zip(buffers, ("running_mean", "running_var"))})
    return Value(name, layout, tuple(out.meta["val"].shape))


def _layer_norm(m: Matcher, a: Given, out: Any) -> Value:
    x, shape = m.rows(a["input"]), tuple(out.meta["val"].shape)
    same("normalized_shape", list(a["normalized_shape"]), [shape[-1]], "normalise the last dimension alone")
    if a["weight"] is None or a["bias"] is None:
        raise Refused("it has no weight or no bias", "use elementwise_affine=True and bias=True")
    names = [m.parameter(a[key]) for key in ("weight", "bias")]
    return Value(m.node("layer_norm", x, *names, epsilon=a["eps"]), "rows", shape)


def _rms_norm(m: Matcher, a: Given, out: Any) -> Value:
    x, shape = m.rows(a["input"]), tuple(out.meta["val"].shape)
    same("normalized_shape", list(a["normalized_shape"]), [shape[-1]], "normalise the last dimension alone")
    if a["weight"] is None or a["eps"] is None:
        raise Refused("it has no weight or no eps", "use elementwise_affine=True, and give eps")
    return Value(m.node("rms_norm", x, m.parameter(a["weight"]), epsilon=a["eps"]), "rows", shape)


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
    x, layout = m.any(value)
    return Value(m.node("dropout", x, p=a["p"]), layout, tuple(out.meta["val"].shape))


def _max_pool(m: Matcher, a: Given, out: Any) -> Value:
    same("dilation", square("dilation", a["dilation"]), 1, "use dilation=1")
    return _pool(m, a, out, "max_pool")


def _avg_pool(m: Matcher, a: Given, out: Any) -> Value:
    if square("padding", a["padding"]) != 0:
        same("count_include_pad", a["count_include_pad"], True, "use count_include_pad=True")
    same("divisor_override", a["divisor_override"], None, "leave divisor_override out")
    return _pool(m, a, out, "avg_pool")


def _pool(m: Matcher, a: Given, out: Any, kind: str) -> Value:
    same("ceil_mode", a["ceil_mode"], False, "use ceil_mode=False")
    kernel = square("kernel_size", a["kernel_size"])
    stride = square("stride", a["stride"]) if a["stride"] else kernel
    name = m.node(kind, m.image(a["self"]), kernel=kernel, stride=stride, padding=square("padding", a["padding"]))
    return Value(name, "image", tuple(out.meta["val"].shape))


def _adaptive(m: Matcher, a: Given, out: Any) -> Value:
    shape, x = tuple(out.meta["val"].shape), m.image(a["self"])
    if shape[2:] == (1, 1):
        return Value(m.node("mean_pool", x), "pooled", shape)
    return Value(m.node("adaptive_avg_pool", x, windows=list(shape[2:])), "image", shape)


def _mean(m: Matcher, a: Given, out: Any) -> Value:
    x = m.image(a["self"])
    if sorted(dim % 4 for dim in a["dim"] or []) != [2, 3] or a["dtype"] is not None:
        raise Refused("it is no mean over the pixels of images", "take the mean over the dimensions 2 and 3")
    return Value(m.node("mean_pool", x), "pooled" if a["keepdim"] else "rows", tuple(out.meta["val"].shape))


def _view(m: Matcher, a: Given, out: Any) -> Value:
    value, shape = a["self"], tuple(out.meta["val"].shape)
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
    if value.layout == "image" and flat:
        return Value(m.node("flatten", value.name, tail="flatten" if m.where else ""), "rows", shape)
    if value.layout == "pooled" and flat:
        return value._replace(layout="rows", shape=shape)
    if value.layout == "rows" and shape[-1] == old[-1]:
        return value._replace(shape=shape)
    if value.layout == "rows" and len(shape) == 4 and shape[:-2] == old[:-1]:
        return value._replace(layout="split", shape=shape)
    if value.layout == "split" and shape == (*old[:2], old[2] * old[3]):
        return value._replace(layout="rows", shape=shape)
    raise Refused(f"it makes {list(shape)} of {list(old)} ({value.layout})", "keep rows [.., C], or flatten images [B, C, H, W] to [B, N]")


def _transpose(m: Matcher, a: Given, out: Any) -> Value:
    value, shape = a["self"], tuple(out.meta["val"].shape)
    dims = list(a["dims"]) if "dims" in a else sorted(d % len(shape) for d in (a["dim0"], a["dim1"]))
    turned = {"split": "heads", "heads": "split"}.get(value.layout)
    if turned is None or dims not in ([1, 2], [0, 2, 1, 3]):
        raise Refused(f"it turns {list(value.shape)} ({value.layout})", "turn heads alone: [B, T, H, D] and [B, H, T, D]")
    return value._replace(layout=turned, shape=shape)


def _split(m: Matcher, a: Given, out: Any) -> Value:
    if a["self"].layout != "parts" or a["dim"] % len(a["self"].shape) != len(a["self"].shape) - 1:
        raise Refused("it cuts something else than the channels of one linear layer", "cut the layer's output into equal parts at once")
    shape = tuple(out.meta["val"][0].shape)
    return Value([part._replace(shape=shape) for part in a["self"].name], "pieces", shape)


def _is_causal(mask: Any) -> bool:
    """True for a constant mask that hides later positions and no others."""
    if not isinstance(mask, Value) or mask.layout != "constant" or str(mask.name.dtype) != "torch.bool" or mask.name.dim() < 2:
        return False
    rows, columns = mask.shape[-2:]
    mask = mask.name.reshape(-1, rows, columns)
    return rows == columns and bool((mask == mask[0].new_ones(rows, columns).tril()).all())


def _attention(m: Matcher, a: Given, out: Any) -> Value:
    values = [a[key] for key in ("query", "key", "value")]
    if a["attn_mask"] is None or not _is_causal(a["attn_mask"]):
        same("is_causal", a["is_causal"], True, "use is_causal=True and no mask")
        same("attn_mask", a["attn_mask"], None, "use is_causal=True and no mask")
    if any(value.layout != "heads" for value in values):
        raise Refused("it takes tensors that are not [B, H, T, D] of [B, T, H D]", "view and transpose q, k and v")
    (samples, heads, positions, channels), key = values[0].shape, values[1].shape
    same("the first dimension", samples, m.batch, "attend over the positions of each sample")
    if key[2] != positions or key != values[2].shape or key[3] != channels or (key[1] != heads and not a["enable_gqa"]):
        raise Refused("q, k and v have other positions or heads", "use self-attention, with enable_gqa=True for groups of heads")
    if a["scale"] is not None and not math.isclose(a["scale"], channels**-0.5, rel_tol=1e-12):
        raise Refused(f"scale is {a['scale']}, not 1 / sqrt({channels})", "leave scale out")
    kind = "attention" if key[1] == heads else "grouped_attention"
    name = m.node(kind, *(value.name for value in values), heads=heads, p=a["dropout_p"])
    return Value(name, "heads", tuple(out.meta["val"].shape))


def _add(m: Matcher, a: Given, out: Any) -> Value:
    x, y = a["self"], a["other"]
    same("alpha", a["alpha"], 1, "leave alpha out")
    if not isinstance(y, Value) or "formula" in (x.layout, y.layout):
        return _formula("add")(m, a, out)
    shape = tuple(out.meta["val"].shape)
    if x.layout == "table":
        x, y = y, x
    if y.layout == "table":
        positions = m.batch and math.prod(shape[:-1]) // m.batch
        table = m.shapes[y.name.name]
        if table[0] != positions:
            why = f"the table has {table[0]} positions, and a sample {positions}"
            raise Refused(why, "give an example batch of whole samples, or make the table as long as them")
        return Value(m.node("position_embedding", m.rows(x), m.parameter(y.name)), "rows", shape)
    if y.layout == "parameter" and y.shape == shape[-1:]:
        return Value(m.node("bias", m.rows(x), m.parameter(y), tail="add_bias"), "rows", shape)
    if x.layout not in ("rows", "image") or x.layout != y.layout or x.shape != y.shape:
        raise Refused(f"it adds {list(x.shape)} and {list(y.shape)}", "add tensors of one shape")
    return Value(m.node("residual", x.name, y.name), x.layout, shape)


def _embedding(m: Matcher, a: Given, out: Any) -> Value:
    shape = tuple(out.meta["val"].shape)
    if a["padding_idx"] >= 0 or a["scale_grad_by_freq"] or a["sparse"]:
        raise Refused("padding_idx, scale_grad_by_freq or sparse is set", "leave them out")
    if a["indices"].layout == "constant":
        numbers = a["indices"].name.flatten().tolist()
        same("the constant", numbers, list(range(len(numbers))), "look up torch.arange(T)")
        return Value(a["weight"], "table", shape)
    if a["indices"].layout != "tokens":
        raise Refused("its numbers are not the inputs", "look up the inputs themselves, or torch.arange(T)")
    below = m.shapes[a["weight"].name][0]
    m.input_below = below if m.input_below is None else min(m.input_below, below)
    m.take_inputs([math.prod(a["indices"].shape)])
    return Value(m.node("embedding", m.parameter(a["weight"]), INPUTS), "rows", shape)


def _cat(m: Matcher, a: Given, out: Any) -> Value:
    full = [value for value in a["tensors"] if 0 not in value.shape]
    if len(full) != 1:
        raise Refused("it joins tensors", "compute them as one")
    return full[0]


def _to(m: Matcher, a: Given, out: Any) -> Value:
    same("dtype", str(out.meta["val"].dtype).split(".")[1], "float32", "compute in float32")
    return a["self"]


def _formula(name: str) -> Callable[[Matcher, Given, Any], Value]:
    """A step of a formula that is an operator as a whole, such as transformers' GELU."""

    def handler(m: Matcher, a: Given, out: Any) -> Value:
        others = [a[key] for key in ("other", "exponent") if key in a]
        made = Value((name, a["self"], *others), "formula", tuple(out.meta["val"].shape))
        if name == "mul" and (x := _gelu_of(made)) is not None:
            return Value(m.node("gelu", m.rows(x)), "rows", x.shape)
        return made

    return handler


def _gelu_of(made: Value) -> Optional[Value]:
    """The x of which a formula is GELU in its tanh form."""

    def formula(name: str, x: Any, *others: Any) -> Value:
        return Value((name, x, *others), "formula", made.shape)

    half = made.name[1]
    if not isinstance(half, Value) or half.layout != "formula" or half.name[0] != "mul":
        return None
    x = half.name[1]
    if not isinstance(x, Value) or x.layout != "rows":
        return None
    cube = formula("mul", formula("pow", x, 3.0), 0.044715)
    inner = formula("mul", formula("add", x, cube), math.sqrt(2 / math.pi))
    due = formula("mul", formula("mul", x, 0.5), formula("add", formula("tanh", inner), 1.0))
    return x if made == due else None


def _loss(m: Matcher, a: Given, out: Any) -> Value:
    logits, labels = a["self"], a["target"]
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
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints", "aten.squeeze.dim",
    "aten.unsqueeze.default", "aten.squeeze.dims", "aten.expand.default",
)

HANDLERS: Dict[str, Callable[[Matcher, Given, Any], Value]] = {
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.conv2d.default": _conv2d,
    "aten.conv2d.padding": _conv2d,
    "aten.batch_norm.default": _batch_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.relu.default": _of_elements("relu"),
    "aten.relu_.default": _of_elements("relu"),
    "aten.silu.default": _of_elements("silu"),
    "aten.silu_.default": _of_elements("silu"),
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
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.add.Tensor": _add,
    "aten.add_.Tensor": _add,
    "aten.embedding.default": _embedding,
    "aten.cat.default": _cat,
    "aten.to.dtype_layout": _to,
    "aten.to.dtype": _to,
    "aten.mul.Tensor": _formula("mul"),
    "aten.pow.Tensor_Scalar": _formula("pow"),
    "aten.tanh.default": _formula("tanh"),
    "aten.cross_entropy_loss.default": _loss,
    "aten.contiguous.default": _unchanged,
    "aten.clone.default": _unchanged,
    "aten.alias.default": _unchanged,
    **{name: _view for name in VIEWS},
}

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


def mutates_something_read_later(node: Any) -> bool:
    """True if an operator in place changes a tensor that another operator reads too."""
    if not node.target._schema.is_mutable:
        return False
    changed = node.args[0]
    return len(changed.users) != 1 or str(getattr(changed, "target", "")) in (*VIEWS, "aten.transpose.int", "aten.permute.default")


def module_of(node: Any) -> Tuple[str, str]:
    """The path of the module that computes a node, without the wrapper's, and the module's class."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", ""
    path, kind = stack[-1]
    path = path.split("model", 1)[1].lstrip(".") if path == "model" or path.startswith("model.") else ""
    return path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
