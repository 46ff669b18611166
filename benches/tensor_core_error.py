#!/usr/bin/env python3
"""Errors of products on tensor cores, by a model of them: behind the thresholds' caps and the shares of docs/ROUNDING.md, sections 3 and 8.

    benches/tensor_core_error.py [--values N]

The model has the parameters of compute capability 8.0 (docs/ROUNDING.md, section 4), the worst of those that are allowed: eight products of
bfloat16 numbers and the sum so far are aligned to the largest and cut off below its 24th bit; their sum is cut to binary32. For rows of K
normal numbers it prints, in the table's units of 2^-32 of the norms:
  beyond 2^-20 |v|  the largest error that a threshold has to cover, also relative to sqrt(K) and to K
  not the nearest   the share of decisions at the default threshold that are not the exact product's nearest value, if boundaries of the grid lie
                    anywhere alike: the mean error over twice the tolerance; and how many of them go away from zero
"""
import argparse
import math
import random
import struct

UNIT = 2.0**32


def bfloat16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def cut(x, bits):
    """x without what is below so many bits of it."""
    if x == 0:
        return 0.0
    quantum = math.ldexp(1, math.frexp(x)[1] - bits)
    return math.trunc(x / quantum) * quantum


def tensor_core(a, b):
    total = 0.0
    for i in range(0, len(a), 8):
        terms = [x * y for x, y in zip(a[i : i + 8], b[i : i + 8])] + [total]
        largest = max(map(abs, terms))
        if largest == 0:
            continue
        quantum = math.ldexp(1, math.frexp(largest)[1] - 25)
        total = cut(sum(math.trunc(term / quantum) for term in terms) * quantum, 24)
    return total


def operand(k, kind):
    mean = 0.3 if kind == "mean 0.3" else 0.0
    row = [bfloat16(random.gauss(mean, 1)) for _ in range(k)]
    return list(map(abs, row)) if kind == "one sign" else row


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--values", type=int, default=1 << 18, help="terms of all rows of a line together")
    values = arguments.parse_args().values
    random.seed(1)
    print("terms       K     beyond 2^-20 |v|   / sqrt(K)      / K   not the nearest   away from zero")
    for kind in ("normal", "mean 0.3", "one sign"):
        for k in (64, 1024, 8192, 65536):
            most, shares, away, count = 0.0, [], 0.0, max(values // k, 8)
            for _ in range(count):
                a, b = operand(k, kind), operand(k, kind)
                exact, value = math.fsum(x * y for x, y in zip(a, b)), tensor_core(a, b)
                norms = math.sqrt(math.fsum(x * x for x in a) * math.fsum(x * x for x in b))
                error, relative = abs(value - exact), 2.0**-20 * abs(value)
                most = max(most, (error - relative) / norms * UNIT)
                shares.append(error / (2 * (160 * math.sqrt(k) / UNIT * norms + relative)))
                away += shares[-1] if (value - exact) * exact > 0 else 0.0
            share, away = sum(shares) / count, away / max(sum(shares), 1e-30)
            print(
                f"{kind:9} {k:5} {most:18.0f} {most / math.sqrt(k):11.1f} {most / k:8.2f} {100 * share:15.2f} % {100 * away:14.0f} %"
            )


main()
