"""The backend "tiebreak" of `torch.compile`: calls of a module are computed by an engine of this process, gradients too.

PyTorch traces a graph, and asks for a function in its place. The graph is matched at the first call with tensors of some sizes, as
`capture` matches a model.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import warnings
from collections import OrderedDict
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _call
from ._errors import CaptureError, RunWarning, UsageError
from ._module import Module, Role, traced

# Graphs for other sizes, or other constants, that are kept.
KEPT_MAX = 64
# PyTorch traces one graph at a time, and calls may come from several threads.
LOCK = threading.RLock()
OPTIONS = ("convolution", "device", "digits", "fallback", "threads")


class Options(NamedTuple):
    """What `torch.compile(..., options={...})` gives."""

    engine: Tuple[str, int] = ("cpu", 0)
    digits: int = 3
    convolution: int = 1
    fallback: bool = False


def read_options(given: Any) -> Options:
    """The options, checked."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"options is a {type(given).__name__}", "give options as a dict")
    given = dict(given or {})
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r:.60}", f"give options among {', '.join(OPTIONS)}")
    device, threads = given.get("device", "cpu"), given.get("threads", 0)
    _call.engine(device, None, threads)
    digits, convolution = given.get("digits", 3), given.get("convolution", 1)
    if _call.count("digits", digits, 1) > 4:
        raise UsageError(f"digits is {digits}", "give digits as 1, 2, 3 or 4")
    if convolution not in (1, 2):
        raise UsageError(f"convolution is {convolution!r:.60}", "give convolution as 1 or 2")
    fallback = given.get("fallback", False)
    if not isinstance(fallback, bool):
        raise UsageError(f"fallback is {fallback!r:.60}", "give fallback as True or False")
    return Options((_call.ENGINES[device], threads), digits, convolution, fallback)


def backend(graph: Any, example_inputs: Sequence[Any], options: Any = None) -> Any:
    """The function that takes the place of a graph of `torch.compile`."""
    _tell_of_the_last()
    # An error here would reach the caller in an exception of PyTorch, and one of the first call comes as it is.
    return Graph(graph, options)


def _tell_of_the_last() -> None:
    """Warns of the last graph of a function that PyTorch asks for: it computes further calls itself, and only its log says so."""
    from torch._dynamo import config
    from torch._guards import CompileContext

    this = CompileContext.current_compile_id()
    if this is not None and this.frame_compile_id is not None and this.frame_compile_id + 1 == config.recompile_limit:
        text = (
            f"PyTorch asks for no graph of this function after {config.recompile_limit}, and computes further calls of other sizes or "
            "values itself: raise torch._dynamo.config.recompile_limit, or make that an error by fullgraph=True"
        )
        warnings.warn(text, RunWarning, stacklevel=2)


class Graph:
    """A graph of `torch.compile`, called with parameters, buffers and inputs in its order."""

    def __init__(self, graph: Any, options: Any) -> None:
        self._graph, self._given = graph, options
        self._options: Optional[Options] = None
        self._roles: Optional[List[Role]] = None
        self._modules: "OrderedDict[Any, Module]" = OrderedDict()
        # What PyTorch computes: the keys of calls, and None for calls that have no key.
        self._fallen: "set[Any]" = set()

    def __call__(self, *given: Any) -> Any:
        if self._options is None:
            self._options = read_options(self._given)
        key = None
        try:
            with LOCK:
                key, paddings = self._key_of(given)
                module = None if key in self._fallen else self._module_of(key, paddings, given)
        except CaptureError as error:
            if not self._options.fallback:
                raise
            if key in self._fallen:
                return self._graph(*given)
            listed = "\n".join(f"- {line}" for line in error.refused)
            warnings.warn(f"PyTorch computes a graph in place of tiebreak, and its bits depend on the machine:\n{listed}", RunWarning, stacklevel=2)
            # After the warning, which may be an error of the caller's choice.
            self._fallen.add(key)
            return self._graph(*given)
        return self._graph(*given) if module is None else module(given)

    def _key_of(self, given: Sequence[Any]) -> Any:
        """The key of the matched graph for inputs of these sizes and constants, and the token ids of padding."""
        if self._roles is None:
            self._roles = _roles(self._graph, given)
        _check(self._roles, given)
        tokens = next((given[number] for number, role in enumerate(self._roles) if role.kind == "tokens"), None)
        paddings: Dict[int, int] = {}
        key = tuple(_key(number, role, value, tokens, paddings) for number, (role, value) in enumerate(zip(self._roles, given)))
        return key, paddings

    def _module_of(self, key: Any, paddings: Dict[int, int], given: Sequence[Any]) -> Module:
        """The matched graph for inputs of these sizes."""
        module = self._modules.get(key)
        if module is None:
            module = traced(self._graph, self._roles, given, paddings, self._options)
            self._modules[key] = module
            if len(self._modules) > KEPT_MAX:
                self._modules.popitem(last=False)
        self._modules.move_to_end(key)
        return module


def _roles(graph: Any, given: Sequence[Any]) -> List[Role]:
    """What each input of a graph is, by its source in the model."""
    import torch

    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    sources = [getattr(getattr(node, "_dynamo_source", None), "name", node.name) for node in nodes]
    sources = [str(source() if callable(source) else source) for source in sources]
    roles = []
    for number, (source, value) in enumerate(zip(sources, given)):
        kind = "number"
        if isinstance(value, torch.Tensor):
            if isinstance(value, torch.nn.Parameter) or "._parameters[" in source:
                kind = "parameter"
            elif "._buffers[" in source or not value.is_floating_point() or value.dim() == 0:
                kind = "constant"
            else:
                kind = "input"
        roles.append(Role(kind, source, number))
    if not any(role.kind == "input" for role in roles):
        ids = [role for role in roles if role.kind == "constant" and "._buffers[" not in role.source]
        ids = [role for role in ids if given[role.number].dtype in (torch.int64, torch.int32) and given[role.number].dim() == 2]
        looked_up = _looked_up(graph, [nodes[role.number] for role in ids])
        if ids:
            first = next((role for role in ids if nodes[role.number] is looked_up), ids[0])
            roles[first.number] = first._replace(kind="tokens")
    return roles


def _looked_up(graph: Any, inputs: Sequence[Any]) -> Any:
    """The one of these inputs whose numbers are the first that the graph looks up in a table; None if it looks up none."""
    import torch

    for node in graph.graph.nodes:
        if node.target is torch.nn.functional.embedding:
            found = node.args[0]
            while found.op != "placeholder" and len(found.all_input_nodes) == 1:
                (found,) = found.all_input_nodes
            if found in inputs:
                return found
    return None


def _check(roles: Sequence[Role], given: Sequence[Any]) -> None:
    """Refuses tensors that no engine takes."""
    import torch

    refused = []
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        refused.append("autocast is on, and an engine computes in float32; leave torch.autocast out")
    samples: Dict[int, str] = {}
    for role, value in zip(roles, given):
        if role.kind in ("parameter", "input") and value.dtype != torch.float32:
            refused.append(f"{role.what} is {value.dtype}; use float32 tensors, and model.float()")
        elif role.kind in ("parameter", "input", "tokens") and value.numel() == 0:
            refused.append(f"{role.what} is {list(value.shape)}, without an element; give one sample or more")
        elif role.kind == "input" and not 2 <= value.dim() <= 4:
            refused.append(f"{role.what} is {list(value.shape)}; give inputs of 2 to 4 dimensions, the samples first")
        elif role.kind in ("input", "tokens"):
            samples.setdefault(value.shape[0], role.what)
    if len(samples) > 1:
        found = ", ".join(f"{count} of {what}" for count, what in samples.items())
        refused.append(f"the inputs have several numbers of samples: {found}; give as many of each")
    if not samples and not refused:
        refused.append("the graph has no input of float32 or of token ids; give the module one")
    if refused:
        raise CaptureError(refused)


def _key(number: int, role: Role, value: Any, tokens: Any, paddings: Dict[int, int]) -> Any:
    """What the graph depends on, of an input: sizes, and the values of constants. `paddings` gets the masks of padding."""
    import torch

    if role.kind == "number":
        return value
    sizes = value.dtype, tuple(value.shape)
    if role.kind != "constant":
        return sizes
    if tokens is not None and value.shape == tokens.shape and not value.is_floating_point():
        hidden = value == 0
        if bool((hidden | (value == 1)).all()) and bool(hidden.any()):
            found = tokens[hidden].unique().tolist()
            if len(found) == 1 and not bool((tokens[~hidden] == found[0]).any()):
                paddings[number] = found[0]
                return (*sizes, "padding", found[0])
    flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return (*sizes, hashlib.blake2b(flat.numpy().data).digest())


def register() -> None:
    """Makes the backend known to PyTorch, if that has loaded its table of backends. Otherwise PyTorch finds it among the package's entry points."""
    registry = sys.modules.get("torch._dynamo.backends.registry")
    if registry is not None and "tiebreak" not in registry._BACKENDS:
        registry.register_backend(backend, name="tiebreak")
