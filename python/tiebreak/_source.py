"""Lines of a model's source: where it calls the operators of a graph."""

from __future__ import annotations

import os
import re
from typing import Any, Set, Tuple

from ._graph import module_of


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
    return f"{node.target} in {module_of(node)[0] or 'the model'} at {_line(node)}"


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
