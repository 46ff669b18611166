"""Items of a dataset: pairs of an input and a label, or sequences of token ids, as the bytes of data files."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np

from ._errors import UsageError

DIMENSIONS_MAX = 3  # of an item; a file has one more
NUMBER_MAX = 2**32 - 1
ELEMENTS = {("f", 4): "f32", ("f", 2): "f16", ("u", 1): "u8", ("u", 4): "u32"}
SIZES = {"u8": 1, "f16": 2, "bf16": 2, "f32": 4, "u32": 4}
NUMBERS = "give float32, float16 or bfloat16 numbers, uint8 pixels, or token ids of one dimension, such as array.astype(np.float32)"
TEXT = "a language model's item is one sequence of token ids alone, whose labels are the next ids"
LABEL = "give the number of a class: an integer from 0 on"
SEQUENCE = "give token ids as a list or an array of one dimension"
PAIR = "give (input, label), such as (array, 3), or the token ids of a text as one list or array"


class Plan(NamedTuple):
    """What all items of a dataset share: the kind of data, and the type and the shape of an input."""

    kind: str
    dtype: str
    shape: Tuple[int, ...]

    def __str__(self) -> str:
        return "token ids" if self.kind == "tokens" else f"a pair whose input is {self.dtype} {list(self.shape)}"

    @property
    def item_bytes(self) -> int:
        """Bytes of an input."""
        size = SIZES[self.dtype]
        for dimension in self.shape:
            size *= dimension
        return size


class Encoded(NamedTuple):
    """An item as bytes for each file of its dataset; `number` is its label, or its greatest token id."""

    plan: Plan
    parts: Tuple[bytes, ...]
    number: int
    finite: bool


def wrong(place: int, why: str, instead: str) -> UsageError:
    return UsageError(f"item {place}: {why}", instead)


def encoded(item: Any, place: int) -> Encoded:
    """The bytes of an item, whose place in the dataset errors name."""
    if isinstance(item, (tuple, list)) and len(item) == 2 and (_is_array(item[0]) or isinstance(item[0], float)):
        return _pair(item, place)
    if _is_array(item) or (isinstance(item, (tuple, list)) and all(_is_integer(part) for part in item)):
        return _tokens(item, place)
    if isinstance(item, (tuple, list)):
        why = f"it is a {type(item).__name__} of {len(item)} parts"
        if len(item) == 2:
            why += f", whose input is a {type(item[0]).__name__}, and an array is wanted"
        raise wrong(place, why, f"{PAIR}; np.asarray makes an array of lists and pictures")
    raise wrong(place, f"it is a {type(item).__name__}", f"{PAIR}: wrap the dataset in a class whose __getitem__ does")


def _is_array(value: Any) -> bool:
    return (isinstance(value, (np.ndarray, np.generic)) and not _is_integer(value)) or _is_tensor(value)


def _is_integer(value: Any) -> bool:
    """True for one integer that is no byte of a picture."""
    if isinstance(value, np.integer):
        return value.dtype != np.uint8
    return isinstance(value, int)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _array(value: Any, place: int) -> Tuple[np.ndarray, Optional[str]]:
    """A value as an array of this machine's memory. The second result is "bf16" if the array has the bits of bfloat16."""
    if isinstance(value, np.ma.MaskedArray):
        raise wrong(place, "it holds a masked array", "fill the mask first, as array.filled(0) does")
    if not _is_tensor(value):
        return np.asarray(value), None
    try:
        return as_array(value)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        why = f"a tensor ({value.dtype}, {value.layout}, on {value.device}) has no plain numbers: {str(error)[:200]}"
        raise wrong(place, why, "give a dense tensor that has its numbers, such as tensor.to_dense()") from None


def as_array(value: Any) -> Tuple[np.ndarray, Optional[str]]:
    """`_array` with PyTorch's and NumPy's own exceptions."""
    if not _is_tensor(value):
        return np.asarray(value), None
    import torch

    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(np.uint16), "bf16"
    return tensor.resolve_conj().resolve_neg().numpy(), None


def _pair(item: Any, place: int) -> Encoded:
    value, label = item
    if type(value) is float:
        # A float of Python has no width of its own.
        with np.errstate(over="ignore"):
            narrow = np.float32(value)
        if math.isfinite(value) and not np.isfinite(narrow):
            raise wrong(place, f"the input is {value}, which float32 does not reach", "scale the inputs")
        value = narrow
    array, dtype = _array(value, place)
    if dtype is None and array.dtype.kind in "iu" and array.dtype.itemsize > 1 and array.ndim == 1:
        array = _ids(array, label, place)
    dtype = dtype or ELEMENTS.get((array.dtype.kind, array.dtype.itemsize))
    if dtype is None or (dtype == "u32" and array.ndim != 1):
        raise wrong(place, f"the input is {array.dtype} {list(array.shape)}", NUMBERS)
    if array.ndim > DIMENSIONS_MAX:
        why = f"the input has {array.ndim} dimensions {list(array.shape)}, and at most {DIMENSIONS_MAX} are there"
        raise wrong(place, why, "give one sample, not a batch, or flatten it, as array.reshape(-1) does")
    if array.size == 0:
        raise wrong(place, f"the input has the shape {list(array.shape)}, which holds no number", "give inputs of one element or more")
    number = _label(label, place)
    if dtype == "bf16":
        finite = bool(((array & 0x7F80) != 0x7F80).all())
    else:
        finite = dtype in ("u8", "u32") or bool(np.isfinite(array).all())
    written = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False).tobytes()
    return Encoded(Plan("arrays", dtype, tuple(array.shape)), (written, number.to_bytes(4, "little")), number, finite)


def _ids(array: np.ndarray, label: Any, place: int) -> np.ndarray:
    """The token ids of a text that has one label, 32 bits wide."""
    if getattr(label, "shape", ()) != ():
        raise wrong(place, f"it has token ids, and a label of the shape {list(label.shape)}", f"{LABEL}; {TEXT}")
    odd = next((int(number) for number in (array.min(initial=0), array.max(initial=0)) if not 0 <= number <= NUMBER_MAX), None)
    if odd is not None:
        raise wrong(place, f"a token id is {odd}", "give ids from 0 on, below the model's vocabulary")
    return array.astype(np.uint32)


def _label(value: Any, place: int) -> int:
    """A label as the integer that it is."""
    if isinstance(value, (np.ndarray, np.generic)) or _is_tensor(value):
        array, dtype = _array(value, place)
        if array.shape != ():
            instead = f"{LABEL}, such as int(label[0]) of one element or int(label.argmax()) of a one-hot row"
            raise wrong(place, f"the label has the shape {list(array.shape)}, and one number is wanted", instead)
        if dtype or array.dtype.kind not in "iu":
            raise wrong(place, f"the label is a {dtype or array.dtype}", f"{LABEL}, such as int(label)")
        value = array.item()
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise wrong(place, f"the label is a {type(value).__name__}", LABEL)
    if number < 0:
        raise wrong(place, f"the label is {number}", f"{LABEL}, and leave out items without a class")
    if number > NUMBER_MAX:
        raise wrong(place, f"the label has {number.bit_length()} bits, and 32 are there", LABEL)
    return number


def _tokens(item: Any, place: int) -> Encoded:
    if isinstance(item, (tuple, list)):
        if any(isinstance(part, (bool, np.bool_)) for part in item):
            raise wrong(place, "a token id is True or False", SEQUENCE)
        # NumPy's integers have a width, which a comparison must not see.
        item = [int(part) for part in item]
        least, greatest = (min(item), max(item)) if item else (0, 0)
        array = np.array(item, dtype=np.uint32) if 0 <= least and greatest <= NUMBER_MAX else None
        size, shape = len(item), [len(item)]
    else:
        array, dtype = _array(item, place)
        size, shape = array.size, list(array.shape)
        if dtype or array.dtype.kind not in "iu" or array.ndim != 1:
            raise wrong(place, f"it is {dtype or array.dtype} {shape} alone, without a label", PAIR)
        least, greatest = (int(array.min()), int(array.max())) if size else (0, 0)
    if size == 0:
        raise wrong(place, "it has no token ids", "leave out empty texts")
    if least < 0 or greatest > NUMBER_MAX or array is None:
        odd = least if least < 0 else greatest
        shown = str(odd) if odd.bit_length() <= 64 else f"a number of {odd.bit_length()} bits"
        raise wrong(place, f"a token id is {shown}", "give ids from 0 on, below the model's vocabulary")
    return Encoded(Plan("tokens", "u32", ()), (array.astype("<u4").tobytes(),), int(greatest), True)


def file_names(plan: Plan) -> List[str]:
    """The files of a dataset, in the order of an item's parts. NumPy's format has no bfloat16."""
    if plan.kind == "tokens":
        return ["tokens.npy"]
    return ["inputs.safetensors" if plan.dtype == "bf16" else "inputs.npy", "labels.npy"]
