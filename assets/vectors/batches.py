"""Batches of real data and permutations, drawn by docs/ARITHMETIC.md, section 6, and read by the formats' own descriptions. Shares no code
with us.

    python3 assets/vectors/batches.py DATA > assets/vectors/batches.json

DATA holds cifar-10/train_5000.bin (records of the CIFAR-10 binary version: a label, 3072 pixels) and mnist/t10k-*.gz (IDX).
For each of three steps of four samples: sample numbers, labels and the sums of the pixels. Of permutations: images of some indices.
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
    }
    print(json.dumps(golden, indent=1))


if __name__ == "__main__":
    main()
