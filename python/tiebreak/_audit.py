"""Checks of runs and verdicts: `audit`, `verify`, `compare` and `check_verdict`."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from ._call import StrPath, called, count, engine, flag, options, path, paths, result_of, share, temporary, text
from ._errors import BugError, UndecidedError, UsageError, of_exit
from ._progress import Wanted
from ._run import Run

VERDICT_MAX = 256 << 20

RunLike = Union[Run, StrPath]


@dataclass(frozen=True)
class Difference:
    """The first difference that an audit found: the step, the kind of the ground, and the ground in words."""

    step: int
    kind: str
    what: str


class _Result:
    def __init__(self, result: Dict[str, Any], verdict: Optional[bytes] = None) -> None:
        self._result = result
        self._verdict = verdict

    @property
    def verdict(self) -> Optional[bytes]:
        """The bytes of the verdict file, if there is a verdict; `check_verdict` takes them."""
        return self._verdict

    def to_dict(self) -> Dict[str, Any]:
        """The JSON that the command prints with --json, as a dict of its own."""
        return copy.deepcopy(self._result)

    def __repr__(self) -> str:
        return f"<tiebreak.{type(self).__name__}: {self}>"


class Report(_Result):
    """The report of an audit."""

    @property
    def outcome(self) -> str:
        """"matches", "diverges", "inconsistent", "incomplete", and the others of docs/AUDIT.md. "matches" may be of a part: `is_complete`."""
        return self._result["outcome"]["result"]

    @property
    def is_complete(self) -> bool:
        """True if every step of the plan was replayed."""
        return _steps(self._result["replayed"]) == _steps(self._result["plan"]["segments"])

    @property
    def matches(self) -> bool:
        """True if every step of the plan was replayed, and gave the committed bits."""
        return self.outcome == "matches" and self.is_complete

    @property
    def differences(self) -> List[Difference]:
        """The first difference, if the run differs from its records or contradicts its job; an audit stops there."""
        found = self._result["outcome"]
        if found["result"] not in ("diverges", "inconsistent"):
            return []
        return [Difference(found["step"], found.get("kind", ""), found["what"])]

    @property
    def replayed(self) -> List[Tuple[int, int]]:
        """The ranges of steps that were replayed and match, both ends included."""
        return [(first, last) for first, last in self._result["replayed"]]

    @property
    def not_checked(self) -> List[str]:
        """What this audit says nothing about, in words."""
        return list(self._result["not_checked"])

    def __str__(self) -> str:
        found = self._result["outcome"]
        step = f" at step {found['step']}" if "step" in found else ""
        what = f": {found['what']}" if "what" in found else ""
        part = "" if self.is_complete else " (a part of the plan)"
        return f"{found['result']}{step}{part}{what}"


class Verification(_Result):
    """What `verify` found in a run without a replay."""

    def __init__(self, result: Dict[str, Any], exit_code: int) -> None:
        super().__init__(result)
        self.exit_code = exit_code

    @property
    def ok(self) -> bool:
        """True if everything that needs no replay holds, and the run is finished."""
        return self.exit_code == 0

    @property
    def signed(self) -> str:
        """Who signed the run, in words."""
        return self._result["signed"]

    def __str__(self) -> str:
        kind = self._result["kind"]
        return self.signed if self.ok else f"{self._result['inconsistent'] or self._result['incomplete'] or kind or 'damaged'}"


class Comparison(_Result):
    """What `compare` found in two runs."""

    @property
    def result(self) -> str:
        """"same", "shorter", "differs", "other_computation" or "not_comparable"."""
        return self._result["result"]

    @property
    def same(self) -> bool:
        """True if both runs have the same records."""
        return self.result == "same"

    @property
    def step(self) -> Optional[int]:
        """The step of the first record that differs."""
        return self._result.get("step")

    @property
    def tensor(self) -> Optional[str]:
        """The first state tensor that differs after that step, if both runs hold the checkpoint."""
        return self._result.get("tensor")

    def __str__(self) -> str:
        return self.result if self.step is None else f"{self.result} at step {self.step}, tensor {self.tensor}"


class Ruling(_Result):
    """What follows from a verdict's bytes."""

    @property
    def convicts(self) -> bool:
        """True if the evidence convicts the signer."""
        return self._result["convicts"]

    @property
    def step(self) -> Optional[int]:
        """The step that the evidence is about, if it convicts."""
        return self._result.get("step")

    @property
    def checked(self) -> List[str]:
        """What was checked, in words."""
        return list(self._result.get("checked", []))

    def __str__(self) -> str:
        return str(self._result.get("text") or ("convicts" if self.convicts else "does not convict"))


def _steps(ranges: List[List[int]]) -> int:
    return sum(max(0, last - first + 1) for first, last in ranges)


def _folder(run: Any) -> str:
    return run.path if isinstance(run, Run) else path("run", run)


def _public(key: Any) -> Optional[str]:
    """A public key: a file or its text."""
    if key is None:
        return None
    return path("key", key) if isinstance(key, os.PathLike) else text("key", key)


def _range(steps: Any) -> Optional[str]:
    if steps is None:
        return None
    try:
        first, last = (count("steps", step, 1) for step in steps)
    except (TypeError, ValueError):
        raise UsageError("steps is no pair of numbers", "give steps as (first, last), both ends included") from None
    return f"{first}..{last}"


def _with_verdict(result: Dict[str, Any], file: Optional[str]) -> Tuple[Dict[str, Any], Optional[bytes]]:
    """A result as the command has it that writes no verdict file, and the bytes of the one that was written for this call alone."""
    written, verdict = result.get("verdict_file"), result.get("verdict")
    if written is not None:
        with open(written, "rb") as bytes_of:
            data: Optional[bytes] = bytes_of.read(VERDICT_MAX + 1)
    else:
        data = None if verdict is None else verdict.encode()
    if file is None and written is not None and data is not None:
        os.unlink(written)
        result = {**result, "verdict_file": None, "verdict": data.decode(), "next": []}
    return result, data


def audit(
    run: RunLike,
    key: Optional[StrPath] = None,
    *,
    device: str = "cpu",
    adapter: Optional[str] = None,
    threads: int = 0,
    jobs: int = 1,
    sample: Optional[float] = None,
    seed: Optional[int] = None,
    steps: Optional[Tuple[int, int]] = None,
    prefix: bool = False,
    data: Optional[StrPath] = None,
    weights: Iterable[StrPath] = (),
    heads: Iterable[StrPath] = (),
    verdict: Optional[StrPath] = None,
    report: Optional[StrPath] = None,
    auditor_key: Optional[StrPath] = None,
    page: Optional[StrPath] = None,
    recompute: bool = False,
    progress: Wanted = None,
) -> Report:
    """Replay a run, or a part of it, and stop at the first difference.

    run: a folder, or a Run.
    key: the trainer's public key: a file or its text. Without the key nobody knows who signed.
    device, adapter, threads: the engine, as for `train`. It need not be the trainer's.
    jobs: segments that are replayed at once; 0 is as many as cores and memory allow.
    sample: replay a random share of the checkpoint segments, such as 0.05; `seed` repeats the sample of an earlier report.
    steps: replay (first, last) alone, both ends included.
    prefix: audit the records under the head alone; for a run that is still trained.
    data: the folder of data files that the run does not hold.
    weights: the files of weights that the run begins from, in the job's order.
    heads: heads of this run that somebody else has.
    verdict: a file for the verdict, if there is one. Its bytes are in `Report.verdict` either way.
    report: a file for the report, which `auditor_key`, a private key, signs.
    page: a file for the audit as one HTML page.
    recompute, progress: as for `train`.

    A difference is a result: see `Report.outcome` and `Report.differences`. Ctrl-C raises KeyboardInterrupt after the step at hand.

    >>> report = tiebreak.audit("runs/first", key="trainer.key.pub", sample=0.25)
    >>> report.matches
    True
    """
    words = options(
        trainer_key=_public(key),
        jobs=count("jobs", jobs),
        sample=None if sample is None else repr(share("sample", sample)),
        seed=None if seed is None else count("seed", seed),
        steps=_range(steps),
        prefix=flag("prefix", prefix),
        data=None if data is None else path("data", data),
        report=None if report is None else path("report", report),
        key=None if auditor_key is None else path("auditor_key", auditor_key),
        page=None if page is None else path("page", page),
        recompute=flag("recompute", recompute),
    )
    words += engine(device, adapter, threads)
    words += [f"--weights={file}" for file in paths("weights", weights)]
    words += [f"--head={file}" for file in paths("heads", heads)]
    file = None if verdict is None else path("verdict", verdict)
    with temporary() as folder:
        words += options(verdict=file or os.path.join(folder, "verdict.json"))
        _, result = result_of(["audit", *words, "--", _folder(run)], progress, waits=True)
        return Report(*_with_verdict(result, file))


def verify(run: RunLike, key: Optional[StrPath] = None, *, prefix: bool = False, progress: Wanted = None) -> Verification:
    """Check a run's structure, hashes and signature in seconds, without a replay.

    run, key, prefix and progress are as for `audit`. What is wrong with the run is a result: see `Verification.ok`.

    >>> tiebreak.verify("runs/first", key="trainer.key.pub").ok
    True
    """
    words = options(trainer_key=_public(key), prefix=flag("prefix", prefix))
    exit_code, result, error = called(["verify", *words, "--", _folder(run)], progress)
    if result is None:
        raise of_exit(exit_code, *error) if error else BugError("verify said nothing")
    return Verification(result, exit_code)


def compare(first: RunLike, second: RunLike, *, verdict: Optional[StrPath] = None, progress: Wanted = None) -> Comparison:
    """Find the first record, and tensor, in which two runs of one computation differ.

    verdict: a file for the verdict, if these are two signed histories of one run. Its bytes are in `Comparison.verdict` either way.

    >>> tiebreak.compare("runs/first", "runs/again").same
    True
    """
    file = None if verdict is None else path("verdict", verdict)
    with temporary() as folder:
        words = options(verdict=file or os.path.join(folder, "verdict.json"))
        _, result = result_of(["compare", *words, "--", _folder(first), _folder(second)], progress)
        return Comparison(*_with_verdict(result, file))


def check_verdict(
    verdict: Union[bytes, StrPath],
    key: Optional[StrPath] = None,
    *,
    run: Optional[RunLike] = None,
    data: Optional[StrPath] = None,
    weights: Iterable[StrPath] = (),
    progress: Wanted = None,
) -> Ruling:
    """Derive a verdict again with the scalar reference, from its bytes alone.

    verdict: the bytes, or the path of a file. A verdict on a whole step needs `run` (and `data` if the run holds none), one on an initial
        state made from weights needs `run` and `weights`.
    key: the trainer's public key: a file or its text.

    Raises MalformedError if the verdict does not hold together, or is about another key.

    >>> tiebreak.check_verdict("verdict.json").convicts
    True
    """
    words = options(
        trainer_key=_public(key),
        run=None if run is None else _folder(run),
        data=None if data is None else path("data", data),
    )
    words += [f"--weights={file}" for file in paths("weights", weights)]
    if not isinstance(verdict, (bytes, bytearray, memoryview)):
        return Ruling(result_of(["verdict", "check", *words, "--", path("verdict", verdict)], progress)[1])
    with temporary() as folder:
        file = os.path.join(folder, "verdict.json")
        try:
            with open(file, "wb") as written:
                written.write(verdict)
        except OSError as error:
            raise UndecidedError(f"the verdict cannot be written to {folder}: {error}", "make room there, or set TMPDIR") from None
        return Ruling(result_of(["verdict", "check", *words, "--", file], progress)[1])
