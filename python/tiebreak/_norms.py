"""Normalisations: of batches, of groups of channels, of the last dimension, and by the root of its mean square."""

from __future__ import annotations

from typing import Any, Dict

from ._formula import increased
from ._formula import rms_norm as rms
from ._matcher import Matcher, Refused, Value, same
from ._whole import whole

Given = Dict[str, Any]
# That of nn.RMSNorm without eps: the distance from 1 to the next number of binary32.
EPSILON = 2.0**-23


def batch_norm(m: Matcher, a: Given, out: Any) -> Value:
    due = not m.is_evaluation
    same("training", a["training"], due, "call model.train() before capture" if due else "call model.eval() before")
    if a["weight"] is None or a["bias"] is None or a["running_mean"] is None:
        raise Refused("it has no weight, bias or running averages", "use affine=True and track_running_stats=True")
    momentum = 0.5 if m.is_evaluation else a["momentum"]
    if not isinstance(momentum, float) or m.momentum not in (None, momentum):
        raise Refused(f"momentum is {momentum!r:.60}, and a network has one number for all", "use one momentum")
    m.momentum = momentum
    x, layout = m.any(a["input"])
    if (layout, len(a["input"].shape)) not in (("rows", 2), ("image", 4)):
        raise Refused(f"it normalises {list(a['input'].shape)} ({layout})", "normalise images, or rows [N, C]")
    buffers = [m.buffers[buffer.name] for buffer in out.args[3:5]]
    if any(buffer in m.norms for buffer in buffers):
        raise Refused("its running averages would be those of two normalisations", "give each use a module of its own")
    names = [m.parameter(a[key]) for key in ("weight", "bias")]
    name = m.node("batch_norm", x, *names, epsilon=a["eps"])
    m.norms.update({buffer: f"{name}.{key}" for buffer, key in zip(buffers, ("running_mean", "running_var"))})
    return Value(name, layout, tuple(out.meta["val"].shape))


def layer_norm(m: Matcher, a: Given, out: Any) -> Value:
    x, shape = whole(m, a["input"]), tuple(out.meta["val"].shape)
    same("normalized_shape", list(a["normalized_shape"]), [shape[-1]], "normalise the last dimension alone")
    names = [_gain(m, a[key], shape[-1], number) for key, number in (("weight", 1), ("bias", 0))]
    if x.layout == "last":
        return Value(m.node("layer_norm", x.name, *names, epsilon=a["eps"]), "last", shape)
    if x.layout in ("split", "heads"):
        heads = shape[2 if x.layout == "split" else 1]
        name = m.node("layer_norm", m.node("rows_of", x.name, tail="heads", count=shape[-1]), *names, epsilon=a["eps"])
        return x._replace(name=m.node("rows_of", name, tail="rows", count=heads * shape[-1]))
    return Value(m.node("layer_norm", m.rows(x), *names, epsilon=a["eps"]), "rows", shape)


def _gain(m: Matcher, value: Any, channels: int, number: float) -> str:
    """A weight or a bias of a normalisation: a parameter, one to which a number is added, or that number of each channel."""
    if value is None:
        return m.vector(channels, number)
    value, more = increased(value)
    name = m.parameter(value)
    return m.node("bias", name, m.vector(channels, more), tail="gain") if more else name


def group_norm(m: Matcher, a: Given, out: Any) -> Value:
    x, shape = a["input"], tuple(out.meta["val"].shape)
    if len(shape) == 2 and a["num_groups"] == 1:
        return layer_norm(m, {**a, "normalized_shape": shape[1:]}, out)
    if len(shape) != 4:
        raise Refused(f"it normalises {list(shape)} ({x.layout})", "normalise images [B, C, H, W], or use nn.LayerNorm over the last dimension")
    image = m.image(x)
    names = [m.vector(shape[1], number) if a[key] is None else m.parameter(a[key]) for key, number in (("weight", 1), ("bias", 0))]
    return Value(m.node("group_norm", image, *names, groups=a["num_groups"], epsilon=a["eps"]), "image", shape)


def rms_norm(m: Matcher, a: Given, out: Any) -> Value:
    same("normalized_shape", list(a["normalized_shape"]), [a["input"].shape[-1]], "normalise the last dimension alone")
    return rms(m, a["input"], a["weight"], EPSILON if a["eps"] is None else a["eps"])
