"""Runs: what their files hold, as Python objects and NumPy arrays."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from . import _native
from ._call import StrPath, count, native, path
from ._errors import MalformedError, UsageError

RECORDS_AT_ONCE = 1 << 16
LINE_MAX = 1 << 16


@dataclass(frozen=True)
class Record:
    """A record of a run: what its trainer promised about a step. Digests are 64 hexadecimal digits.

    kind: "initial", "step" or "final". What only a step has is None in the others, and so is what the job does not commit.
    """

    kind: str
    step: int
    computation: str
    state: str
    batch: Optional[str] = None
    gradients: Optional[str] = None
    trace: Optional[str] = None
    log: Optional[str] = None
    learning_rate: Optional[float] = None
    clip: Optional[float] = None
    loss: Optional[float] = None
    cursor: Optional[int] = None


class Run:
    """A run in a folder. Each property reads the files anew, so a run that is still trained shows its last records.

    Reading executes nothing that a run holds. A damaged run raises MalformedError.
    """

    def __init__(self, folder: StrPath) -> None:
        self.path = path("the folder of a run", folder)
        self._read()

    def _read(self) -> tuple:
        with native():
            return _native.read(self.path)

    @property
    def id(self) -> str:
        """The run's id, by which verdicts and reports name it."""
        return self._read()[0]

    @property
    def steps(self) -> int:
        """The steps of the run's job; those that are done are in `records`."""
        return self._read()[1]

    @property
    def job(self) -> str:
        """The text of the run's job."""
        return self._read()[2]

    @property
    def checkpoints(self) -> List[int]:
        """The steps after which the run holds a whole state, with the optimizer's slots; 0 is the initial one."""
        return self._read()[3]

    @property
    def trainer_key(self) -> Optional[str]:
        """The public key that the run names, if it names one. Anybody can write any key: `verify` checks signatures."""
        return self._read()[4]

    @property
    def records(self) -> List[Record]:
        """All records: the initial one, one for each step that is done, and the final one."""
        records: List[Record] = []
        while True:
            with native():
                some = _native.records(self.path, len(records), RECORDS_AT_ONCE)
            for kind, step, computation, state, digests, numbers in some:
                records.append(Record(kind, step, computation, state, *digests, *(numbers or ())))
            if len(some) < RECORDS_AT_ONCE:
                return records

    @property
    def losses(self) -> np.ndarray:
        """The loss of each step that is done, as binary32: the committed bits."""
        with native():
            return np.frombuffer(_native.losses(self.path), dtype=np.float32)

    @property
    def metrics(self) -> List[Dict[str, Any]]:
        """The lines of metrics.jsonl, a dict for each: `pandas.DataFrame(run.metrics)`. No record commits them.

        Lines of steps have loss, learning_rate, norm, clip and times, those of evaluations have evaluation_loss and the like.
        """
        file = os.path.join(self.path, "metrics.jsonl")
        found: List[Dict[str, Any]] = []
        try:
            with open(file, "rb") as lines:
                while line := lines.readline(LINE_MAX):
                    if not line.endswith(b"\n") and len(line) < LINE_MAX:
                        break  # the trainer is writing it
                    found.append(_metrics(file, len(found) + 1, line))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise MalformedError(f"{file}: {error}", "metrics are a plain file beside the run's records") from None
        return found

    def state_dict(self, step: Optional[int] = None, *, names: str = "released") -> Dict[str, np.ndarray]:
        """The model after a step, by default the last one that the run holds, as NumPy arrays by name.

        names: "released" gives names and shapes of transformers, torchvision or torch.nn.Sequential, as `tiebreak export` does.
            "program" gives the program's own names.

        Digests are compared with the step's record first. Arrays are views of the file, so nothing is copied where the layouts agree; a
        change of an array does not change the file. While the arrays are in use nobody may write the file: copy them first if somebody
        else can. For PyTorch:

        >>> model.load_state_dict({name: torch.from_numpy(a) for name, a in run.state_dict().items()})
        """
        return self._state(step, names)[1]

    def _state(self, step: Optional[int], names: str) -> Tuple[int, Dict[str, np.ndarray]]:
        """The step of `state_dict`, and its arrays."""
        if names not in ("released", "program"):
            raise UsageError(f"names is {names!r:.60}", 'give names as "released" or "program"')
        if step is not None and count("step", step) >= 2**32:
            raise UsageError(f"step is {step}", "`Run.checkpoints` lists the steps whose state the run holds")
        with native():
            step, tensors = _native.tensors(self.path, step, names == "program")
        files: Dict[str, np.ndarray] = {}
        return step, {name: _array(shape, pieces, step, files) for name, shape, pieces in tensors}

    def __repr__(self) -> str:
        return f"tiebreak.Run({self.path!r})"


def _metrics(file: str, number: int, line: bytes) -> Dict[str, Any]:
    try:
        found = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found["step"], int):
            raise ValueError("no object with a step")
        named = found.pop("not_finite", {})
        found.update({key: float(value) for key, value in named.items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise MalformedError(f"{file}: line {number} is no JSON with a step", "metrics are for people: delete the file") from None
    return found


def _elements(piece: tuple, files: Dict[str, np.ndarray]) -> np.ndarray:
    """The elements of a piece in its own dimensions, from a file or from bytes."""
    dims, _, _, place, data = piece
    length = int(np.prod(dims, dtype=np.int64))
    if place is None:
        return np.frombuffer(bytearray(data), dtype="<f4", count=length).reshape(dims)
    file, byte = place
    file = os.fspath(file)
    if file not in files:
        try:
            files[file] = np.memmap(file, dtype=np.uint8, mode="c")
        except (OSError, ValueError) as error:
            raise MalformedError(f"{file}: {error}", "the file changed while it was read: read the state again") from None
    mapped = files[file][byte : byte + 4 * length]
    if mapped.size != 4 * length:
        raise MalformedError(f"{file} was cut while it was read", "read the state again")
    return np.frombuffer(mapped, dtype="<f4").reshape(dims)


def _array(shape: List[int], pieces: List[tuple], step: int, files: Dict[str, np.ndarray]) -> np.ndarray:
    """A tensor from its pieces: a view if there is one piece, whose axes may stand in another order."""
    if not pieces:
        return np.array(step, dtype=np.int64).reshape(shape)  # PyTorch's counter of batches
    if len(pieces) == 1:
        order = sorted(range(4), key=lambda axis: -pieces[0][1][axis])
        return _elements(pieces[0], files).transpose(order).reshape(shape)
    whole = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=np.float32)
    for piece in pieces:
        dims, strides, first = piece[:3]
        place = np.lib.stride_tricks.as_strided(whole[first:], dims, [4 * stride for stride in strides])
        place[...] = _elements(piece, files)
    return whole.reshape(shape)
