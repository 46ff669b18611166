"""Batches of a loop of one's own, as the bytes that data files hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ._errors import UsageError
from ._items import as_array
from ._padding import Padding, wrong_row

TYPES = {"f32": "<f4", "u8": "|u1", "u16": "<u2", "u32": "<u4"}
HELP = "give labels and token ids below the program's number of classes"
PAIR = "give a batch as (inputs, labels)"
LABELS = "give labels as integers from 0 on, one for each sample"
TEXT = "give token ids [samples, positions] and labels of the same shape, which are the next ids; or ids [samples, positions + 1] alone"

Part = Tuple[str, List[int]]
"""The type of a number, and the dimensions of a batch."""


class BatchError(UsageError):
    """A batch is not what its recording takes. Nothing of it is kept, and the recording takes another one in its place."""


def parts_of(batch: Any, parts: Sequence[Part], step: int, padding: Optional[Padding] = None) -> List[bytes]:
    """The bytes of a batch for each data file of a recording. `padding` is that of a captured model with texts of one label."""
    try:
        return _text(batch, parts[0]) if len(parts) == 1 else _pair(batch, parts, padding)
    except UsageError as error:
        raise BatchError(f"the batch of step {step}: {error.message}", error.help) from None


def _pair(batch: Any, parts: Sequence[Part], padding: Optional[Padding]) -> List[bytes]:
    inputs, labels = _two(batch, PAIR)
    (dtype, shape), (_, count) = parts
    beside: Dict[str, Any] = {}
    if padding is not None and isinstance(inputs, Mapping) and "input_ids" in inputs:
        beside = dict(inputs)
        inputs = beside.pop("input_ids")
    array = _shaped("the inputs", _plain("the inputs", inputs), shape)
    if dtype == "f32":
        if (array.dtype.kind, array.dtype.itemsize) != ("f", 4):
            help = "give float32 inputs: tensor.float(), or array.astype(np.float32)"
            raise UsageError(f"the inputs are {array.dtype}, and the recording takes float32", help)
        if not np.isfinite(array).all():
            place = [int(index) for index in np.argwhere(~np.isfinite(array))[0]]
            raise UsageError(f"the inputs hold {array[tuple(place)]} at {place}", "leave such samples out, or fill the numbers in")
    else:
        array = _integers("the inputs", array, dtype)
        if padding is not None:
            _check_beside(array, beside, padding)
    return [_bytes(array, dtype), _bytes(_integers("the labels", _shaped("the labels", _plain("the labels", labels), count), "u32"), "u32")]


def _check_beside(ids: np.ndarray, beside: Dict[str, Any], padding: Padding) -> None:
    """Raises if padding is not what the program hides, or if what a tokenizer gives beside token ids is not what follows from them."""
    if (found := wrong_row(ids, padding)) is not None:
        row, why, instead = found
        raise UsageError(f"text {row} {why}", instead)
    due = {
        "attention_mask": np.ones_like(ids) if padding.hidden is None else ids != padding.hidden,
        "token_type_ids": np.zeros_like(ids),
    }
    for name, value in beside.items():
        if name not in due:
            raise UsageError(f"the inputs have {name!r:.60}", f"give input_ids alone, or with {' and '.join(due)}")
        array = _integers(name, _shaped(name, _plain(name, value), list(ids.shape)), "u32")
        if not np.array_equal(array, due[name]):
            place = [int(index) for index in np.argwhere(array != due[name])[0]]
            why = f"{name} is {array[tuple(place)]} at {place}, where the token id is {ids[tuple(place)]}"
            hides = "hides no position" if padding.hidden is None else f"hides the token id {padding.hidden} and no other"
            raise UsageError(why, f"the program {hides}, and its texts have one segment: give what the tokenizer gives for such texts, or input_ids alone")


def _text(batch: Any, part: Part) -> List[bytes]:
    dtype, (samples, tokens) = part
    if isinstance(batch, (tuple, list)) or isinstance(batch, Mapping):
        inputs, labels = _two(batch, TEXT)
        shape = [samples, tokens - 1]
        ids = _integers("the token ids", _shaped("the token ids", _plain("the token ids", inputs), shape), dtype)
        after = _integers("the labels", _shaped("the labels", _plain("the labels", labels), shape), dtype)
        if not np.array_equal(ids[:, 1:], after[:, :-1]):
            raise UsageError("the labels are not the next token ids", f"{TEXT}; other labels have no place in a data file of tokens")
        array = np.concatenate([ids, after[:, -1:]], axis=1)
    else:
        array = _integers("the token ids", _shaped("the token ids", _plain("the token ids", batch), [samples, tokens]), dtype)
    return [_bytes(array, dtype)]


def _two(batch: Any, instead: str) -> Tuple[Any, Any]:
    if isinstance(batch, Mapping):
        raise UsageError(f"it is a {type(batch).__name__}", f'{instead}, such as (batch["input_ids"], batch["labels"])')
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        what = f" of {len(batch)} parts" if isinstance(batch, (tuple, list)) else ""
        raise UsageError(f"it is a {type(batch).__name__}{what}", instead)
    return batch[0], batch[1]


def _plain(name: str, value: Any) -> np.ndarray:
    """A value as an array of numbers in this machine's memory."""
    if isinstance(value, Mapping):
        raise UsageError(f"{name} are a {type(value).__name__}", 'give one tensor, such as inputs["input_ids"]')
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{name} are a masked array", "fill the mask first, as array.filled(0) does")
    try:
        array, narrow = as_array(value)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        why = f"{name}, a {type(value).__name__}, hold no plain numbers: {str(error)[:200]}"
        raise UsageError(why, "give one dense tensor or array that has its numbers, such as tensor.to_dense()") from None
    if narrow is not None or array.dtype.kind not in "fiu":
        what = narrow or array.dtype
        raise UsageError(f"{name} are {what}", "give float32 inputs, or integers; tensor.float() and tensor.long() convert")
    return array


def _shaped(name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    if list(array.shape) == list(shape):
        return array
    found, wanted = list(array.shape), list(shape)
    if found[1:] == wanted[1:] and len(found) == len(wanted):
        help = f"give batches of {wanted[0]} samples: a DataLoader with batch_size={wanted[0]} and drop_last=True does"
        raise UsageError(f"{name} have {found[0]} samples, and a step takes {wanted[0]}", help)
    raise UsageError(f"{name} have the shape {found}, and a step takes {wanted}", "reshape the batches, or capture with an example of their shape")


def _integers(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    most = int(np.iinfo(np.dtype(TYPES[dtype])).max)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name} are {array.dtype}, and integers are wanted", LABELS if name == "the labels" else "give integers: tensor.long()")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > most:
        bad = low if low < 0 else high
        help = f"give integers from 0 to {most}; labels that a loss ignores, such as -100, have no place in a data file"
        raise UsageError(f"{name} hold {bad}", help)
    return array


def _bytes(array: np.ndarray, dtype: str) -> bytes:
    return array.astype(TYPES[dtype], order="C", copy=False).tobytes()
