"""Evaluations and predictions: `evaluate` and `predict`, of runs and of released weights, of built-in models and of captured ones."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from ._call import StrPath, count, engine, options, path, paths, result_of, temporary
from ._capture import Captured
from ._errors import MalformedError, UndecidedError, UsageError
from ._fit import DATA, files_of
from ._job import job_file
from ._progress import Wanted
from ._run import Run

BATCH_MAX = 1 << 16
INPUTS = "give float32 numbers, uint8 pixels or token ids, as NumPy's array [samples, ...], or the path of a .npy file"
Data = Union[None, StrPath, Sequence[StrPath], Mapping[str, Any]]


class _Found:
    def __init__(self, result: Dict[str, Any]) -> None:
        self._result = result

    def to_dict(self) -> Dict[str, Any]:
        """The JSON that the command prints with --json, as a dict of its own."""
        return copy.deepcopy(self._result)

    def __repr__(self) -> str:
        return f"<tiebreak.{type(self).__name__}: {self}>"


class Evaluation(_Found):
    """What `evaluate` found. `loss`, `hits` and `labels` are exact: every engine finds them."""

    @property
    def loss(self) -> float:
        """The mean loss, a binary32 number."""
        return float(np.uint32(int(self._result["loss"], 16)).view(np.float32))

    @property
    def accuracy(self) -> float:
        """The share of labels that the model finds most likely: hits / labels in binary32."""
        return float(np.float32(self.hits) / np.float32(self.labels))

    @property
    def perplexity(self) -> float:
        """e^loss, and infinity where that is too large. NaN if the loss is."""
        found = self._result["found"]["perplexity"]
        return float(found) if found is not None else float("nan") if np.isnan(self.loss) else float("inf")

    @property
    def samples(self) -> int:
        """Samples."""
        return self._result["samples"]

    @property
    def labels(self) -> int:
        """Labels that the loss does not ignore."""
        return self._result["labels"]

    @property
    def hits(self) -> int:
        """Labels that the model finds most likely."""
        return self._result["hits"]

    @property
    def losses(self) -> str:
        """The digest of the losses of all labels, 64 hexadecimal digits."""
        return self._result["losses"]

    @property
    def matches(self) -> Optional[bool]:
        """True if every bit is that of the report `expect`, False if one differs. None without a report."""
        return None if "result" not in self._result else self._result["result"] == "matches"

    @property
    def differs(self) -> List[str]:
        """The fields in which the evaluation is another one than the report `expect` says."""
        return list(self._result.get("differs", []))

    def __str__(self) -> str:
        differs = f"; differs in {', '.join(self.differs)}" if self.differs else ""
        return f"loss {self.loss:.6f}, accuracy {self.accuracy:.4f} ({self.hits} of {self.labels}){differs}"


class Predictions(_Found):
    """What `predict` found: the logits of each sample, which depend on the model and the sample alone."""

    def __init__(self, result: Dict[str, Any], logits: np.ndarray) -> None:
        super().__init__(result)
        self._logits = logits

    @property
    def logits(self) -> np.ndarray:
        """The logits in binary32: [samples, classes], or [samples, positions, tokens] of a model with a label for each position."""
        return self._logits

    @property
    def classes(self) -> np.ndarray:
        """The most likely class of each sample, int64 [samples], or of each position, [samples, positions]. -1 where a logit is NaN."""
        numbers = [[-1 if number is None else number for number in sample["classes"]] for sample in self._result["samples"]]
        return np.array(numbers, dtype=np.int64).reshape(self._logits.shape[:-1])

    @property
    def samples(self) -> List[int]:
        """The samples' numbers in the data."""
        return [sample["sample"] for sample in self._result["samples"]]

    def __len__(self) -> int:
        return len(self._result["samples"])

    def __str__(self) -> str:
        return f"{len(self)} samples of {self._logits.shape[-1]} classes"


def _data(data: Data) -> List[str]:
    """The words that name data files."""
    if data is None:
        return []
    if isinstance(data, Mapping):
        data = files_of("data", data)
    elif isinstance(data, (str, os.PathLike)):
        data = [data]
    files = paths("data", data)
    if not files:
        raise UsageError("data names no file", DATA)
    return [f"--data={file}" for file in files]


def _words(
    network: Union[None, Captured, StrPath], step: Any, batch: Any, on: Tuple[Any, Any, Any]
) -> List[str]:
    """The words that both commands have."""
    if batch is not None and count("batch", batch, 1) > BATCH_MAX:
        raise UsageError(f"batch is {batch}", f"give batch as an integer from 1 to {BATCH_MAX}")
    if step is not None and count("step", step) >= 2**32:
        raise UsageError(f"step is {step}", "`Run.checkpoints` lists the steps whose state the run holds")
    file = network.network if isinstance(network, Captured) else network
    return options(network=None if file is None else path("network", file), step=step, batch=batch) + engine(*on)


def _job(held: ExitStack, job: Union[None, StrPath, Mapping[str, Any]]) -> List[str]:
    """The words that name a job; the file of a dict is there as long as `held`."""
    if job is None:
        return []
    file = held.enter_context(job_file(job, os.getcwd())) if isinstance(job, Mapping) else path("job", job)
    return options(job=file)


def _of(model: Any) -> str:
    return model.path if isinstance(model, Run) else path("model", model)


def evaluate(
    model: Union[Run, StrPath],
    data: Data = None,
    *,
    network: Union[None, Captured, StrPath] = None,
    job: Union[None, StrPath, Mapping[str, Any]] = None,
    step: Optional[int] = None,
    samples: Optional[int] = None,
    batch: Optional[int] = None,
    expect: Optional[StrPath] = None,
    report: Optional[StrPath] = None,
    device: str = "cpu",
    adapter: Optional[str] = None,
    threads: int = 0,
    progress: Wanted = None,
) -> Evaluation:
    """Compute a model's loss, accuracy and perplexity, in the bits of every engine.

    model: a Run or its folder; or released weights, with `job`.
    data: the path of a data file, a list of paths in the order in which the job names its own, or the table that `dataset` returns. Without
        it the data are those of the job's `evaluation`, else the samples that its `validation_split` keeps, else the training data.
    network: of a captured model what `capture` returned, or the path of its network file. The file has to give the run's program. Without
        it the file is the copy that the run keeps.
    job: the job of released weights: a path or a dict.
    step: evaluate the checkpoint after this step, not the released model.
    samples: evaluate the first so many samples alone.
    batch: samples that are computed at once. This number changes no bit.
    expect: the report of the same evaluation by somebody else, a file. See `Evaluation.matches`.
    report: a file for the report.
    device, adapter, threads, progress: as for `train`.

    Ctrl-C raises KeyboardInterrupt at once.

    >>> tiebreak.evaluate("runs/captured", data, network=captured).accuracy
    0.625
    """
    words = _data(data) + _words(network, step, batch, (device, adapter, threads))
    words += options(
        samples=None if samples is None else count("samples", samples, 1),
        expect=None if expect is None else path("expect", expect),
        report=None if report is None else path("report", report),
    )
    with ExitStack() as held:
        words += _job(held, job)
        return Evaluation(result_of(["eval", *words, "--", _of(model)], progress)[1])


def predict(
    model: Union[Run, StrPath],
    inputs: Any = None,
    *,
    data: Data = None,
    network: Union[None, Captured, StrPath] = None,
    job: Union[None, StrPath, Mapping[str, Any]] = None,
    step: Optional[int] = None,
    samples: Union[None, range, Tuple[int, int]] = None,
    batch: Optional[int] = None,
    receipt: Optional[StrPath] = None,
    trace: Optional[StrPath] = None,
    opening: Optional[StrPath] = None,
    key: Optional[StrPath] = None,
    device: str = "cpu",
    adapter: Optional[str] = None,
    threads: int = 0,
    progress: Wanted = None,
) -> Predictions:
    """Predict the classes of samples, in the bits of every engine.

    model, network, job, step, batch: as for `evaluate`.
    inputs: an array [samples, ...] of inputs without labels, or the path of a .npy file that has one. The numbers are float32, uint8 pixels,
        or token ids, as the job's data are. Tensors of PyTorch on the CPU are arrays, too.
    data: data files in place of `inputs`, as for `evaluate`. Labels change no prediction.
    samples: predict the samples (first, end) alone, counted from 0 and without the end; or a range.
    receipt: a file for a receipt, by which others check the predictions.
    trace: a file for the trace to which the receipt commits.
    opening: a file for the opening of the receipt, which is then salted.
    key: the private key that signs the receipt.
    device, adapter, threads, progress: as for `train`.

    Ctrl-C raises KeyboardInterrupt at once.

    >>> tiebreak.predict("runs/captured", images, network=captured).classes
    array([3, 1, 4])
    """
    words = _data(data) + _words(network, step, batch, (device, adapter, threads))
    if inputs is not None and data is not None:
        raise UsageError("both inputs and data are given", "give one of them")
    given = {"receipt": receipt, "trace": trace, "opening": opening, "key": key}
    words += options(samples=_span(samples), **{name: None if file is None else path(name, file) for name, file in given.items()})
    with ExitStack() as held:
        folder = held.enter_context(temporary())
        if inputs is not None:
            words += options(inputs=_file(inputs, folder))
        words += _job(held, job)
        logits = os.path.join(folder, "logits.npy")
        with _naming_inputs(folder):
            _, result = result_of(["predict", *words, f"--logits={logits}", "--", _of(model)], progress)
        return Predictions(result, np.load(logits, allow_pickle=False))


def logits(
    model: Union[Run, StrPath, Mapping[str, Any]],
    inputs: Any,
    *,
    network: Union[None, Captured, StrPath] = None,
    step: Optional[int] = None,
    digits: Optional[int] = None,
    device: str = "cpu",
    adapter: Optional[str] = None,
    threads: int = 0,
    progress: Wanted = None,
) -> np.ndarray:
    """Compute a model's outputs before softmax in evaluation: float32 [samples, positions, tokens], or [samples, classes].

    model: a Run or its folder; or a job that begins from weights, as the path of a file or as a dict such as `Captured.job` returns. For
        other released weights there is `predict`.
    inputs: as for `predict`. Texts of a decoder may be shorter than its context: [samples, positions], from one position on. One text
        alone, [positions], gives [positions, tokens].
    digits: digits of all products, 1 to 4, in place of the model's.
    network, step, device, adapter, threads, progress: as for `evaluate`.

    Ctrl-C raises KeyboardInterrupt at once.

    >>> tiebreak.logits("runs/first", [[116, 111, 32]]).shape
    (1, 3, 128)
    """
    if digits is not None and not 1 <= count("digits", digits, 1) <= 4:
        raise UsageError(f"digits is {digits}", "give digits as 1, 2, 3 or 4")
    words = _words(network, step, None, (device, adapter, threads)) + options(digits=digits)
    with ExitStack() as held:
        folder = held.enter_context(temporary())
        output = os.path.join(folder, "logits.npy")
        file = _file(inputs, folder)
        of = held.enter_context(job_file(model, os.getcwd())) if isinstance(model, Mapping) else _of(model)
        with _naming_inputs(folder):
            result_of(["logits", *words, *options(inputs=file, output=output), "--", of], progress)
        return np.load(output, allow_pickle=False)


@contextmanager
def _naming_inputs(folder: str) -> Iterator[None]:
    """Errors about the file of an array in this folder are about the argument."""
    try:
        yield
    except MalformedError as error:
        file = os.path.join(folder, "inputs.npy")
        if file not in error.message:
            raise
        raise UsageError(error.message.replace(f"{file}: file:", "inputs:").replace(file, "inputs"), INPUTS) from None


def _span(samples: Any) -> Optional[str]:
    if samples is None:
        return None
    if isinstance(samples, range):
        if samples.step != 1:
            raise UsageError(f"samples is {samples}, which leaves samples out", "give a range whose step is 1, and take what you want of its predictions")
        samples = (samples.start, samples.stop)
    try:
        first, end = samples
    except (TypeError, ValueError):
        raise UsageError("samples is no pair of numbers", "give samples as (first, end), without the end, or as a range") from None
    return f"{count('samples', first)}..{count('samples', end)}"


def _file(inputs: Any, folder: str) -> str:
    """The file of the inputs: the one that a path names, or one with an array, in this folder."""
    return path("inputs", inputs) if isinstance(inputs, (str, os.PathLike)) else _written(inputs, folder)


def _written(inputs: Any, folder: str) -> str:
    """A file with an array."""
    try:
        array = np.asarray(inputs)
    except Exception as error:  # noqa: BLE001 - whatever an array-like object raises
        raise UsageError(f"inputs are no array: {str(error)[:200]}", INPUTS) from None
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**32:
            raise UsageError(f"inputs have numbers from {array.min()} to {array.max()}", "give token ids from 0 on")
        array = array.astype(np.uint32)
    if array.dtype not in (np.float32, np.float16, np.uint8, np.uint32) or array.ndim == 0:
        raise UsageError(f"inputs are {array.dtype} {list(array.shape)}", INPUTS)
    file = os.path.join(folder, "inputs.npy")
    try:
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    except OSError as error:
        raise UndecidedError(f"the inputs cannot be written to {folder}: {error}", "make room there, or set TMPDIR") from None
    return file
