"""Schedulers of PyTorch as schedules of the contract, where both have the same rates."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from ._errors import UsageError
from ._probe import schedule_by_numbers

DRIFT = 1e-6
MILESTONES_MAX = 1024
# Rounding of 1 / (n + 1) in binary64, and nothing else.
ROUNDING = 1e-12


class Refusal(Exception):
    """A scheduler has no counterpart."""


class Fall(NamedTuple):
    """A schedule before the number of steps is known. `total`: steps of a line or a cosine, which PyTorch calls `argument`."""

    name: str
    kind: str = "constant"
    warmup: int = 0
    total: int = 0
    argument: str = ""
    floor: float = 0.0
    is_share: bool = True
    gamma: float = 1.0
    every: int = 0
    milestones: Tuple[int, ...] = ()
    # The functions of parameter groups, whose numbers decide.
    functions: Tuple[Any, ...] = ()


def read(scheduler: Any, optimizer: Any) -> Tuple[Optional[Fall], List[str]]:
    """What a scheduler does, or why the contract has no such schedule."""
    try:
        if getattr(scheduler, "optimizer", None) is not optimizer:
            raise Refusal("the scheduler has another optimizer: make it for the one that is given")
        if getattr(scheduler, "last_epoch", None) != 0:
            raise Refusal("the scheduler has taken steps: a run begins with its first rate; make a new optimizer and scheduler")
        groups = optimizer.param_groups
        if [group["lr"] for group in groups] != scheduler.get_last_lr() or [group["initial_lr"] for group in groups] != _bases(scheduler):
            raise Refusal("learning rates changed after the scheduler was made: make a new optimizer with these rates, then the scheduler")
        fall = _read(scheduler)
        bases = {float(group["initial_lr"]) for group in groups}
        if not fall.is_share and fall.floor > 0 and len(bases) > 1:
            raise Refusal("eta_min is above 0, and parameter groups have several learning rates: a schedule's floor is a share of each")
        if not fall.is_share and fall.floor > min(bases):
            raise Refusal(f"eta_min is {fall.floor}, above the learning rate: a schedule's rate falls")
    except Refusal as refusal:
        return None, [str(refusal)]
    return fall, []


def _bases(scheduler: Any) -> Any:
    """The rates from which a scheduler computes its own."""
    return scheduler.base_lrs if hasattr(scheduler, "base_lrs") else _bases(scheduler._schedulers[0])


def _read(scheduler: Any) -> Fall:
    name = type(scheduler).__name__
    found = _known().get(type(scheduler))
    if found is None:
        known = ", ".join(kind.__name__ for kind in _known())
        raise Refusal(f"the scheduler is a {name}: use one of {known}, or give captured.job a `schedule` (docs/JOB.md)")
    return found(scheduler)


def _known() -> Dict[type, Callable[[Any], Fall]]:
    from torch.optim import lr_scheduler as all_of

    return {
        all_of.ConstantLR: _constant,
        all_of.LinearLR: _linear,
        all_of.PolynomialLR: _polynomial,
        all_of.CosineAnnealingLR: _cosine,
        all_of.StepLR: _step,
        all_of.MultiStepLR: _multi_step,
        all_of.ExponentialLR: _exponential,
        all_of.SequentialLR: _sequential,
        all_of.LambdaLR: _lambda,
    }


def _constant(s: Any) -> Fall:
    if s.factor != 1:
        raise Refusal(f"ConstantLR has factor {s.factor}, and only 1 is there: give the optimizer that learning rate, or use LinearLR")
    return Fall("ConstantLR")


def _linear(s: Any) -> Fall:
    total = _whole("LinearLR", "total_iters", s.total_iters)
    if s.start_factor == s.end_factor == 1:
        return Fall("LinearLR")
    if s.start_factor == 1:
        # Step 1 has the peak: a warm-up of one step.
        return Fall("LinearLR", "linear", 1, total, "total_iters", float(s.end_factor))
    if s.end_factor == 1 and abs(s.start_factor * (total + 1) - 1) < ROUNDING:
        return Fall("LinearLR", warmup=total + 1)
    why = f"LinearLR has start_factor {s.start_factor} and end_factor {s.end_factor}"
    raise Refusal(f"{why}: a warm-up of the contract begins with start_factor=1 / (total_iters + 1) = 1 / {total + 1}, and ends with 1")


def _polynomial(s: Any) -> Fall:
    if s.power != 1:
        raise Refusal(f"PolynomialLR has power {s.power}, and only 1 is there: use power=1 or CosineAnnealingLR")
    return Fall("PolynomialLR", "linear", 1, _whole("PolynomialLR", "total_iters", s.total_iters), "total_iters")


def _cosine(s: Any) -> Fall:
    eta_min = float(s.eta_min)
    if not eta_min >= 0 or not math.isfinite(eta_min):
        raise Refusal(f"CosineAnnealingLR has eta_min {eta_min}: give 0 or more")
    return Fall("CosineAnnealingLR", "cosine", 1, _whole("CosineAnnealingLR", "T_max", s.T_max), "T_max", eta_min, is_share=False)


def _step(s: Any) -> Fall:
    return _falling("StepLR", s.gamma)._replace(every=_whole("StepLR", "step_size", s.step_size))


def _exponential(s: Any) -> Fall:
    return _falling("ExponentialLR", s.gamma)._replace(every=1)


def _multi_step(s: Any) -> Fall:
    twice = [milestone for milestone, times in s.milestones.items() if times != 1]
    if twice:
        raise Refusal(f"MultiStepLR has the milestone {twice[0]} several times: give each once")
    milestones = sorted(_whole("MultiStepLR", "a milestone", milestone) for milestone in s.milestones)
    if not 1 <= len(milestones) <= MILESTONES_MAX:
        raise Refusal(f"MultiStepLR has {len(milestones)} milestones: give 1 to {MILESTONES_MAX}")
    return _falling("MultiStepLR", s.gamma)._replace(milestones=tuple(milestones))


def _falling(name: str, gamma: Any) -> Fall:
    if not 0 <= gamma < 1:
        raise Refusal(f"{name} has gamma {gamma}: a schedule's rate falls, so give gamma from 0 to below 1")
    return Fall(name, "step", gamma=float(gamma))


def _sequential(s: Any) -> Fall:
    falls = [_read(part) for part in s._schedulers]
    shape = "use SequentialLR([LinearLR(..., 1 / (n + 1), 1, n), CosineAnnealingLR or PolynomialLR or LinearLR], milestones=[n])"
    if len(falls) != 2 or falls[0].kind != "constant" or not falls[0].warmup or falls[1].kind not in ("linear", "cosine"):
        raise Refusal(f"SequentialLR has {', then '.join(fall.name for fall in falls)}, and a warm-up before one fall is there: {shape}")
    if list(s._milestones) != [falls[0].warmup - 1]:
        raise Refusal(f"SequentialLR has milestones {list(s._milestones)}, and the warm-up's total_iters is {falls[0].warmup - 1}: {shape}")
    return falls[1]._replace(warmup=falls[0].warmup)


def _lambda(s: Any) -> Fall:
    return Fall("LambdaLR", "probed", functions=tuple(s.lr_lambdas))


def _whole(name: str, argument: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise Refusal(f"{name}: {argument} is {value!r:.40}: give an integer from 1 on")
    return value


def schedule_of(fall: Fall, peak: float, steps: int) -> Dict[str, Any]:
    """The `[schedule]` table of a run of so many steps; an error if the scheduler has other rates than any schedule then."""
    if fall.kind == "probed":
        return schedule_by_numbers(fall.functions, peak, steps)
    table: Dict[str, Any] = {"peak": peak, "warmup": fall.warmup, "kind": fall.kind}
    if fall.kind in ("linear", "cosine"):
        due = steps - fall.warmup
        if fall.total != due:
            why = f"{fall.name} has {fall.argument}={fall.total}, and a run of {steps} steps has {due} after the one with the greatest rate"
            help = f"give steps={fall.total + fall.warmup}, or {fall.argument}={due}: a line or a cosine ends at the run's last step"
            raise UsageError(why, help)
        return {**table, "floor": min(peak * fall.floor if fall.is_share else fall.floor, peak)}
    if fall.kind == "step":
        falls = sum(milestone < steps for milestone in fall.milestones) if fall.milestones else (steps - 1) // fall.every
        rounded = float(np.float32(fall.gamma))
        if fall.gamma and falls * abs(rounded / fall.gamma - 1) > DRIFT:
            why = f"{fall.name} has gamma={fall.gamma}, which binary32 has as {rounded}: after {falls} falls the rates differ by over {DRIFT}"
            raise UsageError(why, f"give gamma={rounded}, which both have")
        table["gamma"] = fall.gamma
        return {**table, "milestones": list(fall.milestones)} if fall.milestones else {**table, "every": fall.every}
    return table
