"""What a run leaves out of a model: buffers and parameters that it does not train, and parts that the loss does not depend on, which are refused."""

from __future__ import annotations

import random
import warnings
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ._errors import CaptureError, RunWarning
from ._matcher import Matcher
from ._source import place


def tell(unused: Sequence[str]) -> None:
    """Warns of parameters that nothing of the loss reads. They have no gradient, so PyTorch's optimizers leave them as they are, too."""
    shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
    warnings.warn(f"the loss reads no {shown}: a run keeps such parameters out, and state_dict has them as they are now", RunWarning, stacklevel=3)


def tell_counted(padding: int) -> None:
    """Warns of positions that the program counts as if no token were padding."""
    why = f"the model counts positions over the ids that are not {padding}, those of padding, and a run counts all: texts with that id have other logits"
    warnings.warn(f"{why} than in PyTorch, in predictions too; leave padding out", RunWarning, stacklevel=3)


def drawn() -> Tuple[Any, ...]:
    """Where Python's and NumPy's random numbers are."""
    numbers = np.random.get_state(legacy=False)
    return random.getstate(), numbers["state"]["key"].tobytes(), numbers["state"]["pos"], numbers["has_gauss"]


def _owners(named: Mapping[str, Any]) -> Dict[int, str]:
    """Parameters by the memory that they are in."""
    return {tensor.untyped_storage()._cdata: name for name, tensor in reversed(list(named.items())) if tensor.numel()}


def shared(model: Any, named: Mapping[str, Any]) -> List[str]:
    """Parameters and buffers in the memory of another parameter, which a run trains apart from it."""
    owners = _owners(named)
    found = []
    for name, tensor in named.items():
        owner = owners.get(tensor.untyped_storage()._cdata, name)
        if named[owner] is not tensor:
            found.append(f"parameter {name}: it shares its memory with {owner}; tie them as one nn.Parameter, or keep a copy (.clone())")
    for name, tensor in model.named_buffers():
        if owner := owners.get(tensor.untyped_storage()._cdata):
            found.append(f"buffer {name}: it shares its memory with {owner}, which a run changes; keep a copy (.clone())")
    return found


def shared_constants(program: Any, named: Mapping[str, Any]) -> List[str]:
    """Tensors that are no part of the model's state and are in the memory of a parameter."""
    import torch

    owners = _owners(named)
    constants = [tensor for tensor in program.constants.values() if isinstance(tensor, torch.Tensor)]
    names = dict.fromkeys(name for tensor in constants if (name := owners.get(tensor.untyped_storage()._cdata)))
    return [f"parameter {name}: forward reads a tensor in its memory, which a run changes; read the parameter, or keep a copy (.clone())" for name in names]


def kept(model: Any, norms: Mapping[str, str]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Copies of the buffers of a model's state that no run trains, and other names of buffers."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    state = [name for name in model.state_dict() if name in buffers]
    # The names of batch normalisations first: the others are other names of theirs.
    order = [*norms, *(name for name in state if name not in norms)]
    first: Dict[int, str] = {}
    of = {name: first.setdefault(id(buffers[name]), name) for name in order}
    trained = {name: buffers[name] for name in norms}
    owners = {tensor.untyped_storage()._cdata: name for name, tensor in trained.items()}
    shared = {name: owners.get(buffers[name].untyped_storage()._cdata) for name in state if of[name] not in norms}
    if found := [f"buffer {name}: it shares its memory with {owner}, which a run changes; keep a copy (.clone())" for name, owner in shared.items() if owner]:
        raise CaptureError(found)
    kept = {name: buffers[name].detach().cpu().clone() for name in state if of[name] == name and name not in norms}
    return kept, {name: source for name, source in of.items() if name != source}


def missing_rows(matcher: Matcher) -> List[str]:
    """Parameters that are cut into rows of which nothing takes some."""
    taken: Dict[Tuple[str, str], int] = {}
    for part in matcher.parts.values():
        if part.rows:
            taken[part.source, part.role] = taken.get((part.source, part.role), 0) + len(part.rows)
    found = []
    for (source, role), count in taken.items():
        due = matcher.shapes[source][1 if role == "transposed" else 0]
        if count != due:
            found.append(f"parameter {source}: the loss depends on {count} of its {due} outputs; make the layer as wide as what is used of it")
    return found


def untaken(matcher: Matcher) -> List[str]:
    """Operators of which the loss does not depend on a part, such as one of two halves."""
    taken = {node["name"] for node in matcher.nodes[-1:]}
    for node in reversed(matcher.nodes):
        taken.update(node["inputs"] if node["name"] in taken else ())
    places = [place(matcher.made_of[node["name"]]) for node in matcher.nodes if node["name"] not in taken]
    instead = "leave out what nothing takes, and make a layer as wide as what is used of it"
    return [f"{place}: the loss does not depend on all that it computes; {instead}" for place in places]


def unpadded(matcher: Matcher, model: Any) -> Optional[int]:
    """The id that may not occur in texts where no attention hides padding: that of the embedding, or of the model's configuration."""
    rows = [node["attributes"]["ignore"] for node in matcher.nodes if node["operator"] == "padded_embedding"]
    known = getattr(getattr(model, "config", None), "pad_token_id", None)
    found = rows[0] if rows else known if isinstance(known, int) else None
    return found if matcher.padding is None else None
