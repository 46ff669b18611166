#!/usr/bin/env python3
"""Prints the constants of exp.wgsl, log.wgsl, tanh.wgsl and erf.wgsl, and erf's of cuda-bridge/src/translate/binary64.cuh (mpmath from PyPI).

    python3 shaders/shared/make-tables.py
"""

from mpmath import bernoulli, erf, exp, factorial, floor, ln, mp, mpf, pi, sqrt

mp.prec = 400


def pair(x):
    n = int(floor(x))
    assert 0 <= n < 2**64
    return f"vec2<u32>(0x{n & 0xFFFFFFFF:08x}u, 0x{n >> 32:08x}u)"


def table(name, values):
    print(f"const {name}: array<vec2<u32>, {len(values)}> = array<vec2<u32>, {len(values)}>(")
    print(",\n".join("    " + pair(v) for v in values))
    print(");")


L = int(floor(2**95 / ln(2)))
print("log2(e) * 2^95:", ", ".join(f"0x{L >> s & 0xFFFFFFFF:08x}u" for s in (0, 32, 64)))
print("const E_LN2: vec2<u32> =", pair(ln(2) * 2**64), ";")
table("E_POWERS", [mpf(2) ** (mpf(j) / 16) * 2**63 for j in range(16)])
table("E_FACTORIALS", [mpf(2) ** 64 / factorial(n) for n in range(10, 1, -1)])
table("E_ODD", [mpf(2) ** 64 / (2 * n + 1) for n in range(13, 0, -1)])
# tanh x = sum of 2^2n (2^2n - 1) B_2n / (2n)! x^(2n-1)
tan = [abs(mpf(2) ** (2 * n) * (mpf(2) ** (2 * n) - 1) * bernoulli(2 * n) / factorial(2 * n)) for n in range(2, 15)]
table("E_TANH", [t * 2**64 for t in reversed(tan)])
table("E_ERF", [mpf(2) ** 64 / (factorial(n) * (2 * n + 1)) for n in range(15, 0, -1)])
print("const E_SLOPE: vec2<u32> =", pair(2 / sqrt(pi) * 2**63), ";")
table("E_ERF_AT", [erf(mpf(i) / 8) * 2**62 for i in range(4, 33)])
table("E_SLOPE_AT", [2 / sqrt(pi) * exp(-mpf(i * i) / 64) * 2**62 for i in range(4, 33)])
table("E_INVERSE", [mpf(2) ** 64 / (n + 1) - (n == 0) for n in range(17)])

print("ERF_AT:")
for i in range(33):
    print(f"{{{float(erf(mpf(i) / 8)).hex()}, {float(2 / sqrt(pi) * exp(-mpf(i * i) / 64)).hex()}}},")
