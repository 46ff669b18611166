"""A module's graph as passes of an engine: its values, and their gradients, for tensors of fixed sizes."""

from __future__ import annotations

import json
import re
import threading
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from . import _cut, _in_place, _joined, _native
from ._call import native
from ._errors import BugError, CaptureError, MalformedError
from ._instead import named_once
from ._match import BROKEN, matched
from ._matcher import Matcher, Refused, Value, from_role, to_role
from ._source import of_network, place
from ._whole import whole

# The order of PyTorch's dimensions in the network, by layout; other layouts have PyTorch's own.
ORDERS = {"image": (0, 2, 3, 1), "heads": (0, 2, 1, 3), "planes": (0, 2, 1)}
LAYOUTS = ("rows", "pooled", "pixel", "last", "split", "patches", *ORDERS)
# The most bytes of a name in a network file, less what may come behind.
NAME_MAX = 100


class Role(NamedTuple):
    """What an input of a graph is: a "parameter", an "input" of float32, "tokens", a "constant" or a "number"."""

    kind: str
    source: str
    number: int

    @property
    def what(self) -> str:
        """The input for people: a parameter by its name in the model, any other by its source."""
        if "._parameters[" not in self.source and "._buffers[" not in self.source:
            return f"the input {self.source}"
        return f"the parameter {_path(self.source)}" if self.kind == "parameter" else f"the buffer {_path(self.source)}"


def _path(source: str) -> str:
    """The name of a tensor in the model, of a source such as `L['self']._modules['0']._parameters['weight']`."""
    named = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", source)
    return named.partition("].")[2] or named


class Output(NamedTuple):
    """What a graph returns: a node of the network in a layout, or a constant."""

    name: Optional[str]
    layout: str
    shape: Tuple[int, ...]
    constant: Any = None


def traced(graph: Any, roles: Sequence[Role], given: Sequence[Any], paddings: Mapping[int, int], options: Any) -> "Module":
    """The module of a graph for inputs of these sizes.

    Raises CaptureError with every operator that has no counterpart.
    """
    import torch

    program = _exported(torch, graph, roles, given, paddings)
    named_once(program.graph)
    names = _names(roles)
    matcher, outputs = _network_of(program, roles, given, names, options.convolution)
    if matcher.absent is not None:
        why = f"it counts positions over the ids that are not {matcher.absent}, those of padding"
        raise CaptureError([f"the model: {why}; number the positions by torch.arange(T)"])
    return Module(matcher, outputs, roles, given, names, options)


def _names(roles: Sequence[Role]) -> Dict[int, str]:
    """The names of parameters and inputs in the network, each once."""
    names: Dict[int, str] = {}
    for role in roles:
        if role.kind in ("parameter", "input"):
            name = re.sub(r"[^!-~]", "_", _path(role.source))[:NAME_MAX] if role.kind == "parameter" else f"input.{role.number}"
            names[role.number] = name if name and name not in (*names.values(), "inputs") else f"tensor.{role.number}"
    return names


def _exported(torch: Any, graph: Any, roles: Sequence[Role], given: Sequence[Any], paddings: Mapping[int, int]) -> Any:
    """The graph of ATen operators, before any decomposition, with the lines and modules of the operators that PyTorch traced."""

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = torch.nn.Module()
            for role, value in zip(roles, given):
                if role.kind == "parameter":
                    self.held.register_parameter(f"t{role.number}", torch.nn.Parameter(value.detach(), requires_grad=False))
                elif role.kind == "constant" and role.number not in paddings:
                    self.held.register_buffer(f"t{role.number}", value.detach())

        def forward(self, *inputs: Any) -> Any:
            left, arguments, tokens = list(inputs), [], None
            for role in roles:
                if role.kind in ("input", "tokens"):
                    arguments.append(left.pop(0))
                    tokens = arguments[-1] if role.kind == "tokens" else tokens
                elif role.kind == "number" or role.number in paddings:
                    arguments.append(given[role.number])
                else:
                    arguments.append(getattr(self.held, f"t{role.number}"))
            for number, padding in paddings.items():
                arguments[number] = (tokens != padding).to(given[number].dtype)
            with torch.fx.traceback.preserve_node_meta():
                return tuple(torch.fx.Interpreter(graph).run(*arguments))

    inputs = tuple(value.detach() for role, value in zip(roles, given) if role.kind in ("input", "tokens"))
    try:
        with torch.inference_mode(False), torch.no_grad():
            return torch.export.export(Called(), inputs, strict=False)
    except Exception as error:  # noqa: BLE001 - the model is foreign code
        instead = "write forward so that no branch and no shape depends on the values of tensors"
        raise CaptureError([f"torch.export could not trace it: {type(error).__name__}: {' '.join(str(error).split())[:500]}; {instead}"]) from error


def _network_of(program: Any, roles: Sequence[Role], given: Sequence[Any], names: Mapping[int, str], convolution: int) -> Tuple[Matcher, List[Any]]:
    """The graph as nodes of a network, and what it returns."""
    signature = program.graph_signature
    number_of = {name: int(full.rpartition(".t")[2]) for table in (signature.inputs_to_parameters, signature.inputs_to_buffers) for name, full in table.items()}
    inputs = [role for role in roles if role.kind in ("input", "tokens")]
    number_of.update({name: role.number for name, role in zip(signature.user_inputs, inputs)})
    shapes = {name: tuple(given[number].shape) for number, name in names.items()}
    outputs: List[Any] = []

    def fresh() -> Matcher:
        matcher = Matcher(shapes, {name: name for name in shapes}, convolution)
        matcher.is_evaluation, matcher.batch = True, given[inputs[0].number].shape[0]
        matcher.buffers = {name: f"{number_of[name]}" for name in signature.inputs_to_buffers}
        matcher.writes = _in_place.Writes(program.graph, lambda node: node.op == "placeholder", lambda node: node.name in signature.user_inputs)
        outputs.clear()
        return matcher

    def placeholder(matcher: Matcher, node: Any) -> Any:
        number = number_of.get(node.name)
        if number is None:
            name = signature.inputs_to_lifted_tensor_constants.get(node.name)
            tensor = program.constants.get(name)
            return Value(name, "unknown", ()) if tensor is None else Value(tensor.detach().cpu().clone(), "constant", tuple(tensor.shape))
        role, shape = roles[number], tuple(given[number].shape)
        if role.kind == "tokens":
            return Value(None, "tokens", shape)
        if role.kind == "input":
            return Value(names[number], "image" if len(shape) == 4 else "rows", shape)
        if role.kind == "parameter":
            return Value(names[number], "parameter", shape)
        # A copy, since the model may write into its own tensor later.
        return Value(given[number].detach().cpu().clone(), "constant", shape)

    def ended(matcher: Matcher, node: Any, values: Dict[Any, Any]) -> List[str]:
        refused = []
        for changed in (node for node in matcher.writes.ignored if node.op == "placeholder" and node.name in number_of):
            refused.append(f"{roles[number_of[changed.name]].what}: forward changes it in place; call model.eval(), or leave it as it is in forward")
        for made in node.args[0]:
            try:
                outputs.append(_output(matcher, made, values))
            except Refused as error:
                refused.append(f"{place(error.node or made)}: {error.why}; {error.instead}")
        return refused

    return matched(program, fresh, placeholder, ended), outputs


def _output(matcher: Matcher, node: Any, values: Dict[Any, Any]) -> Any:
    """What a graph returns at one place: an `Output`, or a value that is no tensor."""
    if not hasattr(node, "meta"):
        return node
    value = values.get(node)
    if value is BROKEN:
        return None
    if isinstance(value, Value) and value.layout == "columns":
        value = _cut.settled(matcher, node, value)
    if isinstance(value, Value) and value.layout == "joined":
        value = _joined.settled(matcher, node, value)
    if isinstance(value, Value) and value.layout == "formula":
        value = whole(matcher, value)
    if isinstance(value, Value) and value.layout == "constant":
        return Output(None, "constant", value.shape, value.name)
    if not isinstance(value, Value) or value.layout not in LAYOUTS or not isinstance(value.name, str):
        layout = value.layout if isinstance(value, Value) else "no tensor"
        raise Refused(f"the module returns it, and it has no layout that PyTorch has ({layout})", "return activations: rows [.., C], heads or images")
    return Output(value.name, value.layout, value.shape)


def _numbers(tensor: Any, layout: str) -> bytes:
    """The elements of an activation in the network's order."""
    tensor = tensor.detach().cpu()
    return _bytes((tensor.permute(ORDERS[layout]) if layout in ORDERS else tensor).contiguous().numpy())


def _bytes(array: Any) -> bytes:
    return np.ascontiguousarray(array, dtype="<f4").tobytes()


def _tensor(torch: Any, data: bytes, layout: str, shape: Tuple[int, ...]) -> Any:
    """An activation of PyTorch from its elements in the network's order."""
    order = ORDERS.get(layout, tuple(range(len(shape))))
    found = torch.from_numpy(np.frombuffer(data, dtype="<f4").astype(np.float32).reshape([shape[place] for place in order]))
    return found.permute([order.index(place) for place in range(len(shape))]).contiguous()


class Module:
    """A graph for tensors of fixed sizes. A call computes its values, and may compute their gradients afterwards."""

    def __init__(self, matcher: Matcher, outputs: Sequence[Any], roles: Sequence[Role], given: Sequence[Any], names: Mapping[int, str], options: Any) -> None:
        self._outputs, self._roles, self._names, self._options = list(outputs), list(roles), dict(names), options
        self._wanted = list(dict.fromkeys(output.name for output in self._outputs if isinstance(output, Output) and output.name is not None))
        live = self._live(matcher)
        self._parts = {name: part for name, part in matcher.parts.items() if name in live}
        self._constants = {name: array for name, array in matcher.constants.items() if name in live}
        self._inputs = {names[role.number]: role.number for role in roles if role.kind == "input" and names[role.number] in live}
        self._averages = {f"buffer/{ours}": int(theirs) for theirs, ours in matcher.norms.items()}
        self._tokens = next((role.number for role in roles if role.kind == "tokens"), None)
        self._made_of = dict(matcher.made_of)
        self._number_of = {name: number for number, name in names.items()}
        self._text = json.dumps(self._network(matcher, given, live))
        self._passes: Dict[Any, Any] = {}
        self._lock = threading.Lock()
        if self._wanted:
            self._pass(None)

    def _live(self, matcher: Matcher) -> Set[str]:
        """The names that the outputs depend on."""
        live = set(self._wanted)
        for node in reversed(matcher.nodes):
            live.update(node["inputs"] if node["name"] in live else ())
        return live

    def _network(self, matcher: Matcher, given: Sequence[Any], live: Set[str]) -> Dict[str, Any]:
        """The network file of the graph."""
        parameters = []
        for name, number in self._inputs.items():
            shape = tuple(given[number].shape)
            sizes = [shape[place] for place in ORDERS["image"]] if len(shape) == 4 else [int(np.prod(shape[:-1])), shape[-1]]
            parameters.append({"name": name, "shape": sizes})
        for name, part in self._parts.items():
            parameters.append({"name": name, "shape": list(to_role(np.broadcast_to(np.float32(0), matcher.shapes[part.source]), part).shape)})
        parameters += [{"name": name, "shape": list(array.shape)} for name, array in self._constants.items()]
        network: Dict[str, Any] = {
            "format": "tiebreak network 1",
            "micro_batch": matcher.batch,
            "inputs": {"name": "values", "shape": [matcher.batch]},
            "labels": {"shape": [matcher.batch], "below": 1},
            "parameters": parameters,
            "nodes": [node for node in matcher.nodes if node["name"] in live],
            "optimizer": {"kind": "sgd", "momentum": 0},
            "digits": self._options.digits,
        }
        if "inputs" in live:
            network["inputs"] = {"name": "tokens", "shape": matcher.input_shape, "below": matcher.input_below}
        if any(node["operator"] == "batch_norm" for node in network["nodes"]):
            network["norm_momentum"] = 0.5
        return network

    def _pass(self, wanted: Optional[Tuple[str, ...]]) -> Any:
        """The pass that computes the outputs, or these gradients."""
        with self._lock:
            found = self._passes.get(wanted)
            if found is None:
                gradients = None if wanted is None else list(wanted)
                try:
                    with native():
                        found = _native.Pass(self._text, self._wanted, list(self._inputs), gradients, self._options.engine)
                except MalformedError as error:
                    raise CaptureError([of_network(error.message, "", self._made_of)]) from None
                self._passes[wanted] = found
            return found

    def _computed(self, wanted: Optional[Tuple[str, ...]], given: Sequence[Any], upstreams: Sequence[bytes]) -> Dict[str, bytes]:
        """The outputs of a pass by their names."""
        computes = self._pass(wanted)
        inputs, outputs = computes.ports()
        tensors = [self._port(name, given, upstreams) for name, _ in inputs]
        with native():
            return dict(zip((name for name, _ in outputs), computes.run(tensors)))

    def _port(self, name: str, given: Sequence[Any], upstreams: Sequence[bytes]) -> bytes:
        """The bytes of an input of a pass."""
        kind, _, rest = name.partition("/")
        if kind == "upstream":
            return upstreams[int(rest)]
        if kind == "buffer":
            return _bytes(given[self._averages[name]].detach().cpu().numpy())
        if kind == "batch" and rest == "tokens":
            tokens = given[self._tokens].detach().cpu().numpy()
            # A number that no id can have stands for one below 0, and the engine's bound refuses it.
            return np.where((tokens < 0) | (tokens > 0xFFFFFFFF), 0xFFFFFFFF, tokens).astype("<u4").tobytes()
        if kind == "batch":
            return bytes(4 * given[self._first()].shape[0])
        if rest in self._inputs:
            number = self._inputs[rest]
            return _numbers(given[number], "image" if given[number].dim() == 4 else "rows")
        if rest in self._constants:
            return _bytes(self._constants[rest])
        part = self._parts[rest]
        return _bytes(to_role(given[self._number_of[part.source]].detach().cpu().numpy(), part))

    def _first(self) -> int:
        return next(role.number for role in self._roles if role.kind in ("input", "tokens"))

    def values(self, given: Sequence[Any]) -> List[Any]:
        """The tensors of `self._wanted`'s outputs, in the order in which the graph returns them."""
        import torch

        made = self._computed(None, given, []) if self._wanted else {}
        device = given[self._first()].device
        found = []
        for output in self._outputs:
            if isinstance(output, Output) and output.name is not None:
                data = made[f"output/{self._wanted.index(output.name)}"]
                found.append(_tensor(torch, data, output.layout, output.shape).to(device))
        return found

    def gradients(self, given: Sequence[Any], upstreams: Sequence[Any], needed: Sequence[bool]) -> List[Any]:
        """The gradient of each given tensor that needs one, for the gradients of `values`."""
        import torch

        sums: List[Any] = [None] * len(self._wanted)
        computed = [output for output in self._outputs if isinstance(output, Output) and output.name is not None]
        for output, upstream in zip(computed, upstreams):
            place = self._wanted.index(output.name)
            numbers = np.frombuffer(_numbers(upstream.to(torch.float32), output.layout), dtype="<f4")
            sums[place] = numbers if sums[place] is None else sums[place] + numbers
        of_inputs = [name for name, number in self._inputs.items() if needed[number]]
        of_parts = [name for name, part in self._parts.items() if needed[self._number_of[part.source]]]
        found: List[Any] = [None] * len(given)
        if not of_inputs and not of_parts:
            return found
        made = self._computed((*of_inputs, *of_parts), given, [_bytes(numbers) for numbers in sums])
        for name in of_inputs:
            number = self._inputs[name]
            tensor = given[number]
            found[number] = _tensor(torch, made[f"grad/{name}"], "image" if tensor.dim() == 4 else "rows", tuple(tensor.shape)).to(tensor.device)
        for source in dict.fromkeys(self._parts[name].source for name in of_parts):
            own = sorted((name for name in of_parts if self._parts[name].source == source), key=lambda name: self._parts[name].number)
            found[self._number_of[source]] = self._of_parameter(torch, own, made, given[self._number_of[source]])
        return found

    def _of_parameter(self, torch: Any, names: Sequence[str], made: Mapping[str, bytes], tensor: Any) -> Any:
        """A parameter's gradient from those of its parts. Rows of a layer that no output depends on have zeros."""
        parts = [self._parts[name] for name in names]
        like = np.broadcast_to(np.float32(0), tuple(tensor.shape))
        arrays = [np.frombuffer(made[f"grad/{name}"], dtype="<f4").astype(np.float32).reshape(to_role(like, part).shape) for name, part in zip(names, parts)]
        first = parts[0]
        if not first.rows and len(parts) < first.count:
            by_number = dict(zip((part.number for part in parts), arrays))
            arrays = [by_number.get(number, np.zeros_like(arrays[0])) for number in range(first.count)]
        if first.rows:
            rows = sum(len(part.rows) for part in parts)
            every = to_role(like, first._replace(rows=(), number=0, count=1)).shape[0]
            missing = tuple(row for row in range(every) if not any(row in part.rows for part in parts)) if rows < every else ()
            if missing:
                parts.append(first._replace(rows=missing))
                arrays.append(np.zeros((len(missing), *arrays[0].shape[1:]), dtype=np.float32))
        found = np.array(from_role(arrays, parts), order="C")
        if found.shape != tuple(tensor.shape):
            raise BugError(f"a gradient has the shape {found.shape}, and its parameter {tuple(tensor.shape)}")
        return torch.from_numpy(found).to(tensor.device)

    def __call__(self, given: Sequence[Any]) -> List[Any]:
        """What the graph returns."""
        import torch

        tracked = torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
        made = list(_function(torch).apply(self, *given)) if tracked and self._wanted else self.values(given)
        found = []
        for output in self._outputs:
            if not isinstance(output, Output):
                found.append(output)
            elif output.name is None:
                found.append(output.constant.clone().to(given[self._first()].device))
            else:
                found.append(made.pop(0))
        return found


_FUNCTION: List[Any] = []


def _function(torch: Any) -> Any:
    """The `torch.autograd.Function` of a call."""
    if _FUNCTION:
        return _FUNCTION[0]

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, module: Module, *given: Any) -> Any:
            ctx.module = module
            ctx.others = [None if isinstance(value, torch.Tensor) else value for value in given]
            ctx.save_for_backward(*(value for value in given if isinstance(value, torch.Tensor)))
            ctx.is_tensor = [isinstance(value, torch.Tensor) for value in given]
            return tuple(module.values(given))

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *upstreams: Any) -> Any:
            saved = list(ctx.saved_tensors)
            given = [saved.pop(0) if is_tensor else other for is_tensor, other in zip(ctx.is_tensor, ctx.others)]
            return None, *ctx.module.gradients(given, upstreams, ctx.needs_input_grad[1:])

    _FUNCTION.append(Call)
    return Call
