"""The operators of docs/ARITHMETIC.md, sections 8.1 and 8.2, that decoders after GPT-2 have, and the model `llama` of section 8.3: from its text
alone, on the tapes of `operators.py`.
"""

import decimal
import functools
import math

from operators import DIGITS, add, div, exp, f32, map_rows, mul, over_rows, pi, sqrt, sub, tree
from parameters import Parameter, weight

PI = pi()


@functools.cache
def frequency(theta, channels, i):
    """f_i: the turns of a position in parts of 2^-64."""
    turns = DIGITS(theta) ** (DIGITS(-2 * i) / channels) / (2 * PI)
    return int((turns * 2**64).to_integral_value(decimal.ROUND_HALF_EVEN))


def inverse_factorial(n):
    return f32(1 / math.factorial(n))


@functools.cache
def rotary_entry(theta, channels, t, i):
    """(cos_ti, sin_ti)."""
    w = (t * frequency(theta, channels, i) >> 32) % 2**32
    q, d = (w + 2**29) // 2**30 % 4, (w + 2**29) % 2**30 - 2**29
    x = mul(f32(float(abs(d))), f32(float.fromhex("0x1.921fb6p-30")))
    s = mul(x, x)

    def series(first):
        """1 - s * (1/first! - s * (1/(first + 2)! - ..)), down to 1/9! or 1/10!."""
        value = inverse_factorial(first + 8 if first == 2 else first + 6)
        for n in range(first + 6 if first == 2 else first + 4, first - 1, -2):
            value = sub(inverse_factorial(n), mul(s, value))
        return sub(1.0, mul(s, value))

    c, e = series(2), mul(x, series(3))
    e = -e if d < 0 else e
    return [(c, e), (-e, c), (-c, -e), (e, -c)][q]


def true_waves(theta, channels, t, i):
    """The true cosine and sine, to 100 digits or more."""
    angle = t * DIGITS(theta) ** (DIGITS(-2 * i) / channels) % (2 * PI)
    total, term = [DIGITS(0), DIGITS(0)], DIGITS(1)
    for n in range(200):
        total[n % 2] += term if n % 4 < 2 else -term
        term = term * angle / (n + 1)
    return total


def silu(tape, x):
    s = map_rows(lambda v: div(1.0, add(1.0, exp(-v))), x.rows)
    slope = lambda v, s, d: mul(d, mul(s, add(1.0, mul(v, sub(1.0, s)))))
    return tape.record(map_rows(mul, x.rows, s), lambda dy: [(x, map_rows(slope, x.rows, s, dy))])


def swiglu(tape, gate, up):
    h = silu(tape, gate)
    return tape.record(map_rows(mul, h.rows, up.rows), lambda dy: [(h, map_rows(mul, dy, up.rows)), (up, map_rows(mul, dy, h.rows))])


def rms_norm(tape, x, gain, epsilon):
    c = float(len(x.rows[0]))
    rstds = [div(1.0, sqrt(add(div(tree(mul(v, v) for v in row), c), epsilon))) for row in x.rows]
    xhat = [[mul(v, rstd) for v in row] for row, rstd in zip(x.rows, rstds)]

    def gradient(dy):
        dx = []
        for row, hats, rstd in zip(dy, xhat, rstds):
            g = [mul(d, w) for d, w in zip(row, gain.rows[0])]
            mean = div(tree(map(mul, g, hats)), c)
            dx.append([mul(rstd, sub(v, mul(h, mean))) for v, h in zip(g, hats)])
        return [(x, dx), (gain, [over_rows(map_rows(mul, dy, xhat))])]

    return tape.record([[mul(h, g) for h, g in zip(row, gain.rows[0])] for row in xhat], gradient)


def rotary(tape, x, samples, heads, theta):
    channels, positions = len(x.rows[0]) // heads, len(x.rows) // samples
    half = channels // 2

    def turned(rows, back):
        result = []
        for n, row in enumerate(rows):
            out = list(row)
            for head in range(heads):
                for i in range(half):
                    first, second = head * channels + i, head * channels + i + half
                    cos, sin = rotary_entry(theta, channels, n % positions, i)
                    a, z = row[first], row[second]
                    plus, minus = (sub, add) if back else (add, sub)
                    out[first] = minus(mul(a, cos), mul(z, sin))
                    out[second] = plus(mul(z, cos), mul(a, sin))
            result.append(out)
        return result

    return tape.record(turned(x.rows, False), lambda dy: [(x, turned(dy, True))])


def repeat_heads(tape, x, heads, group):
    if group == 1:
        return x
    d = len(x.rows[0]) // heads
    head = lambda row, h: row[h * d:h * d + d]
    repeated = [sum((head(row, h // group) for h in range(heads * group)), []) for row in x.rows]
    summed = lambda row: sum((over_rows([head(row, h * group + g) for g in range(group)]) for h in range(heads)), [])
    return tape.record(repeated, lambda dy: [(x, [summed(row) for row in dy])])


def grouped_attention(tape, q, k, v, samples, heads):
    kv_heads = len(k.rows[0]) // (len(q.rows[0]) // heads)
    k, v = (repeat_heads(tape, x, kv_heads, heads // kv_heads) for x in (k, v))
    return tape.attention(q, k, v, samples, heads, None, 0)


class Llama:
    dropout = 0.0

    def __init__(self, m):
        self.vocabulary, self.context, self.layers = m.get("vocabulary", 256), m["context"], m["layers"]
        self.heads, self.kv_heads, self.width, self.hidden = m["heads"], m["kv_heads"], m["width"], m["hidden"]
        self.theta, self.epsilon = f32(m.get("rope_theta", 10000.0)), f32(m.get("norm_epsilon", 1e-5))
        self.tied, self.std, self.labels = m.get("tied", False), f32(m.get("init_std", 0.02)), self.context

    def parameters(self):
        c, e, std = self.width, self.hidden, self.std
        kv, projection = c // self.heads * self.kv_heads, div(std, sqrt(float(2 * self.layers)))
        gain = lambda name: Parameter(name + ".gain", [c], "ones", False)
        table = [weight("token_embedding", [self.vocabulary, c], std)]
        for layer in range(self.layers):
            name = f"block{layer}."
            table += [gain(name + "norm1"), weight(name + "query.weight", [c, c], std), weight(name + "key.weight", [kv, c], std),
                      weight(name + "value.weight", [kv, c], std), weight(name + "attention_out.weight", [c, c], projection),
                      gain(name + "norm2"), weight(name + "gate.weight", [e, c], std), weight(name + "up.weight", [e, c], std),
                      weight(name + "down.weight", [c, e], projection)]
        return table + [gain("final_norm")] + ([] if self.tied else [weight("head", [self.vocabulary, c], std)])

    def draw(self, rng, samples):
        token = lambda: rng.randrange(self.vocabulary)
        return [[token() for _ in range(samples * self.context)] for _ in range(2)]

    def forward(self, tape, samples, parameters, batch, factor, _):
        p = iter(parameters)
        tokens = next(p)
        x = tape.embedding(tokens, batch[0])
        for _ in range(self.layers):
            u = rms_norm(tape, x, next(p), self.epsilon)
            q, k, v = (tape.linear(u, next(p), None) for _ in range(3))
            q, k = rotary(tape, q, samples, self.heads, self.theta), rotary(tape, k, samples, self.kv_heads, self.theta)
            a = grouped_attention(tape, q, k, v, samples, self.heads)
            x = tape.residual(x, tape.linear(a, next(p), None))
            u = rms_norm(tape, x, next(p), self.epsilon)
            g, z = (tape.linear(u, next(p), None) for _ in range(2))
            x = tape.residual(x, tape.linear(swiglu(tape, g, z), next(p), None))
        x = rms_norm(tape, x, next(p), self.epsilon)
        return tape.loss(tape.linear(x, tokens if self.tied else next(p), None, "head"), batch[1], factor)
