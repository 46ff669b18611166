"""The folder of a dataset: files that grow item by item, and the journal by which an interrupted call goes on."""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import sys
import time
from contextlib import contextmanager
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ._errors import MalformedError, UndecidedError, UsageError
from ._items import DIMENSIONS_MAX, ELEMENTS, NUMBER_MAX, Encoded, Plan, file_names

FORMAT = "tiebreak dataset 1"
MANIFEST, JOURNAL, NEW, LOCK = "dataset.json", "dataset.json.part", "dataset.json.new", "dataset.lock"
PART = ".part"
OWN = {JOURNAL, NEW, LOCK, *(f"{name}{PART}" for name in ("inputs.npy", "inputs.safetensors", "labels.npy", "tokens.npy"))}
HEADER = 128
JOURNAL_MAX = 1 << 16
FILE_MAX = COUNT_MAX = 1 << 40
BLOCK = 1 << 20
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
SAVE_SECONDS, SAVE_BYTES = 1.0, 1 << 26
ANOTHER = "name another folder, or delete this one to write it anew"


class State(NamedTuple):
    """How much of a dataset is written. `lengths` are bytes of elements in each file."""

    plan: Plan
    count: int
    done: int
    lengths: Tuple[int, ...]
    greatest: int
    not_finite: int
    first_not_finite: int

    def text(self) -> str:
        """The journal of an unfinished dataset, and the manifest of a whole one."""
        files = {name: {"dtype": dtype, "shape": shape} for name, dtype, shape in _arrays(self)}
        told = {"format": FORMAT, "kind": self.plan.kind, "dtype": self.plan.dtype, "shape": list(self.plan.shape), "count": self.count}
        progress = {"done": self.done, "lengths": list(self.lengths), "greatest": self.greatest}
        return json.dumps({**told, **progress, "not_finite": [self.not_finite, self.first_not_finite], "files": files}, indent=1) + "\n"

    def after(self, item: Encoded) -> "State":
        """The state with one item more."""
        lengths = tuple(length + len(part) for length, part in zip(self.lengths, item.parts))
        bad = not item.finite
        first = self.done if bad and not self.not_finite else self.first_not_finite
        return State(self.plan, self.count, self.done + 1, lengths, max(self.greatest, item.number), self.not_finite + bad, first)


def _arrays(state: State) -> List[Tuple[str, str, List[int]]]:
    """Name, type and shape of each file."""
    names = file_names(state.plan)
    if state.plan.kind == "tokens":
        return [(names[0], "u32", [state.lengths[0] // 4])]
    return [(names[0], state.plan.dtype, [state.count, *state.plan.shape]), (names[1], "u32", [state.count])]


def _header(dtype: str, shape: List[int], length: int) -> bytes:
    """The bytes before an array: a header of NumPy's format 1.0, or of safetensors."""
    if dtype == "bf16":
        entry = {"inputs": {"dtype": "BF16", "shape": shape, "data_offsets": [0, length]}}
        text = json.dumps(entry, separators=(",", ":")).encode()
        return struct.pack("<Q", HEADER - 8) + text.ljust(HEADER - 8)
    kind = {"u8": "|u1", "f16": "<f2", "f32": "<f4", "u32": "<u4"}[dtype]
    shown = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
    dictionary = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shown}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER - 10) + dictionary.ljust(HEADER - 11) + b"\n"


def fresh(plan: Plan, count: int) -> State:
    """The state of a dataset without items."""
    if plan.item_bytes * count > FILE_MAX - HEADER or count > COUNT_MAX:
        raise UsageError(f"{count} items of {plan.item_bytes} bytes are more than a file holds", "give fewer items: a file has 2^40 bytes at most")
    return State(plan, count, 0, (0,) * len(file_names(plan)), 0, 0, 0)


def _parsed(text: str) -> State:
    """The state that a journal says; ValueError if it is no journal of ours."""
    found = json.loads(text)
    plan = Plan(found["kind"], found["dtype"], tuple(found["shape"]))
    numbers = [found["count"], found["done"], *found["lengths"], found["greatest"], *found["not_finite"], *plan.shape]
    if any(type(number) is not int or not 0 <= number <= COUNT_MAX for number in numbers):
        raise ValueError("a number is out of bounds")
    arrays = plan.kind == "arrays" and plan.dtype in {*ELEMENTS.values(), "bf16"} and len(plan.shape) <= DIMENSIONS_MAX
    if not arrays and plan != Plan("tokens", "u32", ()):
        raise ValueError("no such kind of data")
    state = State(plan, found["count"], found["done"], tuple(found["lengths"]), found["greatest"], *found["not_finite"])
    due = (plan.item_bytes * state.done, 4 * state.done) if arrays else state.lengths[:1]
    if state.lengths != due or state.done > state.count or state.greatest > NUMBER_MAX or state.text() != text:
        raise ValueError("the numbers contradict each other")
    return state


def _read_state(file: str) -> Optional[State]:
    """The state in a file, if the file is there."""
    try:
        with open(file, encoding="ascii", newline="") as opened:
            return _parsed(opened.read(JOURNAL_MAX))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(f"{file} is no record of a dataset: {error}", ANOTHER) from None


class Column:
    """A file that grows at its end. A write that was interrupted is repeated at the same place."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self.file = file
        # One assignment changes both, so that Ctrl-C finds them in agreement.
        self.tail: Tuple[int, bytearray] = (HEADER + length, bytearray())

    def put(self, part: bytes) -> None:
        self.tail[1].extend(part)
        if len(self.tail[1]) >= BLOCK:
            self.flush()

    def flush(self) -> None:
        begin, pending = self.tail
        self.write(begin, pending)
        self.tail = (begin + len(pending), bytearray())

    def write(self, begin: int, data: bytes) -> None:
        self.file.seek(begin)
        rest = memoryview(data)
        while rest:
            rest = rest[self.file.write(rest) :]


class Store:
    """A dataset's folder. `finished` reads it, and `locked` is for the one call that writes it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.columns: List[Column] = []
        self.state: Optional[State] = None
        self.saved = (0.0, 0)

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Turns errors of the disk into the package's."""
        try:
            yield
        except OSError as error:
            why = f"{self.folder} cannot be written: {error.strerror or error}"
            at = f" at item {self.state.done}" if self.state and self.state.done else ""
            help = "make room, and give the same call again, which goes on" if error.errno in FULL else ANOTHER
            raise UndecidedError(why + at, help) from None

    def finished(self) -> Optional[State]:
        """The state of a whole dataset; None if there is none. Each file must have its length and its header."""
        with self.disk():
            state = _read_state(self.at(MANIFEST))
            if state is None:
                return None
            why = None if state.done == state.count else "it names a dataset that is not whole"
            for (name, dtype, shape), length in zip(_arrays(state), state.lengths):
                try:
                    with open(self.at(name), "rb") as file:
                        size, header = os.fstat(file.fileno()).st_size, file.read(HEADER)
                except FileNotFoundError:
                    size, header = 0, b""
                if size != HEADER + length or header != _header(dtype, shape, length):
                    why = f"{name} has {size} bytes, or another header: {HEADER + length} bytes are right"
        if why:
            raise MalformedError(f"{self.at(MANIFEST)}: {why}", ANOTHER)
        return state

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other calls out of the folder, which is made."""
        with self.disk():
            os.makedirs(self.folder, exist_ok=True)
            file = os.open(self.at(LOCK), os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            with self.disk():
                if not _lock(file):
                    raise UndecidedError(f"another call writes {self.folder}", "wait until it ends, and give the same call again")
            yield
        finally:
            for column in self.columns:
                column.file.close()
            os.close(file)

    def begin(self, plan: Plan, count: int) -> State:
        """Opens the files: where an earlier call of the same dataset stopped, or empty."""
        with self.disk():
            state = _read_state(self.at(JOURNAL))
            others = set(os.listdir(self.folder)) - OWN
        if state is None and others:
            raise UsageError(f"{self.folder} has other files: {', '.join(sorted(others)[:3])}", "name a folder that is empty or not there")
        if state is not None:
            agree(self.folder, state, plan, count)
        self.state = state = state or fresh(plan, count)
        self.saved = (time.monotonic(), sum(state.lengths))
        for name, length in zip(file_names(plan), state.lengths):
            # After the last item a file may have its own name already.
            whole = state.done == state.count and not os.path.lexists(self.at(name + PART))
            with self.disk():
                file = _opened(self.at(name if whole else name + PART))
                self.columns.append(Column(file, length))
                size = os.fstat(file.fileno()).st_size
                if state.done and size < HEADER + length:
                    raise MalformedError(f"{self.at(name)}{PART} has {size} bytes, fewer than its journal says", ANOTHER)
                file.truncate(HEADER + length)
        return state

    def put(self, item: Encoded) -> None:
        """Writes an item, and from time to time the journal."""
        assert self.state is not None
        after = self.state.after(item)
        if max(after.lengths) > FILE_MAX - HEADER:
            raise UsageError(f"item {self.state.done} makes a file longer than 2^40 bytes", "give fewer items")
        with self.disk():
            for column, part in zip(self.columns, item.parts):
                column.put(part)
            self.state = after
            now, length = self.saved
            if time.monotonic() - now > SAVE_SECONDS or sum(after.lengths) - length > SAVE_BYTES:
                self.save()

    def save(self) -> None:
        """Makes the items so far durable, then the journal that counts them."""
        state = self.state
        assert state is not None
        for column in self.columns:
            column.flush()
            os.fsync(column.file.fileno())
        with open(self.at(NEW), "w", encoding="ascii", newline="") as file:
            file.write(state.text())
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.at(NEW), self.at(JOURNAL))
        self.saved = (time.monotonic(), sum(state.lengths))

    def finish(self) -> None:
        """Writes headers, and gives the files their names; the manifest comes last."""
        with self.disk():
            assert self.state is not None
            for column, (_, dtype, shape), length in zip(self.columns, _arrays(self.state), self.state.lengths):
                column.write(0, _header(dtype, shape, length))
            self.save()
            for column, name in zip(self.columns, file_names(self.state.plan)):
                column.file.close()
                if os.path.lexists(self.at(name + PART)):
                    os.replace(self.at(name + PART), self.at(name))
            _sync_folder(self.folder)
            os.replace(self.at(JOURNAL), self.at(MANIFEST))
            _sync_folder(self.folder)
            # Whoever holds the old lock finds the manifest, so nobody writes.
            if sys.platform != "win32":
                os.unlink(self.at(LOCK))

    def same(self, state: State, item: Encoded, last: bool) -> bool:
        """True if the first or the last item that is written is this one."""
        for name, length, part in zip(file_names(state.plan), state.lengths, item.parts):
            with self.disk():
                whole = os.path.lexists(self.at(name)) and not os.path.lexists(self.at(name + PART))
                with open(self.at(name if whole else name + PART), "rb") as file:
                    file.seek(HEADER + (length - len(part) if last else 0))
                    if len(part) > length or file.read(len(part)) != part:
                        return False
        return True


def agree(folder: str, state: State, plan: Plan, count: int) -> None:
    """Raises if a folder has another dataset, by the shape of its items and their number."""
    if state.plan != plan:
        raise UsageError(f"{folder} has a dataset whose items are {state.plan}; the one given has {plan}", ANOTHER)
    if state.count != count:
        raise UsageError(f"{folder} has a dataset of {state.count} items; the one given has {count}", ANOTHER)


def _opened(file: str) -> BinaryIO:
    """A plain file for reading and writing, which is made if it is not there. A link is refused."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    number = os.open(file, flags, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, f"{file} is no plain file")
    return os.fdopen(number, "r+b", buffering=0)


def _sync_folder(folder: str) -> None:
    if sys.platform != "win32":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _lock(file: int) -> bool:
    """True if nobody else holds the lock; it ends with the file or the process."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def data_table(folder: str, plan: Plan) -> Dict[str, Any]:
    """The `[data]` table of a job on these files. Paths are relative to the current folder where there is a way."""
    try:
        shown = os.path.relpath(folder)
    except ValueError:
        shown = os.path.abspath(folder)
    files = [os.path.join(shown, name) for name in file_names(plan)]
    if plan.kind == "tokens":
        return {"kind": "tokens", "path": files[0], "dtype": "u32"}
    table = {"kind": "arrays", "inputs": files[0], "labels": files[1], "dtype": plan.dtype}
    return {**table, "inputs_tensor": "inputs"} if plan.dtype == "bf16" else table
