"""Jobs as dictionaries: the text of the job file that says the same."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping

from ._errors import UndecidedError, UsageError

DEPTH_MAX = 8
BARE = re.compile(r"[A-Za-z0-9_-]+")


def _wrong(key: str, why: str) -> UsageError:
    return UsageError(f"job: {key}: {why}", "`tiebreak job reference` lists every key with its type, default and example")


def _text(key: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(key, "the text is no Unicode text") from None
    # TOML's escapes are those of JSON, but for the last control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(parents: str, key: Any) -> str:
    if not isinstance(key, str) or not BARE.fullmatch(key):
        raise _wrong(parents or "the top", f"a key is {key!r:.60}, and keys are words")
    return key


def _value(key: str, value: Any, depth: int) -> str:
    if depth > DEPTH_MAX:
        raise _wrong(key, f"tables and lists lie deeper than {DEPTH_MAX} levels")
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        value = value.tolist()  # of NumPy or PyTorch
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise _wrong(key, "the integer has more than 64 bits")
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _wrong(key, f"{value} is not finite")
        return repr(float(value))
    if isinstance(value, str):
        return _text(key, value)
    if isinstance(value, os.PathLike):
        return _text(key, os.fsdecode(os.fspath(value)))
    if isinstance(value, Mapping):
        pairs = [f"{_key(key, name)} = {_value(f'{key}.{name}', inner, depth + 1)}" for name, inner in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(key, inner, depth + 1) for inner in value)}]"
    raise _wrong(key, f"a {type(value).__name__} is no value of a job")


def to_toml(job: Mapping[str, Any]) -> str:
    """The text of a job, a line for each key of the top."""
    lines: List[str] = [f"{_key('', key)} = {_value(key, value, 0)}" for key, value in job.items()]
    return "".join(f"{line}\n" for line in lines)


@contextmanager
def job_file(job: Mapping[str, Any], folder: str) -> Iterator[str]:
    """The path of a file with the job's text in the folder to which its paths are relative; the file is gone afterwards."""
    written = to_toml(job)
    try:
        file = tempfile.NamedTemporaryFile("w", dir=folder, prefix=".tiebreak-", suffix=".toml", delete=False, encoding="utf-8")
    except OSError as error:
        why = f"the job cannot be written to {folder}: {error}"
        raise UndecidedError(why, "give data_root= a folder that can be written to, or the path of a job file") from None
    try:
        with file:
            file.write(written)
        yield file.name
    finally:
        os.unlink(file.name)
