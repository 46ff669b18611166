"""A number for each image and channel that goes to all pixels, such as the gate of a squeeze-and-excitation.

The network keeps such numbers as images of one pixel, [B, 1, 1, C]: layers of them are convolutions, and an adaptive mean repeats them.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from ._matcher import Matcher, Refused, Value


def is_spread(node: Any) -> bool:
    """True if what follows from numbers for each image and channel goes to pixels, or if a convolution takes it."""
    seen, due = set(), [node]
    while due:
        node = due.pop()
        for user in node.users:
            shape = tuple(getattr(user.meta.get("val"), "shape", ()))
            if user in seen or not shape:
                continue
            seen.add(user)
            if len(shape) == 4 and (shape[2:] != (1, 1) or str(user.target).startswith("aten.conv2d.")):
                return True
            if 2 <= len(shape) <= 4 and set(shape[2:]) <= {1}:
                due.append(user)
    return False


def pooled(m: Matcher, image: str, out: Any) -> Value:
    """The mean over the pixels."""
    shape = tuple(out.meta["val"].shape)
    if is_spread(out):
        return Value(m.node("adaptive_avg_pool", image, windows=[1, 1]), _layout(shape), shape)
    return Value(m.node("mean_pool", image), "pooled" if len(shape) == 4 else "rows", shape)


def _layout(shape: Tuple[int, ...]) -> str:
    return "image" if len(shape) == 4 else "pixel"


def is_pixel(value: Any) -> bool:
    return isinstance(value, Value) and (value.layout == "pixel" or (value.layout == "image" and value.shape[2:] == (1, 1)))


def viewed(m: Matcher, value: Value, out: Any) -> Optional[Value]:
    """Numbers for each image and channel in another shape, or at each pixel; None if it is something else."""
    shape = tuple(out.meta["val"].shape)
    if not is_pixel(value) or shape[:2] != value.shape[:2]:
        return None
    if set(shape[2:]) <= {1} and (len(shape) == 4 or is_spread(out)):
        return Value(value.name, _layout(shape), shape)
    return at_each_pixel(m, value, shape) if len(value.shape) == len(shape) == 4 else None


def at_each_pixel(m: Matcher, value: Any, shape: Tuple[int, ...]) -> Any:
    """An image of one pixel, repeated to images of this shape; other values as they are."""
    if not is_pixel(value) or value.shape == shape or len(value.shape) != 4 or value.shape[:2] != shape[:2]:
        return value
    return Value(m.node("adaptive_avg_pool", value.name, tail="repeat", windows=list(shape[2:])), "image", shape)


def at_pixels(m: Matcher, x: Value, weight: Any, bias: Any, out: Any) -> Value:
    """A linear layer of each pixel's channels: a convolution of one pixel."""
    return Value(_layer(m, x, weight, bias), "last", tuple(out.meta["val"].shape))


def linear(m: Matcher, x: Value, weight: Any, bias: Any, out: Any) -> Value:
    """A linear layer of numbers for each image: a convolution of one pixel."""
    if len(x.shape) != 2:
        raise Refused(f"it takes {list(x.shape)} (pixel)", "give the layer [B, C]")
    return Value(_layer(m, x, weight, bias), "pixel", tuple(out.meta["val"].shape))


def _layer(m: Matcher, x: Value, weight: Any, bias: Any) -> str:
    made = m.node("conv2d" if m.convolution == 1 else "conv2d_v2", x.name, m.parameter(weight, "pixel kernels"), stride=1, padding=0)
    return made if bias is None else m.node("bias", made, m.parameter(bias), tail="add_bias")
