"""Whether the token ids of data agree with what a captured model hides as padding."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from ._errors import MalformedError, UsageError
from ._fit import HEADER_MAX

ROWS_BYTES = 2**24
INTEGERS = {"U8": "|u1", "U16": "<u2", "U32": "<u4"}
EXAMPLE = "capture with an example batch whose attention_mask is 0 at padding, or without an attention_mask"
ALONE = "leave out empty texts: no position of one could attend to anything"


class Padding(NamedTuple):
    """`hidden` is the id whose positions the program hides. `absent` is that of padding where the example's mask hid nothing."""

    hidden: Optional[int]
    absent: Optional[int]


def check_padding(data: Mapping[str, Any], inputs: Mapping[str, Any], padding: Padding) -> None:
    """Raises if a text of a job's data file is padding alone, or has padding that the program does not hide. `check_data` has seen the header."""
    file, tensor = data.get("inputs"), data.get("inputs_tensor")
    if inputs["name"] != "ids" or padding == Padding(None, None) or not isinstance(file, (str, os.PathLike)) or not os.path.isfile(file):
        return
    for first, ids in _rows(os.fspath(file), tensor):
        if (found := wrong_row(ids, padding)) is not None:
            row, why, instead = found
            raise UsageError(f"sample {first + row} of {file} {why}", instead)


def wrong_row(ids: np.ndarray, padding: Padding) -> Optional[Tuple[int, str, str]]:
    """The first row of token ids that does not agree with the program, why, and what to do."""
    if padding.hidden is not None and (alone := (ids == padding.hidden).all(axis=1)).any():
        return int(alone.argmax()), f"is padding alone, the token id {padding.hidden}", ALONE
    if padding.absent is not None and (padded := (ids == padding.absent).any(axis=1)).any():
        why = f"has the token id of padding, {padding.absent}, and the program hides none: the example's attention_mask was 1 everywhere"
        return int(padded.argmax()), why, EXAMPLE
    return None


def _rows(file: str, tensor: Any) -> Iterator[Tuple[int, np.ndarray]]:
    """The rows of a file of integers, some at a time, each with the number of its first."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False) if file.endswith(".npy") else _safetensors(file, tensor)
    except (OSError, ValueError, EOFError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise MalformedError(f"{file} cannot be read: {error}", "write the file anew") from None
    if array.ndim == 0 or array.size == 0:
        return
    array = array.reshape(array.shape[0], -1)
    each = max(1, ROWS_BYTES // (array.itemsize * array.shape[1]))
    for first in range(0, array.shape[0], each):
        yield first, np.asarray(array[first : first + each])


def _safetensors(file: str, tensor: Any) -> np.ndarray:
    with open(file, "rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > HEADER_MAX:
            raise ValueError(f"its header has {length} bytes, and at most {HEADER_MAX} are read")
        entry = json.loads(opened.read(length))[tensor]
    place = 8 + length + int(entry["data_offsets"][0])
    return np.memmap(file, INTEGERS[entry["dtype"]], "r", place, tuple(entry["shape"]))
