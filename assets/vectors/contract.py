#!/usr/bin/env python3
"""Golden vectors of the arithmetic contract, from its text alone (docs/ARITHMETIC.md).

Shares no code with the project: numbers are Python integers and fractions, every rounding is decided by comparing
exact fractions. Writes contract.json beside itself. Needs only the standard library.

    python3 assets/vectors/contract.py
"""

import json
import math
import pathlib
import random
from fractions import Fraction

NAN = 0x7FC00000
INF = 0x7F800000
SIGN = 0x80000000


def is_nan(x):
    return x & ~SIGN > INF


def is_inf(x):
    return x & ~SIGN == INF


def value(x):
    """The exact value of a finite pattern."""
    field, fraction = x >> 23 & 255, x & 0x7FFFFF
    magnitude = Fraction(fraction, 2**149) if field == 0 else Fraction(fraction + 2**23) * Fraction(2) ** (field - 150)
    return -magnitude if x & SIGN else magnitude


def rne(q):
    """A fraction >= 0 to the nearest integer, ties to even."""
    floor = q.numerator // q.denominator
    rest = q - floor
    return floor + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1))


def to_bits(v, zero_sign=0):
    """An exact value to binary32: RNE, gradual underflow, overflow to infinity. zero_sign is used for v == 0."""
    if v == 0:
        return zero_sign
    sign, m = (SIGN, -v) if v < 0 else (0, v)
    exponent = m.numerator.bit_length() - m.denominator.bit_length()
    if Fraction(2) ** exponent > m:
        exponent -= 1
    quantum = max(exponent - 23, -149)
    n = rne(m / Fraction(2) ** quantum)
    if n >= 2**24:
        n, quantum = n // 2, quantum + 1
    if n < 2**23:
        return sign | n  # subnormal (quantum is -149), or zero with its sign
    field = quantum + 150
    return sign | (INF if field >= 255 else field << 23 | n - 2**23)


def add(a, b):
    if is_nan(a) or is_nan(b):
        return NAN
    if is_inf(a) or is_inf(b):
        if is_inf(a) and is_inf(b):
            return a if a == b else NAN
        return a if is_inf(a) else b
    both_minus = (a & b & SIGN) if value(a) == 0 and value(b) == 0 else 0
    return to_bits(value(a) + value(b), both_minus)


def sub(a, b):
    return NAN if is_nan(b) else add(a, b ^ SIGN)


def mul(a, b):
    if is_nan(a) or is_nan(b):
        return NAN
    sign = (a ^ b) & SIGN
    if is_inf(a) or is_inf(b):
        other = b if is_inf(a) else a
        return NAN if other & ~SIGN == 0 else sign | INF
    return to_bits(value(a) * value(b), sign)


def div(a, b):
    if is_nan(a) or is_nan(b):
        return NAN
    sign = (a ^ b) & SIGN
    if is_inf(a):
        return NAN if is_inf(b) else sign | INF
    if is_inf(b):
        return sign
    if b & ~SIGN == 0:
        return NAN if a & ~SIGN == 0 else sign | INF
    return to_bits(value(a) / value(b), sign)


def sqrt(a):
    if is_nan(a):
        return NAN
    if a & ~SIGN == 0 or a == INF:
        return a
    if a & SIGN:
        return NAN
    v = value(a)
    # 40 bits below the root's last place, and a sticky bit, decide the rounding.
    scale = 200
    n = v.numerator * 4**scale // v.denominator
    root = math.isqrt(n)
    exact = root * root == n and v * 4**scale == n
    return to_bits(Fraction(2 * root + (not exact), 2 * 2**scale))


def lt(a, b):
    if is_nan(a) or is_nan(b):
        return 0
    big = lambda x: (-math.inf if x & SIGN else math.inf) if is_inf(x) else value(x)
    return int(big(a) < big(b))


def tree(terms):
    """Pair neighbours, promote an odd last node, repeat."""
    level = [NAN if is_nan(t) else t for t in terms]
    if not level:
        return 0
    while len(level) > 1:
        level = [add(*level[i : i + 2]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return level[0]


def magnitude_bits(d):
    return 8 * d - 2


def digitise(row, d):
    """(marked, e, q) of one scale group."""
    return digitise_members(row, row, d)


def digitise_members(row, group, d):
    """The same of members of a scale group."""
    if any(is_nan(x) or is_inf(x) for x in group):
        return True, 0, [0] * len(row)
    top = max([abs(value(x)) for x in group], default=0)
    e = 0
    if top:
        e = top.numerator.bit_length() - top.denominator.bit_length() + 1
        while Fraction(2) ** (e - 1) > top:
            e -= 1
        while Fraction(2) ** e <= top:
            e += 1
    scale = Fraction(2) ** (magnitude_bits(d) - e)
    q = [(-1 if x & SIGN else 1) * rne(abs(value(x)) * scale) for x in row]
    return False, e, q


def product(a, b, da, db, block, group_a=None, group_b=None):
    """One output element: blocks of K, each scaled back and rounded once, then the tree. Rows may be members of larger scale groups."""
    k = len(a)
    step = block or max(k, 1)
    parts = []
    for first in range(0, max(k, 1), step):
        row_a, row_b = a[first : first + step], b[first : first + step]
        marked_a, ea, qa = digitise_members(row_a, group_a or row_a, da)
        marked_b, eb, qb = digitise_members(row_b, group_b or row_b, db)
        if marked_a or marked_b:
            parts.append(NAN)
            continue
        total = sum(x * y for x, y in zip(qa, qb))
        shift = Fraction(2) ** (ea + eb - magnitude_bits(da) - magnitude_bits(db))
        parts.append(to_bits(total * shift))
    return parts[0] if len(parts) == 1 else tree(parts)


def convolution(x, weight, dy, sizes, stride, padding, digits, version):
    """(y, dx, dw) by the sums that define them; x [B][H][W][C], weight [M][R][S][C], dy [B][P][Q][M], flat and row-major. Version 1 scales
    patches, version 2 samples, and channels of x in dw."""
    B, H, W, C, M, R, S, P, Q = sizes

    def sample(tensor, b):
        return tensor[b * len(tensor) // B : (b + 1) * len(tensor) // B] if version == 2 else None

    def x_at(b, h, w, c):
        return x[((b * H + h) * W + w) * C + c] if 0 <= h < H and 0 <= w < W else 0

    def dy_at(b, h, w, m):
        """What output (h, w) / stride passes back, if there is one."""
        p, q = h // stride, w // stride
        there = h % stride == 0 and w % stride == 0 and 0 <= p < P and 0 <= q < Q
        return dy[((b * P + p) * Q + q) * M + m] if there else 0

    def w_at(m, r, s, c):
        return weight[((m * R + r) * S + s) * C + c]

    taps = [(r, s) for r in range(R) for s in range(S)]
    pixels = [(b, p, q) for b in range(B) for p in range(P) for q in range(Q)]
    y = [
        product([x_at(b, p * stride + r - padding, q * stride + s - padding, c) for r, s in taps for c in range(C)],
                [w_at(m, r, s, c) for r, s in taps for c in range(C)], digits, digits, 0, sample(x, b))
        for b, p, q in pixels for m in range(M)
    ]
    dx = [
        product([dy_at(b, h + padding - r, w + padding - s, m) for r, s in taps for m in range(M)],
                [w_at(m, r, s, c) for r, s in taps for m in range(M)], digits, digits, 0, sample(dy, b))
        for b in range(B) for h in range(H) for w in range(W) for c in range(C)
    ]
    dw = [
        product([dy[((b * P + p) * Q + q) * M + m] for b, p, q in pixels],
                [x_at(b, p * stride + r - padding, q * stride + s - padding, c) for b, p, q in pixels], digits, digits, 0,
                None, x[c::C] if version == 2 else None)
        for m in range(M) for r, s in taps for c in range(C)
    ]
    return y, dx, dw


def philox(key, counter):
    """Philox4x32-10 as in Salmon et al. (2011)."""
    k, c = list(key), list(counter)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def init(seed, parameter, index, std):
    words = philox(seed, [index & 0xFFFFFFFF, index >> 32, parameter, 0xFFFFFFFE])
    n = 2 * sum((w & 0xFFFF) + (w >> 16) for w in words) - 8 * 65535
    c = div(mul(std, sqrt(to_bits(Fraction(3, 2)))), to_bits(Fraction(131072)))
    return mul(to_bits(Fraction(n)), c)


def of_nan(word):
    """What each primitive gives for one element that is a NaN (section 1)."""
    kept = {name: word for name in ("copy", "select", "gather", "patches")}
    one = {name: NAN for name in ("add", "neg", "exp", "max", "tree_sum", "segment_sum", "product", "product_rest")}
    return {**kept, **one, "lt": lt(word, word), "scale": word & ~SIGN, "quantise": 0}


def main():
    rng = random.Random(20261120)
    special = [0, SIGN, 1, SIGN | 1, 0x7FFFFF, 0x800000, 0x807FFFFF, 0x3F800000, 0xBF800000, 0x3F800001, 0x7F7FFFFF,
               0xFF7FFFFF, INF, INF | SIGN, NAN, 0x7F800001, 0xFFFFFFFF, 0x34000000, 0x33800000, 0x4B800001]

    def any_bits():
        kind = rng.randrange(4)
        if kind == 0:
            return rng.choice(special)
        if kind == 1:
            return rng.getrandbits(32)
        # Close exponents, so that additions cancel and carry.
        return rng.getrandbits(1) << 31 | rng.randrange(120, 136) << 23 | rng.getrandbits(23)

    pairs = [(a, b) for a in special for b in special] + [(any_bits(), any_bits()) for _ in range(1500)]
    # Quotients and products that end near ties and in the subnormal range.
    pairs += [(rng.getrandbits(31), rng.randrange(1, 60) << 23 | rng.getrandbits(23)) for _ in range(300)]
    scalar = [[a, b, add(a, b), sub(a, b), mul(a, b), div(a, b), sqrt(a), lt(a, b)] for a, b in pairs]

    trees = []
    for length in list(range(0, 20)) + [31, 32, 33, 63, 64, 65, 100, 255, 257]:
        terms = [any_bits() if length < 8 else rng.getrandbits(1) << 31 | rng.randrange(110, 140) << 23
                 | rng.getrandbits(23) for _ in range(length)]
        trees.append([terms, tree(terms)])
    trees.append([[SIGN] * 5, tree([SIGN] * 5)])

    products = []
    for case in range(240):
        k = rng.choice([0, 1, 2, 3, 7, 16, 63, 64, 65, 130])
        spread = rng.choice([1, 8, 40, 120])
        centre = rng.choice([20, 127, 190, 230])

        def element():
            if rng.randrange(40) == 0:
                return rng.choice([0, SIGN, 1, 0x7FFFFF])
            if rng.randrange(400) == 0:
                return rng.choice([INF, NAN])
            field = min(254, max(0, centre + rng.randrange(-spread, spread + 1)))
            return rng.getrandbits(1) << 31 | field << 23 | rng.getrandbits(23)

        a, b = [element() for _ in range(k)], [element() for _ in range(k)]
        da, db, block = rng.randrange(1, 5), rng.randrange(1, 5), rng.choice([0, 0, 64])
        products.append([a, b, da, db, block, product(a, b, da, db, block)])
    # Extreme digits, sums past i64, underflow that keeps its sign, exact cancellation.
    one, near = 0x3F800000, 0x3F7FFFFF
    for d in range(1, 5):
        products.append([[near] * 300, [near] * 300, d, d, 0, product([near] * 300, [near] * 300, d, d, 0)])
        products.append([[1], [SIGN | 1], d, d, 0, product([1], [SIGN | 1], d, d, 0)])
        products.append([[one, one], [one, one | SIGN], d, d, 0, product([one, one], [one, one | SIGN], d, d, 0)])

    seeds = [([0, 0], [0] * 4), ([1, 2], [3, 4, 5, 6])] + [
        ([rng.getrandbits(32) for _ in range(2)], [rng.getrandbits(32) for _ in range(4)]) for _ in range(20)]
    weights = [[[7, 9], p, i, 0x3CA3D70A, init([7, 9], p, i, 0x3CA3D70A)] for p in (0, 3) for i in (0, 1, 12345, 2**32 + 1)]

    convolutions = []
    for B, H, W, C, M, R, S, stride, padding, digits in [
        (2, 5, 4, 3, 2, 3, 3, 1, 1, 2), (1, 6, 7, 2, 3, 3, 2, 2, 1, 3), (2, 4, 4, 1, 2, 1, 1, 2, 0, 1), (1, 3, 2, 2, 1, 4, 4, 3, 2, 4)]:
        P, Q = (H + 2 * padding - R) // stride + 1, (W + 2 * padding - S) // stride + 1

        def numbers(n):
            return [rng.choice([0, 1, SIGN | 5]) if rng.randrange(12) == 0
                    else rng.getrandbits(1) << 31 | rng.randrange(120, 131) << 23 | rng.getrandbits(23) for _ in range(n)]

        x, weight, dy = numbers(B * H * W * C), numbers(M * R * S * C), numbers(B * P * Q * M)
        sizes = (B, H, W, C, M, R, S, P, Q)
        outputs = [word for version in (1, 2) for word in convolution(x, weight, dy, sizes, stride, padding, digits, version)]
        convolutions.append([[B, H, W, C], [M, R, S, C], [B, P, Q, M], [stride, padding, digits], [x, weight, dy], outputs[:3], outputs[3:]])

    data = {
        "_comment": "Made by contract.py. Words are unsigned 32-bit integers (binary32 patterns unless said). "
        "scalar: [a, b, a+b, a-b, a*b, a/b, sqrt(a), a<b]. tree: [terms, sum]. product: [row of A, row of B, digits_a, "
        "digits_b, block, output]. convolution: [shapes of x, weight and dy, [stride, padding, digits], [x, weight, dy], [y, dx, dw] of version 1, those of version 2]. philox: [key, counter, words]. init: [key, parameter, element, std, weight]. "
        "nan: [primitive, the one element it reads, its output].",
        "scalar": scalar,
        "tree": trees,
        "product": products,
        "convolution": convolutions,
        "philox": [[k, c, philox(k, c)] for k, c in seeds],
        "init": weights,
        "nan": [[name, word, given] for word in (NAN, SIGN | NAN, INF + 1, 0xFFFFFFFF) for name, given in of_nan(word).items()],
    }
    out = pathlib.Path(__file__).with_name("contract.json")
    lines = [f'  "_comment": {json.dumps(data.pop("_comment"))}']
    for key, rows in data.items():
        body = ",\n".join("    " + json.dumps(row, separators=(",", ":")) for row in rows)
        lines.append(f'  "{key}": [\n{body}\n  ]')
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
