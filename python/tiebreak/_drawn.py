"""Stochastic depth: one draw for each sample, of which a model makes 0 or 1 (`bernoulli_`, or the floor of a uniform number), and by which it multiplies
activations. The draws are the contract's, as those of dropout.
"""

from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional

from ._matcher import Matcher, Refused, Value
from ._whole import times as product
from ._whole import whole

Given = Dict[str, Any]
INSTEAD = (
    "draw one number for each sample, [B, 1, ..], by torch.rand or bernoulli_, and multiply activations by it, as torchvision's StochasticDepth and "
    "transformers' drop_path do; or use nn.Dropout"
)


class Draw(NamedTuple):
    """A number for each sample: 0, or `factor` with the probability `kept`. `kept` is None of a uniform number, to which `added` was added. `node` draws it."""

    node: Any
    kept: Optional[float]
    factor: float = 1.0
    added: Optional[float] = None


def _of_samples(m: Matcher, shape: Any) -> None:
    if not m.batch or len(shape) < 2 or shape[0] != m.batch or math.prod(shape[1:]) != 1:
        raise Refused(f"it draws {list(shape)} numbers, which are not one for each of {m.batch} samples", INSTEAD)


def unwritten(m: Matcher, a: Given, out: Any) -> Value:
    return Value(None, "unwritten", tuple(out.meta["val"].shape))


def uniform(m: Matcher, a: Given, out: Any) -> Value:
    shape = tuple(out.meta["val"].shape)
    _of_samples(m, shape)
    return Value(Draw(out, None), "draw", shape)


def bernoulli(m: Matcher, a: Given, out: Any) -> Value:
    if a["self"].layout not in ("constant", "unwritten"):
        raise Refused("it draws into a tensor of activations", INSTEAD)
    _of_samples(m, a["self"].shape)
    return Value(_drawn(out, a["p"]), "draw", a["self"].shape)


def _drawn(node: Any, kept: float) -> Draw:
    if not isinstance(kept, (int, float)) or not 0 < kept <= 1:
        raise Refused(f"it keeps a sample with the probability {kept!r:.40}", "give a probability of dropping at least 0 and below 1")
    return Draw(node, float(kept))


def increased(x: Value, y: Any) -> Value:
    """A uniform number plus the probability by which a sample is kept."""
    if x.name.kept is not None or x.name.added is not None or not isinstance(y, (int, float)):
        raise Refused("it adds something else than one probability to a draw", INSTEAD)
    return x._replace(name=x.name._replace(added=float(y)))


def floor(m: Matcher, a: Given, out: Any) -> Value:
    x = a["self"]
    if not isinstance(x, Value) or x.layout != "draw" or x.name.added is None:
        raise Refused("it rounds down something else than the sum of a uniform number and a probability", INSTEAD)
    return x._replace(name=_drawn(x.name.node, x.name.added))


def _number_of(y: Any) -> float:
    """The number by which a formula multiplies; 1 of anything else."""
    if isinstance(y, Value) and y.layout == "formula" and y.name.op == "mul":
        return next((float(n) for n in y.name.args if isinstance(n, (int, float))), 1.0)
    return 1.0


def multiplied(m: Matcher, x: Any, y: Any, out: Any) -> Value:
    """A draw times a number, or activations times a draw."""
    x, y = (x, y) if isinstance(x, Value) and x.layout == "draw" else (y, x)
    if x.name.kept is None:
        raise Refused("it multiplies by a uniform number", INSTEAD)
    if isinstance(y, (int, float)):
        return x._replace(name=x.name._replace(factor=x.name.factor * y))
    before, y = _number_of(y), whole(m, y)
    if not isinstance(y, Value) or y.layout == "draw" or len(y.shape) != len(x.shape) or y.shape[0] != m.batch:
        raise Refused("it multiplies a draw by something else than activations of each sample", INSTEAD)
    if x.name.kept == 1:
        return product(m, y, x.name.factor, out) if x.name.factor != 1 else y
    if m.draws.setdefault(x.name.node, out) is not out:
        raise Refused("it multiplies by a draw that another operator multiplies by already", "draw anew for each product, or multiply once")
    # The dropout divides what it keeps by the probability.
    factor = x.name.factor * x.name.kept
    if not math.isclose(before * factor, 1, rel_tol=1e-6):
        raise Refused(
            f"it keeps a sample with the probability {x.name.kept} without dividing what it keeps by that: an evaluation would differ from model.eval()",
            "divide the draw, or what it multiplies, by the probability of keeping a sample",
        )
    if not math.isclose(factor, 1, rel_tol=1e-12):
        y = product(m, y, factor, out)
    name, layout = m.any(y)
    return Value(m.node("sample_dropout", name, p=1 - x.name.kept), layout, y.shape)
