"""Lines of a model's source: where it calls the operators of a graph."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, Set, Tuple

from ._graph import module_of

# What helps against errors in a network file.
INSTEAD = (
    ("padding", "use padding below the kernel's size"),
    ("elements|places|more than [0-9]|too (large|many)|at most", "give an example batch of fewer or smaller samples, or use a smaller model"),
    ("name", "give modules and parameters shorter names of ASCII"),
)


def _line(node: Any) -> str:
    """The line of the model's source that calls an operator: the innermost one outside of PyTorch."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    here = os.path.dirname(__file__)
    frames = [frame for frame in frames if not frame[0].startswith(here)]
    own = [frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame[0]]
    found = (own or frames or [("", "")])[-1]
    return f"{found[0]}:{found[1]}" if found[0] else "an unknown line"


def place(node: Any) -> str:
    """An operator, its module and its line."""
    return "the model" if node is None else f"{node.target} in {module_of(node)[0] or 'the model'} at {_line(node)}"


def of_network(why: str, file: str, made_of: Mapping[str, Any]) -> str:
    """What is said of a network file, as a refusal of the model's operator that made the node."""
    why = why[len(file) + 2 :] if why.startswith(f"{file}: ") else why
    found = re.fullmatch(r"node ([^\s:]+)(?: \((\w+)\))?: (.*)", why, re.DOTALL)
    if found is None:
        at, said, about = "the model", why, why
    else:
        name, operator, about = found.groups()
        at, said = place(made_of.get(name)), f"its operator {f'`{operator}`' if operator else name} cannot be made: {about}"
    instead = next((instead for pattern, instead in INSTEAD if re.search(pattern, about)), "use other sizes, or write it with what the page lists")
    return f"{at}: {said}; {instead}"


def alike(graph: Any, nodes: Set[Any]) -> Set[Any]:
    """These operators, and those after each that its line calls in a module of its name: the layers of a model's blocks are alike."""
    calls: Set[Tuple[str, str]] = set()
    found: Set[Any] = set()
    for node in graph.nodes:
        if node.op == "call_function":
            call = _line(node), re.sub("[0-9]+", "", module_of(node)[0])
            if node in nodes:
                calls.add(call)
            if call in calls:
                found.add(node)
    return found
