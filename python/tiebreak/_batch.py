"""The example batch of a capture: its inputs and labels, and inputs beside these that have to be constants."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ._errors import UsageError

GIVE = "give two tensors, as a DataLoader gives them"
# Inputs of transformers' models beside token ids: the number that each element is, and what to do about another one. A mask may also be 0.
CONSTANTS = {
    "attention_mask": (1, "give 0 at each position of padding, which is one token id, and 1 elsewhere"),
    "token_type_ids": (0, "a program has one input, and no second kind of token: give texts of one segment"),
}
MAIN = ("input_ids", "pixel_values")


class Batch(NamedTuple):
    """Inputs and labels. `name` is that of the inputs among the model's arguments, if they were given by name. `padding` is the token id whose
    positions the attention_mask hides. `is_full` says that there is a mask, which hides nothing."""

    inputs: Any
    labels: Any
    name: Optional[str]
    constants: Dict[str, Any]
    refused: List[str]
    padding: Optional[int]

    @property
    def is_full(self) -> bool:
        return "attention_mask" in self.constants and self.padding is None


def batch_of(torch: Any, example_batch: Any) -> Batch:
    """The example batch, checked. Constants with other numbers than a program has are `refused`."""
    if not isinstance(example_batch, (tuple, list)) or len(example_batch) != 2:
        raise UsageError("example_batch is not (inputs, labels)", GIVE)
    inputs, labels = example_batch
    name, constants, refused, padding = None, {}, [], None
    if isinstance(inputs, Mapping):
        name, inputs, constants, refused, padding = _by_name(torch, dict(inputs))
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() > 0 and tensor.numel() > 0 for tensor in (inputs, labels)):
        raise UsageError("example_batch is not (inputs, labels)", GIVE)
    if inputs.dtype not in (torch.float32, torch.int64, torch.int32) or labels.dtype != torch.int64:
        raise UsageError(
            f"the example batch holds {inputs.dtype} and {labels.dtype}",
            "give float32 inputs, or int64 token ids; and int64 labels",
        )
    if inputs.dtype != torch.float32 and inputs.dim() != 2:
        raise UsageError(f"token ids have the shape {list(inputs.shape)}", "give token ids as [samples, positions]")
    if inputs.shape[0] != labels.shape[0]:
        raise UsageError(f"inputs have {inputs.shape[0]} samples, labels {labels.shape[0]}", "give as many of each")
    return Batch(inputs, labels, name, constants, refused, padding)


def _by_name(torch: Any, given: Dict[str, Any]) -> Any:
    """Inputs by their names: the one of the program, the constants, and which of these have other numbers."""
    names = [name for name in MAIN if name in given] or [name for name in given if name not in CONSTANTS]
    if len(names) != 1:
        raise UsageError(f"the inputs are {sorted(map(str, given))!r:.100}", f"give one of {' and '.join(MAIN)}, and the labels behind the inputs")
    (name,), refused, padding = names, [], None
    inputs = given.pop(name)
    for other, tensor in given.items():
        if other not in CONSTANTS:
            refused.append(f"the inputs have {other!r:.60}: a program has one input, beside {' and '.join(CONSTANTS)} that are constants")
            continue
        number, instead = CONSTANTS[other]
        if not isinstance(tensor, torch.Tensor) or not isinstance(inputs, torch.Tensor) or tensor.shape != inputs.shape:
            raise UsageError(f"{other} has not the shape of {name}", f"give {other} as the tokenizer does, or leave it out")
        if bool((tensor == number).all()):
            continue
        if other == "attention_mask" and not inputs.is_floating_point():
            padding, why = padding_of(inputs, tensor)
            refused += [] if why is None else [f"attention_mask of the example batch {why}: {instead}"]
            continue
        refused.append(f"{other} of the example batch is not {number} everywhere: {instead}")
    return name, inputs, given, refused, padding


def padding_of(ids: Any, mask: Any) -> Tuple[Optional[int], Optional[str]]:
    """The token id that a mask of 0 and 1 hides, or why it hides no such id."""
    hidden = mask == 0
    if not bool((hidden | (mask == 1)).all()):
        return None, "holds other numbers than 0 and 1"
    found = ids[hidden].unique().tolist()
    if len(found) > 1:
        return None, f"hides several token ids, {found[:5]!r:.60}"
    if bool((ids[~hidden] == found[0]).any()):
        return None, f"hides the token id {found[0]} at some positions and not at others"
    return found[0], None
