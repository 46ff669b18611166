"""Convolutions over positions, of [B, C, T]: a convolution of images that are one pixel wide."""

from __future__ import annotations

from typing import Any, Dict

from . import _positions
from ._matcher import Matcher, Refused, Value, same, square


def conv1d(m: Matcher, a: Dict[str, Any], out: Any) -> Value:
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
