"""Batches of real data and permutations, drawn by docs/ARITHMETIC.md, section 6, and read by the formats' own descriptions. Shares no code
with us.

    python3 assets/vectors/batches.py DATA > assets/vectors/batches.json

DATA holds cifar-10/train_5000.bin (records of the CIFAR-10 binary version: a label, 3072 pixels) and mnist/t10k-*.gz (IDX).
For each of three steps of four samples: sample numbers, labels and the sums of the pixels. Of permutations: images of some indices. Of augmentation: a small image after the
moves of some places.
"""

import gzip
import json
import sys
from pathlib import Path

MASK = 0xFFFFFFFF
KEY = (0x12345678, 0x9ABCDEF0)
BATCH = 4


def philox(key, counter):
    """Philox4x32-10 (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [q >> 32 ^ c[1] ^ k[0], q & MASK, p >> 32 ^ c[3] ^ k[1], p & MASK]
        k = [k[0] + 0x9E3779B9 & MASK, k[1] + 0xBB67AE85 & MASK]
    return c


def block(*counter):
    """A Philox block as one integer of 128 bits, its first word lowest."""
    return sum(word << 32 * i for i, word in enumerate(philox(KEY, counter)))


def below(word, n):
    return (word & (1 << 64) - 1) * n >> 64


def with_replacement(n, step, place):
    return below(block(step, place, MASK, 0), n)


def permuted(n, epoch, index):
    x = index
    for r in range(128):
        k = below(block(epoch, r // 2, 0, 0xFFFFFFFC) >> 64 * (r % 2), n)
        partner = (k - x) % n
        b = max(x, partner)
        if block(epoch, b & MASK, b >> 32, 0xFFFFFFFD) >> r & 1:
            x = partner
    return x


def permutation(n, step, place):
    epoch, index = divmod((step - 1) * BATCH + place, n)
    return permuted(n, epoch, index)


def in_order(n, step, place):
    return ((step - 1) * BATCH + place) % n


def moved(image, planes, augment, step, place):
    """An image, as a row of numbers, cropped and flipped at random."""
    rows, columns = planes
    crop = augment.get("crop", 0)
    words = philox(KEY, (step, place, 0, 0xFFFFFFFB))
    top, left = (word * (2 * crop + 1) >> 32 for word in words[:2])
    out = []
    for at in range(0, len(image), rows * columns):
        plane = [image[at + row * columns : at + (row + 1) * columns] for row in range(rows)]
        wide = [[0] * crop + list(row) + [0] * crop for row in plane]
        blank = [[0] * (columns + 2 * crop)] * crop
        for row in (blank + wide + blank)[top : top + rows]:
            row = row[left : left + columns]
            out += row[::-1] if augment.get("flip") and words[2] >= 1 << 31 else row
    return out


def moves():
    """Two planes of 3 x 4, of the numbers 1 to 24."""
    cases = []
    for crop, flip in ((0, True), (1, False), (2, True), (2, False)):
        for step, place in ((1, 0), (1, 1), (2, 0), (7, 12345), (67108863, 16777215), (3, 2)):
            image = moved(range(1, 25), (3, 4), {"crop": crop, "flip": flip}, step, place)
            cases.append({"crop": crop, "flip": flip, "step": step, "place": place, "image": image})
    return cases


def batches(samples, read):
    drawn = {}
    for draw in (permutation, with_replacement):
        steps = drawn[draw.__name__] = []
        for step in (1, 2, 3):
            numbers = [draw(samples, step, place) for place in range(BATCH)]
            all_read = [read(number) for number in numbers]
            steps.append({"samples": numbers, "labels": [l for l, _ in all_read], "sums": [sum(p) for _, p in all_read]})
    return drawn


def permutations():
    cases = []
    for n in (1, 2, 3, 10, 255, 256, 1000, 65537, (1 << 32) + 7, 1 << 40):
        for epoch in (0, 1, MASK):
            indices = list(range(10)) if n == 10 else sorted({0, 1 % n, n // 3, n - 1})
            cases.append({"samples": n, "epoch": epoch, "indices": indices, "images": [permuted(n, epoch, i) for i in indices]})
    return cases


def main():
    data = Path(sys.argv[1])
    cifar = (data / "cifar-10/train_5000.bin").read_bytes()
    images = gzip.decompress((data / "mnist/t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((data / "mnist/t10k-labels-idx1-ubyte.gz").read_bytes())
    count, rows, columns = (int.from_bytes(images[i : i + 4], "big") for i in (4, 8, 12))
    size = rows * columns
    mnist = lambda i: (labels[8 + i], images[16 + i * size : 16 + (i + 1) * size])
    golden = {
        "cifar10": batches(len(cifar) // 3073, lambda i: (cifar[i * 3073], cifar[i * 3073 + 1 : (i + 1) * 3073])),
        "mnist": batches(count, mnist),
        "permutations": permutations(),
        "moves": moves(),
    }
    print(json.dumps(golden, indent=1))


if __name__ == "__main__":
    main()
