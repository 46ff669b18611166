"""The native module, which the other files of the package call."""

from typing import Callable, List, Optional, Tuple

__version__: str

class Failed(Exception):
    """(exit code, message, help)"""

class Panic(Exception):
    """The native module has a bug."""

_Progress = Tuple[int, int, str, str]
_Ended = Tuple[int, Optional[str], Optional[Tuple[str, Optional[str]]]]
_Place = Tuple[str, int]
_Piece = Tuple[List[int], List[int], int, Optional[_Place], Optional[bytes]]
_Record = Tuple[str, int, str, str, List[Optional[str]], Optional[Tuple[float, float, float, int]]]

class Pass:
    """A graph that an engine has compiled."""

    def __init__(
        self, text: str, outputs: List[str], activations: List[str], gradients: Optional[List[str]], engine: Tuple[str, int]
    ) -> None: ...
    def ports(self) -> List[List[Tuple[str, List[int]]]]: ...
    def run(self, tensors: List[bytes]) -> List[bytes]: ...

class Recording:
    """A recording that runs in a thread of its own."""

    def __init__(self, words: List[str]) -> None: ...
    def put(self, parts: List[bytes]) -> None: ...
    def close(self) -> None: ...
    def wait(
        self, heard: Callable[[Optional[_Progress], List[str]], object], patient: bool
    ) -> Tuple[int, float, List[Tuple[str, List[int]]], Optional[_Ended]]: ...

def call(
    words: List[str], heard: Callable[[Optional[_Progress], List[str]], object], waits: bool
) -> Tuple[int, Optional[str], Optional[Tuple[str, Optional[str]]]]: ...
def panics(text: str) -> None: ...
def read(path: str) -> Tuple[str, int, str, List[int], Optional[str]]: ...
def records(path: str, first: int, most: int) -> List[_Record]: ...
def losses(path: str) -> bytes: ...
def tensors(path: str, step: Optional[int], own: bool) -> Tuple[int, List[Tuple[str, List[int], List[_Piece]]]]: ...
