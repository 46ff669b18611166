"""Datasets: `dataset` writes the items of a PyTorch dataset to the data files of a job."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any, Dict, Iterator, Optional

from ._call import StrPath, path
from ._call import count as counted
from ._errors import RunWarning, UsageError
from ._items import Encoded, encoded, wrong
from ._progress import Listener, Wanted, logger
from ._store import ANOTHER, State, Store, agree, data_table

TELL_SECONDS = 0.05
ITEMS = "give a torch Dataset, a list of (input, label) pairs, or the tuple (inputs, labels) of two arrays"


class Columns:
    """Two arrays as a dataset of pairs: a row of the first, and an element of the second."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        if len(inputs) != len(labels):
            raise UsageError(f"there are {len(inputs)} inputs and {len(labels)} labels", "give as many of each")
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, place: int) -> Any:
        return self.inputs[place], self.labels[place]


class Source:
    """The items of a dataset by their places, which ascend where there is only an iterator."""

    def __init__(self, items: Any, count: Optional[int]) -> None:
        if isinstance(items, (str, bytes, Mapping)) or not (hasattr(items, "__getitem__") or hasattr(items, "__iter__")):
            raise UsageError(f"the dataset is a {type(items).__name__}", ITEMS)
        if type(items).__name__ == "DataLoader" and hasattr(items, "dataset"):
            raise UsageError("the dataset is a DataLoader, whose items are batches", "give loader.dataset: the run draws batches itself")
        if isinstance(items, tuple) and len(items) == 2 and all(getattr(part, "ndim", 0) > 0 for part in items):
            items = Columns(*items)
        self.items = items
        self.has_places = hasattr(items, "__getitem__")
        self.iterator: Optional[Iterator[Any]] = None
        self.last: Any = (-1, None)
        try:
            length = len(items)
        except (TypeError, NotImplementedError):
            length = None
        if length is None and count is None:
            instead = "give count=, the number of items to write, which are read once and in order; or a list of the items"
            raise UsageError(f"the dataset, a {type(items).__name__}, has no length", instead)
        self.count = length if count is None else counted("count", count, 1)
        if length is not None and length < self.count:
            raise UsageError(f"count is {self.count}, and the dataset has {length} items", "give a smaller count, or leave it out")
        if self.count == 0:
            raise UsageError("the dataset has no items", "give a dataset of one item or more")

    def at(self, place: int) -> Encoded:
        """The item at a place, which is asked for once."""
        if self.last[0] == place:
            return self.last[1]
        if self.has_places:
            item = self.items[place]
        else:
            self.iterator = self.iterator or iter(self.items)
            item = end = object()
            for _ in range(place - self.last[0]):
                item = next(self.iterator, end)
            if item is end:
                raise UsageError(f"the dataset ended before item {place}, and count is {self.count}", "give the number of its items as count=")
        self.last = (place, encoded(item, place))
        return self.last[1]


def dataset(items: Any, out: StrPath, *, count: Optional[int] = None, progress: Wanted = None) -> Dict[str, Any]:
    """Write the items of a dataset to data files, and return the `[data]` table of a job on them.

    items: a torch Dataset, or anything with `__len__` and `__getitem__`; each item is (input, label). A tuple of two arrays is the dataset
        of their rows. PyTorch is not needed.
    out: the folder of the files, which is made. A folder with other files is refused.
    count: the number of items to write, the first ones. An iterable without a length needs it.
    progress: True draws a bar, None draws one on a terminal, False none. A function is called with a `Progress`.

    An input is an array or a tensor of float32, float16, bfloat16 or uint8 (pixels), with three dimensions at most, or a float. A label is
    an integer from 0 on. All inputs have one shape and one type. Numbers are written as they are; NaN and infinities are allowed, and a
    RunWarning tells of them.

    An item may also be the token ids of a text, as a list or an array of integers. The texts are then written one after another, as
    kind `tokens`. A sample is any window of this row, so it may begin in one text and end in the next; a model's labels are the next ids.

    Each item is written once, and few are in memory at a time. Nothing is whole until the end, when files get their names and
    `dataset.json` beside them says shapes, types and count. After Ctrl-C or an exception the same call goes on at the next item, to the
    same bytes. After a kill it may read items of the last second again. With a whole dataset in the folder the call writes nothing. The
    first and the last written item are compared with those given, so an item must be the same each time: random crops and flips are
    `augment` of a job's data.

    Raises UsageError for an item that no data file holds, or another dataset in the folder; UndecidedError if the disk is full or another
    call writes the folder; MalformedError for damaged files. Exceptions of the dataset's own pass through.

    >>> data = tiebreak.dataset(torch_dataset, "data/")
    >>> run = tiebreak.train(captured.job(data, steps=100), out="runs/first")
    """
    folder = path("out", out)
    listener = Listener(progress)
    source = Source(items, count)
    store = Store(folder)
    try:
        state = store.finished()
        if state is None:
            first = source.at(0)
            with store.locked():
                # Another call may have ended meanwhile.
                state = store.finished()
                if state is None:
                    return _written(store, source, first, listener)
        return _unchanged(store, state, source, listener)
    finally:
        listener.clear()


def _unchanged(store: Store, state: State, source: Source, listener: Listener) -> Dict[str, Any]:
    """The table of a dataset that is whole already, if it is the one given."""
    first = source.at(0)
    agree(store.folder, state, first.plan, source.count)
    _compare(store, state, source, 0)
    if source.has_places:
        _compare(store, state, source, state.count - 1)
    listener((state.count, state.count, "items", "written before"), [f"{store.folder} has all {state.count} items: nothing is written"])
    return data_table(store.folder, state.plan)


def _compare(store: Store, state: State, source: Source, place: int) -> None:
    """Raises if the first or the last item that is written is another one now."""
    if not store.same(state, source.at(place), last=place > 0):
        why = f"item {place} is not the one that {store.folder} has: the dataset is another one, or draws its items at random"
        raise UsageError(why, f"{ANOTHER}; leave random changes to `augment` of a job's data")


def _written(store: Store, source: Source, first: Encoded, listener: Listener) -> Dict[str, Any]:
    """Writes the items that are not written yet."""
    state = store.begin(first.plan, source.count)
    for place in sorted({0, state.done - 1} if state.done else ()):
        _compare(store, state, source, place)
    if state.done:
        listener(None, [f"{store.folder} has {state.done} of {state.count} items: the others follow"])
    told = 0.0
    try:
        for place in range(state.done, state.count):
            item = source.at(place)
            if item.plan != first.plan:
                raise wrong(place, f"it is {item.plan}, and item 0 is {first.plan}", "make all items alike: convert, pad, cut or leave out")
            store.put(item)
            if time.monotonic() - told > TELL_SECONDS or place + 1 == state.count:
                listener((place + 1, state.count, "items", ""), [])
                told = time.monotonic()
    except BaseException as error:
        _keep(store)
        if hasattr(error, "add_note") and not isinstance(error, UsageError):
            error.add_note(f"tiebreak.dataset: {store.state.done} items are kept in {store.folder}, and the same call goes on there")
        raise
    store.finish()
    _warn(store.state)
    return data_table(store.folder, first.plan)


def _keep(store: Store) -> None:
    """Saves what an interrupted call wrote. Where that fails the last journal holds."""
    try:
        store.save()
    except OSError:
        pass


def _warn(state: State) -> None:
    if state.not_finite:
        why = f"{state.not_finite} items hold NaN or infinities, first item {state.first_not_finite}: a loss of them is no number"
        warnings.warn(why, RunWarning, stacklevel=4)
