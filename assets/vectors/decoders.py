"""The operators of docs/ARITHMETIC.md, sections 8.1 and 8.2, that decoders after GPT-2 have, and the model `llama` of section 8.3: from its text
alone, on the tapes of `operators.py`.
"""

import decimal
import functools
import math
from fractions import Fraction

from adapters import Adapters
from operators import DIGITS, add, div, exp, f32, map_rows, mul, over_rows, pi, sqrt, sub, tree
from parameters import Parameter, weight

PI = pi()


@functools.cache
def frequency(theta, channels, i):
    """f_i: the turns of a position in parts of 2^-64."""
    turns = DIGITS(theta) ** (DIGITS(-2 * i) / channels) / (2 * PI)
    return int((turns * 2**64).to_integral_value(decimal.ROUND_HALF_EVEN))


def scaled(f, factor, bands):
    """f_i with the wavelengths of a factor, and bands (low, high, original context) or None."""
    u = 0
    if bands:
        low, high, original = Fraction(bands[0]), Fraction(bands[1]), bands[2]
        s = math.floor((original * f - 2**64 * low) / (high - low))
        u = f * min(max(s, 0), 2**64) >> 64
    return u + math.floor((f - u) / Fraction(factor))


def frequency_of(theta, channels, i, scaling):
    f = frequency(theta, channels, i)
    return scaled(f, *scaling) if scaling else f


def true_frequency(theta, channels, i, scaling):
    """Turns of a position, without a rounding."""
    r = DIGITS(theta) ** (DIGITS(-2 * i) / channels) / (2 * PI)
    if not scaling:
        return r
    factor, bands = scaling
    share = min(max((bands[2] * r - DIGITS(bands[0])) / (DIGITS(bands[1]) - DIGITS(bands[0])), DIGITS(0)), DIGITS(1)) if bands else 0
    return r * ((1 - share) / DIGITS(factor) + share)


def inverse_factorial(n):
    return f32(1 / math.factorial(n))


@functools.cache
def rotary_entry(theta, channels, t, i, scaling=None):
    """(cos_ti, sin_ti)."""
    w = (t * frequency_of(theta, channels, i, scaling) >> 32) % 2**32
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


def true_waves(theta, channels, t, i, scaling=None):
    """The true cosine and sine, to 100 digits or more."""
    angle = t * true_frequency(theta, channels, i, scaling) * 2 * PI % (2 * PI)
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


def rms_norm(tape, x, gain, epsilon, heads=1):
    """A row for every head, one behind the other."""
    size = len(x.rows[0]) // heads
    c = float(size)
    cut = lambda rows: [row[h * size:h * size + size] for row in rows for h in range(heads)]
    joined = lambda parts: [sum(parts[i:i + heads], []) for i in range(0, len(parts), heads)]
    rows = cut(x.rows)
    rstds = [div(1.0, sqrt(add(div(tree(mul(v, v) for v in row), c), epsilon))) for row in rows]
    xhat = [[mul(v, rstd) for v in row] for row, rstd in zip(rows, rstds)]

    def gradient(dy):
        dx, dy = [], cut(dy)
        for row, hats, rstd in zip(dy, xhat, rstds):
            g = [mul(d, w) for d, w in zip(row, gain.rows[0])]
            mean = div(tree(map(mul, g, hats)), c)
            dx.append([mul(rstd, sub(v, mul(h, mean))) for v, h in zip(g, hats)])
        return [(x, joined(dx)), (gain, [over_rows(map_rows(mul, dy, xhat))])]

    return tape.record(joined([[mul(h, g) for h, g in zip(row, gain.rows[0])] for row in xhat]), gradient)


def rotary(tape, x, samples, heads, theta, scaling=None):
    channels, positions = len(x.rows[0]) // heads, len(x.rows) // samples
    half = channels // 2

    def turned(rows, back):
        result = []
        for n, row in enumerate(rows):
            out = list(row)
            for head in range(heads):
                for i in range(half):
                    first, second = head * channels + i, head * channels + i + half
                    cos, sin = rotary_entry(theta, channels, n % positions, i, scaling)
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


def document_starts(ids, samples, end):
    """The first position of the document of each row."""
    t, starts = len(ids) // samples, []
    for n in range(len(ids)):
        starts.append(0 if n % t == 0 else n % t if ids[n - 1] == end else starts[-1])
    return starts


def window_starts(starts, samples, window):
    """The first position that each row sees in its window, where it sees none before `starts` anyway."""
    t = len(starts) // samples
    return [max(start, n % t - (window - 1)) for n, start in enumerate(starts)]


def window_attention(tape, q, k, v, samples, heads, window):
    return grouped_attention(tape, q, k, v, samples, heads, starts=window_starts([0] * len(q.rows), samples, window))


def grouped_attention(tape, q, k, v, samples, heads, causal=True, starts=None):
    kv_heads = len(k.rows[0]) // (len(q.rows[0]) // heads)
    k, v = (repeat_heads(tape, x, kv_heads, heads // kv_heads) for x in (k, v))
    return tape.attention(q, k, v, samples, heads, None, 0, causal, starts=starts)


class Llama:
    dropout = 0.0

    def __init__(self, m):
        self.vocabulary, self.context, self.layers = m.get("vocabulary", 256), m["context"], m["layers"]
        self.heads, self.kv_heads, self.width, self.hidden = m["heads"], m["kv_heads"], m["width"], m["hidden"]
        self.theta, self.epsilon = f32(m.get("rope_theta", 10000.0)), f32(m.get("norm_epsilon", 1e-5))
        self.channels = m.get("head_width", self.width // self.heads)
        bands = [m[key] for key in ("rope_low_freq_factor", "rope_high_freq_factor", "rope_original_context") if key in m]
        self.scaling = (f32(m["rope_factor"]), (f32(bands[0]), f32(bands[1]), bands[2]) if bands else None) if "rope_factor" in m else None
        self.qkv_bias, self.out_bias, self.mlp_bias, self.qk_norm = (m.get(key, False) for key in ("qkv_bias", "out_bias", "mlp_bias", "qk_norm"))
        self.tied, self.std, self.labels = m.get("tied", False), f32(m.get("init_std", 0.02)), self.context
        self.end, self.window, self.full = m.get("document_end"), m.get("sliding_window"), m.get("full_layers", [])
        c, e, q, kv = self.width, self.hidden, self.channels * self.heads, self.channels * self.kv_heads
        parts = [("self_attn.q_proj", "query", q, c), ("self_attn.k_proj", "key", kv, c), ("self_attn.v_proj", "value", kv, c),
                 ("self_attn.o_proj", "attention_out", c, q), ("mlp.gate_proj", "gate", e, c), ("mlp.up_proj", "up", e, c), ("mlp.down_proj", "down", c, e)]
        self.adapters = Adapters(m, [(f"model.layers.{layer}.{module}", f"block{layer}.{name}", [f"block{layer}.{name}"], outputs, inputs)
                                     for layer in range(self.layers) for module, name, outputs, inputs in parts], 0)

    def parameters(self):
        c, e, std = self.width, self.hidden, self.std
        q, kv, projection = self.channels * self.heads, self.channels * self.kv_heads, div(std, sqrt(float(2 * self.layers)))
        gain = lambda name, channels=c: Parameter(name + ".gain", [channels], "ones", False)
        dense = lambda name, outputs, inputs, std, bias: [weight(name + ".weight", [outputs, inputs], std)] + (
            [Parameter(name + ".bias", [outputs], "zeros", False)] if bias else [])
        table = [weight("token_embedding", [self.vocabulary, c], std)]
        for layer in range(self.layers):
            name = f"block{layer}."
            table.append(gain(name + "norm1"))
            for part, outputs in [("query", q), ("key", kv), ("value", kv)]:
                table += dense(name + part, outputs, c, std, self.qkv_bias)
            table += [gain(name + part, self.channels) for part in ("query_norm", "key_norm") if self.qk_norm]
            table += dense(name + "attention_out", c, q, projection, self.out_bias) + [gain(name + "norm2")]
            for part, outputs, inputs, deviation in [("gate", e, c, std), ("up", e, c, std), ("down", c, e, projection)]:
                table += dense(name + part, outputs, inputs, deviation, self.mlp_bias)
        return table + [gain("final_norm")] + ([] if self.tied else [weight("head", [self.vocabulary, c], std)])

    def draw(self, rng, samples):
        token = lambda: rng.randrange(self.vocabulary)
        return [[token() for _ in range(samples * self.context)] for _ in range(2)]

    def forward(self, tape, samples, parameters, batch, factor, _):
        count = len(parameters) - len(self.adapters.parameters())
        p, beside = iter(parameters[:count]), self.adapters.layers(tape, parameters[count:], samples)
        tokens = next(p)
        x = tape.embedding(tokens, batch[0])
        linear = lambda name, x, bias: beside(f"block{layer}.{name}", x, next(p), next(p) if bias else None)
        for layer in range(self.layers):
            u = rms_norm(tape, x, next(p), self.epsilon)
            q, k, v = (linear(name, u, self.qkv_bias) for name in ("query", "key", "value"))
            if self.qk_norm:
                q, k = rms_norm(tape, q, next(p), self.epsilon, self.heads), rms_norm(tape, k, next(p), self.epsilon, self.kv_heads)
            q, k = (rotary(tape, x, samples, heads, self.theta, self.scaling) for x, heads in ((q, self.heads), (k, self.kv_heads)))
            starts = document_starts(batch[0], samples, self.end) if self.end is not None else [0] * len(batch[0])
            starts = starts if self.window is None or layer in self.full else window_starts(starts, samples, self.window)
            a = grouped_attention(tape, q, k, v, samples, self.heads, starts=starts)
            x = tape.residual(x, linear("attention_out", a, self.out_bias))
            u = rms_norm(tape, x, next(p), self.epsilon)
            g, z = (linear(name, u, self.mlp_bias) for name in ("gate", "up"))
            x = tape.residual(x, linear("down", swiglu(tape, g, z), self.mlp_bias))
        x = rms_norm(tape, x, next(p), self.epsilon)
        return tape.loss(tape.linear(x, tokens if self.tied else next(p), None, "head"), batch[1], factor)
