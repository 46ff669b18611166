"""Convolutions of images, and over positions, of [B, C, T], as images that are one pixel wide."""

from __future__ import annotations

from typing import Any, Dict

from . import _pixels, _positions
from ._matcher import Matcher, Refused, Value, same, square

Given = Dict[str, Any]


def conv2d(m: Matcher, a: Given, out: Any) -> Value:
    if isinstance(a["padding"], str):
        a = {**a, "padding": _named_padding(a)}
    same("dilation", square("dilation", a["dilation"]), 1, "use dilation=1")
    image, sides = a["input"], list(a["padding"]) * (2 // len(a["padding"])) if isinstance(a["padding"], (list, tuple)) else [a["padding"]] * 2
    if sides[0] != sides[1]:
        image, sides = _pixels.padded(m, image, (sides[0], sides[0], sides[1], sides[1])), [0, 0]
    x, weight = m.image(image), m.parameter(a["weight"], "kernels")
    attributes = {"stride": square("stride", a["stride"]), "padding": sides[0]}
    if a["groups"] == 1:
        y = m.node("conv2d" if m.convolution == 1 else "conv2d_v2", x, weight, **attributes)
    else:
        same("convolution", m.convolution, 1, "capture convolutions of groups with convolution=1")
        y = m.node("grouped_conv2d", x, weight, groups=a["groups"], **attributes)
    if a["bias"] is not None:
        y = m.node("bias", y, m.parameter(a["bias"]), tail="add_bias")
    return Value(y, "image", tuple(out.meta["val"].shape))


def _named_padding(a: Given) -> Any:
    """The number of a padding that is given as a word."""
    if a["padding"] == "valid":
        return 0
    kernel = list(a["weight"].shape[2:])
    if square("stride", a["stride"]) != 1 or any(size % 2 == 0 for size in kernel):
        raise Refused(f"padding is {a['padding']!r} with a kernel of {kernel} and stride {a['stride']}", "use kernels of odd sizes and stride 1")
    return [size // 2 for size in kernel]


def conv1d(m: Matcher, a: Given, out: Any) -> Value:
    x, weight, shape = a["input"], a["weight"], tuple(out.meta["val"].shape)
    same("dilation", square("dilation", a["dilation"]), 1, "use dilation=1")
    if not isinstance(x, Value) or len(x.shape) != 3 or x.shape[0] != m.batch or x.layout not in ("rows", "raw", "planes"):
        raise Refused(f"it takes {list(x.shape)} ({x.layout})", "give it [B, C, T]: channels, then positions")
    if a["groups"] != 1:
        same("convolution", m.convolution, 1, "capture convolutions of groups with convolution=1")
    kernel, stride, positions = weight.shape[2], square("stride", a["stride"]), x.shape[2]
    padding = _padding(a["padding"], kernel, stride)
    name = m.rows(x._replace(layout="patches")) if x.layout == "planes" else _positions.exchanged(m, m.rows(x))
    if padding:
        positions += 2 * padding
        name = m.node("place_positions", name, tail="padding", first=padding, step=1, count=positions)
    name = m.node("as_image", name, tail="image", size=[positions, 1])
    kernels = m.parameter(weight, "position kernels")
    if a["groups"] == 1:
        name = m.node("conv2d" if m.convolution == 1 else "conv2d_v2", name, kernels, stride=stride, padding=0)
    else:
        name = m.node("grouped_conv2d", name, kernels, groups=a["groups"], stride=stride, padding=0)
    if a["bias"] is not None:
        name = m.node("bias", name, m.parameter(a["bias"]), tail="add_bias")
    return Value(_positions.exchanged(m, m.node("rows", name, tail="rows")), "rows", shape)


def _padding(padding: Any, kernel: int, stride: int) -> int:
    """Zeros before the first position, and as many behind the last one."""
    if padding == "same":
        if kernel % 2 == 0 or stride != 1:
            raise Refused(f"padding is 'same' with a kernel of {kernel} and stride {stride}", "use kernels of odd sizes and stride 1")
        return kernel // 2
    return 0 if padding == "valid" else square("padding", padding)
