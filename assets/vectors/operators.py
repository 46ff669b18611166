"""The operators of docs/ARITHMETIC.md, sections 2 to 5, 8.1 and 8.2, on tensors of Python floats, from its text alone.

A binary32 number is the Python float of the same value, a binary64 number. Rounding a binary64 sum, difference, product, quotient or square
root of binary32 numbers to binary32 gives the correctly rounded result (Figueroa 1995: 53 >= 2 * 24 + 2). `steps.py` trains models with these.
"""

import decimal
import math
import struct
from fractions import Fraction

import contract

INF = math.inf
# The least finite number of binary32.
LEAST = -(2.0**128 - 2.0**104)


def f32(x):
    """RNE of a binary64 number to binary32."""
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(INF, x)


def pattern(x):
    return contract.NAN if x != x else struct.unpack("<I", struct.pack("<f", x))[0]


def of_pattern(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def add(a, b):
    return f32(a + b)


def sub(a, b):
    return f32(a - b)


def mul(a, b):
    return f32(a * b)


def div(a, b):
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(INF, a) * math.copysign(1, b)
    return f32(a / b)


def sqrt(a):
    return math.nan if a < 0 else f32(math.sqrt(a))


def tree(terms):
    level = list(terms)
    if not level:
        return 0.0
    while len(level) > 1:
        odd = level[-1:] if len(level) % 2 else []
        level = [f32(a + b) for a, b in zip(level[::2], level[1::2])] + odd
    return level[0]


def greatest(row):
    return math.nan if any(x != x for x in row) else max(row, key=lambda x: (x, math.copysign(1, x)))


# Section 3, by Decimal arithmetic of 170 digits: what is not exact is nowhere near that close to a middle.
decimal.getcontext().prec = 170
DIGITS = decimal.Decimal


def rounded(x):
    return of_pattern(contract.to_bits(Fraction(x)))


def exp(x):
    if x != x or x > 89 or x < -104:
        return x if x != x else INF if x > 0 else 0.0
    return rounded(DIGITS(x).exp())


def log(x):
    if x != x or x < 0:
        return math.nan
    return -INF if x == 0 else INF if x == INF else rounded(DIGITS(x).ln())


def tanh(x):
    if x != x or x == 0:
        return x
    if abs(x) > 20:
        return math.copysign(1.0, x)
    e = (2 * DIGITS(x)).exp()
    return rounded((e - 1) / (e + 1))


def pi():
    """By Machin's formula."""
    def arctan_of_inverse(n):
        term = total = DIGITS(1) / n
        k = 1
        while abs(term) > DIGITS(10) ** -175:
            term = -term / (n * n)
            k += 2
            total += term / k
        return total
    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


TWO_OVER_ROOT_PI = 2 / pi().sqrt()


def erf(x):
    if x != x or x == 0:
        return x
    if abs(x) >= 4:
        return math.copysign(1.0, x)  # 1 - erf(4) is below 2^-25
    x = DIGITS(x)
    term = total = x
    n = 0
    while abs(term) > abs(total) * DIGITS(10) ** -160:
        n += 1
        term = -term * x * x / n
        total += term / (2 * n + 1)
    return rounded(TWO_OVER_ROOT_PI * total)


def digitise(row, digits, group):
    """(exponent of a scale group, integers of a row of its members), None if it is marked."""
    if any(x != x or abs(x) == INF for x in group):
        return None
    e = math.frexp(max((abs(x) for x in group), default=0.0))[1]
    return e, [round(math.ldexp(x, 8 * digits - 2 - e)) for x in row]


def product(a, b, digits, groups_a=None, groups_b=None):
    """Rows of a times rows of b, [M][K] and [N][K] -> [M][N]; digits = (digits_a, digits_b, block). Groups are those of each row, if they
    are not its own blocks."""
    digits_a, digits_b, block = digits
    k = len(a[0])
    step = block or k
    starts = range(0, k, step)
    cut = lambda rows, d, groups: [[digitise(row[i:i + step], d, groups[n] if groups else row[i:i + step]) for i in starts]
                                   for n, row in enumerate(rows)]
    scale = -(8 * digits_a - 2) - (8 * digits_b - 2)

    def element(ga, gb):
        if ga is None or gb is None:
            return math.nan
        total = sum(x * y for x, y in zip(ga[1], gb[1]))
        shift = scale + ga[0] + gb[0]
        if abs(total) < 2**53:
            return f32(math.ldexp(total, shift))  # binary64 holds it exactly
        return rounded(Fraction(total) * Fraction(2) ** shift)

    rows_b = cut(b, digits_b, groups_b)
    return [[tree(element(x, y) for x, y in zip(ra, rb)) for rb in rows_b] for ra in cut(a, digits_a, groups_a)]


def columns(rows):
    return [list(column) for column in zip(*rows)]


class Tensor:
    """Rows along the last dimension, the other dimensions in row-major order."""

    def __init__(self, rows):
        self.rows, self.gradient = rows, None


def map_rows(f, *all_rows):
    return [[f(*values) for values in zip(*rows)] for rows in zip(*all_rows)]


def over_rows(rows):
    return [tree(column) for column in zip(*rows)]


class Tape:
    """Operators in the order of the forward pass; `backward` goes the other way."""

    def __init__(self, digits):
        self.digits, self.entries = digits, []

    def record(self, rows, gradient):
        output = Tensor(rows)
        self.entries.append((output, gradient))
        return output

    def backward(self):
        for output, gradient in reversed(self.entries):
            for tensor, rows in gradient(output.gradient):
                have = tensor.gradient
                tensor.gradient = rows if have is None else map_rows(add, have, rows)

    def linear(self, x, weight, bias, kind="linear"):
        y = product(x.rows, weight.rows, self.digits(kind))
        if bias:
            y = [[add(v, b) for v, b in zip(row, bias.rows[0])] for row in y]

        def gradient(dy):
            dx = product(dy, columns(weight.rows), self.digits(kind + "_dx"))
            dw = product(columns(dy), columns(x.rows), self.digits(kind + "_dw"))
            return [(x, dx), (weight, dw)] + ([(bias, [over_rows(dy)])] if bias else [])

        return self.record(y, gradient)

    def embedding(self, table, tokens):
        def gradient(dy):
            empty = [[]] * len(table.rows[0])
            of = lambda c: [row for row, token in zip(dy, tokens) if token == c]
            return [(table, [[tree(t) for t in (columns(of(c)) or empty)] for c in range(len(table.rows))])]

        return self.record([list(table.rows[token]) for token in tokens], gradient)

    def positions(self, x, table):
        t = len(table.rows)
        rows = [[add(a, b) for a, b in zip(row, table.rows[n % t])] for n, row in enumerate(x.rows)]
        return self.record(rows, lambda dy: [(x, dy), (table, [over_rows(dy[i::t]) for i in range(t)])])

    def residual(self, x, y):
        return self.record(map_rows(add, x.rows, y.rows), lambda dy: [(x, dy), (y, dy)])

    def gelu_tanh(self, x):
        c, a, a3 = of_pattern(0x3F4C422A), of_pattern(0x3D372713), of_pattern(0x3E095D4E)
        t = map_rows(lambda x: tanh(mul(c, add(x, mul(mul(a, x), mul(x, x))))), x.rows)

        def slope(x, t, dy):
            right = mul(mul(mul(0.5, x), sub(1.0, mul(t, t))), mul(c, add(1.0, mul(a3, mul(x, x)))))
            return mul(dy, add(mul(0.5, add(1.0, t)), right))

        y = map_rows(lambda x, t: mul(mul(0.5, x), add(1.0, t)), x.rows, t)
        return self.record(y, lambda dy: [(x, map_rows(slope, x.rows, t, dy))])

    def gelu_erf(self, x):
        root_half, density = of_pattern(0x3F3504F3), of_pattern(0x3ECC422A)
        t = map_rows(lambda x: erf(mul(x, root_half)), x.rows)

        def slope(x, t, dy):
            return mul(dy, add(mul(0.5, add(1.0, t)), mul(mul(x, density), exp(mul(-0.5, mul(x, x))))))

        y = map_rows(lambda x, t: mul(mul(0.5, x), add(1.0, t)), x.rows, t)
        return self.record(y, lambda dy: [(x, map_rows(slope, x.rows, t, dy))])

    def relu(self, x):
        y = map_rows(lambda v: 0.0 if v < 0 else add(v, 0.0), x.rows)
        return self.record(y, lambda dy: [(x, map_rows(lambda v, d: d if 0 < v else 0.0, x.rows, dy))])

    def layer_norm(self, x, gain, bias, epsilon=of_pattern(0x3727C5AC)):
        c = float(len(x.rows[0]))
        xhat, rstds = [], []
        for row in x.rows:
            mean = div(tree(row), c)
            d = [sub(v, mean) for v in row]
            rstds.append(div(1.0, sqrt(add(div(tree(mul(v, v) for v in d), c), epsilon))))
            xhat.append([mul(v, rstds[-1]) for v in d])
        y = [[add(mul(h, g), b) for h, g, b in zip(row, gain.rows[0], bias.rows[0])] for row in xhat]

        def gradient(dy):
            dgain, dbias = over_rows(map_rows(mul, dy, xhat)), over_rows(dy)
            dx = []
            for row, hats, rstd in zip(dy, xhat, rstds):
                g = [mul(d, w) for d, w in zip(row, gain.rows[0])]
                m1, m2 = div(tree(g), c), div(tree(map(mul, g, hats)), c)
                dx.append([mul(rstd, sub(sub(v, m1), mul(h, m2))) for v, h in zip(g, hats)])
            return [(x, dx), (gain, [dgain]), (bias, [dbias])]

        return self.record(y, gradient)

    def batch_norm(self, x, gain, bias, epsilon):
        """The output, and the moments: n, mean and M2 of each channel."""
        n = float(len(x.rows))
        mean = [div(total, n) for total in over_rows(x.rows)]
        d = [[sub(v, m) for v, m in zip(row, mean)] for row in x.rows]
        m2 = over_rows(map_rows(mul, d, d))
        rstd = [div(1.0, sqrt(add(div(total, n), epsilon))) for total in m2]
        xhat = [[mul(v, r) for v, r in zip(row, rstd)] for row in d]
        y = [[add(mul(h, g), b) for h, g, b in zip(row, gain.rows[0], bias.rows[0])] for row in xhat]

        def gradient(dy):
            dgain, dbias = over_rows(map_rows(mul, dy, xhat)), over_rows(dy)
            m1, m2 = [div(v, n) for v in dbias], [div(v, n) for v in dgain]
            slope = [mul(g, r) for g, r in zip(gain.rows[0], rstd)]
            dx = [[mul(s, sub(sub(v, a), mul(h, b))) for s, v, h, a, b in zip(slope, row, hats, m1, m2)]
                  for row, hats in zip(dy, xhat)]
            return [(x, dx), (gain, [dgain]), (bias, [dbias])]

        return self.record(y, gradient), (n, mean, m2)

    def dropout(self, x, drop, number, samples):
        """`drop(number, sample, element, value)` draws; None leaves x as it is."""
        if drop is None:
            return x
        width = len(x.rows[0])
        per_sample = len(x.rows) // samples

        def draw(rows):
            return [[drop(number, n // per_sample, n % per_sample * width + c, v) for c, v in enumerate(row)]
                    for n, row in enumerate(rows)]

        return self.record(draw(x.rows), lambda dy: [(x, draw(dy))])

    def attention(self, q, k, v, samples, heads, drop, number, causal=True, hidden=None, starts=None):
        t, d = len(q.rows) // samples, len(q.rows[0]) // heads
        places = [(b, h) for b in range(samples) for h in range(heads)]
        split = lambda rows: [[row[h * d:h * d + d] for row in rows[b * t:b * t + t]] for b, h in places]

        def merge(parts):
            return [sum((parts[b * heads + h][i] for h in range(heads)), []) for b in range(samples) for i in range(t)]

        def each(kind, a, b):
            """The product of every sample and head, [B H T][..]."""
            return [product(x, y, self.digits(kind)) for x, y in zip(a, b)]

        of_heads = lambda rows: [rows[n * t:n * t + t] for n in range(len(places))]
        flat = lambda parts: sum(parts, [])
        transposed = lambda parts: [columns(part) for part in parts]

        def scores_gradient(ds):
            ds = of_heads(ds)
            dq = each("scores_dq", ds, transposed(split(k.rows)))
            dk = each("scores_dk", transposed(ds), transposed(split(q.rows)))
            return [(q, merge(dq)), (k, merge(dk))]

        scores = self.record(flat(each("scores", split(q.rows), split(k.rows))), scores_gradient)
        unseen = lambda n, j: causal and n % t < j or hidden is not None and hidden[n // (t * heads) * t + j] or starts is not None and j < starts[n // (t * heads) * t + n % t]
        p = self.dropout(self.softmax(scores, d, unseen, -INF if hidden is None else LEAST), drop, number, samples)

        def values_gradient(dy):
            dp = flat(each("values_dp", split(dy), split(v.rows)))
            dv = each("values_dv", transposed(of_heads(p.rows)), transposed(split(dy)))
            return [(p, dp), (v, merge(dv))]

        return self.record(merge(each("values", of_heads(p.rows), transposed(split(v.rows)))), values_gradient)

    def softmax(self, scores, d, unseen, masked):
        """`unseen(n, j)`: whether place j of row n is masked."""
        r = div(1.0, sqrt(float(d)))
        p = []
        for n, row in enumerate(scores.rows):
            s = [masked if unseen(n, j) else mul(x, r) for j, x in enumerate(row)]
            most = greatest(s)
            e = [exp(sub(x, most)) for x in s]
            total = tree(e)
            p.append([div(x, total) for x in e])

        def gradient(dp):
            ds = []
            for n, (row, drow) in enumerate(zip(p, dp)):
                total = tree(map(mul, row, drow))
                ds.append([0.0 if unseen(n, j) else mul(mul(x, sub(dx, total)), r) for j, (x, dx) in enumerate(zip(row, drow))])
            return [(scores, ds)]

        return self.record(p, gradient)

    def cross_entropy(self, logits, labels, factor):
        """The loss; the chain of gradients starts at the logits."""
        losses, gradient = [], []
        for row, label in zip(logits.rows, labels):
            most = greatest(row)
            e = [exp(sub(x, most)) for x in row]
            total = tree(e)
            losses.append(mul(sub(log(total), sub(row[label], most)), factor))
            gradient.append([mul(sub(div(x, total), float(c == label)), factor) for c, x in enumerate(e)])
        logits.gradient = gradient
        return tree(losses)

    def weighted_cross_entropy(self, logits, labels, factor, smoothing, ignore, part=False):
        """The loss of smoothed targets over the labels that count; the chain of gradients starts at the logits. Of a part of a batch the mean is made later."""
        n, classes = float(len(labels)), float(len(logits.rows[0]))
        counted = [float(label != ignore) for label in labels]
        count = tree(counted)
        self.labels = count
        weight = factor if ignore is None or part else mul(factor, div(n, count))
        sharp, even = sub(1.0, smoothing), div(smoothing, classes)
        losses, gradient = [], []
        for row, label, counts in zip(logits.rows, labels, counted):
            shifted = [sub(x, greatest(row)) for x in row]
            e = [exp(x) for x in shifted]
            total = tree(e)
            own, every = sub(log(total), shifted[label]), sub(log(total), div(tree(shifted), classes))
            losses.append(mul(add(mul(sharp, own), mul(smoothing, every)), weight) if counts else 0.0)
            target = lambda c: add(sharp, even) if c == label else even
            gradient.append([mul(sub(div(x, total), target(c)), weight) if counts else 0.0 for c, x in enumerate(e)])
        logits.gradient = gradient
        return tree(losses)

    def bias(self, x, bias):
        y = [[add(v, b) for v, b in zip(row, bias.rows[0])] for row in x.rows]
        return self.record(y, lambda dy: [(x, dy), (bias, [over_rows(dy)])])

    def flatten(self, x, pixels):
        """Rows (b, pixel) of C to rows b of (c, pixel)."""
        parts = [x.rows[i:i + pixels] for i in range(0, len(x.rows), pixels)]
        y = [sum(columns(part), []) for part in parts]
        back = lambda row: columns([row[i:i + pixels] for i in range(0, len(row), pixels)])
        return self.record(y, lambda dy: [(x, sum((back(row) for row in dy), []))])

    def windows(self, image, kernel, stride, padding):
        """For each window in row-major order its places in row-major order: (row, column), or None for padding. And their image."""
        down, across = ((n + 2 * padding - kernel) // stride + 1 for n in image)
        inside = lambda h, w: (h, w) if 0 <= h < image[0] and 0 <= w < image[1] else None
        taps = [(r, s) for r in range(kernel) for s in range(kernel)]
        return [[inside(p * stride + r - padding, q * stride + s - padding) for r, s in taps]
                for p in range(down) for q in range(across)], (down, across)

    def max_pool(self, x, image, kernel, stride, padding):
        windows, size = self.windows(image, kernel, stride, padding)
        pixels, channels = image[0] * image[1], len(x.rows[0])
        samples = len(x.rows) // pixels
        at = lambda b, place: b * pixels + place[0] * image[1] + place[1]
        y, chosen = [], []  # chosen: for each output, the place of the window that gets the gradient
        for b in range(samples):
            for window in windows:
                values = [[x.rows[at(b, place)][c] if place else -INF for place in window] for c in range(channels)]
                y.append([greatest(row) for row in values])
                chosen.append([next(t for t, place in enumerate(window) if place and not row[t] < most)
                               for row, most in zip(values, y[-1])])

        def gradient(dy):
            # A pixel adds what its windows give it by the tree over the places it may have in them.
            terms = [[[0.0] * (kernel * kernel) for _ in range(channels)] for _ in x.rows]
            for i, (row, taps) in enumerate(zip(dy, chosen)):
                b, window = i // len(windows), windows[i % len(windows)]
                for c, (d, t) in enumerate(zip(row, taps)):
                    terms[at(b, window[t])][c][t] = d
            return [(x, [[tree(t) for t in row] for row in terms])]

        return self.record(y, gradient), size

    def avg_pool(self, x, image, kernel, stride, padding):
        windows, size = self.windows(image, kernel, stride, padding)
        pixels, count = image[0] * image[1], float(kernel * kernel)
        at = lambda b, place: b * pixels + place[0] * image[1] + place[1]
        nothing = [0.0] * len(x.rows[0])
        y = [[div(v, count) for v in over_rows([x.rows[at(b, place)] if place else nothing for place in window])]
             for b in range(len(x.rows) // pixels) for window in windows]

        def gradient(dy):
            terms = [[nothing] * (kernel * kernel) for _ in x.rows]
            for i, row in enumerate(dy):
                for t, place in enumerate(windows[i % len(windows)]):
                    if place:
                        terms[at(i // len(windows), place)][t] = [div(d, count) for d in row]
            return [(x, [over_rows(rows) for rows in terms])]

        return self.record(y, gradient), size

    def window_means(self, x, outer, length, count):
        """Rows (outer, length, rest) to (outer, count, rest): the means of `count` windows over the middle."""
        rest = len(x.rows) // (outer * length)
        bounds = [(w * length // count, -(-(w + 1) * length // count)) for w in range(count)]
        nothing = [0.0] * len(x.rows[0])
        row = lambda rows, middle, o, i, r: rows[(o * middle + i) * rest + r]
        size = [float(end - start) for start, end in bounds]
        places = [(o, r) for o in range(outer) for r in range(rest)]
        means = {(o, w, r): [div(v, size[w]) for v in over_rows(
            [row(x.rows, length, o, i, r) if start <= i < end else nothing for i in range(length)])]
            for o, r in places for w, (start, end) in enumerate(bounds)}

        def gradient(dy):
            share = lambda o, w, r: [div(d, size[w]) for d in row(dy, count, o, w, r)]
            dx = {(o, i, r): over_rows([share(o, w, r) if start <= i < end else nothing for w, (start, end) in enumerate(bounds)])
                  for o, r in places for i in range(length)}
            return [(x, [dx[key] for key in sorted(dx)])]

        return self.record([means[key] for key in sorted(means)], gradient)

    def adaptive_avg_pool(self, x, image, size):
        samples = len(x.rows) // (image[0] * image[1])
        by_row = self.window_means(x, samples, image[0], size[0])
        return self.window_means(by_row, samples * size[0], image[1], size[1])

    def batch_norm_eval(self, x, mean, var, gain, bias, epsilon):
        rstd = [div(1.0, sqrt(add(v, epsilon))) for v in var.rows[0]]
        scaled = lambda v, m, r, g, b: add(mul(mul(sub(v, m), r), g), b)
        y = [[scaled(*values) for values in zip(row, mean.rows[0], rstd, gain.rows[0], bias.rows[0])] for row in x.rows]

        def gradient(dy):
            xhat = [[mul(sub(v, m), r) for v, m, r in zip(row, mean.rows[0], rstd)] for row in x.rows]
            slope = [mul(g, r) for g, r in zip(gain.rows[0], rstd)]
            dx = [[mul(v, s) for v, s in zip(row, slope)] for row in dy]
            return [(x, dx), (gain, [over_rows(map_rows(mul, dy, xhat))]), (bias, [over_rows(dy)])]

        return self.record(y, gradient)

    def grouped_conv2d(self, x, weight, image, kernel, stride, padding, groups):
        """Each group as a convolution of its own channels, with a tape of its own."""
        outputs = len(weight.rows) // (kernel * kernel)
        step_in, step_out, tapes = len(x.rows[0]) // groups, outputs // groups, []
        for g in range(groups):
            tape, taps = Tape(self.digits), step_out * kernel * kernel
            own_x = Tensor([row[g * step_in:(g + 1) * step_in] for row in x.rows])
            own_weight = Tensor(weight.rows[g * taps:(g + 1) * taps])
            y, size = tape.conv2d(own_x, own_weight, image, kernel, stride, padding)
            tapes.append((tape, own_x, own_weight, y))
        beside = lambda parts: [sum(rows, []) for rows in zip(*parts)]

        def gradient(dy):
            for g, (tape, _, _, y) in enumerate(tapes):
                y.gradient = [row[g * step_out:(g + 1) * step_out] for row in dy]
                tape.backward()
            dx = beside([own_x.gradient for _, own_x, _, _ in tapes])
            return [(x, dx), (weight, sum((own.gradient for _, _, own, _ in tapes), []))]

        return self.record(beside([y.rows for _, _, _, y in tapes]), gradient), size

    def conv2d(self, x, weight, image, kernel, stride, padding=None, version=1):
        """x rows (b, h, w) of C channels; weight rows (m, r, s) of C. Returns y, rows (b, p, q), and its image size. Version 2 scales x and
        dy by samples, and x by channels for the kernel's gradient."""
        (height, width), padding = image, (kernel - 1) // 2 if padding is None else padding
        down, across = ((n + 2 * padding - kernel) // stride + 1 for n in image)
        samples, taps = len(x.rows) // (height * width), [(r, s) for r in range(kernel) for s in range(kernel)]
        none = [0.0] * len(x.rows[0])

        def x_at(b, h, w):
            return x.rows[(b * height + h) * width + w] if 0 <= h < height and 0 <= w < width else none

        places = [(b, p, q) for b in range(samples) for p in range(down) for q in range(across)]
        patches = [sum((x_at(b, p * stride + r - padding, q * stride + s - padding) for r, s in taps), []) for b, p, q in places]
        kernels = [sum(weight.rows[m:m + len(taps)], []) for m in range(0, len(weight.rows), len(taps))]

        def by_sample(rows, each):
            """The whole sample of each of `each` patches of a sample."""
            size = len(rows) // samples
            groups = [sum(rows[b * size:(b + 1) * size], []) for b in range(samples)]
            return [group for group in groups for _ in range(each)] if version == 2 else None

        def gradient(dy):
            nothing = [0.0] * len(dy[0])

            def dy_at(b, h, w):
                p, q = h // stride, w // stride
                there = h % stride == 0 and w % stride == 0 and 0 <= p < down and 0 <= q < across
                return dy[(b * down + p) * across + q] if there else nothing

            pixels = [(b, h, w) for b in range(samples) for h in range(height) for w in range(width)]
            back = [sum((dy_at(b, h + padding - r, w + padding - s) for r, s in taps), []) for b, h, w in pixels]
            turned = [[weight.rows[m * len(taps) + tap][c] for tap in range(len(taps)) for m in range(len(kernels))]
                      for c in range(len(none))]
            dx = product(back, turned, self.digits("conv_dx"), by_sample(dy, height * width))
            channels = columns(x.rows) * len(taps) if version == 2 else None
            dw = product(columns(dy), columns(patches), self.digits("conv_dw"), None, channels)
            by_tap = [row[i:i + len(none)] for row in dw for i in range(0, len(row), len(none))]
            return [(x, dx), (weight, by_tap)]

        y = product(patches, kernels, self.digits("conv"), by_sample(x.rows, down * across))
        return self.record(y, gradient), (down, across)

    def mean_pool(self, x, pixels):
        count = float(pixels)
        parts = [x.rows[i:i + pixels] for i in range(0, len(x.rows), pixels)]
        y = [[div(v, count) for v in over_rows(part)] for part in parts]
        return self.record(y, lambda dy: [(x, [[div(v, count) for v in row] for row in dy for _ in range(pixels)])])
