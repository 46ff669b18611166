"""Images whose pixels are moved: padding of other sizes on each side, means that do not count it, and rows of numbers as images of one channel."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from ._matcher import Matcher, Refused, Value
from ._positions import exchanged
from ._whole import times_table

Given = Dict[str, Any]


def padded(m: Matcher, x: Value, sides: Tuple[int, int, int, int]) -> Value:
    """An image with rows of zeros above and below, and columns of zeros on the left and on the right."""
    name = m.image(x)
    (samples, channels, height, width), (above, below, left, right) = x.shape, sides
    if left or right:
        name = m.node("rows_of", name, tail="lines", count=width * channels)
        width += left + right
        name = m.node("place_channels", name, tail="columns", first=left * channels, step=1, count=width * channels)
    if above or below:
        name = m.node("rows_of", name, tail="lines", count=width * channels)
        height += above + below
        name = m.node("place_positions", name, tail="lines", first=above, step=1, count=height)
    return Value(_image(m, name, channels, height, width), "image", (samples, channels, height, width))


def _image(m: Matcher, name: str, channels: int, height: int, width: int) -> str:
    """Rows of any number of channels as an image of this size."""
    return m.node("as_image", m.node("rows_of", name, tail="pixels", count=channels), tail="image", size=[height, width])


def of_counted(m: Matcher, name: str, shape: Any, a: Given) -> str:
    """Means of windows whose padding counts as pixels, as means of the other pixels alone."""
    import torch

    _, channels, height, width = shape
    ones = torch.ones(1, 1, *a["self"].shape[2:])
    counted = torch.nn.functional.avg_pool2d(ones, a["kernel_size"], a["stride"] or None, a["padding"], count_include_pad=True)
    table = (1 / counted).reshape(height * width, 1).expand(-1, channels).numpy()
    rows = times_table(m, m.node("rows", name, tail="rows"), table)
    return m.node("as_image", rows, tail="image", size=[height, width])


def of_one_channel(m: Matcher, x: Value) -> Value:
    """Rows [B, H, W] of the inputs as images of one channel."""
    samples, height, width = x.shape
    return Value(_image(m, m.rows(x), 1, height, width), "image", (samples, 1, height, width))


def turned(m: Matcher, x: Value) -> Value:
    """An image of one channel with rows and columns exchanged."""
    samples, channels, height, width = x.shape
    if channels != 1:
        raise Refused(f"it exchanges rows and columns of images of {channels} channels", "exchange those of images of one channel alone")
    lines = exchanged(m, m.node("rows_of", m.image(x), tail="lines", count=width))
    return Value(_image(m, lines, 1, width, height), "image", (samples, 1, width, height))
