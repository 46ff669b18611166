"""Recordings: `Recorder` trains in a loop of one's own, and keeps each batch so that anybody can audit the run."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Type, Union

from . import _native
from ._batches import HELP, BatchError, Part, parts_of
from ._call import StrPath, count, engine, flag, options, path
from ._capture import Captured
from ._errors import BugError, Error, UndecidedError, UsageError, of_exit
from ._job import job_file, to_toml
from ._kernels import kernel_of
from ._progress import Listener, Wanted
from ._run import Run

FILES = {
    "arrays": {"inputs": "recorded/inputs.npy", "labels": "recorded/labels.npy"},
    "tokens": {"path": "recorded/tokens.npy"},
}
OF_INPUTS = {"values": ("arrays", "f32"), "ids": ("arrays", "u32"), "tokens": ("tokens", "u32")}
TYPES = ("f32", "u8", "u16", "u32")
NOT_FINITE = "lower the learning rate in a new recording; Recorder(..., stop_on_nan=False) goes on to the same bits"


class Recorder:
    """Trains one step for each batch that a loop gives it, and commits to every step.

    program: what `tiebreak.capture` returned; or a job as a dict, whose `data` has "kind" ("arrays" or "tokens") and "dtype" alone.
    out: the folder of the run. If a recording of the same job is there, this one goes on behind its last step.
    steps: the number of training steps, in place of a dict's `steps`.
    key: the trainer's private key, a file that `new_key` makes. Without a key the heads are not signed.
    device: "cpu", "gpu" (Vulkan, Metal or DX12), "cuda", or "reference". Each gives the same bits.
    adapter: the GPU whose name contains this text.
    threads: threads of the CPU engine; 0 is one for each core.
    resume: False refuses a folder that has a recording or a run.
    native, native_device: the kernel of the products in the logged profile, as for `train`.
    stop_on_nan: stop when a loss, or the model in the end, is not finite.
    progress: True draws a bar, None draws one on a terminal, False none. A function is called with a `Progress`.
    more: other keys of a job, for what was captured.

    The run's data files are the batches, in the order in which they came. The finished run has the files that `train` writes for the
    same job on these data files. Each report on the run says that its trainer chose the batches and their order.

    The block ends with a run when all steps are done. Otherwise the folder has a recording: after an exception, Ctrl-C or a kill the same
    call goes on behind the last step, to the same bits. `done` says how many batches the loop then has to leave out. A block that ends
    too early raises UndecidedError.

    Raises UsageError for a wrong job or argument, UndecidedError if this machine fails or a loss is not finite, MalformedError for damaged
    files.

    >>> with tiebreak.Recorder(captured, out="runs/mine", steps=1000, key="me.key") as run:
    ...     for batch in itertools.islice(loader, run.done, run.steps):
    ...         loss = run.step(batch)
    >>> report = tiebreak.audit("runs/mine")
    """

    def __init__(
        self,
        program: Union[Captured, Mapping[str, Any]],
        *,
        out: StrPath,
        steps: Optional[int] = None,
        key: Optional[StrPath] = None,
        device: str = "cpu",
        adapter: Optional[str] = None,
        threads: int = 0,
        resume: bool = True,
        native: Optional[str] = None,
        native_device: Optional[str] = None,
        stop_on_nan: bool = True,
        progress: Wanted = None,
        **more: Any,
    ) -> None:
        self.path = path("out", out)
        self._job = _job(program, steps, more)
        self.steps: int = self._job["steps"]
        self.done = 0
        self._resume = flag("resume", resume)
        self._words = options(
            out=self.path,
            key=None if key is None else path("key", key),
            stop_on_nan=None if flag("stop_on_nan", stop_on_nan) else "false",
        )
        self._words += engine(device, adapter, threads)
        more_words, self._kernel = kernel_of(native, native_device, device)
        self._words += more_words
        self._listener = Listener(progress)
        self._parts: List[Part] = []
        self._padding = program._padding if isinstance(program, Captured) and program.inputs["name"] == "ids" else None
        self._native: Any = None
        self._end: Any = None
        self._closed = False
        self._is_run = False

    @property
    def is_complete(self) -> bool:
        """True if all steps are done."""
        return self.done == self.steps

    @property
    def run(self) -> Run:
        """The finished run, behind the block."""
        if not self._is_run:
            raise UsageError(f"{self.path} is no run yet", "record all steps, and leave the `with` block")
        return Run(self.path)

    def step(self, batch: Any) -> float:
        """Trains a step on a batch, and returns its loss.

        batch: (inputs, labels), as the example batch of `capture`, with all samples of a step: those of all its micro-batches. Tensors may
            lie on any device. Texts with one label may be a dict of input_ids and the attention_mask that follows from them. For a language model labels are the next token ids; a batch may also be token ids [samples, positions + 1].

        The batch and the step's record are written when the call returns. A batch of another type or shape, or with NaN, raises BatchError
        and leaves the recording as it is.
        """
        if self._native is None:
            raise UsageError("the recording is not open", "call step inside of `with tiebreak.Recorder(...) as run:`")
        if self.is_complete:
            help = "leave the loop: `for batch in itertools.islice(loader, run.done, run.steps)` ends there"
            raise UsageError(f"all {self.steps} steps are done", help)
        if self._closed or self._end is not None:
            raise UsageError(f"the recording has ended after {self.done} steps", "leave the `with` block; the same Recorder call goes on")
        self._native.put(parts_of(batch, self._parts, self.done + 1, self._padding))
        try:
            done, loss, _, end = self._wait(False)
        except _native.Failed as failed:
            _, message, help = failed.args
            raise BatchError(message, help or HELP) from None
        if end is not None:
            self._raise(end)
        self.done = done
        return loss

    def __enter__(self) -> "Recorder":
        begun = [name for name in ("run.json", "recording.json") if os.path.exists(os.path.join(self.path, name))]
        if begun and not self._resume:
            raise UsageError(f"{self.path} has a {begun[0][:-5]} already", "name another folder, or leave resume=False out")
        if self._native is not None or self._is_run:
            raise UsageError("this Recorder was opened before", "make a new one with the same arguments, which goes on")
        if begun == ["run.json"]:
            return self._opened_run()
        with ExitStack() as stack:
            # The file is read before the first batch is asked for.
            file = stack.enter_context(job_file(self._job, os.getcwd()))
            self._native = _native.Recording([*self._words, "--", file], self._kernel)
            self.done, _, self._parts, end = self._wait(False)
        if end is not None:
            # All steps were done before, and only the run's last files were missing.
            self._ended(end)
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], _: Optional[TracebackType]) -> None:
        is_open = self._end is None and not self._is_run
        try:
            if is_open:
                self._native.close()
                try:
                    self._ended(self._wait(True)[3])
                except Error:
                    # The exception of the block is the one to see.
                    if error is None:
                        raise
            if error is None and not self._is_run:
                raise UndecidedError(f"{self.path} has {self.done} of {self.steps} steps and is no run yet", self._advice())
            if is_open and hasattr(error, "add_note") and not self._is_run:
                error.add_note(f"tiebreak.Recorder: {self.path} has {self.done} of {self.steps} steps; {self._advice()}")
        finally:
            self._listener.clear()

    def __repr__(self) -> str:
        return f"tiebreak.Recorder({self.path!r}: {self.done} of {self.steps} steps)"

    def _advice(self) -> str:
        return f"the same Recorder call goes on: leave out the first {self.done} batches, as itertools.islice(loader, run.done, run.steps) does"

    def _opened_run(self) -> "Recorder":
        """A folder whose recording was finished before: nothing is left to do, if it is the same job."""
        run = Run(self.path)
        if run.job != to_toml(self._job):
            raise UsageError(f"{self.path} is a run of another job", "give the same job and the same steps, or another folder")
        self._is_run, self._native, self.done = True, False, self.steps
        return self

    def _wait(self, patient: bool) -> Any:
        """The next news of the native module; `Failed` for a batch that it refuses. After any other exception no more step is taken."""
        try:
            return self._native.wait(self._listener, patient)
        except _native.Failed:
            raise
        except BaseException as error:
            # The step at hand is finished when the block is left.
            self._closed = True
            self._native.close()
            if isinstance(error, _native.Panic):
                raise BugError(str(error)) from None
            raise

    def _ended(self, end: Any) -> None:
        """Takes the end of the recording; raises if it failed."""
        self._end = end
        exit_code, result, error = end
        if error is not None:
            raise of_exit(exit_code, *error)
        told: Dict[str, Any] = json.loads(result or "{}")
        self.done = int(told.get("done", self.done))
        self._is_run = exit_code == 0
        if told.get("not_finite"):
            raise UndecidedError(f"{told['why']}", NOT_FINITE)

    def _raise(self, end: Any) -> None:
        self._ended(end)
        raise UndecidedError(f"{self.path} stopped after {self.done} of {self.steps} steps", self._advice())


def _job(program: Any, steps: Optional[int], more: Dict[str, Any]) -> Dict[str, Any]:
    """The job of a recording."""
    if isinstance(program, Captured):
        if steps is None:
            raise UsageError("steps is missing", "give the number of training steps, such as steps=1000")
        if "data" in more:
            raise UsageError("data are given beside what was captured", "leave data out: the batches are the data")
        kind, dtype = OF_INPUTS[program.inputs["name"]]
        return program.job(_data({"kind": kind, "dtype": dtype}), steps, **more)
    if not isinstance(program, Mapping):
        raise UsageError(f"program is a {type(program).__name__}", "give what tiebreak.capture returned, or a job as a dict")
    job: Dict[str, Any] = {**program, **more}
    job["steps"] = count("steps", job.get("steps") if steps is None else steps, 1)
    job["data"] = _data(job.get("data"))
    return job


def _data(data: Any) -> Dict[str, Any]:
    """The table of the data that come."""
    help = 'give "data": {"kind": "arrays", "dtype": "f32"}, or "tokens" with "u16" or "u32"; the batches are the data'
    if not isinstance(data, Mapping) or set(data) - {"kind", "dtype", "augment"} or data.get("kind") not in FILES:
        raise UsageError("the data of a recording are named by kind and dtype alone", help)
    if data.get("dtype") not in TYPES:
        raise UsageError(f"data.dtype is {data.get('dtype')!r:.40}", help)
    return {**data, **FILES[data["kind"]], "sampling": "in_order"}
