#!/usr/bin/env python3
"""Golden vectors of exp, log, tanh and erf: correctly rounded by mpmath at 400 bits. Shares no code with the project.

Writes elementary.json beside itself. Inputs: special cases, random patterns, patterns of random exponents, and the
lines of hard.txt (function and pattern): the inputs whose results lie nearest to the middle of two binary32, as
`tiebreak selftest --exhaustive` lists them. Needs mpmath from PyPI.

    python3 assets/vectors/elementary.py
"""

import json
import pathlib
import random
import struct

import mpmath
from mpmath import mp, mpf

mp.prec = 400
NAN, INF, SIGN = 0x7FC00000, 0x7F800000, 0x80000000


def value(x):
    return mpf(struct.unpack(">f", struct.pack(">I", x))[0])


def to_bits(v):
    """A nonzero real, never a middle, to binary32 by RNE."""
    sign, m = (SIGN, -v) if v < 0 else (0, v)
    exponent = int(mpmath.floor(mpmath.log(m, 2)))
    while mpf(2) ** exponent > m:
        exponent -= 1
    while mpf(2) ** (exponent + 1) <= m:
        exponent += 1
    quantum = max(exponent - 23, -149)
    n = int(mpmath.nint(m * mpf(2) ** -quantum))
    if n >= 2**24:
        n, quantum = n // 2, quantum + 1
    if n < 2**23:
        return sign | n
    field = quantum + 150
    return sign | (INF if field >= 255 else field << 23 | n - 2**23)


def function(name, x):
    if x & ~SIGN > INF:
        return NAN
    negative, zero, infinite = bool(x & SIGN), x & ~SIGN == 0, x & ~SIGN == INF
    if name == "exp":
        if zero:
            return 0x3F800000
        if infinite:
            return 0 if negative else INF
        v = value(x)
        return INF if v > 200 else 0 if v < -200 else to_bits(mpmath.exp(v))
    if name == "log":
        if zero:
            return INF | SIGN
        if negative:
            return NAN
        if infinite:
            return INF
        return 0 if x == 0x3F800000 else to_bits(mpmath.log(value(x)))
    if zero:
        return x
    if infinite or abs(value(x)) > 50:
        return x & SIGN | 0x3F800000
    v = value(x)
    if name == "tanh" and abs(v) < mpf(2) ** -60:
        return x  # x - x^3/3 is nearer to x than to any neighbour's middle
    return to_bits(mpmath.tanh(v) if name == "tanh" else mpmath.erf(v))


def main():
    here = pathlib.Path(__file__).parent
    rng = random.Random(3)
    special = [0, 1, 2, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x7F7FFFFF, INF, NAN, 0x7F800001,
               0x42B17217, 0x42B17218, 0x42CFF1B5, 0x42CE8ED0, 0x33000000, 0x33000001, 0x33800000, 0x39800000,
               0x397FFFFF, 0x3980_0001, 0x41102CB3, 0x407AD445, 0x40800000, 0x3D800000, 0x3E000000]
    inputs = special + [x | SIGN for x in special]
    inputs += [rng.getrandbits(32) for _ in range(800)]
    inputs += [rng.getrandbits(1) << 31 | rng.randrange(90, 137) << 23 | rng.getrandbits(23) for _ in range(2500)]
    rows = {name: list(inputs) for name in ("exp", "log", "tanh", "erf")}
    hard = here / "hard.txt"
    for line in hard.read_text().split("\n") if hard.exists() else []:
        if line and not line.startswith("#"):
            name, x = line.split()
            rows[name].append(int(x, 16))
    comment = ("Made by elementary.py (mpmath, 400 bits). For each function: [input, output] as unsigned 32-bit "
               "integers, the binary32 patterns.")
    body = [f'  "_comment": {json.dumps(comment)}']
    for name, xs in rows.items():
        lines = ",\n".join(f"    [{x}, {function(name, x)}]" for x in xs)
        body.append(f'  "{name}": [\n{lines}\n  ]')
    (here / "elementary.json").write_text("{\n" + ",\n".join(body) + "\n}\n")


if __name__ == "__main__":
    main()
