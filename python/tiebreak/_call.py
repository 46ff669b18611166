"""Calls of the command: arguments become words, and its end becomes a result or an error."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from contextlib import contextmanager
from operator import index
from typing import Any, Iterator, List, Optional, Tuple, Union

from . import _native
from ._errors import BugError, UndecidedError, UsageError, of_exit
from ._progress import Listener, Wanted

StrPath = Union[str, "os.PathLike[str]"]

ENGINES = {"cpu": "cpu", "gpu": "wgpu", "cuda": "cuda", "reference": "reference"}
COUNT_MAX = 2**63


def path(name: str, value: Any) -> str:
    """A path as a text that the system takes."""
    try:
        text = os.fsdecode(os.fspath(value))
        os.fsencode(text)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is no path: {error}", f"give {name} as a text or a pathlib.Path") from None
    if not text or "\0" in text:
        raise UsageError(f"{name} is {text!r}, which names no file", f"give {name} as the path of a file or folder")
    return text


def text(name: str, value: Any) -> str:
    """A text without a zero byte."""
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"{name} is {_shown(value)}, and a text is wanted", f"give {name} as a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is {_shown(value)}, which is no Unicode text", f"give {name} as a str") from None
    return value


def count(name: str, value: Any, least: int = 0) -> int:
    """A number of things."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < COUNT_MAX:
        raise UsageError(f"{name} is {_shown(value)}", f"give {name} as an integer from {least} on")
    return number


def flag(name: str, value: Any) -> bool:
    """True or False, and nothing that is only like it."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {_shown(value)}", f"give {name} as True or False")
    return value


def share(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"{name} is {_shown(value)}", f"give {name} as a number from 0 to 1, such as 0.05")
    return number


def paths(name: str, values: Any) -> List[str]:
    """Several paths."""
    if isinstance(values, (str, bytes, os.PathLike)):
        raise UsageError(f"{name} is one path", f"give {name} as a list of paths")
    try:
        return [path(name, value) for value in values]
    except TypeError:
        raise UsageError(f"{name} is {_shown(values)}", f"give {name} as a list of paths") from None


def is_address(place: str) -> bool:
    """True if a place is named by an address, such as http://HOST/PATH, and not by a path."""
    return re.match("[A-Za-z0-9]+://", place) is not None


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def options(**given: Any) -> List[str]:
    """The words of options that are given: None and False are left out, True needs no value."""
    words = []
    for name, value in given.items():
        option = "--" + name.strip("_").replace("_", "-")
        if value is None or value is False:
            continue
        words.append(option if value is True else f"{option}={value}")
    return words


def engine(device: Any, adapter: Any, threads: Any) -> List[str]:
    """The words that name an engine."""
    if not isinstance(device, str) or device not in ENGINES:
        raise UsageError(f"device is {_shown(device)}", f"give device as one of {', '.join(map(repr, ENGINES))}")
    threads = count("threads", threads) or None
    adapter = None if adapter is None else text("adapter", adapter)
    return options(engine=ENGINES[device], adapter=adapter, threads=threads)


def called(words: List[str], progress: Wanted = None, waits: bool = False, kernel: Any = None) -> Tuple[int, Optional[dict], Optional[tuple]]:
    """Runs a command, with a kernel of native products or none: its exit code, its result, and its error with the help."""
    listener = Listener(progress)
    try:
        exit_code, result, error = _native.call(words, listener, waits, kernel)
    except _native.Panic as panic:
        raise BugError(str(panic)) from None
    finally:
        listener.clear()
    return exit_code, None if result is None else json.loads(result), error


def result_of(words: List[str], progress: Wanted = None, waits: bool = False) -> Tuple[int, dict]:
    """Runs a command that must have a result."""
    exit_code, result, error = called(words, progress, waits)
    if error is not None:
        raise of_exit(exit_code, *error)
    if result is None:
        raise BugError(f"{words[0]} ended with {exit_code} and said nothing")
    return exit_code, result


@contextmanager
def native() -> Iterator[None]:
    """Turns the native module's exceptions into those of the package."""
    try:
        yield
    except _native.Failed as failed:
        raise of_exit(*failed.args) from None
    except _native.Panic as panic:
        raise BugError(str(panic)) from None


@contextmanager
def temporary() -> Iterator[str]:
    """A folder for the files of one call, which is gone afterwards."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="tiebreak-")
    except OSError as error:
        raise UndecidedError(f"there is no folder for temporary files: {error}", "make room there, or set TMPDIR") from None
    with folder as name:
        yield name
