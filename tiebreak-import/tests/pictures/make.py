#!/usr/bin/env python3
"""Makes the pictures of this folder: JPEG and PNG files of the kinds that libraries write, small, for the tests of what is whole.

    python3 tiebreak-import/tests/pictures/make.py

Needs Pillow and numpy; the files in the repository were made with Pillow 13.
"""

import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent


def picture(mode, rows=21, columns=37, seed=1):
    """A smooth picture with some noise, whose size is no multiple of a block."""
    random = np.random.default_rng(seed)
    channels = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    y, x = np.mgrid[:rows, :columns]
    planes = [128 + 80 * np.sin(x / (3 + c) + y / 5) + random.normal(0, 12, (rows, columns)) for c in range(channels)]
    pixels = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode)


def interlaced(image):
    """The bytes of an interlaced PNG file, which Pillow does not write."""
    pixels = np.asarray(image)
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b"".join(b"\0" + row.tobytes() for x, y, across, down in passes for row in pixels[y::down, x::across] if row.size)

    def chunk(kind, contents):
        return struct.pack(">I", len(contents)) + kind + contents + struct.pack(">I", zlib.crc32(kind + contents))

    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 1)
    data = zlib.compress(rows)
    halves = chunk(b"IDAT", data[:100]) + chunk(b"IDAT", data[100:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + halves + chunk(b"IEND", b"")


def main():
    """Writes the files."""
    for name, mode, options in [
        ("baseline.jpg", "RGB", {"quality": 60, "subsampling": 0}),
        ("subsampled.jpg", "RGB", {"quality": 60, "subsampling": 2}),
        ("grey.jpg", "L", {"quality": 75}),
        ("restarts.jpg", "RGB", {"quality": 60, "subsampling": 1, "restart_marker_blocks": 1}),
        ("progressive.jpg", "RGB", {"quality": 80, "subsampling": 2, "progressive": True}),
        ("progressive-restarts.jpg", "L", {"quality": 90, "progressive": True, "restart_marker_rows": 1}),
        ("inks.jpg", "CMYK", {"quality": 60}),
        ("colours.png", "RGB", {}),
        ("transparent.png", "RGBA", {}),
    ]:
        picture(mode).save(HERE / name, **options)
    (HERE / "interlaced.png").write_bytes(interlaced(picture("RGB", 9, 5)))
    picture("RGB").quantize(5).save(HERE / "palette.png", bits=4)


if __name__ == "__main__":
    main()
