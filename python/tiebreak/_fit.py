"""Whether data files fit the inputs of a captured model, as far as their headers say."""

from __future__ import annotations

import json
import math
import os
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ._errors import MalformedError, UsageError
from ._items import ELEMENTS

HEADER_MAX = 1 << 20
TYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32", "U8": "u8", "U16": "u16", "U32": "u32"}
KINDS = "docs/DATA.md says which files feed which model"
DATA = "give the path of a data file, a list of paths in the order of the job's, or the table that tiebreak.dataset returns"
# The name of `tiebreak.dataset`.
TENSOR = "inputs"
TABLES = {"arrays": ("inputs", "labels"), "tokens": ("path",)}


def files_of(what: str, data: Mapping[str, Any]) -> List[Any]:
    """The files of a table that `tiebreak.dataset` returned, in the order in which a job names them; errors call the table `what`."""
    kind = data.get("kind")
    keys = TABLES.get(kind) if isinstance(kind, str) else None
    if keys is None or set(data) - {"kind", "dtype", "inputs_tensor", *keys}:
        raise UsageError(f"{what} is a table of {sorted(map(str, data))!r:.100}", DATA)
    # The header of such a file says its type, which the command compares with the job's.
    if not all(str(data.get(key)).endswith((".npy", ".safetensors")) for key in keys):
        raise UsageError(f"{what} is a table of files without a header", "give the paths alone: the job says how its data are read")
    # The job names the tensor, and the command takes no other name.
    if data.get("inputs_tensor", TENSOR) != TENSOR:
        raise UsageError(f"inputs_tensor is {data['inputs_tensor']!r:.60}", "give the paths alone: the job says the tensor's name in the file")
    return [data[key] for key in keys]


def check_data(data: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Raises if a job's `[data]` cannot feed a program's inputs, the network file's `inputs`. `train` checks the numbers in the files.

    Files that are not there are left to `train`, which may have another folder for them.
    """
    kind, tokens = data.get("kind"), inputs["name"] == "tokens"
    ids = inputs["name"] == "ids"
    if ids and (kind != "arrays" or data.get("dtype") not in ("u8", "u16", "u32")):
        what = f"{kind} of {data.get('dtype')!r:.40}" if kind == "arrays" else str(kind)
        help = f"give arrays of integers, as tiebreak.dataset writes pairs of token ids and a label; {KINDS}"
        raise UsageError(f"the data are {what:.60}, and the example batch has token ids with one label for each text", help)
    if tokens and kind in ("arrays", "idx", "cifar10", "cifar100"):
        raise UsageError(f"the data are {kind}, and the example batch has token ids", f"give data of kind tokens or bytes; {KINDS}")
    if not tokens and kind in ("tokens", "bytes"):
        raise UsageError(f"the data are {kind}, and the example batch has float32 inputs", f"give data of kind arrays; {KINDS}")
    if not tokens and not ids and (kind in ("idx", "cifar10", "cifar100") or data.get("dtype") == "u8"):
        what = "uint8 pixels" if kind == "arrays" else f"pixels ({kind})"
        help = "give items of float32, such as image.float() / 255, and write them by tiebreak.dataset"
        raise UsageError(f"the data are {what}, and the example batch has float32 inputs", help)
    if kind != "arrays" or tokens:
        return
    found = _header(data.get("inputs"), data.get("inputs_tensor"))
    if found is None:
        return
    dtype, shape = found
    if dtype != data.get("dtype"):
        raise UsageError(f"{data['inputs']} holds {dtype}, and the data's dtype is {data.get('dtype')!r:.40}", f'give "dtype": "{dtype}"')
    wanted = list(inputs["shape"][1:])
    if not _fits(wanted, shape[1:]):
        why = f"a sample of {data['inputs']} has the shape {shape[1:]}, and one of the example batch {wanted}"
        raise UsageError(why, "capture with an example batch of the data's shape, or reshape the items")


def _fits(wanted: List[int], found: List[int]) -> bool:
    """Rule 6 of docs/DATA.md: equal but for ones in front, or a row of as many numbers."""
    if len(wanted) == 1:
        return math.prod(found) == wanted[0]
    return _without_ones(wanted) == _without_ones(found)


def _without_ones(shape: Sequence[int]) -> List[int]:
    first = next((place for place, size in enumerate(shape) if size != 1), len(shape))
    return list(shape[first:])


def _header(file: Any, tensor: Any) -> Optional[Tuple[str, List[int]]]:
    """The type and the shape that a file's header says; None if the file is not there, or has no header or a long one."""
    if not isinstance(file, (str, os.PathLike)) or not os.path.isfile(file):
        return None
    name = os.fspath(file)
    try:
        if name.endswith(".npy"):
            with open(name, "rb") as opened:
                return _npy(opened)
        if name.endswith(".safetensors") and isinstance(tensor, str):
            with open(name, "rb") as opened:
                return _safetensors(opened, tensor)
    except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise MalformedError(f"{name} has no header that can be read: {error}", "write the file anew") from None
    return None


def _npy(opened: Any) -> Tuple[str, List[int]]:
    version = np.lib.format.read_magic(opened)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(opened)
    known = {**ELEMENTS, ("u", 2): "u16"}
    return known.get((dtype.kind, dtype.itemsize), str(dtype)), list(shape)


def _safetensors(opened: Any, tensor: str) -> Optional[Tuple[str, List[int]]]:
    (length,) = struct.unpack("<Q", opened.read(8))
    if length > HEADER_MAX:
        return None
    found = json.loads(opened.read(length))
    if tensor not in found:
        raise ValueError(f"it has no tensor {tensor}")
    entry: Dict[str, Any] = found[tensor]
    return TYPES.get(entry["dtype"], str(entry["dtype"])), [int(size) for size in entry["shape"]]
