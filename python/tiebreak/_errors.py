"""Errors of the package: one class for each way in which a call can fail, each with what helps."""

from __future__ import annotations

from typing import Optional, Sequence

# The refusals that a message lists.
REFUSED_MAX = 20


class Error(Exception):
    """A call failed. `message` says why, `help` what to do about it, `exit_code` how the command would have ended."""

    exit_code = 3

    def __init__(self, message: str, help: Optional[str] = None) -> None:
        super().__init__(message if help is None else f"{message}\nhelp: {help}")
        self.message = message
        self.help = help


class UsageError(Error, ValueError):
    """An argument or a job is wrong, or a path leads nowhere."""

    exit_code = 2


class CaptureError(UsageError):
    """A model, a loss or an optimizer has a part that the contract has no counterpart of. `refused` lists all of them."""

    def __init__(self, refused: Sequence[str]) -> None:
        self.refused = list(dict.fromkeys(refused))
        more = len(self.refused) - REFUSED_MAX
        lines = self.refused[:REFUSED_MAX] + ([f"and {more} more"] if more > 0 else [])
        super().__init__("the model cannot be captured:\n" + "\n".join(f"- {line}" for line in lines), "docs/how-to/capture.md lists what can be captured")


class UndecidedError(Error, RuntimeError):
    """This machine could not do it or decide it: a device, memory, a disk or a limit is in the way."""

    exit_code = 3


class MalformedError(Error):
    """A file is not what it should be: it is damaged, or somebody else's key signed it."""

    exit_code = 4


class BugError(Error):
    """The program itself is wrong. The text has what a report of the bug needs."""

    exit_code = 70

    def __init__(self, where: str) -> None:
        super().__init__(
            f"tiebreak has a bug: {where}",
            "please report this text, the call and tiebreak.__version__; nothing that was written before is lost",
        )


class RunWarning(UserWarning):
    """Something about a run deserves a look, such as a gradient that is not finite."""


def of_exit(exit_code: int, message: str, help: Optional[str]) -> Error:
    """The error of a command that ended with this code."""
    kinds = {2: UsageError, 4: MalformedError}
    return kinds.get(exit_code, UndecidedError)(message, help)
