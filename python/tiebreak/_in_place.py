"""Operators in place: which tensors of a graph share memory with what they change, and who reads these later.

The network's values stay as they are, so an operator in place makes a new value, and nothing may read the old one afterwards. Constants are
known as a whole: writes to them are done one after another, as the model does them.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Set

from ._matcher import Refused, Value

INSTEAD = "use the operator without the underscore, or inplace=False, and assign to no part of a tensor"
NORM = "aten.batch_norm.default"
LASTING = "leave it as it is in forward: a run keeps parameters and running averages alone"
OF_INPUT = "make a new tensor: write x = x + 1 for x += 1, and x = x.relu() for x.relu_()"


def changed_by(node: Any) -> List[Any]:
    """The nodes whose tensors an operator changes."""
    schema = getattr(node.target, "_schema", None)
    if str(node.target) == NORM and node.args[5]:
        # Its running averages, of which the schema says nothing.
        return [value for value in node.args[3:5] if value is not None]
    if schema is None or not schema.is_mutable:
        return []
    given: List[Any] = []
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
            given += value if isinstance(value, (list, tuple)) else [value]
    return [value for value in given if hasattr(value, "meta")]


def _storages(node: Any) -> Iterator[int]:
    """What identifies the memory of a node's tensors. PyTorch's example values share it as the tensors of a step do."""
    import torch

    if node.users and all(str(user.target) == "aten.lift_fresh_copy.default" for user in node.users):
        # A literal, of which each step has a copy.
        return
    found = node.meta.get("val")
    for tensor in found if isinstance(found, (list, tuple)) else [found]:
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            yield tensor.untyped_storage()._cdata


class Writes:
    """The operators in place of a graph. `live` are the nodes that count, in their order: not those whose values nothing reads, such as what a
    cache of keys keeps.
    """

    def __init__(self, graph: Any, is_kept: Callable[[Any], bool], is_input: Callable[[Any], bool] = lambda node: False) -> None:
        self.sharing: Dict[int, List[Any]] = {}
        for node in graph.nodes:
            for storage in set(_storages(node)):
                self.sharing.setdefault(storage, []).append(node)
        # Among what is kept, the inputs, which are the caller's.
        self.inputs = {member for node in graph.nodes if is_input(node) for member in self.family(node)}
        kept = {member for node in graph.nodes if is_kept(node) for member in self.family(node)}
        live: Set[Any] = set()
        for node in reversed(graph.nodes):
            changes = [member for changed in changed_by(node) for member in self.family(changed)]
            if node.op != "call_function" or any(member in kept for member in changes) or any(user in live for member in [node, *changes] for user in member.users):
                live.add(node)
        self.live = [node for node in graph.nodes if node in live]
        self.order = {node: number for number, node in enumerate(self.live)}
        # Tensors that the model keeps from step to step, and changes: those that the loss depends on, and others, such as counters.
        self.lasting: Set[Any] = set()
        self.ignored: Set[Any] = set()
        for changed in (changed for node in self.live for changed in changed_by(node) if changed in kept):
            family = self.family(changed)
            (self.lasting if self._is_read(family) else self.ignored).update(family)

    def family(self, node: Any) -> List[Any]:
        """The nodes whose tensors share memory with those of a node, with itself."""
        found = [node, *(member for storage in set(_storages(node)) for member in self.sharing.get(storage, ()))]
        return list(dict.fromkeys(found))

    def _is_read(self, family: List[Any]) -> bool:
        """True if another operator than those that change them reads these tensors."""
        members = list(family)
        for member in members:
            for user in member.users:
                if user not in self.order or user in members:
                    continue
                if not set(changed_by(user)) & set(members):
                    return True
                if str(user.target) != NORM:
                    # Its result is what it changed, which not every example value of PyTorch shows.
                    members.append(user)
        return False

    def check(self, node: Any) -> None:
        """Refuses a change of what the model keeps from step to step."""
        for changed in changed_by(node):
            if changed in self.lasting and changed in self.inputs:
                raise Refused("it changes an input of forward in place", OF_INPUT)
            if changed in self.lasting:
                raise Refused("it changes a buffer or a parameter of the model in place, and the loss depends on it", LASTING)

    def check_readers(self, node: Any) -> None:
        """Refuses a change of what another operator reads afterwards."""
        here = self.order[node]
        for changed in changed_by(node) if str(node.target) != NORM else ():
            before = [member for member in self.family(changed) if self.order.get(member, -1) < here]
            if any(self.order.get(user, -1) > here for member in before for user in member.users):
                raise Refused("it changes a tensor in place that something else reads", INSTEAD)

    def begin(self, node: Any, values: Dict[Any, Any]) -> None:
        """Gives constants that an operator is about to change, and all that share their memory, memory of their own."""
        import torch

        for changed in changed_by(node):
            old = values[changed].name.untyped_storage()
            new = old.clone()
            for member in self.family(changed):
                value = values.get(member)
                if value is None:
                    continue
                tensor = value.name if isinstance(value, Value) and value.layout == "constant" else None
                if tensor is None or tensor.untyped_storage()._cdata != old._cdata or tensor.is_conj() or tensor.is_neg():
                    why = "it changes a constant in place, of which a part is no constant"
                    raise Refused(why, "build the constant without writing into it (torch.stack, torch.where), or in __init__ as a buffer")
                own = torch.empty(0, dtype=tensor.dtype).set_(new, tensor.storage_offset(), tensor.shape, tensor.stride())
                values[member] = value._replace(name=own)


class Assigned:
    """The buffers, parameters and numbers of a model that change by assignment meanwhile. `torch.export` takes such a change for nothing."""

    def __init__(self, model: Any) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self.found: List[str] = []

    def __enter__(self) -> None:
        import torch

        self._usual = usual = torch.nn.Module.__setattr__

        def assign(module: Any, name: str, value: Any) -> None:
            path, old = self._paths.get(id(module)), vars(module).get(name)
            is_kept = name in vars(module).get("_buffers", ()) or name in vars(module).get("_parameters", ())
            if path is not None and (is_kept or (isinstance(old, (int, float)) and isinstance(value, (int, float)) and old != value)):
                self.found.append(f"{path}.{name}".lstrip("."))
            usual(module, name, value)

        torch.nn.Module.__setattr__ = assign

    def __exit__(self, *_: Any) -> None:
        import torch

        torch.nn.Module.__setattr__ = self._usual
