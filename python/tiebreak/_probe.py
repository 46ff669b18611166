"""Schedules that a function of the step gives, such as those of transformers: recognised by the numbers of every step."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence

import numpy as np

from ._errors import UsageError

STEPS_MAX = 10**6
# A step's rate may differ by this share of it, and by this share of the greatest one: both compute a cosine near -1.
DRIFT = 1e-6
ROUNDING = 1e-12
OTHERWISE = "give captured.job a `schedule` (docs/JOB.md)"


def schedule_by_numbers(functions: Sequence[Callable[[int], float]], rate: float, steps: int) -> Dict[str, Any]:
    """The `[schedule]` table whose rates are those of LambdaLR in a run of so many steps. `functions` are those of its groups."""
    if steps > STEPS_MAX:
        raise UsageError(f"a run of {steps} steps has a LambdaLR, whose function is called for each step", f"give at most {STEPS_MAX} steps")
    different = {id(function): function for function in functions}
    first, *others = (_factors(function, steps + 1) for function in different.values())
    if any(not np.array_equal(first, other) for other in others):
        raise UsageError("LambdaLR gives parameter groups several schedules, and a run has one", "give all groups one function")
    found = _fit(first[:steps])
    if found is None:
        why = f"LambdaLR's rates are those of no schedule of the contract: its function is {first[0]:g}, {first[1]:g}, .. {first[steps - 1]:g}"
        if _fit(first[1:]) is None:
            raise UsageError(f"{why} in {steps} steps", OTHERWISE)
        help = "give LambdaLR(optimizer, lambda step: f(step + 1)), f being its function (lr_lambdas[0]): the contract's first step is 1"
        raise UsageError(f"{why} in {steps} steps", f"{help}; or {OTHERWISE}")
    peak, table = found.pop("peak") * rate, found
    if "floor" in table:
        table["floor"] = min(table["floor"] * rate, peak)
    return {"peak": peak, **table}


def _factors(function: Callable[[int], float], count: int) -> np.ndarray:
    """The function's numbers, from step 0 of PyTorch on."""
    try:
        factors = np.array([float(function(step)) for step in range(count)])
    except Exception as error:  # noqa: BLE001 - the function is foreign code
        why = f"LambdaLR's function fails: {type(error).__name__}: {str(error)[:200]}"
        raise UsageError(why, f"give one that takes each step of the run; or {OTHERWISE}") from error
    if not np.all(np.isfinite(factors)) or np.any(factors < 0):
        raise UsageError("LambdaLR's function gives numbers that are not finite, or below 0", f"give a function from 0 up; or {OTHERWISE}")
    return factors


def _fit(factors: np.ndarray) -> Optional[Dict[str, Any]]:
    """The schedule with these shares of the learning rate from step 1 on: the peak and the floor as such shares."""
    steps, last = len(factors), float(factors[-1])
    highest = int(np.argmax(factors))
    # After a warm-up the greatest rate is that of its last step. Without one a fall begins at the optimizer's rate.
    for peak, warmup in ((float(factors[highest]), highest + 1), (1.0, 0)):
        for kind in ("constant", "linear", "cosine"):
            if 0 < peak >= last and _is_near(factors, _rates(peak, warmup, kind, last, steps)):
                return {"peak": peak, "warmup": warmup, "kind": kind, **({} if kind == "constant" else {"floor": last})}
    return None


def _rates(peak: float, warmup: int, kind: str, floor: float, steps: int) -> np.ndarray:
    """The contract's rates (docs/ARITHMETIC.md, section 6), in binary64 with NumPy's cosine."""
    step = np.arange(1, steps + 1)
    done = np.clip(step - warmup, 0, None) / max(steps - warmup, 1)
    left = {"constant": np.ones(steps), "linear": 1 - done, "cosine": 0.5 * (1 + np.cos(np.pi * done))}[kind]
    low = peak if kind == "constant" else floor
    return np.where(step <= warmup, peak * step / max(warmup, 1), low + (peak - low) * left)


def _is_near(factors: np.ndarray, rates: np.ndarray) -> bool:
    return bool(np.all(np.abs(factors - rates) <= DRIFT * factors + ROUNDING * factors.max()))
