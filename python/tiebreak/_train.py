"""Training: `train` and `new_key`."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional, Sequence, Union

from ._call import StrPath, called, count, engine, flag, is_address, options, path, paths, result_of, text
from ._errors import BugError, UndecidedError, UsageError, of_exit
from ._job import job_file
from ._kernels import Kernel, kernel_of
from ._progress import Wanted
from ._run import Run


def train(
    job: Union[StrPath, Mapping[str, Any], None],
    *,
    out: StrPath,
    key: Optional[StrPath] = None,
    data_root: Union[StrPath, Sequence[StrPath], None] = None,
    steps: Optional[int] = None,
    device: str = "cpu",
    adapter: Optional[str] = None,
    threads: int = 0,
    resume: bool = True,
    profile: Optional[str] = None,
    native: Optional[str] = None,
    native_device: Optional[str] = None,
    stop_on_nan: bool = True,
    recompute: bool = False,
    progress: Wanted = None,
) -> Run:
    """Train a job, commit to every step, and return the run.

    job: the path of a job file, or a dict with the same keys. Paths in a dict are relative to the first folder of `data_root`, else to the
        current folder.
        None goes on with the run in `out`, whatever its job is.
    out: the folder of the run. If a run of this job is there, training goes on where it stopped, to the same bits.
    key: the trainer's private key, a file that `new_key` makes. Without a key the heads are not signed.
    data_root: another folder whose files the job may name, or an address below which it may name files; or a list of several.
    steps: the number of training steps, in place of a dict's `steps`.
    device: "cpu", "gpu" (Vulkan, Metal or DX12), "cuda", or "reference". Each gives the same bits.
    adapter: the GPU whose name contains this text.
    threads: threads of the CPU engine; 0 is one for each core.
    resume: False refuses a folder that has a run.
    profile: "logged" lets native kernels compute the products, with a rounding log.
    native: the kernel of the products in the logged profile. "torch" is PyTorch's; other names are those of the command's --native.
    native_device: where PyTorch multiplies: "cpu" or "cuda". The CPU engine computes all else.
    stop_on_nan: stop when a loss, or the model in the end, is not finite.
    recompute: take less memory and more time: compute tensors again instead of keeping them for the backward pass. The bits are the same.
    progress: True draws a bar, None draws one on a terminal, False none. A function is called with a `Progress`.

    Ctrl-C raises KeyboardInterrupt after the step at hand, with a checkpoint. The same call goes on later.

    Raises UsageError for a wrong job or argument, UndecidedError if this machine fails or a loss is not finite, MalformedError for a
    damaged run or data file.

    >>> run = tiebreak.train("job.toml", out="runs/first", key="me.key")
    """
    out = path("out", out)
    begun = os.path.exists(os.path.join(out, "run.json"))
    if begun and not flag("resume", resume):
        raise UsageError(f"{out} has a run already", "name another folder, or leave resume=False out")
    if profile not in (None, "exact", "logged"):
        raise UsageError(f"profile is {profile!r:.60}", 'give profile as "exact" or "logged"')
    words = options(
        out=out,
        key=None if key is None else path("key", key),
        resume=begun,
        profile=profile,
        recompute=flag("recompute", recompute),
        stop_on_nan=None if flag("stop_on_nan", stop_on_nan) else "false",
    )
    words += engine(device, adapter, threads)
    more, kernel = kernel_of(native, native_device, device)
    words += more
    roots = _roots(data_root)
    if isinstance(job, Mapping):
        if steps is not None:
            job = {**job, "steps": count("steps", steps, 1)}
        folder = next((root for root in roots if not is_address(root)), None)
        words += [] if begun else [f"--data-root={root}" for root in roots if root != folder]
        with job_file(job, folder or os.getcwd()) as file:
            _trained([*words, "--", file], out, progress, kernel)
        return Run(out)
    if steps is not None:
        raise UsageError("steps is given beside a job file", "change `steps` in the job file, or give the job as a dict")
    if job is None:
        if not begun:
            raise UsageError(f"{out} has no run to go on with", "give a job")
        _trained(words, out, progress, kernel)
        return Run(out)
    words += [] if begun else [f"--data-root={root}" for root in roots]
    _trained([*words, "--", path("job", job)], out, progress, kernel)
    return Run(out)


def _roots(given: Any) -> List[str]:
    """The folders and addresses in `data_root`."""
    if given is None:
        return []
    if isinstance(given, (str, bytes, os.PathLike)):
        return [path("data_root", given)]
    return paths("data_root", given)


def _trained(words: list, out: str, progress: Wanted, kernel: Optional[Kernel]) -> None:
    exit_code, result, error = called(["train", *words], progress, waits=True, kernel=kernel)
    if error is not None:
        raise of_exit(exit_code, *error)
    if result is None:
        raise BugError(f"train ended with {exit_code} and said nothing")
    if exit_code != 0:
        help = "lower schedule.peak or set clip_norm in a new job; train(..., stop_on_nan=False) goes on to the same bits"
        raise UndecidedError(str(result.get("why", "training stopped")), help if result.get("not_finite") else None)



def new_key(file: StrPath, name: str) -> str:
    """Make a pair of keys: the private one in `file`, which nobody else may read, and the public one in `file`.pub.

    name: what the key is called, such as a domain of yours. Returns the public key's text.

    >>> tiebreak.new_key("me.key", "me.example.org")
    """
    file = path("file", file)
    result_of(["key", "new", *options(name=text("name", name)), "--", file])
    with open(f"{file}.pub", encoding="utf-8") as public:
        return public.read().strip()
