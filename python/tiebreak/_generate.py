"""Answers of language models: `generate`, with a built-in model or a captured one."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from operator import index
from typing import AbstractSet as Set
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from ._call import StrPath, count, options, path, result_of, temporary, text
from ._capture import Captured
from ._errors import UndecidedError, UsageError
from ._evaluate import _Found, _job, _of, _words
from ._progress import Wanted
from ._run import Run

PROMPT = "give the prompt as a str, or as a list of token ids"
IDS = "a receipt names a tokenizer, and token ids alone name none: leave receipt, trace, opening and key out, or give the prompt as a str"
TOKENIZER = "give the prompt as a list of token ids, such as a tokenizer of transformers makes"
# What holds no ids in an order.
NO_IDS = (bytes, bytearray, memoryview, Mapping, Set)
SHOWN_MAX = 60
Prompt = Union[str, Sequence[int], Any]


class Answer(_Found):
    """What `generate` wrote: it depends on the model, the prompt, the settings and the seed alone."""

    def __init__(self, result: Dict[str, Any], files: Mapping[str, bytes]) -> None:
        super().__init__(result)
        self._files = dict(files)

    @property
    def text(self) -> str:
        """The prompt and the answer. Of a prompt of token ids, the ids with spaces between them."""
        return self._result["text"]

    @property
    def answer(self) -> str:
        """The text behind the prompt."""
        return self._result["answer"]

    @property
    def tokens(self) -> List[int]:
        """The token ids of the answer, with the one that ended it, if one did."""
        return list(self._result["ids"])

    @property
    def ended(self) -> bool:
        """True if a token ended the text, False if `length` did."""
        return self._result["ended"]

    @property
    def seed(self) -> int:
        """The seed, by which the same call writes the same answer again."""
        return self._result["seed"]

    @property
    def receipt(self) -> Optional[bytes]:
        """The bytes of the receipt, if one was asked for; `tiebreak receipt check` takes them."""
        return self._files.get("receipt")

    @property
    def trace(self) -> Optional[bytes]:
        """The bytes of the trace to which the receipt commits, if one was asked for."""
        return self._files.get("trace")

    @property
    def opening(self) -> Optional[bytes]:
        """The bytes of the opening of a salted receipt, if one was asked for. Keep them from those who may not read the text."""
        return self._files.get("opening")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= SHOWN_MAX else f"{self.text[:SHOWN_MAX]}..."
        return f"<tiebreak.Answer: {shown!r}>"


def generate(
    model: Union[Run, StrPath],
    prompt: Prompt = "\n",
    *,
    length: int = 400,
    temperature: float = 0.8,
    top_k: Optional[int] = None,
    top_p: Optional[float] = None,
    seed: Optional[int] = None,
    network: Union[None, Captured, StrPath] = None,
    job: Union[None, StrPath, Mapping[str, Any]] = None,
    step: Optional[int] = None,
    receipt: Union[bool, StrPath] = False,
    trace: Union[bool, StrPath] = False,
    opening: Union[bool, StrPath] = False,
    key: Optional[StrPath] = None,
    device: str = "cpu",
    adapter: Optional[str] = None,
    threads: int = 0,
    progress: Wanted = None,
) -> Answer:
    """Write text with a trained language model, in the tokens of every engine.

    model, network, job, step: as for `evaluate`. The model is a decoder: a `gpt`, a `llama`, or a captured one.
    prompt: the text that the model goes on with, for a model over bytes. For any model, a list or an array of token ids, such as a tokenizer
        of transformers gives: each id of the model may be written then, and none ends the answer.
    length: the most tokens to write.
    temperature: 0 always takes the most likely token, so it goes with no seed.
    top_k: draw among so many most likely tokens alone.
    top_p: draw among the most likely tokens whose probabilities reach this number together.
    seed: the seed of the draws. Without it a seed is drawn, and `Answer.seed` has it.
    receipt: True for a receipt in `Answer.receipt`, by which others check the answer; or the path of a file for it.
    trace: the same for the trace to which the receipt commits. It costs one more pass over the text.
    opening: the same for the opening of the receipt, which is then salted.
    key: the private key that signs the receipt.
    device, adapter, threads, progress: as for `train`.

    Ctrl-C raises KeyboardInterrupt at once. Models whose tokens are a tokenizer's take a text by the command `tiebreak generate` alone.

    >>> answer = tiebreak.generate("runs/first", "to be", length=20, seed=7, receipt=True, key="me.key")
    >>> answer.text, answer.tokens, answer.receipt
    """
    wanted = {"receipt": receipt, "trace": trace, "opening": opening, "key": key}
    asked = [name for name, value in wanted.items() if value is not None and value is not False]
    words = _prompt(prompt, asked) + _words(network, step, None, (device, adapter, threads))
    if asked and "receipt" not in asked:
        raise UsageError(f"{asked[0]} is given, and no receipt is asked for", "give receipt too, as True or a path")
    words += options(
        length=_below("length", length),
        temperature=_number("temperature", temperature),
        top_k=None if top_k is None else _below("top_k", top_k, 1),
        top_p=None if top_p is None else _number("top_p", top_p),
        seed=None if seed is None else _seed(seed),
        key=None if key is None else path("key", key),
    )
    if seed is not None and float(temperature) == 0:
        raise UsageError("temperature is 0, so that seed changes nothing", "leave seed out, or give another temperature")
    with ExitStack() as held:
        folder = held.enter_context(temporary())
        files = {
            name: os.path.join(folder, name) if wanted[name] is True else path(name, wanted[name]) for name in asked if name != "key"
        }
        words += options(**files) + _job(held, job)
        try:
            _, result = result_of(["generate", *words, "--", _of(model)], progress)
        except UsageError as error:
            if error.help is None or "--ids" not in error.help:
                raise
            raise UsageError(error.message.partition(": name one with --tokenizer")[0], TOKENIZER) from None
        if any(value is True for value in (receipt, trace, opening)):
            # The command's next step names a file that is gone then.
            result = {**result, "next": []}
        return Answer(result, {name: _bytes(file) for name, file in files.items()})


def _prompt(prompt: Prompt, asked: Sequence[str]) -> List[str]:
    """The words of a prompt. `asked`: what is asked for besides the answer."""
    if isinstance(prompt, str):
        return options(prompt=text("prompt", prompt))
    kind, shape, dtype = type(prompt).__name__, getattr(prompt, "shape", None), str(getattr(prompt, "dtype", ""))
    if isinstance(prompt, NO_IDS):
        raise UsageError(f"prompt is a {kind}", PROMPT)
    if shape is not None and (len(shape) != 1 or "int" not in dtype):
        raise UsageError(f"prompt is an array {list(shape)} of {dtype}", f"{PROMPT} or an array [ids] of integers")
    try:
        tokens = list(prompt)
    except Exception as error:  # noqa: BLE001 - whatever an iterable raises
        raise UsageError(f"prompt is a {kind}, which gives no ids: {str(error)[:200]}", PROMPT) from None
    if not tokens:
        raise UsageError("prompt has no token ids", PROMPT)
    ids = [_token(place, token) for place, token in enumerate(tokens)]
    if asked:
        raise UsageError(f"{asked[0]} is given, and the prompt is token ids", IDS)
    return options(ids=True, prompt=" ".join(map(str, ids)))


def _token(place: int, token: Any) -> int:
    """A token id of a prompt."""
    try:
        number = None if isinstance(token, bool) else index(token)
    except Exception:  # noqa: BLE001 - whatever an item's __index__ raises
        number = None
    if number is None or not 0 <= number < 2**32:
        shown = f"a {type(token).__name__}" if number is None and not isinstance(token, (bool, float, str)) else repr(token if number is None else number)
        raise UsageError(f"prompt[{place}] is {shown:.60}", f"{PROMPT} from 0 on")
    return number


def _below(name: str, value: Any, least: int = 0) -> int:
    """A number of things of 32 bits."""
    number = count(name, value, least)
    if number >= 2**32:
        raise UsageError(f"{name} is {number}", f"give {name} as an integer from {least} to 2**32 - 1")
    return number


def _seed(value: Any) -> int:
    """A seed, of 64 bits."""
    try:
        number = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**64:
        raise UsageError(f"seed is {value!r:.60}", "give seed as an integer from 0 to 2**64 - 1")
    return number


def _number(name: str, value: Any) -> str:
    """The decimal text of a number, which the command rounds once."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} is {value!r:.60}", f"give {name} as a finite number")
    return repr(number)


def _bytes(file: str) -> bytes:
    try:
        with open(file, "rb") as written:
            return written.read()
    except OSError as error:
        raise UndecidedError(f"{file} cannot be read again: {error}", "make room on the disk, and call again") from None
