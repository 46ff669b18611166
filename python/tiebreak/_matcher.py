"""The network file that a graph of `torch.export` becomes: its values, its nodes and its parameters.

Values carry a layout beside their node: the contract keeps rows [N, C], and images with their channels last.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

INPUTS = "inputs"
NAME_MAX = 100
ROWS = "rows "

# The layouts. "raw": the inputs as they come. "tokens": integers, flat. "rows": [N, C] of PyTorch's [.., C]. "image": [B, H, W, C] of
# [B, C, H, W]. "pooled": [B, C] of [B, C, 1, 1]. "split" and "heads": [B T, H D] of [B, T, H, D] and of [B, H, T, D]. "positions": the
# numbers of a sample's positions. "table": rows of a table by these. "parts", "pieces": several values. "formula": numbers that are a
# part of an operator. "repeated": heads [B, K, G, T, D], G times each; "grouped": the same as [B, K G, T, D]. "constant": a tensor that
# depends on nothing. "columns": a linear layer whose output is cut into channels (`_cut.py`). "turned parameter": a matrix transposed.
# "log softmax": logits before a loss that takes the logarithm of their softmax. "first row": the first row of a table for each position. "planes" and "patches": [B, H, W, C] of [B, C, H W] and of
# [B, H W, C]. "last": an image with its channels last, [B, H, W, C]. "merged": heads [B H, T, D].
# "pixel": [B, 1, 1, C] of [B, C] or [B, C, 1] (`_spread.py`). "token": a parameter [1, 1, C] for each sample. "turned": heads whose last dimensions are exchanged. "scores": what an attention
# makes of queries and keys. "mask": what hides padding (`_mask.py`). "labels", "parameter", "buffer", "loss".


class Value(NamedTuple):
    """A tensor of PyTorch's graph as the network has it."""

    name: Any
    layout: str
    shape: Tuple[int, ...]


class Formula(NamedTuple):
    """An operator of a graph that is a part of an operator of the contract, and its node there."""

    op: str
    args: Tuple[Any, ...]
    node: Any


class Part(NamedTuple):
    """A parameter of the network: the part `number` of `count` of a tensor of the model, in the layout of a role."""

    source: str
    # "plain", "kernels" of a convolution, "position kernels" of one over positions, "pixel kernels" of a linear layer, a "transposed" matrix, or a "table" [1, T, C] without its dimension of 1.
    # A role of numbers, such as "1 8", is the shape of a tensor whose dimensions of 1 the network does not have. "rows 1 4 8" is that of rows
    # [4, 8].
    role: str
    number: int
    count: int
    # The rows of a part that is cut out by its rows; `count` is 0 then.
    rows: Tuple[int, ...] = ()


class Refused(Exception):
    """An operator has no counterpart: why, and what to do instead. `node` is that operator, if it is not the one at hand."""

    def __init__(self, why: str, instead: str, node: Any = None) -> None:
        super().__init__(why)
        self.why, self.instead, self.node = why, instead, node


def no_formula(value: Any) -> None:
    """Refuses a formula that is no operator of the contract where something else takes it."""
    if isinstance(value, Value) and value.layout == "formula":
        op, args, node = value.name
        parts = [arg for arg in args if isinstance(arg, Value) and arg.layout == "formula"]
        if op == "add" and len(parts) == 1 and all(isinstance(arg, Value) and arg.layout in ("rows", "formula") for arg in args):
            # A sum with what came before: the formula is the other part.
            no_formula(parts[0])
        why = "it is no part of GELU, RMSNorm, SwiGLU or rotary positions as docs/how-to/capture.md has them"
        raise Refused(why, "use the modules of torch.nn, or write the formula as transformers does", node)


def to_role(array: Any, part: Part) -> Any:
    """A tensor of the model as the network's parameter, NumPy."""
    if part.role == "kernels":
        array = array.transpose(0, 2, 3, 1)
    elif part.role == "pixel kernels":
        array = array[:, None, None]
    elif part.role == "position kernels":
        array = array.transpose(0, 2, 1)[:, :, None]
    elif part.role == "transposed":
        array = array.T
    elif part.role == "table":
        array = array.reshape(array.shape[1:])
    elif part.role.startswith(ROWS):
        array = array.reshape(-1, array.shape[-1])
    elif part.role[0].isdigit():
        array = array.reshape([size for size in array.shape if size != 1] or [1])
    if part.rows:
        return array[list(part.rows)]
    rows = array.shape[0] // part.count
    return array[part.number * rows : (part.number + 1) * rows]


def from_role(arrays: Sequence[Any], parts: Sequence[Part]) -> Any:
    """The tensor of the model from the network's parameters, which are these parts in their order, NumPy."""
    whole, role = np.concatenate(arrays) if len(arrays) > 1 else arrays[0], parts[0].role
    if parts[0].rows:
        ordered = np.empty_like(whole)
        ordered[[row for part in parts for row in part.rows]] = whole
        whole = ordered
    if role.startswith(ROWS):
        return whole.reshape([int(size) for size in role[len(ROWS) :].split()])
    if role[0].isdigit():
        return whole.reshape([int(size) for size in role.split()])
    if role == "kernels":
        return whole.transpose(0, 3, 1, 2)
    if role == "pixel kernels":
        return whole[:, 0, 0]
    if role == "position kernels":
        return whole[:, :, 0].transpose(0, 2, 1)
    if role == "table":
        return whole.reshape((1, *whole.shape))
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
        # The parameters that some operator of the loss reads.
        self.read: Set[Optional[str]] = set()
        # The tables of rotary positions so far, with what they turn and their base.
        self.rotations: List[Tuple[Any, Any, float]] = []
        self.names = {INPUTS, *shapes}
        # The token id that may not occur, since positions are counted without it.
        self.absent: Optional[int] = None
        # The token id of padding that attentions hide.
        self.padding: Optional[int] = None
        self.images: Optional[str] = None
        self.sequences: Optional[str] = None
        # Rows by those whose positions and channels are exchanged with theirs.
        self.exchanges: Dict[str, str] = {}
        # Constants of positions by the rows of samples that hold them.
        self.tables: Dict[str, str] = {}
        # Constants of the model that the network has as frozen parameters, and operators whose output was needed as a whole.
        self.constants: Dict[str, np.ndarray] = {}
        self.whole: Dict[Any, Value] = {}
        # Linear layers whose cuts are no layers, and those that turned out to be such.
        self.uncut: Set[Any] = set()
        self.uncut_next: Set[Any] = set()
        # The operator that multiplies by each draw of stochastic depth.
        self.draws: Dict[Any, Any] = {}
        # The operators in place (`_in_place.py`); the graph's node at hand, and of which one each node of the network is made.
        self.writes: Any = None
        self.at: Any = None
        self.made_of: Dict[str, Any] = {}
        self.batch = 0
        self.where = ""
        # True for a module that is called and not trained (`_module.py`).
        self.is_evaluation = False

    # What a handler calls.

    def node(self, kind: str, *inputs: str, tail: str = "", **attributes: Any) -> str:
        """Appends a node, named by the module that computes it."""
        if self.is_evaluation and (kind == "sample_dropout" or attributes.get("p")):
            raise Refused("it drops numbers at random", "call model.eval()")
        base = ".".join(part for part in (self.where, tail) if part) or kind
        base = base[:NAME_MAX]
        name, number = base, 1
        while name in self.names:
            number += 1
            name = f"{base}.{number}"
        self.names.add(name)
        self.made_of[name] = self.at
        made: Dict[str, Any] = {"name": name, "operator": kind, "inputs": list(inputs)}
        if attributes:
            made["attributes"] = attributes
        self.nodes.append(made)
        return name

    def constant(self, array: Any) -> str:
        """The network's name of a constant: a parameter that stays as it is."""
        array = np.ascontiguousarray(array, dtype=np.float32)
        if not np.isfinite(array).all():
            raise Refused("it computes with a constant that holds infinities or NaN", "compute with finite numbers")
        for name, other in self.constants.items():
            if other.shape == array.shape and other.tobytes() == array.tobytes():
                return name
        name = f"constant.{len(self.constants)}"
        while name in self.names:
            name += "'"
        self.names.add(name)
        self.constants[name] = array
        return name

    def vector(self, channels: int, number: float) -> str:
        """The name of a constant that is one number for each channel."""
        if not np.isfinite(np.float32(number)):
            raise Refused(f"it computes with {number}", "compute with finite numbers")
        return self.constant(np.full(channels, number))

    def parameter(self, value: Any, role: str = "plain", number: int = 0, count: int = 1, rows: Tuple[int, ...] = ()) -> str:
        """The network's name of a parameter, or of a part of one."""
        if not isinstance(value, Value) or value.layout != "parameter":
            raise Refused("a weight is no parameter of the model", "make it an nn.Parameter that the operator takes directly")
        source = value.name
        if rows:
            of_source = [part for part in self.parts.values() if part.source == source]
            number = next((part.number for part in of_source if part.rows == rows), len(of_source))
            if any(part.rows != rows and set(part.rows) & set(rows) for part in of_source):
                raise Refused(f"rows of the parameter {source} are in several cuts of its layer's output", "cut the output into parts once")
            count = 0
        name = source if count == 1 else f"{source}.{number}"
        part = Part(source, role, number, count, rows)
        others = [other for other in self.parts.values() if other.source == source and (other.role, other.count) != (role, count)]
        if others or self.parts.setdefault(name, part) != part:
            raise Refused(f"the parameter {source} is used in two layouts", "give each use a parameter of its own")
        return name

    def vector_of(self, value: Value) -> str:
        """A parameter of one row, [C] with dimensions of 1 in front of it."""
        shape = self.shapes[value.name]
        return self.parameter(value, "plain" if len(shape) == 1 else " ".join(map(str, shape)))

    def without(self, padding: int, tensor: Any) -> Value:
        """A tensor that is computed of which ids are padding, where no id is."""
        if self.absent not in (None, padding):
            raise Refused(f"it counts positions without the id {padding}, and another operator without {self.absent}", "let one id be that of padding")
        self.absent = padding
        return Value(tensor, "constant", tuple(tensor.shape))

    def rows_of(self, value: Value) -> str:
        """A parameter of rows [.., C] as the matrix [rows, C]."""
        shape = self.shapes[value.name]
        return self.parameter(value, "plain" if len(shape) == 2 else ROWS + " ".join(map(str, shape)))

    def image(self, value: Value) -> str:
        """A value as an image with its channels last."""
        no_formula(value)
        if value.layout == "raw" and len(value.shape) == 4 and self.input_below is None:
            self.take_inputs(value.shape)
            self.images = self.images or self.inputs_as("image")
            return self.images
        if value.layout != "image":
            raise Refused(f"it takes {list(value.shape)}, which is no image [B, C, H, W]", "give it images of four dimensions")
        return value.name

    def inputs_as(self, kind: str) -> str:
        """The inputs after an operator that orders them, named by the operator alone."""
        where, self.where = self.where, ""
        name = self.node(kind, INPUTS, tail=kind)
        self.where = where
        return name

    def rows(self, value: Any) -> str:
        """A value as rows of its last dimension."""
        no_formula(value)
        if isinstance(value, Value) and value.layout == "raw" and len(value.shape) == 2 and self.input_below is None:
            self.take_inputs(value.shape)
            return INPUTS
        if isinstance(value, Value) and value.layout == "raw" and len(value.shape) == 3 and self.input_below is None:
            self.take_inputs(value.shape)
            self.sequences = self.sequences or self.inputs_as("rows")
            return self.sequences
        if isinstance(value, Value) and value.layout in ("patches", "last"):
            return self.node("rows", value.name, tail="rows")
        if isinstance(value, Value) and value.layout == "pixel" and len(value.shape) == 2:
            return self.node("flatten", value.name, tail="flatten")
        if not isinstance(value, Value) or value.layout != "rows":
            why = "it takes a tensor whose last dimension is not that of rows"
            raise Refused(why, "flatten images before linear layers, and use modules for activations")
        return value.name

    def any(self, value: Value) -> Tuple[str, str]:
        """A value of any layout for an operator on elements: its name and its layout."""
        no_formula(value)
        if value.layout == "raw":
            return (self.image(value), "image") if len(value.shape) == 4 else (self.rows(value), "rows")
        if value.layout == "patches":
            return self.rows(value), "rows"
        if value.layout not in ("rows", "image", "pooled", "split", "heads", "pixel", "last"):
            raise Refused(f"it takes {value.layout}", "apply it to activations")
        return value.name, value.layout

    def without_exchanges(self) -> None:
        """Leaves out exchanges of positions and channels that nothing takes, since an exchange of an exchange is the tensor before it."""
        taken = {name for node in self.nodes for name in node["inputs"]}
        last = self.nodes[-1:]
        self.nodes = [node for node in self.nodes if node["operator"] != "exchange" or node["name"] in taken or node in last]

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
