"""Operators that encoders such as BERT and ViT have beside decoders', from the text of docs/ARITHMETIC.md, sections 8.1 and 8.2, alone.

Each appends its gradient to a tape of operators.py.
"""

import decoders
from operators import add, div, exp, map_rows, mul, over_rows, sqrt, sub, tanh, tree


def hyperbolic_tangent(tape, x):
    y = map_rows(tanh, x.rows)
    return tape.record(y, lambda dy: [(x, map_rows(lambda d, v: mul(d, sub(1.0, mul(v, v))), dy, y))])


def class_token(tape, x, token, samples):
    t = len(x.rows) // samples
    rows = sum(([list(token.rows[0])] + x.rows[b * t:b * t + t] for b in range(samples)), [])

    def gradient(dy):
        of_sample = [dy[b * (t + 1):(b + 1) * (t + 1)] for b in range(samples)]
        return [(x, sum((rows[1:] for rows in of_sample), [])), (token, [over_rows([rows[0] for rows in of_sample])])]

    return tape.record(rows, gradient)


def first_position(tape, x, samples):
    t = len(x.rows) // samples
    gradient = lambda dy: [(x, [dy[n // t] if n % t == 0 else [0.0] * len(row) for n, row in enumerate(x.rows)])]
    return tape.record(x.rows[::t], gradient)


def last_position(tape, x, samples):
    t = len(x.rows) // samples
    gradient = lambda dy: [(x, [dy[n // t] if n % t == t - 1 else [0.0] * len(row) for n, row in enumerate(x.rows)])]
    return tape.record(x.rows[t - 1::t], gradient)


def mean_positions(tape, x, samples):
    t = len(x.rows) // samples
    y = [[div(v, float(t)) for v in over_rows(x.rows[b * t:b * t + t])] for b in range(samples)]
    return tape.record(y, lambda dy: [(x, [[div(v, float(t)) for v in dy[n // t]] for n in range(len(x.rows))])])


def exchange(tape, x, samples):
    turned = lambda rows, each: sum(([list(column) for column in zip(*rows[b * each:(b + 1) * each])] for b in range(samples)), [])
    channels = len(x.rows[0])
    return tape.record(turned(x.rows, len(x.rows) // samples), lambda dy: [(x, turned(dy, channels))])


def rows_of(tape, x):
    return tape.record(x.rows, lambda dy: [(x, dy)])


def sigmoid(tape, x):
    y = map_rows(lambda v: div(1.0, add(1.0, exp(-v))), x.rows)
    return tape.record(y, lambda dy: [(x, map_rows(lambda d, v: mul(d, mul(v, sub(1.0, v))), dy, y))])


def product(tape, x, y):
    return tape.record(map_rows(mul, x.rows, y.rows), lambda dy: [(x, map_rows(mul, dy, y.rows)), (y, map_rows(mul, dy, x.rows))])


def group_norm(tape, x, weight, bias, groups, pixels, epsilon):
    """Normalisation of groups of channels over the pixels of each sample, whose rows x has."""
    each = len(x.rows[0]) // groups
    n = float(pixels * each)
    places = [[(first + p, g * each + c) for p in range(pixels) for c in range(each)]
              for first in range(0, len(x.rows), pixels) for g in range(groups)]
    xhat, rstds = [[0.0] * len(row) for row in x.rows], []
    for group in places:
        mean = div(tree(x.rows[r][c] for r, c in group), n)
        d = [sub(x.rows[r][c], mean) for r, c in group]
        rstds.append(div(1.0, sqrt(add(div(tree(mul(v, v) for v in d), n), epsilon))))
        for (r, c), v in zip(group, d):
            xhat[r][c] = mul(v, rstds[-1])

    def gradient(dy):
        dx = [[0.0] * len(row) for row in dy]
        for group, rstd in zip(places, rstds):
            m1 = div(tree(dy[r][c] for r, c in group), n)
            m2 = div(tree(mul(dy[r][c], xhat[r][c]) for r, c in group), n)
            for r, c in group:
                dx[r][c] = mul(rstd, sub(sub(dy[r][c], m1), mul(xhat[r][c], m2)))
        return [(x, dx)]

    return tape.bias(gain(tape, tape.record(xhat, gradient), weight), bias)


def gain(tape, x, factor):
    times = lambda rows: [[mul(v, g) for v, g in zip(row, factor.rows[0])] for row in rows]
    return tape.record(times(x.rows), lambda dy: [(x, times(dy)), (factor, [over_rows(map_rows(mul, dy, x.rows))])])


def position_embedding(tape, x, table, samples):
    t = len(x.rows) // samples
    rows = [[add(a, b) for a, b in zip(row, table.rows[n % t])] for n, row in enumerate(x.rows)]
    gradient = lambda dy: [over_rows(dy[i::t]) if i < t else [0.0] * len(row) for i, row in enumerate(table.rows)]
    return tape.record(rows, lambda dy: [(x, dy), (table, gradient(dy))])


def padded_embedding(tape, table, tokens, padding):
    y = tape.embedding(table, tokens)
    _, gradient = tape.entries.pop()

    def padded(dy):
        [(_, rows)] = gradient(dy)
        return [(table, [[0.0] * len(row) if n == padding else row for n, row in enumerate(rows)])]

    tape.entries.append((y, padded))
    return y


def padded_attention(tape, q, k, v, samples, heads, ids, padding):
    hidden = [n == padding for n in ids]
    kv_heads = len(k.rows[0]) // (len(q.rows[0]) // heads)
    k, v = (decoders.repeat_heads(tape, x, kv_heads, heads // kv_heads) for x in (k, v))
    zeroed = lambda rows: [[0.0] * len(row) if is_padding else row for row, is_padding in zip(rows, hidden)]
    v = (lambda v: tape.record(zeroed(v.rows), lambda dy: [(v, zeroed(dy))]))(v)
    return tape.attention(q, k, v, samples, heads, None, 0, False, hidden)


def document_attention(tape, q, k, v, samples, heads, ids, end):
    return decoders.grouped_attention(tape, q, k, v, samples, heads, starts=decoders.document_starts(ids, samples, end))
